"""What is an expression and what is wrong with a text that is none (job-semantics 1.1, 1.2, 1.4, 1.14)."""

from __future__ import annotations

import pytest

from runyard.expression import (
    JOB_CONDITION_FUNCTIONS,
    STEP_CONDITION_FUNCTIONS,
    STEP_FUNCTIONS,
    ExpressionError,
    FunctionNames,
    parse,
    source,
)
from runyard.expression.syntax import And, Call, Constant, Index, NamedValue, Or, Wildcard

READS = {
    "blank before a call": ("contains ('a', 'b')", "contains('a', 'b')"),
    "quotes in a text": ("'it''s'", "'it''s'"),
    "newline in a text": ("'a\nb'", "'a\nb'"),
    "only quotes": ("''''", "''''"),
    "keywords as properties": ("a.true.null.contains.NaN", "a.true.null.contains.NaN"),
    "properties with dashes": ("a.b-c._d-", "a.b-c._d-"),
    "property of a call": ("fromJSON(x).y", "fromJSON(x).y"),
    "index of a group": ("(x)[0]", "x[0]"),
    "index by number": ("a[1]", "a[1]"),
    "index by text": ("a['1 b']", "a['1 b']"),
    "filter": ("a.*.b[*]", "a.*.b.*"),
    "precedence": ("!a == b && c || d > e", "((!a) == b && c) || d > e"),
    "groups": ("!(a || b) && (c)", "!(a || b) && c"),
    "white space of .NET": ("a\u2003==\x85b\u3000", "a == b"),
    "signs": ("-1 < +2", "-1 < 2"),
    "leading dot": ("[.5 < .5"[1:], "0.5 < 0.5"),
    "call without arguments": ("always( )", "always()"),
    "comparison chain": ("1 < 2 < 3", "(1 < 2) < 3"),
    "deep brackets": ("(" * 5000 + "1" + ")" * 5000, "1"),
}


@pytest.mark.parametrize(("text", "again"), READS.values(), ids=READS)
def test_reads_as(text: str, again: str) -> None:
    assert source(parse(text)) == source(parse(again))
    assert source(parse(source(parse(text)))) == source(parse(text))


WRONG = {
    "lone equals": ("a = b", "lexing", 3, "'='"),
    "lone ampersand": ("a & b", "lexing", 3, "'&'"),
    "double quotes": ('"x"', "lexing", 1, "'\"x\"'"),
    "unterminated text": ("a == 'b c", "lexing", 6, "''b c'"),
    "digits after a dot": ("a.1", "parsing", 3, "'1'"),
    "minus does not end a number": ("1-2", "lexing", 1, "'1-2'"),
    "dot does not end a number": ("1.2.3", "lexing", 1, "'1.2.3'"),
    "octal out of range": ("0o40000000000", "lexing", 1, "'0o40000000000'"),
    "not a number in lower case": ("nan", "parsing", 1, "'nan'"),
    "True": ("True", "parsing", 1, "'True'"),
    "NULL": ("NULL", "parsing", 1, "'NULL'"),
    "property of a text": ("'abc'.x", "parsing", 6, "'.'"),
    "index of a number": ("1[0]", "parsing", 2, "'['"),
    "property of a literal": ("true.x", "parsing", 5, "'.'"),
    "comma in a group": ("(1, 2)", "parsing", 3, "','"),
    "comma in an index": ("format('a', b[1, 2])", "parsing", 16, "','"),
    "comma in a group in a call": ("format((1, 2))", "parsing", 10, "','"),
    "empty group": ("()", "parsing", 2, "')'"),
    "empty index": ("a[]", "parsing", 3, "']'"),
    "wrong bracket": ("(a]", "parsing", 3, "']'"),
    "star alone": ("*", "parsing", 1, "'*'"),
    "star as a factor": ("a * b", "parsing", 3, "'*'"),
    "two names": ("a b", "parsing", 3, "'b'"),
    "call of a property": ("a.contains('x')", "parsing", 11, "'('"),
    "trailing comma": ("contains(a, )", "parsing", 13, "')'"),
    "close too much": ("a)", "parsing", 2, "')'"),
    "plus is no operator": ("a +1", "parsing", 3, "'+1'"),
    "end after an operator": ("a &&", "parsing", 3, "'&&'"),
    "end after not": ("!", "parsing", 1, "'!'"),
    "end after a dot": ("a.", "parsing", 2, "'.'"),
    "end in a group": ("(a", "parsing", 2, "'a'"),
    "end in a call": ("contains(a, b", "parsing", 13, "'b'"),
    "end in an index": ("a[0", "parsing", 3, "'0'"),
    "position in UTF-16 units": ("'😊' = 1", "lexing", 6, "'='"),
    "first thing wrong": ("nope == b b", "parsing", 1, "'nope'"),
}


@pytest.mark.parametrize(("text", "kind", "position", "raw"), WRONG.values(), ids=WRONG)
def test_is_wrong(text: str, kind: str, position: int, raw: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, contexts=("a", "b"))
    error = caught.value
    assert (error.kind, error.position) == (kind, position)
    assert f": {raw}. Located at position {position} within expression: {text}" in error.message


ARITY = [
    ("contains('a')", "Too few"),
    ("contains('a', 'b', 'c')", "Too many"),
    ("startsWith()", "Too few"),
    ("endsWith('a')", "Too few"),
    ("format()", "Too few"),
    ("join()", "Too few"),
    ("join(1, 2, 3)", "Too many"),
    ("toJSON()", "Too few"),
    ("fromJSON(1, 2)", "Too many"),
    ("case(true, 1)", "Too few"),
    ("case(true, 1, false, 2)", "Even number"),
    ("hashFiles()", "Too few"),
    ("always(1)", "Too many"),
    ("success('a')", "Too many"),
    (f"format({', '.join('1' for _ in range(256))})", "Too many"),
]


@pytest.mark.parametrize(("text", "what"), ARITY)
def test_number_of_arguments(text: str, what: str) -> None:
    with pytest.raises(ExpressionError, match=what) as caught:
        parse(text, functions=STEP_CONDITION_FUNCTIONS)
    assert caught.value.kind == "parsing"


def test_arity_is_judged_where_it_is_seen() -> None:
    with pytest.raises(ExpressionError, match="'nope'"):
        parse("contains(nope) && other", contexts=())
    with pytest.raises(ExpressionError, match="Too few"):
        parse("contains(1) && nope", contexts=())


def test_names_ignore_case() -> None:
    tree = parse("GitHub.Ref == FORMAT('x') && ALWAYS()", contexts={"github"}, functions=STEP_CONDITION_FUNCTIONS)
    assert source(tree) == "GitHub.Ref == FORMAT('x') && ALWAYS()"


@pytest.mark.parametrize(
    ("text", "functions", "good"),
    [
        ("hashFiles('x')", STEP_FUNCTIONS, True),
        ("HASHFILES('x')", STEP_FUNCTIONS, True),
        ("always()", STEP_FUNCTIONS, False),
        ("hashFiles('x')", JOB_CONDITION_FUNCTIONS, False),
        ("success('a', 'b') || failure('c')", JOB_CONDITION_FUNCTIONS, True),
        ("hashFiles('x')", (), False),
        ("hashFiles('x')", None, True),
        ("hashFiles('x')", ("hashFiles",), True),
        ("nope()", None, False),
    ],
)
def test_functions_exist_where_they_are_said_to(text: str, functions: FunctionNames | None, good: bool) -> None:
    if good:
        parse(text, functions=functions)
        return
    with pytest.raises(ExpressionError, match="Unrecognized function"):
        parse(text, functions=functions)


def test_length_has_a_limit() -> None:
    text = "'" + "x" * 20_998 + "'"
    assert isinstance(parse(text), Constant)
    for longer in (text + " ", "'" + "😊" * 10_500 + "'"):
        with pytest.raises(ExpressionError, match="Exceeded max expression length 21000"):
            parse(longer)


def test_a_chain_is_one_node() -> None:
    tree = parse(" && ".join("a" for _ in range(500)))
    assert isinstance(tree, And)
    assert (len(tree.operands), tree.depth) == (500, 2)
    other = parse("a || b && c || d")
    assert isinstance(other, Or)
    assert len(other.operands) == 3


def test_nodes_know_where_they_stand() -> None:
    tree = parse("'😊' == github.*['x'] && format('a', 1)")
    assert isinstance(tree, And)
    call = tree.operands[1]
    assert isinstance(call, Call)
    assert call.position == 26
    assert call.arguments[1].position == 38
    index = parse(" a.*.b")
    assert isinstance(index, Index)
    assert (index.position, index.index) == (2, Constant("b", 6))
    assert isinstance(index.operand, Index)
    assert (index.operand.operand, index.operand.index) == (NamedValue("a", "a", 2), Wildcard(4))


def test_reading_twice_gives_the_same_tree_and_fresh_errors() -> None:
    assert parse("a.b") is parse("a.b")
    errors = []
    for _ in range(2):
        with pytest.raises(ExpressionError) as caught:
            parse("a.")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].message == errors[1].message


def test_an_empty_expression_is_null() -> None:
    assert parse("") == parse(" \t\n") == Constant(None)
