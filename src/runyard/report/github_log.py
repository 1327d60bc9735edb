"""GitHub's own log format: each line with its time, tags and groups as they come (job-semantics 20, runner-v2 12.4).

The log of one job is never mixed with another's: the first job that runs is shown as it goes, the others wait in a file
for their turn.
"""

from __future__ import annotations

import tempfile
from typing import IO, TYPE_CHECKING

from runyard.job import JobFinished, Log, StepFinished
from runyard.report.display import Display
from runyard.report.output import Lines

if TYPE_CHECKING:
    from runyard.job import Conclusion, JobEvent
    from runyard.report.record import JobRecord

_IN_MEMORY = 1 << 20
_COPIED_AT_ONCE = 1 << 20


class GitHubLog(Display):
    """`--format github`."""

    def __init__(self, stream: IO[bytes], *, strict: bool = False) -> None:
        super().__init__(stream, strict=strict)
        self._lines: dict[tuple[str, int], Lines] = {}
        self._shown: str | None = None
        self._waiting: dict[str, IO[bytes]] = {}
        self._ended: set[str] = set()

    def run_finished(
        self,
        *,
        conclusion: Conclusion,
        time_ns: int,
        workflow: str = "",
        reason: str | None = None,
        reason_code: str | None = None,
    ) -> None:
        """A run's end: its logs that still wait are shown, ended or not, unless another run's is being shown."""
        of = f"{workflow}\0" if workflow else ""
        if self._shown is not None and not self._shown.startswith(of):
            return
        self._shown = None
        for key in [each for each in self._waiting if each.startswith(of)]:
            self._release(key)
            self._ended.discard(key)

    def close(self) -> None:
        """Show what still waits. A second close is quiet."""
        for key in list(self._waiting):
            self._release(key)
        super().close()

    def _take(self, record: JobRecord, event: JobEvent) -> None:
        key = record.facts.place
        if isinstance(event, Log):
            place = (key, event.step)
            lines = self._lines.get(place)
            if lines is None:
                lines = self._lines[place] = Lines()
            self._write(key, event.time_ns, lines.whole(event.data))
        elif isinstance(event, StepFinished):
            if (lines := self._lines.pop((key, event.step), None)) is not None:
                self._write(key, event.time_ns, lines.rest())
        elif isinstance(event, JobFinished):
            for place in [place for place in self._lines if place[0] == key]:
                self._write(key, event.time_ns, self._lines.pop(place).rest())
            self._end(key)

    def _write(self, key: str, time_ns: int, lines: bytes) -> None:
        if not lines:
            return
        stamp = self._clock.github(time_ns).encode() + b" "
        data = stamp + lines[:-1].replace(b"\n", b"\n" + stamp) + b"\n"
        if self._shown is None:
            self._shown = key
        if self._shown == key:
            self._out.write(data)
        else:
            if key not in self._waiting:
                # It is closed when its turn has come.
                self._waiting[key] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
            self._waiting[key].write(data)

    def _end(self, key: str) -> None:
        """The next job's turn, if it was this one's; the logs that have ended in the meantime first."""
        self._ended.add(key)
        if self._shown != key:
            return
        self._shown = None
        for waiting in list(self._waiting):
            self._release(waiting)
            if waiting not in self._ended:
                self._shown = waiting
                return

    def _release(self, key: str) -> None:
        with self._waiting.pop(key) as file:
            file.seek(0)
            while data := file.read(_COPIED_AT_ONCE):
                self._out.write(data)
