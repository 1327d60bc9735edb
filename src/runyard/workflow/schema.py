"""Every key of a workflow file: its type, its contexts and its functions (workflow-language 2 and 3).

Data, read from top to bottom; the rules for holding a file against it are in `validation.py`.
"""

from __future__ import annotations

from typing import Final

from runyard.workflow.definition import (
    ANY,
    JOB_CONDITION_FUNCTIONS,
    NO_FUNCTIONS,
    NON_EMPTY,
    NULL,
    STEP_CONDITION_FUNCTIONS,
    STEP_FUNCTIONS,
    TEXT,
    TEXTS,
    Keys,
    Shape,
    boolean,
    condition,
    either,
    fixed,
    free,
    mapping,
    number,
    one_of_texts,
    sequence,
    text,
)
from runyard.workflow.events import EVENTS

RUN_CONTEXTS: Final = ("github", "inputs", "vars")
NEEDS_CONTEXTS: Final = (*RUN_CONTEXTS, "needs")
LEG_CONTEXTS: Final = (*NEEDS_CONTEXTS, "strategy", "matrix")
RUNNER_CONTEXTS: Final = (*LEG_CONTEXTS, "job", "runner", "env", "steps")
STEP_CONTEXTS: Final = (*RUNNER_CONTEXTS, "secrets")

PERMISSION_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            *("actions", "artifact-metadata", "attestations", "checks", "code-quality", "contents", "deployments"),
            *("discussions", "drives", "issues", "packages", "pages", "pull-requests", "repository-projects"),
            *("security-events", "statuses"),
        ),
        ("read", "write", "none"),
    ),
    **dict.fromkeys(("id-token", "copilot-requests"), ("write", "none")),
    **dict.fromkeys(("models", "vulnerability-alerts"), ("read", "none")),
}
"""Every key of `permissions` with the levels it takes (workflow-language 9)."""

PERMISSIONS: Final = either(
    one_of_texts("read-all", "write-all"),
    mapping(Keys(fixed={key: one_of_texts(*levels) for key, levels in PERMISSION_LEVELS.items()})),
)

# --- on ------------------------------------------------------------------------------------------------------------

_INPUT_DEFAULT = either(TEXT, boolean(), number())

DISPATCH_INPUT: Final = either(
    NULL,
    mapping(
        fixed(
            description=TEXT,
            type=one_of_texts("string", "boolean", "number", "environment", "choice"),
            required=boolean(),
            default=_INPUT_DEFAULT,
            options=sequence(TEXT),
        )
    ),
)

CALL_INPUT: Final = mapping(
    fixed(
        ("type",),
        description=TEXT,
        type=one_of_texts("string", "boolean", "number"),
        required=boolean(),
        default=either(TEXT, boolean(), number(), contexts=RUN_CONTEXTS),
        deprecationMessage=TEXT,
    )
)

WORKFLOW_CALL: Final = either(
    NULL,
    mapping(
        fixed(
            inputs=free(CALL_INPUT),
            secrets=free(either(NULL, mapping(fixed(description=TEXT, required=boolean())))),
            outputs=free(mapping(fixed(("value",), description=TEXT, value=text(contexts=(*RUN_CONTEXTS, "jobs"))))),
        )
    ),
)

SCHEDULE: Final = sequence(mapping(fixed(("cron",), cron=NON_EMPTY, timezone=NON_EMPTY)))


def _event(name: str) -> Shape:
    """The value of one event in the mapping form of `on`."""
    match name:
        case "schedule":
            return SCHEDULE
        case "workflow_call":
            return WORKFLOW_CALL
        case "workflow_dispatch":
            return either(NULL, mapping(fixed(ignored=True, inputs=either(NULL, free(DISPATCH_INPUT)))))
        case "repository_dispatch":
            return either(NULL, mapping(fixed(types=TEXTS)))
        case _:
            event = EVENTS[name]
            keys: dict[str, Shape] = dict.fromkeys(event.filters, TEXTS)
            if event.types:
                kind = one_of_texts(*event.types)
                keys["types"] = either(kind, sequence(kind))
            return either(NULL, mapping(Keys(fixed=keys)))


_EVENT_NAME = one_of_texts(*EVENTS)

ON: Final = either(
    _EVENT_NAME,
    sequence(_EVENT_NAME),
    mapping(Keys(fixed={name: _event(name) for name in EVENTS})),
)

# --- jobs ----------------------------------------------------------------------------------------------------------


def _concurrency(contexts: tuple[str, ...], group: Shape) -> Shape:
    return either(
        group,
        mapping(fixed(("group",), group=NON_EMPTY, cancel_in_progress=boolean(), queue=one_of_texts("single", "max"))),
        contexts=contexts,
    )


def _defaults(contexts: tuple[str, ...]) -> Shape:
    return mapping(fixed(run=mapping(fixed(shell=NON_EMPTY, working_directory=NON_EMPTY), contexts=contexts)))


_MATRIX_FILTER = sequence(free(ANY))
MATRIX: Final = mapping(Keys(fixed={"include": _MATRIX_FILTER, "exclude": _MATRIX_FILTER}, free=sequence(ANY)))

STRATEGY: Final = mapping(fixed(fail_fast=boolean(), max_parallel=number(), matrix=MATRIX), contexts=NEEDS_CONTEXTS)

_CONTAINER: Final = {
    "image": NON_EMPTY,
    "options": TEXT,
    "env": free(text(contexts=STEP_CONTEXTS)),
    "ports": sequence(NON_EMPTY),
    "volumes": sequence(NON_EMPTY),
    "credentials": mapping(fixed(username=NON_EMPTY, password=NON_EMPTY), contexts=(*RUN_CONTEXTS, "secrets", "env")),
}
CONTAINER: Final = either(TEXT, mapping(Keys(fixed=_CONTAINER)), contexts=LEG_CONTEXTS)
SERVICES: Final = free(
    either(NON_EMPTY, mapping(Keys(fixed={**_CONTAINER, "entrypoint": TEXT, "command": TEXT}))), contexts=LEG_CONTEXTS
)

RUNS_ON: Final = either(TEXTS, mapping(fixed(group=NON_EMPTY, labels=TEXTS)), contexts=LEG_CONTEXTS)

ENVIRONMENT: Final = either(
    TEXT,
    mapping(fixed(("name",), name=TEXT, url=text(contexts=RUNNER_CONTEXTS), deployment=boolean())),
    contexts=LEG_CONTEXTS,
)

SNAPSHOT: Final = either(
    NON_EMPTY,
    mapping(
        Keys(
            fixed={
                "image-name": NON_EMPTY,
                "if": condition(LEG_CONTEXTS, NO_FUNCTIONS),
                "version": NON_EMPTY,
            },
            required=("image-name",),
        )
    ),
)

_STEP_TEXT = text(contexts=STEP_CONTEXTS, functions=STEP_FUNCTIONS)
_STEP_NAME = {"id": NON_EMPTY, "name": _STEP_TEXT, "continue-on-error": boolean(STEP_CONTEXTS, STEP_FUNCTIONS)}
_STEP_COMMON = {
    **_STEP_NAME,
    "if": condition(RUNNER_CONTEXTS, STEP_CONDITION_FUNCTIONS),
    "timeout-minutes": number(STEP_CONTEXTS, STEP_FUNCTIONS),
    "env": free(TEXT, contexts=STEP_CONTEXTS, functions=STEP_FUNCTIONS),
    "background": boolean(),
}
_RUN_STEP = Keys(
    fixed={**_STEP_COMMON, "run": _STEP_TEXT, "shell": NON_EMPTY, "working-directory": _STEP_TEXT}, required=("run",)
)
_USES_STEP = Keys(
    fixed={
        **_STEP_COMMON,
        "uses": NON_EMPTY,
        "with": free(TEXT, contexts=STEP_CONTEXTS, functions=STEP_FUNCTIONS),
    },
    required=("uses",),
)
STEP: Final = mapping(
    _RUN_STEP,
    _USES_STEP,
    Keys(fixed={**_STEP_NAME, "wait": TEXTS}, required=("wait",)),
    Keys(fixed={**_STEP_NAME, "wait-all": either(NULL, boolean())}, required=("wait-all",)),
    Keys(fixed={**_STEP_NAME, "cancel": NON_EMPTY}, required=("cancel",)),
    Keys(fixed={"parallel": sequence(mapping(_RUN_STEP, _USES_STEP))}, required=("parallel",)),
)

_JOB_COMMON: Final = {
    "name": text(contexts=LEG_CONTEXTS),
    "needs": TEXTS,
    "if": condition(NEEDS_CONTEXTS, JOB_CONDITION_FUNCTIONS),
    "strategy": STRATEGY,
    "permissions": PERMISSIONS,
    "concurrency": _concurrency(LEG_CONTEXTS, NON_EMPTY),
}
_NORMAL_JOB = Keys(
    fixed={
        **_JOB_COMMON,
        "runs-on": RUNS_ON,
        "timeout-minutes": number(LEG_CONTEXTS),
        "cancel-timeout-minutes": number(LEG_CONTEXTS),
        "continue-on-error": boolean(LEG_CONTEXTS),
        "container": CONTAINER,
        "services": SERVICES,
        "env": free(TEXT, contexts=(*LEG_CONTEXTS, "secrets")),
        "environment": ENVIRONMENT,
        "outputs": free(text(contexts=STEP_CONTEXTS)),
        "defaults": _defaults((*LEG_CONTEXTS, "env")),
        "steps": sequence(STEP),
        "snapshot": SNAPSHOT,
    },
    required=("runs-on",),
)
_CALL_VALUE = either(TEXT, boolean(), number(), contexts=LEG_CONTEXTS)
_CALLING_JOB = Keys(
    fixed={
        **_JOB_COMMON,
        "uses": NON_EMPTY,
        "with": free(_CALL_VALUE),
        "secrets": either(
            one_of_texts("inherit"),
            free(either(TEXT, boolean(), number(), contexts=(*LEG_CONTEXTS, "secrets"))),
        ),
    },
    required=("uses",),
)
JOB: Final = mapping(_NORMAL_JOB, _CALLING_JOB)

# --- the file ------------------------------------------------------------------------------------------------------

WORKFLOW: Final = mapping(
    Keys(
        fixed={
            "on": ON,
            "name": TEXT,
            "description": TEXT,
            "run-name": text(contexts=RUN_CONTEXTS),
            "env": free(TEXT, contexts=(*RUN_CONTEXTS, "secrets")),
            "defaults": _defaults(()),
            "permissions": PERMISSIONS,
            "concurrency": _concurrency(RUN_CONTEXTS, TEXT),
            "jobs": free(JOB),
        },
        required=("on", "jobs"),
    )
)
