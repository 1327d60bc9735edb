"""JobEvents: what execution tells. Everything here is masked before it leaves the job process.

`time_ns` is int64 nanoseconds UTC; order is the order of arrival, never the time. Steps are numbered from 1 as written;
0 is set-up, and what runs after the last (post actions, completion) counts on.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.job.outcome import Conclusion

LogKind: TypeAlias = Literal["output", "command", "runner"]
"""Output of the step; the script and environment shown before it runs; what Runyard itself says."""

AnnotationLevel: TypeAlias = Literal["error", "warning", "notice"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step or a job used: seconds of wall clock and CPU, peak bytes of memory, bytes read and written."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


class JobStarted(msgspec.Struct, frozen=True, tag="job_started", omit_defaults=True):
    """The job process has the claim and begins."""

    time_ns: int


class StepStarted(msgspec.Struct, frozen=True, tag="step_started", omit_defaults=True):
    """A step begins; `name` is masked and may still change in StepFinished. `id` is "" when it has none of its own."""

    step: int
    name: str
    time_ns: int
    id: str = ""


class Log(msgspec.Struct, frozen=True, tag="log", omit_defaults=True):
    """Masked bytes of one step; whole lines with their line ends, except what could not wait for the end of its line.

    `offset` counts masked bytes of this step and kind-independent stream from 0.
    """

    step: int
    offset: int
    time_ns: int
    kind: LogKind
    data: bytes


class Annotation(msgspec.Struct, frozen=True, tag="annotation", omit_defaults=True):
    """An error, warning or notice, with its place where it has one (a path in the repository; lines count from 1).

    `code` is what a tool calls the kind of problem. `truncated_from` is the message's whole length in characters where
    it was cut; the log has all of it.
    """

    step: int
    level: AnnotationLevel
    message: str
    time_ns: int
    title: str | None = None
    file: str | None = None
    line: int | None = None
    end_line: int | None = None
    col: int | None = None
    end_column: int | None = None
    code: str | None = None
    truncated_from: int | None = None


class Output(msgspec.Struct, frozen=True, tag="output", omit_defaults=True):
    """A step set an output; the value is masked."""

    step: int
    name: str
    value: str
    time_ns: int


class Summary(msgspec.Struct, frozen=True, tag="summary", omit_defaults=True):
    """A step's summary in Markdown.

    Where it was cut, `truncated_from` is the whole size in bytes and `whole` the whole text, kept with the job.
    """

    step: int
    text: str
    time_ns: int
    truncated_from: int | None = None
    whole: str | None = None


class StepFinished(msgspec.Struct, frozen=True, tag="step_finished", omit_defaults=True):
    """A step ended: `outcome` before continue-on-error, `conclusion` after it."""

    step: int
    name: str
    outcome: Conclusion
    conclusion: Conclusion
    time_ns: int
    id: str = ""
    exit_code: int | None = None
    usage: Usage | None = None
    reason: str | None = None
    reason_code: str | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal", omit_defaults=True):
    """The sandbox refused a destination; counted, and sent once for each destination."""

    step: int
    destination: str
    because: str
    time_ns: int
    count: int = 1


class Artifact(msgspec.Struct, frozen=True, tag="artifact", omit_defaults=True):
    """The job published an artifact of `size` bytes."""

    step: int
    name: str
    size: int
    digest: str
    time_ns: int


class JobFinished(msgspec.Struct, frozen=True, tag="job_finished", omit_defaults=True):
    """The job's end; `outputs` hold no masked value (such an output is dropped, named in `dropped_outputs`)."""

    conclusion: Conclusion
    time_ns: int
    reason: str | None = None
    reason_code: str | None = None
    outputs: dict[str, str] = {}
    dropped_outputs: tuple[str, ...] = ()
    environment_url: str | None = None
    usage: Usage | None = None


JobEvent: TypeAlias = (
    JobStarted | StepStarted | Log | Annotation | Output | Summary | StepFinished | Refusal | Artifact | JobFinished
)
