"""Nothing outlives its owner: what dies with the job process, and what the next reaper removes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runyard.sandbox import limits, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(60)

OWNER = """
import asyncio, json, sys
from runyard.job import Limits
from runyard.sandbox.contract import Identity, Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

async def main():
    sandbox = open_sandbox("bubblewrap", state=sys.argv[1])
    wanted = {} if "disk_limit" in sandbox.capabilities.refused else {"disk_mb": 32}
    session = await sandbox.prepare(Shape(limits=Limits(**wanted)))
    await session.adopt(Identity(job_key="victim"))
    script = "trap '' INT TERM HUP; setsid sleep 3061 & echo ready; while :; do sleep 3061; done"
    running = await session.start(StepCommand(argv=("sh", "-c", script), env=session.environment))
    await running.read()
    print(json.dumps({"name": session.name, "first": session.first_pid}), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def until(true: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def pids_of(first: int) -> list[int]:
    """Every process in the pid namespace of `first`, as seen from here."""
    space = Path(f"/proc/{first}/ns/pid").readlink()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/pid").readlink() == space:
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


class Owner:
    """A process that owns a sandbox with a stubborn command in it."""

    def __init__(self, state: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(state)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.name: str = told["name"]
        self.pids = pids_of(told["first"])


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    made.process.kill()
    made.process.wait(10)
    assert made.process.stdout is not None
    made.process.stdout.close()
    records.reap(str(tmp_path))


def test_kill_9_of_the_job_process_ends_every_process_of_the_sandbox_and_the_reaper_removes_the_rest(
    owner: Owner, tmp_path: Path
) -> None:
    assert len(owner.pids) >= 5  # the first process, the holder, a watcher, two of the job at least
    record = json.loads((tmp_path / "sandboxes" / owner.name / "record.json").read_text())
    assert records.reap(str(tmp_path)).removed == ()  # its owner lives
    owner.process.send_signal(signal.SIGKILL)
    owner.process.wait(10)
    until(lambda: not any(alive(pid) for pid in owner.pids), "processes of the sandbox live on")
    reaped = records.reap(str(tmp_path))
    assert reaped.removed == (owner.name,)
    assert reaped.left == ()
    assert list((tmp_path / "sandboxes").iterdir()) == []
    assert not any(Path(group).exists() for group in record["groups"])
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    until(lambda: str(tmp_path) not in backing_files(), "the loop device of its disk lives on")


def test_the_end_of_the_supervisor_ends_the_sandbox(owner: Owner) -> None:
    first = owner.pids[0]
    outside = int(fields(first)[1])
    supervisor = int(fields(outside)[1])
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in owner.pids), "the sandbox outlived its supervisor")


def backing_files() -> str:
    """What the loop devices of this machine stand on; the kernel lets go of them a moment after the mount is gone."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(path.read_text())
    return "".join(found)


def fields(pid: int) -> list[str]:
    """From the state on: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    try:
        return fields(pid)[0] not in {"Z", "X"}
    except OSError:
        return False


def test_reaping_nothing_is_quiet(tmp_path: Path) -> None:
    assert records.reap(str(tmp_path)) == records.Reaped()


def test_a_record_that_can_not_be_read_does_not_stop_the_reaper(tmp_path: Path) -> None:
    folder = tmp_path / "sandboxes" / "runyard-torn"
    folder.mkdir(parents=True)
    (folder / "record.json").write_bytes(b'{"name": "runyard-to')
    (tmp_path / "sandboxes" / "runyard-torn.lock").touch()
    assert records.reap(str(tmp_path)).removed == ("runyard-torn",)
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_a_process_that_has_the_recorded_pid_but_began_later_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        owned = records.own(str(tmp_path), "runyard-old", "bubblewrap")
        owned.record.processes = ((bystander.pid, 1),)
        owned.write()
        os.close(owned._lock)
        assert records.reap(str(tmp_path)).removed == ("runyard-old",)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)


def test_a_folder_that_the_job_made_unreadable_is_removed(tmp_path: Path) -> None:
    owned = records.own(str(tmp_path), "runyard-dark", "bubblewrap")
    owned.write()
    dark = Path(owned.folder) / "disk" / "dark"
    dark.mkdir(parents=True)
    (dark / "file").touch()
    dark.chmod(0)
    assert owned.remove() == []
    assert not Path(owned.folder).exists()


def test_groups_are_removed_with_what_is_left_in_them() -> None:
    hierarchies = limits.find()
    hierarchy = next((each for name, each in hierarchies.items() if name == "pids"), None)
    if hierarchy is None or limits.parent_of(hierarchy, ("pids",)) is None:
        pytest.skip("this user may not make groups here")
    folder = Path(hierarchy.own, f"runyard-test-{os.getpid()}")
    folder.mkdir()
    process = subprocess.Popen(["sleep", "60"])
    (folder / "cgroup.procs").write_text(str(process.pid))
    try:
        assert limits.remove((str(folder),), seconds=10.0) == []
        assert not folder.exists()
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait(10)


def test_engines_are_asked_where_one_was_used(tmp_path: Path) -> None:
    """A run asks no engine as long as none was opened from its state folder; afterwards it always does."""
    assert not records.uses_engines(str(tmp_path))
    records.note_engines(str(tmp_path))
    records.note_engines(str(tmp_path))
    assert records.uses_engines(str(tmp_path))
