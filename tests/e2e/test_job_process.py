"""Jobs in processes of their own, in real sandboxes: what they do, and how they end when they can't end themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import claim, step, uses
from runyard.engine.launch import JobHandle, Launcher, PausedStep
from runyard.engine.wire import JobSettings
from runyard.job import Cancel, Checkout, Claim, JobEvent, JobFinished, LeaseLost, Log, StepFinished

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.timeout(100)
DEADLINE_S = 20
_KEPT_BYTES = 1 << 20
ROOT = Path(__file__).resolve().parent.parent.parent


class Told:
    """What one job told; `wait_for` ends when a text was printed."""

    def __init__(self, handle: JobHandle) -> None:
        self.handle = handle
        self.events: list[JobEvent] = []
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.handle.events():
            if isinstance(event, Log) and event.offset > _KEPT_BYTES:
                continue
            self.events.append(event)
            self._changed.set()
        self._changed.set()

    def log(self, *kinds: str) -> str:
        data = [e.data for e in self.events if isinstance(e, Log) and (not kinds or e.kind in kinds)]
        return b"".join(data).decode("utf-8", "replace")

    async def wait_for(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while text not in self.log("output"):
                assert not self.task.done(), f"the job ended without {text!r}: {self.log()}"
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> JobFinished:
        async with asyncio.timeout(DEADLINE_S):
            await self.task
            return await self.handle.wait()

    def steps(self) -> dict[int, StepFinished]:
        return {each.step: each for each in self.events if isinstance(each, StepFinished)}


def with_launcher(test: Callable[[Launcher], Awaitable[None]], **keys: Any) -> None:
    async def main() -> None:
        launcher = Launcher(**keys)
        try:
            await test(launcher)
        finally:
            async with asyncio.timeout(DEADLINE_S):
                await launcher.close()

    asyncio.run(main())


async def launch(launcher: Launcher, given: Claim, **keys: Any) -> Told:
    on_pause = keys.pop("on_pause", None)
    async with asyncio.timeout(DEADLINE_S):
        return Told(await launcher.launch(given, JobSettings(**keys), on_pause=on_pause))


def run_one(given: Claim, **keys: Any) -> tuple[JobFinished, Told]:
    results: list[tuple[JobFinished, Told]] = []

    async def test(launcher: Launcher) -> None:
        told = await launch(launcher, given, **keys)
        results.append((await told.end(), told))

    with_launcher(test)
    return results[0]


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line holds `text`."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                line = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(each.name))
    return found


def gone(text: str) -> bool:
    """Whether no such process is left within the deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if not processes_with(text):
            return True
        time.sleep(0.05)
    return False


def there(text: str) -> bool:
    """Whether such a process is there within the deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if processes_with(text):
            return True
        time.sleep(0.05)
    return False


def test_a_job_end_to_end() -> None:
    given = claim(
        {
            "run": 'echo "k=v" >> "$GITHUB_OUTPUT"; echo "A=1" >> "$GITHUB_ENV"; echo "# s" >> "$GITHUB_STEP_SUMMARY"',
            "id": "s",
        },
        {"run": 'echo "A is $A, k is ${{ steps.s.outputs.k }}"; pwd; cat "$GITHUB_EVENT_PATH"; echo'},
        {"run": "false | true"},
        {"run": "false | true", "shell": "bash", "continue_on_error": True, "id": "p"},
        {"run": 'test "${{ steps.p.outcome }}" = failure'},
        {"run": "read x || echo eof"},
        {"run": 'printf "%s" "$0" | grep -q "^$RUNNER_TEMP/.*\\.sh$" && echo "script ok"', "shell": "sh"},
        event={"n": 7},
        outputs={"o": "${{ steps.s.outputs.k }}"},
    )
    finished, told = run_one(given)
    assert finished.conclusion == "success", told.log()
    assert finished.outputs == {"o": "v"}
    lines = told.log("output").splitlines()
    assert "A is 1, k is v" in lines
    assert "/home/runner/work/demo/demo" in lines
    assert '  "n": 7' in lines
    assert "eof" in lines
    assert "script ok" in lines
    assert told.steps()[4].outcome == "failure"
    assert [type(e).__name__ for e in told.events].count("Summary") == 1


def test_F24_values_of_the_environment_file_arrive_as_written() -> None:
    given = claim(
        {"run": 'printf \'A=b=c<<d\\nB<<X=Y\\n1\\n2\\nX=Y\\n\\nC=\\nD=a b "c" $HOME\\n\' >> "$GITHUB_ENV"'},
        {"run": "env | grep -E '^(A|B|C|D)=' ; echo \"[${B}]\"; echo '${{ env.A }}'"},
        {"run": "printf 'no separator here\\n' >> \"$GITHUB_ENV\""},
    )
    finished, told = run_one(given)
    output = told.log("output")
    assert "A=b=c<<d\n" in output
    assert "[1\n2]" in output
    assert "C=\n" in output
    assert 'D=a b "c" $HOME\n' in output
    assert output.endswith("b=c<<d\n")
    assert finished.conclusion == "failure"
    assert "no separator here" in told.log("runner")


def test_a_missing_folder_and_a_missing_shell_fail_with_their_names() -> None:
    finished, told = run_one(
        claim(
            {"run": "true", "working_directory": "nosuch"},
            {"run": "true", "shell": "nosuchshell {0}", "if_": "always()"},
        )
    )
    assert finished.conclusion == "failure"
    assert "nosuch" in told.log("runner")
    assert "nosuchshell" in told.log("runner")


def test_D15_a_process_left_behind_is_swept_and_named() -> None:
    finished, told = run_one(claim({"run": "sleep 4711 >/dev/null 2>&1 & true"}, {"run": "pgrep sleep || ls /proc"}))
    assert finished.conclusion == "success"
    assert "Terminate orphan process: pid (" in told.log("runner")
    assert "(sleep)" in told.log("runner")


def test_cancel_reaches_grandchildren_and_cleans_up() -> None:
    async def test(launcher: Launcher) -> None:
        given = claim(
            {"run": "bash -c 'trap \"echo child got it; exit\" INT; echo begun; while :; do sleep 0.1; done'; true"},
            {"run": "echo never"},
            {"run": "echo clean", "if_": "always()"},
        )
        told = await launch(launcher, given)
        await told.wait_for("begun")
        await told.handle.order(Cancel(reason="asked"))
        finished = await told.end()
        assert (finished.conclusion, finished.reason) == ("cancelled", "asked")
        output = told.log("output").splitlines()
        assert "child got it" in output
        assert "never" not in output
        assert "clean" in output

    with_launcher(test)


def test_force_ends_at_once() -> None:
    async def test(launcher: Launcher) -> None:
        told = await launch(launcher, claim({"run": "trap '' INT TERM; echo begun; sleep 47110"}, {"if_": "always()"}))
        await told.wait_for("begun")
        await told.handle.order(Cancel(force=True))
        finished = await told.end()
        assert finished.conclusion == "cancelled"
        assert told.steps()[2].outcome == "skipped"

    with_launcher(test)
    assert gone("sleep\00047110")


def test_a_step_that_prints_without_end_can_be_cancelled() -> None:
    async def test(launcher: Launcher) -> None:
        told = await launch(
            launcher, claim({"run": "echo begun; exec yes 47116"}, {"run": "echo clean", "if_": "always()"})
        )
        await told.wait_for("begun")
        await told.handle.order(Cancel())
        finished = await told.end()
        assert finished.conclusion == "cancelled"
        assert told.steps()[2].outcome == "success"

    with_launcher(test)
    assert gone("yes\00047116")


def test_a_lost_lease_reports_nothing_but_that() -> None:
    async def test(launcher: Launcher) -> None:
        told = await launch(launcher, claim({"run": "echo begun; sleep 47111"}))
        await told.wait_for("begun")
        await told.handle.order(LeaseLost("attempt 2 runs"))
        finished = await told.end()
        assert (finished.conclusion, finished.reason_code) == ("cancelled", "lease_lost")

    with_launcher(test)
    assert gone("sleep\00047111")


@pytest.mark.parametrize("kind", ["killed", "stuck"])
def test_a_job_process_that_dies_or_is_stuck_fails_alone(kind: str) -> None:
    async def test(launcher: Launcher) -> None:
        ill = await launch(launcher, claim({"run": "echo begun; sleep 47112"}, {"if_": "always()"}))
        well = await launch(launcher, claim({"run": "echo begun; read -t 60 x < <(sleep 60) || true; echo well"}))
        await ill.wait_for("begun")
        await well.wait_for("begun")
        os.kill(ill.handle.pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        finished = await ill.end()
        code = "job_process_lost" if kind == "killed" else "job_process_stuck"
        assert (finished.conclusion, finished.reason_code) == ("failure", code)
        assert ill.steps()[1].reason_code == code
        assert not well.task.done()
        await well.handle.order(Cancel())
        assert (await well.end()).conclusion == "cancelled"

    with_launcher(test, stuck_after_s=4.0)
    assert gone("sleep\00047112")


def test_the_jobs_end_with_their_parent() -> None:
    """Kill -9 of the process that launched: its job processes and what they run are gone."""
    program = textwrap.dedent(
        """
        import asyncio, sys
        sys.path.insert(0, sys.argv[1])
        from engine.scripted import claim
        from runyard.engine.launch import JobSettings, Launcher
        from runyard.job import Log

        async def main():
            launcher = Launcher()
            handle = await launcher.launch(claim({"run": "echo begun; sleep 47113"}), JobSettings())
            async for event in handle.events():
                if isinstance(event, Log) and b"begun" in event.data and event.kind == "output":
                    print(handle.pid, flush=True)

        asyncio.run(main())
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(ROOT / "tests")],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert parent.stdout is not None
        line = _line_within(parent)
        assert line.strip().isdigit()
        assert there("sleep\00047113")
        parent.kill()
    finally:
        parent.kill()
        parent.wait(DEADLINE_S)
    assert gone("sleep\00047113")
    end = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{line.strip()}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{line.strip()}").exists()


def _line_within(process: subprocess.Popen[str]) -> str:
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
    return process.stdout.readline() if ready else ""


def test_the_claim_is_in_no_argument_and_no_environment_outside_the_step() -> None:
    async def test(launcher: Launcher) -> None:
        told = await launch(launcher, claim({"run": "echo begun; sleep 47114"}, secrets={"S": "hunter2hunter2"}))
        await told.wait_for("begun")
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                for name in ("cmdline", "environ"):
                    try:
                        data = (each / name).read_bytes()
                    except OSError:
                        continue
                    if each.name != str(os.getpid()):
                        assert b"hunter2hunter2" not in data
        await told.handle.order(Cancel(force=True))
        await told.end()

    with_launcher(test)


def test_keep_leaves_the_sandbox_of_a_failed_job_open_until_released() -> None:
    async def test(launcher: Launcher) -> None:
        told = await launch(launcher, claim({"run": "sleep 47115 > /dev/null & exit 3"}), keep=True)
        async with asyncio.timeout(DEADLINE_S):
            await told.task
            finished = await told.handle.wait()
            for _ in range(200):
                if told.handle.kept is not None:
                    break
                await asyncio.sleep(0.02)
        assert finished.conclusion == "failure"
        assert told.handle.kept
        assert Path(f"/proc/{told.handle.pid}").exists()
        async with asyncio.timeout(DEADLINE_S):
            await told.handle.release()
        assert told.handle.ended.is_set()

    with_launcher(test)


def test_pause_on_failure_retries_the_step_until_the_person_gives_up() -> None:
    async def test(launcher: Launcher) -> None:
        seen: list[str] = []

        async def person(paused: PausedStep) -> Any:
            seen.append(paused.command)
            return "retry" if len(seen) == 1 else "go_on"

        given = claim({"run": 'n=$(cat n 2>/dev/null || echo 0); echo "try $n"; echo $((n + 1)) > n; exit 1'})
        told = await launch(launcher, given, pause_on_failure=True, on_pause=person)
        finished = await told.end()
        assert finished.conclusion == "failure"
        assert len(seen) == 2
        assert [line for line in told.log("output").splitlines() if line.startswith("try")] == ["try 0", "try 1"]

    with_launcher(test)


def test_pause_opens_a_shell_under_the_steps_environment() -> None:
    async def test(launcher: Launcher) -> None:
        got: list[bytes] = []

        async def person(paused: PausedStep) -> Any:
            await paused.open_terminal(24, 80)
            await paused.write_terminal(b'echo "[$MARK:$PWD]"; exit\n')
            while hasattr(piece := await paused.read_terminal(), "data"):
                got.append(piece.data)
            return "go_on"

        given = claim({"run": "exit 1", "env": {"MARK": "here"}})
        told = await launch(launcher, given, pause_on_failure=True, on_pause=person)
        await told.end()
        assert b"[here:/home/runner/work/demo/demo]" in b"".join(got)

    with_launcher(test)


def repository(folder: Path) -> str:
    (folder / "act").mkdir(parents=True)
    (folder / "act" / "action.yml").write_text(
        "inputs: {who: {default: nobody}}\n"
        "outputs: {said: {value: '${{ steps.a.outputs.said }}'}}\n"
        "runs:\n  using: composite\n  steps:\n"
        "    - {id: a, shell: bash, run: 'echo said=hi-${{ inputs.who }} >> $GITHUB_OUTPUT'}\n"
    )
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for each in ("init -q -b main", "add -A", "-c user.name=a -c user.email=a@example.org commit -qm one"):
        subprocess.run(["git", "-C", str(folder), *each.split()], env=env, check=True, timeout=DEADLINE_S)
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"],
        env=env,
        check=True,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no-cache"])
def test_checkout_then_a_local_composite(tmp_path: Path, cached: bool) -> None:
    import msgspec

    commit = repository(tmp_path / "repo")
    given = claim(
        step(1, run='test -z "$(ls -A)" && echo empty; touch leftover'),
        uses(2, "actions/checkout@v4", id="co"),
        uses(3, "./act", id="c", with_={"who": "me"}),
        step(
            4,
            run="echo '${{ steps.c.outputs.said }} ${{ steps.co.outputs.commit }}'\n"
            "ls; git status --porcelain; git log --format=%s",
        ),
        step(5, run="echo changed >> act/action.yml; touch new; git status --porcelain"),
    )
    where = Checkout(repository="octo/demo", commit=commit, git_dir=str(tmp_path / "repo" / ".git"))
    given = msgspec.structs.replace(given, checkout=where)
    for _ in range(2 if cached else 1):
        finished, told = run_one(given, cache_dir=str(tmp_path / "cache") if cached else "")
        assert finished.conclusion == "success", told.log()
        lines = told.log("output").splitlines()
        assert "empty" in lines
        assert f"hi-me {commit}" in lines
        assert "leftover" not in lines
        assert lines[-2:] == [" M act/action.yml", "?? new"]
        assert "one" in lines
    assert "changed" not in (tmp_path / "repo" / "act" / "action.yml").read_text()


def test_a_process_that_waits_for_its_job_and_is_killed_is_replaced() -> None:
    async def test(launcher: Launcher) -> None:
        await launcher.start()
        server = launcher._server_pid
        children = Path(f"/proc/{server}/task/{server}/children")
        deadline = time.monotonic() + DEADLINE_S
        while not (waiting := _waiting(children)):
            assert time.monotonic() < deadline, "the server keeps no process ready"
            await asyncio.sleep(0.02)
        os.kill(waiting[0], signal.SIGKILL)
        told = await launch(launcher, claim({"run": "echo done"}))
        assert (await told.end()).conclusion == "success"
        assert told.handle.pid != waiting[0]
        assert "done" in told.log("output")

    with_launcher(test)


def _waiting(children: Path) -> list[int]:
    """The children of the fork server that are copies of it; the helper is a program of its own."""
    server = Path(f"/proc/{children.parts[2]}/cmdline").read_bytes()
    pids = [int(pid) for pid in children.read_text("ascii").split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes() == server]
