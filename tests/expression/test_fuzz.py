"""Whatever the text: only ExpressionError comes out, and nothing that was read right changes by being written again."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.expression import (
    STRICT_GITHUB,
    TEMPLATE,
    ExpressionError,
    equals,
    evaluate,
    evaluate_template,
    evaluate_text,
    greater,
    parse,
    parse_text,
    source,
    wrap_condition,
)
from runyard.job import InsertToken

CONTEXTS: dict[str, Any] = {
    "github": {"ref": "refs/heads/main", "event": {"a": [1, {"b": "x"}], "n": None}},
    "env": {"A": "1"},
    "matrix": [1, [2, {"c": 3}], "x"],
}
PIECES = st.sampled_from(
    [
        *"()[],.*!<>= &|'\"-+0123456789eE{}:$\n\t\\",
        "==", "!=", "&&", "||", "<=", ">=", "'a'", "''", "'{0}'", "null", "true", "false", "NaN", "Infinity", "0x1F",
        "github", ".ref", "env", "matrix", "contains(", "format(", "join(", "toJSON(", "fromJSON(", "case(", "always()",
        "['event']", ".*", "[0]", "'[1,{\"a\":2}]'", "${{", "}}", "insert", "😊", "\x85",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def _check(error: ExpressionError, text: str) -> None:
    assert error.kind in {"lexing", "parsing", "evaluation"}
    assert error.position is None or 1 <= error.position <= 2 * len(text) + 1


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_reading_and_evaluating_any_text(text: str) -> None:
    try:
        tree = parse(text)
        again = source(tree)
        first = evaluate(tree, CONTEXTS, {"always": lambda _: True})
        assert repr(evaluate(parse(again), CONTEXTS, {"always": lambda _: True})) == repr(first)
    except ExpressionError as error:
        _check(error, text)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.booleans())
def test_scanning_any_text(text: str, is_key: bool) -> None:
    try:
        token = parse_text(text, is_key=is_key)
        if not isinstance(token, InsertToken):
            evaluate_template(token, CONTEXTS, {"always": lambda _: True})
        wrap_condition(text)
    except ExpressionError:
        pass


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_json_survives_a_round_trip(value: Any) -> None:
    text = evaluate_text("toJSON(x)", {"x": value}, options=TEMPLATE)
    back = evaluate_text("toJSON(fromJSON(x))", {"x": text}, options=STRICT_GITHUB)
    again = evaluate_text("toJSON(fromJSON(x))", {"x": back}, options=STRICT_GITHUB)
    assert back == again
    assert json.loads(text) is not Ellipsis


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="[]{}:,'\"/*\\ \n0123456789.eExXuabNaInfinity-+", max_size=40), st.booleans())
def test_any_text_as_json(text: str, lenient: bool) -> None:
    options = STRICT_GITHUB if lenient else TEMPLATE
    try:
        evaluate_text("toJSON(fromJSON(x))", {"x": text}, options=options)
    except ExpressionError as error:
        _check(error, "fromJSON(x))")


@settings(max_examples=100, deadline=None)
@given(JSON, JSON)
def test_comparing_is_lawful(left: Any, right: Any) -> None:
    assert equals(left, right) == equals(right, left)
    assert not (greater(left, right) and greater(right, left))
    if isinstance(left, str) and isinstance(right, str):
        assert equals(left, right) + greater(left, right) + greater(right, left) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "(" * 21_000,
        "!" * 21_000,
        "a" + "." * 20_000,
        "a" + "[0" * 10_000,
        "'" * 20_999,
        "f(" * 10_000,
        "1" * 21_000,
        "a" + "[*]" * 6_900,
        "format('" + "{{" * 10_000 + "')",
        "format('" + "{0:" * 6_000 + "')",
        "é" * 21_000,
        "&&".join("a" for _ in range(7_000)),
    ],
    ids=range(12),
)
def test_long_texts_end(text: str) -> None:
    try:
        value = evaluate_text(text, {"a": 1})
        assert not isinstance(value, float) or not math.isnan(value)
    except ExpressionError:
        pass


@pytest.mark.timeout(20)
def test_long_json_ends() -> None:
    for text in (
        "/*" * 100_000,
        "/" * 200_000,
        "'" + "\\'" * 100_000,
        "{a:" * 100_000,
        "0" * 200_000,
        "//\n" * 100_000,
    ):
        with pytest.raises(ExpressionError):
            evaluate_text("fromJSON(x)", {"x": text + "z!"}, options=STRICT_GITHUB)
