"""Command files: what a step says to the runner by writing to `GITHUB_OUTPUT` and its kin (job-semantics 11).

Pure: bytes in, effects out. Rule kept: what stands before a bad entry has already taken effect, one bad file doesn't
keep the others from being read, and a link or an oversized file (deviation D21) is named, never followed or cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.sandbox.contract import FileBack

FileKind: TypeAlias = Literal["env", "output", "state", "path", "summary"]


class CommandFile(NamedTuple):
    """One file of a step: the variable that names it and the start of its file name (11.1)."""

    kind: FileKind
    variable: str
    prefix: str


COMMAND_FILES = (
    CommandFile("env", "GITHUB_ENV", "set_env_"),
    CommandFile("output", "GITHUB_OUTPUT", "save_output_"),
    CommandFile("state", "GITHUB_STATE", "save_state_"),
    CommandFile("path", "GITHUB_PATH", "add_path_"),
    CommandFile("summary", "GITHUB_STEP_SUMMARY", "step_summary_"),
)

SUMMARY_LIMIT = 1 << 20
"""Bytes of a summary that GitHub shows (deviation D1)."""

DEFAULT_FILE_LIMIT = 16 << 20
"""Bytes of one command file that the sandbox returns unless set otherwise (deviation D21)."""


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
    """Text of a command file: a byte order mark of UTF-8, -16 or -32 decides and is removed; bad bytes become U+FFFD."""


def parse_key_values(text: str) -> KeyValues:
    """The exact grammar of 11.2."""


def parse_path(text: str) -> tuple[str, ...]:
    """The non-empty lines, not trimmed."""


def read_summary(data: bytes, *, strict: bool) -> SummaryText | FileIssue | None:
    """A step's summary: None where it is empty; over the limit cut with a note, or refused under the switch (D1)."""


def read_command_files(
    files: Mapping[FileKind, FileBack], *, strict: bool = False, limit: int = DEFAULT_FILE_LIMIT
) -> FileEffects:
    """What the returned files of one step phase ask for. A missing kind, a missing file and a link: nothing written."""


def prepend_path(path: list[str], additions: tuple[str, ...]) -> list[str]:
    """`path` (first entry first) with `additions` in front, the last written first; an equal entry moves (F12, F13)."""
