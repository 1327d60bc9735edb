"""What a display remembers of a job: its steps, what went wrong, and the last lines before it did.

Rule kept: memory does not grow with the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.job import (
    Annotation,
    Artifact,
    Conclusion,
    JobFinished,
    JobStarted,
    Log,
    Refusal,
    StepFinished,
    StepStarted,
    Summary,
    Usage,
)
from runyard.report.output import harmless

if TYPE_CHECKING:
    from runyard.job import JobEvent
    from runyard.report.run_report import JobFacts

_TAIL_BYTES = 8192
_TAIL_LINES = 12
_KEPT_ANNOTATIONS = 200
_COMMAND_BYTES = 4096


class StepRecord(msgspec.Struct, kw_only=True):
    """One step as far as it is known; times in nanoseconds."""

    number: int
    name: str
    started_ns: int
    finished_ns: int | None = None
    outcome: Conclusion | None = None
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None
    exit_code: int | None = None
    usage: Usage | None = None
    id: str = ""
    shown: bytes = b""
    tail: bytes = b""

    @property
    def command(self) -> str:
        """The script, or the reference of the action, that it showed last before it ran; the first lines of it."""
        lines: list[str] = []
        for raw in self.shown.split(b"\n"):
            text = harmless(raw, color=False).decode("utf-8", "replace").rstrip()
            if text.startswith("##[group]Run "):
                lines = [text.removeprefix("##[group]Run ")]
            elif text.startswith(("##[endgroup]", "shell: ", "with:", "env:")):
                break
            elif lines:
                lines.append(text)
        # The title of a script's group repeats its first line.
        return "\n".join(lines[1:] if len(lines) > 1 else lines)

    def last_lines(self) -> list[str]:
        """The last lines it printed, plain, newest last."""
        shown = []
        for raw in self.tail.split(b"\n")[-_TAIL_LINES * 2 :]:
            # A line that was drawn over and over is what stood there last.
            last = raw.rstrip(b"\r").rpartition(b"\r")[2]
            text = harmless(last, color=False).decode("utf-8", "replace").rstrip()
            if text and not text.startswith(("##[endgroup]", "##[group]")):
                shown.append(text.removeprefix("##[error]"))
        return shown[-_TAIL_LINES:]


class JobRecord:
    """One job of a display."""

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        self.started_ns: int | None = None
        self.finished_ns: int | None = None
        self.conclusion: Conclusion | None = None
        self.reason: str | None = None
        self.waits: str | None = None
        self.steps: dict[int, StepRecord] = {}
        self.current: StepRecord | None = None
        self.failed: StepRecord | None = None
        self.annotations: list[Annotation] = []
        self.annotation_count = 0
        self.summaries: list[Summary] = []
        self.refusals: list[Refusal] = []
        self.artifacts: list[Artifact] = []
        self.finished: JobFinished | None = None

    def note(self, event: JobEvent) -> None:
        """Remember what the end of the run may ask for."""
        match event:
            case Log():
                if self.current is not None and event.kind == "command":
                    self.current.shown = event.data[:_COMMAND_BYTES]
                elif self.current is not None and event.kind == "output":
                    # The end of a long block is enough; so is the end of what is remembered.
                    self.current.tail = (self.current.tail + event.data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
            case StepStarted():
                self.current = StepRecord(number=event.step, name=event.name, started_ns=event.time_ns)
                self.steps[event.step] = self.current
            case StepFinished():
                self._finish_step(event)
            case Annotation():
                self.annotation_count += 1
                if len(self.annotations) < _KEPT_ANNOTATIONS:
                    self.annotations.append(event)
            case Summary():
                self.summaries.append(event)
            case JobStarted():
                self.started_ns = event.time_ns
            case JobFinished():
                self.finished_ns = event.time_ns
                self.conclusion = event.conclusion
                self.reason = event.reason
                self.finished = event
            case Refusal() if len(self.refusals) < _KEPT_ANNOTATIONS:
                self.refusals.append(event)
            case Artifact():
                self.artifacts.append(event)

    def _finish_step(self, event: StepFinished) -> None:
        step = self.steps.get(event.step)
        if step is None:
            step = StepRecord(number=event.step, name=event.name, started_ns=event.time_ns)
            self.steps[event.step] = step
        step.name, step.finished_ns = event.name, event.time_ns
        step.outcome, step.conclusion = event.outcome, event.conclusion
        step.reason_code, step.exit_code, step.usage, step.id = (
            event.reason_code,
            event.exit_code,
            event.usage,
            event.id,
        )
        step.reason = event.reason or (f"exit code {event.exit_code}" if event.exit_code else None)
        if event.conclusion == "failure" and self.failed is None:
            self.failed = step
        else:
            step.tail = step.shown = b""
        if self.current is step:
            self.current = None

    @property
    def seconds(self) -> float | None:
        """How long it took, where it started and ended."""
        if self.started_ns is None or self.finished_ns is None:
            return None
        return (self.finished_ns - self.started_ns) / 1e9
