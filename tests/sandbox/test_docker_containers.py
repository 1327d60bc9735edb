"""Services, docker actions and builds on a real engine (job-semantics 9.6 and 17)."""

from __future__ import annotations

import asyncio
import os
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

import images
from runyard.job import Limits, MachineError, WorkError
from runyard.sandbox.container_options import judge
from runyard.sandbox.container_wishes import ContainerWishes, RegistryLogin
from runyard.sandbox.contract import (
    ContainerRun,
    FileIn,
    FileOut,
    Identity,
    ImageBuild,
    ServiceSpec,
    Shape,
    StepCommand,
)
from runyard.sandbox.docker_api import EngineApi
from runyard.sandbox.engine import open_engine
from sandbox.conformance import output_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from runyard.sandbox.docker_session import DockerSession

pytestmark = [pytest.mark.docker, pytest.mark.timeout(60)]

ROOT = os.geteuid() == 0
WORK = "/__w/repo/repo"
SECONDS = 20.0
SERVER = ("sh", "-c", "echo serving; while :; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nhello\\n' | nc -l -p 80; done")


@pytest.fixture(scope="module")
def image() -> str:
    images.engine_socket()
    return images.bash_image()


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def in_session(
    state: str, image: str, work: Callable[[DockerSession, list[str]], Awaitable[None]], **shape: Any
) -> DockerSession:
    """Run `work` in an adopted session, and see that nothing is left; returns the closed session."""

    async def run() -> DockerSession:
        sandbox = open_engine("docker", state)
        session = await sandbox.prepare(Shape(image=image, directories=(WORK,), **shape))
        try:
            async with asyncio.timeout(SECONDS):
                await session.adopt(Identity(job_key="containers"))
                await work(session, [])
        finally:
            left = await session.close()
        assert left.items == ()
        async with EngineApi(sandbox.socket_path) as api:
            mine = {"runyard.sandbox": session.label}
            assert await api.containers(mine) == ()
            assert await api.networks(mine) == ()
            assert await api.volumes(mine) == ()
            assert await api.images(mine) == ()
        return session

    return asyncio.run(run())


async def nothing_else_is_reached(session: DockerSession) -> None:
    """The bridge of a job without network leads nowhere: not to the host's own services, not out."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        facts = await session.api.container(session.container)
        gateways = [point.gateway for point in (facts.network_settings.networks or {}).values() if point.gateway]
        for target in [*(f"{gateway}/{port}" for gateway in gateways), "198.51.100.1/80", "169.254.169.254/80"]:
            script = f"{{ timeout 1 bash -c 'exec 3<>/dev/tcp/{target}' && echo reached {target}; }} 2>/dev/null"
            assert await run_in(session, script) == ""


async def run_in(session: DockerSession, script: str) -> str:
    env = dict(session.environment)
    running = await session.start(StepCommand(argv=("bash", "-c", script), env=env, cwd=WORK))
    return (await output_of(running)).decode()


def test_a_service_is_reached_by_its_key_and_by_its_ports_on_the_jobs_loopback(state: str, image: str) -> None:
    wishes, offences = judge(options="--name other", ports=["80"] if ROOT else [])
    assert offences == ()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        spec = ServiceSpec(name="web", image=image, wishes=wishes, command=SERVER, env={"MODE": "test"})
        services = await session.containers.start_services((spec,), told.append)
        assert set(services) == {"web"}
        assert services["web"].id
        assert services["web"].network == session.containers.job.network
        assert "hello" in await run_in(session, "until wget -qO- http://web/; do sleep 0.1; done")
        assert "hello" in await run_in(session, "until wget -qO- http://other/; do sleep 0.1; done")
        if ROOT:
            port = services["web"].ports["80"]
            assert "hello" in await run_in(session, f"until wget -qO- http://127.0.0.1:{port}/; do sleep 0.1; done")
        await nothing_else_is_reached(session)
        await session.containers.stop_services(told.append)
        await session.containers.stop_services(told.append)
        assert told == []

    in_session(state, image, work)


def test_health_is_waited_for_and_told(state: str, image: str) -> None:
    wishes, offences = judge(
        options='--health-cmd "test -e /ready" --health-interval 200ms --health-timeout 5s --health-retries 60'
    )
    assert offences == ()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        command = ("sh", "-c", "sleep 0.7; touch /ready; sleep 60")
        spec = ServiceSpec(name="slow", image=image, wishes=wishes, command=command)
        await session.containers.start_services((spec,), told.append)
        assert any(line.startswith("slow is healthy") for line in told)

    in_session(state, image, work)


@pytest.mark.parametrize(
    ("options", "seconds", "words"),
    [
        ("--health-cmd false --health-interval 100ms --health-retries 2", 15, "unhealthy"),
        ("--health-cmd false --health-interval 1m", 1, "not healthy after 1 s"),
        ("--health-cmd false --health-interval 1m -e END=4", 15, "exit code 4"),
    ],
    ids=["unhealthy", "never healthy", "ended"],
)
def test_a_service_that_does_not_start_fails_with_its_log(
    state: str, image: str, options: str, seconds: float, words: str
) -> None:
    wishes, offences = judge(options=options)
    assert offences == ()
    command = ("sh", "-c", "echo why it fails; [ -z $END ] || exit $END; sleep 60")

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        spec = ServiceSpec(name="bad", image=image, wishes=wishes, command=command, health_s=seconds)
        with pytest.raises(WorkError, match="One or more containers failed to start"):
            await session.containers.start_services((spec,), told.append)
        assert "why it fails" in told
        assert any(words in line for line in told)

    in_session(state, image, work)


def test_a_docker_action_shares_folders_and_returns_files(state: str, image: str) -> None:
    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        await run_in(session, "echo from the job > file")
        script = "cat file; echo $GREETING; pwd; echo from the action > back; echo OUT=1 >> $GITHUB_ENV; exit 3"
        running = await session.containers.run(
            ContainerRun(
                image=image,
                entrypoint="sh",
                args=("-c", script),
                env={"GREETING": "hello", "GITHUB_ENV": "/github/file_commands/env", "INPUT_WITH-DASH": "x"},
                cwd="/github/workspace",
                shares={WORK: "/github/workspace"},
                directories=("/github/file_commands",),
                files_in=(FileIn("/github/file_commands/env", b""),),
                files_out=(FileOut("/github/file_commands/env", 1000),),
            ),
            told.append,
        )
        output = (await output_of(running)).decode()
        ended = await running.wait()
        assert output == "from the job\nhello\n/github/workspace\n"
        assert (ended.code, ended.files["/github/file_commands/env"].data) == (3, b"OUT=1\n")
        assert await run_in(session, "cat back") == "from the action\n"
        async with EngineApi(session.api.socket_path) as api:
            assert len(await api.containers({"runyard.sandbox": session.label})) == 1

    in_session(state, image, work)


def test_a_docker_action_can_be_signalled(state: str, image: str) -> None:
    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        run = ContainerRun(
            image=image,
            entrypoint="sh",
            args=("-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"),
        )
        running = await session.containers.run(run, told.append)
        assert await running.read() == b"ready\n"
        await running.signal("interrupt")
        assert (await running.wait()).code == 9
        assert await output_of(running) == b"caught\n"

    in_session(state, image, work)


def test_an_action_from_an_image_without_a_shell_runs_and_says_so(state: str, image: str) -> None:
    tool = images.shell_less_image()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        run = ContainerRun(image=tool, args=("env",), env={"A-B": "1", "C": "2"})
        running = await session.containers.run(run, told.append)
        lines = (await output_of(running)).decode().splitlines()
        assert (await running.wait()).code == 0
        assert {"A-B=1", "C=2"} <= set(lines)
        assert any("no shell" in line for line in told)

    in_session(state, image, work)


def _context(folder: Path, dockerfile: str, files: dict[str, str] | None = None) -> str:
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return str(folder)


def test_an_image_is_built_on_the_jobs_network_and_is_gone_with_it(state: str, image: str, tmp_path: Path) -> None:
    dockerfile = (
        f"FROM {image}\nCOPY hello /hello\n"
        "RUN tail -n +3 /proc/net/dev | cut -d: -f1 > /interfaces; ! wget -T 2 -qO- http://198.51.100.1/\n"
        'ENTRYPOINT ["cat"]\nCMD ["/hello", "/interfaces"]\n'
    )
    context = _context(tmp_path / "context", dockerfile, {"hello": "built\n"})

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        built = await session.containers.build(ImageBuild(context=context), told.append)
        assert any("COPY hello" in line for line in told)
        running = await session.containers.run(ContainerRun(image=built), told.append)
        assert (await output_of(running)).decode().split() == ["built", "lo"]

    in_session(state, image, work, limits=Limits(memory_mb=256))


def test_a_build_that_fails_says_which_line_and_leaves_no_layer(state: str, image: str, tmp_path: Path) -> None:
    mark = os.urandom(6).hex()
    context = _context(tmp_path / "context", f"FROM {image}\nRUN echo {mark} > /mark\nRUN exit 7\n")
    packed = tmp_path / "context.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(context, arcname=".")

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        with pytest.raises(WorkError, match="exit 7"):
            await session.containers.build(ImageBuild(context=str(packed)), told.append)
        layers = [line.split()[1] for line in told if line.startswith(" ---> ") and len(line.split()) == 2]
        assert await session.api.image(image) is not None
        assert len(layers) > 1
        for layer in layers[1:]:
            assert await session.api.image(layer) is None

    in_session(state, image, work)


def test_a_build_has_a_time_limit(state: str, image: str, tmp_path: Path) -> None:
    context = _context(tmp_path / "context", f"FROM {image}\nRUN sleep 60\n")

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        with pytest.raises(MachineError, match="within 1 s"):
            await session.containers.build(ImageBuild(context=context, timeout_s=1.0), told.append)

    in_session(state, image, work)


def test_an_image_that_is_not_there_is_named(state: str, image: str) -> None:
    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        with pytest.raises(MachineError, match=r"localhost:1/no/such:1 can't be pulled"):
            await session.containers.pull("localhost:1/no/such:1", RegistryLogin("me", "hidden"), told.append)
        assert "hidden" not in "".join(told)
        assert "hidden" not in repr(RegistryLogin("me", "hidden"))

    in_session(state, image, work)


def test_named_volumes_belong_to_the_job_and_are_shared_by_its_containers(state: str, image: str) -> None:
    wishes, offences = judge(volumes=["data:/data"])
    assert offences == ()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        await run_in(session, "echo shared > /data/file")
        command = ("sh", "-c", "sleep 60")
        check, _ = judge(
            options='--health-cmd "grep shared /data/file" --health-interval 100ms', volumes=["data:/data"]
        )
        spec = ServiceSpec(name="reader", image=image, wishes=check, command=command)
        await session.containers.start_services((spec,), told.append)
        assert any("reader is healthy" in line for line in told)

    in_session(state, image, work, container=wishes)


def test_what_a_job_container_wishes_is_so(state: str, image: str) -> None:
    wishes, offences = judge(
        options="--hostname box --user 1001 --tmpfs /scratch:size=1m --add-host api:192.0.2.7 -e K=V"
    )
    assert offences == ()

    async def work(session: DockerSession, _: list[str]) -> None:
        script = "hostname; id -u; df -k /scratch | tail -1 | awk '{print $2}'; grep -c api /etc/hosts; echo $K"
        assert await run_in(session, f"{script}; echo x > file; cat file") == "box\n1001\n1024\n1\nV\nx\n"

    in_session(state, image, work, container=wishes)


def test_a_secret_of_a_step_is_in_no_inspect_output_event_or_command_line(state: str, image: str) -> None:
    secret = "s3cr3t-" + os.urandom(8).hex()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        running = await session.start(
            StepCommand(argv=("sleep", "60"), env={**session.environment, "TOKEN": secret, "INPUT_MY-TOKEN": secret})
        )
        action = await session.containers.run(
            ContainerRun(image=image, entrypoint="sh", args=("-c", "echo ready; sleep 60"), env={"TOKEN": secret}),
            told.append,
        )
        assert await action.read() == b"ready\n"
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "cat /proc/*/cmdline 2>/dev/null", stdout=asyncio.subprocess.PIPE
        )
        lines, _ = await process.communicate()
        assert b"sleep" in lines
        assert secret.encode() not in lines
        for row in await session.api.containers({"runyard.sandbox": session.label}):
            async with session.api._answer("GET", f"/containers/{row.id}/json") as answer:
                assert secret.encode() not in await answer.read()
        now = str(int(time.time()) + 1)
        async with session.api._answer("GET", "/events", query={"since": "0", "until": now}) as answer:
            seen = await answer.read()
        assert b"exec_create" in seen
        assert secret.encode() not in seen
        for step in (running, action):
            await step.signal("kill")
            await step.wait()

    in_session(state, image, work)


def test_nothing_of_a_wish_is_left_out() -> None:
    """Each field of the wishes is used by the configuration of at least one kind of container."""
    import inspect

    from runyard.sandbox import docker_config, docker_containers, docker_session

    source = "".join(inspect.getsource(module) for module in (docker_session, docker_config, docker_containers))
    for field in ContainerWishes.__struct_fields__:
        assert f"wishes.{field}" in source, field
