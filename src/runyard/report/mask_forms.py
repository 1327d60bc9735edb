"""The forms of a secret that are hidden beside the secret itself (job-semantics 13.2).

Rule kept: exactly these forms and no others. What a tool could make of a secret has no end; a list that people can
know is worth more than one that guesses.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_JSON_SPECIAL = re.compile('["\\\\\x00-\x1f\x85\u2028\u2029]')
_JSON_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_XML = str.maketrans({"<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;", "&": "&amp;"})
_SHORTEST_POWERSHELL_PART = 6

_WORDS = """
admin build bash cache ci debug default deploy dev docker error fail failed failure false github git home info
latest linux local localhost main master node none npm null ok origin pass password pip prod production public
push python release root run runner secret secrets staging start step success test tests token true ubuntu
user warning yes
"""

COMMON_WORDS = frozenset(_WORDS.split())
"""Words that stand in nearly every log; a secret that is one of them hides more than it protects."""


def derived_forms(value: str) -> tuple[str, ...]:
    """`value` and every encoding of it that is masked as well, without empty ones and duplicates."""
    forms = dict.fromkeys((value,))
    forms.update(dict.fromkeys(_base64_forms(value)))
    for encode in _ENCODERS:
        forms[encode(value)] = None
    forms.pop("", None)
    return tuple(forms)


def lines_of(value: str) -> Iterator[str]:
    """The lines of a value, trimmed, without empty ones."""
    for line in _LINE_ENDS.split(value):
        if trimmed := line.strip():
            yield trimmed


def with_line_ends(form: str) -> tuple[str, ...]:
    """A form of several lines as a pipe and as a terminal print it; any other form alone."""
    if "\n" not in form and "\r" not in form:
        return (form,)
    by_line_feed = _LINE_ENDS.sub("\n", form)
    return by_line_feed, by_line_feed.replace("\n", "\r\n")


def weakness(value: str) -> str | None:
    """Why a secret masks badly (`short` or `common`), or None. For warnings; never shows the value."""
    text = value.strip()
    if not text:
        return None
    if len(text) < 4:
        return "short"
    return "common" if text.lower() in COMMON_WORDS else None


def _base64_forms(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogateescape")
    for dropped in range(3):
        yield base64.b64encode(data[dropped:]).decode("ascii")


def _quote_escape(value: str) -> str:
    return value.replace('"', '\\"')


def _expression_escape(value: str) -> str:
    return value.replace("'", "''")


def _json_body(value: str) -> str:
    return _JSON_SPECIAL.sub(lambda found: _JSON_SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", value)


def _uri_data(value: str) -> str:
    return quote(value, safe="", errors="surrogateescape")


def _xml_escape(value: str) -> str:
    return value.translate(_XML)


def _without_quotes(value: str) -> str:
    wrapped = len(value) > 8 and value.startswith('"') and value.endswith('"')
    return value[1:-1] if wrapped else ""


def _before_ampersand(value: str) -> str:
    end = value.find("&+") + 2 if "&+" in value else value.rfind("&") + 1
    return value[:end] if end >= _SHORTEST_POWERSHELL_PART else ""


def _after_ampersand(value: str) -> str:
    if "&" not in value:
        return ""
    start = value.find("&+") + 3 if "&+" in value else value.rfind("&") + 1
    part = value[start:]
    return part if len(part) >= _SHORTEST_POWERSHELL_PART else ""


_ENCODERS: tuple[Callable[[str], str], ...] = (
    _quote_escape,
    _expression_escape,
    _json_body,
    _uri_data,
    _xml_escape,
    _without_quotes,
    _before_ampersand,
    _after_ampersand,
)
