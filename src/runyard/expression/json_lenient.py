"""JSON as GitHub's `fromJSON` reads it by default: with what people get away with there (job-semantics 1.11).

Comments, trailing commas, single quotes, bare keys, NaN and infinities, `.5`, hex and octal numbers pass, and what
follows the first complete value is not read. Only used under the compatibility switch (deviation D8).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from runyard.expression.json_text import JsonError
from runyard.expression.numbers import normal
from runyard.expression.ordinal import fold

if TYPE_CHECKING:
    from runyard.job.template import Json

MAX_DEPTH: Final = 64
_SKIP = re.compile(r"(?:[ \t\r\n\x0b\x0c\xa0\u2028\u2029\ufeff]|//[^\r\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_WORD = re.compile(r"[A-Za-z0-9_$]+")
_NUMBER_TEXT = re.compile(r"[-+.0-9A-Za-z]+")
_DECIMAL = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_HEX = re.compile(r"0[xX]([0-9a-fA-F]{1,16})\Z")
_OCTAL = re.compile(r"0[0-7]{1,21}\Z")
_WORDS: Final[dict[str, Json]] = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
}
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "\\": "\\", "/": "/", '"': '"', "'": "'"}
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in "'\""}
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")


def from_lenient_json(text: str) -> Json:
    """The first value of a text. Raises JsonError, without any of the text."""
    return _Reader(text).value(0)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Json:
        character = self._peek()
        if not character:
            raise self._error("a value was expected, the text ended")
        if character in "[{":
            if depth >= MAX_DEPTH:
                raise self._error(f"nested deeper than {MAX_DEPTH} levels")
            return self._array(depth + 1) if character == "[" else self._object(depth + 1)
        if character in "'\"":
            return self._string(character)
        if character in "-.0123456789":
            return self._number()
        word = _WORD.match(self._text, self._at)
        if word is None or word[0] not in _WORDS:
            raise self._error("a value was expected")
        self._at = word.end()
        return _WORDS[word[0]]

    def _array(self, depth: int) -> list[Json]:
        self._at += 1
        items: list[Json] = []
        while self._peek() != "]":
            items.append(self.value(depth))
            if not self._more("]"):
                break
        self._at += 1
        return items

    def _object(self, depth: int) -> dict[str, Json]:
        self._at += 1
        found: dict[str, Json] = {}
        names: dict[str, str] = {}
        while self._peek() != "}":
            key = self._key()
            if self._peek() != ":":
                raise self._error("':' was expected")
            self._at += 1
            found[names.setdefault(fold(key), key)] = self.value(depth)
            if not self._more("}"):
                break
        self._at += 1
        return found

    def _more(self, end: str) -> bool:
        """Whether another item may follow; stands on the closing bracket where not."""
        character = self._peek()
        if character == ",":
            self._at += 1
            return True
        if character == end:
            return False
        raise self._error(f"',' or '{end}' was expected")

    def _key(self) -> str:
        character = self._peek()
        if character and character in "'\"":
            return self._string(character)
        word = _WORD.match(self._text, self._at)
        if word is None:
            raise self._error("a key was expected")
        self._at = word.end()
        return word[0]

    def _string(self, quote: str) -> str:
        pieces: list[str] = []
        self._at += 1
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            if plain is not None:
                pieces.append(plain[0])
                self._at = plain.end()
            if self._at >= len(self._text):
                raise self._error("the text ended within a string")
            self._at += 1
            if self._text[self._at - 1] == quote:
                return _joined("".join(pieces))
            pieces.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter == "u":
            digits = _UNICODE.match(self._text, self._at)
            if digits is None:
                raise self._error("four hexadecimal digits were expected")
            self._at += 4
            return chr(int(digits[0], 16))
        if letter not in _ESCAPES:
            raise self._error("an unknown escape")
        return _ESCAPES[letter]

    def _number(self) -> float:
        found = _NUMBER_TEXT.match(self._text, self._at)
        raw = found[0] if found else ""
        value = _number_value(raw)
        if value is None:
            raise self._error("a number was expected")
        self._at += len(raw)
        return value

    def _peek(self) -> str:
        skipped = _SKIP.match(self._text, self._at)
        if skipped is not None:
            self._at = skipped.end()
        return self._text[self._at : self._at + 1]

    def _error(self, what: str) -> JsonError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        return JsonError(f"{what} (line {line}, column {column})")


def _number_value(raw: str) -> float | None:
    if raw == "-Infinity":
        return -math.inf
    if raw[:1] == "0" and raw[1:2] not in {"", ".", "e", "E"}:
        if hexadecimal := _HEX.match(raw):
            return normal(int(hexadecimal[1], 16))
        return normal(int(raw, 8)) if _OCTAL.match(raw) else None
    return normal(float(raw)) if _DECIMAL.match(raw) else None


def _joined(text: str) -> str:
    """Surrogates that escapes wrote in two halves, made one character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
