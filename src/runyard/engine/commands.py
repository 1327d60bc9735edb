"""Workflow commands: what a step says to the runner by printing a line (job-semantics 10).

Pure parsing first, then a reader that cuts a step's output into stretches of plain bytes and commands without looking
at every line. Rule kept: text that is no command passes through unchanged to the byte, and a line whose end has not
come is only let go when it can't become a command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from runyard.job import Annotation, AnnotationLevel
from runyard.report.mask_search import PADDING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from ahocorasick_rs import BytesAhoCorasick

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

UNSECURE_SWITCH = "ACTIONS_ALLOW_UNSECURE_COMMANDS"

ISSUE_LEVELS: dict[str, AnnotationLevel] = {"error": "error", "warning": "warning", "notice": "notice"}

EMPTY_MASK_WARNING = "Can't add secret mask for empty string in ##[add-mask] command."

_LONGEST_UNMASKED_TOKEN = 6
_INTEGER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*")

# Each begins with a literal, which is searched for at memory speed; a class at its front would be thirty times slower.
_AT_START = re.compile(rb"[ \t\v\f\x80-\xff]*::")
_AFTER_LINE_FEED = re.compile(rb"\n[ \t\v\f\x80-\xff]*::")
_AFTER_CARRIAGE_RETURN = re.compile(rb"\r[ \t\v\f\x80-\xff]*::")

_LARGE_BLOCK = 4096
_marks: BytesAhoCorasick | None = None

# What .NET's TrimStart takes; Python's own set has the separators U+001C to U+001F as well.
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_LEGACY = b"##["
# The new form behind the last byte of whatever may stand before it in its line.
_MARKS = (_LEGACY, *(bytes((byte,)) + b"::" for byte in sorted({char.encode()[-1] for char in _BLANKS})))


class Command(NamedTuple):
    """One parsed command. `name` and the keys of `properties` are lower case; `line` is the line as printed."""

    name: str
    properties: dict[str, str]
    data: str
    line: str


Segment: TypeAlias = bytes | Command
"""Plain output to the byte, or a command."""


class CommandRefused(msgspec.Struct, frozen=True):
    """A command that can't be carried out: the step fails at its end, with these error lines (10.2).

    `line` is the command's line, or its name alone where the line may hold what isn't shown.
    """

    because: str
    line: str

    @property
    def errors(self) -> tuple[str, str]:
        """The two error messages that the log shows."""
        return f"Unable to process command '{self.line}' successfully.", self.because


def parse_command(line: str, names: Collection[str] = COMMANDS) -> Command | None:
    """The command in `line` (no line end), or None where it is plain text. `names` are lower case."""
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
    (None: nothing). On one's own machine (`runyard run`) and under the switch the job's word is enough unless the
    policy forbids it in so many words; elsewhere the policy must allow it as well.
    """
    if policy is False or not (policy or own_machine or strict):
        return False
    return any(is_true(place.get(UNSECURE_SWITCH, "")) for place in (runner_env, env_context))


def is_true(text: str) -> bool:
    """Whether a switch in a variable is on, as the reference reads it."""
    return text.strip().lower() in {"true", "1", "$true"}


def refusal(command: Command, *, unsecure: bool = False) -> str | None:
    """Why a command can't be carried out, by itself; None where nothing in it forbids that.

    What needs more than the command (a matcher's file, say) is the caller's to find. `unsecure` is `unsecure_allowed`.
    """
    name = command.name
    if name in UNSECURE and not unsecure:
        file = "GITHUB_ENV" if name == "set-env" else "GITHUB_PATH"
        return (
            f"The `{name}` command is disabled. Write to the file named by ${file} instead. It acts only where "
            f"{UNSECURE_SWITCH} is true and, on a shared machine, the pool's policy allows it."
        )
    if name in {"set-output", "save-state", "set-env"} and not command.properties.get("name"):
        return f"Required field 'name' is missing in ##[{name}] command."
    if name in {"add-matcher", "add-path"} and not command.data:
        return f"Required value is missing in ##[{name}] command."
    if name == "remove-matcher" and bool(command.properties.get("owner")) == bool(command.data):
        return "The remove-matcher command takes either an owner or the path of a matcher file."
    return None


def refused(command: Command, because: str) -> CommandRefused:
    """What becomes of a command that can't be carried out; handlers outside this page use it too."""
    return CommandRefused(because, command.line if command.name in ECHOED else command.name)


def log_text(command: Command, *, echo: bool = False, debug: bool = False) -> str | None:
    """What the log shows in the place of a command's line, or None. The raw line, with echo on, the reader gives."""
    name = command.name
    if name in ISSUE_LEVELS:
        return f"##[{name}]{command.data[:MESSAGE_LIMIT]}"
    if name == "group":
        return f"##[group]{command.data}"
    if name == "endgroup":
        return "##[endgroup]"
    if name == "debug" and debug:
        return "\n".join(f"##[debug]{line}" for line in command.data.splitlines() or [""])
    if name == "add-mask" and echo and command.data.strip():
        return "::add-mask::***"
    return None


def issue_line(level: AnnotationLevel, message: str) -> str:
    """The log line of an issue: its tag and the message, cut to 4,096 characters."""
    return f"##[{level}]{message[:MESSAGE_LIMIT]}"


def annotation(
    command: Command, *, step: int, time_ns: int, localise: Callable[[str], str | None] | None = None
) -> Annotation:
    """The annotation of a `notice`, `warning` or `error` command, its properties checked (10.5).

    `localise` turns the path as the step wrote it into one relative to the repository; None leaves the file out.
    """
    given = command.properties
    file = given.get("file") or None
    if file is not None and localise is not None:
        file = localise(file)
    places = checked_places(*(_integer(given.get(key)) for key in ("line", "endline", "col", "endcolumn")))
    line, end_line, col, end_column = places
    return Annotation(
        step=step,
        level=ISSUE_LEVELS[command.name],
        message=command.data,
        time_ns=time_ns,
        title=given.get("title"),
        file=file,
        line=line,
        end_line=end_line,
        col=col,
        end_column=end_column,
    )


Place: TypeAlias = int | None


def checked_places(line: Place, end_line: Place, col: Place, end_column: Place) -> tuple[Place, Place, Place, Place]:
    """The four numbers of an annotation with what contradicts itself dropped, in the order of 10.5."""
    line = end_line if line is None else line
    col = end_column if col is None else col
    if col is not None and (line is None or (end_line is not None and line != end_line)):
        col = end_column = None
    if line is not None and end_line is not None and end_line < line:
        line = end_line = None
    if col is not None and end_column is not None and end_column < col:
        col = end_column = None
    return line, end_line, col, end_column


def _integer(text: str | None) -> int | None:
    """A 32-bit integer as .NET reads one."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 31) <= number < 1 << 31 else None


class CommandReader:
    """Cuts what a step prints into plain bytes and commands. One per step (or nested step): state ends with it.

    `stop-commands`, its resume line and `echo` are carried out here: the lines of the first two come out as plain
    text, as GitHub prints them, and while `self.echo` is on, the raw line of each command in `ECHOED` comes out
    before it. Lines end with LF, CRLF or a lone CR (job-semantics 20).

    `allow_any_token` is `ACTIONS_ALLOW_UNSECURE_STOPCOMMAND_TOKENS`; `add_mask` gets a resume token longer than 6
    characters before its line can be shown; `echo` is the step's start value (on where debug is on).
    """

    def __init__(
        self,
        *,
        echo: bool = False,
        allow_any_token: bool = False,
        add_mask: Callable[[str], object] | None = None,
        names: Collection[str] = COMMANDS,
    ) -> None:
        self.echo = echo
        self._allow_any_token = allow_any_token
        self._add_mask = add_mask
        self._names = names
        self._token: str | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        # The beginning of the current line is out already, so only the legacy form can still be found in it.
        self._in_line = False
        # The last command ended with a CR that may be half of a CRLF.
        self._drop_line_feed = False

    @property
    def pending(self) -> bool:
        """Whether anything of an unfinished line is held."""
        return self._waiting > 0

    def feed(self, chunk: bytes) -> Iterator[Segment | CommandRefused]:
        """The segments that `chunk` completes. Use it up before the next call: commands act between lines."""
        if not chunk:
            return
        if self._drop_line_feed:
            self._drop_line_feed = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        end = chunk.rfind(b"\n") + 1
        end = max(end, chunk.rfind(b"\r", end) + 1)
        if not end:
            self._parts.append(chunk)
            self._waiting += len(chunk)
            if self._waiting > MAX_PENDING_BYTES and (plain := self._overflow()):
                yield plain
            return
        block = b"".join((*self._parts, chunk[:end])) if self._parts else chunk[:end]
        rest = chunk[end:]
        self._parts = [rest] if rest else []
        self._waiting = len(rest)
        yield from self._scan(block)

    def release(self) -> bytes:
        """What is held of an unfinished line that can't become a command, for a step that has gone quiet (a prompt)."""
        if not self._waiting:
            return b""
        line = b"".join(self._parts)
        self._parts = [line]
        start = line.lstrip()
        if not self._in_line and (not start or start.startswith(b"::") or start == b":"):
            return b""
        if b"##[" in line or line.endswith((b"#", b"##")):
            return b""
        self._parts, self._waiting, self._in_line = [], 0, True
        return line

    def flush(self) -> Iterator[Segment | CommandRefused]:
        """The end of the output: the last line counts though its end is missing (F46)."""
        line = b"".join(self._parts)
        self._parts, self._waiting = [], 0
        if line:
            yield from self._scan(line)
        self._in_line = self._drop_line_feed = False

    def _overflow(self) -> bytes:
        """Part of a line too long to hold: nothing in it speaks for a command, or it is too long for one."""
        if self._waiting <= MAX_COMMAND_BYTES:
            return self.release()
        line = b"".join(self._parts)
        self._parts, self._waiting, self._in_line = [], 0, True
        return line

    def _scan(self, block: bytes) -> Iterator[Segment | CommandRefused]:
        shown = 0
        for start, stop, after, fresh in self._candidates(block):
            line = block[start:stop].decode("utf-8", "replace")
            command = self._parse(line, fresh)
            if command is None:
                continue
            keep, given = self._act(command)
            if keep and given is None:
                continue
            # The line of a command that is shown ends with LF: half of its CRLF may not have come yet.
            plain = block[shown:stop] + b"\n" if keep else block[shown:start]
            if plain:
                yield plain
            if given is not None:
                yield given
            shown = after
            self._drop_line_feed = after == len(block) and block.endswith(b"\r")
        if shown < len(block):
            yield block[shown:] if shown else block
        self._in_line = False

    def _candidates(self, block: bytes) -> Iterator[tuple[int, int, int, bool]]:
        """Lines that may hold a command: start, end, start of the next, and whether the line begins at its start."""
        starts = _likely_lines(block) if len(block) >= _LARGE_BLOCK else _likely_lines_of_few(block)
        if _AT_START.match(block) and not self._in_line:
            starts.add(0)
        for start in sorted(starts):
            yield start, *_line_end(block, start), start > 0 or not self._in_line

    def _parse(self, line: str, fresh: bool) -> Command | None:
        names = self._names if self._token is None else (self._token,)
        return parse_command(line, names) if fresh else _parse_v1(line, names)

    def _act(self, command: Command) -> tuple[bool, Command | CommandRefused | None]:
        """Whether the command's own line is shown, and what is handed on."""
        if self._token is not None:
            self._token = None
            return True, None
        keep = self.echo and command.name in ECHOED
        problem: str | None = None
        if command.name == "stop-commands":
            problem = self._stop(command.data)
            keep = keep or problem is None
        elif command.name == "echo":
            wish = command.data.strip().lower()
            if wish in {"on", "off"}:
                self.echo = wish == "on"
            else:
                problem = f"Invalid echo command value. Possible values are 'on' and 'off', not '{command.data}'."
        else:
            return keep, command
        return keep, None if problem is None else refused(command, problem)

    def _stop(self, token: str) -> str | None:
        word = token.lower()
        if not self._allow_any_token and (not word or word in self._names or word == "pause-logging"):
            return "The resume token of stop-commands must not be empty, 'pause-logging' or the name of a command."
        self._token = word
        if len(token) > _LONGEST_UNMASKED_TOKEN and self._add_mask is not None:
            self._add_mask(token)
        return None


def _likely_lines_of_few(block: bytes) -> set[int]:
    """Where lines begin that have a mark of a command in the right place (the first line: of the legacy form only)."""
    starts = {found.start() + 1 for found in _AFTER_LINE_FEED.finditer(block)}
    if b"\r" in block:
        starts.update(found.start() + 1 for found in _AFTER_CARRIAGE_RETURN.finditer(block))
    legacy = block.find(b"##[")
    while legacy >= 0:
        starts.add(_line_start(block, legacy))
        legacy = block.find(b"##[", _line_end(block, legacy)[1])
    return starts


def _likely_lines(block: bytes) -> set[int]:
    """The same for a large block, where a search for both marks side by side pays for being loaded."""
    global _marks
    if _marks is None:
        from ahocorasick_rs import BytesAhoCorasick, MatchKind

        _marks = BytesAhoCorasick([*_MARKS, *PADDING], matchkind=MatchKind.LeftmostFirst)
    starts: set[int] = set()
    for mark, _, end in _marks.find_matches_as_indexes(block):
        start = _line_start(block, end - 2)
        if mark == 0 or (0 < start <= end - 2 and _AT_START.match(block, start)):
            starts.add(start)
    return starts


def _line_start(block: bytes, at: int) -> int:
    start = block.rfind(b"\n", 0, at) + 1
    return max(start, block.rfind(b"\r", start, at) + 1)


def _line_end(block: bytes, at: int) -> tuple[int, int]:
    """Where the line at `at` ends, without and with its line end."""
    line_feed = block.find(b"\n", at)
    carriage_return = block.find(b"\r", at, line_feed if line_feed >= 0 else len(block))
    if carriage_return >= 0:
        return carriage_return, carriage_return + (2 if carriage_return + 1 == line_feed else 1)
    return (line_feed, line_feed + 1) if line_feed >= 0 else (len(block), len(block))
