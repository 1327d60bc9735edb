"""One evaluation: what it may look at, what it may use, and what it looked at.

Memory is counted as GitHub counts it (job-semantics 1.14): each value of the tree that is alive, a text with 26 bytes
and two a UTF-16 unit, anything else with 24. The operands of a node are let go when it has a primitive value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from runyard.expression.errors import ExpressionError, utf16_length
from runyard.expression.values import MISSING, ExactObject

if TYPE_CHECKING:
    from runyard.expression.syntax import Call, NamedValue, Node
    from runyard.job.template import Json

Functions: TypeAlias = Mapping[str, Callable[[Sequence[Any]], Any]]
"""Functions besides the built-in ones, by name: called with the values of their arguments, answering a value.

What they raise passes through unchanged; an ExpressionError without a position gets that of the call.
"""

MEBIBYTE: Final = 1024 * 1024


class Options(msgspec.Struct, frozen=True):
    """How to evaluate: bytes that values may take, GitHub's lenient `fromJSON` (deviation D8), `env` as on Windows."""

    max_memory: int = MEBIBYTE
    lenient_json: bool = False
    env_ignores_case: bool = False


RAW: Final = Options()
TEMPLATE: Final = Options(max_memory=10 * MEBIBYTE)
STRICT_GITHUB: Final = Options(max_memory=10 * MEBIBYTE, lenient_json=True)


class Looked(NamedTuple):
    """One thing a condition looked at: a path or call as text, and the value it had."""

    text: str
    value: Any


Evaluator: TypeAlias = Callable[[Any, "Frame"], Any]


class Frame:
    """The state of one evaluation; not shared and not kept."""

    __slots__ = ("_env", "contexts", "functions", "live", "options", "table", "trace")

    def __init__(
        self,
        contexts: Mapping[str, Json],
        functions: Functions,
        options: Options,
        table: Mapping[type, Evaluator],
        trace: list[Looked] | None,
    ) -> None:
        self.contexts = contexts
        self.functions = functions
        self.options = options
        self.table = table
        self.trace = trace
        self.live = 0
        self._env: ExactObject | None = None

    def value(self, node: Node) -> Json:
        """The value of a node."""
        return self.table[type(node)](node, self)

    def charge(self, value: Json) -> Json:
        """Count a value; raises where that is more than allowed."""
        if isinstance(value, str):
            self.live += 26 + 2 * (len(value) if value.isascii() else utf16_length(value))
        else:
            self.live += 24
        if self.live > self.options.max_memory:
            self.exhausted()
        return value

    def reserve(self, units: int) -> None:
        """Check before it is made whether a text of `units` characters would be too much."""
        if self.live + 26 + 2 * units > self.options.max_memory:
            self.exhausted()

    def exhausted(self) -> NoReturn:
        """Raise the error for too much memory."""
        raise ExpressionError("evaluation", "The maximum allowed memory size was exceeded")

    def context(self, node: NamedValue) -> Json:
        """The value of a context."""
        value = self.contexts.get(node.key, MISSING)
        if value is MISSING:
            real = next((name for name in self.contexts if name.lower() == node.key), None)
            if real is None:
                raise ExpressionError("parsing", f"Unrecognized named-value: '{node.name}'", node.position)
            value = self.contexts[real]
        if node.key == "env" and isinstance(value, dict) and not self.options.env_ignores_case:
            return self._exact_env(value)
        return value

    def _exact_env(self, value: dict[str, Json]) -> ExactObject:
        if isinstance(value, ExactObject):
            return value
        if self._env is None:
            self._env = ExactObject(value)
        return self._env

    def function(self, node: Call) -> Callable[[Sequence[Any]], Any]:
        """The function a call means."""
        found = self.functions.get(node.key) or self.functions.get(node.name)
        if found is None:
            found = next((call for name, call in self.functions.items() if name.lower() == node.key), None)
        if found is None:
            raise ExpressionError("parsing", f"Unrecognized function: '{node.name}'", node.position)
        return found
