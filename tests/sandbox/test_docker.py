"""What is particular to engines: supervisors, owners that die, images' users, networks."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import images
from runyard.job import InputError, Limits, MachineError
from runyard.sandbox import docker_now
from runyard.sandbox.contract import FileIn, FileOut, Identity, SandboxRefused, Shape, StepCommand
from runyard.sandbox.docker_guard import has_pending_kill, is_killed
from runyard.sandbox.docker_reap import is_dead, owner_mark, reap_engine
from runyard.sandbox.engine import open_engine
from sandbox.conformance import output_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.sandbox.docker_session import DockerSession

pytestmark = [pytest.mark.docker, pytest.mark.timeout(60)]

ROOT = os.geteuid() == 0
WORK = "/work"
SECONDS = 20.0
SOURCES = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture(scope="module")
def image() -> str:
    images.engine_socket()
    return images.bash_image()


def in_session(image: str, work: Callable[[DockerSession], Awaitable[None]], **shape: Any) -> None:
    async def run() -> None:
        session = await open_engine("docker").prepare(Shape(image=image, **{"directories": (WORK,), **shape}))
        try:
            async with asyncio.timeout(SECONDS):
                await session.adopt(Identity(job_key="docker"))
                await work(session)
        finally:
            assert (await session.close()).items == ()

    asyncio.run(run())


async def run_in(session: DockerSession, *argv: str, **more: Any) -> tuple[str, int]:
    more.setdefault("env", dict(session.environment))
    running = await session.start(StepCommand(argv=argv, **more))
    output = await output_of(running)
    return output.decode("utf-8", "replace"), (await running.wait()).code


# the exec supervisor


def test_an_image_without_a_shell_is_run_by_the_engine_and_says_so(image: str) -> None:
    tool = images.shell_less_image()

    async def work(session: DockerSession) -> None:
        assert session.capabilities.supervisor == "exec"
        assert session.how_to_enter() is None
        busybox = "/bin/busybox"
        assert await run_in(session, busybox, "echo", "hello") == ("hello\n", 0)
        assert (await run_in(session, busybox, "false"))[1] == 1
        env = {"A-B": "1", "C": "x y"}
        assert (await run_in(session, busybox, "env", env=env))[0].splitlines() == ["A-B=1", "C=x y", "HOME=/root"]
        running = await session.start(
            StepCommand(
                argv=(busybox, "cp", "in", "out"),
                cwd=WORK,
                files_in=(FileIn(f"{WORK}/in", b"\0data", 0o600),),
                files_out=(
                    FileOut(f"{WORK}/out", 10),
                    FileOut(f"{WORK}/in", 2),
                    FileOut(f"{WORK}/none", 1),
                    FileOut(WORK, 1),
                ),
            )
        )
        ended = await running.wait()
        assert ended.files[f"{WORK}/out"].data == b"\0data"
        assert (ended.files[f"{WORK}/in"].problem, ended.files[f"{WORK}/in"].size) == ("too_large", 5)
        assert ended.files[f"{WORK}/none"].problem == "missing"
        assert ended.files[WORK].problem == "not_a_file"
        await run_in(session, busybox, "ln", "-s", "/etc/passwd", f"{WORK}/link")
        running = await session.start(StepCommand(argv=(busybox, "true"), files_out=(FileOut(f"{WORK}/link", 1000),)))
        assert (await running.wait()).files[f"{WORK}/link"].problem == "link"
        running = await session.start(StepCommand(argv=("/none",)))
        await output_of(running)
        ended = await running.wait()
        assert ended.code == 127
        assert ended.problem

    in_session(tool, work)


@pytest.mark.skipif(not ROOT, reason="only root may signal the processes of a container from outside")
def test_a_step_of_an_image_without_a_shell_is_signalled_from_outside(image: str) -> None:
    tool = images.shell_less_image()

    async def work(session: DockerSession) -> None:
        daemon = await session.start(StepCommand(argv=("/bin/busybox", "sleep", "61")))
        running = await session.start(StepCommand(argv=("/bin/busybox", "sleep", "60")))
        assert await running.left()
        await running.signal("kill")
        assert (await running.wait()).code == 137
        assert not await running.left()
        assert await daemon.left()

    in_session(tool, work)


def test_a_name_that_no_shell_exports_reaches_the_step_all_the_same(image: str) -> None:
    async def work(session: DockerSession) -> None:
        assert session.capabilities.supervisor == "sh"
        env = {"INPUT_WITH-DASH": "1", "UID": "77", "PATH": session.environment["PATH"]}
        running = await session.start(
            StepCommand(
                argv=("env",),
                env=env,
                files_in=(FileIn(f"{WORK}/a", b"x"),),
                files_out=(FileOut(f"{WORK}/a", 1),),
            )
        )
        seen = (await output_of(running)).decode().splitlines()
        assert {"INPUT_WITH-DASH=1", "UID=77"} <= set(seen)
        assert (await running.wait()).files[f"{WORK}/a"].data == b"x"

    in_session(image, work)


# users and images


def test_the_images_own_user_writes_workspace_and_files(image: str) -> None:
    named = images.busybox_image(user="builder")

    async def work(session: DockerSession) -> None:
        script = f"id -u; echo x > {WORK}/a; echo y > /cmd/b; stat -c %u {WORK} {WORK}/a"
        running = await session.start(
            StepCommand(
                argv=("sh", "-c", script),
                env=dict(session.environment),
                files_in=(FileIn("/cmd/b", b""),),
                files_out=(FileOut("/cmd/b", 10),),
            )
        )
        assert (await output_of(running)).decode() == "1001\n1001\n1001\n"
        assert (await running.wait()).files["/cmd/b"].data == b"y\n"

    in_session(named, work, tmpfs=("/cmd",))


def test_a_user_that_the_image_does_not_have_is_named(image: str) -> None:
    from runyard.sandbox.container_wishes import ContainerWishes

    async def run() -> None:
        with pytest.raises((InputError, MachineError), match="nobody-here"):
            await open_engine("docker").prepare(Shape(image=image, container=ContainerWishes(user="nobody-here")))

    asyncio.run(run())


def test_the_hosts_own_image_runs_with_its_programs_under_a_layer(image: str) -> None:
    async def work(session: DockerSession) -> None:
        text, code = await run_in(
            session, "bash", "-c", "ls /root /home; echo x > /usr/local/mine && cat /usr/local/mine"
        )
        assert code == 0
        assert text.endswith("x\n")
        assert not Path("/usr/local/mine").exists()

    if not ROOT:
        pytest.skip("a writable layer over a folder of the host needs root with an engine")
    in_session("host", work)


def test_a_folder_is_an_image(image: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "busybox").write_bytes(Path(images.BUSYBOX).read_bytes())
    (tmp_path / "bin" / "busybox").chmod(0o755)
    for name in ("sh", "echo", "head"):
        (tmp_path / "bin" / name).symlink_to("busybox")

    async def work(session: DockerSession) -> None:
        assert await run_in(session, "/bin/sh", "-c", "echo from a folder", env={}) == ("from a folder\n", 0)

    in_session(f"dir:{tmp_path}", work)
    with pytest.raises(InputError, match="not a folder"):
        in_session(f"dir:{tmp_path}/none", work)


def test_a_limit_that_the_engine_can_not_keep_is_refused(image: str) -> None:
    async def run() -> None:
        with pytest.raises(SandboxRefused) as caught:
            await open_engine("docker").prepare(Shape(image=image, limits=Limits(disk_mb=10)))
        assert caught.value.refused.promise == "disk_limit"

    asyncio.run(run())


def test_no_engine_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no container engine answers") as caught:
        open_engine("docker", socket_path=str(tmp_path / "none.sock"))
    assert caught.value.remedy


# a shell that can't fork


def test_a_full_process_table_costs_the_step_and_not_the_sandbox(image: str) -> None:
    async def work(session: DockerSession) -> None:
        # A daemon fills the last place only when the step's own shell has left it.
        daemons = "for i in 1 2 3 4 5 6; do sleep 50 >/dev/null 2>&1 & done"
        script = f"{daemons}; (sleep 0.3; sleep 50 & sleep 50) >/dev/null 2>&1 &"
        running = await session.start(StepCommand(argv=("bash", "-c", script), env=dict(session.environment)))
        assert (await running.wait()).code == 0
        while (ended := await (await session.start(StepCommand(argv=("true",)))).wait()).code == 0:
            await asyncio.sleep(0.1)
        assert ended.reason == "too_many_processes"
        await running.signal("kill")
        assert await run_in(session, "echo", "on") == ("on\n", 0)

    in_session(image, work, limits=Limits(pids=10))


# owners that die

OWNER = """
import asyncio, json, os, sys
from runyard.sandbox.contract import Shape, StepCommand, Identity
from runyard.sandbox.engine import open_engine
async def main():
    session = await open_engine("docker").prepare(Shape(image=sys.argv[1], directories=("/work",)))
    await session.adopt(Identity(job_key="owner"))
    running = await session.start(StepCommand(argv=("bash", "-c", sys.argv[2]), env=dict(session.environment)))
    seen = await running.read()
    guard = session._guard.pid
    told = {"label": session.label, "folder": str(session.folder), "guard": guard, "seen": seen.decode()}
    print(json.dumps(told), flush=True)
    await running.read()
    await asyncio.sleep(60)
asyncio.run(main())
"""


def owner_of(image: str, script: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, image, script],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], SECONDS)[0]:
        process.kill()
        raise AssertionError("the owner did not say that its step runs")
    return process, json.loads(process.stdout.readline())


def wait_until_gone(label: str) -> float:
    socket_path = docker_now.default_socket()
    began = time.monotonic()
    while any(docker_now.listed(socket_path, f"runyard.sandbox={label}").values()):
        assert time.monotonic() - began < SECONDS, "the container is still there"
        time.sleep(0.1)
    return time.monotonic() - began


def test_kill_9_of_the_owner_ends_its_containers_at_once_and_reap_its_folders(image: str) -> None:
    process, told = owner_of(image, "echo ready; sleep 60")
    assert told["seen"] == "ready\n"
    process.kill()
    process.wait(10)
    wait_until_gone(told["label"])
    assert Path(told["folder"]).exists()
    reaped = reap_engine(docker_now.default_socket())
    assert told["folder"] in reaped.removed
    assert not Path(told["folder"]).exists()


def test_an_owner_that_the_kernel_holds_is_seen_as_killed() -> None:
    """What reads a pipe while a job splices into it can't follow a SIGKILL before the job is gone."""
    assert has_pending_kill(b"Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n")
    assert has_pending_kill(b"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n")
    assert not has_pending_kill(b"SigPnd:\t0000000000004002\nShdPnd:\t0000000000010000\nSigCgt:\t0000000000000100\n")
    assert not is_killed(os.getpid())
    assert not is_killed(2**22 + 1)


def test_reap_removes_what_a_dead_owner_without_a_guard_left(image: str) -> None:
    process, told = owner_of(image, "echo ready; exec sleep 60")
    os.kill(told["guard"], signal.SIGKILL)
    process.kill()
    process.wait(10)
    assert any(docker_now.listed(docker_now.default_socket(), f"runyard.sandbox={told['label']}").values())
    reaped = reap_engine(docker_now.default_socket())
    assert any("container" in name for name in reaped.removed)
    wait_until_gone(told["label"])


def test_an_owner_is_a_pid_and_its_start() -> None:
    mine = owner_mark()
    assert not is_dead(mine)
    assert is_dead(f"{mine}1")
    assert is_dead("1-1")
    assert not is_dead("somebody else's")


# networks


@pytest.mark.skipif(not ROOT, reason="the proxy listens inside the container's network, which only root can enter")
def test_the_level_proxy_judges_what_a_job_asks_for(image: str) -> None:
    async def work(session: DockerSession) -> None:
        assert session.environment["http_proxy"].startswith("http://127.0.0.1:")
        text, _ = await run_in(session, "sh", "-c", "wget -qO- http://169.254.169.254/ 2>&1")
        assert "403" in text
        assert session.network is not None
        assert any("169.254.169.254" in found.destination for found in await session.network.refused())

    in_session(image, work, network="proxy")


def test_the_level_public_is_judged_by_rules_of_the_host_or_refused_by_name(image: str) -> None:
    refused = open_engine("docker").capabilities.refused.get("egress_public")

    async def work(session: DockerSession) -> None:
        script = (
            "timeout 3 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80'; echo $?; tail -n +3 /proc/net/dev | cut -d: -f1"
        )
        text, _ = await run_in(session, "bash", "-c", f"{{ {script}; }} 2>/dev/null")
        assert text.split()[0] == "1"
        assert sorted(text.split()[1:]) == ["eth0", "lo"]
        assert session.network is not None
        assert any("169.254.169.254" in found.destination for found in await session.network.refused())

    if refused is None:
        in_session(image, work, network="public")
        return
    with pytest.raises(SandboxRefused) as caught:
        in_session(image, work, network="public")
    assert caught.value.refused == refused
