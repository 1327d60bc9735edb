"""Who of a concurrency group runs, who waits, who is cancelled (workflow-language 8).

Pure: a group's state goes in, the next one and a verdict come out. The run graph uses it for jobs of one run, the
command line for the workflows it starts, a server for all runs of a repository. The rule it keeps: one member holds a
group at a time.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PENDING_LIMIT: Final = 100
"""Members that may wait in a group with `queue: max`."""

GROUP_LENGTH_LIMIT: Final = 400


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group: the member that holds it and those that wait, oldest first."""

    holder: str | None = None
    waiting: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """Nobody holds it and nobody waits."""
        return self.holder is None and not self.waiting


class Arrival(msgspec.Struct, frozen=True):
    """What an arrival leads to: the newcomer holds, waits or is cancelled; others to cancel, each for the newcomer."""

    group: Group
    verdict: Literal["holds", "waits", "cancelled"]
    cancel_waiting: tuple[str, ...] = ()
    cancel_holder: str | None = None


def same_group(name: str) -> str:
    """The form in which two names of one group are equal: they ignore case."""
    return name.lower()


def arrive(group: Group, member: str, *, cancel_in_progress: bool = False, queue: str = "single") -> Arrival:
    """A member arrives. The holder to cancel keeps the group until it has left; the newcomer waits that long.

    Arriving again while holding or waiting changes nothing.
    """
    if member == group.holder:
        return Arrival(group, "holds")
    if member in group.waiting:
        return Arrival(group, "waits")
    if group.holder is None and not group.waiting:
        return Arrival(Group(member), "holds")
    if queue == "max":
        if len(group.waiting) >= PENDING_LIMIT:
            return Arrival(group, "cancelled")
        waiting = (*group.waiting, member)
        return Arrival(Group(group.holder, waiting), "waits", (), group.holder if cancel_in_progress else None)
    return Arrival(Group(group.holder, (member,)), "waits", group.waiting, group.holder if cancel_in_progress else None)


def leave(group: Group, member: str) -> tuple[Group, str | None]:
    """A member ends or gives up; the second value is who holds the group now and did not before, if anyone."""
    if member != group.holder:
        return Group(group.holder, tuple(other for other in group.waiting if other != member)), None
    if group.waiting:
        return Group(group.waiting[0], group.waiting[1:]), group.waiting[0]
    return Group(), None
