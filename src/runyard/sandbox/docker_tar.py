"""A tar on its way into a container: each header is looked at before the engine, which is root, sees it.

What is unpacked stays below the folder it was meant for: a name or a link that leads out is refused, and so are
devices. Every member gets the ids of the job's user. The data is passed on as it comes; nothing is unpacked here.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable

BLOCK: Final = 512
LONGEST_NAME: Final = 1 << 20

_FILES: Final = frozenset(b"\x000\x007")
_HARD_LINK: Final = ord("1")
_SYMBOLIC_LINK: Final = ord("2")
_DIRECTORY: Final = ord("5")
_FIFO: Final = ord("6")
_NEXT_NAME: Final = ord("L")
_NEXT_LINK: Final = ord("K")
_PAX: Final = ord("x")
_PAX_GLOBAL: Final = ord("g")


def folders(paths: Iterable[str], uid: int, gid: int, mode: int = 0o755) -> bytes:
    """A tar of empty folders with this owner; the folders above them are the image's, or made by whoever unpacks."""
    return b"".join(_header(path.strip("/") + "/", mode, (uid, gid), _DIRECTORY, 0) for path in paths) + bytes(
        2 * BLOCK
    )


def file(path: str, data: bytes, mode: int, uid: int, gid: int) -> bytes:
    """One file's header and data, without the end of an archive."""
    return _header(path.strip("/"), mode, (uid, gid), ord("0"), len(data)) + data + bytes(-len(data) % BLOCK)


def _header(name: str, mode: int, owner: tuple[int, int], kind: int, size: int) -> bytes:
    plain = name.encode()
    before = b""
    if len(plain) > 100:
        before = (
            _header("././@LongLink", 0o644, (0, 0), _NEXT_NAME, len(plain) + 1)
            + plain
            + bytes(-len(plain) % BLOCK or BLOCK)
        )
        plain = plain[:100]
    head = bytearray(BLOCK)
    head[0 : len(plain)] = plain
    for at, value, width in ((100, mode, 8), (108, owner[0], 8), (116, owner[1], 8), (124, size, 12), (136, 0, 12)):
        head[at : at + width] = _number(value, width)
    head[156] = kind
    head[257:265] = b"ustar\x0000"
    return before + _summed(head)


def _number(value: int, width: int) -> bytes:
    """Octal, or GNU's binary form where that is too short."""
    if value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return b"\x80" + value.to_bytes(width - 1, "big")


def _summed(head: bytearray) -> bytes:
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


async def re_owned(source: AsyncIterable[bytes], uid: int, gid: int) -> AsyncIterator[bytes]:
    """The tar of `source` with the job's ids. Raises MachineError for a member that leads out, or for no tar at all."""
    walk = _Walk(uid, gid)
    async for piece in source:
        out = walk.feed(piece)
        if out:
            yield out
    walk.end()


async def judge(source: AsyncIterable[bytes]) -> tuple[str, ...]:
    """The folders that the members of a tar lie in, after each header was looked at. Raises MachineError."""
    walk = _Walk(0, 0)
    async for piece in source:
        walk.feed(piece)
    walk.end()
    return tuple(sorted(walk.folders))


class _Walk:
    """Where in the archive we are; `feed` takes any number of bytes and gives those that are judged."""

    def __init__(self, uid: int, gid: int) -> None:
        self._owner = (uid, gid)
        self._held = bytearray()
        self._pass = 0
        self._name: str | None = None
        self._link: str | None = None
        self._ended = False
        self.folders: set[str] = set()

    def feed(self, piece: bytes) -> bytes:
        self._held += piece
        out = bytearray()
        while self._held:
            if self._pass:
                taken = self._held[: self._pass]
                del self._held[: self._pass]
                self._pass -= len(taken)
                out += taken
                continue
            if self._ended:
                out += self._held
                self._held.clear()
                break
            block = self._member()
            if block is None:
                break
            out += block
        return bytes(out)

    def end(self) -> None:
        if self._pass or (self._held and not self._ended):
            raise MachineError("the tar ends in the middle of a member", code="sandbox.tar")

    def _member(self) -> bytes | None:
        """The next header, with the data of one that speaks of the member after it; None when more bytes are needed."""
        if len(self._held) < BLOCK:
            return None
        head = self._held[:BLOCK]
        if not any(head):
            self._ended = True
            return b""
        _check_sum(head)
        kind, size = head[156], _value(head[124:136])
        padded = size + -size % BLOCK
        if kind in (_NEXT_NAME, _NEXT_LINK, _PAX, _PAX_GLOBAL):
            if size > LONGEST_NAME:
                raise MachineError("a name in the tar is longer than 1 MiB", code="sandbox.tar")
            if len(self._held) < BLOCK + padded:
                return None
            data = self._held[BLOCK : BLOCK + size]
            whole = bytes(self._held[: BLOCK + padded])
            del self._held[: BLOCK + padded]
            return self._extended(kind, bytes(data), whole)
        del self._held[:BLOCK]
        self._judge(head, kind)
        self._pass = padded if kind in _FILES else 0
        for at, value in ((108, self._owner[0]), (116, self._owner[1])):
            head[at : at + 8] = _number(value, 8)
        head[265:329] = bytes(64)  # the names of user and group
        return _summed(head)

    def _extended(self, kind: int, data: bytes, whole: bytes) -> bytes:
        if kind == _NEXT_NAME:
            self._name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            return whole
        if kind == _NEXT_LINK:
            self._link = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            return whole
        kept = b""
        for key, value in _records(data):
            if key == "path" and kind == _PAX:
                self._name = value.decode("utf-8", "surrogateescape")
            elif key == "linkpath" and kind == _PAX:
                self._link = value.decode("utf-8", "surrogateescape")
            elif key in ("size", "path", "linkpath"):
                # A size here would make the data longer than the header says, and a global name is everybody's.
                raise MachineError(f"a tar with {key} in an extended header is not taken", code="sandbox.tar")
            elif key.startswith(("uid", "gid", "uname", "gname", "SCHILY.", "LIBARCHIVE.", "GNU.sparse")):
                continue
            kept += _record(key, value)
        if not kept:
            return b""
        head = bytearray(whole[:BLOCK])
        head[124:136] = _number(len(kept), 12)
        return _summed(head) + kept + bytes(-len(kept) % BLOCK)

    def _judge(self, head: bytearray, kind: int) -> None:
        name = self._name if self._name is not None else _name_of(head)
        link = self._link if self._link is not None else _text(head[157:257])
        self._name = self._link = None
        if not _stays(name):
            raise MachineError(f"the tar has a member that leads out of its folder: {name}", code="sandbox.tar_escape")
        self._note_folders(name, is_folder=kind == _DIRECTORY)
        if kind == _HARD_LINK and not _stays(link):
            raise MachineError(
                f"the tar has a link that leads out of its folder: {name} -> {link}", code="sandbox.tar_escape"
            )
        if kind == _SYMBOLIC_LINK and not _stays(posixpath.join(posixpath.dirname(name.rstrip("/")), link)):
            raise MachineError(
                f"the tar has a link that leads out of its folder: {name} -> {link}", code="sandbox.tar_escape"
            )
        if kind not in _FILES and kind not in (_HARD_LINK, _SYMBOLIC_LINK, _DIRECTORY, _FIFO):
            raise MachineError(f"the tar has a device or something unknown: {name}", code="sandbox.tar")

    def _note_folders(self, name: str, *, is_folder: bool) -> None:
        parts = posixpath.normpath(name).split("/")
        for count in range(len(parts) if is_folder else len(parts) - 1, 0, -1):
            folder = "/".join(parts[:count])
            if folder in self.folders:
                return
            if "\n" in folder:
                raise MachineError("the tar has a folder with a line end in its name", code="sandbox.tar")
            self.folders.add(folder)


def _stays(path: str) -> bool:
    clean = posixpath.normpath(path)
    return not (clean.startswith(("/", "../")) or clean == "..") and "\0" not in path


def _name_of(head: bytearray) -> str:
    prefix = _text(head[345:500]) if head[257:262] == b"ustar" and head[263:265] == b"00" else ""
    name = _text(head[0:100])
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytearray) -> str:
    return bytes(field).partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _value(field: bytearray) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = bytes(field).strip(b"\0 ")
    try:
        return int(text or b"0", 8)
    except ValueError as bad:
        raise MachineError("this is not a tar: a number in a header can't be read", code="sandbox.tar") from bad


def _check_sum(head: bytearray) -> None:
    if _value(head[148:156]) != sum(head) - sum(head[148:156]) + 8 * 32:
        raise MachineError("this is not a tar: the checksum of a header is wrong", code="sandbox.tar")


def _records(data: bytes) -> list[tuple[str, bytes]]:
    found, at = [], 0
    while at < len(data):
        digits, _, _ = data[at : at + 20].partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data) - at:
            raise MachineError("an extended header of the tar can't be read", code="sandbox.tar")
        whole = data[at : at + int(digits)]
        key, _, value = whole[len(digits) + 1 : -1].partition(b"=")
        found.append((key.decode("utf-8", "replace"), value))
        at += int(digits)
    return found


def _record(key: str, value: bytes) -> bytes:
    rest = b" " + key.encode() + b"=" + value + b"\n"
    size = len(rest) + 1
    while len(str(size)) + len(rest) != size:
        size = len(str(size)) + len(rest)
    return str(size).encode() + rest


class Member(msgspec.Struct, frozen=True):
    """The first member of an archive: what it is, its size, and where its data begins."""

    kind: str
    size: int
    begin: int


def first_member(data: bytearray) -> Member | None:
    """The first member, behind the headers that only name it; None while there is too little to tell."""
    at = 0
    while len(data) >= at + BLOCK:
        head = data[at : at + BLOCK]
        kind, size = head[156], _value(head[124:136])
        at += BLOCK
        if kind in (_NEXT_NAME, _NEXT_LINK, _PAX, _PAX_GLOBAL):
            at += size + -size % BLOCK
            continue
        names = {_SYMBOLIC_LINK: "link", _HARD_LINK: "link", _DIRECTORY: "folder"}
        return Member("file" if kind in _FILES else names.get(kind, "other"), size, at)
    return None
