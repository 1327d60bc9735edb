"""Images for tests, made on this machine: there is no registry where tests run.

`busybox_image` takes well under a second (a static busybox and its links) and is what most tests want;
`shell_less_image` holds one program and no shell; `base_image` is a small Debian (about half a minute the first time).
All are named by the digest of what they are made of, so the second call finds them, and carry the label `runyard.test`.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runyard.job import MachineError
from runyard.sandbox.docker_api import EngineApi
from runyard.sandbox.docker_now import answers_at, default_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUSYBOX = "/bin/busybox"
LABEL = "LABEL runyard.test=1"
SEARCH_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_RECIPE = (
    "mmdebstrap",
    "--variant=minbase",
    "--include=ca-certificates,git,nodejs,python3,bash,jq,sudo,curl,xz-utils,zstd,procps",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "bookworm",
)


def engine_socket() -> str:
    """The socket of a Docker Engine that answers; skips the test where none does."""
    path = default_socket()
    if not answers_at(path):
        pytest.skip(f"no container engine at {path} (.ci/engine starts one)")
    try:
        asyncio.run(_version(path))
    except MachineError as gone:
        pytest.skip(f"the container engine does not answer: {gone.message}")
    return path


def podman_socket() -> str:
    """The socket of Podman's service, started if need be; skips the test where Podman can't be."""
    path = default_socket("podman")
    started = subprocess.run(
        [str(Path(__file__).resolve().parent.parent / ".ci" / "engine"), "podman"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    if started.returncode != 0:
        pytest.skip(f"no Podman here: {started.stderr.strip()[-300:]}")
    return path


def busybox_image(user: str = "", extra: tuple[str, ...] = ()) -> str:
    """A busybox root as an engine's image; `user` is the image's user, `extra` further Dockerfile lines."""
    return asyncio.run(_ensured("busybox", _busybox_tar(), user, extra))


def bash_image(socket_path: str | None = None) -> str:
    """The busybox root with this machine's bash beside it; `/bin/sh` is still the busybox."""
    return asyncio.run(_ensured("bash", _busybox_tar(with_bash=True), "", (), socket_path))


def shell_less_image() -> str:
    """An image whose only program is a busybox that is not called by any shell's name."""
    return asyncio.run(_ensured("tool", _tool_tar(), "", ('ENTRYPOINT ["/bin/busybox"]',)))


def base_image() -> str:
    """A Debian with git, node, python and bash; skips where it can't be made."""
    return asyncio.run(_ensured("base", _base_tar(), "", ('CMD ["bash"]',)))


async def _version(path: str) -> None:
    async with EngineApi(path) as api:
        await api.version()


async def _ensured(
    kind: str, tar: Path | bytes, user: str, extra: tuple[str, ...], socket_path: str | None = None
) -> str:
    digest = hashlib.sha256(tar if isinstance(tar, bytes) else tar.name.encode())
    changes = [SEARCH_PATH, LABEL, *([f"USER {user}"] if user else []), *extra]
    digest.update("\n".join(changes).encode())
    name = f"runyard-test/{kind}:{digest.hexdigest()[:16]}"
    async with EngineApi(socket_path or default_socket()) as api:
        if await api.image(name) is None:
            await api.import_image(_pieces(tar), name, changes)
    return name


async def _pieces(tar: Path | bytes) -> AsyncIterator[bytes]:
    if isinstance(tar, bytes):
        yield tar
        return
    with tar.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _member(
    tar: tarfile.TarFile, name: str, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, **more: object
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    data = more.get("data", b"")
    assert isinstance(data, bytes)
    info.size = len(data)
    info.linkname = str(more.get("link", ""))
    tar.addfile(info, io.BytesIO(data))


def _skeleton(tar: tarfile.TarFile) -> None:
    for folder in ("bin", "etc", "root", "home", "usr", "usr/bin", "var"):
        _member(tar, folder, kind=tarfile.DIRTYPE)
    _member(tar, "tmp", kind=tarfile.DIRTYPE, mode=0o1777)
    _member(
        tar,
        "etc/passwd",
        mode=0o644,
        data=b"root:x:0:0:root:/root:/bin/sh\nbuilder:x:1001:1001::/home/builder:/bin/sh\n",
    )
    _member(tar, "etc/group", mode=0o644, data=b"root:x:0:\nbuilder:x:1001:\n")
    # Looked for by workflows that ask whether they run in an Alpine, for which this root stands in.
    _member(tar, "etc/alpine-release", mode=0o644, data=b"3.0.0\n")


def _busybox() -> bytes:
    if not os.access(BUSYBOX, os.X_OK):
        pytest.skip(f"{BUSYBOX} is not there (apt-get install -y busybox-static)")
    return Path(BUSYBOX).read_bytes()


def _busybox_tar(*, with_bash: bool = False) -> bytes:
    program = _busybox()
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True, timeout=10).stdout
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _skeleton(tar)
        _member(tar, "bin/busybox", data=program)
        for applet in sorted(set(listed.split()) - {"busybox"}):
            _member(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, link="busybox")
        if with_bash:
            _with_libraries(tar, {"/bin/bash": "/bin/bash"})
    return packed.getvalue()


def _with_libraries(tar: tarfile.TarFile, programs: dict[str, str]) -> None:
    """Programs of this machine at other places, and what they are linked with at the paths where they expect it."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True, timeout=10).stdout
    needed = {word: word for word in listed.split() if word.startswith("/") and not word.endswith(":")}
    for path, place in {**needed, **programs}.items():
        _member(tar, place.lstrip("/"), data=Path(path).read_bytes())


def _tool_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _skeleton(tar)
        _member(tar, "bin/busybox", data=_busybox())
    return packed.getvalue()


def _base_tar() -> Path:
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("the Debian image needs mmdebstrap and root (apt-get install -y mmdebstrap)")
    build = Path(__file__).resolve().parent.parent / "build" / "images"
    build.mkdir(parents=True, exist_ok=True)
    target = build / f"base-{hashlib.sha256(repr(BASE_RECIPE).encode()).hexdigest()[:16]}.tar"
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            done = subprocess.run(
                [*BASE_RECIPE, "-"],
                stdout=part.open("wb"),
                stderr=subprocess.PIPE,
                env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
                timeout=300,
                check=False,
            )
            if done.returncode != 0:
                part.unlink()
                pytest.skip(f"the Debian image can't be made here: {done.stderr[-200:].decode(errors='replace')}")
            part.rename(target)
    return target
