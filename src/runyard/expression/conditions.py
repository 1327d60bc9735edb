"""Conditions: what the text of an `if` means (job-semantics 4.3)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from runyard.expression.errors import ExpressionError
from runyard.expression.evaluator import evaluate_text
from runyard.expression.frame import TEMPLATE, Functions, Looked, Options
from runyard.expression.numbers import WHITESPACE
from runyard.expression.ordinal import fold
from runyard.expression.parser import FunctionNames, parse
from runyard.expression.scanner import parse_text
from runyard.expression.signatures import STATUS_FUNCTIONS
from runyard.expression.syntax import Call, Node, walk
from runyard.expression.values import is_true, to_text
from runyard.job.template import ExpressionToken, TextToken

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from runyard.job.template import Json

ALWAYS = "always()"
SUCCESS = "success()"


def wrap_condition(
    text: str | None, *, contexts: Collection[str] | None = None, functions: FunctionNames | None = None
) -> str:
    """The condition an `if` stands for, without braces: `success() && (…)` unless a status function is called in it.

    `text` is the scalar as written (None: no `if`). The answer is an expression for `evaluate_condition`.
    `contexts` and `functions` as for `parse`. Raises ExpressionError. Not for `pre-if` and
    `post-if`, which are never wrapped.
    """
    if text is None or not text.strip(WHITESPACE):
        return SUCCESS
    condition = unwrapped_condition(text, contexts=contexts, functions=functions)
    node = parse(condition, contexts=contexts, functions=functions)
    if not condition.strip(WHITESPACE):
        return SUCCESS
    return condition if has_status_function(node) else f"success() && ({condition})"


def unwrapped_condition(
    text: str, *, contexts: Collection[str] | None = None, functions: FunctionNames | None = None
) -> str:
    """The expression in the text of an `if`, `pre-if` or `post-if`: with or without braces, nothing added."""
    match parse_text(text, contexts=contexts, functions=functions):
        case ExpressionToken(text=expression):
            return expression
        case TextToken(value=plain):
            return plain.strip(WHITESPACE)
        case _:
            raise ExpressionError("parsing", "A directive is no condition")


def has_status_function(node: Node) -> bool:
    """Whether always, cancelled, failure or success is called anywhere in the tree."""
    return any(isinstance(each, Call) and each.key in STATUS_FUNCTIONS for each in walk(node))


@lru_cache(maxsize=1024)
def calls_status_function(condition: str) -> bool:
    """The same of a condition's text."""
    return has_status_function(parse(condition))


def evaluate_condition(
    condition: str,
    contexts: Mapping[str, Json],
    functions: Functions,
    options: Options = TEMPLATE,
    *,
    trace: list[Looked] | None = None,
) -> bool:
    """Whether a wrapped condition is true.

    `functions` holds the status functions (`step_status_functions`, `job_status_functions`) and, for a step, hashFiles;
    only they and the contexts given exist. Raises ExpressionError.
    """
    return is_true(evaluate_text(condition, contexts, functions, options, trace=trace))


def step_status_functions(status: str) -> Functions:
    """The status functions of a step, by the status of its job or composite action (job-semantics 1.12).

    `status` is success, failure or cancelled. For main steps inside a composite action, overlay success and failure of
    the composite's own status on those of the job.
    """
    return _STEP_STATUS[status]


def job_status_functions(results: Mapping[str, str], *, cancelled: bool = False) -> Functions:
    """The status functions of a job: `results` of all its needs, transitive ones too, by job id.

    Ids given as arguments choose among them, ignoring case; an unknown one is no success and no failure.
    """

    def chosen(arguments: Sequence[Json]) -> list[str]:
        if not arguments:
            return list(results.values())
        by_id = {fold(job): result for job, result in results.items()}
        return [by_id.get(fold(to_text(argument)), "") for argument in arguments]

    return {
        "always": lambda _: True,
        "cancelled": lambda _: cancelled,
        "failure": lambda arguments: not cancelled and "failure" in chosen(arguments),
        "success": lambda arguments: not cancelled and all(each == "success" for each in chosen(arguments)),
    }


def _step_functions(status: str) -> Functions:
    return {
        "always": lambda _: True,
        "cancelled": lambda _: status == "cancelled",
        "failure": lambda _: status == "failure",
        "success": lambda _: status == "success",
    }


_STEP_STATUS: Final = {status: _step_functions(status) for status in ("success", "failure", "cancelled")}
