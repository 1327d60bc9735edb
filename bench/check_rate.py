"""Row check-rate: `check` on the corpus's real workflows, against reading their YAML events only."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from runyard.cli.check import check_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 10
FILES_PER_SECOND = 250
SLOWEST_MS = 60


def measure() -> Iterator[Figure]:
    """Files a second, and the slowest file in milliseconds; nothing where the corpus isn't beside the checkout."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from corpus_path import corpus_or_none

    folder = corpus_or_none("real-workflows")
    if folder is None:
        return
    files = sorted(file for file in folder.iterdir() if file.suffix in {".yml", ".yaml"})
    rates: list[float] = []
    slowest: list[float] = []
    baselines: list[float] = []
    for _ in range(ROUNDS):
        _forget()
        times = [_timed(check_file, file, file.name) for file in files]
        rates.append(len(files) / sum(times))
        slowest.append(max(times) * 1000)
        baselines.append(len(files) / sum(_timed(_events, file) for file in files))
    yield Figure(
        "check-rate",
        "files checked",
        median(rates),
        "files/s",
        median(baselines),
        "events only",
        FILES_PER_SECOND,
        True,
    )
    yield Figure(
        "check-rate", "slowest file", median(slowest), "ms", 1000 / median(baselines), "events only, mean", SLOWEST_MS
    )


def _forget() -> None:
    """Drops what was cached of expressions, so that each round reads every file as if it were new."""
    from runyard.expression import parser

    parser.read.cache_clear()


def _timed(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def _events(file: Path) -> None:
    import yaml

    loader = yaml.CLoader(file.read_bytes())
    while not isinstance(loader.get_event(), yaml.StreamEndEvent):
        pass


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.1f} {figure.unit} ({figure.baseline_name} {figure.baseline:.1f})")
