"""What of a JobSpec the job message can carry.

A round trip JobSpec → message → JobSpec gives `normal_form(spec)`, and the normal form of that is itself. The message
has no place for what the server alone decides with (labels, group, pool, image, platform, limits, tolerance, retries,
trust, what to collect and require), for ids that are no GUIDs, and for a caller in front of the job's id; an empty
`inputs` and none at all are the same to it, a step's number is its place, and the entry point of a `docker://` step has
one spelling, and a number that is not finite travels as its text.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, TypeVar

import msgspec

from runyard.job import ContainerActionStep, Entry, JobSpec, MappingToken, NumberToken, SequenceToken, TextToken

if TYPE_CHECKING:
    from runyard.job import Json, Step, Template

_IDS = uuid.UUID("0b7b6f8e-52c1-4d0f-9d1e-3f6f5f5ad9c7")


def guid_of(text: str) -> str:
    """`text` where it is a GUID, in lower case; else one made of it, always the same."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return str(uuid.uuid5(_IDS, text))


def step_guid(job_id: str, number: int) -> str:
    """The id of a step's record; the same for each attempt of a job."""
    return str(uuid.uuid5(_IDS, f"{guid_of(job_id)}/{number}"))


def normal_form(spec: JobSpec) -> JobSpec:
    """What is left of `spec` after a round trip."""
    environment = spec.environment
    if environment is not None:
        environment = msgspec.structs.replace(environment, url=finite_template(environment.url))
    return JobSpec(
        id=guid_of(spec.id),
        run_id=guid_of(spec.run_id),
        key=spec.key,
        job=spec.job.rpartition("/")[2],
        name=spec.name,
        steps=tuple(_step(step, place) for place, step in enumerate(spec.steps, 1)),
        container=finite_template(spec.container),
        services=finite_template(spec.services),
        env=tuple(finite_template(level) for level in spec.env),
        defaults=tuple(finite_template(level) for level in spec.defaults),
        outputs=finite_template(spec.outputs),
        environment=environment,
        permissions=spec.permissions,
        needs=spec.needs,
        matrix=finite(spec.matrix),
        strategy=spec.strategy,
        inputs=finite(spec.inputs) or None,
        workflow_path=spec.workflow_path,
        workflow_ref=spec.workflow_ref,
        workflow_sha=spec.workflow_sha,
    )


def _step(step: Step, place: int) -> Step:
    changes: dict[str, object] = {
        field: finite_template(getattr(step, field)) for field in _TEMPLATES if hasattr(step, field)
    }
    numbered = msgspec.structs.replace(step, number=place, **changes)
    if isinstance(numbered, ContainerActionStep):
        return msgspec.structs.replace(numbered, inputs=spelled(numbered.inputs, "entrypoint"))
    return numbered


_TEMPLATES = (
    "name",
    "env",
    "continue_on_error",
    "timeout_minutes",
    "script",
    "shell",
    "working_directory",
    "inputs",
)


def number_text(value: float) -> str:
    """How a number that is not finite is written."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def finite(value: Json) -> Json:
    """A JSON value with its numbers that are not finite as text."""
    match value:
        case float() if not math.isfinite(value):
            return number_text(value)
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value


_MaybeTemplate = TypeVar("_MaybeTemplate", "Template", "Template | None")


def finite_template(template: _MaybeTemplate) -> _MaybeTemplate:
    """The same for a Template."""
    match template:
        case NumberToken() if not math.isfinite(template.value):
            return TextToken(number_text(template.value), template.at)
        case SequenceToken():
            return SequenceToken(tuple(finite_template(item) for item in template.items), template.at)
        case MappingToken():
            entries = (Entry(entry.key, finite_template(entry.value)) for entry in template.entries)
            return MappingToken(tuple(entries), template.at)
        case _:
            return template


def spelled(inputs: Template | None, entry_point: str) -> Template | None:
    """The inputs of a `docker://` step with this spelling of its entry point."""
    if not isinstance(inputs, MappingToken):
        return inputs
    entries = []
    for entry in inputs.entries:
        key = entry.key
        if isinstance(key, TextToken) and key.value.lower() == entry_point.lower():
            key = TextToken(entry_point, key.at)
        entries.append(Entry(key, entry.value))
    return MappingToken(tuple(entries), inputs.at)
