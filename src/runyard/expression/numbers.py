"""Numbers as GitHub has them: text to IEEE double and back (job-semantics 1.3, 1.6).

A number is a Python float, or an int where it is whole and at most 2**53, so that whole numbers print as JSON people
expect; both compare and print as the same double.
"""

from __future__ import annotations

import math
import re
from typing import Final

WHITESPACE: Final = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What .NET takes for white space; Python's own idea of it differs (U+001C to U+001F)."""

_EXACT = 2**53
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_HEX = re.compile(r"0x0*([0-9a-fA-F]+)\Z")
_OCTAL = re.compile(r"0o0*([0-7]+)\Z")
_INFINITY = re.compile(r"([+-]?)infinity\Z", re.IGNORECASE | re.ASCII)


def parse_number(text: str) -> float:
    """The number a text stands for; NaN where it stands for none, 0 where it is blank."""
    text = text.strip(WHITESPACE)
    if not text:
        return 0
    if _DECIMAL.match(text):
        return normal(float(text))
    if found := _HEX.match(text):
        return _signed(int(found[1], 16)) if len(found[1]) <= 8 else math.nan
    if found := _OCTAL.match(text):
        return _signed(int(found[1], 8)) if len(found[1]) <= 11 else math.nan
    if found := _INFINITY.match(text):
        return -math.inf if found[1] == "-" else math.inf
    return math.nan


def normal(value: float) -> float:
    """The same number as an int where it is whole and exact, else as a double; huge integers round."""
    if isinstance(value, int):
        if -_EXACT <= value <= _EXACT:
            return value
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if value.is_integer() and -_EXACT <= value <= _EXACT and (value or math.copysign(1, value) > 0):
        return int(value)
    return value


def number_text(value: float) -> str:
    """15 significant digits, as `G15` of .NET's invariant culture; negative zero is `0`."""
    if isinstance(value, int) and -(10**15) < value < 10**15:
        return str(value)
    value = float(normal(value))
    if value != value:  # noqa: PLR0124 - NaN is the one number that differs from itself
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    return f"{value:.15g}".replace("e", "E")


def _signed(value: int) -> float:
    """The bits of a 32-bit word read as a signed number."""
    if value > 0xFFFFFFFF:
        return math.nan
    return value - 0x100000000 if value > 0x7FFFFFFF else value
