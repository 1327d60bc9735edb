"""What a call of a reusable workflow passes down and what comes back (workflow-language 5.2, 5.3, 11).

Secrets travel as templates over the caller's secrets and get their values only in `resolve_secrets`, in the hands of
whoever holds a vault: nothing that `advance` returns has the value of a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import ExpressionToken, MappingToken, NullToken, TextToken
from runyard.run.evaluate import Evaluator, UnevaluableError, boolean, number, text
from runyard.run.state import SecretLevel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runyard.job import Json, RunContext, Template
    from runyard.workflow.plan import CalledPlan, CallPlan, InputDefinition

ALWAYS_PASSED = "GITHUB_TOKEN"


def call_inputs(evaluator: Evaluator, call: CallPlan, contexts: dict[str, Json]) -> dict[str, Json]:
    """The `inputs` of a called workflow: given values checked against their type, else defaults.

    Raises UnevaluableError for a value of the wrong type, an unknown or a missing required input.
    """
    given = {} if call.inputs is None else evaluator.value(call.inputs, contexts)
    if not isinstance(given, dict):
        raise UnevaluableError("`with` of a call must be a mapping", call.inputs.at if call.inputs else None)
    by_name = {key.lower(): (key, value) for key, value in given.items()}
    inputs: dict[str, Json] = {}
    for definition in call.workflow.inputs:
        found = by_name.pop(definition.name.lower(), None)
        if found is not None:
            inputs[definition.name] = _typed(definition, found[1], call.inputs)
        elif definition.required:
            raise UnevaluableError(f"Input {definition.name} is required, but not provided while calling {call.uses}")
        else:
            inputs[definition.name] = _default(evaluator, definition, inputs)
    for name, _ in by_name.values():
        raise UnevaluableError(f"Invalid input, {name} is not defined in the referenced workflow.")
    return inputs


def _typed(definition: InputDefinition, value: Json, template: Template | None) -> Json:
    at = template if template is not None else NullToken()
    match definition.type:
        case "boolean":
            return boolean(value, at, f"input {definition.name}")
        case "number":
            return number(value, at, f"input {definition.name}")
        case _:
            return text(value, at, f"input {definition.name}")


def _default(evaluator: Evaluator, definition: InputDefinition, inputs: dict[str, Json]) -> Json:
    if definition.default is None or isinstance(definition.default, NullToken):
        return {"boolean": False, "number": 0}.get(definition.type, "")
    value = evaluator.value(definition.default, {"inputs": dict(inputs)})
    return _typed(definition, value, definition.default)


def call_secrets(call: CallPlan, contexts: dict[str, Json]) -> SecretLevel:
    """What this call passes down, unevaluated."""
    if call.inherit:
        return SecretLevel(inherit=True)
    names: dict[str, Template] = {}
    if isinstance(call.secrets, MappingToken):
        for entry in call.secrets.entries:
            if isinstance(entry.key, TextToken):
                names[entry.key.value] = entry.value
    return SecretLevel(names=names, contexts={key: contexts[key] for key in sorted(contexts)} if names else {})


def resolve_secrets(
    levels: Sequence[SecretLevel], available: Mapping[str, str], context: RunContext, *, strict: bool = False
) -> dict[str, str]:
    """The secrets a job gets, by name in upper case, from those of the repository through every call above it.

    A mapped secret that evaluates to nothing is not passed; the job token always is. Raises UnevaluableError where a
    template has no value. Holds values: never log the result.
    """
    secrets = {name.upper(): value for name, value in available.items()}
    evaluator = Evaluator(context, strict=strict)
    for level in levels:
        if level.inherit:
            continue
        passed: dict[str, str] = {}
        for name, template in level.names.items():
            value = text(evaluator.value(template, {**level.contexts, "secrets": secrets}), template, f"secret {name}")
            if value:
                passed[name.upper()] = value
        if ALWAYS_PASSED in secrets:
            passed.setdefault(ALWAYS_PASSED, secrets[ALWAYS_PASSED])
        secrets = passed
    return secrets


def call_outputs(evaluator: Evaluator, called: CalledPlan, inputs: Json, jobs: dict[str, Json]) -> dict[str, str]:
    """The outputs of a called workflow whose jobs ended; `jobs` is the `jobs` context. Raises UnevaluableError."""
    outputs: dict[str, str] = {}
    if not isinstance(called.outputs, MappingToken):
        return outputs
    for entry in called.outputs.entries:
        if not isinstance(entry.key, TextToken):
            continue
        template = _value_of(entry.value)
        if template is not None:
            value = evaluator.value(template, {"jobs": jobs, "inputs": {} if inputs is None else inputs})
            outputs[entry.key.value] = text(value, template, f"output {entry.key.value}")
    return outputs


def _value_of(template: Template) -> Template | None:
    """An output is written as its value, or as a mapping that has it below `value`."""
    if isinstance(template, MappingToken):
        for entry in template.entries:
            if isinstance(entry.key, TextToken) and entry.key.value == "value":
                return entry.value
        return None
    return template if isinstance(template, (TextToken, ExpressionToken)) else None
