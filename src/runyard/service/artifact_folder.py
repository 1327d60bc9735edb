"""Finished artifacts as files: `--artifacts D` gets `D/<name>/…`, unpacked with care.

What a job packed is not trusted: names that lead out, links, devices and names twice are refused, and so is an archive
that grows beyond its limits. An artifact appears whole or not at all, and replaces the one of an earlier run.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from runyard.service.artifact_rules import Artifact

_CHUNK: Final = 1 << 20
_ZIP: Final = "application/zip"
_RATIO_FROM: Final = 64 << 20
"""Small archives may be as dense as they like; from this size on the ratio counts."""


class ZipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large an archive may become. `ratio` is unpacked bytes to packed ones."""

    files: int = 500_000
    size: int = 20 << 30
    ratio: int = 200


class UnsafeArchiveError(Exception):
    """Why an archive is not unpacked."""


class ArtifactFolder:
    """Writes artifacts below one folder. Blocking; for use in a thread."""

    def __init__(self, folder: str, limits: ZipLimits | None = None) -> None:
        self._folder = Path(folder)
        self._limits = limits or ZipLimits()

    def take(self, artifact: Artifact, path: str) -> str | None:
        """Show a finished artifact, whose bytes are the file `path`; returns what went wrong, in words."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(prefix=".making-", dir=self._folder))
            try:
                making.chmod(0o755)
                if artifact.mime == _ZIP:
                    unpack(path, making, self._limits)
                else:
                    shutil.copyfile(path, making / artifact.name)
                self._replace(making, self._folder / artifact.name)
            finally:
                shutil.rmtree(making, ignore_errors=True)
        except (UnsafeArchiveError, zipfile.BadZipFile, OSError, NotImplementedError) as error:
            return f"artifact '{artifact.name}' is stored, and was not unpacked into {self._folder}: {error}"
        return None

    def _replace(self, making: Path, target: Path) -> None:
        if target.is_symlink() or target.exists():
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=self._folder))
            try:
                target.rename(old / "it")
                making.rename(target)
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            making.rename(target)


def open_into(path: str, name: str, folder: str, *, mime: str, limits: ZipLimits | None = None) -> str | None:
    """Write an artifact's files into an empty folder: a zip unpacked, anything else as the one file `name`.

    Returns why it can't be, in words. Blocking.
    """
    try:
        if mime == _ZIP:
            unpack(path, Path(folder), limits or ZipLimits())
        else:
            shutil.copyfile(path, Path(folder) / name)
    except (UnsafeArchiveError, zipfile.BadZipFile, OSError, NotImplementedError) as error:
        return f"artifact '{name}' was not unpacked: {error}"
    return None


def unpack(path: str, into: Path, limits: ZipLimits) -> None:
    """Unpack a zip below an empty folder. Raises UnsafeArchiveError, BadZipFile."""
    room = limits.size
    packed = os.stat(path).st_size  # noqa: PTH116 - a name
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > limits.files:
            raise UnsafeArchiveError(f"it has {len(members)} files; at most {limits.files} are unpacked")
        room = min(room, max(_RATIO_FROM, packed * limits.ratio))
        for member in members:
            parts = _parts(member)
            target = into.joinpath(*parts)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            room -= _write(archive, member, target, room)


def _parts(member: zipfile.ZipInfo) -> list[str]:
    """The parts of a member's name. Refuses what is no plain file or folder below."""
    name = member.filename
    mode = member.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        what = "a link" if kind == stat.S_IFLNK else "a special file"
        raise UnsafeArchiveError(f"{name!r} is {what}")
    if name.startswith("/") or "\\" in name or "\0" in name:
        raise UnsafeArchiveError(f"the name {name!r} is not below the artifact")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts or (not parts and not member.is_dir()):
        raise UnsafeArchiveError(f"the name {name!r} leads out of the artifact")
    return parts


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, room: int) -> int:
    """One file, its bytes counted as they come and not as the archive says. Returns their number."""
    mode = 0o755 if member.external_attr >> 16 & 0o100 else 0o644
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(target, flags, mode)
    except FileExistsError as error:
        raise UnsafeArchiveError(f"{member.filename!r} is in it twice") from error
    with os.fdopen(descriptor, "wb") as out, archive.open(member) as source:
        while data := source.read(_CHUNK):
            size += len(data)
            if size > room:
                raise UnsafeArchiveError("it unpacks to more than its size allows (a zip bomb, or too large)")
            out.write(data)
    return size
