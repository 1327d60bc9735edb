"""What stands ready outside while a sandbox is attacked: seeded files, a listening port, sockets, a process.

Each carries one random word, so a hit is a hit and nothing else. All of it belongs to this process and is gone when the
context ends. Addresses are this machine's own; nothing is sent anywhere else from here.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.sandbox.attack.attempts import Outside
from runyard.sandbox.network import surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE_SOCKETS: Final = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/user/1000/podman/podman.sock",
)
_WRITABLE_FOLDERS: Final = ("/etc", "/usr/bin", "/usr/local/bin", "/root", "/home", "/var", "/opt", "/tmp", "/var/tmp")
_PROCESS_S: Final = 300
_SEED: Final = re.compile(r"\.runyard-[0-9a-f]{24}\Z")


@contextmanager
def prepared() -> Iterator[Outside]:
    """Seed the machine, and take everything away again."""
    word = f"runyard-{secrets.token_hex(12)}"
    with ExitStack() as stack:
        _sweep()
        files = [path for folder in _seed_folders() if (path := _seed(stack, folder, word))]
        sockets = Path(tempfile.mkdtemp(prefix="runyard-attack-"))
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        socket_path = str(sockets / "s")
        _listen(stack, socket.AF_UNIX, socket_path)
        _listen(stack, socket.AF_UNIX, f"\0{word}")
        port = _listen_everywhere(stack)
        _start_process(stack, word)
        around = surroundings.observe()
        own = [address for address in around.addresses if not address.is_loopback and not address.is_link_local]
        yield Outside(
            word=word,
            files=tuple(files),
            folders=tuple(folder for folder in _WRITABLE_FOLDERS if _is_there(folder)),
            socket_path=socket_path,
            abstract_socket=f"@{word}",
            port=port,
            addresses=tuple(str(address) for address in own if address.version == 4),
            addresses6=tuple(address.packed.hex() for address in own if address.version == 6),
            gateways=_gateways(),
            shadow=_first_line("/etc/shadow"),
            engine_sockets=tuple(path for path in ENGINE_SOCKETS if _is_there(path)) or ENGINE_SOCKETS[:1],
        )


def planted(outside: Outside) -> list[str]:
    """Files that a sandbox should never have been able to leave on this machine; they are removed."""
    found = []
    for folder in outside.folders:
        path = Path(folder) / f"{outside.word}-planted"
        if _is_there(str(path)):
            found.append(str(path))
            path.unlink()
    return found


def processes_with(word: str) -> list[tuple[int, int]]:
    """(pid, real user id) of each process on this machine whose arguments carry `word`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append((int(entry.name), entry.stat().st_uid))
    return found


def _is_there(path: str) -> bool:
    """Whether a path exists, as far as this user may know; one behind a closed folder is not there."""
    return os.path.exists(path)  # noqa: PTH110 - a Path raises for a closed folder


def _seed_folders() -> list[Path]:
    return [Path.home(), Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]


def _sweep() -> None:
    """Remove the seeds of attacks that were killed: only files of our name, and none that may still be in use."""
    for folder in _seed_folders():
        for path in folder.glob(".runyard-*"):
            with suppress(OSError):
                if _SEED.match(path.name) and path.is_file() and time.time() - path.stat().st_mtime > _PROCESS_S:
                    path.unlink()


def _seed(stack: ExitStack, folder: Path, word: str) -> str | None:
    path = folder / f".{word}"
    try:
        path.write_text(f"{word}\n")
    except OSError:
        return None
    stack.callback(path.unlink, missing_ok=True)
    return str(path)


def _listen(stack: ExitStack, family: int, address: str) -> None:
    made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    made.bind(address)
    made.listen(16)


def _listen_everywhere(stack: ExitStack) -> int:
    """A port that is open on every address of this machine; it never accepts, connecting is enough."""
    four = stack.enter_context(socket.create_server(("", 0), backlog=64))
    port = int(four.getsockname()[1])
    with suppress(OSError):
        stack.enter_context(socket.create_server(("::", port), family=socket.AF_INET6, backlog=64))
    return port


def _start_process(stack: ExitStack, word: str) -> None:
    """A process of the host with the word in its arguments and its environment."""
    script = f"import signal; signal.alarm({_PROCESS_S}); signal.pause()"
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", script, word],
        env={"SEEDED": word},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait, 10)
    stack.callback(process.kill)


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").split("\n")[0]
    except OSError:
        return ""


def _gateways() -> tuple[str, ...]:
    """The next hops of this machine's IPv4 default routes: the nearest thing on the LAN that is sure to exist."""
    try:
        rows = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    except OSError:
        return ()
    hops = {row[2] for row in rows if row[1] == "00000000" and row[2] != "00000000"}
    return tuple(str(ipaddress.IPv4Address(bytes.fromhex(hop)[::-1])) for hop in sorted(hops))


def probe_bytes(machine: str | None = None) -> bytes | None:
    """The probe for an architecture (this machine's by default); None where none is shipped."""
    name = f"probe.{machine or os.uname().machine}"
    try:
        return (Path(__file__).parent / name).read_bytes()
    except OSError:
        return None
