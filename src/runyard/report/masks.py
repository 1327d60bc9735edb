"""Masks: nothing that a job prints leaves its process with a secret in it (job-semantics 13).

One automaton finds every form of every secret in one pass; what overlaps or touches becomes one `***`. Rules kept:
the masked stream is the mask of the whole stream however it is cut, and only a suffix that could begin a secret is held
back, so that a line is seen as soon as it is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.job import Claim

MASK = b"***"
SHORT_LINE = 4
"""Lines of a secret shorter than this are not masked alone (deviation D5)."""

UNMASKED_SECRETS = frozenset({"ACTIONS_STEP_DEBUG", "ACTIONS_RUNNER_DEBUG"})


def derived_forms(value: str) -> tuple[str, ...]:
    """`value` and every encoding of it that is masked as well (13.2), without empty ones and duplicates."""


def weakness(value: str) -> str | None:
    """Why a secret masks badly (`short` or `common`), or None. For warnings; never shows the value."""


class Masker:
    """The masks of one job. Values may be added at any time; each reader sees them from its next byte on.

    `strict` registers every line of a secret, however short, and masks line by line as GitHub does (D5).
    """

    def __init__(self, *, strict: bool = False) -> None:
        raise NotImplementedError

    def add_secret(self, value: str) -> None:
        """A secret of the job: trimmed, with each of its lines (13.1; short ones: D5)."""

    def add_mask(self, value: str) -> bool:
        """What `::add-mask::` gives: the value and each of its lines. False where it is blank (a warning then)."""

    def add_value(self, value: str) -> None:
        """A token, password or other single value as it is."""

    def add_pattern(self, pattern: str) -> bool:
        """A mask hint of type `regex`, as pattern and as value. False where the pattern can't be compiled."""

    def take_added(self) -> tuple[str, ...]:
        """Values added with `add_mask` or `add_value` since the last call: what a server must hear first."""

    def mask(self, data: bytes) -> bytes:
        """`data` masked as a whole."""

    def mask_text(self, text: str) -> str:
        """The same for text."""

    def hides(self, text: str) -> bool:
        """Whether masking changes `text`: a job output that holds a secret is dropped (M11)."""

    def stream(self) -> MaskStream:
        """A reader of its own, for one step's output."""


class MaskStream:
    """Masks bytes as they come. After `flush` it may be used again."""

    def feed(self, data: bytes) -> bytes:
        """The masked bytes that are sure now."""

    def flush(self) -> bytes:
        """The rest: nothing more will come."""


def masker_for(claim: Claim) -> Masker:
    """The masks that a claim brings: secrets, hints, tokens and the forms that git sees of them."""


def mask_event_texts(masker: Masker, texts: Iterable[str]) -> tuple[str, ...]:
    """Each text masked."""
