"""Problem matchers: regular expressions that make annotations of a tool's output (job-semantics 12).

They come from the job and run over every line, so two rules: a line without a hit costs next to nothing, and a pattern
that takes too long is stopped and its matcher removed with a warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from runyard.engine.commands import ISSUE_LEVELS, checked_places
from runyard.engine.matcher_config import Captures, Matcher, MatcherError, holds, read_config
from runyard.job import Annotation, AnnotationLevel
from runyard.report.mask_search import PADDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ahocorasick_rs import BytesAhoCorasick

__all__ = [
    "MATCH_TIMEOUT_S",
    "Found",
    "Issue",
    "MatcherError",
    "Matchers",
    "Removed",
    "annotation_of",
    "parse_timespan",
]

MATCH_TIMEOUT_S = 1.0
"""One pattern on one line; `GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT` sets another (`parse_timespan`)."""


_ATTEMPTS = 3
_REMOVED = "Removing issue matcher '{}': its pattern took too long {} times (more than {:g} s for one line)."
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIMESPAN = re.compile(r"(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2}(?:\.[0-9]{1,7})?))?|([0-9]{1,8})")


class Issue(msgspec.Struct, frozen=True):
    """What a matcher found. `line_text` is the whole original line without its end, which the log shows tagged."""

    owner: str
    level: AnnotationLevel
    message: str
    line_text: str
    file: str | None = None
    from_path: str | None = None
    line: int | None = None
    column: int | None = None
    code: str | None = None


class Removed(msgspec.Struct, frozen=True):
    """A matcher was taken out because its pattern took too long; `warning` is the text to log."""

    owner: str
    warning: str


Found: TypeAlias = bytes | Issue | Removed
"""Plain bytes unchanged; an issue in place of its line (print `issue_line(level, line_text)`); a removal."""


def parse_timespan(text: str) -> float | None:
    """Seconds of .NET's timespan text (`[d.]hh:mm[:ss[.fffffff]]`, or days alone); None where it is none."""
    found = _TIMESPAN.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds, only_days = found.groups()
    if only_days:
        return int(only_days) * 86400.0
    if int(hours) > 23 or int(minutes) > 59 or float(seconds or 0) >= 60:
        return None
    return int(days or 0) * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + float(seconds or 0)


class Matchers:
    """The matchers of one job. They live until removed or the job's end, across steps and inside composites.

    `strip_ansi` takes colour codes away before matching, which GitHub doesn't do (C24).

    Lines that can't complete a match are passed over. A line is looked at when it, or one as near as a matcher is
    long, holds the key of that matcher: every line of a chain is near that one, so what is found and what is
    reset are the same as if each line had been looked at.
    """

    def __init__(self, *, timeout_s: float = MATCH_TIMEOUT_S, strip_ansi: bool = False) -> None:
        self._timeout_s = timeout_s
        self._strip_ansi = strip_ansi
        self._matchers: list[Matcher] = []
        self._finder: BytesAhoCorasick | None = None
        self._look_at_all = False
        # How many lines before and after a key may belong to its chain, for the longest matcher.
        self._reach = 0
        # The last lines, for chains that began in them; and whether the matchers have seen them.
        self._before: list[bytes] = []
        self._seen = True
        self._look_at_next = 0

    def add(self, config: bytes) -> tuple[str, ...]:
        """Add the matchers of a JSON file; the owners. Raises MatcherError; then none of them is added."""
        new = read_config(config)
        for matcher in new:
            self._replace(matcher.owner, matcher)
        return tuple(matcher.owner for matcher in new)

    def remove(self, owner: str) -> bool:
        """Take a matcher out (names ignore case); False where there is none."""
        return self._replace(owner, None)

    def remove_all_of(self, config: bytes) -> tuple[str, ...]:
        """Take out the owners that a JSON file names; the ones that were there. Raises MatcherError."""
        return tuple(matcher.owner for matcher in read_config(config) if self.remove(matcher.owner))

    @property
    def owners(self) -> tuple[str, ...]:
        """Active matchers, newest first."""
        return tuple(matcher.owner for matcher in self._matchers)

    def scan(self, data: bytes) -> Iterator[Found]:
        """Look through whole lines (an unfinished last line counts as one). Order and bytes are kept."""
        if not data:
            return
        if not self._matchers:
            yield data
            return
        every_line = self._look_at_all or (self._strip_ansi and b"\x1b" in data)
        hits = [] if every_line else self._hits(data)
        looping = self._seen and self._looping()
        if every_line or hits or self._look_at_next or looping:
            windows = [(0, len(data))] if every_line else self._windows(data, hits)
            yield from self._scan_windows(data, [(0, 0), *windows] if looping else windows)
        else:
            self._seen = False
            self._remember(data)
            yield data

    def _hits(self, data: bytes) -> list[tuple[int, int]]:
        """Where lines begin (of those that LF ends) that may complete a chain, and how far that reaches."""
        if self._finder is None:
            from ahocorasick_rs import BytesAhoCorasick, MatchKind

            texts = {text for matcher in self._matchers for text in matcher.key}
            # A few texts of this kind are searched for side by side, at several gigabytes a second.
            self._finder = BytesAhoCorasick([*sorted(texts), *PADDING], matchkind=MatchKind.LeftmostFirst)
        hits: list[tuple[int, int]] = []
        end = 0
        for _, at, _ in self._finder.find_matches_as_indexes(data):
            if at < end:
                continue
            begin = data.rfind(b"\n", end, at) + 1 or end
            end = data.find(b"\n", at) + 1 or len(data)
            line = data[begin:end]
            reach = max(len(matcher.patterns) if self._may_match(matcher, line) else 0 for matcher in self._matchers)
            if reach:
                hits.append((begin, reach - 1))
        return hits

    def _may_match(self, matcher: Matcher, line: bytes) -> bool:
        pattern = matcher.patterns[matcher.key_index]
        if not holds(pattern, line):
            return False
        if len(matcher.patterns) == 1:
            return True  # this line alone is looked at, and that is the same search
        try:
            return any(
                pattern.regex.search(part.decode("utf-8", "replace"), timeout=self._timeout_s)
                for part in line.splitlines()
            )
        except TimeoutError:
            return True

    def _windows(self, data: bytes, hits: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The lines to look at, as stretches of bytes: those near a hit, and what the block before has left to do."""
        windows = []
        missing = 0
        if self._look_at_next:
            end, missing = _forward(data, 0, self._look_at_next)
            windows.append((0, end))
        for hit, reach in hits:
            begin = hit
            for _ in range(reach if hit else 0):
                begin = data.rfind(b"\n", 0, max(begin - 1, 0)) + 1
            end, left = _forward(data, hit, reach + 1)
            windows.append((begin, end))
            missing = max(missing, left)
        self._look_at_next = missing
        return sorted(windows)

    def _scan_windows(self, data: bytes, windows: list[tuple[int, int]]) -> Iterator[Found]:
        """Look at the lines of the windows, and at those after one for as long as a matcher loops."""
        shown = at = seen_to = seen_from = 0
        for begin, end in windows:
            at = max(at, begin)
            while at < end or (at < len(data) and at == seen_to and self._looping()):
                if at != seen_to:
                    self._reset()
                    self._seen = True
                    seen_from = at
                elif not self._seen:
                    self._catch_up()
                start, at = at, _line_end(data, at)
                seen_to = at
                for result in self._look(data[start:at]):
                    if start > shown:
                        yield data[shown:start]
                    yield result
                    shown = at if isinstance(result, Issue) else start
        self._seen = seen_to == len(data) and (not seen_from or data.count(b"\n", seen_from) >= self._reach)
        if seen_to == len(data) and not self._seen and self._looping():
            self._look_at_next = max(self._look_at_next, 1)
        self._remember(data)
        if shown < len(data):
            yield data[shown:] if shown else data

    def _look(self, line: bytes) -> list[Issue | Removed]:
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        seen = text
        if self._strip_ansi and "\x1b" in text:
            seen = _ANSI.sub("", text)
            line = seen.encode()
        results: list[Issue | Removed] = []
        for matcher in tuple(self._matchers):
            try:
                caught = self._patiently(matcher, line, seen)
            except TimeoutError:
                self._replace(matcher.owner, None)
                results.append(Removed(matcher.owner, _REMOVED.format(matcher.owner, _ATTEMPTS, self._timeout_s)))
                continue
            if caught is None:
                continue
            for other in self._matchers:
                if other is not matcher:
                    other.reset()
            if (issue := _issue(matcher, caught, text)) is not None:
                results.append(issue)
                break
        return results

    def _patiently(self, matcher: Matcher, line: bytes, text: str) -> Captures | None:
        for _ in range(_ATTEMPTS - 1):
            try:
                return matcher.match(line, text, self._timeout_s)
            except TimeoutError:
                continue
        return matcher.match(line, text, self._timeout_s)

    def _looping(self) -> bool:
        return any(matcher.loops_on for matcher in self._matchers)

    def _reset(self) -> None:
        for matcher in self._matchers:
            matcher.reset()

    def _catch_up(self) -> None:
        """Show the matchers the last lines, which can't complete anything: they were passed over."""
        self._reset()
        self._seen = True
        for line in self._before:
            self._look(line)

    def _remember(self, data: bytes) -> None:
        if self._reach:
            self._before = [*self._before, *_last_lines(data, self._reach)][-self._reach :]

    def _replace(self, owner: str, new: Matcher | None) -> bool:
        """Put a matcher in the place of its namesake; whether there was one."""
        if not self._seen:
            self._catch_up()
        kept = [matcher for matcher in self._matchers if matcher.owner.lower() != owner.lower()]
        there = len(kept) < len(self._matchers)
        self._matchers = [new, *kept] if new is not None else kept
        self._finder = None
        self._look_at_all = any(not matcher.key for matcher in self._matchers)
        self._reach = max((len(matcher.patterns) for matcher in self._matchers), default=1) - 1
        # The lines so far are not the new matcher's; what the others made of them is kept by looking on without a gap.
        self._before = []
        self._look_at_next = max(self._look_at_next, self._reach)
        return there


def _issue(matcher: Matcher, caught: Captures, text: str) -> Issue | None:
    """The issue that a completed match is, or None where it isn't reported."""
    message = caught.get("message", "")
    level = ISSUE_LEVELS.get((caught.get("severity") or matcher.severity).lower())
    if not message.strip() or level is None:
        return None
    return Issue(
        owner=matcher.owner,
        level=level,
        message=message,
        line_text=text,
        file=caught.get("file") or None,
        from_path=caught.get("from_path") or matcher.from_path,
        line=_number(caught.get("line")),
        column=_number(caught.get("column")),
        code=caught.get("code") or None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _line_end(data: bytes, at: int) -> int:
    """Where the line at `at` ends, its line end included."""
    line_feed = data.find(b"\n", at)
    end = len(data) if line_feed < 0 else line_feed + 1
    carriage_return = data.find(b"\r", at, end)
    return end if carriage_return < 0 or carriage_return + 1 == line_feed else carriage_return + 1


def _forward(data: bytes, at: int, count: int) -> tuple[int, int]:
    """The end of so many lines (that LF ends) from `at`, and how many there were too few."""
    for done in range(count):
        end = data.find(b"\n", at) + 1
        if not end:
            return len(data), count - done - (1 if at < len(data) else 0)
        at = end
    return at, 0


def _last_lines(data: bytes, count: int) -> list[bytes]:
    at = len(data)
    for _ in range(count):
        at = data.rfind(b"\n", 0, max(at - 1, 0)) + 1
    return data[at:].splitlines(keepends=True)


def annotation_of(
    issue: Issue, *, step: int, time_ns: int, localise: Callable[[str, str | None], str | None] | None = None
) -> Annotation:
    """The annotation of an issue.

    `localise(file, from_path)` gives the path in the repository, or None where the file doesn't belong there.
    """
    file = issue.file
    if file is not None and localise is not None:
        file = localise(file, issue.from_path)
    line, _, col, _ = checked_places(issue.line, None, issue.column, None)
    return Annotation(
        step=step,
        level=issue.level,
        message=issue.message,
        time_ns=time_ns,
        file=file,
        line=line,
        col=col,
        code=issue.code,
    )
