"""Patterns of `hashFiles`: what `@actions/glob` on Linux takes a text for (job-semantics 14). Pure.

A pattern is matched one name at a time, from the root down: `Progress` says what of the patterns is left after the
names so far, so a directory is read only where something below it can match, and no path is looked at twice.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SPACE: Final = (
    "\t\n\x0b\x0c\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What `trim` of JavaScript takes off."""

MAX_LENGTH: Final = 64 * 1024

FILE: Final = 1
DIRECTORY: Final = 2
_BOTH: Final = FILE | DIRECTORY


class Star(NamedTuple):
    """`**` as a whole name: any number of names."""


STAR: Final = Star()
Part: TypeAlias = Star | str | re.Pattern[str]
"""What one name must be: anything any number of times, exactly this, or like this."""


class Pattern(msgspec.Struct, frozen=True):
    """One pattern: absolute, cut into parts.

    `search` is the literal path before its first wildcard. `directories` is a pattern with a slash at its end;
    `implied` one that was added for what is below a match.
    """

    negated: bool
    parts: tuple[Part, ...]
    segments: tuple[str, ...]
    search: str
    directories: bool
    implied: bool


def read_patterns(text: str, *, workspace: str, home: str | None) -> tuple[Pattern, ...]:
    """The patterns of a text, one a line, each followed by that for what is below. Raises InputError.

    `workspace` is where relative patterns start, `home` what a leading `~` means; both are absolute paths.
    """
    found: list[Pattern] = []
    for line in (each.strip(SPACE) for each in text.split("\n")):
        if not line or line.startswith("#"):
            continue
        pattern = _read(line, workspace, home, implied=False)
        found.append(pattern)
        if pattern.directories or pattern.segments[-1] != "**":
            below = "/" + "/".join((*pattern.segments, "**"))
            found.append(_read("!" * pattern.negated + below.strip(SPACE), workspace, home, implied=True))
    return tuple(found)


def search_paths(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Where to begin, in the order of the patterns; a path below another one isn't named."""
    candidates = {pattern.search for pattern in patterns if not pattern.negated}
    found: dict[str, None] = {}
    for pattern in patterns:
        if not pattern.negated and not any(above in candidates for above in _ancestors(pattern.search)):
            found[pattern.search] = None
    return tuple(found)


def _ancestors(path: str) -> list[str]:
    names = path.split("/")[1:]
    return ["/"] * (path != "/") + ["/" + "/".join(names[:count]) for count in range(1, len(names))]


class Progress(NamedTuple):
    """How far each pattern has come after some names: a set of parts, as bits, that may take the next one.

    The bit after the last part says that the pattern is used up, the one after that that it takes whatever comes.
    """

    states: tuple[int, ...]


class _Row(NamedTuple):
    """A pattern prepared for stepping: `stars` are the bits of `**` parts that aren't the last one."""

    parts: tuple[Part, ...]
    stars: int
    negated: bool
    kind: int
    ends_in_star: bool


class Matcher:
    """Several patterns at once, the later ones overriding the earlier."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._rows = tuple(_row(pattern) for pattern in patterns)

    def start(self) -> Progress:
        """Before any name: the root directory."""
        return Progress((1,) * len(self._rows))

    def step(self, progress: Progress, name: str) -> Progress:
        """After one more name."""
        units = _units(name)
        states = zip(self._rows, progress.states, strict=True)
        return Progress(tuple([_advance(row, state, units) if state else 0 for row, state in states]))

    def matches(self, progress: Progress) -> int:
        """Whether the path so far matches: FILE, DIRECTORY, both or 0."""
        result = 0
        for row, state in zip(self._rows, progress.states, strict=True):
            if state and _accepts(row, state):
                result = result & ~row.kind if row.negated else result | row.kind
        return result

    def may_match_below(self, progress: Progress) -> bool:
        """Whether the path or anything below it can match."""
        return any(state and not row.negated for row, state in zip(self._rows, progress.states, strict=True))


def _row(pattern: Pattern) -> _Row:
    stars = sum(1 << place for place, part in enumerate(pattern.parts[:-1]) if isinstance(part, Star))
    ends_in_star = pattern.segments[-1] == "**" and not pattern.implied
    return _Row(pattern.parts, stars, pattern.negated, DIRECTORY if pattern.directories else _BOTH, ends_in_star)


def _advance(row: _Row, state: int, name: str) -> int:
    count = len(row.parts)
    endless = 1 << count + 1
    after = state & endless
    live = _closed(row, state) & (1 << count) - 1
    while live:
        place = (live & -live).bit_length() - 1
        live &= live - 1
        part = row.parts[place]
        if isinstance(part, str):
            if part == name:
                after |= 1 << place + 1
        elif isinstance(part, Star):
            after |= endless if place == count - 1 else 1 << place
        elif part.fullmatch(name):
            after |= 1 << place + 1
    return after


def _closed(row: _Row, state: int) -> int:
    """The parts that may take the next name: `**` may also take none and leave it to what follows."""
    while (more := state | (state & row.stars) << 1) != state:
        state = more
    return state


def _accepts(row: _Row, state: int) -> bool:
    count = len(row.parts)
    if state >> count:
        return True
    # A pattern that ends in `**` matches the directory above as well, unless it was only added for what is below.
    return row.ends_in_star and bool(_closed(row, state) >> count - 1 & 1)


def _read(line: str, workspace: str, home: str | None, *, implied: bool) -> Pattern:
    text = line
    negated = False
    while text.startswith("!"):
        negated = not negated
        text = text[1:].strip(SPACE)
    text = _rooted(line, text, workspace, home)
    directories = text.endswith("/")
    text = text if text == "/" else text.removesuffix("/")
    segments = tuple(name for name in text.split("/") if name)
    literals: list[str] = []
    for segment in segments:
        literal = _literal(segment)
        if not literal:
            break
        literals.append(literal)
    trimmed = re.sub("/+", "/", text.strip(SPACE))
    if len(trimmed) > MAX_LENGTH:
        raise InputError(f"a pattern of hashFiles is longer than {MAX_LENGTH} characters")
    parts = tuple(read_part(name) for name in trimmed.split("/")[1:]) if trimmed != "/" else ()
    return Pattern(
        negated=negated,
        parts=parts,
        segments=segments or ("/",),
        search="/" + "/".join(literals),
        directories=directories,
        implied=implied,
    )


def _rooted(line: str, text: str, workspace: str, home: str | None) -> str:
    """The pattern as an absolute one, without doubled slashes."""
    if not text:
        raise InputError(f"the hashFiles pattern '{line}' is empty")
    text = re.sub("/+", "/", text)
    names = text.split("/")
    for place, name in enumerate(names):
        literal = _literal(name)
        if literal == ".." or (literal == "." and place > 0):
            raise InputError(f"Invalid pattern '{line}'. Relative pathing '.' and '..' is not allowed.")
    if names[0] == ".":
        text = _escaped(workspace) + text[1:]
    elif names[0] == "~":
        if not home or not home.startswith("/"):
            raise InputError(f"the hashFiles pattern '{line}' needs a home directory, and there is none")
        text = _escaped(home) + text[1:]
    elif not text.startswith("/"):
        text = f"{_escaped(workspace).removesuffix('/')}/{text}"
    return re.sub("/+", "/", text)


def _escaped(path: str) -> str:
    """A path as a pattern that matches it alone."""
    path = path.replace("\\", "\\\\")
    path = re.sub(r"\[(?=[^/]+\])", "[[]", path)
    return re.sub(r"\?", "[?]", path).replace("*", "[*]")


def _literal(segment: str) -> str:
    """The one name that a segment matches; empty where there may be several."""
    made = ""
    at = 0
    while at < len(segment):
        character = segment[at]
        if character == "\\" and at + 1 < len(segment):
            at += 1
            made += segment[at]
        elif character in "*?":
            return ""
        elif character == "[" and (found := _lone_member(segment, at)) is not None:
            member, at = found
            if len(_units(member)) > 1:
                return ""
            made += member
        else:
            made += character
        at += 1
    return made


def _lone_member(segment: str, start: int) -> tuple[str, int] | None:
    """What stands between brackets and where they close; None where they don't or hold nothing."""
    members = ""
    at = start + 1
    while at < len(segment):
        if segment[at] == "\\" and at + 1 < len(segment):
            at += 1
        elif segment[at] == "]":
            return (members, at) if members else None
        members += segment[at]
        at += 1
    return None


# --- one name of a pattern -----------------------------------------------------------------------------------------

_SPECIAL: Final = frozenset("().*{}+?[]^$\\!")
_LINE_ENDS: Final = "\n\r\u2028\u2029"
_ANY: Final = "(?s:.)"
_RUN: Final = None
"""In a list of pieces: `*`."""

_Pieces: TypeAlias = list[str | None]


@lru_cache(maxsize=4096)
def read_part(name: str) -> Part:
    """What a name of a pattern matches; the rules, and the oddities, of minimatch 3."""
    if name == "**":
        return STAR
    pieces, magic = _PartReader(_units(name)).read()
    if not magic:
        return re.sub(r"\\(.)", r"\1", _units(name))
    return _compiled(pieces)


class _PartReader:
    """Reads one name into regular expressions of single characters; `*` is None among them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: _Pieces = []
        self._magic = False
        self._class: list[tuple[str, bool]] | None = None
        self._class_start = -1
        self._class_pieces = 0

    def read(self, *, inner: bool = False) -> tuple[_Pieces, bool]:
        escaping = False
        for at, character in enumerate(self._text):
            if escaping and character in _SPECIAL:
                self._add(character, literal=True)
                escaping = False
            elif character == "\\":
                escaping = True
            elif character in "?*+@!":
                self._wildcard(at, character)
            elif character == "[":
                self._open(at)
            elif character == "]":
                escaping = self._close(at) and escaping
            else:
                self._add(character, literal=character != "^" or escaping)
                escaping = False
        if self._class is not None:
            self._class = None
            self._reread(self._text[self._class_start + 1 :])
        if escaping:
            self._add("\\", literal=True)
        if self._magic and self._pieces and inner:
            self._pieces.insert(0, f"(?=[^{_LINE_ENDS}])")
        return self._pieces, self._magic

    def _add(self, character: str, *, literal: bool) -> None:
        if self._class is not None:
            self._class.append((character, literal))
        else:
            self._pieces.append(re.escape(character))

    def _wildcard(self, at: int, character: str) -> None:
        if self._class is not None:
            negates = character == "!" and at == self._class_start + 1
            self._class.append(("^", False) if negates else (character, True))
        elif character == "*":
            self._pieces.append(_RUN)
            self._magic = True
        elif character == "?":
            self._pieces.append(_ANY)
            self._magic = True
        else:
            self._pieces.append(re.escape(character))

    def _open(self, at: int) -> None:
        if self._class is not None:
            self._class.append(("[", True))
            return
        self._class = []
        self._class_start = at
        self._class_pieces = len(self._pieces)

    def _close(self, at: int) -> bool:
        """A closing bracket; False where it also ends an escape."""
        if self._class is None or at == self._class_start + 1:
            self._add("]", literal=True)
            return False
        members, self._class = self._class, None
        inside = self._text[self._class_start + 1 : at]
        if not _is_class(inside):
            self._reread(inside)
            self._pieces.append(re.escape("]"))
            return True
        self._magic = True
        self._pieces.append(_class_regex(members))
        return True

    def _reread(self, inside: str) -> None:
        """Brackets that are no set: the opening one stands for itself, what follows is read on its own."""
        del self._pieces[self._class_pieces :]
        pieces, magic = _PartReader(inside).read(inner=True)
        self._pieces += [re.escape("["), *pieces]
        self._magic = self._magic or magic


def _is_class(inside: str) -> bool:
    """Whether JavaScript takes `[inside]` for a set of characters as it stands."""
    if inside.startswith("]"):
        return True
    members: list[tuple[str, bool]] = []
    at = 0
    while at < len(inside):
        escaped = inside[at] == "\\" and at + 1 < len(inside)
        at += escaped
        members.append((inside[at], escaped or inside[at] != "^"))
        if escaped and inside[at] in "dDwWsS":
            return True  # a set within the set, which may also stand at the end of a range
        at += 1
    return _ranges(members) is not None


def _ranges(members: list[tuple[str, bool]]) -> tuple[bool, list[tuple[str, str]]] | None:
    """Whether a set is negated, and its ranges; None where one runs backwards."""
    negated = bool(members) and members[0] == ("^", False)
    characters = [character for character, _ in members[negated:]]
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(characters):
        if at + 2 < len(characters) and characters[at + 1] == "-":
            if characters[at] > characters[at + 2]:
                return None
            ranges.append((characters[at], characters[at + 2]))
            at += 3
        else:
            ranges.append((characters[at], characters[at]))
            at += 1
    return negated, ranges


def _class_regex(members: list[tuple[str, bool]]) -> str:
    found = _ranges(members)
    if found is None:
        return "(?!)"
    negated, ranges = found
    if not ranges:
        return _ANY if negated else "(?!)"
    inside = "".join(f"\\u{ord(low):04x}-\\u{ord(high):04x}" for low, high in ranges)
    return f"[{'^' * negated}{inside}]"


def _compiled(pieces: _Pieces) -> re.Pattern[str]:
    """One expression for a name, whose time grows with the product of both lengths at worst.

    A run takes as little as what follows it needs and never gives that up: with runs that take anything, a later one
    can do whatever this one could have done. Python's oldest versions here need a look-ahead to say so.
    """
    chunks: list[str] = [""]
    for piece in pieces:
        if piece is _RUN:
            chunks.append("")
        else:
            chunks[-1] += piece or ""
    made = f"(?![{_LINE_ENDS}]){chunks[0]}"
    for number, chunk in enumerate(chunks[1:-1]):
        if chunk:
            made += f"(?=(?P<run{number}>(?s:.*?){chunk}))(?P=run{number})"
    if len(chunks) > 1:
        made += f"(?s:.*){chunks[-1]}"
    return re.compile(made)


def _units(text: str) -> str:
    """The text with each UTF-16 unit as a character: what `?` counts."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(data[at] | data[at + 1] << 8) for at in range(0, len(data), 2))
