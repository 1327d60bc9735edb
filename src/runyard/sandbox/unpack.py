# ruff: noqa: PTH103, PTH104, PTH118, PTH208
# Trees of many thousand files; folders are used by descriptor, so that no link leads out of them.

"""Images that come as files: a root as a tar, or an OCI image layout (a folder, or a tar of one).

Unpacked once into the state folder, under a name made from the file's identity; what an image names as its environment
comes along. Nothing is trusted: blobs must match their digests, members stay in the tree, devices are left out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec

from runyard.job import InputError, Refused
from runyard.sandbox.contract import SandboxRefused
from runyard.sandbox.enter import tarball

if TYPE_CHECKING:
    from collections.abc import Callable

Environment = tuple[tuple[str, str], ...]

_LARGEST_JSON: Final = 8 << 20
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"


class _Reader(tarball.Source):
    """A tar read through a decompressor."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(-1)
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size)


def unpacked(kind: str, path: str, state: str) -> tuple[str, Environment]:
    """The root folder of a `tar` or `oci` image and its environment. Raises InputError, SandboxRefused."""
    try:
        real = os.path.realpath(path)
        facts = os.stat(os.path.join(real, "index.json") if os.path.isdir(real) else real)  # noqa: PTH112, PTH116
    except OSError as err:
        raise InputError(f"the image {kind}:{path} can't be read: {err.strerror}", path=path) from err
    told = f"1 {kind} {real} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {os.geteuid()}"
    place = f"{state}/images/{kind}-{hashlib.blake2s(told.encode(), digest_size=10).hexdigest()}"
    if not os.path.isdir(place):  # noqa: PTH112
        _make(place, lambda made: _fill(kind, real, made), path)
    return f"{place}/root", _environment(place)


def _make(place: str, fill: Callable[[str], None], path: str) -> None:
    """Fill a folder beside its place and put it there whole; of two makers one wins."""
    parent = os.path.dirname(place)  # noqa: PTH120
    os.makedirs(parent, mode=0o700, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".image-", dir=parent)
    try:
        fill(made)
        os.rename(made, place)
    except (ValueError, msgspec.DecodeError) as err:
        raise InputError(f"the image can't be unpacked: {err}", path=path, code="sandbox.image") from err
    except OSError as err:
        if not os.path.isdir(place):  # noqa: PTH112
            raise InputError(f"the image can't be unpacked: {err}", path=path, code="sandbox.image") from err
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _fill(kind: str, path: str, made: str) -> None:
    root = f"{made}/root"
    os.mkdir(root, 0o755)  # noqa: PTH102
    environment: Environment = ()
    if kind == "tar":
        _layer(path, root)
    elif os.path.isdir(path):  # noqa: PTH112
        environment = _oci(path, root)
    else:
        layout = f"{made}/layout"
        _layer(path, layout, image=False)
        environment = _oci(layout, root)
        shutil.rmtree(layout)
    with open(f"{made}/environment.json", "wb") as file:
        file.write(msgspec.json.encode(environment))


def _environment(place: str) -> Environment:
    with open(f"{place}/environment.json", "rb") as file:
        return msgspec.json.decode(file.read(), type=Environment)


# Layers


def _open(path: str) -> IO[bytes]:
    """The tar in a file, however it is compressed. Raises SandboxRefused for what can't be read here."""
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic[:2] == b"\x1f\x8b":
        import gzip

        return cast("IO[bytes]", gzip.open(path, "rb"))
    if magic == b"\xfd7zXZ\0":
        import lzma

        return cast("IO[bytes]", lzma.open(path, "rb"))
    if magic[:4] == b"\x28\xb5\x2f\xfd":
        raise SandboxRefused(
            Refused("fresh_file_system", "layers compressed with zstd can't be read", "export the image with gzip")
        )
    return open(path, "rb")


def _layer(path: str, root: str, *, image: bool = True) -> None:
    """Lay one tar over what the root has already, with the whiteouts of OCI (image-spec, layer)."""
    os.makedirs(root, mode=0o755, exist_ok=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    tree = tarball.Tree(fd, owners=image and os.geteuid() == 0, image=image)
    own: set[tuple[str, ...]] = set()
    try:
        with _open(path) as file:
            source = _Reader(file)
            while (entry := tarball.read_entry(source)) is not None:
                parts = tarball.parts_of(entry.name)
                if image and parts and parts[-1].startswith(_WHITEOUT):
                    _white_out(tree, parts, own)
                    source.read(entry.size + -entry.size % tarball.BLOCK)
                    continue
                own.update(tuple(parts[:count]) for count in range(1, len(parts) + 1))
                tree.put(entry, source)
            tree.finish()
    except EOFError as err:
        raise ValueError("the compressed tar ends too early") from err
    finally:
        tree.close()
        os.close(fd)


def _white_out(tree: tarball.Tree, parts: list[str], own: set[tuple[str, ...]]) -> None:
    folder, above = tree.folder(parts[:-1]), parts[:-1]
    if parts[-1] != _OPAQUE:
        _remove(folder, parts[-1].removeprefix(_WHITEOUT))
        return
    for name in os.listdir(folder):
        if (*above, name) not in own:
            _remove(folder, name)


def _remove(folder: int, name: str) -> None:
    if name in ("", ".", ".."):
        raise ValueError("a whiteout without a name")
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=folder)


# The OCI layout


def _oci(layout: str, root: str) -> Environment:
    """Unpack the layers of the image for this machine; its environment."""
    index = _json(f"{layout}/index.json")
    manifest = _manifest(layout, index, depth=0)
    config = _json(_blob(layout, manifest["config"]))
    for layer in manifest["layers"]:
        _layer(_blob(layout, layer), root)
    pairs = (text.partition("=") for text in (config.get("config") or {}).get("Env") or ())
    return tuple((name, value) for name, _, value in pairs if name)


def _manifest(layout: str, index: dict[str, Any], depth: int) -> dict[str, Any]:
    if depth > 4:
        raise ValueError("its indexes are nested too deep")
    if "layers" in index:
        return index
    here = _MACHINES.get(os.uname().machine, os.uname().machine)
    entries = index.get("manifests") or []
    named = [entry.get("platform") or {} for entry in entries]
    fitting = [
        entry
        for entry, platform in zip(entries, named, strict=True)
        if platform.get("architecture", here) == here and platform.get("os", "linux") == "linux"
    ]
    if not fitting:
        has = ", ".join(sorted({str(platform.get("architecture")) for platform in named})) or "nothing"
        raise ValueError(f"it has no image for linux/{here}, but for {has}")
    return _manifest(layout, _json(_blob(layout, fitting[0])), depth + 1)


def _json(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read(_LARGEST_JSON + 1)
    if len(data) > _LARGEST_JSON:
        raise ValueError("a description in it is too large")
    return msgspec.json.decode(data, type=dict[str, Any])


def _blob(layout: str, descriptor: dict[str, Any]) -> str:
    """The file of a descriptor, once its bytes were found to have the digest that names it."""
    algorithm, _, digest = str(descriptor.get("digest", "")).partition(":")
    if algorithm not in ("sha256", "sha512") or not digest.isalnum():
        raise ValueError(f"a digest that can't be used: {descriptor.get('digest')}")
    path = f"{layout}/blobs/{algorithm}/{digest}"
    with open(path, "rb") as file:
        if hashlib.file_digest(file, algorithm).hexdigest() != digest:
            raise ValueError(f"the blob {digest[:12]} does not have its digest")
    return path
