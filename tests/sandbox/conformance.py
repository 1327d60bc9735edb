"""What every backend must do, as cases named by the contract's sentences.

A case is an async function of a `Place`; `case` puts it into `CASES`. A backend's tests run each of them with
`run_case(CASES[name], make)`, where `make` gives its Sandbox. A case that needs a promise which the backend refuses on
this machine checks the refusal instead: the promise is named, and so is a remedy. Nothing is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from runyard.job import Limits, MachineError
from runyard.sandbox.contract import (
    Exit,
    FileIn,
    FileOut,
    Identity,
    Running,
    Sandbox,
    SandboxRefused,
    Session,
    Shape,
    StepCommand,
)

SECONDS = 20.0
"""Longest time of a case; nothing in it waits longer."""

HOME = "/home/runner"
WORK = "/home/runner/work/repo/repo"
TEMP = "/home/runner/work/_temp"


class Ran(msgspec.Struct, frozen=True):
    """A command that ended: how, and all of its output."""

    exit: Exit
    output: bytes

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


class Place:
    """What a case works with: a backend, the image to use, and what it opened."""

    def __init__(self, sandbox: Sandbox, image: str) -> None:
        self.sandbox = sandbox
        self.image = image
        self._sessions: list[Session] = []

    def shape(self, **wanted: Any) -> Shape:
        wanted.setdefault("image", self.image)
        wanted.setdefault("directories", (WORK,))
        wanted.setdefault("tmpfs", (TEMP,))
        return Shape(**wanted)

    async def open(self, **wanted: Any) -> Session:
        """An adopted session, closed at the case's end."""
        session = await self.sandbox.prepare(self.shape(**wanted))
        self._sessions.append(session)
        await session.adopt(Identity(job_key="conformance"))
        return session

    async def close(self) -> None:
        """Close what is open; leftovers are defects."""
        for session in self._sessions:
            left = await session.close()
            assert left.items == (), left


def command(session: Session, script: str, **more: Any) -> StepCommand:
    """A shell script as a command."""
    more.setdefault("env", dict(session.environment))
    return StepCommand(argv=("sh", "-c", script), **more)


def tar_of(
    files: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
    executable: bytes = b"",
    *,
    links_first: bool = False,
) -> bytes:
    """A tar with these files and symbolic links, and one executable script of that name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        members = [(name, data, tarfile.REGTYPE, "", 0o644) for name, data in files.items()]
        of_links = [(name, b"", tarfile.SYMTYPE, target, 0o777) for name, target in (links or {}).items()]
        members = of_links + members if links_first else members + of_links
        if executable:
            members.append((executable.decode(), b"#!/bin/sh\n", tarfile.REGTYPE, "", 0o755))
        for name, data, kind, target, mode in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname, info.mode = kind, len(data), target, mode
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def output_of(running: Running) -> bytes:
    """All output up to its end."""
    parts = []
    while part := await running.read():
        parts.append(part)
    return b"".join(parts)


async def run(session: Session, script: str, **more: Any) -> Ran:
    """Run a script to its end."""
    running = await session.start(command(session, script, **more))
    output = await output_of(running)
    return Ran(await running.wait(), output)


async def line_of(running: Running, wanted: bytes) -> bytes:
    """Output up to and with `wanted`."""
    seen = b""
    while wanted not in seen:
        part = await running.read()
        assert part, f"output ended without {wanted!r}: {seen!r}"
        seen += part
    return seen


Case: TypeAlias = Callable[[Place], Awaitable[None]]
CASES: dict[str, Case] = {}
_NEEDS: dict[str, tuple[str, Limits]] = {}


def case(function: Case, /) -> Case:
    """Make it one of the cases, under its name."""
    CASES[function.__name__] = function
    return function


def needs(promise: str, limits: Limits) -> Callable[[Case], Case]:
    """A case of a promise; where the backend refuses it, asking for these limits must be refused by that name."""

    def mark(function: Case) -> Case:
        _NEEDS[function.__name__] = (promise, limits)
        return case(function)

    return mark


def run_case(name: str, make: Callable[[], Sandbox], image: str = "host") -> None:
    """Run one case on a fresh loop, within its time."""

    async def bounded() -> None:
        place = Place(make(), image)
        try:
            async with asyncio.timeout(SECONDS):
                await _or_its_refusal(name, place)
        finally:
            async with asyncio.timeout(SECONDS):
                await place.close()

    asyncio.run(bounded())


async def _or_its_refusal(name: str, place: Place) -> None:
    promise, limits = _NEEDS.get(name, ("", None))
    refused = place.sandbox.capabilities.refused.get(promise)
    if refused is None or limits is None:
        await CASES[name](place)
        return
    assert refused.promise == promise
    assert refused.because
    assert refused.remedy
    with pytest.raises(SandboxRefused) as caught:
        await place.open(limits=limits)
    assert caught.value.refused == refused
    assert caught.value.exit_code == 3


# Starting and ending


@case
async def a_command_ends_with_its_code(place: Place) -> None:
    session = await place.open()
    assert (await run(session, "exit 0")).exit.code == 0
    assert (await run(session, "exit 3")).exit.code == 3
    assert (await run(session, "exit 255")).exit.code == 255


@case
async def a_command_that_died_of_a_signal_ends_with_128_and_its_number(place: Place) -> None:
    session = await place.open()
    ended = (await run(session, "kill -TERM $$")).exit
    assert (ended.code, ended.signal) == (143, 15)


@case
async def standard_output_and_error_share_one_pipe_in_the_jobs_own_order(place: Place) -> None:
    session = await place.open()
    ran = await run(session, "for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    assert ran.text == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))


@case
async def output_is_passed_on_byte_for_byte(place: Place) -> None:
    session = await place.open()
    ran = await run(session, r"printf '\000\377\r\n\303\050'")
    assert ran.output == b"\x00\xff\r\n\xc3\x28"


@case
async def output_is_seen_while_the_command_runs(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "echo ready; sleep 60"))
    assert await line_of(running, b"ready\n") == b"ready\n"
    await running.signal("kill")
    assert (await running.wait()).signal == 9


@case
async def much_output_is_complete(place: Place) -> None:
    session = await place.open()
    ran = await run(
        session, "i=0; while [ $i -lt 2000 ]; do echo $i-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; i=$((i+1)); done"
    )
    lines = ran.text.splitlines()
    assert len(lines) == 2000
    assert lines[-1].startswith("1999-")


@case
async def a_command_gets_exactly_its_environment(place: Place) -> None:
    session = await place.open()
    path = session.environment["PATH"]
    ran = await run(session, "env", env={"PATH": path, "A": "1", "UMLAUT": "ä", "LINES": "x\ny", "EMPTY": ""})
    seen = ran.text
    assert "A=1\n" in seen
    assert "UMLAUT=ä\n" in seen
    assert "LINES=x\ny\n" in seen
    assert "EMPTY=\n" in seen
    names = {line.split("=", 1)[0] for line in seen.splitlines() if "=" in line}
    assert names <= {"PATH", "A", "UMLAUT", "LINES", "EMPTY", "PWD", "SHLVL", "_", "OLDPWD"}


@case
async def a_command_runs_in_its_folder(place: Place) -> None:
    session = await place.open()
    assert (await run(session, "pwd", cwd=WORK)).text == f"{WORK}\n"


@case
async def a_folder_that_is_not_there_is_a_problem(place: Place) -> None:
    session = await place.open()
    ended = (await run(session, "pwd", cwd="/not/there")).exit
    assert ended.code in {126, 127}
    assert ended.problem


@case
async def a_program_that_is_not_there_is_a_problem_with_127(place: Place) -> None:
    session = await place.open()
    running = await session.start(StepCommand(argv=("not-a-program",), env=dict(session.environment)))
    await output_of(running)
    ended = await running.wait()
    assert ended.code == 127
    assert ended.problem


@case
async def a_file_that_is_not_executable_is_a_problem_with_126(place: Place) -> None:
    session = await place.open()
    file = FileIn(f"{WORK}/plain", b"echo no\n", 0o644)
    running = await session.start(StepCommand(argv=(f"{WORK}/plain",), env=dict(session.environment), files_in=(file,)))
    await output_of(running)
    ended = await running.wait()
    assert ended.code == 126
    assert ended.problem


@case
async def a_command_without_input_reads_nothing(place: Place) -> None:
    session = await place.open()
    ran = await run(session, "cat; echo end")
    assert ran.text == "end\n"


@case
async def a_command_reads_its_input(place: Place) -> None:
    session = await place.open()
    ran = await run(session, "cat", stdin=b"line\n\x00\xff" * 10_000)
    assert ran.output == b"line\n\x00\xff" * 10_000


@case
async def wait_may_be_awaited_by_several_and_again(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "exit 4"))
    first, second = await asyncio.gather(running.wait(), running.wait())
    assert first == second == await running.wait()
    assert first.code == 4


@case
async def cancelling_a_read_loses_nothing(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "sleep 0.3; echo late"))
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await running.read()
                raise AssertionError("there was no output yet")
    assert await output_of(running) == b"late\n"
    assert (await running.wait()).code == 0


@case
async def several_commands_run_at_a_time(place: Place) -> None:
    session = await place.open()
    slow = await session.start(command(session, "echo slow; sleep 60"))
    await line_of(slow, b"slow\n")
    results = await asyncio.gather(*(run(session, f"echo {n}; exit {n}") for n in range(5)))
    assert [(ran.text, ran.exit.code) for ran in results] == [(f"{n}\n", n) for n in range(5)]
    await slow.signal("kill")
    assert (await slow.wait()).signal == 9


@case
async def a_daemon_does_not_keep_a_command_from_ending(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "sleep 60 & echo started"))
    ended = await running.wait()
    assert ended.code == 0
    assert await line_of(running, b"started\n")


@case
async def usage_of_a_command_is_told(place: Place) -> None:
    session = await place.open()
    ended = (await run(session, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")).exit
    assert ended.usage.wall_s > 0
    assert ended.usage.cpu_s >= 0


# Files


@case
async def files_in_are_written_before_the_command_starts(place: Place) -> None:
    session = await place.open()
    files = (FileIn(f"{TEMP}/a", b"one\n"), FileIn(f"{TEMP}/deep/er/b", b"two\n", 0o755))
    ran = await run(session, f"cat {TEMP}/a {TEMP}/deep/er/b; test -x {TEMP}/deep/er/b && echo x", files_in=files)
    assert ran.text == "one\ntwo\nx\n"


@case
async def large_files_in_are_whole(place: Place) -> None:
    session = await place.open()
    ran = await run(session, f"wc -c < {WORK}/big", files_in=(FileIn(f"{WORK}/big", b"x" * 1_500_000),))
    assert ran.text.strip() == "1500000"


@case
async def files_out_come_back_when_the_command_ended(place: Place) -> None:
    session = await place.open()
    script = f"printf 'A=1\\n' >> {TEMP}/out; printf '\\000\\377' > {TEMP}/raw"
    out = (FileOut(f"{TEMP}/out", 100), FileOut(f"{TEMP}/raw", 100), FileOut(f"{TEMP}/none", 100))
    ended = (await run(session, script, files_in=(FileIn(f"{TEMP}/out", b""),), files_out=out)).exit
    assert ended.files[f"{TEMP}/out"].data == b"A=1\n"
    assert ended.files[f"{TEMP}/out"].problem is None
    assert ended.files[f"{TEMP}/raw"].data == b"\x00\xff"
    assert ended.files[f"{TEMP}/none"].problem == "missing"


@case
async def a_file_over_its_limit_is_not_returned_but_its_size_is_told(place: Place) -> None:
    session = await place.open()
    out = (FileOut(f"{TEMP}/fits", 1000), FileOut(f"{TEMP}/over", 1000))
    script = f"head -c 1000 /dev/zero > {TEMP}/fits; head -c 1001 /dev/zero > {TEMP}/over"
    ended = (await run(session, script, files_out=out)).exit
    assert len(ended.files[f"{TEMP}/fits"].data) == 1000
    over = ended.files[f"{TEMP}/over"]
    assert (over.problem, over.size, over.data) == ("too_large", 1001, b"")


@case
async def a_link_in_the_place_of_a_file_counts_as_nothing_written(place: Place) -> None:
    session = await place.open()
    script = f"cd {TEMP}; rm -f out; ln -s /etc/passwd out; mkdir real; echo x > real/file; ln -s real folder"
    out = (FileOut(f"{TEMP}/out", 10_000), FileOut(f"{TEMP}/folder/file", 10_000))
    ended = (await run(session, script, files_in=(FileIn(f"{TEMP}/out", b""),), files_out=out)).exit
    assert ended.files[f"{TEMP}/out"].problem == "link"
    assert ended.files[f"{TEMP}/folder/file"].problem == "link"
    assert not any(back.data for back in ended.files.values())


@case
async def a_fifo_or_folder_in_the_place_of_a_file_blocks_nobody(place: Place) -> None:
    session = await place.open()
    out = (FileOut(f"{TEMP}/fifo", 100), FileOut(f"{TEMP}/folder", 100))
    ended = (await run(session, f"mkfifo {TEMP}/fifo; mkdir {TEMP}/folder", files_out=out)).exit
    assert ended.files[f"{TEMP}/fifo"].problem == "not_a_file"
    assert ended.files[f"{TEMP}/folder"].problem == "not_a_file"


@case
async def a_file_in_never_goes_through_a_link_of_the_job(place: Place) -> None:
    session = await place.open()
    await run(
        session,
        f"echo keep > {WORK}/victim; ln -s {WORK}/victim {TEMP}/script; mkdir {WORK}/dir; ln -s {WORK}/dir {TEMP}/dir",
    )
    await run(session, "true", files_in=(FileIn(f"{TEMP}/script", b"new\n"),))
    assert (await run(session, f"cat {WORK}/victim {TEMP}/script")).text == "keep\nnew\n"
    ended = (await run(session, "true", files_in=(FileIn(f"{TEMP}/dir/planted", b"x"),))).exit
    assert (await run(session, f"ls {WORK}/dir")).text == ""
    assert ended.problem is not None or ended.code == 0


# Trees


@case
async def a_tar_is_unpacked_below_a_path(place: Place) -> None:
    session = await place.open()
    tar = tar_of(
        {"a": b"one\n", "deep/er/b": b"two\n", "x" * 120 + "/" + "y" * 130: b"long\n"}, {"deep/link": "er/b"}, b"x.sh"
    )
    await session.put(tar, f"{WORK}/in")
    script = "cat a deep/er/b deep/link x*/y*; test -x x.sh && ls -l deep/link | cut -c1"
    assert (await run(session, script, cwd=f"{WORK}/in")).text == "one\ntwo\ntwo\nlong\nl\n"


@case
async def a_tar_is_unpacked_from_a_file_outside(place: Place) -> None:
    session = await place.open()
    with tempfile.NamedTemporaryFile() as file:
        file.write(tar_of({"big": b"x" * 3_000_000}))
        file.flush()
        await session.put(file.name, WORK)
    assert (await run(session, "wc -c < big", cwd=WORK)).text.strip() == "3000000"


@case
async def a_tar_with_a_name_or_link_out_of_its_tree_is_refused(place: Place) -> None:
    session = await place.open()
    evil = (
        tar_of({"../out": b"x"}),
        tar_of({"/tmp/out": b"x"}),
        tar_of({"a/../../out": b"x"}),
        tar_of({"folder/out": b"x"}, {"folder": "../outside"}, links_first=True),
        tar_of({}, {"link": "/etc"}),
    )
    for tar in evil:
        with pytest.raises(MachineError):
            await session.put(tar, f"{WORK}/in")
    await run(session, "mkdir -p outside in; ln -s ../outside in/planted", cwd=WORK)
    with pytest.raises(MachineError):
        await session.put(tar_of({"planted/out": b"x"}), f"{WORK}/in")
    assert (await run(session, "ls -d out outside/out /tmp/out 2>/dev/null; ls outside", cwd=WORK)).text == ""


@case
async def a_tree_is_written_to_a_tar_outside_owned_by_the_invoking_user(place: Place) -> None:
    session = await place.open()
    script = "mkdir -p t/deep; printf hello > t/deep/file; chmod 751 t/deep/file; ln -s deep/file t/link; touch t/empty"
    await run(session, script, cwd=WORK)
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/out.tar"
        await session.get(f"{WORK}/t", target)
        assert Path(target).stat().st_uid == os.geteuid()
        with tarfile.open(target) as tar:
            members = {member.name.removeprefix("./").strip("/"): member for member in tar.getmembers()}
            assert {"deep", "deep/file", "link", "empty"} <= members.keys()
            file = tar.extractfile(members["deep/file"])
            assert file is not None
            assert file.read() == b"hello"
            assert members["deep/file"].mode & 0o777 == 0o751
            assert members["link"].linkname == "deep/file"


@case
async def a_path_that_is_not_there_can_not_be_got(place: Place) -> None:
    session = await place.open()
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(MachineError):
            await session.get("/not/there", f"{folder}/out.tar")
        assert list(Path(folder).iterdir()) == []


@case
async def a_folder_of_the_host_can_be_laid_over_one_inside_and_stays_unchanged(place: Place) -> None:
    session = await place.open()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        source.chmod(0o755)
        (source / "sub").mkdir()
        (source / "sub" / "file").write_text("original\n")
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        if not await session.overlay(folder, WORK):
            assert place.sandbox.capabilities.supervisor != "enter"
            return
        script = "cat sub/file; ./run.sh; echo changed > sub/file; rm run.sh; touch new; ls; cat sub/file; ls -ldn ."
        ran = await run(session, script, cwd=WORK)
        assert ran.text.startswith("original\nran\nnew\nsub\nchanged\n")
        assert ran.text.split()[7] == "0"
        assert (source / "sub" / "file").read_text() == "original\n"
        assert sorted(path.name for path in source.iterdir()) == ["run.sh", "sub"]


# Signals


@case
async def a_signal_reaches_every_process_of_the_command(place: Place) -> None:
    session = await place.open()
    script = "sleep 61 & (sleep 62 & sleep 63 & wait) & sh -c 'sleep 64; :' & echo ready; wait"
    running = await session.start(command(session, script))
    await line_of(running, b"ready\n")
    await running.signal("terminate")
    ended = await running.wait()
    assert ended.signal == 15 or ended.code == 143
    assert await output_of(running) == b""  # its end: nobody holds the pipe any more


@case
async def a_signal_reaches_a_grandchild_in_a_session_of_its_own(place: Place) -> None:
    session = await place.open()
    script = "setsid sh -c 'echo $$ > pid; exec sleep 61' & while ! [ -s pid ]; do sleep 0.01; done; echo ready; wait"
    running = await session.start(command(session, script, cwd=WORK))
    await line_of(running, b"ready\n")
    await running.signal("kill")
    assert (await running.wait()).signal == 9
    assert await output_of(running) == b""
    ran = await run(session, "kill -0 $(cat pid) 2>/dev/null && echo alive || echo dead", cwd=WORK)
    assert ran.text == "dead\n"


@case
async def a_signal_reaches_a_daemon_that_cut_every_tie(place: Place) -> None:
    session = await place.open()
    script = (
        "env -i PATH=$PATH setsid sh -c '(setsid sh -c \"echo \\$\\$ > pid; exec sleep 61\" >/dev/null 2>&1 &)' "
        "</dev/null; while ! [ -s pid ]; do sleep 0.01; done; echo ready; sleep 60"
    )
    running = await session.start(command(session, script, cwd=WORK))
    await line_of(running, b"ready\n")
    await running.signal("kill")
    assert (await running.wait()).signal == 9
    ran = await run(session, "kill -0 $(cat pid) 2>/dev/null && echo alive || echo dead", cwd=WORK)
    assert ran.text == "dead\n"


@case
async def a_command_says_whether_anything_of_it_is_left(place: Place) -> None:
    session = await place.open()
    await run(session, "setsid sleep 61 >/dev/null 2>&1 </dev/null & true")
    running = await session.start(command(session, "setsid sleep 61 >/dev/null 2>&1 </dev/null & echo ready; read x"))
    await line_of(running, b"ready\n")
    await running.wait()
    assert await running.left()
    await running.signal("kill")
    for _ in range(200):
        if not await running.left():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a daemon of an earlier command counts, or the killed one never went away")


@case
async def a_signal_leaves_daemons_of_earlier_commands_alone(place: Place) -> None:
    session = await place.open()
    await run(session, "setsid sleep 61 >/dev/null 2>&1 </dev/null & echo $! > pid", cwd=WORK)
    running = await session.start(command(session, "echo ready; sleep 62"))
    await line_of(running, b"ready\n")
    await running.signal("kill")
    await running.wait()
    ran = await run(session, "kill -0 $(cat pid) && echo alive", cwd=WORK)
    assert ran.text == "alive\n"


@case
async def a_signal_still_reaches_what_the_first_process_left_behind(place: Place) -> None:
    session = await place.open()
    script = "setsid sleep 61 >/dev/null 2>&1 </dev/null & echo $! > pid"
    running = await session.start(command(session, script, cwd=WORK))
    await output_of(running)
    await running.wait()
    await running.signal("kill")
    ran = await run(session, "kill -0 $(cat pid) 2>/dev/null && echo alive || echo dead", cwd=WORK)
    assert ran.text == "dead\n"


@case
async def a_signal_may_go_to_the_first_process_alone(place: Place) -> None:
    session = await place.open()
    child = "trap 'echo child; exit' TERM; sleep 0.4 & wait; exit 0"
    script = f'trap "echo got" TERM; sh -c "{child}" & echo ready; wait; wait; exit 7'
    running = await session.start(command(session, script))
    await line_of(running, b"ready\n")
    await running.signal("terminate", everyone=False)
    ended = await running.wait()
    assert ended.code == 7
    assert await output_of(running) == b"got\n"


@case
async def an_interrupt_can_be_caught(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "trap 'echo caught; exit 5' INT; sleep 60 & echo ready; wait"))
    await line_of(running, b"ready\n")
    await running.signal("interrupt")
    assert (await running.wait()).code == 5
    assert await line_of(running, b"caught\n")  # not its end: what runs in the background ignores interrupts


@case
async def a_signal_to_a_command_that_ended_is_quiet(place: Place) -> None:
    session = await place.open()
    running = await session.start(command(session, "true"))
    await running.wait()
    await running.signal("kill")
    await running.signal("interrupt", everyone=False)
    assert (await run(session, "echo on")).text == "on\n"


@case
async def commands_after_a_signal_still_start_and_every_exit_arrives(place: Place) -> None:
    session = await place.open()
    for number in range(15):
        running = await session.start(command(session, f"echo {number}; sleep 60"))
        if number % 2:
            await line_of(running, b"\n")
        await running.signal("kill")
        assert (await running.wait()).signal == 9
        assert (await run(session, f"exit {number}")).exit.code == number


# Identity and isolation


@case
async def two_sandboxes_do_not_see_each_other(place: Place) -> None:
    first, second = await place.open(), await place.open()
    running = await first.start(command(first, f"echo mine > {WORK}/mark; echo mine > /tmp/mark; echo ready; sleep 61"))
    await line_of(running, b"ready\n")
    ran = await run(second, f"ls {WORK} /tmp; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert "mark" not in ran.text.split()
    assert "sleep 61" not in ran.text
    await running.signal("kill")
    await running.wait()


@case
async def every_sandbox_starts_empty(place: Place) -> None:
    session = await place.open()
    assert (await run(session, f"ls -A {WORK}; ls -A {TEMP}; ls -A /tmp")).text == ""
    await run(session, f"touch {WORK}/x {HOME}/y /tmp/z")
    await session.close()
    again = await place.open()
    ran = await run(again, f"ls -A {WORK}; ls {HOME}/y /tmp/z 2>&1")
    assert "x\n" not in ran.text
    assert "cannot" in ran.text or "No such" in ran.text


@case
async def a_step_has_no_capability_no_new_privileges_and_the_filter(place: Place) -> None:
    session = await place.open()
    ran = await run(session, "cat /proc/self/status")
    status = dict(line.split(":", 1) for line in ran.text.splitlines() if ":" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


@case
async def a_step_can_neither_mount_nor_make_namespaces(place: Place) -> None:
    session = await place.open()
    script = (
        "mount -t tmpfs none /mnt 2>/dev/null && echo mounted; unshare -U true 2>/dev/null && echo unshared; echo end"
    )
    assert (await run(session, script)).text == "end\n"


@case
async def the_hosts_processes_are_not_seen(place: Place) -> None:
    session = await place.open()
    ran = await run(session, "set -- /proc/[0-9]*; echo $#")
    assert int(ran.text) < 12


@case
async def there_is_no_engine_socket_and_no_device_of_the_host(place: Place) -> None:
    session = await place.open()
    names = "/var/run/docker.sock /run/docker.sock /dev/vda /dev/sda /dev/loop0 /dev/kvm /dev/mem /dev/net/tun"
    assert (await run(session, f"ls {names} 2>/dev/null")).text == ""


@case
async def home_workspace_and_temp_are_writable(place: Place) -> None:
    session = await place.open()
    ran = await run(
        session, f"for d in {HOME} {WORK} {TEMP} /tmp; do echo x > $d/f && cat $d/f; done; echo $HOME $USER"
    )
    assert ran.text.startswith("x\nx\nx\nx\n")
    assert ran.exit.code == 0


@case
async def the_network_none_has_a_loopback_and_nothing_else(place: Place) -> None:
    session = await place.open(network="none")
    ran = await run(session, "cat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /proc/net/route | tail -n +2")
    assert ran.text.split() == ["lo"]


@case
async def a_network_that_can_not_be_had_is_refused_by_name(place: Place) -> None:
    for level in ("proxy", "public"):
        refused = place.sandbox.capabilities.refused.get(f"egress_{level}")
        if refused is None:
            session = await place.open(network=level)
            assert (await run(session, "echo on")).text == "on\n"
            continue
        assert refused.remedy
        with pytest.raises(SandboxRefused) as caught:
            await place.open(network=level)
        assert caught.value.refused == refused


# Listening


@case
async def a_connection_to_a_port_inside_is_served_outside(place: Place) -> None:
    session = await place.open()
    seen: list[bytes] = []

    async def take(sock: Any) -> None:
        loop = asyncio.get_running_loop()
        seen.append(await loop.sock_recv(sock, 100))
        await loop.sock_sendall(sock, b"pong\n")
        sock.close()

    port = await session.listen(0, take)
    assert port > 0
    script = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf ping >&3; cat <&3"
    running = await session.start(StepCommand(argv=("bash", "-c", script), env=dict(session.environment)))
    assert await output_of(running) == b"pong\n"
    assert seen == [b"ping"]


@case
async def a_listener_serves_several_connections_and_outlives_one_that_fails(place: Place) -> None:
    session = await place.open()
    count = 0

    async def take(sock: Any) -> None:
        nonlocal count
        count += 1
        if count == 1:
            sock.close()
            raise ConnectionResetError
        await asyncio.get_running_loop().sock_sendall(sock, b"ok\n")
        sock.close()

    port = await session.listen(0, take)
    script = f"for i in 1 2 3; do cat < /dev/tcp/127.0.0.1/{port}; done"
    running = await session.start(StepCommand(argv=("bash", "-c", script), env=dict(session.environment)))
    assert await output_of(running) == b"ok\nok\n"


# The end


@case
async def a_second_close_is_quiet(place: Place) -> None:
    session = await place.open()
    first = await session.close()
    assert (first.items, (await session.close()).items) == ((), ())


@case
async def close_ends_what_still_runs(place: Place) -> None:
    session = await place.open()
    running = await session.start(
        command(session, "trap '' INT TERM; setsid sleep 61 & echo ready; while :; do sleep 1; done")
    )
    await line_of(running, b"ready\n")
    assert (await session.close()).items == ()
    assert (await running.wait()).code == 137
    assert await output_of(running) == b""


@case
async def killing_everything_inside_is_told_as_the_jobs_own_doing(place: Place) -> None:
    session = await place.open()
    ended = (await run(session, "kill -9 -1; sleep 1")).exit
    # A supervisor that is the sandbox's first process can't be killed from inside, and goes on.
    assert ended.reason == "sandbox_lost" or ended.signal == 9 or (await run(session, "echo on")).text == "on\n"
    if ended.reason == "sandbox_lost":
        assert ended.detail
        assert "kill -9 -1" in ended.detail


# Limits


@needs("memory_limit", Limits(memory_mb=64))
async def memory_over_the_limit_ends_the_step_with_the_peak_and_the_next_step_runs(place: Place) -> None:
    session = await place.open(limits=Limits(memory_mb=64))
    ended = (await run(session, "head -c 200m /dev/zero | tail -c 150m > /dev/null; exit $?")).exit
    assert ended.code != 0
    assert ended.reason == "out_of_memory"
    assert ended.detail
    assert "64" in ended.detail
    assert (await run(session, "echo on")).text == "on\n"


@needs("pids_limit", Limits(pids=40))
async def processes_over_the_limit_end_the_step_by_name_and_the_next_step_runs(place: Place) -> None:
    session = await place.open(limits=Limits(pids=40))
    ended = (
        await run(session, "i=0; while [ $i -lt 100 ]; do sleep 61 >/dev/null 2>&1 & i=$((i+1)); done; exit 1")
    ).exit
    assert ended.code != 0
    assert ended.reason == "too_many_processes"
    assert ended.detail
    assert "40" in ended.detail
    running = await session.start(command(session, "echo full"))
    await running.signal("kill")
    await running.wait()


@needs("cpu_limit", Limits(cpus=0.5))
async def cpu_time_is_limited(place: Place) -> None:
    session = await place.open(limits=Limits(cpus=0.2))
    # Hundredths of a second from the kernel: a busybox knows no nanoseconds.
    now = "now() { read -r up _ </proc/uptime; t=${up%.*}${up#*.}; }"
    script = f"{now}; now; end=$((t + 60)); while [ $t -lt $end ]; do now; done"
    ended = (await run(session, script)).exit
    assert ended.code == 0
    assert ended.usage.cpu_s < 0.6 * ended.usage.wall_s


@needs("disk_limit", Limits(disk_mb=32))
async def a_full_disk_ends_the_step_by_name_and_the_next_step_runs(place: Place) -> None:
    session = await place.open(limits=Limits(disk_mb=32))
    ran = await run(session, f"head -c 100m /dev/zero > {WORK}/fill", env={**session.environment, "LC_ALL": "C"})
    assert ran.exit.code != 0
    assert "No space left" in ran.text
    assert ran.exit.reason == "disk_full"
    assert ran.exit.detail
    assert (await run(session, f"rm {WORK}/fill; echo x > {WORK}/y; cat {WORK}/y")).text == "x\n"


# Terminals


@case
async def a_terminal_is_one_where_the_backend_has_them(place: Place) -> None:
    session = await place.open()
    if not place.sandbox.capabilities.tty:
        assert place.sandbox.capabilities.supervisor != "enter"
        return
    script = "test -t 0 && test -t 1 && echo tty; stty size; read line; echo got $line"
    running = await session.start(command(session, script, terminal=(33, 101)))
    await line_of(running, b"33 101")
    await running.write(b"word\n")
    await line_of(running, b"got word")
    assert (await running.wait()).code == 0


@case
async def ctrl_c_on_a_terminal_interrupts_the_command(place: Place) -> None:
    session = await place.open()
    if not place.sandbox.capabilities.tty:
        assert place.sandbox.capabilities.supervisor != "enter"
        return
    running = await session.start(command(session, "echo ready; read line", terminal=(24, 80)))
    await line_of(running, b"ready")
    await running.write(b"\x03")
    ended = await running.wait()
    assert ended.code == 130
