"""Coercion, comparison, look-ups and the functions (job-semantics 1.5 to 1.12)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runyard.expression import (
    ExactObject,
    ExpressionError,
    FoldedObject,
    Looked,
    Options,
    evaluate,
    evaluate_text,
    is_true,
    kind_of,
    parse,
    source,
    to_number,
    to_text,
)

THINGS: dict[str, Any] = {
    "a": [1, "two", None, [3]],
    "o": {"Key": "v", "n": {"x": 1}, "0": "zero", "": "empty", "NaN": "nan", "*": "star"},
    "list": [{"a": 1, "0": "zero"}, {"A": None}, {}, "s", [10, 20], 5],
    "same": {"x": 1},
}


def value(text: str, **contexts: Any) -> Any:
    return evaluate_text(text, {**THINGS, **contexts})


FACTS: dict[str, Any] = {
    # 1.4
    "1 < 2 < 3": True,
    "'a' && 'b'": "b",
    "0 || ''": "",
    "!'false'": False,
    "false && nope.x": ExpressionError,
    # 1.5
    "!' '": False,
    "!a.*.nope": False,
    "!-0": True,
    "!NaN": True,
    # 1.6
    "null == 0": True,
    "null == false": True,
    "true == 1": True,
    "true == 'true'": False,
    "'' == false": True,
    "'abc' == 0": False,
    "NaN == NaN": False,
    "NaN != NaN": True,
    "NaN >= NaN": False,
    "same == same": True,
    "same != same": False,
    "same >= same": True,
    "same > same": False,
    "a == null": False,
    "a == 'Array'": False,
    "'0x10' == 16": True,
    "' 1 ' == 1": True,
    "'infinity' == Infinity": True,
    "-infinity == '-INFINITY'": True,
    "true > false": True,
    "'b' > 'A'": True,
    "null <= null": True,
    "'😊' > '｡'": False,
    "'Ü' == 'ü'": True,
    "'Σ' == 'ς'": True,
    "'İ' == 'i'": False,
    "'ı' == 'I'": False,
    "'𐐨' == '𐐀'": True,
    "'ſ' == 'S'": False,
    "'ᾳ' == 'ᾼ'": True,
    "'é' == 'e\u0301'": False,
    # 1.7
    "a['1']": "two",
    "a[null]": 1,
    "a[true]": "two",
    "a['0x1']": "two",
    "a[1.9]": "two",
    "a[4]": None,
    "a[-0.5]": None,
    "a[NaN]": None,
    "a[Infinity]": None,
    "a['']": 1,
    "a.x": None,
    "o.KEY": "v",
    "o['kEY']": "v",
    "o[0]": "zero",
    "o[null]": "empty",
    "o[NaN]": "nan",
    "o['*']": "star",
    "o[a]": None,
    "o.nope.deeper.still": None,
    "o.Key.x": None,
    "o.*": ["v", {"x": 1}, "zero", "empty", "nan", "star"],
    "a[*]": [1, "two", None, [3]],
    "'x' && o.Key.*": [],
    "list.*.a": [1, None],
    "list.*[0]": ["zero", 10],
    "list.*['1']": [20],
    "list.*.*": [1, "zero", None, 10, 20],
    "list.*[a]": [],
    "fromJSON(toJSON(list.*.a))[0]": 1,
    "o.n[*]": [1],
    "O.N.X": 1,
    # 1.8
    "contains('Hello', 'ELL')": True,
    "contains(123, 2)": True,
    "contains('x', a)": False,
    "contains(a, 'TWO')": True,
    "contains(a, a[3])": True,
    "contains(list.*.a, null)": True,
    "contains(fromJSON('[]'), fromJSON('not json'))": False,
    "contains('ΣΑΣ', 'σας')": True,
    "contains('', '')": True,
    "startsWith('abc', '')": True,
    "startsWith(true, 'TR')": True,
    "endsWith(1.50, '.5')": True,
    "startsWith('a', a)": False,
    "join(a)": "1,two,,Array",
    "join(a, ' - ')": "1 - two -  - Array",
    "join(a, o)": "1,two,,Array",
    "join('x', ', ')": "x",
    "join(fromJSON('[1]'), fromJSON('not json'))": "1",
    "join(null)": "",
    "case(true, 'y', fromJSON('not json'))": "y",
    # 1.9
    "format('{0}{0:}{00}', 'x')": "xxx",
    "format('{0}', a, fromJSON('not json'))": "Array",
    "format('{0} {1}', o, null)": "Object ",
    "format('{{}}')": "{}",
    "format('{0:x}', a)": ExpressionError,
    "format('{}', 1)": ExpressionError,
    "format('{ 0 }', 1)": ExpressionError,
    "format('{-1}', 1)": ExpressionError,
    "format('{a}', 1)": ExpressionError,
    "format('{256}', 1)": ExpressionError,
    "format('{1}', 1)": ExpressionError,
    # 1.10
    "toJSON(NaN)": "NaN",
    "toJSON(-0)": "0",
    "toJSON(1e20)": "1E+20",
    'toJSON(fromJSON(\'{"B":[],"a":{}}\'))': '{\n  "B": [],\n  "a": {}\n}',
    "toJSON('/<>&\x7f\u0080é')": '"/<>&\x7f\u0080é"',
    "toJSON('\x85\u2028\u2029\x01\x1f')": '"\\u0085\\u2028\\u2029\\u0001\\u001f"',
    "toJSON('\t\n\x08\x0c\r')": '"\\t\\n\\b\\f\\r"',
}


@pytest.mark.parametrize(("text", "expected"), FACTS.items(), ids=range(len(FACTS)))
def test_fact(text: str, expected: Any) -> None:
    if expected is ExpressionError:
        with pytest.raises(ExpressionError):
            value(text)
        return
    found = value(text)
    assert (found, kind_of(found)) == (expected, kind_of(expected))


def test_kinds_and_coercions_of_plain_values() -> None:
    values: list[Any] = [None, True, 1, 1.5, "x", [], {}]
    assert [kind_of(each) for each in values] == [
        "Null",
        "Boolean",
        "Number",
        "Number",
        "String",
        "Array",
        "Object",
    ]
    assert [to_text(each) for each in values] == [
        "",
        "true",
        "1",
        "1.5",
        "x",
        "Array",
        "Object",
    ]
    falsy: list[Any] = [None, False, 0, 0.0, -0.0, math.nan, ""]
    truthy: list[Any] = [True, 1, -0.5, "0", " ", [], {}]
    assert not any(map(is_true, falsy))
    assert all(map(is_true, truthy))
    assert math.isnan(to_number([]))
    assert to_number(2**60 + 1) == float(2**60)
    with pytest.raises(TypeError):
        kind_of(object())


def test_integers_beyond_doubles_compare_as_doubles() -> None:
    assert value("big == other", big=2**53, other=2**53 + 1)
    assert value("huge == Infinity", huge=10**400)


def test_a_folded_object_answers_as_a_plain_one() -> None:
    plain = {"Key": 1, "ß": 2, "kEY2": 3}
    for text in ("x.key", "x.KEY2", "x['ß']", "x['SS']", "x.none"):
        assert evaluate_text(text, {"x": FoldedObject(plain)}) == evaluate_text(text, {"x": plain})
    assert FoldedObject([("A", 1), ("a", 2)]).key_of("a") == "A"


def test_env_is_exact_wherever_it_goes() -> None:
    env = {"Foo": "1"}
    assert evaluate_text("(env && env).foo", {"env": env}) is None
    assert evaluate_text("(env && env).Foo", {"env": env}) == "1"
    assert evaluate_text("env == env", {"env": env})
    assert evaluate_text("env.foo", {"env": env}, options=Options(env_ignores_case=True)) == "1"
    assert evaluate_text("x.env.foo", {"x": {"env": env}}) == "1"
    assert evaluate_text("x.foo", {"x": ExactObject(env)}) is None


def test_contexts_are_not_changed() -> None:
    contexts = {"x": [{"a": [1, 2]}], "env": {"A": "1"}}
    before = repr(contexts)
    evaluate_text("toJSON(x.*.a) && x.*.a.* && env.A", contexts)
    assert repr(contexts) == before


def test_functions_are_given_values_and_their_errors_get_a_place() -> None:
    seen: list[Any] = []

    def probe(arguments: Any) -> str:
        seen.append(list(arguments))
        return "found"

    assert evaluate_text("PROBE(1, o.Key) == 'FOUND'", THINGS, {"Probe": probe})
    assert seen == [[1, "v"]]

    def broken(_: Any) -> str:
        raise ExpressionError("evaluation", "no files here")

    with pytest.raises(ExpressionError, match="no files here") as caught:
        evaluate_text("true && hashFiles('x')", {}, {"hashFiles": broken})
    assert caught.value.position == 9


def test_memory_is_bounded_before_it_is_taken() -> None:
    text = "x" * 100_000
    with pytest.raises(ExpressionError, match="maximum allowed memory"):
        evaluate_text(f"format('{'{0}' * 200}', x)", {"x": text})
    with pytest.raises(ExpressionError, match="maximum allowed memory"):
        evaluate_text("join(x, y)", {"x": [""] * 1000, "y": text})
    with pytest.raises(ExpressionError, match="maximum allowed memory"):
        evaluate_text("x", {"x": "x" * 600_000})
    assert evaluate_text("x == x && x == x && x == x && x == x && x == x", {"x": text})


def test_nothing_is_too_deep_to_answer() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ExpressionError, match="nested deeper"):
        evaluate_text("toJSON(x)", {"x": deep})
    with pytest.raises(ExpressionError, match="nested deeper"):
        evaluate_text("fromJSON(x)", {"x": "[" * 9000 + "]" * 9000})


def test_a_trace_tells_what_was_looked_at() -> None:
    contexts = {"github": {"ref": "main", "event": {"n": 1}}, "matrix": {"os": "linux"}}
    trace: list[Looked] = []
    tree = parse("success() && (github.ref == 'x' || contains(github.event, matrix['os']) || matrix[github.ref])")
    assert evaluate(tree, contexts, {"success": lambda _: True}, trace=trace) is None
    assert [(each.text, each.value) for each in trace] == [
        ("success()", True),
        ("github.ref", "main"),
        ("github.event", {"n": 1}),
        ("github.ref", "main"),
        ("matrix[github.ref]", None),
    ]


def test_a_trace_changes_no_answer() -> None:
    for text in FACTS:
        tree = parse(text)
        outcomes: list[str] = []
        traces: tuple[list[Looked] | None, ...] = (None, [])
        for trace in traces:
            try:
                outcomes.append(repr(evaluate(tree, THINGS, trace=trace)))
            except ExpressionError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], source(tree)
