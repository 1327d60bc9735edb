"""Files of a command, written before it and read after it, without ever following a link.

The folder of a file was the job's to change: each part of a path is opened on its own, from the root, as a folder that
is not a link. What can't be read within its limit says why (deviation D21).
"""

from __future__ import annotations

import errno
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or not path.startswith("/"):
        raise OSError(errno.EINVAL, f"{path}: not an absolute path without ..")
    return parts


def _open_below(above: int, part: str, *, make: bool) -> int:
    """The folder `part` of an open folder, not followed if it is a link, made where it is missing if `make`."""
    try:
        return os.open(part, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(part, 0o755, dir_fd=above)
        return os.open(part, _FOLDER, dir_fd=above)


class Folders:
    """Opens folders once for the files of one command, which mostly share one or lie beside each other."""

    def __init__(self, *, make: bool) -> None:
        self._make = make
        self._open: dict[str, int] = {}

    def of(self, path: str) -> tuple[int, str]:
        """The folder's descriptor and the file's name in it. Raises OSError."""
        folder, _, name = path.rpartition("/")
        fd = self._open.get(folder)
        if fd is None or name in ("", ".", ".."):
            parts = _parts(path)
            name = parts.pop()
            fd = self._open[folder] = self._walk(parts)
        return fd, name

    def _walk(self, parts: list[str]) -> int:
        """Each part opened on its own from the last folder on the way that is open already."""
        here = self._open.get("/")
        if here is None:
            here = self._open["/"] = os.open("/", _FOLDER)
        at = ""
        for part in parts:
            at = f"{at}/{part}"
            below = self._open.get(at)
            if below is None:
                below = self._open[at] = _open_below(here, part, make=self._make)
            here = below
        return here

    def close(self) -> None:
        """Let go of them."""
        for fd in set(self._open.values()):
            os.close(fd)
        self._open.clear()


def write_all(items: list[tuple[str, bytes, int]]) -> None:
    """Write files (path, data, mode), replacing what stands there, be it a link. Raises OSError naming the path."""
    folders = Folders(make=True)
    try:
        for path, data, mode in items:
            try:
                folder, name = folders.of(path)
                _write(folder, name, data, mode)
            except OSError as err:
                raise OSError(err.errno, f"{path}: {err.strerror or err}") from err
    finally:
        folders.close()


def _write(folder: int, name: str, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, mode, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        fd = os.open(name, flags, mode, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def read_all(items: list[tuple[str, int]]) -> dict[str, tuple[bytes, str | None, int]]:
    """Read files (path, limit): per path the bytes, what is wrong instead, and the size."""
    folders = Folders(make=False)
    try:
        return {path: _read(folders, path, limit) for path, limit in items}
    finally:
        folders.close()


def _read(folders: Folders, path: str, limit: int) -> tuple[bytes, str | None, int]:
    try:
        folder, name = folders.of(path)
        # Not blocking, because the job may have put a fifo there.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    except OSError as err:
        return b"", _why(err), 0
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return b"", "not_a_file", 0
        if facts.st_size > limit:
            return b"", "too_large", facts.st_size
        data = os.read(fd, limit + 1) if facts.st_size else b""
        while data and len(data) <= limit and (more := os.read(fd, limit + 1 - len(data))):
            data += more
        if len(data) > limit:
            return b"", "too_large", max(facts.st_size, len(data))
        return data, None, len(data)
    except OSError:
        return b"", "missing", 0
    finally:
        os.close(fd)


def _why(err: OSError) -> str:
    if err.errno == errno.ELOOP:
        return "link"
    if err.errno == errno.ENOTDIR:
        # O_DIRECTORY with O_NOFOLLOW says this for a link too; both count as nothing written.
        return "link"
    if err.errno in (errno.ENXIO, errno.ENODEV):
        return "not_a_file"
    return "missing"
