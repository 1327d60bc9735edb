"""One JSON document for a whole command, written when it ends: every run, its jobs, and what failed with its reasons.

Rule kept: the shapes are a contract; fields are added, never renamed or removed. Memory does not grow with the log:
of a failed step the last lines are kept, and of annotations the first two hundred, with the number of those left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runyard.job import Annotation, Conclusion, Json
from runyard.report.display import Display

if TYPE_CHECKING:
    from typing import IO

    from runyard.job import Usage
    from runyard.report.record import JobRecord, StepRecord


class ReportedStep(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step that started. `usage` has what is known: seconds, bytes of memory at the peak, bytes read and written."""

    number: int
    name: str
    conclusion: Conclusion | None
    id: str | None = None
    outcome: Conclusion | None = None
    exit_code: int | None = None
    reason: str | None = None
    reason_code: str | None = None
    usage: dict[str, float] | None = None


class ReportedFailure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The step that failed a job: what it ran (the first lines), how it ended, the last lines it printed."""

    number: int
    name: str
    command: str
    last_lines: list[str]
    exit_code: int | None = None
    reason: str | None = None
    reason_code: str | None = None


class ReportedAnnotation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An annotation; `truncated_from` is the length of the whole message where it was cut."""

    step: int
    level: str
    message: str
    title: str | None = None
    file: str | None = None
    line: int | None = None
    end_line: int | None = None
    col: int | None = None
    end_column: int | None = None
    code: str | None = None
    truncated_from: int | None = None


class ReportedSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step's summary; `truncated_from` is the whole size in bytes where it was cut."""

    step: int
    text: str
    truncated_from: int | None = None


class ReportedJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job. `failure` is there when a step failed it; `rerun` runs only this job again."""

    job: str
    key: str
    job_name: str
    matrix: Json
    conclusion: Conclusion | None
    reason: str | None = None
    reason_code: str | None = None
    seconds: float | None = None
    usage: dict[str, float] | None = None
    outputs: dict[str, str] = {}
    steps: list[ReportedStep] = []
    failure: ReportedFailure | None = None
    annotations: list[ReportedAnnotation] = []
    annotations_left_out: int = 0
    summaries: list[ReportedSummary] = []
    refusals: list[dict[str, Json]] = []
    artifacts: list[dict[str, Json]] = []
    rerun: str | None = None


class ReportedRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A workflow: what became of it, or why the event did not start it (`triggered` is false then)."""

    workflow: str
    triggered: bool
    name: str | None = None
    event: str | None = None
    run_id: str | None = None
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None
    seconds: float | None = None
    jobs: list[ReportedJob] = []


class RunDocument(msgspec.Struct, kw_only=True):
    """`run --format json`. `conclusion` is the worst of the runs, null where nothing ran."""

    conclusion: Conclusion | None
    runs: list[ReportedRun]
    notes: list[str]


_WORST = ("skipped", "success", "cancelled", "failure")


class Document(Display):
    """`--format json`."""

    def __init__(self, stream: IO[bytes], *, strict: bool = False) -> None:
        super().__init__(stream, strict=strict)
        self._runs: dict[str, ReportedRun] = {}
        self._notes: list[str] = []

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""
        self._runs[workflow] = ReportedRun(workflow=workflow, triggered=False, reason=reason, reason_code=reason_code)

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins."""
        super().run_started(workflow=workflow, event=event, time_ns=time_ns, run_id=run_id, name=name)
        self._runs[workflow] = ReportedRun(
            workflow=workflow, triggered=True, event=event, run_id=run_id or None, name=name or None
        )

    def note(self, text: str) -> None:
        """A sentence of Runyard itself."""
        self._notes.append(text)

    def run_finished(
        self,
        *,
        conclusion: Conclusion,
        time_ns: int,
        workflow: str = "",
        reason: str | None = None,
        reason_code: str | None = None,
    ) -> None:
        """A run's end."""
        run = self._runs.setdefault(workflow, ReportedRun(workflow=workflow, triggered=True))
        run.conclusion, run.reason, run.reason_code = conclusion, reason, reason_code
        run.seconds = self._run_seconds(workflow, time_ns)
        run.jobs = [_job(record) for record in self._jobs_of(workflow)]

    def close(self) -> None:
        """Write the document. A second close is quiet."""
        if not self._closed:
            for run in self._runs.values():  # what was interrupted before it ended
                if run.triggered and run.conclusion is None:
                    run.jobs = [_job(record) for record in self._jobs_of(run.workflow)]
            worst = max(
                (run.conclusion for run in self._runs.values() if run.conclusion), key=_WORST.index, default=None
            )
            document = RunDocument(conclusion=worst, runs=list(self._runs.values()), notes=self._notes)
            self._out.write(msgspec.json.encode(document) + b"\n")
        super().close()


def _job(record: JobRecord) -> ReportedJob:
    facts, finished = record.facts, record.finished
    return ReportedJob(
        job=facts.job,
        key=facts.key,
        job_name=facts.job_name,
        matrix=facts.matrix,
        conclusion=record.conclusion,
        reason=record.reason,
        reason_code=finished.reason_code if finished is not None else None,
        seconds=record.seconds,
        usage=_usage(finished.usage if finished is not None else None),
        outputs=finished.outputs if finished is not None else {},
        steps=[_step(step) for step in record.steps.values()],
        failure=_failure(record.failed) if record.failed is not None else None,
        annotations=[_annotation(each) for each in record.annotations],
        annotations_left_out=record.annotation_count - len(record.annotations),
        summaries=[
            ReportedSummary(step=each.step, text=each.text, truncated_from=each.truncated_from)
            for each in record.summaries
        ],
        refusals=[
            {"step": each.step, "destination": each.destination, "because": each.because} for each in record.refusals
        ],
        artifacts=[
            {"step": each.step, "name": each.name, "size": each.size, "digest": each.digest}
            for each in record.artifacts
        ],
        rerun=facts.rerun if record.conclusion in {"failure", "cancelled"} else None,
    )


def _step(step: StepRecord) -> ReportedStep:
    return ReportedStep(
        number=step.number,
        name=step.name,
        conclusion=step.conclusion,
        id=step.id or None,
        outcome=step.outcome,
        exit_code=step.exit_code,
        reason=step.reason,
        reason_code=step.reason_code,
        usage=_usage(step.usage),
    )


def _failure(step: StepRecord) -> ReportedFailure:
    return ReportedFailure(
        number=step.number,
        name=step.name,
        command=step.command,
        last_lines=step.last_lines(),
        exit_code=step.exit_code,
        reason=step.reason,
        reason_code=step.reason_code,
    )


def _annotation(event: Annotation) -> ReportedAnnotation:
    given: dict[str, Any] = {name: getattr(event, name) for name in ReportedAnnotation.__struct_fields__}
    return ReportedAnnotation(**given)


def _usage(usage: Usage | None) -> dict[str, float] | None:
    if usage is None:
        return None
    counted = {name: getattr(usage, name) for name in usage.__struct_fields__}
    return {name: value for name, value in counted.items() if value is not None}
