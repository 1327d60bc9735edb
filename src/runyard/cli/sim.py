"""`runyard sim`: a seeded history of a whole control plane in virtual time, replayed, or many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.simulation import Report

SEEDS_LIMIT = 100_000


class Failure(msgspec.Struct, frozen=True):
    """A seed whose history broke a promise, and the command that replays it."""

    seed: int
    problem: str
    replay: str


class SimReport(msgspec.Struct, frozen=True):
    """What `runyard sim` prints. `history` is a digest over all histories in their order: equal seeds, equal digests.

    `transitions` counts the histories in which each transition of a job's life happened; `never` are those that did in
    none. `seconds` is virtual time.
    """

    seeds: int
    history: str
    seconds: float
    commits: int
    runs: int
    jobs: int
    attempts: int
    transitions: dict[str, int]
    never: tuple[str, ...]
    conclusions: dict[str, int]
    happened: dict[str, int]
    failures: tuple[Failure, ...]


@click.command(epilog="Example: runyard sim --seed 7")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed, or the first one.")
@click.option(
    "--seeds", "count", type=click.IntRange(1, SEEDS_LIMIT), default=1, show_default=True, help="How many, one by one."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
def command(*, seed: int, count: int, form: str, as_json: bool) -> int:
    """Replay the history of a seed: a control plane with workers, crashes, partitions and clock jumps in virtual time.

    A seed gives the same history everywhere. Prints what happened and which transitions of a job's life were visited;
    exits 1 when a promise was broken.
    """
    from runyard.simulation import simulate

    report = summed(simulate(each) for each in range(seed, seed + count))
    if as_json or form == "json":
        click.echo(msgspec.json.encode(report).decode())
    else:
        _print(report)
    return 1 if report.failures else 0


def summed(reports: Iterable[Report]) -> SimReport:
    """One report of many histories."""
    import hashlib
    from collections import Counter

    from runyard.simulation.world import every_transition

    history = hashlib.sha256()
    counts: Counter[str] = Counter()
    visited: Counter[str] = Counter()
    conclusions: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    seconds = 0.0
    failures = []
    for report in reports:
        history.update(bytes.fromhex(report.history))
        counts.update(seeds=1, commits=report.commits, runs=report.runs, jobs=report.jobs, attempts=report.attempts)
        visited.update(report.transitions)
        conclusions.update(report.conclusions)
        happened.update(report.happened)
        seconds += report.seconds
        if report.problem is not None:
            failures.append(Failure(report.seed, report.problem, f"runyard sim --seed {report.seed}"))
    return SimReport(
        seeds=counts["seeds"],
        history=history.hexdigest(),
        seconds=round(seconds, 3),
        commits=counts["commits"],
        runs=counts["runs"],
        jobs=counts["jobs"],
        attempts=counts["attempts"],
        transitions=dict(sorted(visited.items())),
        never=tuple(each for each in every_transition() if each not in visited),
        conclusions=dict(sorted(conclusions.items())),
        happened=dict(sorted(happened.items())),
        failures=tuple(failures),
    )


def _print(report: SimReport) -> None:
    many = report.seeds > 1
    click.echo(f"{report.seeds} histories" if many else "one history")
    click.echo(f"  {report.seconds:.0f} s of virtual time, {report.commits} commits, digest {report.history[:16]}")
    click.echo(f"  {report.runs} runs, {report.jobs} jobs, {report.attempts} hand-outs")
    click.echo(f"  jobs: {_counted(report.conclusions)}")
    if report.happened:
        click.echo(f"  happened: {_counted(report.happened)}")
    total = len(report.transitions) + len(report.never)
    click.echo(f"  transitions visited: {len(report.transitions)} of {total}")
    for name, count in report.transitions.items():
        click.echo(f"    {_named(name):<44} {count}" if many else f"    {_named(name)}")
    if many and report.never:
        click.echo(f"  never: {'; '.join(_named(name) for name in report.never)}")
    for failure in report.failures:
        click.echo(f"broken with seed {failure.seed}: {failure.problem}\n  {failure.replay}", err=True)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _named(key: str) -> str:
    """`leased/passed/lost` as people read it."""
    phase, happening, case = key.split("/", 2)
    return f"{phase}, {happening.replace('_', ' ')}{f' ({case})' if case else ''}"
