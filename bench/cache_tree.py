"""Row cache-tree: `actions/cache` saves and restores a tree of small files, against `tar` and `zstd` in there.

The whole step counts, from its start to its end: key and version, the archive out of the sandbox, its digest, the sync
to the disk, and the way back in.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.repository import Repository
from bench.whole_job import FILE_BYTES, MAKE_TREE, TIMED, plain_seconds, step_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTES = 60
ROUNDS = 4
FILES = MEGABYTES * 1_000_000 // FILE_BYTES
PLAIN = f"""\
{TIMED}
save() {{ tar -cf - tree | zstd -q -1 -T0 > plain.tzst; }}
restore() {{ mkdir plain && zstd -q -dc plain.tzst | tar -xf - -C plain; }}
timed save save; timed restore restore
rm -rf plain plain.tzst
"""


def measure() -> Iterator[Figure]:
    """Times of `tar` and `zstd` that a save, a restore and both together take."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(folder, {".github/workflows/cache.yml": _workflow()})
        output = repository.run("--format", "jsonl", timeout_s=300)
    plain, steps = plain_seconds(output), step_seconds(output)
    pairs = [(name, median(steps[name]), median(plain[name])) for name in ("save", "restore")]
    for name, value, base in pairs:
        yield Figure("cache-tree", f"{name}, {MEGABYTES} MB", value, "s", base, "tar and zstd", None)
    both, base = sum(pair[1] for pair in pairs), sum(pair[2] for pair in pairs)
    yield Figure("cache-tree", "save and restore", both, "s", base, "tar and zstd", 1.5, of_ratio=True)


def _workflow() -> str:
    def script(text: str) -> str:
        return "".join(f"          {line}\n" for line in text.splitlines())

    head = "on: push\njobs:\n  cache:\n    runs-on: ubuntu-latest\n    steps:\n"
    made = f"cat > /tmp/make.py <<'EOF'\n{MAKE_TREE}EOF\npython3 /tmp/make.py tree {FILES} {FILE_BYTES}\n"
    head += f"      - run: |\n{script(made)}"
    body = ""
    for number in range(ROUNDS):
        with_ = f"        with: {{path: tree, key: k{number}}}\n"
        body += f"      - run: |\n{script(PLAIN)}"
        body += f"      - name: save\n        uses: actions/cache/save@v4\n{with_}"
        body += "      - run: rm -rf tree\n"
        body += f"      - name: restore\n        uses: actions/cache/restore@v4\n{with_}"
        body += f'      - run: test "$(find tree -type f | wc -l)" = {FILES}\n'
    return head + body


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.ratio:.2f} x {figure.baseline_name})")
