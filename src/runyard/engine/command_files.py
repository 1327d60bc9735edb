"""Command files: what a step says to the runner by writing to `GITHUB_OUTPUT` and its kin (job-semantics 11).

Pure: bytes in, effects out. Rule kept: what stands before a bad entry has already taken effect, one bad file doesn't
keep the others from being read, and a link or an oversized file (deviation D21) is named, never followed or cut.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from runyard.engine.commands import BLOCKED_ENV

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runyard.sandbox.contract import FileBack

FileKind: TypeAlias = Literal["env", "output", "state", "path", "summary"]


class CommandFile(NamedTuple):
    """One file of a step: the variable that names it, the start of its file name, and its word in errors (11.1)."""

    kind: FileKind
    variable: str
    prefix: str
    word: str


COMMAND_FILES = (
    CommandFile("env", "GITHUB_ENV", "set_env_", "env"),
    CommandFile("output", "GITHUB_OUTPUT", "set_output_", "output"),
    CommandFile("state", "GITHUB_STATE", "save_state_", "state"),
    CommandFile("path", "GITHUB_PATH", "add_path_", "path"),
    CommandFile("summary", "GITHUB_STEP_SUMMARY", "step_summary_", "step_summary"),
)

SUMMARY_LIMIT = 1 << 20
"""Bytes of a summary that GitHub shows (deviation D1)."""

DEFAULT_FILE_LIMIT = 16 << 20
"""Bytes of one command file that the sandbox returns unless set otherwise (deviation D21)."""


# The marks of UTF-32 come first: that of little-endian UTF-16 begins the same way.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class KeyValues(msgspec.Struct, frozen=True):
    """Entries in file order, duplicates kept; `problem` is the error text of the entry that ended the reading."""

    pairs: tuple[tuple[str, str], ...] = ()
    problem: str | None = None


class FileIssue(msgspec.Struct, frozen=True):
    """A line for the log; `annotation` says whether it is an error annotation as well."""

    message: str
    annotation: bool = True


class SummaryText(msgspec.Struct, frozen=True):
    """A summary as shown; `truncated_from` is the whole size in bytes where it was cut, `whole` then the whole text."""

    text: str
    truncated_from: int | None = None
    whole: str | None = None


class FileEffects(msgspec.Struct, frozen=True):
    """What the command files of one step phase ask for, in order. `failed`: the step fails for it."""

    env: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    state: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    summary: SummaryText | None = None
    issues: tuple[FileIssue, ...] = ()
    failed: bool = False


def decode_file(data: bytes) -> str:
    """Text of a command file: a byte order mark of UTF-8, -16 or -32 decides and goes; bad bytes become U+FFFD."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return data.decode("utf-8", "replace")


def parse_key_values(text: str) -> KeyValues:
    """The exact grammar of 11.2. Only LF ends a line; nothing is trimmed."""
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        line = text[at:] if end < 0 else text[at:end]
        at = len(text) if end < 0 else end + 1
        if not line:
            continue
        equals, marker = line.find("="), line.find("<<")
        if equals >= 0 and not 0 <= marker < equals:
            pairs.append((line[:equals], line[equals + 1 :]))
        elif marker >= 0:
            name, delimiter = line[:marker], line[marker + 2 :]
            if not name or not delimiter:
                problem = f"Invalid format '{line}'. Name must not be empty and delimiter must not be empty"
                return KeyValues(tuple(pairs), problem)
            value, after, problem = _heredoc(text, at, delimiter)
            if problem:
                return KeyValues(tuple(pairs), problem)
            pairs.append((name, value))
            at = after
        else:
            return KeyValues(tuple(pairs), f"Invalid format '{line}'")
    return KeyValues(tuple(pairs))


def _heredoc(text: str, start: int, delimiter: str) -> tuple[str, int, str]:
    """The value from `start` to the line that is `delimiter`, the position after that line, and what is wrong."""
    at = start
    while at < len(text):
        end = text.find("\n", at)
        stop = len(text) if end < 0 else end
        if stop - at == len(delimiter) and text.startswith(delimiter, at):
            return text[start : max(start, at - 1)], stop + 1, ""
        if end < 0:
            return "", at, "Invalid value. EOF marker missing new line."
        at = end + 1
    return "", at, f"Invalid value. Matching delimiter not found '{delimiter}'"


def parse_path(text: str) -> tuple[str, ...]:
    """The non-empty lines, not trimmed."""
    return tuple(line for line in text.split("\n") if line)


def read_summary(
    data: bytes, *, strict: bool = False, mask: Callable[[str], str] | None = None
) -> SummaryText | FileIssue | None:
    """A step's summary: None where it is empty; over the limit cut with a note, or refused under the switch (D1).

    `mask` hides secrets in the whole text before anything is cut, so that no cut leaves half of one.
    """
    if not data:
        return None
    if strict and len(data) > SUMMARY_LIMIT:
        size, limit = -(-len(data) // 1024), SUMMARY_LIMIT // 1024
        return FileIssue(f"$GITHUB_STEP_SUMMARY upload aborted, supports content up to {limit}k, got {size}k.")
    text = decode_file(data)
    if mask is not None:
        text = mask(text)
    if len(data) <= SUMMARY_LIMIT:
        return SummaryText(text)
    note = f"\n\n> **Cut here:** this summary has {len(data):,} bytes; the first {SUMMARY_LIMIT:,} are shown.\n"
    room = SUMMARY_LIMIT - len(note.encode())
    shown = text.encode("utf-8", "surrogateescape")[:room].decode("utf-8", "ignore")
    return SummaryText(shown + note, truncated_from=len(data), whole=text)


def read_command_files(
    files: Mapping[FileKind, FileBack],
    *,
    strict: bool = False,
    limit: int = DEFAULT_FILE_LIMIT,
    mask: Callable[[str], str] | None = None,
) -> FileEffects:
    """What the returned files of one step phase ask for.

    A missing kind, a missing file and a link: nothing written. `limit` is what the sandbox was asked for, named where a
    file is larger (D21). `mask` is for the summary.
    """
    found = _Found()
    for file in COMMAND_FILES:
        back = files.get(file.kind)
        if back is None:
            continue
        if back.problem == "too_large":
            found.fail(file, f"The file has {back.size:,} bytes, and the limit is {limit:,} bytes.")
        elif back.problem is None and back.data:
            _READERS[file.kind](found, file, back.data, strict, mask)
    return found.effects()


class _Found:
    """Effects while they are gathered."""

    def __init__(self) -> None:
        self.env: list[tuple[str, str]] = []
        self.outputs: list[tuple[str, str]] = []
        self.state: list[tuple[str, str]] = []
        self.path: tuple[str, ...] = ()
        self.summary: SummaryText | None = None
        self.issues: list[FileIssue] = []
        self.failed = False

    def fail(self, file: CommandFile, because: str) -> None:
        self.failed = True
        self.issues.append(FileIssue(f"Unable to process file command '{file.word}' successfully."))
        self.issues.append(FileIssue(because))

    def effects(self) -> FileEffects:
        return FileEffects(
            env=tuple(self.env),
            outputs=tuple(self.outputs),
            state=tuple(self.state),
            path=self.path,
            summary=self.summary,
            issues=tuple(self.issues),
            failed=self.failed,
        )


_Mask: TypeAlias = "Callable[[str], str] | None"


def _read_env(found: _Found, file: CommandFile, data: bytes, strict: bool, mask: _Mask) -> None:
    read = parse_key_values(decode_file(data))
    for name, value in read.pairs:
        if not name:
            found.fail(file, "A variable needs a name: a line begins with '='.")
            return
        if name.upper() in BLOCKED_ENV:
            found.issues.append(FileIssue(f"Can't store {name} output parameter using '$GITHUB_ENV' command."))
        else:
            found.env.append((name, value))
    if read.problem:
        found.fail(file, read.problem)


def _read_outputs(found: _Found, file: CommandFile, data: bytes, strict: bool, mask: _Mask) -> None:
    read = parse_key_values(decode_file(data))
    for name, value in read.pairs:
        if not name:
            found.fail(file, "An output needs a name: a line begins with '='.")
            return
        found.outputs.append((name, value))
    if read.problem:
        found.fail(file, read.problem)


def _read_state(found: _Found, file: CommandFile, data: bytes, strict: bool, mask: _Mask) -> None:
    read = parse_key_values(decode_file(data))
    found.state.extend(read.pairs)
    if read.problem:
        found.fail(file, read.problem)


def _read_path(found: _Found, file: CommandFile, data: bytes, strict: bool, mask: _Mask) -> None:
    found.path = parse_path(decode_file(data))


def _read_summary(found: _Found, file: CommandFile, data: bytes, strict: bool, mask: _Mask) -> None:
    read = read_summary(data, strict=strict, mask=mask)
    if isinstance(read, FileIssue):
        found.issues.append(read)
    else:
        found.summary = read


_READERS: dict[FileKind, Callable[[_Found, CommandFile, bytes, bool, _Mask], None]] = {
    "env": _read_env,
    "output": _read_outputs,
    "state": _read_state,
    "path": _read_path,
    "summary": _read_summary,
}


def prepend_path(path: Sequence[str], additions: Sequence[str]) -> list[str]:
    """`path` (first entry first) with `additions` in front, the last written first; an equal entry moves (F12, F13)."""
    entries = list(path)
    for addition in additions:
        if addition in entries:
            entries.remove(addition)
        entries.insert(0, addition)
    return entries
