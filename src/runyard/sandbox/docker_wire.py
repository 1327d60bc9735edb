"""What a container engine says, as far as we read it. Unknown fields are ignored, absent ones have a default."""

from __future__ import annotations

import base64
from typing import Any

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Something the engine says; unknown fields are ignored, absent ones have a default."""


class EngineVersion(Wire, frozen=True, kw_only=True):
    """`/version`."""

    version: str = ""
    api_version: str = ""


class EngineInfo(Wire, frozen=True, kw_only=True):
    """`/info`: what answers, and what a promise depends on. `architecture` is the kernel's word or the image's."""

    driver: str = ""
    cgroup_driver: str = ""
    cgroup_version: str = "1"
    security_options: tuple[str, ...] | None = None
    memory_limit: bool = True
    pids_limit: bool = True
    cpu_cfs_quota: bool = msgspec.field(default=True, name="CpuCfsQuota")
    ncpu: int = msgspec.field(default=0, name="NCPU")
    system: str = msgspec.field(default="", name="OSType")
    architecture: str = ""
    buildah_version: str = ""

    @property
    def is_podman(self) -> bool:
        """Whether Podman answers; a few of its answers differ."""
        return bool(self.buildah_version)

    @property
    def has_seccomp(self) -> bool:
        """Whether a profile given with a container takes effect."""
        return any("seccomp" in option for option in self.security_options or ())

    @property
    def maps_users(self) -> bool:
        """Whether a container's root is somebody else on the host."""
        return any("userns" in option for option in self.security_options or ())

    @property
    def is_rootless(self) -> bool:
        """Whether the engine runs without root, so that its containers can't be entered from outside."""
        return any("rootless" in option for option in self.security_options or ())


class HealthCheckConfig(Wire, frozen=True, kw_only=True):
    """The health check of an image; times are nanoseconds."""

    test: tuple[str, ...] | None = None


class ImageConfig(Wire, frozen=True, kw_only=True):
    """What an image says about its processes."""

    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    user: str = ""
    working_dir: str = ""
    volumes: dict[str, Any] | None = None
    exposed_ports: dict[str, Any] | None = None
    healthcheck: HealthCheckConfig | None = None
    labels: dict[str, str] | None = None


class ImageInfo(Wire, frozen=True, kw_only=True):
    """An image that is present."""

    id: str
    os: str = "linux"
    architecture: str = "amd64"
    repo_digests: tuple[str, ...] | None = None
    config: ImageConfig | None = None

    @property
    def settings(self) -> ImageConfig:
        """The image's configuration, empty where it has none."""
        return self.config or ImageConfig()


class HealthState(Wire, frozen=True, kw_only=True):
    """What the engine thinks of a container with a health check: `starting`, `healthy`, `unhealthy` or `none`."""

    class Probe(Wire, frozen=True, kw_only=True):
        """One run of the check."""

        exit_code: int = 0
        output: str = ""

    status: str = "none"
    log: tuple[Probe, ...] | None = None


class ContainerState(Wire, frozen=True, kw_only=True):
    """Whether and how a container runs. `pid` is the host's."""

    status: str = ""
    running: bool = False
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    health: HealthState | None = None


class PortBinding(Wire, frozen=True, kw_only=True):
    """One published port."""

    host_ip: str = ""
    host_port: str = ""


class Endpoint(Wire, frozen=True, kw_only=True):
    """A container's place in a network."""

    network_id: str = msgspec.field(default="", name="NetworkID")
    ip_address: str = msgspec.field(default="", name="IPAddress")
    gateway: str = ""


class NetworkSettings(Wire, frozen=True, kw_only=True):
    """Addresses and published ports."""

    networks: dict[str, Endpoint] | None = None
    ports: dict[str, tuple[PortBinding, ...] | None] | None = None


class MountPoint(Wire, frozen=True, kw_only=True):
    """Something that is mounted in a container; `name` is a volume's."""

    name: str = ""
    destination: str = ""


class ContainerInfo(Wire, frozen=True, kw_only=True):
    """One container, as inspect tells it."""

    id: str
    mounts: tuple[MountPoint, ...] | None = None
    name: str = ""
    image: str = ""
    state: ContainerState = ContainerState()
    config: ImageConfig | None = None
    network_settings: NetworkSettings = NetworkSettings()


class Listed(Wire, frozen=True, kw_only=True):
    """One row of a list of containers."""

    id: str
    names: tuple[str, ...] | None = None
    state: str = ""
    labels: dict[str, str] | None = None


class NetworkInfo(Wire, frozen=True, kw_only=True):
    """One network."""

    class Ipam(Wire, frozen=True, kw_only=True):
        """Its addresses."""

        config: tuple[dict[str, Any], ...] | None = None

    id: str
    name: str = ""
    driver: str = ""
    labels: dict[str, str] | None = None
    options: dict[str, str] | None = None
    ipam: Ipam = msgspec.field(default_factory=Ipam, name="IPAM")


class VolumeInfo(Wire, frozen=True, kw_only=True):
    """One volume."""

    name: str
    mountpoint: str = ""
    labels: dict[str, str] | None = None


class ExecInfo(Wire, frozen=True, kw_only=True):
    """One process that the engine started in a container. `pid` is the host's."""

    running: bool = False
    exit_code: int | None = None
    pid: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a pull or a build."""

    class Aux(msgspec.Struct, frozen=True):
        """What came of it."""

        id: str = msgspec.field(default="", name="ID")

    stream: str = ""
    status: str = ""
    id: str = ""
    error: str = ""
    aux: Aux | None = None


class Created(Wire, frozen=True, kw_only=True):
    """What was made."""

    id: str
    warnings: tuple[str, ...] | None = None


class Said(msgspec.Struct, frozen=True):
    """An error in the engine's words; `cause` is Podman's."""

    message: str = ""
    cause: str = ""


class Waited(Wire, frozen=True, kw_only=True):
    """How a container ended."""

    status_code: int = 0


class Volumes(Wire, frozen=True, kw_only=True):
    """A list of volumes."""

    volumes: tuple[VolumeInfo, ...] | None = None


class RegistryAuth(msgspec.Struct, frozen=True, rename={"server": "serveraddress"}):
    """Who pulls, for the header of the call that pulls."""

    username: str
    password: str
    server: str

    def __repr__(self) -> str:
        return f"RegistryAuth(server={self.server!r})"

    def header(self) -> str:
        """The value of `X-Registry-Auth`."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


def auth_for(image: str, username: str, password: str) -> RegistryAuth:
    """Credentials for the registry that an image's name begins with."""
    first = image.partition("/")[0]
    named = "/" in image and ("." in first or ":" in first or first == "localhost")
    return RegistryAuth(username, password, first if named else "https://index.docker.io/v1/")
