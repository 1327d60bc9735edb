"""Attacks on the limits: memory, processes, disk and CPU, each in a sandbox of its own with a small bound.

Two things count for each: the bound held, and whoever has to report it survived, so another command still runs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from runyard.job import Limits, MachineError
from runyard.sandbox.attack.attempts import Answer, Finding, Outside, Verdict
from runyard.sandbox.attack.session import HOME, Inside, open_inside

if TYPE_CHECKING:
    from runyard.sandbox.contract import Sandbox

MEMORY_MB: Final = 96
PIDS: Final = 48
DISK_MB: Final = 48
CPUS: Final = 0.25

OnFinding = Callable[[Finding], None]
Try = Callable[[Inside], Awaitable[list[Finding]]]


async def attack_limits(sandbox: Sandbox, image: str, outside: Outside, note: OnFinding) -> None:
    """Each limit that the backend says it keeps here."""
    del outside
    tries: tuple[tuple[str, Limits, Try], ...] = (
        ("memory_limit", Limits(memory_mb=MEMORY_MB), _memory),
        ("pids_limit", Limits(pids=PIDS), _pids),
        ("disk_limit", Limits(disk_mb=DISK_MB), _disk),
        ("cpu_limit", Limits(cpus=CPUS), _cpu),
    )
    for promise, limits, attempt in tries:
        if promise in sandbox.capabilities.refused:
            continue
        try:
            async with open_inside(sandbox, image, "bounded", limits=limits) as inside:
                for each in await attempt(inside):
                    note(each)
                after = await inside.ask("hello")
                survived: tuple[Verdict, str] = ("held", "it runs the next command")
                if after.detail is None:
                    survived = ("gave_way", after.problem or "it doesn't run the next command")
                note(Finding(promise, "bring the supervisor down with it", *survived))
        except MachineError as err:
            note(Finding(promise, "open a sandbox", "not_tried", err.message))


async def _memory(inside: Inside) -> list[Finding]:
    answer = await inside.ask("eat", str(4 * MEMORY_MB), seconds=60)
    name = f"use {4 * MEMORY_MB} MB of {MEMORY_MB}"
    if answer.detail is not None:
        return [Finding("memory_limit", name, "gave_way", "it got them")]
    reason = inside.last.reason if inside.last is not None else None
    if answer.error is not None or reason == "out_of_memory" or (inside.last is not None and inside.last.code == 137):
        told: tuple[Verdict, str] = ("held", (inside.last.detail if inside.last else None) or reason or "refused")
        named: tuple[Verdict, str] = (
            ("held", "out of memory") if reason == "out_of_memory" else ("gave_way", f"{reason}")
        )
        findings = [Finding("memory_limit", name, *told)]
        if answer.error is None:
            findings.append(Finding("memory_limit", "end a step without its reason being named", *named))
        return findings
    return [Finding("memory_limit", name, "not_tried", answer.problem or "")]


async def _pids(inside: Inside) -> list[Finding]:
    wanted = 4 * PIDS
    answer = await inside.ask("fork", str(wanted), seconds=20)
    found = re.match(r"made (\d+) ", answer.detail or "")
    name = f"have {wanted} processes of {PIDS}"
    if found is None:
        verdict: Verdict = "held" if answer.error is not None else "not_tried"
        return [Finding("pids_limit", name, verdict, answer.problem or f"error {answer.error}")]
    made = int(found[1])
    return [Finding("pids_limit", name, "gave_way" if made > PIDS else "held", f"{made} lived at a time")]


async def _disk(inside: Inside) -> list[Finding]:
    findings = []
    for folder in (HOME, "/tmp", "/dev/shm", "/var/tmp", "/usr/local"):
        name = f"write {3 * DISK_MB} MB of {DISK_MB} in {folder}"
        answer = await inside.ask("fill", f"{folder}/filling", str(3 * DISK_MB), seconds=60)
        findings.append(Finding("disk_limit", name, *_judge_disk(answer)))
    return findings


def _judge_disk(answer: Answer) -> tuple[Verdict, str]:
    if answer.detail is not None and answer.error is None:
        return "gave_way", "it took them"
    if answer.error is not None:
        after = (answer.detail or "").removeprefix("after ")
        return "held", f"full after {after} MB" if after else f"refused, error {answer.error}"
    # A memory-backed folder is charged to memory, whose end comes first where that is the smaller bound.
    return ("held", "ended") if (answer.problem or "").startswith("exit 137") else ("not_tried", answer.problem or "")


async def _cpu(inside: Inside) -> list[Finding]:
    """Less than the share is held, whatever the reason: a busy machine gives less than it may."""
    answer = await inside.ask("spin", "1000", seconds=20)
    name = f"use a whole core of {CPUS}"
    if answer.detail is None or not answer.detail.strip().isdigit():
        return [Finding("cpu_limit", name, "not_tried", answer.problem or "")]
    used = int(answer.detail)
    verdict: Verdict = "gave_way" if used > 1000 * 2 * CPUS else "held"
    return [Finding("cpu_limit", name, verdict, f"{used} ms in 1000")]
