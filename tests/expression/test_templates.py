"""Templates to JSON: kinds, merging, splicing, limits, and errors that name their place.

Source: job-semantics 1.13 to 1.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runyard.expression import (
    MANIFEST_DEPTH,
    ExpressionError,
    References,
    TemplateError,
    coerce,
    evaluate_template,
    expressions,
    references_of,
    template_references,
)
from runyard.job import (
    BooleanToken,
    Entry,
    ExpressionToken,
    InsertToken,
    MappingToken,
    NullToken,
    NumberToken,
    Position,
    SequenceToken,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from runyard.expression import Want

CONTEXTS: dict[str, Any] = {
    "x": {"t": "text", "n": 3.1, "b": True, "list": [1, [2]], "map": {"A": "1", "B": None}, "flag": "true"},
}


def expression(text: str, line: int = 1, column: int = 1) -> ExpressionToken:
    return ExpressionToken(text, Position(1, line, column))


def mapping(**entries: Template) -> MappingToken:
    return MappingToken(tuple(Entry(TextToken(key), value) for key, value in entries.items()))


KINDS: list[tuple[Template, Want, Any]] = [
    (TextToken("a"), "any", "a"),
    (NumberToken(3.10), "string", "3.1"),
    (NumberToken(31.0), "number", 31),
    (BooleanToken(True), "string", "true"),
    (BooleanToken(False), "boolean", False),
    (NullToken(), "string", ""),
    (NullToken(), "any", None),
    (expression("x.t"), "string", "text"),
    (expression("x.n"), "string", "3.1"),
    (expression("x.nope"), "string", ""),
    (expression("x.b"), "boolean", True),
    (expression("x.list"), "sequence", [1, [2]]),
    (expression("x.list"), "any", [1, [2]]),
    (expression("x.map"), "mapping", {"A": "1", "B": None}),
    (expression("x.map"), "strings", {"A": "1", "B": ""}),
    (expression("fromJSON('[1, true]')"), "texts", ["1", "true"]),
    (SequenceToken((TextToken("a"), NumberToken(1.0))), "texts", ["a", "1"]),
    (mapping(a=NumberToken(1.0), b=NullToken(), c=expression("x.b")), "strings", {"a": "1", "b": "", "c": "true"}),
    (mapping(a=mapping(b=SequenceToken())), "mapping", {"a": {"b": []}}),
    (SequenceToken((expression("x.list"), TextToken("e"))), "sequence", [1, [2], "e"]),
    (SequenceToken((expression("x.map"),)), "sequence", [{"A": "1", "B": None}]),
    (SequenceToken((SequenceToken((expression("x.t"),)),)), "sequence", [["text"]]),
]


@pytest.mark.parametrize(("template", "want", "expected"), KINDS)
def test_value(template: Template, want: Want, expected: Any) -> None:
    assert evaluate_template(template, CONTEXTS, want=want) == expected


REFUSED: list[tuple[Template, Want, str]] = [
    (TextToken("true"), "boolean", "Unexpected value 'true'"),
    (TextToken("10"), "number", "Unexpected value '10'"),
    (expression("x.flag"), "boolean", "Unexpected value 'true'"),
    (expression("'10'"), "number", "Unexpected value '10'"),
    (expression("x.b"), "number", "Unexpected value 'true'"),
    (expression("x.list"), "string", "A sequence was not expected"),
    (expression("x.map"), "sequence", "A mapping was not expected"),
    (TextToken("a"), "mapping", "Unexpected value 'a'"),
    (NullToken(), "boolean", "Unexpected value ''"),
    (mapping(a=SequenceToken()), "strings", "A sequence was not expected"),
    (mapping(a=expression("x.map")), "strings", "A mapping was not expected"),
    (SequenceToken((mapping(),)), "texts", "A mapping was not expected"),
]


@pytest.mark.parametrize(("template", "want", "message"), REFUSED)
def test_refused(template: Template, want: Want, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        evaluate_template(template, CONTEXTS, want=want)
    assert caught.value.message == message


def test_O20_text_is_no_boolean() -> None:
    with pytest.raises(TemplateError, match="Unexpected value 'false'"):
        evaluate_template(expression("env.F"), {"env": {"F": "false"}}, want="boolean")


def test_insert_merges_where_it_stands() -> None:
    template = MappingToken(
        (
            Entry(TextToken("first"), TextToken("1")),
            Entry(InsertToken(), expression("x.map")),
            Entry(expression("x.t"), expression("x.n")),
        )
    )
    value = evaluate_template(template, CONTEXTS)
    assert value == {"first": "1", "A": "1", "B": None, "text": 3.1}
    assert list(value) == ["first", "A", "B", "text"]
    nested = MappingToken((Entry(InsertToken(), mapping(k=TextToken("v"))),))
    assert evaluate_template(nested, CONTEXTS) == {"k": "v"}


@pytest.mark.parametrize("value", ["x.t", "x.list", "null"])
def test_insert_takes_a_mapping(value: str) -> None:
    template = MappingToken((Entry(InsertToken(), expression(value, 3, 7)),))
    with pytest.raises(TemplateError, match="A mapping was expected") as caught:
        evaluate_template(template, CONTEXTS)
    assert (caught.value.line, caught.value.column) == (3, 7)


def test_a_key_stands_once_ignoring_case() -> None:
    template = MappingToken(
        (Entry(TextToken("a"), TextToken("mine")), Entry(InsertToken(Position(1, 2, 1)), expression("x.map")))
    )
    with pytest.raises(TemplateError, match="'A' is already defined") as caught:
        evaluate_template(template, CONTEXTS)
    assert caught.value.line == 2


def test_a_key_is_text() -> None:
    bad = MappingToken((Entry(expression("x.list"), TextToken("v")),))
    with pytest.raises(TemplateError, match="A sequence was not expected"):
        evaluate_template(bad, CONTEXTS)


def test_errors_are_gathered_with_their_places() -> None:
    template = MappingToken(
        (
            Entry(TextToken("a"), expression("nope", 3, 6)),
            Entry(TextToken("b"), expression("fromJSON('')", 4, 6)),
            Entry(TextToken("c"), expression("x.list", 5, 6)),
            Entry(TextToken("d"), expression("1 +", 6, 6)),
        )
    )
    with pytest.raises(TemplateError) as caught:
        evaluate_template(template, CONTEXTS, want="strings", files=["ci.yml"])
    errors = caught.value.errors
    assert [(error.kind, error.path, error.line) for error in errors] == [
        ("parsing", "ci.yml", 3),
        ("evaluation", "ci.yml", 4),
        ("evaluation", "ci.yml", 5),
        ("lexing", "ci.yml", 6),
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        "ci.yml (Line: 3, Col: 6): Unrecognized named-value: 'nope'. Located at position 1 within expression: nope"
    )
    assert isinstance(caught.value, ExpressionError)
    assert str(errors[0].placed(None, 3, 6)).startswith("(Line: 3, Col: 6): Unrecognized")
    assert str(errors[0].placed("ci.yml", None, None)).startswith("ci.yml: Unrecognized")
    assert str(errors[0].placed(None, None, None)).startswith("Unrecognized")
    assert (caught.value.kind, caught.value.position, caught.value.exit_code) == ("parsing", 1, 2)


def test_errors_are_at_most_ten_and_short() -> None:
    template = SequenceToken(tuple(expression(f"a{'b' * 1000}", line) for line in range(1, 30)))
    with pytest.raises(TemplateError) as caught:
        evaluate_template(template, CONTEXTS)
    assert len(caught.value.errors) == 10
    assert all(len(error.message) <= 500 for error in caught.value.errors)


def test_depth_has_a_limit() -> None:
    def nested(depth: int) -> Template:
        template: Template = TextToken("x")
        for _ in range(depth):
            template = SequenceToken((template,))
        return template

    evaluate_template(nested(50), {})
    evaluate_template(nested(100), {}, max_depth=MANIFEST_DEPTH)
    for template, depth in ((nested(51), 50), (nested(101), 100), (nested(3000), 50)):
        with pytest.raises(TemplateError, match=f"deeper than {depth} levels"):
            evaluate_template(template, {}, max_depth=depth)
    deep = {"x": {"deep": evaluate_template(nested(30), {})}}
    inside: Template = expression("x.deep")
    for _ in range(30):
        inside = SequenceToken(
            (TextToken("a"), SequenceToken((TextToken("b"),)), MappingToken((Entry(TextToken("k"), inside),)))
        )
    with pytest.raises(TemplateError, match="deeper than 50 levels"):
        evaluate_template(inside, deep)


def test_values_have_a_limit() -> None:
    many = SequenceToken(tuple(expression("x") for _ in range(30)))
    with pytest.raises(TemplateError, match=r"memory size|values"):
        evaluate_template(many, {"x": [0] * 40_000})
    with pytest.raises(TemplateError, match="memory size"):
        evaluate_template(SequenceToken(tuple(expression("x") for _ in range(40))), {"x": "y" * 200_000})


def test_no_template_is_no_value() -> None:
    assert evaluate_template(None, {}) is None
    assert evaluate_template(None, {}, want="boolean") is None


def test_a_function_that_asks_for_work_is_not_an_error_of_the_template() -> None:
    class WantedError(Exception):
        pass

    def ask(_: Any) -> str:
        raise WantedError

    template = mapping(a=expression("hashFiles('x')"))
    with pytest.raises(WantedError):
        evaluate_template(template, {}, {"hashfiles": ask})
    assert evaluate_template(template, {}, {"hashfiles": lambda arguments: f"<{arguments[0]}>"}) == {"a": "<x>"}


def test_coerce_alone_has_no_place() -> None:
    assert coerce(1, "string") == "1"
    with pytest.raises(ExpressionError) as caught:
        coerce([], "string")
    assert caught.value.line is None


def test_references_of_an_expression() -> None:
    found = references_of("GitHub.ref == x['a'].b && contains(env.*.c, matrix[vars.key].z) || fromJSON(inputs).d")
    assert found == References(
        contexts=frozenset({"github", "x", "env", "matrix", "vars", "inputs"}),
        functions=frozenset({"contains", "fromjson"}),
        paths=(
            ("github", "ref"),
            ("x", "a", "b"),
            ("env", "*"),
            ("vars", "key"),
            ("matrix", "*"),
            ("inputs",),
        ),
    )


def test_references_of_a_template() -> None:
    template = MappingToken(
        (
            Entry(expression("x.key"), SequenceToken((expression("secrets.A"), TextToken("t")))),
            Entry(TextToken("b"), mapping(c=expression("format('{0}', secrets.A)"))),
        )
    )
    assert list(expressions(template)) == ["x.key", "secrets.A", "format('{0}', secrets.A)"]
    found = template_references(template)
    assert found.paths == (("x", "key"), ("secrets", "A"))
    assert found.functions == {"format"}
    assert template_references(None).contexts == frozenset()
