"""What people and programs see of a run: one display, several jobs, a sink for each.

A format draws; this page is what every format keeps. Rules: the exit of a run never depends on whether anybody still
reads (a broken pipe ends the display quietly), and no format sees an unmasked byte, for the masker is in the job
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from runyard.job import Json

if TYPE_CHECKING:
    from runyard.job import Conclusion
    from runyard.report.sink import Sink


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the run knows about a job before it starts. `total_steps` is what the plan names, 0 where unknown.

    `rerun` is the command that runs only this job again, shown when it fails. `workflow` is the file of its run:
    `key` is unique within that alone.
    """

    job: str
    key: str
    job_name: str
    matrix: Json = None
    total_steps: int = 0
    rerun: str | None = None
    workflow: str = ""

    @property
    def place(self) -> str:
        """What tells this job from all others of a display."""
        return f"{self.workflow}\0{self.key}"


class RunReport(Protocol):
    """One display. No method raises for a broken output; `broken` says that nobody reads any more."""

    @property
    def broken(self) -> bool:
        """Whether the output is gone (EPIPE)."""

    @property
    def problem(self) -> str | None:
        """Why bytes were lost that somebody wanted (a full disk); None where none were."""

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins."""

    def job_waits(self, facts: JobFacts, *, reason: str) -> None:
        """A job that can't start yet, for the tree; may come again with another reason."""

    def job(self, facts: JobFacts) -> Sink:
        """The sink of one job's events; the display shows it from its first event on."""

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

    def note(self, text: str) -> None:
        """A sentence of Runyard itself about the run (a stand-in image, the network level)."""

    def run_finished(
        self,
        *,
        conclusion: Conclusion,
        time_ns: int,
        workflow: str = "",
        reason: str | None = None,
        reason_code: str | None = None,
    ) -> None:
        """A run's end; people get the summary here."""

    def tick(self, now_ns: int) -> None:
        """Redraw what moves with time. Call it about ten times a second where `live`."""

    @property
    def live(self) -> bool:
        """Whether `tick` does anything."""

    def close(self) -> None:
        """Flush and leave the terminal as it was. A second close is quiet."""
