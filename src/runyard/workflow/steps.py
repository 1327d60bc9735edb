"""Steps of a job: from checked templates to the steps that travel (workflow-language 2.4, 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from runyard.expression.conditions import wrap_condition
from runyard.expression.errors import ExpressionError
from runyard.job import ActionStep, ContainerActionStep, RunStep, SequenceToken, Step, Template, TextToken
from runyard.workflow.identifiers import Identifiers
from runyard.workflow.tokens import fields, flag_of, place, present, text_of

if TYPE_CHECKING:
    from runyard.workflow.problems import Problems

NOT_RUN = ("background", "wait", "wait-all", "cancel", "parallel")
"""Keys of background steps: GitHub takes them, this build refuses to run them by name."""

_DOCKER = "docker://"
_LOCAL = ("./", ".\\")


def condition(token: Template | None) -> str:
    """The condition of an `if`, wrapped; one with an error in it, noted before, counts as absent."""
    try:
        return wrap_condition(text_of(token))
    except ExpressionError:
        return "success()"


def steps(token: Template | None, key: str, problems: Problems) -> tuple[Step, ...]:
    """The steps of a job, with ids for those that have none."""
    if not isinstance(token, SequenceToken):
        return ()
    identifiers = Identifiers()
    written: dict[int, str] = {}
    for index, item in enumerate(token.items):
        name = fields(item).get("id")
        if isinstance(name, TextToken):
            fault = identifiers.claim(name.value)
            if fault is not None:
                problems.add(fault, name.at, f"{key}[{index}].id", code="workflow.id")
            written[index] = name.value
    converted = (
        _step(item, _Place(index + 1, written.get(index), f"{key}[{index}]"), identifiers, problems)
        for index, item in enumerate(token.items)
    )
    return tuple(step for step in converted if step is not None)


class _Place(NamedTuple):
    """Where a step stands in its job, and its written id."""

    number: int
    name: str | None
    key: str


def _step(item: Template, where: _Place, identifiers: Identifiers, problems: Problems) -> Step | None:
    name, key = where.name, where.key
    parts = fields(item)
    if "parallel" in parts:
        steps(parts["parallel"], f"{key}.parallel", problems)
    refused = next((each for each in NOT_RUN if each in parts), None)
    if refused is not None and (refused != "background" or flag_of(parts[refused])):
        problems.add(
            f"background steps ('{refused}') are valid on GitHub and not supported by Runyard yet",
            place(parts[refused]) or place(item),
            f"{key}.{refused}",
            severity="warning",
            code="unsupported.background",
        )
        return None
    common: dict[str, Any] = {
        "number": where.number,
        "name": present(parts.get("name")),
        "condition": condition(parts.get("if")),
        "env": present(parts.get("env")),
        "continue_on_error": present(parts.get("continue-on-error")),
        "timeout_minutes": present(parts.get("timeout-minutes")),
    }
    if "run" in parts:
        return RunStep(
            id=name or identifiers.generate("__run"),
            script=parts["run"],
            shell=present(parts.get("shell")),
            working_directory=present(parts.get("working-directory")),
            **common,
        )
    uses = parts.get("uses")
    if not isinstance(uses, TextToken) or not check_uses(uses, key, problems):
        return None
    inputs = present(parts.get("with"))
    if uses.value.startswith(_DOCKER):
        image = uses.value.removeprefix(_DOCKER)
        return ContainerActionStep(id=name or identifiers.generate("__" + image), image=image, inputs=inputs, **common)
    action = split_reference(uses.value)
    if uses.value.startswith(_LOCAL) or action is None:
        return ActionStep(
            id=name or identifiers.generate("__self"), repository=None, path=uses.value, inputs=inputs, **common
        )
    repository, path, ref = action
    return ActionStep(
        id=name or identifiers.generate("__" + repository.replace("/", "_")),
        repository=repository,
        path=path,
        ref=ref,
        inputs=inputs,
        **common,
    )


def check_uses(uses: TextToken, key: str, problems: Problems) -> bool:
    """Whether a step's `uses` has one of the three forms; notes a problem where it hasn't."""
    if uses.value.startswith(_DOCKER):
        fits = uses.value != _DOCKER
    else:
        fits = uses.value.startswith(_LOCAL) or split_reference(uses.value) is not None
    if not fits:
        problems.add(
            f"Expected format {{org}}/{{repo}}[/path]@ref. Actual '{uses.value}'. Local actions begin with './', "
            "images with 'docker://'",
            uses.at,
            f"{key}.uses",
            code="workflow.uses",
        )
    return fits


def split_reference(uses: str) -> tuple[str, str, str] | None:
    """`owner/repo[/path]@ref` as repository, path and ref; None where it isn't of that form."""
    place_, at, ref = uses.partition("@")
    owner, _, rest = place_.partition("/")
    name, _, path = rest.partition("/")
    if not at or not ref or "@" in ref or not owner or not name:
        return None
    return f"{owner}/{name}", path.strip("/"), ref
