"""The needs between jobs: known, without a cycle, with a job that can start (workflow-language 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runyard.job import Position
    from runyard.workflow.problems import Problems


_SHOWN = 12
"""Jobs of a cycle that a message names."""


class Need(NamedTuple):
    """One need as written."""

    name: str
    at: Position | None


def resolve(
    needs: Mapping[str, Sequence[Need]], places: Mapping[str, Position | None], problems: Problems
) -> dict[str, tuple[str, ...]]:
    """The needs of each job by the jobs' own ids; unknown ones, cycles and a missing root become problems.

    `needs` and `places` (where a job's id stands) are by id in file order. Names ignore case.
    """
    ids = {name.upper(): name for name in needs}
    resolved: dict[str, tuple[str, ...]] = {}
    for job, wanted in needs.items():
        found: dict[str, None] = {}
        for need in wanted:
            target = ids.get(need.name.upper())
            if target is None:
                problems.add(
                    f"Job '{job}' depends on unknown job '{need.name}'",
                    need.at,
                    f"jobs.{job}.needs",
                    code="workflow.needs",
                )
            else:
                found[target] = None
        resolved[job] = tuple(found)
    _report_cycles(needs, resolved, problems)
    if needs and all(needs.values()):
        first = next(iter(needs))
        problems.add(
            "The workflow must contain at least one job with no dependencies",
            places.get(first),
            f"jobs.{first}",
            code="workflow.needs",
        )
    return resolved


def _report_cycles(
    needs: Mapping[str, Sequence[Need]], resolved: Mapping[str, tuple[str, ...]], problems: Problems
) -> None:
    for cycle in cycles(resolved):
        job, target = cycle[0], cycle[1 % len(cycle)]
        at = next((need.at for need in needs[job] if need.name.upper() == target.upper()), None)
        shown = cycle if len(cycle) <= _SHOWN else [*cycle[: _SHOWN - 1], "…"]
        way = " needs ".join(f"'{name}'" for name in (*shown, cycle[0]))
        problems.add(
            f"Job '{job}' depends on job '{target}', which creates a cycle in the dependency graph: {way}",
            at,
            f"jobs.{job}.needs",
            code="workflow.needs",
        )


def cycles(graph: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """A cycle for each need that closes one, in the order of the file. Not recursive."""
    state: dict[str, int] = {}
    for start in graph:
        if start in state:
            continue
        trail = [start]
        branches = [iter(graph[start])]
        state[start] = 1
        while branches:
            target = next(branches[-1], None)
            if target is None:
                branches.pop()
                state[trail.pop()] = 2
            elif target not in state:
                state[target] = 1
                trail.append(target)
                branches.append(iter(graph[target]))
            elif state[target] == 1:
                yield trail[trail.index(target) :]
