"""What an engine is told about a job's container, and tars on their way into one: data in, data out."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.job import Limits, MachineError
from runyard.sandbox import docker_config, docker_network, docker_tar
from runyard.sandbox.container_wishes import ContainerWishes
from runyard.sandbox.contract import Mount, SandboxRefused, Shape
from runyard.sandbox.docker_wire import EngineInfo, ImageConfig, ImageInfo, RegistryAuth, auth_for
from runyard.sandbox.seccomp_build import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

IMAGE = ImageInfo(id="sha256:1", config=ImageConfig(env=("PATH=/bin", "NODE=1"), user="node"))


def body(shape: Shape, **more: object) -> dict[str, object]:
    wanted: dict[str, object] = {
        "argv": ["/bin/sh", "loop"],
        "rendezvous": "/run/r",
        "labels": {"runyard.owner": "1-2"},
        "seccomp": "{}",
    }
    return docker_config.container_body(shape, IMAGE, **{**wanted, **more})  # type: ignore[arg-type]


def test_every_promise_is_a_line_of_the_create_call() -> None:
    made = body(Shape(image="x", limits=Limits(memory_mb=64, cpus=0.5, pids=50), tmpfs=("/cmd",)))
    host = made["HostConfig"]
    assert isinstance(host, dict)
    assert host["Privileged"] is False
    assert (host["CapAdd"], host["CapDrop"]) == ([], ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges", "seccomp={}"]
    assert (host["NetworkMode"], host["IpcMode"], host["AutoRemove"]) == ("none", "private", True)
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        64 << 20,
        64 << 20,
        500_000_000,
        50,
    )
    assert host["LogConfig"]["Type"] == "none"
    assert host["Binds"] == ["/run/r:/run/runyard-frames:ro"]
    assert "/cmd" in host["Tmpfs"]
    assert not {"Devices", "DeviceRequests", "PidMode", "UTSMode", "UsernsMode", "VolumesFrom"} & host.keys()
    assert "Env" not in made
    assert "User" not in made


def test_a_wish_lowers_a_limit_and_never_raises_it() -> None:
    wishes = ContainerWishes(memory=128 << 20, cpus=4.0, pids=10)
    host = body(Shape(image="x", limits=Limits(memory_mb=64, cpus=2.0, pids=50)), wishes=wishes)["HostConfig"]
    assert isinstance(host, dict)
    assert (host["Memory"], host["NanoCpus"], host["PidsLimit"]) == (64 << 20, 2_000_000_000, 10)


def test_stores_are_read_only_and_layers_are_volumes() -> None:
    mounts = (Mount(source="/store", target="/tools"), Mount(source="/cache", target="/c", overlay=True))
    host = body(Shape(image="x", mounts=mounts), volumes=[docker_config.Volume(name="v1", target="/c")])["HostConfig"]
    assert isinstance(host, dict)
    assert host["Binds"][1:] == ["/store:/tools:ro", "v1:/c"]


@pytest.mark.parametrize("source", ["/", "/proc", "/var/run", "/run/docker.sock", "/a:b", "/etc/"])
def test_a_mount_that_would_hand_over_the_host_is_refused(source: str) -> None:
    refused = docker_config.judge_mounts([Mount(source=source, target="/x")])
    assert refused is not None
    assert refused.promise == "no_host_mounts"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_profile_is_the_table_of_the_filter(machine: str) -> None:
    profile = docker_config.seccomp_profile(machine)
    named = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert named == set(ARCHITECTURES[machine][1])
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    answers = {name: rule["errnoRet"] for rule in profile["syscalls"] for name in rule["names"]}
    assert (answers["clone3"], answers["mount"]) == (38, 1)
    flags = [arg["value"] for rule in profile["syscalls"] if "clone" in rule["names"] for arg in rule["args"]]
    assert sum(flags) == 0x7E020080


def test_an_architecture_without_a_filter_is_refused() -> None:
    assert docker_config.machine_of("arm64") == "aarch64"
    with pytest.raises(SandboxRefused) as caught:
        docker_config.machine_of("s390x")
    assert caught.value.refused.promise == "seccomp"


@pytest.mark.parametrize(
    ("limits", "info", "promise"),
    [
        (Limits(disk_mb=1), EngineInfo(), "disk_limit"),
        (Limits(memory_mb=1), EngineInfo(memory_limit=False), "memory_limit"),
        (Limits(pids=1), EngineInfo(pids_limit=False), "pids_limit"),
        (Limits(cpus=1.0), EngineInfo(cpu_cfs_quota=False), "cpu_limit"),
        (Limits(memory_mb=1, pids=1, cpus=1.0), EngineInfo(), None),
    ],
)
def test_a_limit_that_can_not_be_kept_is_refused_by_name(limits: Limits, info: EngineInfo, promise: str | None) -> None:
    refused = docker_config.judge_limits(limits, info)
    assert (refused.promise if refused else None) == promise


def test_a_service_has_what_its_start_needs_and_nothing_more() -> None:
    made = docker_config.service_body(
        IMAGE,
        ContainerWishes(entrypoint=("/run",), health={"Test": ["CMD", "x"]}),
        env={"A": "1"},
        command=None,
        network="net",
        aliases=("db",),
        labels={},
        limits=Limits(memory_mb=64),
        seccomp="{}",
    )
    host = made["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert set(host["CapAdd"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}
    assert (host["NetworkMode"], host["Memory"], made["Entrypoint"], made["Cmd"]) == ("net", 64 << 20, ["/run"], [])
    assert made["NetworkingConfig"]["EndpointsConfig"]["net"]["Aliases"] == ["db"]


def test_a_build_stays_on_the_jobs_network_in_its_limits() -> None:
    query = docker_config.build_query(
        name="n:1", dockerfile="D", network="container:c", labels={"a": "b"}, limits=Limits(memory_mb=64, cpus=0.5)
    )
    assert (query["networkmode"], query["memory"], query["cpuquota"]) == ("container:c", str(64 << 20), "50000")
    assert "buildargs" not in query


def test_a_bridge_without_rules_gets_no_address_of_the_host() -> None:
    closed = docker_network.network_body("n", "ry0123456789", {}, is_open=False, is_judged=False)
    assert closed["Internal"] is True
    assert closed["Options"]["com.docker.network.bridge.inhibit_ipv4"] == "true"
    judged = docker_network.network_body("n", "ry0123456789", {}, is_open=True, is_judged=True)
    assert judged["Internal"] is False
    assert "com.docker.network.bridge.inhibit_ipv4" not in judged["Options"]


@pytest.mark.parametrize(
    ("image", "server"),
    [
        ("node:20", "https://index.docker.io/v1/"),
        ("me/app", "https://index.docker.io/v1/"),
        ("registry.example/app:1", "registry.example"),
        ("localhost/app", "localhost"),
        ("host:5000/app", "host:5000"),
    ],
)
def test_credentials_go_to_the_registry_of_the_name(image: str, server: str) -> None:
    auth = auth_for(image, "me", "hidden")
    assert auth == RegistryAuth("me", "hidden", server)
    assert "hidden" not in repr(auth)


# tars


def packed(*members: tuple[str, bytes, bytes, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, data, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname, info.uid, info.uname = kind, len(data), link, 1234, "someone"
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def re_owned(data: bytes, size: int = 700) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in docker_tar.re_owned(pieces(data, size), 7, 8)])

    return asyncio.run(collect())


@pytest.mark.parametrize("size", [1, 511, 512, 513, 100_000])
def test_members_get_the_jobs_ids_and_nothing_else_changes(size: int) -> None:
    long = "d" * 90 + "/" + "ü" * 90
    data = packed(
        ("a", tarfile.REGTYPE, b"x" * 1000, ""), (long, tarfile.REGTYPE, b"", ""), ("l", tarfile.SYMTYPE, b"", "a")
    )
    with tarfile.open(fileobj=io.BytesIO(re_owned(data, size))) as tar:
        members = tar.getmembers()
        assert [(member.name, member.uid, member.gid, member.uname) for member in members] == [
            ("a", 7, 8, ""),
            (long, 7, 8, ""),
            ("l", 7, 8, ""),
        ]
        file = tar.extractfile("a")
        assert file is not None
        assert file.read() == b"x" * 1000


@pytest.mark.parametrize(
    "member",
    [
        ("../a", tarfile.REGTYPE, b"", ""),
        ("/a", tarfile.REGTYPE, b"", ""),
        ("a/../../b", tarfile.REGTYPE, b"", ""),
        ("a", tarfile.SYMTYPE, b"", "/etc"),
        ("a/b", tarfile.SYMTYPE, b"", "../../c"),
        ("a", tarfile.LNKTYPE, b"", "../c"),
        ("a", tarfile.CHRTYPE, b"", ""),
        ("x" * 200 + "/../../b", tarfile.REGTYPE, b"", ""),
    ],
    ids=["up", "absolute", "through", "link", "link up", "hard link", "device", "long"],
)
def test_a_member_that_leads_out_is_refused(member: tuple[str, bytes, bytes, str]) -> None:
    with pytest.raises(MachineError, match="tar"):
        re_owned(packed(member))


def test_what_is_no_tar_or_half_of_one_is_refused() -> None:
    for data in (b"no tar at all" * 100, packed(("a", tarfile.REGTYPE, b"x" * 2000, ""))[:1024]):
        with pytest.raises(MachineError, match="tar"):
            re_owned(data)


def test_the_folders_of_members_are_told() -> None:
    data = packed(("a/b/c", tarfile.REGTYPE, b"", ""), ("d", tarfile.DIRTYPE, b"", ""), ("e", tarfile.REGTYPE, b"", ""))
    assert asyncio.run(docker_tar.judge(pieces(data, 512))) == ("a", "a/b", "d")


def test_folders_and_files_of_ours_are_a_tar() -> None:
    data = docker_tar.file("/a/" + "n" * 150, b"data", 0o640, 1, 99_999_999) + docker_tar.folders(["/x/y"], 1, 2)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file, folder = tar.getmembers()
        assert (file.name, file.mode, file.gid, file.size) == ("a/" + "n" * 150, 0o640, 99_999_999, 4)
        assert (folder.name, folder.isdir(), folder.uid, folder.gid) == ("x/y", True, 1, 2)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=1200))
def test_any_bytes_are_a_tar_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(MachineError):
        re_owned(data)
