"""Row node-action: a JavaScript action that does nothing, against `node -e 0` in the same sandbox.

What is measured is the time from the start of the action's step to the start of the next, so its own variables, its
files and its command files belong to it.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.repository import Repository
from bench.whole_job import TIMED, plain_seconds, step_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 15
ACTION = "name: nothing\ndescription: does nothing\nruns:\n  using: node20\n  main: main.js\n"


def measure() -> Iterator[Figure]:
    """Milliseconds more than node alone."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(
            folder,
            {
                ".github/workflows/node.yml": _workflow(),
                "nothing/action.yml": ACTION,
                "nothing/main.js": "0;\n",
            },
        )
        repository.run()  # compiles, and composes the image
        output = repository.run("--format", "jsonl")
    plain = [seconds * 1e3 for seconds in plain_seconds(output)["node"]]
    starts = step_starts(output)
    # Set up, checkout, then pairs of the plain step and the action.
    times = [(starts[at + 1] - starts[at]) * 1e3 for at in range(3, 3 + 2 * ROUNDS, 2)]
    base = median(plain)
    yield Figure("node-action", "more than node", median(times) - base, "ms", base, "node -e 0", 30)


def _workflow() -> str:
    steps = "      - uses: actions/checkout@v4\n"
    timed = "".join(f"          {line}\n" for line in TIMED.splitlines())
    for _ in range(ROUNDS):
        steps += f"      - run: |\n{timed}          timed node node -e 0\n      - uses: ./nothing\n"
    return "on: push\njobs:\n  node:\n    runs-on: ubuntu-latest\n    steps:\n" + steps


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.baseline_name} {figure.baseline:.2f})")
