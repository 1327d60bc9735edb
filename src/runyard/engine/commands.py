"""Workflow commands: what a step says to the runner by printing a line (job-semantics 10).

Pure parsing first, then a reader that cuts a step's output into stretches of plain bytes and commands without looking at
every line. Rule kept: text that is no command passes through unchanged to the byte, and a line whose end has not
come is only let go when it can't become a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from runyard.job import Annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from runyard.job import AnnotationLevel

COMMANDS = frozenset(
    {
        "set-output",
        "save-state",
        "set-env",
        "add-path",
        "add-mask",
        "debug",
        "notice",
        "warning",
        "error",
        "group",
        "endgroup",
        "echo",
        "add-matcher",
        "remove-matcher",
        "stop-commands",
        "internal-set-repo-path",
    }
)
"""The registered names (10.2). A line with any other name is plain text."""

ECHOED = COMMANDS - {"add-mask", "debug", "notice", "warning", "error"}
"""Commands whose raw line is printed while echo is on."""

UNSECURE = frozenset({"set-env", "add-path"})
"""Commands behind `ACTIONS_ALLOW_UNSECURE_COMMANDS` (deviation D7)."""

BLOCKED_ENV = frozenset({"NODE_OPTIONS"})
"""Variables that neither command nor file may set, in upper case."""

MAX_COMMAND_BYTES = 8 << 20
"""A longer line is plain text: memory of the reader stays bounded."""

MAX_PENDING_BYTES = 64 << 10
"""So much of an unfinished plain line is held back; then it goes on as it comes."""

MESSAGE_LIMIT = 4096
"""Characters of an annotation's message (job-semantics 20)."""

# What .NET's TrimStart takes; Python's own set has the separators U+001C to U+001F as well.
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


class Command(NamedTuple):
    """One parsed command. `name` and the keys of `properties` are lower case; `line` is the line as printed."""

    name: str
    properties: dict[str, str]
    data: str
    line: str


Segment: TypeAlias = bytes | Command
"""Plain output to the byte, or a command."""


class CommandRefused(msgspec.Struct, frozen=True):
    """A command that can't be carried out: the step fails at its end, with these error lines (10.2)."""

    because: str
    line: str

    @property
    def errors(self) -> tuple[str, str]:
        """The two error messages that the log shows."""
        return f"Unable to process command '{self.line}' successfully.", self.because


def parse_command(line: str, names: Collection[str] = COMMANDS) -> Command | None:
    """The command in `line` (no line end), or None where it is plain text. `names` are the registered ones, lower case."""
    return _parse_v2(line, names) or _parse_v1(line, names)


def _parse_v2(line: str, names: Collection[str]) -> Command | None:
    text = line.lstrip(_BLANKS)
    if not text.startswith("::"):
        return None
    header, colons, data = text[2:].partition("::")
    if not colons:
        return None
    name, _, properties = header.partition(" ")
    name = name.lower()
    if name not in names:
        return None
    pairs = _properties(properties.strip(_BLANKS), ",", _unescape_property)
    return Command(name, pairs, _unescape_data(data), line)


def _parse_v1(line: str, names: Collection[str]) -> Command | None:
    start = line.find("##[")
    if start < 0:
        return None
    header, bracket, data = line[start + 3 :].partition("]")
    if not bracket:
        return None
    name, _, properties = header.partition(" ")
    name = name.lower()
    if name not in names:
        return None
    return Command(name, _properties(properties, ";", _unescape_legacy), _unescape_legacy(data), line)


def _properties(text: str, separator: str, unescape: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(separator):
        key, _, value = part.partition("=")
        if key and value:
            found[key.lower()] = unescape(value)
    return found


def _unescape_data(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%") if "%" in text else text


def _unescape_property(text: str) -> str:
    if "%" not in text:
        return text
    text = text.replace("%0D", "\r").replace("%0A", "\n")
    return text.replace("%3A", ":").replace("%2C", ",").replace("%25", "%")


def _unescape_legacy(text: str) -> str:
    if "%" not in text:
        return text
    text = text.replace("%3B", ";").replace("%0D", "\r").replace("%0A", "\n")
    return text.replace("%5D", "]").replace("%25", "%")


def unsecure_allowed(
    *,
    runner_env: Mapping[str, str],
    env_context: Mapping[str, str],
    policy: bool | None,
    own_machine: bool,
    strict: bool,
) -> bool:
    """Whether `set-env` and `add-path` may act (10.2, deviation D7).

    `runner_env` is the environment of the runner itself, `env_context` the job's `env`; `policy` what the pool says
    (None: nothing). On one's own machine (`runyard run`) and under the switch the job's word is enough unless the policy
    forbids it in so many words; elsewhere the policy must allow it.
    """


def issue_line(level: AnnotationLevel, message: str) -> str:
    """The log line of an issue: its tag and the message, cut to 4,096 characters."""
    return f"##[{level}]{message[:MESSAGE_LIMIT]}"


def annotation(
    command: Command, *, step: int, time_ns: int, localise: Callable[[str], str | None] | None = None
) -> Annotation:
    """The annotation of a `notice`, `warning` or `error` command, its properties checked (10.5).

    `localise` turns the path as the step wrote it into one relative to the repository; None leaves the file out.
    """


class CommandReader:
    """Cuts what a step prints into plain bytes and commands. One per step (or nested step): state ends with it.

    `stop-commands`, its resume line and `echo` are state of the reader and carried out by it; both still come out as
    commands so that the log can show their lines. Lines end with LF, CRLF or a lone CR (job-semantics 20).

    `allow_any_token` is `ACTIONS_ALLOW_UNSECURE_STOPCOMMAND_TOKENS`; `add_mask` gets a resume token longer than 6
    characters before its line can be shown; `echo` is the step's start value (on where debug is on).
    """

    echo: bool

    def __init__(
        self,
        *,
        echo: bool = False,
        allow_any_token: bool = False,
        add_mask: Callable[[str], object] | None = None,
        names: Collection[str] = COMMANDS,
    ) -> None:
        raise NotImplementedError

    def feed(self, chunk: bytes) -> Iterator[Segment | CommandRefused]:
        """The segments that `chunk` completes. Use it up before the next call: commands act between lines."""

    def release(self) -> bytes:
        """What is held of an unfinished line that can't become a command, for a step that has gone quiet (a prompt)."""

    def flush(self) -> Iterator[Segment | CommandRefused]:
        """The end of the output: the last line counts though its end is missing (F46)."""


Level: TypeAlias = Literal["error", "warning", "notice"]
