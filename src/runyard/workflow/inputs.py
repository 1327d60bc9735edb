"""Values of inputs: those a person gives to a manual run, and those a call passes (workflow-language 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from runyard.expression.numbers import parse_number
from runyard.job import BooleanToken, ExpressionToken, InputError, Json, NumberToken, Template, TextToken
from runyard.workflow.problems import Problems, nearest
from runyard.workflow.tokens import entries, is_plain

if TYPE_CHECKING:
    from runyard.workflow.model import CallSignature, CallSite
    from runyard.workflow.plan import InputDefinition

MAX_PAYLOAD = 65_535
_EMPTY: dict[str, Json] = {"boolean": False, "number": 0}


def dispatch_inputs(
    definitions: tuple[InputDefinition, ...], given: dict[str, str], *, path: str | None = None
) -> dict[str, Json]:
    """The typed values of a manual run: booleans and numbers typed, everything else text (workflow-language 5.1).

    Names ignore case and come out as defined. Raises `InputError`, which names the input and its type, for a value that
    isn't one, an unknown name, a required input that is missing, and more than 65,535 characters in all.
    """
    by_name = {definition.name.upper(): definition for definition in definitions}
    for name in given:
        if name.upper() not in by_name:
            known = [definition.name for definition in definitions]
            listed = f"; it has {', '.join(known)}" if known else "; it takes none"
            raise InputError(
                f"the workflow has no input '{name}'{nearest(name, known)}{listed}", path=path, code="input.unknown"
            )
    if sum(len(name) + len(value) for name, value in given.items()) > MAX_PAYLOAD:
        raise InputError(f"the inputs are longer than {MAX_PAYLOAD:,} characters", path=path, code="input.size")
    folded = {name.upper(): value for name, value in given.items()}
    return {
        definition.name: _value(definition, folded.get(definition.name.upper()), path) for definition in definitions
    }


def _value(definition: InputDefinition, text: str | None, path: str | None) -> Json:
    if not text and definition.required and definition.default is None:
        raise InputError(f"input '{definition.name}' is required and not provided", path=path, code="input.missing")
    if text is None:
        return _default(definition)
    typed = _typed(definition, text)
    if typed is None:
        wanted = f"one of {', '.join(definition.options)}" if definition.type == "choice" else f"a {definition.type}"
        raise InputError(
            f"input '{definition.name}' is of type {definition.type}: '{text}' is not {wanted}",
            path=path,
            code="input.type",
        )
    return typed


def _typed(definition: InputDefinition, text: str) -> Json:
    """The text as a value of the input's type, or None."""
    if definition.type == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if definition.type == "number":
        number = parse_number(text)
        return None if math.isnan(number) or not text.strip() else number
    if definition.type == "choice" and definition.options and text not in definition.options:
        return None
    return text


def _default(definition: InputDefinition) -> Json:
    default = definition.default
    if isinstance(default, BooleanToken) and definition.type == "boolean":
        return default.value
    if isinstance(default, NumberToken) and definition.type == "number":
        return int(default.value) if default.value.is_integer() else default.value
    if default is None:
        return _EMPTY.get(definition.type, "")
    from runyard.expression.values import to_text

    text = to_text(getattr(default, "value", None))
    typed = _typed(definition, text)
    return text if typed is None else typed


def check_call(site: CallSite, signature: CallSignature, key: str, problems: Problems) -> None:
    """Notes what a call passes wrongly or leaves out (workflow-language 5.2, 5.3)."""
    declared = {definition.name.upper(): definition for definition in signature.inputs}
    passed: set[str] = set()
    for name, value in entries(site.inputs):
        passed.add(name.value.upper())
        definition = declared.get(name.value.upper())
        if definition is None:
            problems.add(
                f"Invalid input, {name.value} is not defined in the referenced workflow"
                f"{nearest(name.value, [each.name for each in signature.inputs])}",
                name.at,
                f"{key}.with.{name.value}",
                code="workflow.call",
            )
        elif not _fits(definition.type, value):
            problems.add(
                f"Unexpected value '{_written(value)}': input '{definition.name}' is a {definition.type}",
                value.at,
                f"{key}.with.{name.value}",
                code="workflow.call",
            )
    if site.inputs is None or is_plain(site.inputs):
        for definition in signature.inputs:
            if definition.required and definition.name.upper() not in passed:
                problems.add(
                    f"Input {definition.name} is required, but not provided while calling",
                    site.uses_at,
                    f"{key}.with",
                    code="workflow.call",
                )
    if not site.inherit:
        _check_secrets(site, signature, key, problems)


def _check_secrets(site: CallSite, signature: CallSignature, key: str, problems: Problems) -> None:
    declared = {secret.name.upper() for secret in signature.secrets}
    passed = set()
    for name, value in entries(site.secrets):
        passed.add(name.value.upper())
        if name.value.upper() not in declared:
            problems.add(
                f"Invalid secret, {name.value} is not defined in the referenced workflow"
                f"{nearest(name.value, [secret.name for secret in signature.secrets])}",
                value.at or name.at,
                f"{key}.secrets.{name.value}",
                code="workflow.call",
            )
    for secret in signature.secrets:
        if secret.required and secret.name.upper() not in passed:
            problems.add(
                f"Secret {secret.name} is required, but not provided while calling",
                site.uses_at,
                f"{key}.secrets",
                code="workflow.call",
            )


def _fits(kind: str, value: Template) -> bool:
    """Whether a plain value may be passed; an expression is judged when it has its value."""
    if isinstance(value, ExpressionToken) or kind not in {"boolean", "number"}:
        return True
    return isinstance(value, BooleanToken) if kind == "boolean" else isinstance(value, NumberToken)


def _written(value: Template) -> str:
    if isinstance(value, TextToken):
        return value.value
    if isinstance(value, BooleanToken):
        return "true" if value.value else "false"
    return f"{value.value:g}" if isinstance(value, NumberToken) else ""
