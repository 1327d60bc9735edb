"""Where expressions stand in a scalar, and what an `if` means (job-semantics 1.13, 4.3)."""

from __future__ import annotations

import pytest

from runyard.expression import (
    ExpressionError,
    calls_status_function,
    evaluate_condition,
    evaluate_template,
    job_status_functions,
    parse_text,
    step_status_functions,
    unwrapped_condition,
    wrap_condition,
)
from runyard.job import ExpressionToken, InsertToken, Position, TextToken

TOKENS = {
    "plain": ("a b }} $ {{ x }}", TextToken("a b }} $ {{ x }}")),
    "empty": ("", TextToken("")),
    "one expression": ("${{ github.ref }}", ExpressionToken("github.ref")),
    "no blanks": ("${{github.ref}}", ExpressionToken("github.ref")),
    "braces in a text": ("${{ format('}}', 1) }}", ExpressionToken("format('}}', 1)")),
    "quotes in a text": ("${{ x['a''}}'] }}", ExpressionToken("x['a''}}']")),
    "over lines": ("${{\n  x\n}}", ExpressionToken("x")),
    "lone text": ("${{ 'a ''b'' {c}' }}", TextToken("a 'b' {c}")),
    "escaped braces": ("${{ '${{' }}", TextToken("${{")),
    "lone number": ("${{ 10 }}", ExpressionToken("10")),
    "text in a group": ("${{ ('x') }}", ExpressionToken("('x')")),
    "comparison of texts": ("${{ 'a' == 'b' }}", ExpressionToken("'a' == 'b'")),
    "text around": ("a ${{ x }} b", ExpressionToken("format('a {0} b', x)")),
    "trailing blank": ("${{ x }} ", ExpressionToken("format('{0} ', x)")),
    "two": ("${{ x }}${{ y }}", ExpressionToken("format('{0}{1}', x, y)")),
    "quoting": ("it's {0} ${{ x }}", ExpressionToken("format('it''s {{0}} {0}', x)")),
    "closing braces": ("${{ x }}}}", ExpressionToken("format('{0}}}}}', x)")),
    "lone texts, mixed": ("${{ 'a' }}b", ExpressionToken("format('{0}b', 'a')")),
}


@pytest.mark.parametrize(("text", "token"), TOKENS.values(), ids=TOKENS)
def test_token(text: str, token: TextToken | ExpressionToken) -> None:
    assert parse_text(text, contexts={"x", "y", "github"}) == token


@pytest.mark.parametrize(
    "text", ["it's {0} ${{ x }}", "{{${{ x }}}}", "'${{ x }}'", "${{ x }}\n${{ 'a}}b' }}", "}${{ x }}{"]
)
def test_rewriting_loses_nothing(text: str) -> None:
    expected = text.replace("${{ x }}", "<x>").replace("${{ 'a}}b' }}", "a}}b")
    assert evaluate_template(parse_text(text), {"x": "<x>"}, want="string") == expected


WRONG = {
    "empty": ("${{ }}", "An expression was expected"),
    "empty without blank": ("a ${{}}", "An expression was expected"),
    "unclosed": ("a ${{ x", "not closed"),
    "half closed": ("${{ x }", "not closed"),
    "closed in a text only": ("${{ 'x }}", "not closed"),
    "second unclosed": ("${{ x }} ${{ y", "not closed"),
    "unknown name": ("${{ z }}", "Unrecognized named-value: 'z'. Located at position 1 within expression: z"),
    "second expression": ("${{ x }} ${{ x + }}", "Located at position 3 within expression: x +"),
    "insert as a value": ("${{ insert }}", "only allowed as the key"),
    "insert with text": ("a ${{ insert }}", "embedded"),
    "insert with arguments": ("${{ insert(x) }}", "No parameters"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_text(text, contexts={"x", "y"})
    assert message in caught.value.message


def test_insert_is_a_key() -> None:
    assert parse_text("${{ insert }}", is_key=True, at=Position(1, 2, 3)) == InsertToken(Position(1, 2, 3))
    assert parse_text("${{ insert_more }}", is_key=True) == ExpressionToken("insert_more")


def test_tokens_carry_their_place() -> None:
    at = Position(1, 4, 9)
    for text in ("plain", "${{ x }}", "${{ 'x' }}", "a ${{ x }}"):
        assert parse_text(text, at=at).at == at


def test_where_no_expression_may_stand() -> None:
    for text in ("${{ 1 }}", "a${{ 'x' }}"):
        with pytest.raises(ExpressionError, match="not allowed in this context"):
            parse_text(text, contexts=(), functions=())
    with pytest.raises(ExpressionError, match="Unrecognized named-value"):
        parse_text("${{ github.ref }}", contexts=(), functions=())
    assert parse_text("${{ 'x' }}", contexts=(), functions=()) == TextToken("x")
    assert parse_text("x", contexts=(), functions=()) == TextToken("x")


CONDITIONS = {
    None: "success()",
    "": "success()",
    " \n": "success()",
    "true": "success() && (true)",
    "0": "success() && (0)",
    "a || b": "success() && (a || b)",
    "${{ a || b }}": "success() && (a || b)",
    "always()": "always()",
    "${{ a && ALWAYS() }}": "a && ALWAYS()",
    "a || contains('x', failure())": "a || contains('x', failure())",
    "contains('always()', 'x')": "success() && (contains('always()', 'x'))",
    "${{ a }} == b": "success() && (format('{0} == b', a))",
    "${{ always() }} || x": "format('{0} || x', always())",
    "${{ 'a' }}": "success() && (a)",
    "a.always": "success() && (a.always)",
}


@pytest.mark.parametrize(("text", "condition"), CONDITIONS.items())
def test_condition(text: str | None, condition: str) -> None:
    assert wrap_condition(text, contexts={"a", "b"}) == condition


@pytest.mark.parametrize("text", ["a &&", "${{ }}", "nope", "${{ a", "x ${{ nope }}", "failure("])
def test_condition_that_is_wrong(text: str) -> None:
    with pytest.raises(ExpressionError):
        wrap_condition(text, contexts={"a"})


def test_O38_secrets_are_no_context_of_a_condition() -> None:
    with pytest.raises(ExpressionError, match="Unrecognized named-value: 'secrets'"):
        wrap_condition("secrets.X != ''", contexts={"github", "env"})


def test_conditions_that_are_not_wrapped() -> None:
    assert unwrapped_condition("${{ runner.os == 'Linux' }}") == "runner.os == 'Linux'"
    assert unwrapped_condition(" always() ") == "always()"
    assert calls_status_function("a || Success()")
    assert not calls_status_function("'success()'")


@pytest.mark.parametrize(
    ("status", "always", "cancelled", "success", "failure"),
    [
        ("success", True, False, True, False),
        ("failure", True, False, False, True),
        ("cancelled", True, True, False, False),
    ],
)
def test_status_functions_of_a_step(status: str, always: bool, cancelled: bool, success: bool, failure: bool) -> None:
    functions = step_status_functions(status)
    for name, expected in (("always", always), ("cancelled", cancelled), ("success", success), ("failure", failure)):
        assert evaluate_condition(f"{name}()", {}, functions) is expected


def test_O37_failure_is_false_in_a_cancelled_job() -> None:
    assert not evaluate_condition("failure()", {}, step_status_functions("cancelled"))


def test_status_functions_of_a_job_take_ids() -> None:
    functions = job_status_functions({"a": "success", "b": "failure", "c": "skipped"})
    answers = {
        "success()": False,
        "success('A')": True,
        "success('a', 'c')": False,
        "failure()": True,
        "failure('a')": False,
        "failure('B', 'a')": True,
        "success('nope')": False,
        "failure('nope')": False,
        "always()": True,
        "cancelled()": False,
    }
    assert {text: evaluate_condition(text, {}, functions) for text in answers} == answers
    assert evaluate_condition("success()", {}, job_status_functions({}))
    over = job_status_functions({"b": "failure"}, cancelled=True)
    assert [evaluate_condition(f"{name}()", {}, over) for name in ("success", "failure", "cancelled", "always")] == [
        False,
        False,
        True,
        True,
    ]
