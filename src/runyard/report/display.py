"""What every display does the same way: remembers jobs, keeps GitHub's limits under the switch, ends quietly.

A format overrides the methods that draw. Rule kept: whatever an event holds, no display raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import JobFinished
from runyard.report.limits import GitHubLimits
from runyard.report.output import Clock, Output
from runyard.report.record import JobRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from runyard.job import Conclusion, JobEvent
    from runyard.report.run_report import JobFacts
    from runyard.report.sink import Sink


class JobSink:
    """The events of one job on their way to its display."""

    def __init__(
        self, record: JobRecord, limits: GitHubLimits | None, draw: Callable[[JobRecord, JobEvent], None]
    ) -> None:
        self._record = record
        self._limits = limits
        self._draw = draw
        self._closed = False

    def take(self, event: JobEvent) -> None:
        """One event, already masked. What comes after the end is dropped."""
        if self._closed or (self._limits is not None and not self._limits.admits(event)):
            return
        self._record.note(event)
        self._draw(self._record, event)

    def close(self) -> None:
        """No more will come."""
        self._closed = True


class Display:
    """The part of a RunReport that doesn't draw."""

    live = False

    def __init__(self, stream: IO[bytes], *, strict: bool = False) -> None:
        self._out = Output(stream)
        self._clock = Clock()
        self._strict = strict
        self._jobs: dict[str, JobRecord] = {}
        self._started_ns: dict[str, int] = {}
        self._workflows: dict[str, None] = {}
        self._closed = False

    @property
    def broken(self) -> bool:
        """Whether nobody reads any more."""
        return self._out.broken

    @property
    def problem(self) -> str | None:
        """Why bytes were lost that somebody wanted; None where none were."""
        return self._out.problem

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins; several may follow each other in one display."""
        self._started_ns[workflow] = time_ns
        self._workflows[workflow] = None

    def job_waits(self, facts: JobFacts, *, reason: str) -> None:
        """A job that can't start yet."""
        self._record(facts).waits = reason

    def job(self, facts: JobFacts) -> Sink:
        """The sink of one job's events."""
        record = self._record(facts)
        record.waits = None
        return JobSink(record, GitHubLimits() if self._strict else None, self._take)

    def job_skipped(
        self,
        facts: JobFacts,
        *,
        time_ns: int,
        conclusion: Conclusion = "skipped",
        reason: str | None = None,
        reason_code: str | None = None,
    ) -> None:
        """A job that ended without ever starting."""
        event = JobFinished(conclusion=conclusion, time_ns=time_ns, reason=reason, reason_code=reason_code)
        sink = self.job(facts)
        sink.take(event)
        sink.close()

    def note(self, text: str) -> None:
        """A sentence of Runyard itself about the run."""

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

    def tick(self, now_ns: int) -> None:
        """Redraw what moves with time; nothing here does."""

    def close(self) -> None:
        """Flush. A second close is quiet."""
        self._closed = True

    def _record(self, facts: JobFacts) -> JobRecord:
        record = self._jobs.get(facts.place)
        if record is None:
            record = self._jobs[facts.place] = JobRecord(facts)
        record.facts = facts
        return record

    def _take(self, record: JobRecord, event: JobEvent) -> None:
        """Draw one event."""

    def _jobs_of(self, workflow: str) -> list[JobRecord]:
        """The jobs of a run that has ended, which are forgotten with this."""
        of = {"", workflow}
        ended = {place: job for place, job in self._jobs.items() if not workflow or job.facts.workflow in of}
        for place in ended:
            del self._jobs[place]
        return list(ended.values())

    def _run_seconds(self, workflow: str, time_ns: int) -> float | None:
        if not workflow:
            workflow = next(iter(self._started_ns), "")
        started = self._started_ns.pop(workflow, None)
        return None if started is None else (time_ns - started) / 1e9

    def _title(self, record: JobRecord) -> str:
        """A job's name for people; with its workflow where several run side by side."""
        facts = record.facts
        if len(self._workflows) < 2 or not facts.workflow:
            return facts.job_name
        return f"{facts.workflow.rpartition('/')[2].rpartition('.')[0]} / {facts.job_name}"
