"""Logs in GitHub's format read back; the real ones of the corpus with the step lists of their jobs."""

from __future__ import annotations

import json
import time

import pytest

from corpus_path import corpus
from runyard.report.github_read import Entry, groups, read_log, step_starts


def test_an_entry_has_time_tag_and_all_its_lines() -> None:
    data = (
        "\ufeff2030-01-02T03:04:05.1234567Z plain\r\n"
        "2030-01-02T03:04:06.0000000Z ##[error]first\nsecond\n"
        "\ufeff2030-01-02T03:04:06.0000001Z ##[group]Run make\n"
    ).encode()
    start = 1893553445 * 1_000_000_000
    assert list(read_log(data)) == [
        Entry(start + 123_456_700, None, "plain"),
        Entry(start + 1_000_000_000, "error", "first\nsecond"),
        Entry(start + 1_000_000_100, "group", "Run make"),
    ]


def test_text_before_the_first_stamp_is_no_entry() -> None:
    assert list(read_log(b"garbage\n\n")) == []


def test_a_step_that_can_not_be_found_is_not_guessed() -> None:
    entries = list(read_log(b"2030-01-02T03:04:05.0000000Z x\n2030-01-02T03:04:05.0000000Z ##[group]Run b\n"))
    assert step_starts(entries, ["Set up job", "Run a", "Run b", "Mine"]) == [0, None, 1, None]


@pytest.mark.corpus
@pytest.mark.parametrize("case", ["cache-sccache", "compat-app-a", "postgres-service", "compat-a-older-runner"])
def test_the_steps_of_real_logs_are_found(case: str) -> None:
    folder = corpus("job-logs")
    indexed = next(entry for entry in json.loads((folder / "index.json").read_text()) if entry["id"] == case)
    data = (folder / indexed["log"]).read_bytes()
    job = json.loads((folder / indexed["job"]).read_text())
    assert data.count(b"\n") in {indexed["lines"], indexed["lines"] - 1}
    entries = list(read_log(data))
    assert [entry.time_ns for entry in entries] == sorted(entry.time_ns for entry in entries)
    ran = [step for step in job["steps"] if step["conclusion"] != "skipped"]
    starts = step_starts(entries, [step["name"] for step in ran])
    found = [start for start in starts if start is not None]
    assert len(found) == len(ran)
    assert found == sorted(set(found))
    for step, start in zip(ran, found, strict=True):
        second = entries[start].time_ns // 1_000_000_000
        assert step["started_at"] <= _text(second + 1)
        assert step["completed_at"] >= _text(second - 1)
    opened = groups(entries)
    assert all(step["name"] in opened for step in ran if step["name"].startswith("Run "))
    assert opened.count("") == 0


def _text(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
