"""Looking into templates that were checked against the schema.

A place that was wrong holds a null; these readers pass over it, so that one mistake does not hide the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import BooleanToken, Entry, MappingToken, NullToken, SequenceToken, Template, TextToken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.job import Position


def fields(token: Template | None) -> dict[str, Template]:
    """The plain keys of a mapping with their values; empty for anything else. Missing values are left out."""
    if not isinstance(token, MappingToken):
        return {}
    return {key.value: value for key, value in token.entries if isinstance(key, TextToken)}


def entries(token: Template | None) -> Iterator[tuple[TextToken, Template]]:
    """The plain keys of a mapping, as tokens, with their values."""
    if isinstance(token, MappingToken):
        for key, value in token.entries:
            if isinstance(key, TextToken):
                yield key, value


def is_plain(token: Template | None) -> bool:
    """Whether a mapping has plain keys alone."""
    return isinstance(token, MappingToken) and all(isinstance(entry.key, TextToken) for entry in token.entries)


def present(token: Template | None) -> Template | None:
    """The token, or None where nothing (or something wrong) was written."""
    return None if isinstance(token, NullToken) else token


def text_of(token: Template | None) -> str | None:
    """Plain text, or None."""
    return token.value if isinstance(token, TextToken) else None


def flag_of(token: Template | None) -> bool:
    """Whether a plain true was written."""
    return isinstance(token, BooleanToken) and token.value


def texts(token: Template | None) -> list[TextToken]:
    """The plain texts of one text or a list of them."""
    if isinstance(token, TextToken):
        return [token]
    if isinstance(token, SequenceToken):
        return [item for item in token.items if isinstance(item, TextToken)]
    return []


def place(token: Template | None) -> Position | None:
    """Where a token stands."""
    return None if token is None else token.at


def without(token: MappingToken, *names: str) -> MappingToken:
    """The mapping without some of its plain keys."""
    kept = [
        Entry(key, value) for key, value in token.entries if not (isinstance(key, TextToken) and key.value in names)
    ]
    return MappingToken(tuple(kept), token.at)
