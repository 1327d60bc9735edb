"""The syntax tree of an expression: plain data.

`position` counts UTF-16 units of the text from 1; 0 is a node that no text wrote.

Groups leave no node. `depth` is the height of the tree below a node, itself included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runyard.expression.numbers import number_text

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECEDENCE: Final = {"!": 16, "<": 11, "<=": 11, ">": 11, ">=": 11, "==": 10, "!=": 10, "&&": 6, "||": 5}
"""How tight each operator binds; more is tighter (job-semantics 1.4)."""

_TIGHT: Final = 19
ComparisonOperator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]


class Constant(msgspec.Struct, frozen=True):
    """null, true, false, a number or a text."""

    value: str | bool | float | None
    position: int = 0
    depth: int = 1


class NamedValue(msgspec.Struct, frozen=True):
    """A context; `name` as written, `key` in lower case."""

    name: str
    key: str
    position: int
    depth: int = 1


class Wildcard(msgspec.Struct, frozen=True):
    """The `*` of a filter; only ever the index of an Index."""

    position: int
    depth: int = 1


class Index(msgspec.Struct, frozen=True):
    """`operand.name`, `operand[index]` and the filter."""

    operand: Node
    index: Node
    position: int
    depth: int


class Call(msgspec.Struct, frozen=True):
    """A function with its arguments; `name` as written, `key` in lower case."""

    name: str
    key: str
    arguments: tuple[Node, ...]
    position: int
    depth: int


class Not(msgspec.Struct, frozen=True):
    """`!operand`."""

    operand: Node
    position: int
    depth: int


class Comparison(msgspec.Struct, frozen=True):
    """Two operands compared."""

    operator: ComparisonOperator
    left: Node
    right: Node
    position: int
    depth: int


class And(msgspec.Struct, frozen=True):
    """The first operand that isn't true, else the last; a chain is one node."""

    operands: tuple[Node, ...]
    position: int
    depth: int


class Or(msgspec.Struct, frozen=True):
    """The first operand that is true, else the last; a chain is one node."""

    operands: tuple[Node, ...]
    position: int
    depth: int


Node: TypeAlias = Constant | NamedValue | Wildcard | Index | Call | Not | Comparison | And | Or


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, as written."""
    match node:
        case Index():
            return (node.operand, node.index)
        case Call():
            return node.arguments
        case Not():
            return (node.operand,)
        case Comparison():
            return (node.left, node.right)
        case And() | Or():
            return node.operands
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, each before its children."""
    yield node
    for child in children(node):
        yield from walk(child)


def source(node: Node) -> str:
    """An expression that reads as this tree; for people, not what was written."""
    match node:
        case Constant():
            return _constant(node.value)
        case NamedValue():
            return node.name
        case Wildcard():
            return "*"
        case Index(operand=operand, index=Constant(value=str(name))) if _is_keyword(name):
            return f"{_inner(operand, _TIGHT)}.{name}"
        case Index(operand=operand, index=Wildcard()):
            return f"{_inner(operand, _TIGHT)}.*"
        case Index(operand=operand, index=index):
            return f"{_inner(operand, _TIGHT)}[{source(index)}]"
        case Call():
            return f"{node.name}({', '.join(source(argument) for argument in node.arguments)})"
        case Not():
            return f"!{_inner(node.operand, PRECEDENCE['!'])}"
        case Comparison():
            tight = PRECEDENCE[node.operator]
            return f"{_inner(node.left, tight)} {node.operator} {_inner(node.right, tight + 1)}"
        case And():
            return " && ".join(_inner(operand, PRECEDENCE["&&"] + 1) for operand in node.operands)
        case Or():
            return " || ".join(_inner(operand, PRECEDENCE["||"] + 1) for operand in node.operands)


def _inner(node: Node, tight: int) -> str:
    """A node as an operand of what binds with at least that precedence."""
    text = source(node)
    return f"({text})" if _tightness(node) < tight else text


def _tightness(node: Node) -> int:
    match node:
        case Not():
            return PRECEDENCE["!"]
        case Comparison():
            return PRECEDENCE[node.operator]
        case And():
            return PRECEDENCE["&&"]
        case Or():
            return PRECEDENCE["||"]
        case _:
            return _TIGHT


def _constant(value: str | bool | float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    return number_text(value)


def quote(text: str) -> str:
    """A text as an expression writes it."""
    return "'" + text.replace("'", "''") + "'"


def _is_keyword(name: str) -> bool:
    return name.isascii() and name.replace("-", "_").isidentifier() and not name.startswith("-")
