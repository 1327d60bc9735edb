"""Row docker-job: a run of one job in a container, as a whole process, against `docker run` of the same script.

The image is a static busybox, imported once and warm; an engine has to answer (`.ci/engine` starts one).
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
import time
from typing import TYPE_CHECKING, Final

from bench.figure import Figure, median
from bench.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS: Final = 10
IMAGE: Final = "runyard-bench/busybox:1"
BUSYBOX: Final = "/bin/busybox"
WORKFLOW: Final = f"""\
on: push
jobs:
  hello:
    runs-on: ubuntu-latest
    container: {IMAGE}
    steps:
      - run: echo Hello, world
"""


def measure() -> Iterator[Figure]:
    """Milliseconds over `docker run`, without a network on both sides."""
    _import_image()
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(folder, {".github/workflows/hello.yml": WORKFLOW})
        repository.run("--network", "none")  # compiles
        plain: list[float] = []
        whole: list[float] = []
        for _ in range(RUNS):
            plain.append(_plain())
            began = time.perf_counter()
            repository.run("--network", "none")
            whole.append((time.perf_counter() - began) * 1e3)
        base = median(plain)
        more = median(whole) - base
        yield Figure("docker-job", "more than docker run", more, "ms", base, "docker run … sh -c", 150)


def _plain() -> float:
    command = ["docker", "run", "--rm", "--network", "none", IMAGE, "sh", "-c", "echo Hello, world"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)
    return (time.perf_counter() - began) * 1e3


def _import_image() -> None:
    found = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=60, check=False)
    if found.returncode == 0:
        return
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for applet in ("sh", "true", "mkdir", "cat", "rm", "ls", "env"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    change = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    command = ["docker", "import", "--change", change, "-", IMAGE]
    subprocess.run(command, input=packed.getvalue(), check=True, stdout=subprocess.DEVNULL, timeout=60)
