"""Attacks one backend: opens real sandboxes, runs every attempt in them, and looks at the machine from outside.

In: a sandbox and an image. Out: findings, one a promise and attempt. An attempt that breaks off, hangs or can't be made
is a finding too ("could not be tried", with the reason), never a gap. Every wait is bounded, every sandbox is closed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeAlias, get_args

import anyio
import msgspec

from runyard.job import MachineError
from runyard.sandbox.attack import outside as seeds
from runyard.sandbox.attack.attempts import (
    Answer,
    Attempt,
    Finding,
    Outside,
    finding,
    plan_inside,
    plan_proxy,
    plan_public,
)
from runyard.sandbox.attack.limited import attack_limits
from runyard.sandbox.attack.session import HOME, PROBE, Inside, open_inside
from runyard.sandbox.contract import FileIn, FileOut, Sandbox, StepCommand
from runyard.sandbox.network.proxy import Proxy

_ATTEMPT_S: Final = 15.0
_SIBLING_S: Final = 120_000

OnFinding: TypeAlias = Callable[[Finding], None]
Stage: TypeAlias = Literal["inside", "proxy", "public", "limits", "end"]


class Report(msgspec.Struct, frozen=True):
    """What came of attacking one backend."""

    backend: str
    findings: tuple[Finding, ...]

    def gave_way(self) -> tuple[Finding, ...]:
        """The findings that are defects."""
        return tuple(each for each in self.findings if each.verdict == "gave_way")


async def attack(
    sandbox: Sandbox, image: str, on_finding: OnFinding | None = None, *, stages: tuple[Stage, ...] = get_args(Stage)
) -> Report:
    """Try to break every promise of a backend. `on_finding` hears of each as it comes; it must not block.

    `stages` are kinds of sandboxes: one without a network, one at each other level, bounded ones, one that is closed.
    """
    findings: list[Finding] = []

    def note(each: Finding) -> None:
        if each.verdict == "gave_way" and each.promise in sandbox.capabilities.refused:
            # Nobody was promised it: a job that asks for it is refused. It is told, and it is no defect.
            each = msgspec.structs.replace(each, verdict="not_tried", seen=f"not promised here: {each.seen}")
        findings.append(each)
        if on_finding is not None:
            on_finding(each)

    for refused in sandbox.capabilities.refused.values():
        note(Finding(refused.promise, "keep the promise here", "not_tried", f"refused by name: {refused.because}"))
    with seeds.prepared() as outside:
        for stage in stages:
            promise, attacked = _STAGES[stage]
            try:
                await attacked(sandbox, image, outside, note)
            except MachineError as err:
                note(Finding(promise, "open a sandbox", "not_tried", err.message.split("\n", maxsplit=1)[0]))
        for path in seeds.planted(outside):
            note(Finding("no_host_mounts", f"leave {path} on the host", "gave_way", "it is there"))
    return Report(sandbox.capabilities.backend, tuple(findings))


async def _run_attempts(inside: Inside, attempts: list[Attempt], note: OnFinding) -> None:
    """One after the other, each bounded; a session that is lost ends them with a finding for each."""
    for attempt in attempts:
        note(finding(attempt, await inside.ask(*attempt.arguments, seconds=_ATTEMPT_S)))


@asynccontextmanager
async def _sibling(sandbox: Sandbox, image: str, outside: Outside) -> AsyncIterator[Outside]:
    """Another job of this machine: a process, a listening port, an abstract socket, a file; all with its own word."""
    word = outside.word[::-1]
    async with open_inside(sandbox, image, "sibling") as other:
        port = 18765
        holding = [
            await other.start("listen", "127.0.0.1", str(port), str(_SIBLING_S), word),
            await other.start("listen", f"@{word}", "0", str(_SIBLING_S)),
        ]
        for each in holding:
            with anyio.fail_after(_ATTEMPT_S):
                await each.read()
        await other.ask("create", f"/tmp/{word}", word)
        yield msgspec.structs.replace(outside, sibling_port=port, sibling_word=word, sibling_socket=f"@{word}")
        for each in holding:
            await each.signal("kill")


async def _attack_inside(sandbox: Sandbox, image: str, outside: Outside, note: OnFinding) -> None:
    async with _sibling(sandbox, image, outside) as all_outside, open_inside(sandbox, image, "attacker") as inside:
        await _run_attempts(inside, plan_inside(all_outside, os.uname().machine, HOME), note)
        await _look_for_the_siblings_file(inside, all_outside, note)
        await _attack_command_files(inside, note)
        await _look_at_the_host_user(inside, outside, note)


async def _look_for_the_siblings_file(inside: Inside, outside: Outside, note: OnFinding) -> None:
    answer = await inside.ask("read", f"/tmp/{outside.sibling_word}")
    verdict = "gave_way" if answer.detail is not None else "held" if answer.error is not None else "not_tried"
    note(Finding("fresh_file_system", "read a file of a sibling job", verdict, answer.problem or ""))  # type: ignore[arg-type]  # a literal by each branch


async def _attack_command_files(inside: Inside, note: OnFinding) -> None:
    """Links where the supervisor, which has more rights than the job, reads and writes on its behalf."""
    await inside.ask("link", "/etc/hostname", f"{HOME}/out")
    await inside.ask("link", "/etc", f"{HOME}/in")
    command = StepCommand(
        argv=(PROBE, "hello"),
        files_in=(FileIn(f"{HOME}/in/runyard-planted", b"planted"),),
        files_out=(FileOut(f"{HOME}/out", 4096),),
    )
    exit_ = None
    try:
        with anyio.fail_after(_ATTEMPT_S):
            running = await inside.session.start(command)
            exit_ = await running.wait()
    except (MachineError, TimeoutError) as err:
        note(Finding("command_files", "write a command file through a link", "held", str(err)[:60]))
    else:
        through = await inside.ask("read", "/etc/runyard-planted")
        verdict, seen = ("gave_way", "it was followed") if through.detail == "planted" else ("held", "not followed")
        note(Finding("command_files", "write a command file through a link", verdict, seen))  # type: ignore[arg-type]  # a literal by each branch
    if exit_ is None or exit_.problem is not None:
        running = await inside.session.start(msgspec.structs.replace(command, files_in=()))
        with anyio.fail_after(_ATTEMPT_S):
            exit_ = await running.wait()
    back = exit_.files.get(f"{HOME}/out")
    if back is None:
        note(Finding("command_files", "read a file through a link", "not_tried", "no answer about the file"))
    elif back.data:
        note(Finding("command_files", "read a file through a link", "gave_way", "it was followed"))
    else:
        note(Finding("command_files", "read a file through a link", "held", back.problem or ""))


async def _look_at_the_host_user(inside: Inside, outside: Outside, note: OnFinding) -> None:
    name, word = "look at the job's user from outside", f"{outside.word}-uid"
    running = await inside.start("sleep", "8000", word)
    try:
        users = await _watched(word, bool)
    finally:
        await running.signal("kill")
    if not users:
        note(Finding("not_host_root", name, "not_tried", "its process isn't visible"))
        return
    uid = users[0][1]
    note(Finding("not_host_root", name, "gave_way" if uid == 0 else "held", f"user id {uid} on the host"))


async def _watched(word: str, enough: Callable[[list[tuple[int, int]]], bool]) -> list[tuple[int, int]]:
    """Processes with `word`, looked at until it is `enough`, 5 seconds at most: /proc tells nobody when it changes."""
    found = seeds.processes_with(word)
    for _ in range(250):
        if enough(found):
            break
        await anyio.sleep(0.02)
        found = seeds.processes_with(word)
    return found


async def _attack_proxy(sandbox: Sandbox, image: str, outside: Outside, note: OnFinding) -> None:
    if "egress_proxy" in sandbox.capabilities.refused:
        return
    async with open_inside(sandbox, image, "attacker", network="proxy") as inside:
        with anyio.fail_after(_ATTEMPT_S):
            port = await inside.session.listen(0, Proxy().serve)
        await _run_attempts(inside, plan_proxy(outside, port), note)
        # Around the proxy there is nothing: the same as without a network.
        direct = [attempt for attempt in plan_inside(outside, "none", HOME) if attempt.promise == "egress_none"]
        around = [msgspec.structs.replace(attempt, promise="egress_proxy") for attempt in direct]
        await _run_attempts(inside, around, note)


async def _attack_public(sandbox: Sandbox, image: str, outside: Outside, note: OnFinding) -> None:
    if "egress_public" in sandbox.capabilities.refused:
        return
    async with open_inside(sandbox, image, "attacker", network="public") as inside:
        await _run_attempts(inside, plan_public(outside), note)


async def _attack_end(sandbox: Sandbox, image: str, outside: Outside, note: OnFinding) -> None:
    """A process that ignores every signal, in a session of its own, its maker gone: it must end with the sandbox."""
    word = f"{outside.word}-lingers"
    async with open_inside(sandbox, image, "attacker") as inside:
        answer: Answer = await inside.ask("linger", "60000", word)
        if answer.detail is None:
            note(Finding("time_limit", "outlive the sandbox", "not_tried", answer.problem or "it could not be started"))
            return
        lingering = [pid for pid, _ in seeds.processes_with(word)]
    left = [pid for pid, _ in await _watched(word, lambda found: not found)]
    for pid in left:
        os.kill(pid, 9)
    if left:
        note(Finding("time_limit", "outlive the sandbox", "gave_way", f"process {left[0]} did"))
    elif not lingering:
        note(Finding("time_limit", "outlive the sandbox", "not_tried", "its process wasn't visible from outside"))
    else:
        note(Finding("time_limit", "outlive the sandbox", "held", "ended with it"))
    for item in inside.leftovers:
        note(Finding("fresh_file_system", f"leave {item}", "gave_way", "close could not remove it"))


_STAGES: Final[dict[Stage, tuple[str, Callable[[Sandbox, str, Outside, OnFinding], Awaitable[None]]]]] = {
    "inside": ("fresh_file_system", _attack_inside),
    "proxy": ("egress_proxy", _attack_proxy),
    "public": ("egress_public", _attack_public),
    "limits": ("memory_limit", attack_limits),
    "end": ("time_limit", _attack_end),
}
"""Each stage with the promise that an unopened sandbox leaves untried."""
