"""What a step's fields mean now: templates and conditions looked up in a frame's contexts (job-semantics 1.12, 4.3).

Evaluation is pure and doesn't wait, `hashFiles` has to: it is answered from what was hashed already, and where that is
missing the hash is made and the evaluation done once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from runyard.expression.evaluator import evaluate_text
from runyard.expression.frame import STRICT_GITHUB, TEMPLATE, Looked, Options
from runyard.expression.templates import MANIFEST_DEPTH, MAX_DEPTH, evaluate_template
from runyard.expression.values import is_true, to_text
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runyard.engine.state import Frame
    from runyard.expression.frame import Functions
    from runyard.expression.templates import Want
    from runyard.job import Conclusion, Json, Template

_Value = TypeVar("_Value")

MOST_HASHES = 100
"""`hashFiles` calls in one field; more is a defect of ours or a field made to waste time."""


class Decision(msgspec.Struct, frozen=True):
    """Whether a condition holds and what it looked at, as people may see it (before masking)."""

    runs: bool
    condition: str
    looked: tuple[tuple[str, str], ...] = ()

    def because(self) -> str:
        """One sentence for a step that was skipped."""
        seen = ", ".join(f"{text} = {value}" for text, value in self.looked)
        return f"its condition is false: {self.condition}" + (f" ({seen})" if seen else "")


class _HashWanted(Exception):  # noqa: N818 - asks for work, reports no fault
    def __init__(self, arguments: tuple[str, ...]) -> None:
        super().__init__(arguments)
        self.arguments = arguments


async def value_of(frame: Frame, template: Template | None, want: Want = "any") -> Json:
    """The value of one field of a step. Raises ExpressionError, or InputError for files that can't be hashed."""
    if template is None:
        return None
    depth = MANIFEST_DEPTH if frame.scope.composite else MAX_DEPTH

    def once(functions: Functions) -> Json:
        return evaluate_template(
            template,
            frame.contexts(),
            functions,
            want=want,
            options=_options(frame),
            files=frame.files,
            max_depth=depth,
        )

    return await _with_hashes(frame, once)


async def text_of(frame: Frame, template: Template | None) -> str:
    """The same as text; "" for no template."""
    return "" if template is None else cast("str", await value_of(frame, template, "string"))


async def texts_of(frame: Frame, template: Template | None) -> dict[str, str]:
    """The same as a mapping of texts; empty for no template."""
    return {} if template is None else cast("dict[str, str]", await value_of(frame, template, "strings"))


async def decide(frame: Frame, condition: str) -> Decision:
    """Whether `condition` (wrapped already) holds now. Raises ExpressionError."""

    def once(functions: Functions) -> Decision:
        trace: list[Looked] = []
        value = evaluate_text(condition, frame.condition_contexts(), functions, _options(frame), trace=trace)
        return Decision(is_true(value), condition, tuple((each.text, _shown(each.value)) for each in trace))

    return await _with_hashes(frame, once, status=True)


def still_holds(frame: Frame, condition: str) -> bool:
    """Whether a running step's condition holds under the new job status; one with an error doesn't (section 5)."""
    try:
        functions = {**_status_functions(frame), "hashfiles": _hash_function(frame.hashed)}
        return is_true(evaluate_text(condition, frame.condition_contexts(), functions, _options(frame)))
    except (InputError, _HashWanted):
        return False


async def _with_hashes(frame: Frame, once: Callable[[Functions], _Value], *, status: bool = False) -> _Value:
    hashed: dict[tuple[str, ...], str] = {}
    functions: dict[str, Callable[[Sequence[Any]], Any]] = {"hashfiles": _hash_function(hashed)}
    if status:
        functions |= _status_functions(frame)
        frame.hashed = hashed
    for _ in range(MOST_HASHES):
        try:
            return once(functions)
        except _HashWanted as wanted:
            from runyard.engine.hashes import hash_in_sandbox

            hashed[wanted.arguments] = await hash_in_sandbox(frame.job, wanted.arguments)
    raise InputError(f"hashFiles is called more than {MOST_HASHES} times in one field")


def _hash_function(hashed: dict[tuple[str, ...], str]) -> Callable[[Sequence[Any]], str]:
    def hash_files(arguments: Sequence[Any]) -> str:
        patterns = tuple(to_text(each) for each in arguments)
        if patterns not in hashed:
            raise _HashWanted(patterns)
        return hashed[patterns]

    return hash_files


def _status_functions(frame: Frame) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """In the main phase inside a composite, success and failure look at the composite (1.12)."""
    job = frame.job.status
    inner = frame.scope.action_status if frame.phase == "main" else None
    status: Conclusion = job if inner is None else inner
    return {
        "always": lambda _: True,
        "cancelled": lambda _: job == "cancelled",
        "success": lambda _: status == "success",
        "failure": lambda _: status == "failure",
    }


def _options(frame: Frame) -> Options:
    return STRICT_GITHUB if frame.job.strict else TEMPLATE


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return "'" + (value if len(value) <= 60 else f"{value[:60]}…") + "'"
    return "null" if value is None else to_text(value)
