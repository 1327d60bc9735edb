"""The last screen of a run, for the person who started it: what failed, the lines before it, and how to run it again.

Rule kept: at most twenty lines, however much went wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.report.output import duration, indented, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.job import Conclusion
    from runyard.report.record import JobRecord, StepRecord

MAX_LINES = 20
_SUMMARY_LINES = 200


def digest(
    jobs: Sequence[JobRecord], *, conclusion: Conclusion, reason: str | None, seconds: float | None, width: int = 120
) -> list[str]:
    """The lines, the verdict last. `width` is in characters."""
    failed = [job for job in jobs if job.conclusion in {"failure", "cancelled"}]
    verdict = _verdict(jobs, conclusion, reason, seconds)
    if not failed:
        return [verdict]
    room = MAX_LINES - 1
    shown = failed[: room // 3]
    if len(failed) > len(shown):
        room -= 1
    lines: list[str] = []
    for index, job in enumerate(shown):
        share = room // (len(shown) - index)
        part = _about(job, share, width)
        lines.extend(part)
        room -= len(part)
    if len(failed) > len(shown):
        lines.append(f"… and {len(failed) - len(shown)} more jobs that did not succeed")
    return [*lines, one_line(verdict, width)]


def _verdict(jobs: Sequence[JobRecord], conclusion: Conclusion, reason: str | None, seconds: float | None) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        if job.conclusion is not None:
            counts[job.conclusion] = counts.get(job.conclusion, 0) + 1
    parts = [f"{number} {name}" for name, number in counts.items()]
    took = f" in {duration(seconds)}" if seconds is not None else ""
    why = f": {reason}" if reason else ""
    jobs_text = f" ({'1 job' if len(jobs) == 1 else f'{len(jobs)} jobs'}: {', '.join(parts)})" if parts else ""
    return f"{conclusion}{took}{jobs_text}{why}"


def _about(job: JobRecord, room: int, width: int) -> list[str]:
    """What to say of one job in so many lines: its head, its again, and what fits between."""
    step = job.failed
    head = job.facts.job_name
    if step is not None:
        head += f" › {step.number} {step.name}"
    why = (step.reason if step is not None else None) or job.reason
    lines = [one_line(f"✗ {head}" + (f": {why}" if why else ""), width), *_command(step, width)]
    again = [indented("  again: ", job.facts.rerun, width)] if job.facts.rerun else []
    room -= len(lines) + len(again)
    notes = _notes(job, max(room // 3, 1), width) if room > 0 else []
    last = step.last_lines() if step is not None else []
    kept = last[-(room - len(notes)) :] if room > len(notes) else []
    return [*lines, *(indented("  │ ", line, width) for line in kept), *notes, *again]


def _command(step: StepRecord | None, width: int) -> list[str]:
    """What the failed step ran, where its name doesn't say that already."""
    command = step.command if step is not None else ""
    first, _, rest = command.partition("\n")
    if step is None or not first or step.name == f"Run {command}":
        return []
    return [indented("  $ ", f"{first} …" if rest else first, width)]


def _notes(job: JobRecord, room: int, width: int) -> list[str]:
    """Errors first, each with its place; how many more there are is said."""
    order = {"error": 0, "warning": 1, "notice": 2}
    more = job.annotation_count - room
    shown = room - 1 if more > 0 and room > 1 else room
    lines = []
    for note in sorted(job.annotations, key=lambda note: order[note.level])[:shown]:
        place = f"{note.file}:{note.line}: " if note.file and note.line else f"{note.file}: " if note.file else ""
        lines.append(indented(f"  {note.level}: ", f"{place}{note.message}", width))
    if shown < room:
        lines.append(f"  … and {job.annotation_count - len(lines)} more annotations")
    return lines


def summary_text(job: JobRecord) -> list[str]:
    """A job's summary as lines for people, with a note where it is longer than anybody reads on a screen."""
    lines: list[str] = []
    for summary in job.summaries:
        lines.extend(summary.text.splitlines())
        if summary.truncated_from is not None:
            lines.append(f"… cut: this summary has {summary.truncated_from} bytes; --format jsonl has all of them")
    if not lines:
        return []
    shown = lines[:_SUMMARY_LINES]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown)} more lines; --format jsonl has all of them")
    return shown
