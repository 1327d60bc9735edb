# ruff: noqa: PTH103
# The supervisor imports as little as it can; paths here are names below an open folder.

"""Trees in and out as tar, header by header (POSIX ustar and pax, GNU long names).

Unpacking trusts nothing: a name with `..`, an absolute one, or one that leads through a link is refused, and so is a
link whose target leads out of the tree. Every file is opened below a folder that was opened without following a link.
It runs where the tree belongs: in a child of the supervisor with the job's own rights, or outside for images.
"""

from __future__ import annotations

import os
import stat

from runyard.sandbox.enter import system

BLOCK = 512
_CHUNK = 1 << 20
_NAME_LIMIT = 1 << 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EMPTY = bytes(BLOCK)


class Entry:
    """One member as its header says it."""

    def __init__(
        self, name: str, kind: bytes, mode: int, *, size: int, mtime: int, target: str, owner: tuple[int, int]
    ) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.size = size
        self.mtime = mtime
        self.target = target
        self.owner = owner


class Source:
    """Bytes of a tar from a descriptor; a subclass may read from elsewhere."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        parts = []
        while size:
            part = os.read(self._fd, size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def unpack(fd: int, path: str) -> str:
    """Unpack the tar of descriptor `fd` below the folder `path`, which is made if need be; how many members.

    Raises ValueError for a tar that leads out of the tree or is broken, OSError.
    """
    os.makedirs(path, mode=0o755, exist_ok=True)
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return str(unpack_into(Source(fd), Tree(root, owners=False)))
    finally:
        os.close(root)


def unpack_into(source: Source, tree: Tree) -> int:
    """Fill a tree with all members and close it; how many."""
    count = 0
    try:
        while (entry := read_entry(source)) is not None:
            tree.put(entry, source)
            count += 1
        tree.finish()
    finally:
        tree.close()
    return count


def read_entry(source: Source) -> Entry | None:
    """The next member's header with its long names resolved, or None at the end. Raises ValueError."""
    long: dict[str, str] = {}
    while True:
        header = source.read(BLOCK)
        if not header or header == _EMPTY:
            return None
        if len(header) != BLOCK:
            raise ValueError("the tar ends within a header")
        _check(header)
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if size > _NAME_LIMIT:
                raise ValueError("a header of the tar is too long")
            data = _padded(source, size)
            if kind == b"x":
                long.update(_pax(data))
            elif kind == b"L":
                long["path"] = _text(data)
            elif kind == b"K":
                long["linkpath"] = _text(data)
            continue
        name, prefix = _text(header[0:100]), _text(header[345:500])
        if prefix and header[257:262] == b"ustar" and header[257:265] != b"ustar  \0":
            name = f"{prefix}/{name}"
        owner = (
            int(long.get("uid", "") or _number(header[108:116])),
            int(long.get("gid", "") or _number(header[116:124])),
        )
        mtime = int(float(long["mtime"])) if "mtime" in long else _number(header[136:148])
        size = int(long.get("size", size))
        target = long.get("linkpath", _text(header[157:257]))
        return Entry(
            long.get("path", name),
            kind,
            _number(header[100:108]) & 0o7777,
            size=size,
            mtime=mtime,
            target=target,
            owner=owner,
        )


def _check(header: bytes) -> None:
    told = _number(header[148:156])
    if told != sum(header[:148]) + 8 * 32 + sum(header[156:]):
        raise ValueError("this is not a tar, or it is damaged")


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0")[0].strip()
    if not text:
        return 0
    try:
        return int(text, 8)
    except ValueError as err:
        raise ValueError("a number in the tar can't be read") from err


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0")[0])


def _padded(source: Source, size: int) -> bytes:
    data = source.read(size)
    source.read(-size % BLOCK)
    if len(data) != size:
        raise ValueError("the tar ends within a file")
    return data


def _pax(data: bytes) -> dict[str, str]:
    found = {}
    while data:
        length, _, rest = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            raise ValueError("an extended header of the tar can't be read")
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        found[os.fsdecode(key)] = os.fsdecode(value)
        data = data[int(length) :]
    return found


def parts_of(name: str) -> list[str]:
    """The parts of a member's name. Raises ValueError where it leads out of the tree."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ValueError(f"{name!r} leads out of the tree")
    return parts


def _stays_inside(parts: list[str], target: str) -> bool:
    """Whether a link in the folder of `parts` leads to somewhere in the tree, by its text."""
    if target.startswith("/"):
        return False
    depth = len(parts) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True


class Tree:
    """A folder that is filled, member by member.

    `image` is for roots of images, whose absolute links are meant from within; nothing is ever opened through one.
    """

    def __init__(self, root: int, *, owners: bool, image: bool = False) -> None:
        self._root = root
        self._owners = owners
        self._image = image
        self._at: tuple[list[str], int] = ([], os.dup(root))
        self._folders: list[tuple[list[str], int, int]] = []

    def close(self) -> None:
        """Let go of what is open."""
        os.close(self._at[1])

    def folder(self, parts: list[str]) -> int:
        """The folder at these parts, made if need be, never through a link; open until the next call."""
        if parts == self._at[0]:
            return self._at[1]
        if self._image:
            here = self._in_root(parts)
            os.close(self._at[1])
            self._at = (list(parts), here)
            return here
        here = os.dup(self._root)
        try:
            for part in parts:
                try:
                    below = os.open(part, _FOLDER, dir_fd=here)
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=here)
                    below = os.open(part, _FOLDER, dir_fd=here)
                except NotADirectoryError as err:
                    raise ValueError(f"{'/'.join(parts)!r} leads through a link or a file") from err
                os.close(here)
                here = below
        except BaseException:
            os.close(here)
            raise
        os.close(self._at[1])
        self._at = (list(parts), here)
        return here

    def _in_root(self, parts: list[str]) -> int:
        """As in an image, whose layers may name a folder by a link of a layer below."""
        try:
            return system.open_in_root(self._root, "/".join(parts), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            above = self._in_root(parts[:-1])
            try:
                os.mkdir(parts[-1], 0o755, dir_fd=above)
                return os.open(parts[-1], _FOLDER, dir_fd=above)
            finally:
                os.close(above)

    def put(self, entry: Entry, source: Source) -> None:
        """Make one member and take its bytes from the source."""
        parts = parts_of(entry.name)
        if not parts:
            source.read(entry.size + -entry.size % BLOCK)
            return
        if entry.kind == b"5" or (entry.kind in (b"0", b"\0") and entry.name.endswith("/")):
            fd = self.folder(parts)
            if self._owners:
                os.chown(fd, *entry.owner)
            self._folders.append((parts, entry.mode, entry.mtime))
            return
        folder, name = self.folder(parts[:-1]), parts[-1]
        if entry.kind in (b"0", b"\0", b"7"):
            self._file(folder, name, entry, source)
        elif entry.kind == b"2":
            if not self._image and not _stays_inside(parts, entry.target):
                raise ValueError(f"the link {entry.name!r} leads out of the tree, to {entry.target!r}")
            self.clear(folder, name)
            os.symlink(entry.target, name, dir_fd=folder)
            if self._owners:
                os.chown(name, *entry.owner, dir_fd=folder, follow_symlinks=False)
        elif entry.kind == b"1":
            self._hard_link(folder, name, entry)
        elif entry.kind == b"6":
            self.clear(folder, name)
            os.mkfifo(name, entry.mode, dir_fd=folder)
        elif not self._image:
            raise ValueError(f"{entry.name!r} is a device")

    def _file(self, folder: int, name: str, entry: Entry, source: Source) -> None:
        self.clear(folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            left = entry.size
            while left:
                data = source.read(min(left, _CHUNK))
                if not data:
                    raise ValueError("the tar ends within a file")
                left -= len(data)
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            source.read(-entry.size % BLOCK)
            if self._owners:
                os.chown(fd, *entry.owner)
            os.fchmod(fd, entry.mode)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _hard_link(self, folder: int, name: str, entry: Entry) -> None:
        parts = parts_of(entry.target)
        if not parts:
            raise ValueError(f"the link {entry.name!r} leads nowhere")
        held = os.dup(folder)
        try:
            of = self.folder(parts[:-1])
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=of, follow_symlinks=False).st_mode):
                raise ValueError(f"the link {entry.name!r} leads to something that is no file")
            self.clear(held, name)
            os.link(parts[-1], name, src_dir_fd=of, dst_dir_fd=held, follow_symlinks=False)
        finally:
            os.close(held)

    def clear(self, folder: int, name: str) -> None:
        """Remove what stands in a member's place, unless it is a folder with something in it."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)

    def finish(self) -> None:
        """Modes and times of folders, last, as filling them would change them."""
        for parts, mode, mtime in reversed(self._folders):
            fd = self.folder(parts)
            os.fchmod(fd, mode or 0o755)
            os.utime(fd, (mtime, mtime))


# Packing


def pack(fd: int, path: str) -> str:
    """Write the tree at `path`, or the single file, as a tar to descriptor `fd`; how many members.

    Files are read without following links; what vanishes meanwhile is left out. Raises OSError.
    """
    facts = os.lstat(path)
    sink = _Sink(fd)
    if stat.S_ISDIR(facts.st_mode):
        root = os.open(path, _FOLDER)
        _pack_folder(sink, root, "")
        os.close(root)
    else:
        above, _, name = path.rpartition("/")
        folder = os.open(above or "/", _FOLDER)
        _pack_one(sink, folder, name, name)
        os.close(folder)
    sink.write(_EMPTY * 2)
    sink.flush()
    return str(sink.members)


class _Sink:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._parts: list[bytes] = []
        self._size = 0
        self.members = 0
        self.linked: dict[tuple[int, int], str] = {}

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        view = memoryview(b"".join(self._parts))
        self._parts.clear()
        self._size = 0
        while view:
            view = view[os.write(self._fd, view) :]


def _pack_folder(sink: _Sink, folder: int, relative: str) -> None:
    for name in sorted(os.listdir(folder)):
        try:
            _pack_one(sink, folder, name, f"{relative}{name}")
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue


def _pack_one(sink: _Sink, folder: int, name: str, relative: str) -> None:
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(facts.st_mode):
        below = os.open(name, _FOLDER, dir_fd=folder)
        try:
            _header(sink, f"{relative}/", b"5", facts)
            _pack_folder(sink, below, f"{relative}/")
        finally:
            os.close(below)
    elif stat.S_ISLNK(facts.st_mode):
        _header(sink, relative, b"2", facts, target=os.readlink(name, dir_fd=folder))
    elif stat.S_ISREG(facts.st_mode):
        first = sink.linked.setdefault((facts.st_dev, facts.st_ino), relative) if facts.st_nlink > 1 else relative
        if first != relative:
            _header(sink, relative, b"1", facts, target=first)
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
        try:
            _content(sink, fd, relative)
        finally:
            os.close(fd)


def _content(sink: _Sink, fd: int, relative: str) -> None:
    """A file at the size it has now: if it shrinks while it is read, zeros stand for the rest, as tar does it."""
    facts = os.fstat(fd)
    _header(sink, relative, b"0", facts, size=facts.st_size)
    left = facts.st_size
    while left:
        data = os.read(fd, min(left, _CHUNK)) or bytes(min(left, _CHUNK))
        sink.write(data)
        left -= len(data)
    sink.write(bytes(-facts.st_size % BLOCK))


def _header(  # noqa: PLR0917 - a header has these fields
    sink: _Sink, name: str, kind: bytes, facts: os.stat_result, target: str = "", size: int = 0
) -> None:
    raw_name, raw_target = os.fsencode(name), os.fsencode(target)
    extra = b""
    if len(raw_name) > 100:
        extra += _record(b"path", raw_name)
    if len(raw_target) > 100:
        extra += _record(b"linkpath", raw_target)
    if size >= 8**11:
        extra += _record(b"size", str(size).encode())
    if extra:
        sink.write(_block(b"pax", b"x", 0o644, 0, len(extra), b""))
        sink.write(extra + bytes(-len(extra) % BLOCK))
    stored = size if size < 8**11 else 0
    mode = stat.S_IMODE(facts.st_mode)
    sink.write(_block(raw_name[:100], kind, mode, int(facts.st_mtime), stored, raw_target[:100]))
    sink.members += 1


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


def _block(name: bytes, kind: bytes, mode: int, mtime: int, size: int, target: bytes) -> bytes:  # noqa: PLR0917
    block = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            b"%011o\0" % size,
            b"%011o\0" % max(0, mtime),
            b" " * 8,
            kind,
            target.ljust(100, b"\0"),
            b"ustar\00000",
            bytes(BLOCK - 265),
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
