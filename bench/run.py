"""Measures the rows of the table of numbers: `./dev bench [ROW…]`. Prints ratio, target and verdict of each figure.

Targets are meant for a machine with nothing else to do. Where others work beside it, read the ratio to the baseline of
the same run, and give what is measured the right of way: `chrt -f 10 ./dev bench`.

Exit code 0 also when targets are missed: a benchmark tells, it does not judge a change; `--strict` ends with 1 then.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.figure import Figure

HERE = Path(__file__).resolve().parent
NO_ROWS = {"run", "figure", "repository", "whole_job", "__init__"}


def rows() -> list[str]:
    """The names of all rows, as the table has them."""
    return sorted(path.stem.replace("_", "-") for path in HERE.glob("*.py") if path.stem not in NO_ROWS)


def _line(figure: Figure) -> str:
    verdict = {None: "", True: "met", False: "MISSED"}[figure.is_met]
    sign = "≥" if figure.at_least else "≤"
    target = (
        "" if figure.target is None else f"{sign} {figure.target:g}{' ×' if figure.of_ratio else ' ' + figure.unit}"
    )
    return (
        f"{figure.row:<18} {figure.name:<34} {figure.value:>10.2f} {figure.unit:<8} "
        f"{figure.ratio:>8.2f} × {figure.baseline:.2f} ({figure.baseline_name})   {target:<14} {verdict}"
    )


def main(arguments: list[str]) -> int:
    """Measure the rows named, or all."""
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures rows of the table of numbers.")
    parser.add_argument("row", nargs="*", help=", ".join(rows()))
    parser.add_argument("--strict", action="store_true", help="end with 1 when a target is missed")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.row if name not in rows()]
    if unknown:
        print(f"bench: no such row: {', '.join(unknown)}; there are {', '.join(rows())}", file=sys.stderr)
        return 2
    print(f"load average at the start: {os.getloadavg()[0]:.2f}", flush=True)
    missed = 0
    for name in given.row or rows():
        module = importlib.import_module(f"bench.{name.replace('-', '_')}")
        for figure in module.measure():
            print(_line(figure), flush=True)
            missed += figure.is_met is False
    print(f"load average at the end: {os.getloadavg()[0]:.2f}; {missed} target(s) missed")
    return 1 if missed and given.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
