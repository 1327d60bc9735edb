"""Which contexts and functions an expression uses, without evaluating it: for availability, secrets notes and plans."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from runyard.expression.parser import parse
from runyard.expression.syntax import Call, Constant, Index, NamedValue, Node, children
from runyard.expression.values import to_text
from runyard.job.template import ExpressionToken, MappingToken, SequenceToken, Template

if TYPE_CHECKING:
    from collections.abc import Iterator


class References(msgspec.Struct, frozen=True):
    """`contexts` and `functions` in lower case (built-in functions too).

    `paths` are what is looked at, each a context in lower case and the keys below it as written; it ends before the
    first `*` or index that isn't constant, and there `*` stands instead.
    """

    contexts: frozenset[str]
    functions: frozenset[str]
    paths: tuple[tuple[str, ...], ...]


def references(node: Node) -> References:
    """What a tree refers to."""
    paths = tuple(dict.fromkeys(_paths(node)))
    functions = frozenset(_functions(node))
    return References(frozenset(path[0] for path in paths), functions, paths)


@lru_cache(maxsize=4096)
def references_of(text: str) -> References:
    """The same of a text. Raises ExpressionError."""
    return references(parse(text))


def template_references(template: Template | None) -> References:
    """What all expressions of a template refer to. Raises ExpressionError."""
    found = [references_of(text) for text in expressions(template)]
    return References(
        frozenset(name for each in found for name in each.contexts),
        frozenset(name for each in found for name in each.functions),
        tuple(dict.fromkeys(path for each in found for path in each.paths)),
    )


def expressions(template: Template | None) -> Iterator[str]:
    """The expressions of a template in the order they stand."""
    match template:
        case ExpressionToken():
            yield template.text
        case SequenceToken():
            for item in template.items:
                yield from expressions(item)
        case MappingToken():
            for entry in template.entries:
                yield from expressions(entry.key)
                yield from expressions(entry.value)
        case _:
            return


def _paths(node: Node) -> Iterator[tuple[str, ...]]:
    if isinstance(node, NamedValue):
        yield (node.key,)
        return
    if isinstance(node, Index):
        keys: list[str] = []
        inner: Node = node
        while isinstance(inner, Index):
            keys.append(to_text(inner.index.value) if isinstance(inner.index, Constant) else "*")
            if not isinstance(inner.index, Constant):
                yield from _paths(inner.index)
            inner = inner.operand
        if isinstance(inner, NamedValue):
            keys.reverse()
            known = keys[: keys.index("*") + 1] if "*" in keys else keys
            yield (inner.key, *known)
            return
        yield from _paths(inner)
        return
    for child in children(node):
        yield from _paths(child)


def _functions(node: Node) -> Iterator[str]:
    if isinstance(node, Call):
        yield node.key
    for child in children(node):
        yield from _functions(child)
