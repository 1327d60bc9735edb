"""Hostile work on real engines: each is refused or fails with a message, on Docker and where it says so on Podman."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

import images
from runyard.job import MachineError, WorkError
from runyard.sandbox.contract import ContainerRun, Identity, ImageBuild, Shape, StepCommand
from runyard.sandbox.docker_api import EngineApi
from runyard.sandbox.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from runyard.job import NetworkLevel
    from runyard.sandbox.docker_session import DockerSession

pytestmark = [pytest.mark.docker, pytest.mark.timeout(60)]

SECONDS = 20.0
METADATA = "169.254.169.254"


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The engine, and an image that it has."""
    name = str(request.param)
    if name == "docker":
        images.engine_socket()
        return name, images.bash_image()
    return name, images.bash_image(images.podman_socket())


def in_session(
    engine: str,
    state: Path,
    image: str,
    work: Callable[[DockerSession, list[str]], Awaitable[None]],
    network: NetworkLevel = "none",
) -> None:
    async def run() -> None:
        session = await open_engine(engine, str(state)).prepare(Shape(image=image, network=network))
        try:
            async with asyncio.timeout(SECONDS):
                await session.adopt(Identity(job_key="hostile"))
                await work(session, [])
        finally:
            left = await session.close()
        assert left.items == ()

    asyncio.run(run())


def test_a_secret_of_a_step_is_in_no_inspect_output_event_or_command_line(
    engine: tuple[str, str], tmp_path: Path
) -> None:
    secret = ("s3cr3t-" + os.urandom(8).hex()).encode()

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        env = {**session.environment, "TOKEN": secret.decode(), "INPUT_MY-TOKEN": secret.decode()}
        running = await session.start(StepCommand(argv=("sh", "-c", 'echo "${#TOKEN}"; sleep 60'), env=env))
        assert await running.read() == b"%d\n" % len(secret)
        action = await session.containers.run(
            ContainerRun(
                image=engine[1],
                entrypoint="sh",
                args=("-c", 'echo "${#TOKEN}"; sleep 60'),
                env={"TOKEN": secret.decode()},
            ),
            told.append,
        )
        assert await action.read() == b"%d\n" % len(secret)
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "cat /proc/*/cmdline 2>/dev/null", stdout=asyncio.subprocess.PIPE
        )
        lines, _ = await process.communicate()
        assert b"sleep" in lines
        assert secret not in lines
        rows = await session.api.containers({"runyard.sandbox": session.label})
        assert len(rows) > 1
        for row in rows:
            async with session.api._answer("GET", f"/containers/{row.id}/json") as answer:
                assert secret not in await answer.read()
        now = str(int(time.time()) + 1)
        async with session.api._answer("GET", "/events", query={"since": "0", "until": now}) as answer:
            seen = await answer.read()
        assert b"create" in seen
        assert secret not in seen
        for step in (running, action):
            await step.signal("kill")
            await step.wait()

    in_session(engine[0], tmp_path, engine[1], work)


@pytest.mark.parametrize("network", ["none", "proxy"])
def test_a_dockerfile_that_reaches_for_the_metadata_address_fails(
    engine: tuple[str, str], tmp_path: Path, network: NetworkLevel
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    fetch = f"wget -T 3 -qO- http://{METADATA}/latest/meta-data/"
    (context / "Dockerfile").write_text(f"FROM {engine[1]}\nRUN {fetch} && echo reached || exit 7\n")

    async def work(session: DockerSession, told: list[str]) -> None:
        assert session.containers is not None
        with pytest.raises(WorkError, match=r"the image could not be built.*(exit 7|code: 7|exit status 7)"):
            await session.containers.build(ImageBuild(context=str(context)), told.append)
        assert "reached" not in told

    in_session(engine[0], tmp_path / "state", engine[1], work, network)


def _saved(name: str, architecture: str) -> bytes:
    """An image as `docker save` writes one, with a word of its own for the architecture."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(images.BUSYBOX, "bin/sh")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    layers = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": layers}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
        for path, data in {**files, "layer.tar": layer.getvalue()}.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.fixture
def foreign(engine: tuple[str, str]) -> Iterator[str]:
    """An image that says it is for another architecture."""
    socket = images.engine_socket() if engine[0] == "docker" else images.podman_socket()
    name = f"localhost/runyard-test-foreign:{os.urandom(4).hex()}"
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"

    async def make() -> None:
        headers = {"Content-Type": "application/x-tar"}
        data = _once(_saved(name, other))
        async with (
            EngineApi(socket) as api,
            api._answer("POST", "/images/load", data=data, headers=headers, deadline_s=60.0) as answer,
        ):
            await answer.read()

    async def remove() -> None:
        async with EngineApi(socket) as api:
            await api.remove_image(name)

    asyncio.run(make())
    yield name
    asyncio.run(remove())


def test_an_image_for_another_architecture_is_refused_by_name(
    engine: tuple[str, str], foreign: str, tmp_path: Path
) -> None:
    with pytest.raises(MachineError) as refused:
        asyncio.run(open_engine(engine[0], str(tmp_path)).prepare(Shape(image=foreign)))
    assert foreign in refused.value.message
    assert "is for linux/" in refused.value.message
    assert refused.value.code == "sandbox.platform"
    assert refused.value.remedy is not None
