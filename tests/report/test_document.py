"""The JSON document of a run, runs side by side in every display, and what is cut and says so."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.cli.shapes import PRINTED, RunEvent
from runyard.job import (
    Annotation,
    Artifact,
    JobFinished,
    JobStarted,
    Log,
    Refusal,
    StepFinished,
    StepStarted,
    Summary,
    Usage,
)
from runyard.report.document import RunDocument
from runyard.report.open import open_sink
from runyard.report.run_report import JobFacts
from runyard.sandbox.docker_counters import transferred

if TYPE_CHECKING:
    from runyard.job import JobEvent
    from runyard.report.open import Format

T0 = 1_893_553_445_123_456_789


def failing(code: int = 2) -> list[JobEvent]:
    shown = b"##[group]Run make\n\x1b[36;1mmake\x1b[0m\n\x1b[36;1mmake install\x1b[0m\nshell: /bin/bash -e {0}\n"
    used = Usage(1.0, 0.5, 1 << 20, None, 7)
    return [
        JobStarted(T0),
        StepStarted(1, "Build", T0, "build"),
        Log(1, 0, T0, "command", shown),
        Log(1, 9, T0, "output", b"compiling\n##[error]a.c is bad\n"),
        Annotation(1, "error", "a.c is bad", T0, file="a.c", line=3, code="E7"),
        Annotation(1, "warning", "m" * 4096, T0, truncated_from=5000),
        Summary(1, "# It", T0, truncated_from=2_000_000),
        Refusal(1, "10.0.0.1:22", "LAN", T0),
        Artifact(1, "a", 1, "d", T0),
        StepFinished(
            1,
            "Build",
            "failure",
            "failure",
            T0 + 10**9,
            "build",
            code,
            used,
            None,
            "exit_code",
        ),
        JobFinished("failure", T0 + 2 * 10**9, "step 'Build' failed", "exit_code", usage=Usage(2.0, 0.5)),
    ]


def show(format_: Format, *runs: tuple[str, list[JobEvent]], ends: bool = True) -> str:
    """Runs of one job each, with the same key, side by side."""
    stream = io.BytesIO()
    report = open_sink(format_, stream, environ={})
    report.not_triggered(workflow="other.yml", reason="the branch does not match")
    for workflow, _ in runs:
        report.run_started(workflow=workflow, event="push", time_ns=T0, run_id=f"of {workflow}")
    sinks = [
        report.job(JobFacts(job="j", key="j", job_name="j", rerun=f"runyard run {workflow} --job j", workflow=workflow))
        for workflow, _ in runs
    ]
    for step in range(max(len(events) for _, events in runs)):
        for sink, (_, events) in zip(sinks, runs, strict=True):
            if step < len(events):
                sink.take(events[step])
    for workflow, events in runs if ends else ():
        ended = events[-1]
        assert isinstance(ended, JobFinished)
        report.run_finished(conclusion=ended.conclusion, time_ns=T0 + 3 * 10**9, workflow=workflow)
    report.close()
    return stream.getvalue().decode()


GOOD: list[JobEvent] = [JobStarted(T0), JobFinished("success", T0 + 10**9)]


def test_the_document_of_a_failed_run() -> None:
    text = show("json", (".github/workflows/ci.yml", failing()), (".github/workflows/good.yml", GOOD))
    assert text.count("\n") == 1
    document = msgspec.json.decode(text, type=PRINTED["run-report"])
    assert isinstance(document, RunDocument)
    assert document.conclusion == "failure"
    other, failed, good = document.runs
    assert (other.triggered, other.reason) == (False, "the branch does not match")
    assert (failed.conclusion, failed.seconds, failed.run_id) == ("failure", 3.0, "of .github/workflows/ci.yml")
    (job,) = failed.jobs
    assert job.failure is not None
    assert job.failure.command == "make\nmake install"
    assert job.failure.last_lines == ["compiling", "a.c is bad"]
    assert (job.failure.exit_code, job.failure.reason_code) == (2, "exit_code")
    assert [(note.code, note.truncated_from) for note in job.annotations] == [("E7", None), (None, 5000)]
    assert job.summaries[0].truncated_from == 2_000_000
    assert job.rerun == "runyard run .github/workflows/ci.yml --job j"
    assert job.steps[0].usage == {"wall_s": 1.0, "cpu_s": 0.5, "peak_memory": 1 << 20, "written_bytes": 7}
    assert job.refusals == [{"step": 1, "destination": "10.0.0.1:22", "because": "LAN"}]
    assert job.artifacts == [{"step": 1, "name": "a", "size": 1, "digest": "d"}]
    (job,) = good.jobs
    assert (job.conclusion, job.failure, job.rerun) == ("success", None, None)


def test_the_document_of_an_interrupted_run_has_what_there_is() -> None:
    document = json.loads(show("json", ("ci.yml", failing()[:5]), ends=False))
    run = document["runs"][1]
    assert (document["conclusion"], run.get("conclusion")) == (None, None)
    assert run["jobs"][0]["steps"][0]["name"] == "Build"


def test_annotations_beyond_what_is_kept_are_counted() -> None:
    many: list[JobEvent] = [Annotation(1, "warning", f"w{n}", T0) for n in range(250)]
    document = json.loads(show("json", ("ci.yml", [*failing()[:2], *many, *failing()[2:]])))
    job = document["runs"][1]["jobs"][0]
    assert (len(job["annotations"]), job["annotations_left_out"]) == (200, 52)


@pytest.mark.parametrize("format_", ["plain", "tree"])
def test_runs_side_by_side_keep_their_jobs_apart(format_: Format) -> None:
    text = show(format_, ("w/a.yml", failing()), ("w/b.yml", GOOD))
    lines = text.splitlines()
    assert "failure in 3.0s (1 job: 1 failure)" in lines
    assert "success in 3.0s (1 job: 1 success)" in lines
    assert any(line.endswith("again: runyard run w/a.yml --job j") for line in lines)
    assert not any("w/b.yml --job" in line for line in lines)
    assert any("a / j" in line for line in lines)
    assert any("b / j" in line for line in lines)


def test_a_run_alone_is_not_named_before_its_jobs() -> None:
    assert "a / j" not in show("plain", ("w/a.yml", failing()))


def test_events_say_their_workflow_and_keep_to_the_schema() -> None:
    text = show("jsonl", ("w/a.yml", failing()), ("w/b.yml", failing()))
    events: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    known = set(RunEvent.__struct_fields__)
    for event in events:
        assert set(event) <= known, event
    of_jobs = [event for event in events if event.get("job")]
    assert {event["workflow"] for event in of_jobs} == {"w/a.yml", "w/b.yml"}
    cut = [event["truncated_from"] for event in of_jobs if "truncated_from" in event]
    assert cut == [5000, 5000, 2_000_000, 2_000_000]
    assert [event["code"] for event in of_jobs if "code" in event] == ["E7", "E7"]


def test_the_last_screen_names_the_command_and_counts_what_it_leaves_out() -> None:
    many: list[JobEvent] = [Annotation(1, "warning", f"w{n}", T0) for n in range(30)]
    lines = show("plain", ("ci.yml", [*failing()[:5], *many, *failing()[5:]])).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("✗ j"))
    assert lines[start + 1] == "  $ make …"
    left = next(line for line in lines if "more annotations" in line)
    shown = sum(line.startswith(("  warning: ", "  error: ")) for line in lines[start:])
    assert left == f"  … and {32 - shown} more annotations"
    assert len(lines) - start <= 20


def test_a_summary_that_was_cut_says_so_on_the_screen() -> None:
    assert "… cut: this summary has 2000000 bytes" in show("plain", ("ci.yml", failing()))


def test_the_bytes_of_a_control_group() -> None:
    text = "8:0 rbytes=100 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2\nbad line\n"
    assert transferred(text) == (101, 22)
    assert transferred("") == (0, 0)
