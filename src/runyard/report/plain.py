"""Every line of every job as it comes, each with its job before it: for logs, pipes and terminals without redraw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import JobFinished, JobStarted, Log, StepFinished, StepStarted
from runyard.report.digest import digest, summary_text
from runyard.report.display import Display
from runyard.report.output import Lines, duration, harmless, last_states, one_line

if TYPE_CHECKING:
    from typing import IO

    from runyard.job import Conclusion, JobEvent
    from runyard.report.record import JobRecord

_COLOURS = {"success": "32", "failure": "31", "cancelled": "33", "skipped": "2"}
_TAGS = (
    (b"##[group]", b"> "),
    (b"##[error]", b"Error: "),
    (b"##[warning]", b"Warning: "),
    (b"##[notice]", b"Notice: "),
    (b"##[debug]", b"Debug: "),
    (b"##[command]", b"$ "),
    (b"##[section]", b""),
)


class PlainLines(Display):
    """`--format plain`."""

    def __init__(self, stream: IO[bytes], *, color: bool = False, strict: bool = False) -> None:
        super().__init__(stream, strict=strict)
        self._color = color
        self._lines: dict[tuple[str, int], Lines] = {}

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""
        self._say(f"{workflow}: not triggered: {reason}")

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins."""
        super().run_started(workflow=workflow, event=event, time_ns=time_ns, run_id=run_id, name=name)
        self._say(f"{name or workflow}: started by {event}")

    def note(self, text: str) -> None:
        """A sentence of Runyard itself."""
        self._say(text)

    def run_finished(
        self,
        *,
        conclusion: Conclusion,
        time_ns: int,
        workflow: str = "",
        reason: str | None = None,
        reason_code: str | None = None,
    ) -> None:
        """A run's end: the summaries of its jobs, then what failed and how to run it again."""
        jobs = self._jobs_of(workflow)
        for job in jobs:
            self._say_summary(job)
        seconds = self._run_seconds(workflow, time_ns)
        for line in digest(jobs, conclusion=conclusion, reason=reason, seconds=seconds):
            self._say(line)

    def _take(self, record: JobRecord, event: JobEvent) -> None:
        match event:
            case Log():
                self._log(record, event)
            case JobStarted():
                self._say_of(record, "started")
            case StepStarted():
                self._say_of(record, self._painted(f"== {event.step} {one_line(event.name)}", "1"))
            case StepFinished():
                self._rest(record, event.step)
                self._say_of(record, self._step_end(record, event))
            case JobFinished():
                for step in [step for key, step in self._lines if key == record.facts.place]:
                    self._rest(record, step)
                took = f" in {duration(record.seconds)}" if record.seconds is not None else ""
                why = f": {one_line(event.reason)}" if event.reason else ""
                text = f"{event.conclusion}{took}{why}"
                self._say_of(record, self._painted(text, _COLOURS[event.conclusion]))
            case _:
                return

    def _step_end(self, record: JobRecord, event: StepFinished) -> str:
        step = record.steps[event.step]
        took = duration((event.time_ns - step.started_ns) / 1e9)
        why = f": {one_line(step.reason)}" if step.reason else ""
        went_on = " (failure, goes on)" if event.outcome == "failure" and event.conclusion == "success" else ""
        text = f"-- {event.step} {one_line(event.name)}: {event.conclusion}{went_on} in {took}{why}"
        return self._painted(text, _COLOURS[event.conclusion])

    def _log(self, record: JobRecord, event: Log) -> None:
        place = (record.facts.place, event.step)
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = Lines()
        self._write_lines(record, lines.whole(event.data))

    def _rest(self, record: JobRecord, step: int) -> None:
        lines = self._lines.pop((record.facts.place, step), None)
        if lines is not None:
            self._write_lines(record, lines.rest())

    def _write_lines(self, record: JobRecord, data: bytes) -> None:
        if not data:
            return
        data = last_states(harmless(data, color=self._color))
        if b"##[" in data:
            data = _without_tags(data)
            if not data:
                return
        prefix = self._prefix(record)
        self._out.write(prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n")

    def _prefix(self, record: JobRecord) -> bytes:
        return self._painted(one_line(self._title(record), 40), "36").encode("utf-8", "replace") + b" | "

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text

    def _say_of(self, record: JobRecord, text: str) -> None:
        self._out.write(self._prefix(record) + text.encode("utf-8", "replace") + b"\n")

    def _say(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "replace") + b"\n")

    def _say_summary(self, record: JobRecord) -> None:
        lines = summary_text(record)
        if lines:
            self._say(f"-- summary of {one_line(self._title(record))}")
            for line in lines:
                self._say(harmless(line.encode("utf-8", "replace"), color=False).decode("utf-8", "replace"))


def _without_tags(data: bytes) -> bytes:
    """Whole lines with the tags of GitHub's log as words; the ends of groups go."""
    shown = []
    for line in data.splitlines(keepends=True):
        if line.startswith(b"##[endgroup]"):
            continue
        for tag, word in _TAGS:
            if line.startswith(tag):
                line = word + line[len(tag) :]  # noqa: PLW2901 - the line as it is shown
                break
        shown.append(line)
    return b"".join(shown)
