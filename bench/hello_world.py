"""Row hello-world: a run of one job with one `echo`, as a whole process, against `bwrap … bash -c echo`."""

from __future__ import annotations

import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from bench.repository import Repository
from runyard.sandbox.refused import bwrap_path

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 15
WORKFLOW = """\
on: push
jobs:
  hello:
    runs-on: ubuntu-latest
    steps:
      - run: echo Hello, world
"""


def measure() -> Iterator[Figure]:
    """Milliseconds over plain bubblewrap, with the network a run has by default and without one."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(folder, {".github/workflows/hello.yml": WORKFLOW})
        repository.run()  # compiles, and composes the image
        levels: tuple[tuple[str, tuple[str, ...]], ...] = (("default", ()), ("none", ("--network", "none")))
        whole: dict[str, list[float]] = {name: [] for name, _ in levels}
        plain: list[float] = []
        for _ in range(RUNS):
            plain.append(_plain())
            for name, arguments in levels:
                began = time.perf_counter()
                repository.run(*arguments)
                whole[name].append((time.perf_counter() - began) * 1e3)
        base = median(plain)
        for name, _ in levels:
            more = median(whole[name]) - base
            yield Figure("hello-world", f"more than bwrap, network {name}", more, "ms", base, "bwrap … bash -c", 250)


def _plain() -> float:
    command = [bwrap_path(), "--unshare-all", "--cap-drop", "ALL", "--die-with-parent"]
    command += ["--overlay-src", "/usr", "--tmp-overlay", "/usr", "--symlink", "usr/bin", "/bin"]
    command += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "bash", "-c", "echo Hello, world"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=20)
    return (time.perf_counter() - began) * 1e3
