"""A syntax tree to a value (job-semantics 1.4 to 1.8). Pure: contexts and functions are given, nothing else is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.expression.errors import ExpressionError
from runyard.expression.frame import RAW, Evaluator, Frame, Functions, Looked, Options
from runyard.expression.functions import BUILT_IN
from runyard.expression.parser import parse
from runyard.expression.syntax import (
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
    source,
)
from runyard.expression.values import (
    MISSING,
    Filtered,
    equals,
    greater,
    is_primitive,
    is_true,
    item,
    pick,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job.template import Json

_NO_FUNCTIONS: Final[Functions] = {}


def evaluate(
    node: Node,
    contexts: Mapping[str, Json],
    functions: Functions | None = None,
    options: Options = RAW,
    *,
    trace: list[Looked] | None = None,
) -> Json:
    """The value of a tree.

    Values of contexts are plain JSON and are never changed; parts of them may be in the answer. `trace`, where given,
    gets every context path and injected function that was looked at, in order. Raises ExpressionError.
    """
    table = _PLAIN if trace is None else _TRACED
    return table[type(node)](node, Frame(contexts, functions or _NO_FUNCTIONS, options, table, trace))


def evaluate_text(
    text: str,
    contexts: Mapping[str, Json],
    functions: Functions | None = None,
    options: Options = RAW,
    *,
    trace: list[Looked] | None = None,
) -> Json:
    """Read and evaluate an expression; only the names in `contexts` and `functions` exist. Raises ExpressionError."""
    node = parse(text, contexts=contexts, functions=functions or ())
    return evaluate(node, contexts, functions, options, trace=trace)


def _constant(node: Constant, frame: Frame) -> Json:
    return frame.charge(node.value)


def _wildcard(node: Wildcard, frame: Frame) -> Json:
    return frame.charge("*")


def _named(node: NamedValue, frame: Frame) -> Json:
    return frame.charge(frame.context(node))


def _index(node: Index, frame: Frame) -> Json:
    before = frame.live
    # The operand is part of this path, so it is looked at without being traced on its own.
    operand = (
        _PLAIN[type(node.operand)](node.operand, frame) if type(node.operand) in _PATH else frame.value(node.operand)
    )
    index = node.index
    result: Json
    if type(operand) is dict and type(index) is Constant and type(index.value) is str and index.value in operand:
        result = operand[index.value]
    elif is_primitive(operand):
        result = Filtered() if isinstance(index, Wildcard) else None
    elif isinstance(index, Wildcard):
        result = spread(operand)
        frame.live += 8 * len(result)
    else:
        key = index.value if isinstance(index, Constant) else frame.value(index)
        if isinstance(operand, Filtered):
            result = pick(operand, key)
            frame.live += 8 * len(result)
        else:
            result = item(operand, key)
            if result is MISSING:
                result = None
    return _settle(frame, before, result)


def _call(node: Call, frame: Frame) -> Json:
    before = frame.live
    built_in = BUILT_IN.get(node.key)
    result = built_in(node, frame) if built_in is not None else _injected(node, frame)
    if node.key == "fromjson":
        frame.live = before + _size(result)
    return _settle(frame, before, result)


def _injected(node: Call, frame: Frame) -> Json:
    function = frame.function(node)
    arguments = [frame.value(argument) for argument in node.arguments]
    try:
        return function(arguments)
    except ExpressionError as error:
        if error.position is None:
            error.position = node.position
        raise


def _not(node: Not, frame: Frame) -> bool:
    before = frame.live
    result = not is_true(frame.value(node.operand))
    frame.live = before + 24
    return result


def _and(node: And, frame: Frame) -> Json:
    before = frame.live
    result: Json = None
    for operand in node.operands:
        result = frame.value(operand)
        if not is_true(result):
            break
    return _settle(frame, before, result)


def _or(node: Or, frame: Frame) -> Json:
    before = frame.live
    result: Json = None
    for operand in node.operands:
        result = frame.value(operand)
        if is_true(result):
            break
    return _settle(frame, before, result)


def _comparison(node: Comparison, frame: Frame) -> bool:
    before = frame.live
    left, right = frame.value(node.left), frame.value(node.right)
    frame.live = before + 24
    match node.operator:
        case "==":
            return equals(left, right)
        case "!=":
            return not equals(left, right)
        case ">":
            return greater(left, right)
        case "<":
            return greater(right, left)
        case ">=":
            return equals(left, right) or greater(left, right)
        case "<=":
            return equals(left, right) or greater(right, left)


def _settle(frame: Frame, before: int, result: Json) -> Json:
    """Count a node's value; a primitive one lets go of what its operands took."""
    if is_primitive(result):
        frame.live = before
    return frame.charge(result)


def _size(value: Json) -> int:
    total = 0
    rest = [value]
    while rest:
        each = rest.pop()
        total += 26 + 2 * len(each) if isinstance(each, str) else 24
        if isinstance(each, dict):
            rest.extend(each)
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)
    return total


def _traced_path(node: NamedValue | Index, frame: Frame) -> Json:
    value = _PLAIN[type(node)](node, frame)
    if frame.trace is not None and _is_path(node):
        frame.trace.append(Looked(source(node), value))
    return value


def _is_path(node: Node) -> bool:
    while isinstance(node, Index):
        node = node.operand
    return isinstance(node, NamedValue)


def _traced_call(node: Call, frame: Frame) -> Json:
    value = _call(node, frame)
    if frame.trace is not None and node.key not in BUILT_IN:
        frame.trace.append(Looked(source(node), value))
    return value


_PATH: Final = frozenset({NamedValue, Index})
_PLAIN: Final[dict[type, Evaluator]] = {
    Constant: _constant,
    Wildcard: _wildcard,
    NamedValue: _named,
    Index: _index,
    Call: _call,
    Not: _not,
    And: _and,
    Or: _or,
    Comparison: _comparison,
}
_TRACED: Final[dict[type, Evaluator]] = _PLAIN | {NamedValue: _traced_path, Index: _traced_path, Call: _traced_call}
