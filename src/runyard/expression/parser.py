"""Tokens to a syntax tree, by operator precedence on explicit stacks (job-semantics 1.2, 1.4, 1.14).

Stacks and not recursion: brackets may nest as deep as the text is long, only nodes are counted. Reading is cached by
text alone; which contexts and functions are allowed is checked afterwards, in the order in which the names stand, so
that the first thing wrong is the one reported, as on GitHub.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from runyard.expression.errors import ExpressionError, position_of, utf16_length
from runyard.expression.lexer import Lexer, Malformed, Token, TokenKind
from runyard.expression.signatures import BUILT_IN, KNOWN, Arity
from runyard.expression.syntax import (
    PRECEDENCE,
    And,
    Call,
    Comparison,
    Constant,
    Index,
    NamedValue,
    Node,
    Not,
    Or,
    Wildcard,
)

if TYPE_CHECKING:
    from runyard.expression.syntax import ComparisonOperator

MAX_LENGTH: Final = 21_000
MAX_DEPTH: Final = 50

FunctionNames: TypeAlias = Mapping[str, Arity] | Collection[str]
"""Functions besides the built-in ones: names with their arity, or names alone (also a mapping to what is called) where
the arity is the usual one."""

_ANY: Final = Arity(0, 255)
_K = TokenKind


class _Use(NamedTuple):
    """A name that is checked once the allowed ones are known; `supplied` arguments where a call was closed."""

    name: str
    key: str
    place: int
    kind: str
    supplied: int = 0


class Parsed(NamedTuple):
    """What a text reads as: a tree, or the error that ended it; and the names up to there."""

    node: Node | None
    error: ExpressionError | None
    uses: tuple[_Use, ...]


def parse(text: str, *, contexts: Collection[str] | None = None, functions: FunctionNames | None = None) -> Node:
    """Read an expression (without its braces); an empty one reads as null.

    `contexts` are the names that exist (None: any), `functions` those that exist besides the built-in ones (None: every
    one that GitHub knows). Both ignore case. Raises ExpressionError. Safe to repeat and cheap to: reading is cached.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError("parsing", f"Exceeded max expression length {MAX_LENGTH}")
    parsed = read(text)
    if parsed.uses:
        _check_names(text, parsed.uses, contexts, functions)
    if parsed.error is not None:
        raise parsed.error.placed(None, None, None)
    return cast("Node", parsed.node)


@lru_cache(maxsize=4096)
def read(text: str) -> Parsed:
    """Read a text without judging names; never raises."""
    if utf16_length(text) > MAX_LENGTH:
        return Parsed(None, ExpressionError("parsing", f"Exceeded max expression length {MAX_LENGTH}"), ())
    builder = _Builder(text)
    try:
        node = builder.build()
    except Malformed as malformed:
        error = _located("lexing", "Unexpected symbol", malformed.raw, text, malformed.index)
        return Parsed(None, error, tuple(builder.uses))
    except ExpressionError as error:
        return Parsed(None, error, tuple(builder.uses))
    return Parsed(node, None, tuple(builder.uses))


def _located(kind: str, what: str, raw: str, text: str, index: int) -> ExpressionError:
    position = position_of(text, index)
    message = f"{what}: '{raw}'. Located at position {position} within expression: {text}"
    return ExpressionError("lexing" if kind == "lexing" else "parsing", message, position)


def _check_names(
    text: str, uses: tuple[_Use, ...], contexts: Collection[str] | None, functions: FunctionNames | None
) -> None:
    for use in uses:
        if use.kind == "name":
            if contexts is not None and not _has(contexts, use.key):
                raise _located("parsing", "Unrecognized named-value", use.name, text, use.place)
            continue
        arity = _arity(use.key, functions)
        if arity is None:
            raise _located("parsing", "Unrecognized function", use.name, text, use.place)
        if use.kind == "function":
            continue
        if use.supplied < arity.least:
            raise _located("parsing", "Too few parameters supplied", use.name, text, use.place)
        if use.supplied > arity.most:
            raise _located("parsing", "Too many parameters supplied", use.name, text, use.place)
        if arity.odd and use.supplied % 2 == 0:
            what = "Even number of parameters supplied, requires an odd number of parameters"
            raise _located("parsing", what, use.name, text, use.place)


def _has(names: Collection[str], key: str) -> bool:
    return key in names or any(name.lower() == key for name in names)


def _arity(key: str, functions: FunctionNames | None) -> Arity | None:
    if (arity := BUILT_IN.get(key)) is not None:
        return arity
    if functions is None:
        return KNOWN.get(key)
    if not _has(functions, key):
        return None
    if isinstance(functions, Mapping):
        given = next((arity for name, arity in functions.items() if name.lower() == key), None)
        if isinstance(given, Arity):
            return given
    return KNOWN.get(key, _ANY)


class _Builder:
    """Operands and operators of one text, reduced as soon as precedence allows."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lexer = Lexer(text)
        self._operands: list[Node] = []
        self._operators: list[Token] = []
        self._calls: list[int] = []
        self._plain = text.isascii() or max(text) <= "\uffff"
        self.uses: list[_Use] = []

    def build(self) -> Node:
        last: Token | None = None
        while (token := self._lexer.next()) is not None:
            if not token.legal:
                raise _located("parsing", "Unexpected symbol", token.raw, self._text, token.place)
            self._take(token)
            last = token
        if last is None:
            return Constant(None)
        if self._lexer.open or last.kind in {_K.NOT, _K.OPERATOR, _K.DOT, _K.FUNCTION}:
            raise _located("parsing", "Unexpected end of expression", last.raw, self._text, last.place)
        self._reduce_to(0)
        return self._operands.pop()

    def _place(self, token: Token) -> int:
        return token.place + 1 if self._plain else position_of(self._text, token.place)

    def _take(self, token: Token) -> None:
        match token.kind:
            case _K.CONSTANT:
                self._operands.append(Constant(token.value, self._place(token)))
            case _K.NAME:
                self.uses.append(_Use(token.raw, token.raw.lower(), token.place, "name"))
                self._operands.append(NamedValue(token.raw, token.raw.lower(), self._place(token)))
            case _K.WILDCARD:
                self._operands.append(Wildcard(self._place(token)))
                if self._operators[-1].kind is _K.DOT:
                    self._index()
            case _K.PROPERTY:
                self._operands.append(Constant(token.raw, self._place(token)))
                self._index()
            case _K.FUNCTION:
                self.uses.append(_Use(token.raw, token.raw.lower(), token.place, "function"))
                self._operators.append(token)
            case _K.CALL:
                self._calls.append(len(self._operands))
                self._operators.append(token)
            case _K.NOT | _K.GROUP | _K.INDEX | _K.DOT:
                self._operators.append(token)
            case _K.OPERATOR:
                self._reduce_to(PRECEDENCE[token.raw])
                self._operators.append(token)
            case _K.SEPARATOR:
                self._reduce_to(0)
            case _K.GROUP_END:
                self._reduce_to(0)
                self._operators.pop()
            case _K.INDEX_END:
                self._reduce_to(0)
                self._index()
            case _K.CALL_END:
                self._reduce_to(0)
                self._call()

    def _reduce_to(self, precedence: int) -> None:
        """Apply the operators on top that bind at least as tight, down to the innermost open bracket."""
        while self._operators:
            top = self._operators[-1]
            if top.kind is _K.NOT:
                if precedence > PRECEDENCE["!"]:
                    return
                operand = self._operands.pop()
                self._push(Not(operand, self._place(top), operand.depth + 1))
            elif top.kind is _K.OPERATOR and PRECEDENCE[top.raw] >= precedence:
                right, left = self._operands.pop(), self._operands.pop()
                self._push(_binary(top, left, right))
            else:
                return
            self._operators.pop()

    def _index(self) -> None:
        self._operators.pop()
        index, operand = self._operands.pop(), self._operands.pop()
        self._push(Index(operand, index, operand.position, max(operand.depth, index.depth) + 1))

    def _call(self) -> None:
        self._operators.pop()
        function = self._operators.pop()
        start = self._calls.pop()
        arguments = tuple(self._operands[start:])
        del self._operands[start:]
        key = function.raw.lower()
        self.uses.append(_Use(function.raw, key, function.place, "call", len(arguments)))
        depth = max((argument.depth for argument in arguments), default=0) + 1
        self._push(Call(function.raw, key, arguments, self._place(function), depth))

    def _push(self, node: Node) -> None:
        if node.depth > MAX_DEPTH:
            raise ExpressionError("parsing", f"Exceeded max expression depth {MAX_DEPTH}")
        self._operands.append(node)


def _binary(token: Token, left: Node, right: Node) -> Node:
    if token.raw == "&&":
        return And(_chain(And, left) + _chain(And, right), left.position, _chain_depth(And, left, right))
    if token.raw == "||":
        return Or(_chain(Or, left) + _chain(Or, right), left.position, _chain_depth(Or, left, right))
    operator = cast("ComparisonOperator", token.raw)
    return Comparison(operator, left, right, left.position, max(left.depth, right.depth) + 1)


def _chain(kind: type[And | Or], node: Node) -> tuple[Node, ...]:
    return node.operands if isinstance(node, kind) else (node,)


def _chain_depth(kind: type[And | Or], left: Node, right: Node) -> int:
    return max(node.depth if isinstance(node, kind) else node.depth + 1 for node in (left, right))
