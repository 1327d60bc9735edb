"""Row version-start: how long `--version` and `--help` take, against a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, median

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUNYARD = str(Path(sys.executable).parent / "runyard")


def _took_ms(command: Sequence[str], times: int = 15) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=20)
        taken.append((time.perf_counter() - start) * 1000)
    return median(taken)


def measure() -> Iterator[Figure]:
    """Medians of 15 starts each."""
    _took_ms([RUNYARD, "--help"], 2)
    bare = _took_ms([sys.executable, "-S", "-c", "pass"])
    for flag, target in (("--version", 60), ("--help", 90)):
        yield Figure("version-start", flag, _took_ms([RUNYARD, flag]), "ms", bare, "python -S -c pass", target)
