"""Masks: nothing that a job prints leaves its process with a secret in it (job-semantics 13).

Every form of every secret is searched for in one pass; what overlaps or touches becomes one `***`. Rules kept: the
masked stream is the mask of the whole stream however it is cut, and only a suffix that could begin a secret is held
back, so that a line is seen as soon as it is printed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from runyard.report.mask_forms import derived_forms, lines_of, weakness, with_line_ends
from runyard.report.mask_search import PatternSearch, Range, merge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.job import Claim

__all__ = ["MASK", "MaskStream", "Masker", "derived_forms", "masker_for", "weakness"]

MASK = b"***"

SHORT_LINE = 4
"""Lines of a secret with fewer characters are not masked alone (deviation D5)."""

UNMASKED_SECRETS = frozenset({"ACTIONS_STEP_DEBUG", "ACTIONS_RUNNER_DEBUG"})
"""Secrets that are switches, not secrets (13.1)."""

_HELD_FOR_PATTERNS = 64 << 10
_PATTERN_TIMEOUT_S = 0.25


class Masker:
    """The masks of one job. Values may be added at any time; each stream sees them from its next byte on.

    `strict` registers every line of a secret, however short, and masks line by line as GitHub does (D5). By default
    short lines are not masked alone, and a value of several lines is found across line ends.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._search = PatternSearch()
        self._single = b""
        self._to_first: bytes | None = None
        self._values: set[str] = set()
        self._added: list[str] = []
        self._regexes: list[Any] = []

    def add_secret(self, value: str) -> None:
        """A secret of the job: trimmed, with each of its lines (13.1; short ones: D5). Blank: nothing."""
        self._register(value.strip())
        lines = list(lines_of(value))
        for line in lines:
            if self._strict or len(lines) == 1 or len(line) >= SHORT_LINE:
                self._register(line)

    def add_mask(self, value: str) -> bool:
        """What `::add-mask::` gives: the value and each of its lines. False where it is blank (a warning then)."""
        if not value.strip():
            return False
        self._added.append(value)
        self._register(value.strip("\r\n"))
        for line in lines_of(value):
            self._register(line)
        return True

    def add_value(self, value: str) -> None:
        """A token, password or other single value as it is. Empty: nothing."""
        if value:
            self._added.append(value)
            self._register(value)

    def add_pattern(self, pattern: str) -> bool:
        """A mask hint of type `regex`, as pattern and as value. False where the pattern can't be compiled."""
        import regex  # type: ignore[import-untyped]  # it has no types of its own

        self._register(pattern)
        try:
            self._regexes.append(regex.compile(pattern))
        except regex.error:
            return False
        return True

    def take_added(self) -> tuple[str, ...]:
        """Values that came with `add_mask` or `add_value` since the last call: what a server must hear first."""
        added = tuple(self._added)
        self._added.clear()
        return added

    def mask(self, data: bytes) -> bytes:
        """`data` masked as a whole."""
        if not data or not (self._single or self._regexes or len(self._search)):
            return data
        stream = MaskStream(self)
        return stream.feed(data) + stream.flush()

    def mask_text(self, text: str) -> str:
        """The same for text."""
        data = text.encode("utf-8", "surrogateescape")
        masked = self.mask(data)
        return text if masked == data else masked.decode("utf-8", "surrogateescape")

    def hides(self, text: str) -> bool:
        """Whether masking changes `text`: a job output that holds a secret is dropped (M11)."""
        return self.mask_text(text) != text

    def stream(self) -> MaskStream:
        """A reader of its own, for one step's output."""
        return MaskStream(self)

    def _register(self, value: str) -> None:
        if not value or value in self._values:
            return
        self._values.add(value)
        patterns: list[bytes] = []
        for form in derived_forms(value):
            for variant in with_line_ends(form):
                pattern = variant.encode("utf-8", "surrogateescape")
                if len(pattern) == 1:
                    self._add_single(pattern)
                elif not (self._strict and (b"\n" in pattern or b"\r" in pattern)):
                    patterns.append(pattern)
        self._search.add(patterns)

    def _add_single(self, byte: bytes) -> None:
        if byte in self._single:
            return
        self._single += byte
        if len(self._single) > 1:
            self._to_first = bytes.maketrans(self._single, self._single[:1] * len(self._single))

    def _ranges(self, data: bytes, until: int) -> list[Range]:
        ranges = self._search.find(data) if len(self._search) else []
        if self._regexes:
            # A regular expression may see a line only once it is whole.
            ranges = [*ranges, *self._by_regexes(data[:until])]
            return merge(ranges) if len(ranges) > 1 else ranges
        return ranges

    def _by_regexes(self, data: bytes) -> list[Range]:
        found: list[Range] = []
        at = 0
        for line in data.splitlines(keepends=True):
            text = line.decode("utf-8", "surrogateescape")
            for pattern in self._regexes:
                try:
                    for match in pattern.finditer(text, timeout=_PATTERN_TIMEOUT_S):
                        begin, end = (len(text[:place].encode("utf-8", "surrogateescape")) for place in match.span())
                        if begin < end:
                            found.append((at + begin, at + end))
                except TimeoutError:
                    # Nobody knows what it would have hidden, so the whole line is hidden.
                    found.append((at, at + len(line.rstrip(b"\r\n"))))
            at += len(line)
        return found

    def _unfinished(self, data: bytes) -> int:
        at = self._search.unfinished(data) if len(self._search) else len(data)
        if self._regexes:
            at = min(at, max(data.rfind(b"\n", 0, at) + 1, len(data) - _HELD_FOR_PATTERNS))
        return at

    def _hide_single(self, data: bytes) -> bytes:
        """`data` with every run of single-byte secrets hidden."""
        if self._to_first is not None:
            data = data.translate(self._to_first)
        mark = self._single[:1]
        parts = data.split(mark)
        if len(parts) == 1:
            return data
        plain = list(filter(None, parts))
        if not plain:
            return MASK
        if not parts[0]:
            plain.insert(0, b"")
        if not parts[-1]:
            plain.append(b"")
        return MASK.join(plain)


class MaskStream:
    """Masks bytes as they come. After `flush` it may be used again."""

    def __init__(self, masker: Masker, held: bytes = b"", covered: int = -1) -> None:
        self._masker = masker
        self._held = held
        # How many of the held bytes a shown `***` covers already; -1 where the last thing shown was no mask.
        self._covered = covered

    @property
    def kept(self) -> tuple[bytes, int]:
        """What is held back and how much of it a shown `***` covers: another stream goes on from these two."""
        return self._held, self._covered

    def feed(self, data: bytes) -> bytes:
        """The masked bytes that are sure now."""
        block = self._held + data if self._held else data
        return self._show(block, self._masker._unfinished(block))  # noqa: SLF001 - one class in two parts

    def flush(self) -> bytes:
        """The rest: nothing more will come."""
        shown = self._show(self._held, len(self._held))
        self._covered = -1
        return shown

    def _show(self, block: bytes, until: int) -> bytes:
        masker = self._masker
        ranges = masker._ranges(block, until)  # noqa: SLF001 - one class in two parts
        single = masker._single  # noqa: SLF001
        if not ranges and not single and self._covered < 0:
            self._held = block[until:]
            return block[:until] if self._held else block
        shown: list[bytes] = []
        at = max(self._covered, 0)
        masked = self._covered >= 0
        for begin, end in ranges:
            if begin > max(until, at):
                break
            if begin > at:
                masked = self._plain(block[at:begin], shown, after_mask=masked, before_mask=True)
            if not masked:
                shown.append(MASK)
                masked = True
            at = max(at, end)
        if at < until:
            masked = self._plain(block[at:until], shown, after_mask=masked, before_mask=False)
            at = until
        self._held = block[until:]
        self._covered = at - until if masked else -1
        return b"".join(shown)

    def _plain(self, text: bytes, shown: list[bytes], *, after_mask: bool, before_mask: bool) -> bool:
        """Show what lies between two masks; whether the last thing shown is a mask then."""
        single = self._masker._single  # noqa: SLF001 - one class in two parts
        if not single:
            shown.append(text)
            return False
        if after_mask:
            text = text.lstrip(single)
        if before_mask:
            text = text.rstrip(single)
        if text:
            shown.append(self._masker._hide_single(text))  # noqa: SLF001 - one class in two parts
            return text[-1] in single
        return after_mask


def masker_for(claim: Claim) -> Masker:
    """The masks that a claim brings: secrets, hints, tokens, and the form in which git sends a token (13.1)."""
    masker = Masker(strict=claim.strict_github)
    for name, value in claim.secrets.items():
        if name.upper() not in UNMASKED_SECRETS:
            masker.add_secret(value)
    for value in (*claim.masks, *claim.tokens.values()):
        masker.add_secret(value)
    for pattern in claim.mask_patterns:
        masker.add_pattern(pattern)
    for token in _tokens_git_sends(claim):
        masker.add_value(base64.b64encode(f"x-access-token:{token}".encode()).decode("ascii"))
    masker.take_added()
    return masker


def _tokens_git_sends(claim: Claim) -> Iterable[str]:
    named = (value for name, value in claim.secrets.items() if name.upper() == "GITHUB_TOKEN")
    return {token for token in (*claim.tokens.values(), *named) if token}
