"""`fromJSON` in both modes (job-semantics 1.11, deviation D8)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runyard.expression import STRICT_GITHUB, TEMPLATE, ExpressionError, evaluate_text


def read(text: str, *, lenient: bool = False) -> Any:
    return evaluate_text("fromJSON(x)", {"x": text}, options=STRICT_GITHUB if lenient else TEMPLATE)


LENIENT: dict[str, Any] = {
    "// a\n1": 1,
    "/* a * b **/ [1 /* c */, 2]": [1, 2],
    "[1, 2, ]": [1, 2],
    '{"a": 1, }': {"a": 1},
    "['it\\'s', \"x\"]": ["it's", "x"],
    "{a: 1, 'b': 2, $c_1: 3}": {"a": 1, "b": 2, "$c_1": 3},
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "[.5, -.5, 5.]": [0.5, -0.5, 5],
    "0x1F": 31,
    "017": 15,
    "[-017, 0.5, 0e1]": [-17, 0.5, 0],
    "1 2": 1,
    '{"a":1} x': {"a": 1},
    "[1] nonsense [": [1],
    "'a\nb'": "a\nb",
}


@pytest.mark.parametrize("text", LENIENT)
def test_D8_by_default_only_json_is_json(text: str) -> None:
    with pytest.raises(ExpressionError, match="Error parsing fromJSON") as caught:
        read(text)
    assert (caught.value.kind, caught.value.position) == ("evaluation", 1)


@pytest.mark.parametrize(("text", "expected"), LENIENT.items())
def test_D8_under_the_switch_github_is_lenient(text: str, expected: Any) -> None:
    assert read(text, lenient=True) == expected


def test_D8_nan_in_both_modes() -> None:
    assert math.isnan(read("NaN", lenient=True))
    with pytest.raises(ExpressionError):
        read("NaN")


BOTH: dict[str, Any] = {
    "null": None,
    " true ": True,
    "-0": 0,
    "12": 12,
    "1.50": 1.5,
    "1e3": 1000,
    "9007199254740993": 9007199254740992,
    '"2024-01-31T00:00:00Z"': "2024-01-31T00:00:00Z",
    '"\\u00e9\\ud83d\\ude0a\\/"': "é😊/",
    "[]": [],
    '{"a": {"b": [null]}}': {"a": {"b": [None]}},
}


@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
@pytest.mark.parametrize(("text", "expected"), BOTH.items())
def test_json_reads_the_same_in_both_modes(text: str, expected: Any, lenient: bool) -> None:
    assert read(text, lenient=lenient) == expected


@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "[",
        "{",
        '{"a"',
        '{"a":',
        "[1",
        '"a',
        "[1 2]",
        "{1}",
        "nope",
        "tru",
        '"\\x"',
        '"\\u12"',
        "-",
        "08",
        "00.5",
        "-0x10",
        "1e",
        "/",
    ],
)
def test_what_is_wrong_in_both_modes(text: str, lenient: bool) -> None:
    with pytest.raises(ExpressionError):
        read(text, lenient=lenient)


def test_duplicate_keys_ignore_case() -> None:
    text = '{"A": 1, "b": 2, "a": 3}'
    assert read(text) == {"A": 1, "b": 2}
    assert read(text, lenient=True) == {"A": 3, "b": 2}


def test_depth_has_a_limit_in_each_mode() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert read(nested(100)) is not None
    assert read(nested(64), lenient=True) is not None
    for text, lenient in ((nested(101), False), (nested(65), True)):
        with pytest.raises(ExpressionError, match="nested deeper"):
            read(text, lenient=lenient)


def test_a_message_names_the_place_and_holds_nothing_of_the_text() -> None:
    for lenient in (False, True):
        with pytest.raises(ExpressionError, match=r"line 2, column \d+") as caught:
            read('{"password":\n hunter2}', lenient=lenient)
        assert "hunter2" not in caught.value.message
        assert "password" not in caught.value.message
