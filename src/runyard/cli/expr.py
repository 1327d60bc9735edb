"""`runyard expr`: one GitHub expression, or JSON lines of them, without a workflow around.

What an `if:` means is answered too, with the implicit `success()` and the status functions of a step or a job.
"""

from __future__ import annotations

import io
import math
import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.expression import Options

Object: TypeAlias = dict[str, Any]

STEP_CONTEXTS: Final = ("github", "needs", "strategy", "matrix", "job", "runner", "env", "vars", "steps", "inputs")
JOB_CONTEXTS: Final = ("github", "needs", "vars", "inputs")
"""What the `if` of a step and of a job may look at (workflow-language 3); `secrets` never."""

_STATUSES: Final = ("success", "failure", "cancelled")


@click.command(
    context_settings={"ignore_unknown_options": True},  # an expression may begin with a minus
    epilog="Example: runyard expr \"contains(github.ref, 'release')\" --context contexts.json",
)
@click.argument("expression", required=False)
@click.option(
    "--context", "context_file", metavar="FILE", help="JSON object of contexts by name (- for standard input)."
)
@click.option("--batch", is_flag=True, help="Read JSON lines from standard input, answer each with a JSON line.")
@click.option("--strict-github", is_flag=True, help="Read JSON in fromJSON as leniently as GitHub does.")
def command(expression: str | None, context_file: str | None, batch: bool, strict_github: bool) -> None:
    """Evaluate EXPRESSION and print its value as JSON.

    Only the contexts given exist; hashFiles reads the current directory. Numbers that JSON can't write are printed as
    "NaN", "Infinity" and "-Infinity".

    With --batch a line is {"expression", "contexts"}, answered by {"value", "kind"}, or {"condition", "scope",
    "status", "contexts"} (the text of an `if:`), answered by {"runs"}. What is wrong with a line's expression is
    answered too: {"error": {"kind", "message", "position"}}.

    Exit codes: 0 done, 2 the expression or the input is wrong.
    """
    from runyard.expression import RAW, ExpressionError, Options
    from runyard.job.errors import InputError

    options = Options(max_memory=RAW.max_memory, lenient_json=strict_github)
    if batch:
        if expression is not None or context_file is not None:
            raise click.UsageError("--batch takes everything from standard input: no EXPRESSION, no --context.")
        _answer_lines(options)
        return
    if expression is None:
        raise click.UsageError("Give an EXPRESSION, or --batch.")
    contexts = _read_contexts(context_file) if context_file is not None else {}
    try:
        value = _value(expression, contexts, options)
    except ExpressionError as error:
        raise InputError(_described(error), code=error.code) from error
    click.echo(_as_json(value, indent=2))


def _value(expression: str, contexts: Object, options: Options) -> Any:
    """The value of an expression, also of one written with its braces."""
    from runyard.expression import evaluate_text, parse_text
    from runyard.job.template import ExpressionToken, TextToken

    if expression.lstrip().startswith("${{"):
        token = parse_text(expression.strip(), contexts=contexts, functions=_FILES)
        if isinstance(token, TextToken):
            return token.value
        if isinstance(token, ExpressionToken):
            expression = token.text
    return evaluate_text(expression, contexts, _FILES, options)


def _hash_files(arguments: Sequence[Any]) -> str:
    """`hashFiles` with the current directory as workspace."""
    from runyard.engine.workspace_tree import hash_directory
    from runyard.expression import ExpressionError, to_text
    from runyard.job.errors import InputError

    here = os.path.realpath(".")
    try:
        return hash_directory(
            "/", [to_text(each) for each in arguments], workspace=here, seen_as="/", home=os.environ.get("HOME")
        )
    except InputError as error:
        raise ExpressionError("evaluation", error.message) from error


_FILES: Final = {"hashFiles": _hash_files}


def _described(error: Any) -> str:
    if error.position is None or "Located at position" in error.message:
        return str(error.message)
    return f"{error.message}. Located at position {error.position}"


def _read_contexts(name: str) -> Object:
    from pathlib import Path

    from runyard.job.errors import InputError

    if name == "-":
        return _contexts_of(_decoded(_standard_input().read(), "(standard input)"), "(standard input)")
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", path=name) from error
    return _contexts_of(_decoded(data, name), name)


def _standard_input() -> BinaryIO:
    """Standard input as bytes; one that is closed reads as empty."""
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer


def _contexts_of(value: Any, path: str, line: int | None = None) -> Object:
    from runyard.job.errors import InputError

    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("contexts are a JSON object of values by name", path=path, line=line)
    return value


def _decoded(data: bytes, path: str, line: int | None = None) -> Any:
    import json

    from runyard.job.errors import InputError

    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"is no JSON: {error.msg}", path=path, line=error.lineno if line is None else line, column=error.colno
        ) from error
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"is no JSON: {what}", path=path, line=line) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _answer_lines(options: Options) -> None:
    path = "(standard input)"
    for number, line in enumerate(_standard_input(), 1):
        if not line.strip():
            continue
        answer = _answer(_decoded(line, path, number), options, path, number)
        sys.stdout.write(_as_json(answer) + "\n")
        sys.stdout.flush()


def _answer(request: Any, options: Options, path: str, line: int) -> Object:
    from runyard.expression import ExpressionError, evaluate_text, kind_of

    if not isinstance(request, dict) or ("expression" in request) == ("condition" in request):
        raise _refused('a line is an object with either "expression" or "condition"', path, line)
    contexts = _contexts_of(request.get("contexts"), path, line)
    try:
        if "condition" in request:
            return {"runs": _runs(request, contexts, options, path, line)}
        text = request["expression"]
        if not isinstance(text, str):
            raise _refused('"expression" is text', path, line)
        value = evaluate_text(text, contexts, options=options)
    except ExpressionError as error:
        return {"error": {"kind": error.kind, "message": error.message, "position": error.position}}
    return {"value": value, "kind": kind_of(value)}


def _runs(request: Object, contexts: Object, options: Options, path: str, line: int) -> bool:
    from runyard.expression import (
        JOB_CONDITION_FUNCTIONS,
        STEP_CONDITION_FUNCTIONS,
        TEMPLATE,
        evaluate_condition,
        job_status_functions,
        step_status_functions,
        wrap_condition,
    )

    text, scope, status = request["condition"], request.get("scope") or "step", request.get("status") or "success"
    if text is not None and not isinstance(text, str):
        raise _refused('"condition" is text or null', path, line)
    if scope not in {"step", "job"}:
        raise _refused('"scope" is "step" or "job"', path, line)
    if status not in _STATUSES:
        raise _refused(f'"status" is one of {", ".join(_STATUSES)}', path, line)
    names = STEP_CONTEXTS if scope == "step" else JOB_CONTEXTS
    known = {name: {} for name in names} | {key: value for key, value in contexts.items() if key != "secrets"}
    if scope == "step":
        functions = step_status_functions(status)
        condition = wrap_condition(
            text, contexts=known, functions={name: STEP_CONDITION_FUNCTIONS[name] for name in functions}
        )
    else:
        functions = job_status_functions(_results(known["needs"], status), cancelled=status == "cancelled")
        condition = wrap_condition(text, contexts=known, functions=JOB_CONDITION_FUNCTIONS)
    limits = type(options)(max_memory=TEMPLATE.max_memory, lenient_json=options.lenient_json)
    return evaluate_condition(condition, known, functions, limits)


def _results(needs: Any, status: str) -> dict[str, str]:
    """The results of a job's needs; a failed status without needs counts as one need that failed."""
    found = {
        job: str(need.get("result"))
        for job, need in (needs.items() if isinstance(needs, dict) else ())
        if isinstance(need, dict)
    }
    return found or ({"": "failure"} if status == "failure" else {})


def _refused(message: str, path: str, line: int) -> Exception:
    from runyard.job.errors import InputError

    return InputError(message, path=path, line=line)


def _as_json(value: Any, indent: int | None = None) -> str:
    import json

    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)
    return text


def _finite(value: Any) -> Any:
    """The same value with numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
