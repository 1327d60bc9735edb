"""A live tree for a person: jobs, the step each is in, its last line; what is done scrolls away above.

Plain ANSI, and the drawn part never grows beyond the window or is drawn more than ten times a second. Where the
stream is no terminal, only the lines that stay are written.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from runyard.job import JobFinished, Log, StepFinished
from runyard.report.digest import digest, summary_text
from runyard.report.display import Display
from runyard.report.output import Lines, duration, harmless, indented, is_terminal, last_states, one_line, terminal_size

if TYPE_CHECKING:
    from runyard.job import Conclusion, JobEvent
    from runyard.report.record import JobRecord, StepRecord

_MARKS = {"success": ("✓", "32"), "failure": ("✗", "31"), "cancelled": ("⊘", "33"), "skipped": ("-", "2")}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_REDRAW_NS = 100_000_000


class Tree(Display):
    """`--format tree`."""

    def __init__(self, stream: IO[bytes], *, color: bool = False, strict: bool = False, verbose: bool = False) -> None:
        super().__init__(stream, strict=strict)
        self._stream = stream
        self._color = color
        self._verbose = verbose
        self.live = is_terminal(stream)
        self._lines: dict[tuple[str, int], Lines] = {}
        self._drawn = 0
        self._drawn_ns = 0
        self._turn = 0
        if self.live:
            self._out.write(b"\x1b[?25l")

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""
        self._stay([self._painted(f"{one_line(workflow)}: not triggered: {one_line(reason)}", "2")])

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins."""
        super().run_started(workflow=workflow, event=event, time_ns=time_ns, run_id=run_id, name=name)
        self._stay([self._painted(f"{one_line(name or workflow)} ({one_line(event)})", "1")])

    def note(self, text: str) -> None:
        """A sentence of Runyard itself."""
        self._stay([self._painted(one_line(text, 400), "2")])

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
        lines: list[str] = []
        jobs = self._jobs_of(workflow)
        for job in jobs:
            if text := summary_text(job):
                lines.append(self._painted(f"summary of {one_line(self._title(job))}", "1"))
                lines.extend(harmless(line.encode("utf-8", "replace"), color=False).decode() for line in text)
        columns, _ = terminal_size(self._stream)
        last = digest(
            jobs,
            conclusion=conclusion,
            reason=reason,
            seconds=self._run_seconds(workflow, time_ns),
            width=max(columns, 40),
        )
        last[-1] = self._painted(last[-1], _MARKS[conclusion][1])
        self._stay([*lines, *last])

    def tick(self, now_ns: int) -> None:
        """Draw what moves with time, at most ten times a second."""
        if self.live and not self._closed and now_ns - self._drawn_ns >= _REDRAW_NS:
            self._drawn_ns = now_ns
            self._turn += 1
            self._draw(self._moving(now_ns))

    def close(self) -> None:
        """Take the moving part away and show the cursor again. A second close is quiet."""
        if not self._closed and self.live:
            self._draw([])
            self._out.write(b"\x1b[?25h")
        super().close()

    def _take(self, record: JobRecord, event: JobEvent) -> None:
        match event:
            case Log():
                if self._verbose:
                    self._show_log(record, event)
            case StepFinished():
                self._finish_log(record, event.step)
                if self._verbose or not self.live:
                    self._stay([f"{self._job_name(record)} {self._step_line(record.steps[event.step])}"])
            case JobFinished():
                self._stay(self._done(record))
            case _:
                pass
        self.tick(event.time_ns)

    def _done(self, record: JobRecord) -> list[str]:
        """What stays of a job that has ended: one line, and its steps where it failed."""
        mark, colour = _MARKS[record.conclusion or "skipped"]
        took = f"  {duration(record.seconds)}" if record.seconds is not None else ""
        why = f"  {one_line(record.reason)}" if record.reason and record.conclusion != "success" else ""
        lines = [f"{self._painted(mark, colour)} {self._job_name(record)}{self._painted(took + why, '2')}"]
        if record.conclusion == "failure":
            lines.extend(f"  {self._step_line(step)}" for step in record.steps.values() if step.outcome is not None)
        return lines

    def _step_line(self, step: StepRecord) -> str:
        mark, colour = _MARKS[step.conclusion or "skipped"]
        took = f"  {duration((step.finished_ns - step.started_ns) / 1e9)}" if step.finished_ns is not None else ""
        why = f"  {one_line(step.reason)}" if step.reason else ""
        return f"{self._painted(mark, colour)} {step.number} {one_line(step.name)}{self._painted(took + why, '2')}"

    def _moving(self, now_ns: int) -> list[str]:
        """The part that is drawn anew: jobs that run, then how many wait."""
        columns, rows = terminal_size(self._stream)
        room = max(rows - 2, 3)
        running = [job for job in self._jobs.values() if job.conclusion is None and job.waits is None]
        waiting = [job for job in self._jobs.values() if job.conclusion is None and job.waits is not None]
        spin = _SPINNER[self._turn % len(_SPINNER)]
        lines: list[str] = []
        for index, job in enumerate(running):
            if len(lines) + 3 > room:
                lines.append(f"  … and {len(running) - index} more jobs")
                break
            lines.extend(self._running(job, spin, now_ns, columns))
        if waiting and len(lines) < room:
            first = waiting[0]
            lines.append(indented(f"  {len(waiting)} waiting; ", f"{self._title(first)}: {first.waits}", columns - 1))
        return lines

    def _running(self, job: JobRecord, spin: str, now_ns: int, columns: int) -> list[str]:
        took = f"  {duration((now_ns - job.started_ns) / 1e9)}" if job.started_ns is not None else ""
        total = f"/{job.facts.total_steps}" if job.facts.total_steps else ""
        lines = [indented(f"{spin} ", f"{self._title(job)}{took}", columns - 1)]
        step = job.current
        if step is not None:
            took = duration((now_ns - step.started_ns) / 1e9)
            lines.append(indented(f"  {step.number}{total} ", f"{step.name}  {took}", columns - 1))
            last = step.last_lines()
            if last:
                lines.append(self._painted(indented("    ", last[-1], columns - 1), "2"))
        return lines

    def _stay(self, lines: list[str]) -> None:
        """Write lines that stay, above the moving part."""
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        self._out.write(self._wiped() + text)

    def _draw(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        self._out.write(self._wiped() + text)
        self._drawn = len(lines)

    def _wiped(self) -> bytes:
        if not self._drawn:
            return b""
        up, self._drawn = self._drawn, 0
        return b"\x1b[%dA\r\x1b[J" % up

    def _show_log(self, record: JobRecord, event: Log) -> None:
        place = (record.facts.place, event.step)
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = Lines()
        self._show_lines(record, lines.whole(event.data))

    def _finish_log(self, record: JobRecord, step: int) -> None:
        lines = self._lines.pop((record.facts.place, step), None)
        if lines is not None:
            self._show_lines(record, lines.rest())

    def _show_lines(self, record: JobRecord, data: bytes) -> None:
        if data:
            prefix = f"{self._job_name(record)} | ".encode("utf-8", "replace")
            shown = last_states(harmless(data, color=self._color))
            self._out.write(self._wiped() + prefix + shown[:-1].replace(b"\n", b"\n" + prefix) + b"\n")

    def _job_name(self, record: JobRecord) -> str:
        return self._painted(one_line(self._title(record), 60), "36")

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text else text
