"""Row tar-tree: our own packing and unpacking of a tree of small files, against `tar`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.whole_job import FILE_BYTES, MAKE_TREE
from runyard.sandbox.enter import tarball

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEGABYTES = 60
ROUNDS = 4
FILES = MEGABYTES * 1_000_000 // FILE_BYTES


def measure() -> Iterator[Figure]:
    """Times of `tar` that a packing and an unpacking take; both sides write the same archive to the same disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, tar = folder / "tree", folder / "it.tar"
        subprocess.run([sys.executable, "-c", MAKE_TREE, str(tree), str(FILES), str(FILE_BYTES)], check=True)
        times: dict[str, list[float]] = {each: [] for each in ("pack", "unpack", "tar -cf", "tar -xf")}
        for _ in range(ROUNDS):
            times["tar -cf"].append(_timed(lambda: _tar("-cf", tar, tree)))
            times["pack"].append(_timed(lambda: _ours(tarball.pack, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, tar, tree)))
            for kind, work in (
                ("tar -xf", lambda out: _tar("-xf", tar, out)),
                ("unpack", lambda out: _ours(tarball.unpack, os.O_RDONLY, tar, out)),
            ):
                out = folder / "out"
                out.mkdir()
                times[kind].append(_timed(lambda work=work, out=out: work(out)))  # type: ignore[misc]  # a default
                if sum(1 for each in out.rglob("*.txt")) != FILES:
                    raise RuntimeError(f"{kind}: files are missing")
                shutil.rmtree(out)
        for ours, theirs in (("pack", "tar -cf"), ("unpack", "tar -xf")):
            value, base = median(times[ours]), median(times[theirs])
            yield Figure("tar-tree", f"{ours}, {MEGABYTES} MB", value, "s", base, theirs, 2.0, of_ratio=True)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _tar(how: str, tar: Path, tree: Path) -> None:
    """The program writes its members in the order of the folder and ours by name; both read each file once."""
    subprocess.run(["tar", "-C", str(tree), how, str(tar), *(["."] if how == "-cf" else [])], check=True)


def _ours(work: Callable[[int, str], str], flags: int, tar: Path, tree: Path) -> None:
    """In a process of its own, as the supervisor does it."""
    fd = os.open(tar, flags, 0o600)
    try:
        if (child := os.fork()) == 0:
            try:
                work(fd, str(tree))
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("the child failed")
    finally:
        os.close(fd)


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.ratio:.2f} x {figure.baseline_name})")
