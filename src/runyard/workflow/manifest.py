"""Checks an action's manifest, `action.yml` (job-semantics 9.2).

For `runyard check` only: what executes an action reads its manifest itself, in the room `action`. The same vocabulary
as for workflows holds here, with the manifest's own rules: no anchors, up to 100 levels, unknown keys at the top and
in inputs let through.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from runyard.expression.positioned_yaml import MANIFEST_LIMITS, Mapping, YamlError, read_yaml
from runyard.job import SequenceToken, Template, TextToken
from runyard.workflow.definition import (
    ANY,
    NON_EMPTY,
    NULL,
    STEP_CONDITION_FUNCTIONS,
    STEP_FUNCTIONS,
    TEXT,
    Keys,
    Shape,
    boolean,
    condition,
    either,
    free,
    mapping,
    sequence,
    text,
)
from runyard.workflow.identifiers import Identifiers
from runyard.workflow.problems import Problem, Problems, TooManyProblemsError, nearest
from runyard.workflow.reading import add_input_error
from runyard.workflow.steps import check_uses
from runyard.workflow.tokens import fields
from runyard.workflow.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator

USING: Final = ("node12", "node16", "node20", "node24", "docker", "composite")
_RUNS = re.compile(r"^runs\s*:", re.MULTILINE)
_JOBS = re.compile(r"^[\"']?(?:jobs|on)[\"']?\s*:", re.MULTILINE)

_DEFAULT_CONTEXTS = ("github", "strategy", "matrix", "job", "runner")
_STEP_CONTEXTS = (*_DEFAULT_CONTEXTS, "inputs", "steps", "env")
_WHENEVER = condition((*_STEP_CONTEXTS, "needs", "vars", "secrets"), STEP_CONDITION_FUNCTIONS)
_STEP_TEXT = text(contexts=_STEP_CONTEXTS, functions=STEP_FUNCTIONS)
_STEP_MAP = free(TEXT, contexts=_STEP_CONTEXTS, functions=STEP_FUNCTIONS)
_STEP_COMMON = {
    "id": NON_EMPTY,
    "name": _STEP_TEXT,
    "if": condition(_STEP_CONTEXTS, STEP_CONDITION_FUNCTIONS),
    "env": _STEP_MAP,
    "continue-on-error": boolean(_STEP_CONTEXTS, STEP_FUNCTIONS),
}
_RUN_STEP = Keys(
    fixed={**_STEP_COMMON, "run": _STEP_TEXT, "shell": _STEP_TEXT, "working-directory": _STEP_TEXT},
    required=("run", "shell"),
)
_USES_STEP = Keys(fixed={**_STEP_COMMON, "uses": NON_EMPTY, "with": _STEP_MAP}, required=("uses",))
_DOCKER_TEXT = text(contexts=("inputs",))

_RUNS_SHAPE = mapping(
    Keys(fixed={"using": NON_EMPTY, "steps": sequence(mapping(_RUN_STEP, _USES_STEP))}, required=("using", "steps")),
    Keys(
        fixed={"using": NON_EMPTY, "main": NON_EMPTY}
        | {"pre": NON_EMPTY, "pre-if": _WHENEVER, "post": NON_EMPTY, "post-if": _WHENEVER},
        required=("using", "main"),
    ),
    Keys(
        fixed={"using": NON_EMPTY, "image": NON_EMPTY, "entrypoint": NON_EMPTY, "pre-entrypoint": NON_EMPTY}
        | {"post-entrypoint": NON_EMPTY, "pre-if": _WHENEVER, "post-if": _WHENEVER}
        | {"args": sequence(_DOCKER_TEXT), "env": free(_DOCKER_TEXT)},
        required=("using", "image"),
    ),
)


def _open(known: dict[str, Shape], *required: str) -> Shape:
    """A mapping that lets unknown keys through."""
    return mapping(Keys(fixed=known, free=ANY, required=required))


MANIFEST: Final = _open(
    {
        "name": TEXT,
        "description": TEXT,
        "author": TEXT,
        "inputs": either(
            NULL,
            free(either(NULL, _open({"default": text(contexts=_DEFAULT_CONTEXTS, functions=STEP_FUNCTIONS)}))),
        ),
        "outputs": either(
            NULL, free(either(NULL, _open({"description": TEXT, "value": text(contexts=_STEP_CONTEXTS)})))
        ),
        "runs": _RUNS_SHAPE,
    },
    "runs",
)


def is_manifest(source: str, name: str) -> bool:
    """Whether a file is an action's manifest rather than a workflow: by its name, else by its top-level keys."""
    if name in {"action.yml", "action.yaml"}:
        return True
    return _RUNS.search(source) is not None and _JOBS.search(source) is None


def check_manifest(source: str | bytes, *, path: str) -> tuple[Problem, ...]:
    """Everything that is wrong with a manifest. Never raises."""
    problems = Problems(path)
    try:
        root = read_yaml(source, path=path, limits=MANIFEST_LIMITS)
    except YamlError as error:
        add_input_error(problems, error)
        return problems.all()
    if not isinstance(root, Mapping):
        place = (1, 1) if root is None else (root.line, root.column)
        problems.add("an action is a mapping with the key 'runs'", place)
        return problems.all()
    with contextlib.suppress(TooManyProblemsError):
        _check_runs(root, problems)
    return problems.all()


def _check_runs(root: Mapping, problems: Problems) -> None:
    runs = fields(fields(Validator(problems, 1).read(root, MANIFEST)).get("runs"))
    using = runs.get("using")
    if isinstance(using, TextToken) and using.value.lower() not in USING:
        problems.add(
            f"Unexpected value '{using.value}'{nearest(using.value, USING)}: {', '.join(USING)} are supported",
            using.at,
            "runs.using",
        )
    _check_steps(runs.get("steps"), problems)


def _check_steps(token: Template | None, problems: Problems) -> None:
    identifiers = Identifiers()
    for key, step in _steps(token):
        parts = fields(step)
        name, uses = parts.get("id"), parts.get("uses")
        if isinstance(name, TextToken):
            fault = identifiers.claim(name.value)
            if fault is not None:
                problems.add(fault, name.at, f"{key}.id", code="workflow.id")
        if isinstance(uses, TextToken):
            check_uses(uses, key, problems)


def _steps(token: Template | None) -> Iterator[tuple[str, Template]]:
    if isinstance(token, SequenceToken):
        for index, step in enumerate(token.items):
            yield f"runs.steps[{index}]", step
