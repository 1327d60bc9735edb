"""A line of JSON for each event, for programs.

Rule kept: the shapes are a contract; fields are added, never renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runyard.job import (
    Annotation,
    Artifact,
    JobFinished,
    JobStarted,
    Log,
    Output,
    Refusal,
    StepFinished,
    StepStarted,
    Summary,
    Usage,
)
from runyard.report.display import Display
from runyard.report.output import Lines

if TYPE_CHECKING:
    from typing import IO

    from runyard.job import Conclusion, JobEvent
    from runyard.report.record import JobRecord

_encode = msgspec.json.Encoder().encode


class JsonLines(Display):
    """`--format jsonl`."""

    def __init__(self, stream: IO[bytes], *, strict: bool = False) -> None:
        super().__init__(stream, strict=strict)
        self._lines: dict[tuple[str, int, str], Lines] = {}

    def not_triggered(self, *, workflow: str, reason: str, reason_code: str | None = None) -> None:
        """A workflow that the event did not start."""
        self._write({"type": "not_triggered", "workflow": workflow, "reason": reason, **_code(reason_code)})

    def run_started(self, *, workflow: str, event: str, time_ns: int, run_id: str = "", name: str = "") -> None:
        """A run begins."""
        super().run_started(workflow=workflow, event=event, time_ns=time_ns, run_id=run_id, name=name)
        more = {key: value for key, value in (("run_id", run_id), ("name", name)) if value}
        self._write(
            {"type": "run_started", "time": self._clock.rfc3339(time_ns), "workflow": workflow, "event": event, **more}
        )

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
        self._write(
            {
                "type": "run_finished",
                "time": self._clock.rfc3339(time_ns),
                **({"workflow": workflow} if workflow else {}),
                "conclusion": conclusion,
                **_why(reason, reason_code),
            }
        )

    def _take(self, record: JobRecord, event: JobEvent) -> None:
        if isinstance(event, Log):
            self._log(record, event)
            return
        if isinstance(event, StepFinished | JobFinished):
            self._log_rests(record, event)
        shape = _shape(event)
        if shape is not None:
            time = self._clock.rfc3339(event.time_ns)
            self._write(
                {"type": event.__struct_config__.tag, "time": time, **_job(record), **_step(record, event), **shape}
            )

    def _log(self, record: JobRecord, event: Log) -> None:
        place = (record.facts.place, event.step, event.kind)
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = Lines()
        whole = lines.whole(event.data)
        if whole:
            self._write_lines(record, event.step, event.kind, event.time_ns, whole)

    def _log_rests(self, record: JobRecord, event: StepFinished | JobFinished) -> None:
        """The unfinished last lines of what ends now."""
        key = record.facts.place
        for place in [place for place in self._lines if place[0] == key]:
            _, step, kind = place
            if isinstance(event, JobFinished) or step == event.step:
                rest = self._lines.pop(place).rest()
                self._write_lines(record, step, kind, event.time_ns, rest)

    def _write_lines(self, record: JobRecord, step: int, kind: str, time_ns: int, data: bytes) -> None:
        head = {"type": "log", "time": self._clock.rfc3339(time_ns), **_job(record), **_numbered(record, step)}
        start = _encode({**head, "kind": kind})[:-1] + b',"text":'
        texts = data.decode("utf-8", "replace").split("\n")
        texts.pop()
        self._out.write(b"".join([start + _encode(text.removesuffix("\r")) + b"}\n" for text in texts]))

    def _write(self, document: dict[str, Any]) -> None:
        self._out.write(_encode(document) + b"\n")


def _job(record: JobRecord) -> dict[str, Any]:
    facts = record.facts
    of = {"workflow": facts.workflow} if facts.workflow else {}
    return {**of, "job": facts.job, "key": facts.key, "job_name": facts.job_name, "matrix": facts.matrix}


def _step(record: JobRecord, event: JobEvent) -> dict[str, Any]:
    number: int | None = getattr(event, "step", None)
    if number is None:
        return {}
    name: str | None = getattr(event, "name", None) if isinstance(event, StepStarted | StepFinished) else None
    return _numbered(record, number, name)


def _numbered(record: JobRecord, number: int, name: str | None = None) -> dict[str, Any]:
    known = record.steps.get(number)
    return {"step": {"number": number, "name": name if name is not None else known.name if known else ""}}


def _shape(event: JobEvent) -> dict[str, Any] | None:
    """What an event has besides its place; None for what is no event of this format."""
    match event:
        case JobStarted():
            return {}
        case StepStarted():
            return {"id": event.id} if event.id else {}
        case Annotation():
            return {
                "level": event.level,
                "message": event.message,
                "file": event.file,
                "line": event.line,
                "col": event.col,
                "title": event.title,
                "end_line": event.end_line,
                "end_column": event.end_column,
                **({"code": event.code} if event.code else {}),
                **_cut(event),
            }
        case Output():
            return {"name": event.name, "value": event.value}
        case Summary():
            return {"text": event.text, **_cut(event), **({"whole": event.whole} if event.whole is not None else {})}
        case StepFinished():
            return {
                **({"id": event.id} if event.id else {}),
                "outcome": event.outcome,
                "conclusion": event.conclusion,
                **({"exit_code": event.exit_code} if event.exit_code is not None else {}),
                **_why(event.reason, event.reason_code),
                **_usage(event.usage),
            }
        case JobFinished():
            url = {"environment_url": event.environment_url} if event.environment_url else {}
            dropped = {"dropped_outputs": list(event.dropped_outputs)} if event.dropped_outputs else {}
            return {
                "conclusion": event.conclusion,
                **_why(event.reason, event.reason_code),
                "outputs": event.outputs,
                **dropped,
                **url,
                **_usage(event.usage),
            }
        case Refusal():
            count = {"count": event.count} if event.count > 1 else {}
            return {"destination": event.destination, "because": event.because, **count}
        case Artifact():
            return {"name": event.name, "size": event.size, "digest": event.digest}
        case _:
            return None


def _cut(event: Annotation | Summary) -> dict[str, int]:
    return {"truncated_from": event.truncated_from} if event.truncated_from is not None else {}


def _why(reason: str | None, code: str | None) -> dict[str, str]:
    """Both are absent when there is nothing to say."""
    return {**({"reason": reason} if reason else {}), **_code(code)}


def _code(code: str | None) -> dict[str, str]:
    return {"reason_code": code} if code else {}


def _usage(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    counted = {name: getattr(usage, name) for name in Usage.__struct_fields__}
    return {"usage": {name: value for name, value in counted.items() if value is not None}}
