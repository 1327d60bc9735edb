"""Holds a YAML document against the schema and turns it into templates.

Every problem is noted and reading goes on beside it (workflow-language 1.3, 1.4, 17). What can only be known when an
expression has its value is left to the room that evaluates it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, cast

from runyard.expression.conditions import wrap_condition
from runyard.expression.errors import ExpressionError, utf16_length
from runyard.expression.numbers import number_text
from runyard.expression.positioned_yaml import Mapping, Node, Scalar, Sequence
from runyard.expression.scanner import OPEN, parse_text
from runyard.job import (
    BooleanToken,
    Entry,
    ExpressionToken,
    MappingToken,
    NullToken,
    NumberToken,
    Position,
    SequenceToken,
    Template,
    TextToken,
)
from runyard.workflow.definition import ANY, Keys, Scope, Shape
from runyard.workflow.problems import Problems, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_EXPRESSION: Final = 21_000
_LONGEST_TEXT: Final = 200_000
"""Longer text with an expression in it can't end below the limit but by blanks alone, and isn't searched for them."""
_new_tuple = tuple.__new__
"""Makes a Position in half the time of its own constructor; every node has one."""
_LOST_ZERO = re.compile(r"[0-9]*[1-9][0-9]*\.[0-9]*0\Z")
_CURLY_QUOTES = {"\u2018", "\u2019", "\u201c", "\u201d"}


def scalar_text(node: Scalar) -> str:
    """A scalar as the text it is coerced to; unlike an evaluated number, a written `-0` keeps its sign."""
    value = node.value
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return number_text(value)


class Validator:
    """Reads nodes of one file; `problems` collects what is wrong. `file` is the file's index in all positions."""

    def __init__(self, problems: Problems, file: int) -> None:
        self.problems = problems
        self.file = file
        self.path: list[str] = []
        self._scopes: dict[tuple[int, int], Scope] = {}

    def read(self, node: Node, shape: Shape, scope: Scope | None = None) -> Template:
        """The template a node stands for; where the node doesn't fit, a problem and a null in its place."""
        scope = scope or Scope()
        if shape.contexts or shape.functions:
            scope = self._within(scope, shape)
        kind = type(node)
        if kind is Scalar:
            return self._scalar(cast("Scalar", node), shape, scope)
        if kind is Mapping:
            return self._mapping(cast("Mapping", node), shape, scope)
        return self._sequence(cast("Sequence", node), shape, scope)

    def at(self, node: Node) -> Position:
        """Where a node stands."""
        return _new_tuple(Position, (self.file, node.line, node.column))

    def key(self) -> str:
        """The place in the file that is being read, as text."""
        parts: list[str] = []
        for part in self.path:
            parts.append(part if part.startswith("[") or not parts else f".{part}")
        return "".join(parts)

    def fault(self, message: str, node: Node, code: str = "workflow.value") -> None:
        """Notes a problem at a node."""
        self.problems.add(message, (node.line, node.column), self.key(), code=code)

    def _within(self, scope: Scope, shape: Shape) -> Scope:
        place = (id(scope), id(shape))
        found = self._scopes.get(place)
        if found is None:
            found = self._scopes[place] = scope.within(shape)
            # The outer scope is kept as well, so that its id stays its own.
            self._scopes[id(scope), 0] = scope
        return found

    # --- scalars ---------------------------------------------------------------------------------------------------

    def _scalar(self, node: Scalar, shape: Shape, scope: Scope) -> Template:
        at = self.at(node)
        value = node.value
        if type(value) is str and (OPEN in value or shape.condition):
            return self._expression(node, value, shape, scope, at)
        return self._literal(node, value, shape, at)

    def _expression(self, node: Scalar, value: str, shape: Shape, scope: Scope, at: Position) -> Template:
        """Text that may hold expressions: checked for syntax, names, and whether any may stand here."""
        if len(value) > _LONGEST_TEXT and OPEN in value:
            self.fault(f"Exceeded max expression length {MAX_EXPRESSION}", node, "workflow.expression")
            return NullToken(at)
        try:
            if shape.condition:
                wrap_condition(value, contexts=scope.contexts, functions=scope.functions)
                return TextToken(value, at)
            token = parse_text(value, at=at, contexts=scope.contexts, functions=scope.functions)
        except ExpressionError as error:
            self.fault(error.message, node, "workflow.expression")
            return NullToken(at)
        if isinstance(token, TextToken):
            return self._literal(node, token.value, shape, at)
        if isinstance(token, ExpressionToken) and utf16_length(token.text) > MAX_EXPRESSION:
            self.fault(f"Exceeded max expression length {MAX_EXPRESSION}", node, "workflow.expression")
        return token

    def _literal(self, node: Scalar, value: bool | float | str | None, shape: Shape, at: Position) -> Template:
        """A value that is known now, in the first kind it fits; text takes every kind."""
        if type(value) is str:
            if shape.any:
                return TextToken(value, at)
        elif value is None:
            if shape.null or shape.any:
                return NullToken(at)
        elif isinstance(value, bool):
            if shape.boolean or shape.any:
                return BooleanToken(value, at)
        elif isinstance(value, float):
            if not shape.number and node.plain and _LOST_ZERO.match(node.text) is not None:
                self._lost_zero(node)
            if shape.number or shape.any:
                return NumberToken(value, at)
        text = value if isinstance(value, str) else scalar_text(node)
        rule = shape.text
        if rule is not None:
            if (rule.allowed is None or text in rule.allowed) and (text or not rule.non_empty):
                return TextToken(text, at)
            if text and rule.allowed is not None:
                self._unexpected(text, node, rule.allowed)
                return NullToken(at)
        self.fault(f"Unexpected value '{_shown(text)}'{_expected(text, shape)}", node)
        return NullToken(at)

    def _lost_zero(self, node: Scalar) -> None:
        """A version without quotes is a number, and numbers have no trailing zeros."""
        self.problems.add(
            f"{node.text} is read as the number {scalar_text(node)}; write it in quotes if it is a version",
            (node.line, node.column),
            self.key(),
            severity="warning",
            code="lint.version",
        )

    def _unexpected(self, text: str, node: Node, allowed: Iterable[str]) -> None:
        self.fault(f"Unexpected value '{_shown(text)}'{_quotes(text)}{nearest(text, allowed)}", node)

    # --- lists -----------------------------------------------------------------------------------------------------

    def _sequence(self, node: Sequence, shape: Shape, scope: Scope) -> Template:
        item_shape = ANY if shape.any else shape.item
        if item_shape is None:
            self.fault("A sequence was not expected", node)
            return NullToken(self.at(node))
        items: list[Template] = []
        for index, item in enumerate(node.items):
            self.path.append(f"[{index}]")
            items.append(self.read(item, item_shape, scope))
            self.path.pop()
        return SequenceToken(tuple(items), self.at(node))

    # --- mappings --------------------------------------------------------------------------------------------------

    def _mapping(self, node: Mapping, shape: Shape, scope: Scope) -> Template:
        forms = (Keys(free=ANY),) if shape.any else shape.mappings
        if not forms:
            self.fault("A mapping was not expected", node)
            return NullToken(self.at(node))
        entries: list[Entry] = []
        seen: dict[str, Scalar] = {}
        stray = False
        for key, value in node.pairs:
            text = key.value if type(key.value) is str else scalar_text(key)
            self.path.append(text)
            if OPEN in text:
                entry = self._expression_key(key, text, value, scope)
            elif seen.setdefault(text.upper(), key) is not key:
                self._repeated(key, text, seen[text.upper()])
                entry = None
            else:
                if len(forms) == 1:
                    known = text in forms[0].fixed
                else:
                    fitting = tuple([form for form in forms if text in form.fixed])
                    known = bool(fitting)
                    forms = fitting or forms
                entry = self._entry(key, text, value, forms, scope, known=known)
                if entry is None and not known:
                    # A key that isn't one doesn't make the right spelling a duplicate.
                    stray = True
                    del seen[text.upper()]
            if entry is not None:
                entries.append(entry)
            self.path.pop()
        self._complete(node, forms, seen, entries, stray)
        return MappingToken(tuple(entries), self.at(node))

    def _entry(
        self, key: Scalar, text: str, value: Node, forms: tuple[Keys, ...], scope: Scope, *, known: bool
    ) -> Entry | None:
        """One key with its value; None, and a problem, where the key has no place here."""
        if known:
            shape = forms[0].fixed[text]
        elif forms[0].free is not None:
            shape = forms[0].free
            if text == "<<" and not isinstance(value, Scalar):
                self.fault("Unexpected value '<<': merge keys are not supported", key)
                return None
            if not text:
                self.fault("Unexpected value ''", key)
                return None
        else:
            self._unknown_key(key, text, forms)
            return None
        return Entry(TextToken(text, self.at(key)), self.read(value, shape, scope))

    def _unknown_key(self, key: Scalar, text: str, forms: tuple[Keys, ...]) -> None:
        names = sorted({name for form in forms for name in form.fixed})
        if any(form.ignored for form in forms):
            self.problems.add(
                f"'{_shown(text)}' is ignored here{nearest(text, names)}",
                (key.line, key.column),
                self.key(),
                severity="warning",
                code="workflow.ignored",
            )
            return
        if text == "<<":
            self.fault("Unexpected value '<<': merge keys are not supported", key)
            return
        self._unexpected(text, key, names)

    def _repeated(self, key: Scalar, text: str, first: Scalar) -> None:
        place = f"line {first.line}, column {first.column}"
        other = "" if first.text == key.text else f" as '{first.text}'"
        self.fault(f"'{_shown(text)}' is already defined{other} at {place}", key, "workflow.duplicate")

    def _expression_key(self, key: Scalar, text: str, value: Node, scope: Scope) -> Entry | None:
        """`${{ … }}` as a key: allowed where expressions are; what it means is only known when evaluated."""
        if scope.empty:
            self.fault("A template expression is not allowed in this context", key, "workflow.expression")
            return None
        try:
            token = parse_text(text, at=self.at(key), contexts=scope.contexts, functions=scope.functions, is_key=True)
        except ExpressionError as error:
            self.fault(error.message, key, "workflow.expression")
            return None
        return Entry(token, self.read(value, ANY, scope))

    def _complete(
        self, node: Mapping, forms: tuple[Keys, ...], seen: dict[str, Scalar], entries: list[Entry], stray: bool
    ) -> None:
        """What must be there, and whether it is clear which of several forms was meant."""
        if len(forms) > 1:
            if not stray:
                needed = sorted({key for form in forms for key in form.required})
                self.fault(f"one of these keys is needed to tell what is meant: {', '.join(needed)}", node)
            return
        if any(not isinstance(entry.key, TextToken) for entry in entries):
            return  # An inserted mapping may bring what is missing.
        for key in forms[0].required:
            if key.upper() not in seen or not _spelled(key, seen):
                self.path.append(key)
                self.fault(f"Required property is missing: {key}", node, "workflow.missing")
                self.path.pop()


def _spelled(key: str, seen: dict[str, Scalar]) -> bool:
    return scalar_text(seen[key.upper()]) == key


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


def _quotes(text: str) -> str:
    found = sorted(_CURLY_QUOTES.intersection(text))
    return f" (it contains the curly quote {found[0]})" if found else ""


def _expected(text: str, shape: Shape) -> str:
    """What would have been taken, in words, where the value alone doesn't tell."""
    if shape.boolean and text.lower() in {"true", "false", "yes", "no", "on", "off"}:
        return ": true or false without quotes was expected"
    if shape.number and not shape.boolean:
        return ": a number without quotes was expected"
    if shape.boolean and shape.text is None:
        return ": true or false was expected"
    if shape.text is None and shape.mappings and text:
        return ": a mapping was expected"
    if shape.text is None and shape.item is not None and text:
        return ": a list was expected"
    return ""
