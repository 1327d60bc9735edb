"""Images and folders as an engine has to be given them: references, `host`, `dir:`, `tar:`, and layers over folders.

A reference is used as it is present, else pulled. The machine's own programs (`host`) become a small image of the
composed root, with `/usr` shown through an overlay that the engine mounts; folders and tar files are imported once and
named by what they are made of.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError, MachineError, Refused
from runyard.sandbox import docker_tar
from runyard.sandbox.contract import Mount, SandboxRefused
from runyard.sandbox.docker_ask import EngineError, NoSuchObjectError
from runyard.sandbox.docker_config import Volume, platform_of
from runyard.sandbox.docker_wire import auth_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from runyard.sandbox.container_wishes import RegistryLogin
    from runyard.sandbox.contract import Shape
    from runyard.sandbox.docker_api import EngineApi
    from runyard.sandbox.docker_wire import ImageInfo

PULL_TRIES: Final = 3
_LABEL: Final = "LABEL runyard.image=1"
_FILTERS: Final = Path(__file__).resolve().parent / "filters"


async def ensure(
    api: EngineApi,
    name: str,
    state: str,
    *,
    login: RegistryLogin | None = None,
    platform: str = "",
    pull: str = "missing",
    told: Callable[[str], None] | None = None,
    runs: Sequence[str] = (),
) -> ImageInfo:
    """The image behind a Shape's name, imported or pulled first where need be. Raises MachineError, InputError.

    `pull` is `missing`, `always` or `never`; `told` gets the lines of a pull. `runs` are the platforms of images that
    this engine runs; another one is refused, where it would only fail as "exec format error".
    """
    if name == "host":
        name = await _host_image(api, state)
    else:
        kind, _, path = name.partition(":")
        if kind in ("dir", "tar") and path:
            name = await _imported(api, kind, path)
        elif kind == "oci" and path:
            because = "an engine takes an OCI layout only from its own tools"
            raise SandboxRefused(
                Refused("fresh_file_system", because, "load it into the engine and name it, or use tar:PATH")
            )
    present = await api.image(name) if pull != "always" else None
    if present is None:
        if pull == "never":
            raise MachineError(f"the image {name} is not present and may not be pulled", code="sandbox.image")
        await _pull(api, name, login, platform, told)
        present = await api.image(name)
    if present is None:
        raise MachineError(f"the engine pulled {name} and does not have it", code="sandbox.image")
    _judge_platform(name, present, platform)
    own = f"{present.os}/{platform_of(present.architecture)}"
    if runs and own not in runs:
        raise MachineError(
            f"the image {name} is for {own}, and this engine runs {', '.join(runs)}",
            code="sandbox.platform",
            remedy=f"use an image that is for {runs[0]} too",
        )
    return present


def _judge_platform(name: str, image: ImageInfo, platform: str) -> None:
    wanted = platform.split("/") if platform else []
    if len(wanted) >= 2 and (image.os, image.architecture) != (wanted[0], wanted[1]):
        raise MachineError(
            f"the image {name} is for {image.os}/{image.architecture}, not for {platform}", code="sandbox.platform"
        )


async def _pull(
    api: EngineApi, name: str, login: RegistryLogin | None, platform: str, told: Callable[[str], None] | None
) -> None:
    auth = auth_for(name, login.username, login.password) if login is not None else None
    for attempt in range(1, PULL_TRIES + 1):
        try:
            async for line in api.pull(name, auth=auth, platform=platform):
                if told is not None and line.status and not line.id:
                    told(line.status)
        except NoSuchObjectError as missing:
            raise _no_image(name, missing) from missing
        except EngineError as refused:
            if attempt == PULL_TRIES or not refused.retryable:
                raise _no_image(name, refused) from refused
            if told is not None:
                told(f"pull of {name} failed ({refused.message}), attempt {attempt} of {PULL_TRIES}")
            # 1 to 10 s as upstream does, spread by the name so that two jobs don't march in step.
            await asyncio.sleep(1 + int(hashlib.sha256(f"{name}{attempt}{os.getpid()}".encode()).hexdigest(), 16) % 3)
        else:
            return


def _no_image(name: str, why: EngineError) -> MachineError:
    return MachineError(
        f"the image {name} can't be pulled: {why.message}",
        code="sandbox.image",
        remedy="check the name, give credentials, or load the image into the engine",
        retryable=why.retryable,
    )


async def _imported(api: EngineApi, kind: str, path: str) -> str:
    """A folder or tar file as an image, named by its content (a tar) or by what a walk over it tells (a folder)."""
    source = Path(path)
    digest = await asyncio.to_thread(_digest_of, source, kind)
    name = f"runyard/{kind}:{digest}"
    if await api.image(name) is None:
        pieces = _packed(source) if kind == "dir" else _file(source)
        await api.import_image(pieces, name, (_LABEL,))
    return name


def _digest_of(source: Path, kind: str) -> str:
    if not (source.is_dir() if kind == "dir" else source.is_file()):
        raise InputError(
            f"the image {kind}:{source} is not a {'folder' if kind == 'dir' else 'tar file'}", path=str(source)
        )
    told = hashlib.sha256()
    if source.is_file():
        with source.open("rb") as file:
            while piece := file.read(1 << 20):
                told.update(piece)
        return told.hexdigest()[:24]
    for folder, folders, files in os.walk(source):
        folders.sort()
        for name in sorted((*folders, *files)):
            facts = (Path(folder) / name).lstat()
            told.update(
                f"{folder}/{name} {facts.st_mode} {facts.st_uid} {facts.st_size} {facts.st_mtime_ns}\n".encode()
            )
    return told.hexdigest()[:24]


async def _file(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, 1 << 18):
            yield piece


async def _packed(source: Path) -> AsyncIterator[bytes]:
    """The folder as tar; its devices stay out."""
    packer = await asyncio.create_subprocess_exec(
        "tar",
        "-C",
        str(source),
        "--numeric-owner",
        "--exclude=./dev/*",
        "-cf",
        "-",
        ".",
        stdout=asyncio.subprocess.PIPE,
    )
    assert packer.stdout is not None
    try:
        while piece := await packer.stdout.read(1 << 18):
            yield piece
    finally:
        if packer.returncode is None:
            try:
                await asyncio.wait_for(packer.wait(), 10)
            except TimeoutError:
                packer.kill()
                await packer.wait()


def build_context(source: Path) -> AsyncIterator[bytes]:
    """A folder as tar, or a tar file as it is, for a build."""
    return _file(source) if source.is_file() else _packed(source)


# -- the machine's own programs --


async def _host_image(api: EngineApi, state: str) -> str:
    from runyard.sandbox import image as images

    root = Path(images.resolve("host", state).root)
    name = f"runyard/host:{root.name.removeprefix('host-')}"
    if await api.image(name) is None:
        changes = (_LABEL, "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ENV LANG=C.UTF-8")
        await api.import_image(_packed(root), name, changes)
    return name


async def lay_layers(
    api: EngineApi, shape: Shape, state: str, sandbox: str, labels: Mapping[str, str]
) -> tuple[list[Mount], list[Volume]]:
    """The mounts of a shape for an engine: those shown read-only, and those with a layer as volumes it mounts itself.

    Raises SandboxRefused where this user can't make a layer.
    """
    plain = [mount for mount in shape.mounts if not mount.overlay]
    wanted: list[tuple[tuple[str, ...], str]] = [
        ((mount.source,), mount.target) for mount in shape.mounts if mount.overlay
    ]
    may_layer = os.geteuid() == 0
    if wanted and not may_layer:
        because = "a writable layer over a folder of the host needs root with an engine"
        raise SandboxRefused(Refused("fresh_file_system", because, "run as root, or use --sandbox bubblewrap"))
    if shape.image == "host":
        from runyard.sandbox import image as images

        host = images.resolve("host", state)
        plain += [Mount(source=source, target=target) for source, target in host.read_only]
        for over in host.over:
            if may_layer:
                wanted.append(((over.on_top, over.source), over.target))
            else:
                plain.append(Mount(source=over.source, target=over.target))
    layers = [
        await _layer(api, layers_folder(state) / f"{sandbox}-{at}", sources, target, labels)
        for at, (sources, target) in enumerate(wanted)
    ]
    return plain, layers


async def _layer(
    api: EngineApi, folder: Path, sources: tuple[str, ...], target: str, labels: Mapping[str, str]
) -> Volume:
    """A volume of the engine that lays a writable folder of ours over `sources`, the first on top."""
    for part in ("", "upper", "work"):
        os.makedirs(f"{folder}/{part}", mode=0o755, exist_ok=True)  # noqa: PTH103 - three calls of microseconds
    lower = ":".join(_escaped(source) for source in sources)
    options = f"lowerdir={lower},upperdir={_escaped(f'{folder}/upper')},workdir={_escaped(f'{folder}/work')}"
    await api.create_volume(folder.name, labels, {"type": "overlay", "device": "overlay", "o": options})
    return Volume(name=folder.name, target=target)


def own_layers(state: str, layers: Sequence[Volume], user: User) -> None:
    """Give the roots of the layers to the job's user; before anything runs."""
    for layer in layers:
        os.chown(layers_folder(state) / layer.name / "upper", user.uid, user.gid)


def _escaped(path: str) -> str:
    if "," in path or ":" in path:
        raise SandboxRefused(
            Refused("fresh_file_system", f"a layer can't be laid over {path}", "use a path without , and :")
        )
    return path.replace("\\", "\\\\")


async def remove_volumes(api: EngineApi, state: str, volumes: Sequence[Volume]) -> list[str]:
    """Remove volumes, and the folders of those that are layers; what could not be removed."""
    left = await asyncio.gather(*(_remove_volume(api, state, volume) for volume in volumes))
    return [words for words in left if words]


async def _remove_volume(api: EngineApi, state: str, volume: Volume) -> str:
    try:
        await api.remove_volume(volume.name)
    except EngineError as refused:
        return f"volume {volume.name}: {refused.message}"
    layer = layers_folder(state) / volume.name
    if layer.exists():
        await asyncio.to_thread(shutil.rmtree, layer, ignore_errors=True)
    return ""


def layers_folder(state: str) -> Path:
    """Where the writable layers lie while a job runs; on disk, not in memory."""
    return Path(state) / "layers"


def hold_program(state: str, machine: str) -> Path:
    """The waiting program where an engine may run it from: the package's own folder can be on a noexec mount."""
    target = Path(state) / "programs" / f"hold-{machine}"
    data = (_FILTERS / f"{machine}.hold").read_bytes()
    if not target.exists() or target.read_bytes() != data:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        made.write_bytes(data)
        made.chmod(0o755)
        made.rename(target)
    return target


# -- users --


class User(msgspec.Struct, frozen=True):
    """Who an image's processes are."""

    uid: int
    gid: int


ROOT: Final = User(0, 0)


async def find_user(api: EngineApi, container: str, named: str) -> User:
    """The ids behind an image's user: numbers as they are, names by the image's own files. Raises InputError."""
    user, _, group = named.partition(":")
    if user in ("", "0", "root") and group in ("", "0", "root"):
        return ROOT
    passwd = {} if user.isdigit() and group.isdigit() else await _table(api, container, "/etc/passwd")
    by_number = {row[2]: row for row in passwd.values() if len(row) > 3}
    row = by_number.get(user) if user.isdigit() else passwd.get(user)
    if row is None and not user.isdigit():
        raise InputError(f"the image has no user {user}", code="sandbox.user")
    uid = int(user) if user.isdigit() else int((row or ["", "", "0"])[2])
    if not group:
        return User(uid, int(row[3]) if row is not None and len(row) > 3 and row[3].isdigit() else 0)
    if group.isdigit():
        return User(uid, int(group))
    groups = await _table(api, container, "/etc/group")
    if group not in groups:
        raise InputError(f"the image has no group {group}", code="sandbox.user")
    return User(uid, int(groups[group][2]))


async def _table(api: EngineApi, container: str, path: str) -> dict[str, list[str]]:
    from runyard.sandbox.contract import FileOut
    from runyard.sandbox.docker_exec import read_files

    back = (await read_files(api, container, [FileOut(path, 1 << 20)]))[path]
    rows = (line.split(":") for line in back.data.decode("utf-8", "replace").splitlines())
    return {row[0]: row for row in rows if len(row) >= 3}


def empty_folders(paths: Sequence[str], user: User) -> bytes:
    """The tar of a job's folders. Raises InputError for a path that is none."""
    for path in paths:
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise InputError(f"not an absolute path: {path}", code="sandbox.shape")
    return docker_tar.folders(paths, user.uid, user.gid)
