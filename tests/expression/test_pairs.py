"""The checkable pairs of job-semantics 22.1, rendered as `${{ }}` would be."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.expression import (
    ExpressionError,
    evaluate_condition,
    evaluate_template,
    parse_text,
    step_status_functions,
    wrap_condition,
)

CONTEXTS: dict[str, Any] = {"github": {"event": {}}, "env": {}, "strategy": {}}

RENDERED = {
    "E1": ("'ABC' == 'abc'", "true"),
    "E2": ("'true' == true", "false"),
    "E3": ("'1' == true", "true"),
    "E4": ("null == ''", "true"),
    "E5": ("'fromJSON(''3'')' == 3", "false"),
    "E6": ("'+5' == 5", "true"),
    "E7": ("'.5' == 0.5", "true"),
    "E8": ("0xFFFFFFFF", "-1"),
    "E9": ("1000000000000000", "1E+15"),
    "E10": ("fromJSON('1234567890123456')", "1.23456789012346E+15"),
    "E11": ("0.00001", "1E-05"),
    "E12": ("null > null", "false"),
    "E13": ("null >= null", "true"),
    "E14": ("fromJSON('[]') == fromJSON('[]')", "false"),
    "E15": ("3 > 2 > 1", "false"),
    "E16": ("!'' == true", "true"),
    "E17": ("'ς' == 'σ'", "true"),
    "E18": ("'a' < '['", "true"),
    "E19": ("'_' > 'a'", "true"),
    "E20": ("'ß' == 'SS'", "false"),
    "E21": ("fromJSON('[10,20]')['1']", "20"),
    "E22": ("fromJSON('[10,20]')[true]", "20"),
    "E23": ("fromJSON('[10,20]')[1.9]", "20"),
    "E24": ("fromJSON('[10,20]')[-1]", ""),
    "E25": ("""join(fromJSON('{"b":{"v":2},"a":{"v":1}}').*.v)""", "2,1"),
    "E26": ("""toJSON(fromJSON('[{"a":1},{},"s"]').*.a)""", "[\n  1\n]"),
    "E27": ("""format('{0}', fromJSON('[{"a":"x"},{"a":"y"}]').*.a[0])""", "Array"),
    "E28": ("""toJSON(fromJSON('{"z":1,"a":2}'))""", '{\n  "z": 1,\n  "a": 2\n}'),
    "E29": ("toJSON('a<b>&')", '"a<b>&"'),
    "E30": ("""join(fromJSON('{"a":1}'))""", ""),
    "E31": ("startsWith(fromJSON('[]'), 'arr')", "false"),
    "E32": ("""contains(fromJSON('["1"]'), 1)""", "true"),
    "E33": ("""contains(fromJSON('{"k":"v"}'), 'v')""", "false"),
    "E34": ("format('{{{0}}}', 7)", "{7}"),
    "E36": ("format('{0}', 'a', 'b')", "a"),
    "E37": ("""fromJSON('{"A":1}').a""", "1"),
    "E38": ("github.event.nope.deeper[0]", ""),
    "E41": ("'a' && 0 || 'b'", "b"),
    "E42": ("fromJSON('[]') && 'y'", "y"),
    "E43": ("case(false, 'a', 'b')", "b"),
    "E50": ("""join(fromJSON('[[1],{"a":1},null,true]'))""", "Array,Object,,true"),
}

ERRORS = {
    "E35": ("format('}a')", "evaluation"),
    "E39": ("True", "parsing"),
    "E40": ('"x"', "lexing"),
    "E44": ("case('x', 'a', 'b')", "evaluation"),
}


def render(expression: str, contexts: dict[str, Any] | None = None) -> str:
    token = parse_text(f"${{{{ {expression} }}}}")
    text = evaluate_template(token, CONTEXTS if contexts is None else contexts, want="string")
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(("expression", "expected"), RENDERED.values(), ids=RENDERED)
def test_rendered(expression: str, expected: str) -> None:
    assert render(expression) == expected


@pytest.mark.parametrize(("expression", "kind"), ERRORS.values(), ids=ERRORS)
def test_refused(expression: str, kind: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate_template(parse_text(f"${{{{ {expression} }}}}", contexts=CONTEXTS), CONTEXTS)
    assert caught.value.kind == kind


def test_E45_env_is_looked_up_as_written() -> None:
    assert render("env.foo", {"env": {"Foo": "1"}}) == ""
    assert render("env.Foo", {"env": {"Foo": "1"}}) == "1"
    assert render("ENV['foo'] || env.Foo", {"env": {"Foo": "1"}}) == "1"


def test_E46_env_holds_only_what_is_given() -> None:
    assert render("env.CI") == ""
    assert render("env.GITHUB_SHA") == ""


def test_E47_strategy_counts_legs() -> None:
    contexts = {"strategy": {"fail-fast": True, "job-index": 1, "job-total": 2, "max-parallel": 2}}
    assert render("strategy.job-index", contexts) == "1"


def test_E48_text_around_braces_is_always_true() -> None:
    condition = wrap_condition("${{ false }} || false")
    assert evaluate_condition(condition, {}, step_status_functions("success"))


def test_E49_a_name_in_a_text_is_no_status_function() -> None:
    condition = wrap_condition("contains('always()', 'x')")
    assert condition == "success() && (contains('always()', 'x'))"
    assert not evaluate_condition(condition, {}, step_status_functions("failure"))
