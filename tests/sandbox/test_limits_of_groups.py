"""Where control groups are found (v1, hybrid, v2), which settings are written, and what is refused by name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from runyard.job import Limits, MachineError
from runyard.sandbox import limits
from runyard.sandbox.contract import Exit, Shape, StepCommand
from runyard.sandbox.limits import Hierarchy
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from pathlib import Path

V1 = """\
30 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:31 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:32 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
"""
V1_OWN = "4:memory:/user/1\n3:pids:/\n2:cpu,cpuacct:/user\n1:name=systemd:/x\n"
V2 = "31 23 0:29 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V2_OWN = "0::/user.slice/user-1000.slice/session.scope\n"


def test_version_1_with_controllers_that_share_a_mount() -> None:
    found = limits.parse_hierarchies(V1, V1_OWN)
    assert found["memory"] == Hierarchy(1, "/sys/fs/cgroup/memory/user/1", "/sys/fs/cgroup/memory")
    assert (
        found["cpu"]
        == found["cpuacct"]
        == Hierarchy(1, "/sys/fs/cgroup/cpu,cpuacct/user", "/sys/fs/cgroup/cpu,cpuacct")
    )
    assert found["pids"].own == "/sys/fs/cgroup/pids"


def test_version_2() -> None:
    found = limits.parse_hierarchies(V2, V2_OWN)
    assert found == {"": Hierarchy(2, "/sys/fs/cgroup/user.slice/user-1000.slice/session.scope", "/sys/fs/cgroup")}


def test_hybrid_has_both() -> None:
    unified = "35 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    found = limits.parse_hierarchies(V1 + unified, V1_OWN + "0::/here\n")
    assert found[""] == Hierarchy(2, "/sys/fs/cgroup/unified/here", "/sys/fs/cgroup/unified")
    assert found["memory"].version == 1


def test_a_mount_that_shows_only_a_part_of_the_hierarchy_as_in_a_container() -> None:
    line = "31 23 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    inside = limits.parse_hierarchies(line, "4:memory:/docker/abc\n")
    assert inside["memory"].own == "/sys/fs/cgroup/memory"
    below = limits.parse_hierarchies(line, "4:memory:/docker/abc/job\n")
    assert below["memory"].own == "/sys/fs/cgroup/memory/job"
    elsewhere = limits.parse_hierarchies(line, "4:memory:/other\n")
    assert elsewhere["memory"].own == "/sys/fs/cgroup/memory"


def test_a_path_with_spaces() -> None:
    line = "31 23 0:29 / /mnt/my\\040groups rw - cgroup cgroup rw,pids\n"
    assert limits.parse_hierarchies(line, "3:pids:/\n")["pids"].top == "/mnt/my groups"


def test_nothing_mounted_refuses_every_limit_by_name() -> None:
    refused = limits.refusals({})
    assert set(refused) == {"memory_limit", "cpu_limit", "pids_limit"}
    assert all(each.promise == name and each.remedy for name, each in refused.items())


def v2_tree(top: Path, *, controllers: str, handed_down: str) -> Hierarchy:
    own = top / "a" / "b"
    own.mkdir(parents=True)
    for folder in (top, top / "a", own):
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(handed_down if folder == top / "a" else "")
    return Hierarchy(2, str(own), str(top))


def test_version_2_takes_the_nearest_group_that_hands_the_controller_down(tmp_path: Path) -> None:
    hierarchy = v2_tree(tmp_path, controllers="cpu", handed_down="memory pids")
    assert limits.parent_of(hierarchy, ("memory",)) == str(tmp_path / "a")
    assert limits.parent_of(hierarchy, ("io",)) is None


@pytest.mark.parametrize(
    ("wish", "controller", "version", "written"),
    [
        (
            Limits(memory_mb=64),
            "memory",
            1,
            {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"},
        ),
        (Limits(memory_mb=64), "memory", 2, {"memory.max": "67108864", "memory.swap.max": "0"}),
        (Limits(cpus=1.5), "cpu", 1, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}),
        (Limits(cpus=0.001), "cpu", 2, {"cpu.max": "1000 100000"}),
        (Limits(pids=12), "pids", 2, {"pids.max": "12"}),
        (Limits(pids=12), "memory", 1, {}),
    ],
)
def test_settings(wish: Limits, controller: str, version: int, written: dict[str, str]) -> None:
    assert {name: value for name, value, _ in limits.settings(wish, controller, version)} == written


def test_only_what_is_asked_for_needs_a_controller() -> None:
    assert limits.wanted(Limits()) == ()
    assert limits.wanted(Limits(memory_mb=1, cpus=1, pids=1)) == ("memory", "cpu", "pids")


def test_a_limit_that_the_kernel_does_not_take_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    hierarchies = {"pids": Hierarchy(1, str(tmp_path / "pids"), str(tmp_path / "pids"))}
    groups = limits.plan(Limits(pids=5), "job", hierarchies)
    assert groups.folders == (f"{tmp_path}/pids/job",)
    (tmp_path / "pids" / "job").mkdir()
    (tmp_path / "pids" / "job" / "pids.max").mkdir()
    with pytest.raises(MachineError, match=r"pids/job/pids\.max"):
        limits.create(groups, Limits(pids=5), hierarchies)


@pytest.mark.timeout(60)
def test_a_job_without_a_limit_of_processes_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not limits.counted_apart():
        pytest.skip("this kernel counts the processes of a user on the whole machine")
    monkeypatch.setattr(limits, "PROCESSES", 40)
    forks = "for i in $(seq 60); do sleep 300 & done 2>/dev/null; echo never"
    commands = (("/bin/bash", "-c", "ulimit -Su; ulimit -Hu"), ("/bin/sh", "-c", forks))

    async def go() -> tuple[list[Exit], bytes]:
        async with asyncio.timeout(40):
            session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape())
            said, ends = b"", []
            try:
                for argv in (*commands, ("/bin/true",)):
                    running = await session.start(StepCommand(argv=argv, env={"PATH": "/usr/bin:/bin"}))
                    reading = asyncio.ensure_future(running.wait())
                    if argv == commands[0]:
                        while part := await running.read():
                            said += part
                    ends.append(await asyncio.wait_for(reading, 15))
            finally:
                await session.close()
            return ends, said

    (first, second, third), said = asyncio.run(go())
    assert (first.code, said.split()) == (0, [b"40", b"40"])
    assert second.code != 0
    assert (third.code, third.reason) == (126, "too_many_processes")
    assert third.detail == "the limit of 40 processes was reached"


@pytest.mark.timeout(60)
def test_a_command_that_stops_its_watcher_is_still_ended_by_a_signal(tmp_path: Path) -> None:
    async def go() -> Exit:
        async with asyncio.timeout(40):
            session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape())
            try:
                script = "kill -STOP $PPID; echo stopped; exec sleep 300"
                running = await session.start(
                    StepCommand(argv=("/bin/sh", "-c", script), env={"PATH": "/usr/bin:/bin"})
                )
                assert await running.read() == b"stopped\n"
                await running.signal("kill", everyone=True)
                return await asyncio.wait_for(running.wait(), 15)
            finally:
                await session.close()

    assert asyncio.run(go()).signal == 9
