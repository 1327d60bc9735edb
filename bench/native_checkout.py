"""Row native-checkout: the built-in `actions/checkout` of many files, against `git clone` of the same depth.

Cold: no tree of this commit was made yet. Cached: another job of the same commit. The step counts from its start to its
end; a later step looks whether all files are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.repository import Repository
from bench.whole_job import MAKE_TREE, step_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = 20_000
FILE_BYTES = 400
COLD, CACHED = 2, 3
WORKFLOW = f"""\
on: push
jobs:
  checkout:
    runs-on: ubuntu-latest
    steps:
      - name: checkout
        uses: actions/checkout@v4
      - run: test "$(find tree -type f | wc -l)" = {FILES}
"""


def measure() -> Iterator[Figure]:
    """Seconds; the clone is of the same repository by the same git, onto the same disk."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "repository")
        make = [sys.executable, "-c", MAKE_TREE, str(root / "tree"), str(FILES), str(FILE_BYTES)]
        subprocess.run(make, check=True)
        repository = Repository(folder, {".github/workflows/checkout.yml": WORKFLOW})
        clones, cold, cached = [], [], []
        for _ in range(COLD):
            clones.append(_clone(repository.root, Path(folder, "clone")))
            shutil.rmtree(Path(folder, "cache"), ignore_errors=True)
            cold += _run(repository)
        for _ in range(CACHED):
            cached += _run(repository)
        base = median(clones)
        yield Figure("native-checkout", "cold", median(cold), "s", base, "git clone", 1.0, of_ratio=True)
        yield Figure("native-checkout", "cached", median(cached), "s", base, "git clone", 0.6)


def _run(repository: Repository) -> list[float]:
    return step_seconds(repository.run("--format", "jsonl"))["checkout"]


def _clone(source: Path, into: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{source}", str(into)], check=True)
    took = time.perf_counter() - began
    shutil.rmtree(into)
    return took


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.ratio:.2f} x {figure.baseline_name})")
