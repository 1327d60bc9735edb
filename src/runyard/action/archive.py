"""An action from an archive: `tar.gz` with one folder at its top, read member by member, nothing believed.

The names, links and sizes of a tar are whatever its maker liked; each member is judged before a byte of it is written.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from typing import TYPE_CHECKING, Final

from runyard.action.tree import FILE, PROGRAM, TreeLimits, TreeWriter, UnsafeTreeError, Written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PIECE: Final = 1 << 18


def unpack_archive(archive: Path, folder: Path, limits: TreeLimits | None = None) -> tuple[Written, str]:
    """Unpack into `folder`, which exists and is empty; the archive's SHA-256 comes back beside what was written.

    Raises UnsafeTreeError for a member that leads out, and for an archive that is none.
    """
    writer = TreeWriter(folder, limits=limits)
    tops: set[str] = set()
    try:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r|gz") as tar:
                for member in tar:
                    _take(tar, member, writer, tops)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise UnsafeTreeError(f"{archive.name} can't be read: {error}") from error
    return writer.finish(), digest


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, writer: TreeWriter, tops: set[str]) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    if member.name.startswith("/"):
        raise UnsafeTreeError(f"{member.name!r} is no name that an action may have")
    top, _, path = name.partition("/")
    tops.add(top)
    if len(tops) > 1 or top in ("", ".", ".."):
        raise UnsafeTreeError("the archive has more at its top than one folder")
    if not path:
        if not member.isdir():
            raise UnsafeTreeError("the archive has more at its top than one folder")
        return
    if member.isdir():
        writer.empty_folder(path)
    elif member.isreg():
        writer.file(path, PROGRAM if member.mode & 0o100 else FILE, member.size, _pieces(tar, member))
    elif member.issym():
        writer.link(path, member.linkname.encode("utf-8", "surrogateescape"))
    else:
        raise UnsafeTreeError(f"{path}: only files, folders and links may be in an action")


def _pieces(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise UnsafeTreeError(f"{member.name} has no content")
    while piece := stream.read(_PIECE):
        yield piece
