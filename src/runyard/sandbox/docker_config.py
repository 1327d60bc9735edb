"""A Shape as the engine's words: pure, from data to the body of a create call.

Every promise of the sandbox that an engine can keep is a line here: no capability, no new privileges, the seccomp
filter, limits, no network until the session is adopted, no device, no socket of the engine, no path of the host but
ours. What a job may add (`ContainerWishes`) has been judged by `container_options` before. A step's variables are never
in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.job import Refused
from runyard.sandbox import sh_frame
from runyard.sandbox.container_wishes import ContainerWishes
from runyard.sandbox.contract import SandboxRefused
from runyard.sandbox.seccomp_build import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runyard.job import Limits
    from runyard.sandbox.contract import Mount, Shape
    from runyard.sandbox.docker_wire import EngineInfo, ImageInfo

LABEL_OWNER: Final = "runyard.owner"
"""On everything we make: pid and start of the process it belongs to, so that a reaper knows when it is nobody's."""

LABEL_SANDBOX: Final = "runyard.sandbox"
LABEL_JOB: Final = "runyard.job"

HOLD_AT: Final = "/run/runyard-hold"
SHELL: Final = "/bin/sh"

PIDS_DEFAULT: Final = 4096
TMPFS_MB: Final = 64

_ERRNO: Final = "SCMP_ACT_ERRNO"
_EPERM: Final = 1
_ENOSYS: Final = 38
_VSOCK: Final = 40
_NAMESPACE_FLAGS: Final = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


class Volume(msgspec.Struct, frozen=True):
    """A volume of the engine that is the job's own, and where the job sees it; its name is "" before it is made."""

    name: str
    target: str


def seccomp_profile(machine: str) -> dict[str, Any]:
    """The engine's form of our filter for `x86_64` or `aarch64`, from the same table as the filter itself."""
    _, numbers = ARCHITECTURES[machine]
    unknown = ["clone3"]
    by_flags = ["clone", "unshare"]
    by_family = ["socket"]
    refused = sorted(set(numbers) - {*unknown, *by_flags, *by_family})
    rules: list[dict[str, Any]] = [
        {"names": unknown, "action": _ERRNO, "errnoRet": _ENOSYS},
        {"names": refused, "action": _ERRNO, "errnoRet": _EPERM},
    ]
    for flag in _NAMESPACE_FLAGS:
        one = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": by_flags, "action": _ERRNO, "errnoRet": _EPERM, "args": [one]})
    vsock = {"index": 0, "value": _VSOCK, "op": "SCMP_CMP_EQ"}
    rules.append({"names": by_family, "action": _ERRNO, "errnoRet": _EPERM, "args": [vsock]})
    name = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [name], "syscalls": rules}


def machine_of(architecture: str) -> str:
    """The kernel's name of an image's architecture. Raises SandboxRefused where there is no filter for it."""
    machine = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}.get(architecture)
    if machine is None:
        raise SandboxRefused(
            Refused("seccomp", f"there is no filter for {architecture}", "use an image for linux/amd64 or linux/arm64")
        )
    return machine


def platform_of(machine: str) -> str:
    """An image's word for the architecture that an engine tells, which may be its machine's word."""
    known = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "": "amd64"}
    return known.get(machine, machine)


def judge_limits(limits: Limits, info: EngineInfo) -> Refused | None:
    """The first limit this engine can't enforce, or None."""
    if limits.disk_mb is not None:
        return Refused(
            "disk_limit",
            f"this engine's storage ({info.driver or 'unknown'}) has no size for one container",
            "use --sandbox bubblewrap, or leave disk_mb to the worker",
        )
    missing = (
        ("memory_limit", limits.memory_mb is not None, info.memory_limit),
        ("pids_limit", limits.pids is not None, info.pids_limit),
        ("cpu_limit", limits.cpus is not None, info.cpu_cfs_quota),
    )
    for promise, is_wanted, is_there in missing:
        if is_wanted and not is_there:
            return Refused(
                promise, "the engine's cgroups don't have that controller", "see the warnings of docker info"
            )
    return None


def container_body(
    shape: Shape,
    image: ImageInfo,
    *,
    argv: Sequence[str],
    rendezvous: str,
    labels: Mapping[str, str],
    volumes: Sequence[Volume] = (),
    wishes: ContainerWishes | None = None,
    hold: str | None = None,
    network: str = "none",
    seccomp: str,
) -> dict[str, Any]:
    """The create call of a job's container.

    `argv` is our supervisor, `rendezvous` the folder of its pipes, `hold` the program that waits where there is no
    shell, and `volumes` are volumes: the job's own folders, and layers over folders of the host. One without a name is
    made by this call, empty whatever the image has there, and goes with the container.
    """
    wishes = wishes or ContainerWishes()
    binds = [f"{rendezvous}:{sh_frame.RENDEZVOUS}:ro"]
    binds += [f"{mount.source}:{mount.target}:ro" for mount in shape.mounts if not mount.overlay]
    binds += [f"{hold}:{HOLD_AT}:ro"] if hold else []
    binds += [f"{volume.name}:{volume.target}" for volume in volumes if volume.name]
    limits = shape.limits
    host = host_config(wishes, seccomp=seccomp, binds=binds)
    host |= limit_settings(
        memory=_smaller(limits.memory_mb and limits.memory_mb << 20, wishes.memory),
        cpus=_smaller(limits.cpus, wishes.cpus),
        pids=_smaller(limits.pids or PIDS_DEFAULT, wishes.pids),
    )
    host["AutoRemove"] = True
    host["NetworkMode"] = network
    unnamed = {"Type": "volume", "VolumeOptions": {"NoCopy": True, "Labels": dict(labels)}}
    host["Mounts"] = [{**unnamed, "Target": volume.target} for volume in volumes if not volume.name]
    host["Tmpfs"] |= dict.fromkeys(shape.tmpfs, f"rw,exec,nosuid,nodev,mode=1777,size={TMPFS_MB}m")
    body = {
        "Image": image.id,
        "Entrypoint": list(argv),
        "Cmd": [],
        "WorkingDir": "/",
        "Labels": {**wishes.labels, **labels},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    return body | asked(wishes, volumes=True)


def asked(wishes: ContainerWishes, *, volumes: bool) -> dict[str, Any]:
    """The fields that a workflow may set on any container."""
    body: dict[str, Any] = {}
    if wishes.hostname is not None:
        body["Hostname"] = wishes.hostname
    if wishes.user is not None:
        body["User"] = wishes.user
    if wishes.stop_signal is not None:
        body["StopSignal"] = wishes.stop_signal
    if volumes and wishes.volumes:
        body["Volumes"] = {target: {} for name, target, _ in wishes.volumes if not name}
    return body


def host_config(wishes: ContainerWishes, *, seccomp: str, binds: Sequence[str]) -> dict[str, Any]:
    """What holds for every container of a job, be it the job's own, a service or a docker action."""
    named = [f"{name}:{target}{':ro' if ro else ''}" for name, target, ro in wishes.volumes if name]
    host: dict[str, Any] = {
        "Privileged": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp}"],
        "NetworkMode": "none",
        "IpcMode": "private",
        "Binds": [*binds, *named],
        "Tmpfs": dict(wishes.tmpfs),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "ReadonlyRootfs": wishes.read_only,
        "Init": wishes.init,
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, soft, hard in wishes.ulimits],
        "ExtraHosts": list(wishes.extra_hosts),
        "DnsSearch": list(wishes.dns_search),
    }
    if wishes.shm_size is not None:
        host["ShmSize"] = wishes.shm_size
    return host


def limit_settings(*, memory: int | None, cpus: float | None, pids: int | None) -> dict[str, Any]:
    """Limits in the engine's words; swap is never a way around the memory limit."""
    settings: dict[str, Any] = {}
    if memory is not None:
        settings |= {"Memory": memory, "MemorySwap": memory}
    if cpus is not None:
        settings["NanoCpus"] = max(10_000_000, int(cpus * 1e9))
    if pids is not None:
        settings["PidsLimit"] = pids
    return settings


SERVICE_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What the start of a usual service image needs to give its data to its own user and to become that user. None of them
reaches out of the container. Steps, docker actions included, have none."""


def service_body(
    image: ImageInfo,
    wishes: ContainerWishes,
    *,
    env: Mapping[str, str],
    command: Sequence[str] | None,
    network: str,
    aliases: Sequence[str],
    labels: Mapping[str, str],
    limits: Limits,
    seccomp: str,
) -> dict[str, Any]:
    """The create call of a service. It keeps the end of its output, for the log of a start that fails."""
    host = host_config(wishes, seccomp=seccomp, binds=())
    host["CapAdd"] = list(SERVICE_CAPABILITIES)
    host["NetworkMode"] = network
    host["LogConfig"] = {"Type": "json-file", "Config": {"max-size": "4m", "max-file": "1"}}
    host |= limit_settings(
        memory=_smaller(limits.memory_mb and limits.memory_mb << 20, wishes.memory),
        cpus=_smaller(limits.cpus, wishes.cpus),
        pids=_smaller(limits.pids or PIDS_DEFAULT, wishes.pids),
    )
    body: dict[str, Any] = {
        "Image": image.id,
        "Env": [f"{name}={value}" for name, value in {**wishes.env, **env}.items()],
        "Labels": {**wishes.labels, **labels},
        "HostConfig": host,
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": list(aliases)}}},
    }
    if command is not None:
        body["Cmd"] = list(command)
    if wishes.entrypoint is not None:
        body["Entrypoint"] = list(wishes.entrypoint)
        body.setdefault("Cmd", [])
    if wishes.workdir is not None:
        body["WorkingDir"] = wishes.workdir
    if wishes.health is not None:
        body["Healthcheck"] = dict(wishes.health)
    return body | asked(wishes, volumes=True)


def build_query(
    *, name: str, dockerfile: str, network: str, labels: Mapping[str, str], limits: Limits
) -> dict[str, str]:
    """The build call: nothing of it is kept but the image, and its processes are on the job's network in its limits."""
    query = {
        "t": name,
        "dockerfile": dockerfile,
        "networkmode": network,
        "labels": msgspec.json.encode(dict(labels)).decode(),
        "rm": "1",
        "forcerm": "1",
    }
    if limits.memory_mb is not None:
        query |= {"memory": str(limits.memory_mb << 20), "memswap": str(limits.memory_mb << 20)}
    if limits.cpus is not None:
        query |= {"cpuperiod": "100000", "cpuquota": str(max(1000, int(limits.cpus * 100_000)))}
    return query


def _smaller(one: Any, other: Any) -> Any:
    return min((value for value in (one, other) if value is not None), default=None)


def image_variables(image: ImageInfo) -> dict[str, str]:
    """The variables an image sets; the search path is there even where the image has none."""
    pairs = (pair.partition("=") for pair in image.settings.env or ())
    return {"PATH": sh_frame.SEARCH_PATH} | {name: value for name, _, value in pairs}


def container_name(text: str, sandbox: str) -> str:
    """A name that an engine accepts and a person recognises."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:60]
    return f"runyard-{plain}-{sandbox[-8:]}" if plain else f"runyard-{sandbox}"


def judge_mounts(mounts: Sequence[Mount]) -> Refused | None:
    """A mount that would hand the host itself to the job, or None. Mounts come from us: this guards our own code."""
    for mount in mounts:
        if mount.source.endswith((".sock", "/")) or mount.source in ("/", "/run", "/var/run", "/proc", "/sys", "/dev"):
            return Refused("no_host_mounts", f"{mount.source} is never shown to a job", "name a folder of a store")
        if ":" in mount.source or ":" in mount.target:
            return Refused(
                "no_host_mounts", f"{mount.source}: an engine's mount can't have a colon", "rename the folder"
            )
    return None
