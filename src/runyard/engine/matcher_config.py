"""The file of a problem matcher, checked whole, and what a matcher remembers from line to line (job-semantics 12).

Rule kept: a file is taken or refused as a whole, with the owner, the pattern and what is wrong with it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from runyard.engine.commands import ISSUE_LEVELS
from runyard.engine.matcher_regex import Compiled, UnsupportedPatternError, compile_pattern

_PROPERTIES = ("file", "from_path", "line", "column", "severity", "code", "message")


class MatcherError(ValueError):
    """A matcher file that is refused: the `add-matcher` command fails with this text."""


class _WrittenPattern(msgspec.Struct, rename="camel"):
    regexp: str | None = None
    file: int | None = None
    from_path: int | None = None
    line: int | None = None
    column: int | None = None
    severity: int | None = None
    code: int | None = None
    message: int | None = None
    loop: bool | None = None


class _WrittenMatcher(msgspec.Struct, rename="camel"):
    owner: str
    pattern: list[_WrittenPattern] | None = None
    severity: str | None = None
    from_path: str | None = None


class _Config(msgspec.Struct):
    matchers: list[_WrittenMatcher] = msgspec.field(name="problemMatcher")


class Pattern(NamedTuple):
    """One pattern, and which of its groups is which property."""

    regex: Compiled
    groups: dict[str, int]
    loop: bool


Captures: TypeAlias = dict[str, str]
"""What groups caught, by property."""


class Matcher:
    """One matcher and what it remembers of the lines before this one."""

    def __init__(self, owner: str, severity: str, from_path: str | None, patterns: tuple[Pattern, ...]) -> None:
        self.owner = owner
        self.severity = severity
        self.from_path = from_path
        self.patterns = patterns
        # What pattern n caught on the line before, for each but the last.
        self.running: list[Captures | None] = [None] * (len(patterns) - 1)
        self.loops_on = False
        keys = [(pattern.regex.key, index) for index, pattern in enumerate(patterns) if pattern.regex.key]
        self.key, self.key_index = max(keys, key=lambda key: min(map(len, key[0])), default=((), 0))

    def reset(self) -> None:
        """Forget the lines before."""
        self.running = [None] * len(self.running)
        self.loops_on = False

    def match(self, line: bytes, text: str, timeout_s: float) -> Captures | None:
        """What this line completes. Raises TimeoutError."""
        last = len(self.patterns) - 1
        for index in range(last, -1, -1):
            before = self.running[index - 1] if index else None
            if index and before is None:
                continue
            pattern = self.patterns[index]
            caught = caught_by(pattern, line, text, timeout_s)
            if index < last:
                self.running[index] = None if caught is None else {**(before or {}), **caught}
            elif caught is not None:
                self.reset()
                if pattern.loop:
                    self.running[-1] = before
                    self.loops_on = True
                return {**(before or {}), **caught}
            elif index:
                self.running[-1] = None
                self.loops_on = False
        return None


def caught_by(pattern: Pattern, line: bytes, text: str, timeout_s: float) -> Captures | None:
    """What the pattern catches in a line, given as bytes and as the text to match; None without a match."""
    if not holds(pattern, line):
        return None
    found = pattern.regex.search(text, timeout=timeout_s)
    if found is None:
        return None
    order = pattern.regex.order
    return {name: found[order[number]] for name, number in pattern.groups.items() if found[order[number]] is not None}


def holds(pattern: Pattern, line: bytes) -> bool:
    """Whether the line holds what the pattern can't match without."""
    for clause in pattern.regex.clauses:
        for needed in clause:
            if needed in line:
                break
        else:
            return False
    return True


def read_config(config: bytes) -> tuple[Matcher, ...]:
    """The matchers of a JSON file. Raises MatcherError."""
    if config.startswith(b"\xef\xbb\xbf"):
        config = config[3:]
    try:
        document = msgspec.json.decode(config, type=_Config)
    except msgspec.DecodeError as error:
        raise MatcherError(f"The problem matcher file can't be read: {error}") from error
    owners: set[str] = set()
    matchers = []
    for written in document.matchers:
        if not written.owner.strip():
            raise MatcherError("A problem matcher needs an owner.")
        if written.owner.lower() in owners:
            raise MatcherError(f"The owner '{written.owner}' stands twice in the problem matcher file.")
        owners.add(written.owner.lower())
        matchers.append(_checked(written))
    return tuple(matchers)


def _checked(written: _WrittenMatcher) -> Matcher:
    owner = written.owner
    severity = (written.severity or "error").lower()
    if severity not in ISSUE_LEVELS:
        raise MatcherError(f"Matcher '{owner}': the severity '{written.severity}' is none of error, warning, notice.")
    if not written.pattern:
        raise MatcherError(f"Matcher '{owner}' has no pattern.")
    last = len(written.pattern) - 1
    set_by: dict[str, int] = {}
    patterns = []
    for index, part in enumerate(written.pattern):
        if part.loop and (index != last or last == 0):
            raise MatcherError(f"Matcher '{owner}': only the last of several patterns may loop.")
        try:
            compiled = compile_pattern(part.regexp or "")
        except UnsupportedPatternError as error:
            raise MatcherError(f"Matcher '{owner}', pattern {index + 1}: {error}") from error
        groups = {name: number for name in _PROPERTIES if (number := getattr(part, name)) is not None}
        for name, number in groups.items():
            if name in set_by:
                raise MatcherError(f"Matcher '{owner}': '{name}' is set by more than one pattern.")
            if not 0 <= number < len(compiled.order):
                raise MatcherError(f"Matcher '{owner}', pattern {index + 1}: '{name}' names a group that isn't there.")
            set_by[name] = index
        if part.loop and "message" not in groups:
            raise MatcherError(f"Matcher '{owner}': a pattern that loops must set 'message'.")
        patterns.append(Pattern(compiled, groups, part.loop or False))
    if "message" not in set_by:
        raise MatcherError(f"Matcher '{owner}': one pattern must set 'message'.")
    return Matcher(owner, severity, written.from_path, tuple(patterns))
