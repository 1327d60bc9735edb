"""The shapes that commands print for programs, as types: the source of `runyard schema` and of the tests.

Fields are added freely, never renamed or removed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from runyard.report.document import RunDocument

Conclusion = Literal["success", "failure", "cancelled", "skipped"]
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")]


class PlanDecision(msgspec.Struct, kw_only=True):
    """Why a job or a step runs or not: the rule that decided, its condition, and the values it looked at."""

    rule: Literal["trigger", "selected", "needs", "if", "matrix", "concurrency", "limit", "label", "later"]
    condition: str | None
    values: dict[str, Any]


class PlanStep(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step as far as it is known."""

    number: int
    id: str | None
    name: str
    uses: str | None
    decision: PlanDecision


class PlanNote(msgspec.Struct, kw_only=True):
    """Something a person should know before the run."""

    code: str
    message: str
    step: int | None


class ListedJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job of `run --list`; `--plan` adds the fields from `decision` on. `runs` is false only when it is certain."""

    id: str
    key: str
    name: str
    matrix: dict[str, Any] | None
    needs: list[str]
    runs: bool
    reason: str | None
    decision: PlanDecision | msgspec.UnsetType = msgspec.UNSET
    runs_on: Any | msgspec.UnsetType = msgspec.UNSET
    image: str | msgspec.UnsetType | None = msgspec.UNSET
    sandbox: str | msgspec.UnsetType | None = msgspec.UNSET
    network: str | msgspec.UnsetType | None = msgspec.UNSET
    steps: list[PlanStep] | msgspec.UnsetType = msgspec.UNSET
    notes: list[PlanNote] | msgspec.UnsetType = msgspec.UNSET


class ListedWorkflow(msgspec.Struct, kw_only=True):
    """One workflow file, and whether the event starts it."""

    path: str
    triggered: bool
    reason: str | None
    jobs: list[ListedJob]


class Listing(msgspec.Struct, kw_only=True):
    """`run --list --format json` and `run --plan --format json`."""

    workflows: list[ListedWorkflow]


class CheckProblem(msgspec.Struct, kw_only=True):
    """One problem of a file; `key` is the place in it."""

    line: int | None
    column: int | None
    key: str | None
    severity: Literal["error", "warning"]
    message: str


class CheckedFile(msgspec.Struct, kw_only=True):
    """One file; `valid` is false when a problem is an error."""

    path: str
    valid: bool
    problems: list[CheckProblem]


class Checked(msgspec.Struct, kw_only=True):
    """`check --format json`."""

    files: list[CheckedFile]


class StepName(msgspec.Struct, kw_only=True):
    """The step of an event."""

    number: int
    name: str


class RunEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of `run --format jsonl`; which fields are there depends on `type`."""

    type: Literal[
        "not_triggered",
        "run_started",
        "job_started",
        "step_started",
        "log",
        "annotation",
        "output",
        "summary",
        "step_finished",
        "job_finished",
        "run_finished",
        "refusal",
        "artifact",
    ]
    time: Time
    workflow: str | None = None
    job: str | None = None
    key: str | None = None
    job_name: str | None = None
    matrix: dict[str, Any] | None = None
    step: StepName | None = None
    text: str | None = None
    kind: Literal["output", "command", "runner"] | None = None
    level: Literal["error", "warning", "notice"] | None = None
    message: str | None = None
    file: str | None = None
    line: int | None = None
    col: int | None = None
    title: str | None = None
    outcome: Conclusion | None = None
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None
    usage: dict[str, Any] | None = None
    outputs: dict[str, str] | None = None
    event: str | None = None
    run_id: str | None = None
    id: str | None = None
    exit_code: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    code: str | None = None
    truncated_from: int | None = None
    whole: str | None = None
    value: str | None = None
    dropped_outputs: list[str] | None = None
    environment_url: str | None = None
    name: str | None = None
    size: int | None = None
    digest: str | None = None
    destination: str | None = None
    because: str | None = None
    count: int | None = None


PRINTED = {
    "run-list": Listing,
    "run-plan-printed": Listing,
    "run-event": RunEvent,
    "run-report": RunDocument,
    "check": Checked,
}
"""What commands print, by the name that `runyard schema` takes."""
