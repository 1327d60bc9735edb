"""The attack on real sandboxes: all promises hold, and one that is taken away is named."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

import images
from runyard.cli.main import run
from runyard.job import MachineError, Refused
from runyard.sandbox import bubblewrap
from runyard.sandbox.attack import Report, attack
from runyard.sandbox.attack.outside import probe_bytes
from runyard.sandbox.contract import Mount, Session, Shape
from runyard.sandbox.engine import open_engine

if TYPE_CHECKING:
    from pathlib import Path

    from runyard.sandbox.attack.drive import Stage

pytestmark = pytest.mark.timeout(100)

ALLOW_ALL = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)


def attacked(sandbox: bubblewrap.BubblewrapSandbox, *stages: Stage) -> Report:
    async def bounded() -> Report:
        with anyio.fail_after(90):
            return await attack(sandbox, "host", stages=stages) if stages else await attack(sandbox, "host")

    return anyio.run(bounded)


def need(tmp: Path) -> None:
    if probe_bytes() is None:
        pytest.skip("no probe for this architecture")

    async def opens() -> None:
        with anyio.fail_after(20):
            await (await bubblewrap.BubblewrapSandbox(str(tmp)).prepare(Shape())).close()

    try:
        anyio.run(opens)
    except MachineError as err:
        pytest.skip(f"bubblewrap does not open here: {err}")


def test_every_promise_of_bubblewrap_holds_and_each_is_tried(tmp_path: Path) -> None:
    need(tmp_path)
    sandbox = bubblewrap.BubblewrapSandbox(str(tmp_path))
    report = attacked(sandbox)
    assert report.gave_way() == ()
    held = {each.promise for each in report.findings if each.verdict == "held"}
    attackable = {
        *("fresh_file_system", "no_capabilities", "no_new_privileges", "seccomp", "memory_limit", "cpu_limit"),
        *("pids_limit", "disk_limit", "time_limit", "no_engine_socket", "no_devices", "no_host_mounts", "no_host_pids"),
        *("not_host_root", "egress_none", "egress_proxy", "command_files"),
    }
    assert attackable - set(sandbox.capabilities.refused) <= held


class WithHostMount(bubblewrap.BubblewrapSandbox):
    """Takes one promise away: the machine's temporary folder is visible."""

    async def prepare(self, shape: Shape) -> Session:
        mount = Mount(source="/var/tmp", target="/var/tmp")
        return await super().prepare(msgspec.structs.replace(shape, mounts=(*shape.mounts, mount)))


def test_the_command_names_a_host_mount_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need(tmp_path)
    monkeypatch.setenv("RUNYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(bubblewrap, "BubblewrapSandbox", WithHostMount)
    assert run(["doctor", "--attack", "--sandbox", "bubblewrap"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told
    assert all(line.startswith("bubblewrap: no_host_mounts gave way: read /var/tmp/") for line in told)


class WithoutFilter(bubblewrap.BubblewrapSession):
    """Takes one promise away: a filter that allows everything."""

    def _plan(self) -> dict[str, Any]:
        return {**super()._plan(), "seccomp": ALLOW_ALL}


def test_a_missing_filter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(tmp_path)
    monkeypatch.setattr(bubblewrap, "BubblewrapSession", WithoutFilter)
    report = attacked(bubblewrap.BubblewrapSandbox(str(tmp_path)), "inside")
    assert {each.promise for each in report.gave_way()} == {"seccomp"}
    assert "read the keyring" in {each.attempt for each in report.gave_way()}


class WithAnUnkeptPromise(WithHostMount):
    """The same mount, from a backend that says so: a job that asks for the promise is refused by name."""

    def __init__(self, state: str | None = None) -> None:
        super().__init__(state)
        said = {**self.capabilities.refused, "no_host_mounts": Refused("no_host_mounts", "a folder is shared", "don't")}
        self.capabilities = msgspec.structs.replace(self.capabilities, refused=said)


def test_a_promise_that_was_never_made_is_told_and_is_no_defect(tmp_path: Path) -> None:
    need(tmp_path)
    report = attacked(WithAnUnkeptPromise(str(tmp_path)), "inside")
    assert report.gave_way() == ()
    told = [each for each in report.findings if each.promise == "no_host_mounts" and each.verdict == "not_tried"]
    assert told[0].seen == "refused by name: a folder is shared"
    assert any(each.seen == "not promised here: the host's own bytes" for each in told)


@pytest.mark.docker
def test_an_engine_holds_what_it_promises(tmp_path: Path) -> None:
    images.engine_socket()
    image = images.busybox_image()
    sandbox = open_engine("docker", str(tmp_path))

    async def bounded() -> Report:
        with anyio.fail_after(90):
            return await attack(sandbox, image, stages=("inside", "proxy", "end"))

    report = anyio.run(bounded)
    assert report.gave_way() == ()
    held = {each.promise for each in report.findings if each.verdict == "held"}
    expected = {"no_capabilities", "no_new_privileges", "seccomp", "no_host_mounts", "no_host_pids", "no_engine_socket"}
    assert expected | {"no_devices", "egress_none", "time_limit"} <= held
