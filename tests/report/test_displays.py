"""What people and programs see: jsonl, plain lines, the tree, GitHub's format, and a reader that goes away."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from runyard.report.limits import GitHubLimits
from runyard.report.open import open_sink
from runyard.report.output import Clock, duration, harmless, last_states, one_line
from runyard.report.run_report import JobFacts

if TYPE_CHECKING:
    from runyard.job import JobEvent
    from runyard.report.open import Format
    from runyard.report.run_report import RunReport

T0 = 1_893_553_445_123_456_789
SECOND = 1_000_000_000
AGAIN = "runyard run --job build"
FACTS = JobFacts(job="build", key="build-1", job_name="build (linux)", matrix={"os": "linux"}, rerun=AGAIN)
FORMATS: tuple[Format, ...] = ("tree", "plain", "jsonl", "github")


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def failing_job() -> list[JobEvent]:
    return [
        JobStarted(time_ns=T0),
        StepStarted(step=1, name="Run make", time_ns=T0),
        Log(step=1, offset=0, time_ns=T0 + 1, kind="command", data=b"##[group]Run make\n##[endgroup]\n"),
        Log(step=1, offset=9, time_ns=T0 + 2, kind="output", data=b"compiling\n\xff half"),
        Log(step=1, offset=20, time_ns=T0 + 3, kind="output", data=b" line\r\n##[error]a.c is bad\nlast words"),
        Annotation(step=1, level="error", message="a.c is bad", time_ns=T0 + 3, file="a.c", line=3, title="T"),
        Output(step=1, name="k", value="v", time_ns=T0 + 4),
        Summary(step=1, text="# It failed\nbadly", time_ns=T0 + 4),
        Refusal(step=1, destination="10.0.0.1:22", because="LAN", time_ns=T0 + 4),
        Artifact(step=1, name="a", size=1, digest="d", time_ns=T0 + 4),
        StepFinished(
            step=1,
            name="Run make all",
            outcome="failure",
            conclusion="failure",
            time_ns=T0 + 2 * SECOND,
            exit_code=2,
            usage=Usage(wall_s=2.0, cpu_s=1.5),
        ),
        JobFinished(conclusion="failure", time_ns=T0 + 3 * SECOND, reason="step 1 failed", reason_code="exit_code"),
    ]


def show(format_: Format, events: list[JobEvent], **options: Any) -> str:
    stream = io.BytesIO()
    report = open_sink(format_, stream, environ={}, **options)
    report.not_triggered(workflow="other.yml", reason="the branch does not match")
    report.run_started(workflow="ci.yml", event="push", time_ns=T0)
    sink = report.job(FACTS)
    for event in events:
        sink.take(event)
    sink.close()
    skipped = JobFacts(job="deploy", key="deploy", job_name="deploy")
    report.job_skipped(skipped, time_ns=T0 + 3 * SECOND, reason="needs failed", reason_code="needs_failed")
    report.run_finished(conclusion="failure", time_ns=T0 + 4 * SECOND)
    report.close()
    report.close()
    return stream.getvalue().decode("utf-8", "replace")


def test_jsonl_has_the_shapes_that_are_published() -> None:
    events = [json.loads(line) for line in show("jsonl", failing_job()).splitlines()]
    assert [event["type"] for event in events] == [
        "not_triggered",
        "run_started",
        "job_started",
        "step_started",
        "log",
        "log",
        "log",
        "log",
        "log",
        "annotation",
        "output",
        "summary",
        "refusal",
        "artifact",
        "log",
        "step_finished",
        "job_finished",
        "job_finished",
        "run_finished",
    ]
    assert events[0] == {"type": "not_triggered", "workflow": "other.yml", "reason": "the branch does not match"}
    place = {"job": "build", "key": "build-1", "job_name": "build (linux)", "matrix": {"os": "linux"}}
    assert events[2] == {"type": "job_started", "time": "2030-01-02T03:04:05.123456789Z", **place}
    step = {"number": 1, "name": "Run make"}
    assert [(event["kind"], event["text"]) for event in events if event["type"] == "log"] == [
        ("command", "##[group]Run make"),
        ("command", "##[endgroup]"),
        ("output", "compiling"),
        ("output", "\ufffd half line"),
        ("output", "##[error]a.c is bad"),
        ("output", "last words"),
    ]
    logged = [event for event in events if event["type"] == "log"]
    assert all(event["step"] == step and event["key"] == "build-1" for event in logged[:5])
    assert logged[5]["step"]["name"] == "Run make all"  # what was known when its step ended
    wanted = {"level": "error", "message": "a.c is bad", "file": "a.c", "line": 3, "col": None, "title": "T"}
    assert events[9].items() >= {**wanted, **place, "step": step}.items()
    assert (events[10]["name"], events[10]["value"]) == ("k", "v")
    assert events[11]["text"] == "# It failed\nbadly"
    assert events[12].items() >= {"destination": "10.0.0.1:22", "because": "LAN", "step": step}.items()
    assert events[13].items() >= {"name": "a", "size": 1, "digest": "d", "step": step}.items()
    finished = events[15]
    assert finished["step"] == {"number": 1, "name": "Run make all"}
    assert (finished["outcome"], finished["conclusion"], finished["exit_code"]) == ("failure", "failure", 2)
    assert "reason" not in finished
    assert finished["usage"] == {"wall_s": 2.0, "cpu_s": 1.5}
    ended = (events[16]["conclusion"], events[16]["reason"], events[16]["reason_code"], events[16]["outputs"])
    assert ended == ("failure", "step 1 failed", "exit_code", {})
    assert events[17].items() >= {"key": "deploy", "conclusion": "skipped", "reason_code": "needs_failed"}.items()
    assert events[18] == {"type": "run_finished", "time": "2030-01-02T03:04:09.123456789Z", "conclusion": "failure"}


def test_plain_lines_carry_their_job_and_end_with_what_to_do() -> None:
    text = show("plain", failing_job())
    lines = text.splitlines()
    assert "build (linux) | compiling" in lines
    assert "build (linux) | \ufffd half line" in lines
    assert "build (linux) | Error: a.c is bad" in lines
    assert "build (linux) | > Run make" in lines
    assert "build (linux) | last words" in lines
    assert "other.yml: not triggered: the branch does not match" in lines
    assert not [line for line in lines if "##[" in line or "\r" in line]
    assert "-- summary of build (linux)" in lines
    assert "# It failed" in lines
    tail = lines[lines.index("badly") + 1 :]
    assert tail[0] == "✗ build (linux) › 1 Run make all: exit code 2"
    assert "  │ last words" in tail
    assert "  error: a.c:3: a.c is bad" in tail
    assert tail[-2:] == ["  again: runyard run --job build", "failure in 4.0s (2 jobs: 1 failure, 1 skipped)"]


def test_github_lines_have_their_time_with_seven_digits() -> None:
    lines = show("github", failing_job()).splitlines()
    assert lines == [
        "2030-01-02T03:04:05.1234567Z ##[group]Run make",
        "2030-01-02T03:04:05.1234567Z ##[endgroup]",
        "2030-01-02T03:04:05.1234567Z compiling",
        "2030-01-02T03:04:05.1234567Z \ufffd half line",
        "2030-01-02T03:04:05.1234567Z ##[error]a.c is bad",
        "2030-01-02T03:04:07.1234567Z last words",
    ]


def two_jobs(report: RunReport) -> None:
    first = report.job(JobFacts(job="a", key="a", job_name="a"))
    second = report.job(JobFacts(job="b", key="b", job_name="b"))
    for number in range(3):
        for sink, name in ((first, b"a"), (second, b"b")):
            sink.take(Log(step=1, offset=0, time_ns=T0, kind="output", data=b"%s%d\n" % (name, number)))
    second.take(JobFinished(conclusion="success", time_ns=T0))
    first.take(Log(step=1, offset=0, time_ns=T0, kind="output", data=b"a3\n"))
    first.take(JobFinished(conclusion="success", time_ns=T0))
    report.run_finished(conclusion="success", time_ns=T0)
    report.close()


def test_github_logs_of_two_jobs_are_never_mixed() -> None:
    stream = io.BytesIO()
    two_jobs(open_sink("github", stream))
    shown = [line.split()[1].decode() for line in stream.getvalue().splitlines()]
    assert shown == [*(f"a{number}" for number in range(4)), "b0", "b1", "b2"]


def test_the_tree_says_what_stays_where_nobody_can_redraw() -> None:
    text = show("tree", failing_job())
    assert "\x1b" not in text
    lines = text.splitlines()
    assert "✗ build (linux)  3.0s  step 1 failed" in lines
    assert "  ✗ 1 Run make all  2.0s  exit code 2" in lines
    assert "- deploy  needs failed" in lines
    assert lines[-1] == "failure in 4.0s (2 jobs: 1 failure, 1 skipped)"


def test_the_tree_draws_on_a_terminal_and_leaves_it_as_it_was() -> None:
    stream = Terminal()
    report = open_sink("tree", stream, environ={})
    assert report.live
    report.run_started(workflow="ci.yml", event="push", time_ns=T0)
    for number in range(100):
        sink = report.job(JobFacts(job=f"j{number}", key=f"j{number}", job_name=f"job {number}", total_steps=4))
        sink.take(JobStarted(time_ns=T0))
        sink.take(StepStarted(step=2, name="Run x", time_ns=T0))
        sink.take(Log(step=2, offset=0, time_ns=T0, kind="output", data=b"10%\r20%\r30%\n"))
    report.job_waits(JobFacts(job="w", key="w", job_name="waiting"), reason="needs j1")
    before = len(stream.getvalue())
    report.tick(T0 + SECOND)
    drawn = stream.getvalue()[before:].decode()
    assert drawn.count("\n") <= 24
    assert "  2/4 Run x 1.0s" in drawn
    assert "30%" in drawn
    assert "20%" not in drawn
    assert "more jobs" in drawn
    size = len(stream.getvalue())
    report.tick(T0 + SECOND + 1)
    assert len(stream.getvalue()) == size
    report.close()
    text = stream.getvalue()
    assert text.startswith(b"\x1b[?25l")
    assert text.endswith(b"\x1b[?25h")
    report.tick(T0 + 5 * SECOND)
    assert stream.getvalue() == text


def test_a_tree_can_show_every_line_as_well() -> None:
    text = show("tree", failing_job(), verbose=True)
    assert "build (linux) | compiling\n" in text
    assert "build (linux) | last words\n" in text


@pytest.mark.parametrize(
    ("environ", "format_", "terminal", "expected"),
    [
        ({}, None, True, "Tree"),
        ({"TERM": "dumb"}, None, True, "PlainLines"),
        ({}, None, False, "PlainLines"),
        ({}, "github", True, "GitHubLog"),
        ({}, "jsonl", True, "JsonLines"),
    ],
)
def test_the_display_is_chosen_by_flag_and_terminal(
    environ: dict[str, str], format_: Format | None, terminal: bool, expected: str
) -> None:
    stream = Terminal() if terminal else io.BytesIO()
    assert type(open_sink(format_, stream, environ=environ)).__name__ == expected


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_that_want_it(environ: dict[str, str], coloured: bool) -> None:
    stream = Terminal()
    report = open_sink("plain", stream, environ=environ)
    sink = report.job(FACTS)
    sink.take(Log(step=1, offset=0, time_ns=T0, kind="output", data=b"\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07\n"))
    text = stream.getvalue()
    assert (b"\x1b[31mred\x1b[0m\n" in text) is coloured
    assert b"red" in text
    assert b"\x1b[2J" not in text
    assert b"title" not in text


def noisy_job() -> list[JobEvent]:
    events: list[JobEvent] = [JobStarted(time_ns=T0), StepStarted(step=1, name="s", time_ns=T0)]
    events.extend(Annotation(step=1, level="error", message=f"e{n}", time_ns=T0) for n in range(12))
    events.extend(Summary(step=n, text=f"summary {n}", time_ns=T0) for n in range(25))
    events.append(Summary(step=30, text="cut", time_ns=T0, truncated_from=2_000_000, whole="x"))
    return events


def test_C21_D2_all_annotations_are_kept() -> None:
    events = [json.loads(line) for line in show("jsonl", noisy_job()).splitlines()]
    assert sum(event["type"] == "annotation" for event in events) == 12
    assert sum(event["type"] == "summary" for event in events) == 26  # D1
    limits = GitHubLimits()
    assert sum(limits.admits(event) for event in noisy_job() if isinstance(event, Annotation)) == 10
    assert limits.left_out(1) == "2 errors more in the log than annotations"
    assert limits.left_out(2) is None


def test_C21_D2_D1_under_the_switch_as_many_as_on_github() -> None:
    events = [json.loads(line) for line in show("jsonl", noisy_job(), strict=True).splitlines()]
    assert sum(event["type"] == "annotation" for event in events) == 10
    assert sum(event["type"] == "summary" for event in events) == 20


def test_the_last_screen_has_twenty_lines_at_most() -> None:
    for jobs in (1, 2, 5, 40):
        stream = io.BytesIO()
        report = open_sink("plain", stream)
        report.run_started(workflow="ci.yml", event="push", time_ns=T0)
        for number in range(jobs):
            facts = JobFacts(job=f"j{number}", key=f"j{number}", job_name=f"job {number}", rerun=f"again {number}")
            sink = report.job(facts)
            sink.take(StepStarted(step=1, name="s", time_ns=T0))
            sink.take(Log(step=1, offset=0, time_ns=T0, kind="output", data=b"".join(b"l%d\n" % n for n in range(50))))
            for n in range(30):
                sink.take(Annotation(step=1, level="warning", message=f"w{n}" + "x" * 500, time_ns=T0))
            sink.take(StepFinished(step=1, name="s", outcome="failure", conclusion="failure", time_ns=T0, exit_code=1))
            sink.take(JobFinished(conclusion="failure", time_ns=T0))
        before = len(stream.getvalue())
        report.run_finished(conclusion="failure", time_ns=T0)
        lines = stream.getvalue()[before:].decode().splitlines()
        assert len(lines) <= 20
        assert all(len(line) <= 120 for line in lines)
        assert lines[0].startswith("✗ job 0 › 1 s: exit code 1")
        assert any("again 0" in line for line in lines)
        assert lines[-1].startswith(f"failure in 0.0s ({jobs} job")


def test_a_good_run_ends_with_one_line() -> None:
    stream = io.BytesIO()
    report = open_sink("plain", stream)
    sink = report.job(FACTS)
    sink.take(JobFinished(conclusion="success", time_ns=T0))
    before = len(stream.getvalue())
    report.run_finished(conclusion="success", time_ns=T0)
    assert stream.getvalue()[before:] == b"success (1 job: 1 success)\n"


class Gone(io.BytesIO):
    def write(self, data: Any) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("format_", FORMATS)
def test_a_reader_that_goes_away_breaks_nothing(format_: Format) -> None:
    stream = Gone()
    report = open_sink(format_, stream)
    report.run_started(workflow="ci.yml", event="push", time_ns=T0)
    sink = report.job(FACTS)
    for event in failing_job():
        sink.take(event)
    report.run_finished(conclusion="failure", time_ns=T0)
    report.close()
    assert report.broken


def test_a_closed_pipe_leaves_no_traceback() -> None:
    program = (
        "import sys\n"
        "from runyard.report.open import open_sink\n"
        "report = open_sink('plain', sys.stdout.buffer)\n"
        "for n in range(20000): report.note('x' * 100)\n"
        "report.close()\n"
        "sys.exit(0 if report.broken else 9)\n"
    )
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        os.read(read, 100)
        os.close(read)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=8), st.text(max_size=20), st.sampled_from(FORMATS))
def test_no_bytes_of_a_job_make_a_display_fail(chunks: list[bytes], name: str, format_: Format) -> None:
    stream = io.BytesIO()
    report = open_sink(format_, stream, verbose=True)
    sink = report.job(JobFacts(job=name, key="k", job_name=name, matrix=[name]))
    sink.take(StepStarted(step=1, name=name, time_ns=-5))
    for chunk in chunks:
        sink.take(Log(step=1, offset=0, time_ns=T0, kind="output", data=chunk))
    sink.take(JobFinished(conclusion="failure", time_ns=T0, reason=name))
    report.run_finished(conclusion="failure", time_ns=T0, reason=name)
    report.close()
    text = stream.getvalue()
    if format_ == "jsonl":
        logged = [event["text"] for line in text.split(b"\n")[:-1] if (event := json.loads(line))["type"] == "log"]
        whole = b"".join(chunks).decode("utf-8", "replace")
        assert [line.removesuffix("\r") for line in whole.removesuffix("\n").split("\n")] == logged or not whole
    else:
        assert format_ == "github" or b"\x1b" not in text


def test_what_a_line_shows_is_what_stood_there_last() -> None:
    assert last_states(b"10%\r20%\r30%\na\r\nb\n") == b"30%\na\nb\n"
    assert harmless(b"a\x00\x07b\tc\x7f", color=True) == b"ab\tc"
    assert harmless(b"a\x1b[1;31mb\x1b[Kc\x1b(Bd\x1b", color=True) == b"a\x1b[1;31mbcBd"
    assert one_line("a\n b\x1b[31m  c" + "d" * 300, 8) == "a b cdd…"


def test_times_and_durations() -> None:
    clock = Clock()
    assert clock.rfc3339(T0) == "2030-01-02T03:04:05.123456789Z"
    assert clock.github(T0 + 900) == "2030-01-02T03:04:05.1234576Z"
    assert clock.rfc3339(0) == "1970-01-01T00:00:00.000000000Z"
    assert [duration(value) for value in (-1, 0.44, 59.9, 185, 3720)] == ["0.0s", "0.4s", "59s", "3m 05s", "1h 02m"]
