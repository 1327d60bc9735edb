"""Text to tokens, one at a time, each judged by what stood before it (job-semantics 1.1, 1.2).

What a `.` or a `(` means depends on the token before, so the lexer remembers that one and the brackets still open.
"""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import Final, NamedTuple

from runyard.expression.numbers import WHITESPACE, parse_number


class TokenKind(Enum):
    """What a token is."""

    GROUP = "("
    CALL = "call ("
    INDEX = "["
    GROUP_END = ")"
    CALL_END = "call )"
    INDEX_END = "]"
    SEPARATOR = ","
    DOT = "."
    WILDCARD = "*"
    NOT = "!"
    OPERATOR = "operator"
    CONSTANT = "constant"
    PROPERTY = "property"
    FUNCTION = "function"
    NAME = "name"


class Token(NamedTuple):
    """A token: `raw` as written, `value` of a constant, `place` its index in the text, `legal` if it may stand here."""

    kind: TokenKind
    raw: str
    place: int
    legal: bool
    value: str | bool | float | None = None


class Malformed(Exception):  # noqa: N818 - it ends the reading of one text and never leaves the room
    """No token starts here."""

    def __init__(self, raw: str, index: int) -> None:
        super().__init__(raw)
        self.raw = raw
        self.index = index


_K = TokenKind
_START: Final = frozenset({None, _K.SEPARATOR, _K.GROUP, _K.CALL, _K.INDEX, _K.NOT, _K.OPERATOR})
_VALUE_END: Final = frozenset({_K.GROUP_END, _K.CALL_END, _K.INDEX_END, _K.WILDCARD, _K.PROPERTY, _K.NAME})
_OPERAND_END: Final = _VALUE_END | {_K.CONSTANT}

_AFTER: Final[dict[TokenKind, frozenset[TokenKind | None]]] = {
    _K.GROUP: _START,
    _K.NOT: _START,
    _K.CONSTANT: _START,
    _K.FUNCTION: _START,
    _K.NAME: _START,
    _K.CALL: frozenset({_K.FUNCTION}),
    _K.INDEX: _VALUE_END,
    _K.DOT: _VALUE_END,
    _K.WILDCARD: frozenset({_K.INDEX, _K.DOT}),
    _K.PROPERTY: frozenset({_K.DOT}),
    _K.GROUP_END: _OPERAND_END,
    _K.INDEX_END: _OPERAND_END,
    _K.SEPARATOR: _OPERAND_END,
    _K.OPERATOR: _OPERAND_END,
    _K.CALL_END: _OPERAND_END | {_K.CALL},
}
_CLOSES: Final = {_K.GROUP_END: _K.GROUP, _K.CALL_END: _K.CALL, _K.INDEX_END: _K.INDEX}
_OPENS: Final = frozenset(_CLOSES.values())
_SINGLE: Final = {"[": _K.INDEX, "]": _K.INDEX_END, ",": _K.SEPARATOR, "*": _K.WILDCARD}

_BLANKS = re.compile(f"[{WHITESPACE}]*")
_WORD_REST = re.compile(rf"[^()\[\],.!><=&|{WHITESPACE}]*")
_NUMBER_REST = re.compile(rf"[^()\[\],!><=&|{WHITESPACE}]*")
_STRING = re.compile(r"'((?:[^']|'')*)'")
_OPERATOR = re.compile(r"!=|>=|<=|==|&&|\|\||[!><]")
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_CONSTANTS: Final[dict[str, bool | float | None]] = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
}


class Lexer:
    """The tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._last: TokenKind | None = None
        self.open: list[TokenKind] = []

    def next(self) -> Token | None:
        """The next token, None at the end; raises Malformed."""
        text = self._text
        self._at = _end(_BLANKS, text, self._at)
        if self._at >= len(text):
            return None
        character = text[self._at]
        if (single := _SINGLE.get(character)) is not None:
            return self._token(single, 1)
        if character == "(":
            return self._token(_K.CALL if self._last is _K.FUNCTION else _K.GROUP, 1)
        if character == ")":
            return self._token(_K.CALL_END if self.open and self.open[-1] is _K.CALL else _K.GROUP_END, 1)
        if character == "'":
            return self._string()
        if character in "!><=&|":
            return self._operator()
        if character == "." and self._last not in _START:
            return self._token(_K.DOT, 1)
        if character in "+-.0123456789":
            return self._number()
        return self._keyword()

    def _token(self, kind: TokenKind, length: int, value: str | bool | float | None = None) -> Token:
        legal = self._last in _AFTER[kind]
        if kind is _K.SEPARATOR:
            legal = legal and bool(self.open) and self.open[-1] is _K.CALL
        elif (opened := _CLOSES.get(kind)) is not None:
            legal = legal and bool(self.open) and self.open[-1] is opened
            if legal:
                self.open.pop()
        elif kind in _OPENS:
            self.open.append(kind)
        start, self._at, self._last = self._at, self._at + length, kind
        return Token(kind, self._text[start : self._at], start, legal, value)

    def _string(self) -> Token:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise Malformed(self._text[self._at :], self._at)
        return self._token(_K.CONSTANT, found.end() - self._at, found[1].replace("''", "'"))

    def _operator(self) -> Token:
        found = _OPERATOR.match(self._text, self._at)
        if found is None:
            raise Malformed(self._text[self._at : _end(_WORD_REST, self._text, self._at + 1)], self._at)
        return self._token(_K.NOT if found[0] == "!" else _K.OPERATOR, len(found[0]))

    def _number(self) -> Token:
        raw = self._text[self._at : _end(_NUMBER_REST, self._text, self._at + 1)]
        value = parse_number(raw)
        if math.isnan(value):
            raise Malformed(raw, self._at)
        return self._token(_K.CONSTANT, len(raw), value)

    def _keyword(self) -> Token:
        end = _end(_WORD_REST, self._text, self._at + 1)
        raw = self._text[self._at : end]
        if not _KEYWORD.match(raw):
            raise Malformed(raw, self._at)
        if self._last is _K.DOT:
            return self._token(_K.PROPERTY, len(raw))
        if raw in _CONSTANTS:
            return self._token(_K.CONSTANT, len(raw), _CONSTANTS[raw])
        called = self._text.startswith("(", _end(_BLANKS, self._text, end))
        return self._token(_K.FUNCTION if called else _K.NAME, len(raw))


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where a pattern that may match nothing ends."""
    found = pattern.match(text, start)
    return found.end() if found else start
