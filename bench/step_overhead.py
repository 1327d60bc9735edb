"""Row step-overhead: 200 steps `true` through the whole engine, against the same scripts by plain `bash -e` in there.

What is measured is the time from the start of one step to the start of the next, as the run's own events tell it, so
nothing of a step is left out: expressions, command files, log and display belong to it.
"""

from __future__ import annotations

import datetime
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, median, percentile
from bench.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 200
NESTED = 50
WORKFLOW = f"""\
on: push
jobs:
  steps:
    runs-on: ubuntu-latest
    steps:
      - run: |
          echo true > /tmp/plain.sh
          for i in $(seq {STEPS}); do
            a=${{EPOCHREALTIME/./}}; bash -e /tmp/plain.sh; b=${{EPOCHREALTIME/./}}; echo "plain $((b - a))"
          done
"""
ACTION = "name: nested\ndescription: nested\nruns:\n  using: composite\n  steps:\n"
ROUNDS = 10


def measure() -> Iterator[Figure]:
    """Milliseconds a step over plain bash: bubblewrap, nested in a composite action, and docker where it answers."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(
            folder,
            {
                ".github/workflows/steps.yml": WORKFLOW + "      - run: true\n" * STEPS,
                ".github/workflows/nested.yml": WORKFLOW
                + "      - uses: actions/checkout@v4\n      - uses: ./nested\n",
                "nested/action.yml": ACTION + "    - run: true\n      shell: bash\n" * NESTED,
            },
        )
        plain, steps = _steps(repository.run("steps.yml", "--format", "jsonl"))
        yield from _over("", plain, steps, 2.0)
        plain, nested = _nested(repository)
        yield Figure(
            "step-overhead", "nested", median(nested) - median(plain), "ms", median(plain), "bash -e inside", 4
        )
        image = _engine_image()
        if image is not None:
            arguments = ("--sandbox", "docker", "--image", f"ubuntu-latest={image}", "--format", "jsonl")
            plain, steps = _steps(repository.run("steps.yml", *arguments))
            yield from _over("docker, ", plain, steps, 3.0)


def _over(where: str, plain: list[float], steps: list[float], target: float) -> Iterator[Figure]:
    for name, base, value, most in (
        ("median", median(plain), median(steps), target),
        ("p95", percentile(plain, 0.95), percentile(steps, 0.95), 4.0 if not where else None),
    ):
        yield Figure("step-overhead", where + name, value - base, "ms", base, f"bash -e inside, {name}", most)


def _steps(output: bytes) -> tuple[list[float], list[float]]:
    """Milliseconds of the plain scripts, and of each step but the first."""
    plain, starts = _read(output)
    times = [(after - before) * 1e3 for before, after in itertools.pairwise(starts)]
    return plain, times[2 : 2 + STEPS]


def _nested(repository: Repository) -> tuple[list[float], list[float]]:
    """Milliseconds of the plain scripts, and of one nested step, by round."""
    plain, nested = [], []
    for _ in range(ROUNDS):
        base, starts = _read(repository.run("nested.yml", "--format", "jsonl"))
        plain.append(median(base))
        nested.append((starts[4] - starts[3]) * 1e3 / NESTED)
    return plain, nested


def _read(output: bytes) -> tuple[list[float], list[float]]:
    """What the plain scripts took in milliseconds, and when each step began in seconds."""
    plain, starts = [], []
    for line in output.splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["type"] == "step_started":
            starts.append(_seconds(event["time"]))
        elif event["type"] == "log":
            words = [text.split() for text in str(event.get("text", "")).splitlines() if text.startswith("plain ")]
            plain += [int(number) / 1e3 for _, number in words if number.isdigit()]
    return plain, starts


def _seconds(time: str) -> float:
    whole, _, rest = time.removesuffix("Z").partition(".")
    moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC)
    return moment.timestamp() + float(f"0.{rest or 0}")


def _engine_image() -> str | None:
    """An image with bash, made on this machine; None where no engine answers."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import pytest

    import images

    try:
        images.engine_socket()
        return images.bash_image()
    except pytest.skip.Exception as skipped:
        print(f"step-overhead, docker: not here: {skipped}")
        return None


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.baseline_name} {figure.baseline:.2f})")
