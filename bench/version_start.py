"""Row version-start: how long `--version` and `--help` take, against a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.repository import RUNYARD, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def _took_ms(command: Sequence[str], environment: Mapping[str, str], times: int = 15) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=20)
        taken.append((time.perf_counter() - start) * 1000)
    return median(taken)


def measure() -> Iterator[Figure]:
    """Medians of 15 starts each, byte code compiled as in an installed package."""
    with tempfile.TemporaryDirectory() as folder:
        environment = compiled(folder)
        for flag in ("--version", "--help"):
            _took_ms([RUNYARD, flag], environment, 1)
        bare = _took_ms([sys.executable, "-S", "-c", "pass"], environment)
        for flag, target in (("--version", 60), ("--help", 90)):
            taken = _took_ms([RUNYARD, flag], environment)
            yield Figure("version-start", flag, taken, "ms", bare, "python -S -c pass", target)
