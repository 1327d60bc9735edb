"""Numbers to text and back, against an independent reading of the rule with exact decimals (job-semantics 1.3, 1.6)."""

from __future__ import annotations

import decimal
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.expression import number_text, parse_number


def by_rule(value: float) -> str:
    """15 significant digits, half to even on the exact binary value; exponent form from 1e15 and below 1e-4."""
    if value == 0:
        return "0"
    rounded = decimal.Context(prec=15, rounding=decimal.ROUND_HALF_EVEN).create_decimal(decimal.Decimal(value))
    digits = "".join(map(str, rounded.as_tuple().digits)).rstrip("0") or "0"
    exponent = rounded.adjusted()
    sign = "-" if value < 0 else ""
    if -5 < exponent < 15:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        rest = digits[exponent + 1 :]
        return f"{sign}{whole}{'.' + rest if rest else ''}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}E{'+' if exponent > 0 else '-'}{abs(exponent):02d}"


TABLE = [
    (0.0001, "0.0001"),
    (0.00001, "1E-05"),
    (123456789012345, "123456789012345"),
    (999999999999999, "999999999999999"),
    (1e15, "1E+15"),
    (1234567890123456, "1.23456789012346E+15"),
    (-0.0, "0"),
    (0.1, "0.1"),
    (0.1 + 0.2, "0.3"),
    (1 / 3, "0.333333333333333"),
    (2 / 3, "0.666666666666667"),
    (100.0, "100"),
    (3.10, "3.1"),
    (1e100, "1E+100"),
    (5e-324, "4.94065645841247E-324"),
    (1.7976931348623157e308, "1.79769313486232E+308"),
    (2**53, "9.00719925474099E+15"),
    (2**53 + 1, "9.00719925474099E+15"),
    (10**400, "Infinity"),
    (-(10**400), "-Infinity"),
    (math.inf, "Infinity"),
    (-math.inf, "-Infinity"),
    (math.nan, "NaN"),
]


@pytest.mark.parametrize(("value", "text"), TABLE)
def test_text_of_a_number(value: float, text: str) -> None:
    assert number_text(value) == text


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_text_of_any_double_follows_the_rule(value: float) -> None:
    assert number_text(value) == by_rule(value)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**53), 2**53), st.integers(-20, 20))
def test_text_of_decimal_numbers_follows_the_rule(digits: int, exponent: int) -> None:
    value = float(f"{digits}e{exponent}")
    assert number_text(value) == by_rule(value)
    assert number_text(digits) == by_rule(float(digits))


PARSED = [
    ("", 0.0),
    (" \t\n", 0.0),
    ("\x85\xa0 5 \u2028", 5.0),
    ("1.", 1.0),
    (".5", 0.5),
    ("+5", 5.0),
    ("-5", -5.0),
    ("1e3", 1000.0),
    ("1E-3", 0.001),
    ("1e400", math.inf),
    ("-1e400", -math.inf),
    ("0xFF", 255.0),
    ("0xff", 255.0),
    ("0xFFFFFFFF", -1.0),
    ("0x80000000", -2147483648.0),
    ("0x7FFFFFFF", 2147483647.0),
    ("0x0000000000001", 1.0),
    ("0o17", 15.0),
    ("0o37777777777", -1.0),
    ("Infinity", math.inf),
    ("infinity", math.inf),
    ("+INFINITY", math.inf),
    ("-infinity", -math.inf),
]
NO_NUMBER = [
    "abc",
    ".",
    "+",
    "1e",
    "e1",
    "1,000",
    "1_000",
    "0b1",
    "1f",
    "-0x1",
    "+0x1",
    "0X1",
    "0O7",
    "0x",
    "0o",
    "0o8",
    "0x1p2",
    "0x123456789",
    "0o40000000000",
    "Inf",
    "NaN",
    "1 2",
    "\x1c5",
    "٣",
    "1.2.3",
    "1-2",
]


@pytest.mark.parametrize(("text", "value"), PARSED)
def test_number_of_a_text(text: str, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", NO_NUMBER)
def test_text_that_is_no_number(text: str) -> None:
    assert math.isnan(parse_number(text))


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_the_same_double(value: float) -> None:
    assert parse_number(repr(value)) == value
