"""The typed door to a container engine: the Engine API over its unix socket, as Docker and Podman speak it.

Nothing else in the house speaks HTTP to an engine. What comes back is decoded into the structs of `docker_wire`, and
every failure becomes one of three errors: `EngineGoneError` (nobody answers), `NoSuchObjectError` (404) and
`EngineError` (the rest), see `docker_ask`. Each call has a deadline; the ones that last as long as a job (`wait`, a
pull, a build) take theirs from the caller.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from runyard.sandbox import docker_now
from runyard.sandbox.docker_ask import EngineError, EngineGoneError, NoSuchObjectError, decode, gone, refusal
from runyard.sandbox.docker_http import Broken, HttpDoor
from runyard.sandbox.docker_wire import (
    ContainerInfo,
    Created,
    EngineInfo,
    EngineVersion,
    ExecInfo,
    ImageInfo,
    Listed,
    NetworkInfo,
    Progress,
    VolumeInfo,
    Volumes,
    Waited,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence

    from runyard.sandbox.docker_http import Answer
    from runyard.sandbox.docker_wire import RegistryAuth

API: Final = docker_now.API
"""Docker 20.10 and later, and every Podman since 4, answer this version."""

DEADLINE_S: Final = 60.0
ERROR_BYTES: Final = 64 * 1024
_NONE: Final[Mapping[str, str]] = {}


class Stream:
    """An attached connection: bytes in, and bytes out with the number of their stream (0 of a terminal)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, framed: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._framed = framed
        self._number = 0
        self._left = 0

    async def read(self, limit: int = 65536) -> tuple[int, bytes]:
        """The next piece, or `(0, b"")` at the end. Cancellation loses nothing."""
        try:
            if not self._framed:
                return 0, await self._reader.read(limit)
            while not self._left:
                head = await self._reader.readexactly(8)
                self._number, self._left = head[0], int.from_bytes(head[4:], "big")
            data = await self._reader.read(min(limit, self._left))
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""
        self._left -= len(data)
        return self._number, data

    async def write(self, data: bytes) -> None:
        """Send to the process's standard input."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as ended:
            raise EngineGoneError("the process no longer reads") from ended

    def end_input(self) -> None:
        """Close the process's standard input; its output stays open."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def close(self) -> None:
        """Leave; the process may go on."""
        self._writer.close()


class EngineApi:
    """One engine. Open it with `async with`; it belongs to the running loop and may be used by many tasks."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self._door: HttpDoor | None = None

    async def __aenter__(self) -> EngineApi:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> None:
        """Begin; connects at the first call. Safe to repeat."""
        if self._door is None:
            self._door = HttpDoor(self.socket_path)

    async def close(self) -> None:
        """Drop all connections. Safe to repeat."""
        if self._door is not None:
            self._door.close()
            self._door = None

    # -- the one place where requests are made and errors are told apart --

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        data: AsyncIterable[bytes] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = DEADLINE_S,
        accept: tuple[int, ...] = (),
    ) -> AsyncIterator[Answer]:
        self.open()
        assert self._door is not None
        sent = dict(headers or {})
        if body is not None:
            data = msgspec.json.encode(body)
            sent["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(deadline_s):
                async with self._door.call(method, f"/{API}{path}{_asked(query)}", sent, data) as answer:
                    if answer.status >= 300 and answer.status not in accept:
                        raise refusal(f"{method} {path}", answer.status, await answer.read(ERROR_BYTES))
                    yield answer
        except TimeoutError as late:
            raise EngineError(
                f"the engine did not answer {method} {path} within {deadline_s:g} s", retryable=True
            ) from late
        except (Broken, OSError) as why:
            raise gone(self.socket_path, why) from why

    async def _call(self, method: str, path: str, **more: Any) -> bytes:
        async with self._answer(method, path, **more) as answer:
            return await answer.read()

    # -- the engine --

    async def version(self) -> EngineVersion:
        """What answers; bounded to a few seconds, as it also serves as a ping."""
        return decode(await self._call("GET", "/version", deadline_s=5.0), EngineVersion)

    async def info(self) -> EngineInfo:
        """What the engine can do."""
        return decode(await self._call("GET", "/info", deadline_s=15.0), EngineInfo)

    # -- images --

    async def image(self, reference: str) -> ImageInfo | None:
        """An image by name or id, or None where it isn't present."""
        try:
            return decode(await self._call("GET", f"/images/{quote(reference, safe='/:@')}/json"), ImageInfo)
        except NoSuchObjectError:
            return None

    async def pull(
        self, reference: str, *, auth: RegistryAuth | None = None, platform: str = "", deadline_s: float = 900.0
    ) -> AsyncIterator[Progress]:
        """Pull an image, told line by line; the iteration raises EngineError when the engine says it failed."""
        query = {"fromImage": reference, "tag": "" if _has_tag(reference) else "latest"}
        if platform:
            query["platform"] = platform
        headers = {"X-Registry-Auth": auth.header()} if auth else {}
        async with self._answer(
            "POST", "/images/create", query=query, headers=headers, deadline_s=deadline_s
        ) as answer:
            async for line in _progress(answer):
                yield line

    async def import_image(self, tar: AsyncIterable[bytes], name: str, changes: Sequence[str] = ()) -> None:
        """Make an image from a root file system; `changes` are Dockerfile lines (`ENV …`, `USER …`)."""
        # One parameter for name and tag: Podman forgets the tag where it stands on its own.
        query = [("fromSrc", "-"), ("repo", name), *(("changes", line) for line in changes)]
        path = "/images/create?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in query)
        headers = {"Content-Type": "application/x-tar"}
        async with self._answer("POST", path, data=tar, headers=headers, deadline_s=300.0) as answer:
            async for _ in _progress(answer):
                pass

    async def build(
        self, context: AsyncIterable[bytes], query: Mapping[str, str], *, deadline_s: float
    ) -> AsyncIterator[Progress]:
        """Build with the classic builder, told line by line; the iteration raises EngineError when it failed."""
        headers = {"Content-Type": "application/x-tar"}
        async with self._answer(
            "POST", "/build", query=query, data=context, headers=headers, deadline_s=deadline_s
        ) as answer:
            async for line in _progress(answer):
                yield line

    async def remove_image(self, reference: str) -> None:
        """Remove a name, and the image with its last name. Quiet when it isn't there."""
        await self._quiet_call("DELETE", f"/images/{quote(reference, safe='/:@')}", query={"force": "1"})

    async def remove_unused_image(self, image: str) -> None:
        """Remove an image that nothing uses. Quiet when it isn't there; EngineError while something does."""
        await self._quiet_call("DELETE", f"/images/{quote(image, safe=':')}")

    async def images(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Ids of the images that carry all these labels."""
        query = {"filters": _filters(labels), "all": "1"}
        return tuple(row.id for row in decode(await self._call("GET", "/images/json", query=query), tuple[Listed, ...]))

    # -- containers --

    async def create_container(self, name: str, body: Mapping[str, object], *, platform: str = "") -> str:
        """Create a container; returns its id. `NoSuchObjectError` when the image isn't present."""
        query = {"name": name, **({"platform": platform} if platform else {})}
        return decode(await self._call("POST", "/containers/create", query=query, body=body), Created).id

    async def start_container(self, container: str) -> None:
        """Start it. Safe to repeat."""
        await self._call("POST", f"/containers/{container}/start", accept=(304,))

    async def container(self, container: str) -> ContainerInfo:
        """Inspect one."""
        return decode(await self._call("GET", f"/containers/{container}/json"), ContainerInfo)

    async def containers(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        """Containers in any state that carry all these labels; an empty value means any."""
        query = {"all": "1", "filters": _filters(labels)}
        return decode(await self._call("GET", "/containers/json", query=query), tuple[Listed, ...])

    async def wait_container(self, container: str, condition: str = "not-running") -> int:
        """Wait until it has ended (`removed`: until it is gone); its exit code. Not bounded: the caller cancels."""
        query = {"condition": condition}
        body = await self._call("POST", f"/containers/{container}/wait", query=query, deadline_s=None)
        return decode(body, Waited).status_code

    async def kill_container(self, container: str, signal: str = "KILL") -> None:
        """Signal its first process. Quiet when it doesn't run or isn't there."""
        await self._quiet_call("POST", f"/containers/{container}/kill", query={"signal": signal}, accept=(404, 409))

    async def update_container(self, container: str, changes: Mapping[str, object]) -> None:
        """Change limits while it runs."""
        await self._call("POST", f"/containers/{container}/update", body=changes)

    async def rename_container(self, container: str, name: str) -> None:
        """Give it another name."""
        await self._call("POST", f"/containers/{container}/rename", query={"name": name})

    async def remove_container(self, container: str) -> None:
        """Kill and remove it with its anonymous volumes. Quiet when it isn't there or already goes."""
        await self._quiet_call("DELETE", f"/containers/{container}", query={"force": "1", "v": "1"}, accept=(404, 409))

    async def logs(self, container: str, *, tail: int = 200, limit: int = 256 * 1024) -> bytes:
        """The end of what a container wrote, standard output and error in order of arrival."""
        query = {"stdout": "1", "stderr": "1", "tail": str(tail)}
        async with self._answer("GET", f"/containers/{container}/logs", query=query) as answer:
            return _unframed(await answer.read(limit))

    async def put_archive(self, container: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar below the folder `path`, as the engine's root and with the owners the tar names."""
        query = {"path": path, "noOverwriteDirNonDir": "1"}
        headers = {"Content-Type": "application/x-tar"}
        await self._call(
            "PUT", f"/containers/{container}/archive", query=query, data=tar, headers=headers, deadline_s=900.0
        )

    async def get_archive(self, container: str, path: str) -> AsyncGenerator[bytes, None]:
        """The tree at `path` as tar, its names below the last part of `path`."""
        query = {"path": path}
        async with self._answer("GET", f"/containers/{container}/archive", query=query, deadline_s=900.0) as answer:
            async for piece in answer.pieces():
                yield piece

    async def attach(self, container: str) -> Stream:
        """Attach to standard input, output and error from now on."""
        return await self._hijack(
            f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1", b"", framed=True
        )

    # -- processes in a container --

    async def create_exec(self, container: str, body: Mapping[str, object]) -> str:
        """Prepare a process; returns the id that `start_exec` takes."""
        return decode(await self._call("POST", f"/containers/{container}/exec", body=body), Created).id

    async def start_exec(self, process: str, *, tty: bool = False) -> Stream:
        """Start it, attached."""
        body = msgspec.json.encode({"Detach": False, "Tty": tty})
        return await self._hijack(f"/exec/{process}/start", body, framed=not tty)

    async def start_exec_alone(self, process: str) -> None:
        """Start it without a connection; what it writes to its standard output is dropped."""
        await self._call("POST", f"/exec/{process}/start", body={"Detach": True, "Tty": False})

    async def exec_state(self, process: str) -> ExecInfo:
        """Whether it runs, and how it ended."""
        return decode(await self._call("GET", f"/exec/{process}/json"), ExecInfo)

    async def resize_exec(self, process: str, rows: int, columns: int) -> None:
        """Tell its terminal's size."""
        await self._call("POST", f"/exec/{process}/resize", query={"h": str(rows), "w": str(columns)})

    # -- networks and volumes --

    async def create_network(self, body: Mapping[str, object]) -> str:
        """Create a network; returns its id."""
        return decode(await self._call("POST", "/networks/create", body=body), Created).id

    async def network(self, network: str) -> NetworkInfo:
        """Inspect one."""
        return decode(await self._call("GET", f"/networks/{network}"), NetworkInfo)

    async def networks(self, labels: Mapping[str, str]) -> tuple[NetworkInfo, ...]:
        """Networks that carry all these labels."""
        query = {"filters": _filters(labels)}
        return decode(await self._call("GET", "/networks", query=query), tuple[NetworkInfo, ...])

    async def connect(self, network: str, container: str, aliases: Sequence[str] = ()) -> None:
        """Put a container into a network."""
        body = {"Container": container, "EndpointConfig": {"Aliases": list(aliases)}}
        await self._call("POST", f"/networks/{network}/connect", body=body)

    async def disconnect(self, network: str, container: str) -> None:
        """Take a container out of a network, also where it no longer runs."""
        body = {"Container": container, "Force": True}
        await self._quiet_call("POST", f"/networks/{network}/disconnect", body=body)

    async def remove_network(self, network: str) -> None:
        """Remove it. Quiet when it isn't there; EngineError while a container is in it."""
        await self._quiet_call("DELETE", f"/networks/{network}")

    async def create_volume(self, name: str, labels: Mapping[str, str], options: Mapping[str, str] = _NONE) -> None:
        """Create a named volume; the same again is quiet. `options` are those of the engine's local driver."""
        body = {"Name": name, "Driver": "local", "Labels": dict(labels), "DriverOpts": dict(options)}
        await self._call("POST", "/volumes/create", body=body)

    async def volumes(self, labels: Mapping[str, str]) -> tuple[VolumeInfo, ...]:
        """Volumes that carry all these labels."""
        query = {"filters": _filters(labels)}
        return decode(await self._call("GET", "/volumes", query=query), Volumes).volumes or ()

    async def remove_volume(self, name: str) -> None:
        """Remove it. Quiet when it isn't there."""
        await self._quiet_call("DELETE", f"/volumes/{name}", query={"force": "1"})

    async def _quiet_call(self, method: str, path: str, **more: Any) -> None:
        try:
            await self._call(method, path, **more)
        except NoSuchObjectError:
            return

    async def _hijack(self, path: str, body: bytes, *, framed: bool) -> Stream:
        """An attached call: after the engine's answer the connection carries the process's bytes both ways."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                reader, writer = await asyncio.open_unix_connection(self.socket_path, limit=1 << 18)
                head = (
                    f"POST /{API}{path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
                answer = await reader.readuntil(b"\r\n\r\n")
                status = int(answer.split(b" ", 2)[1])
                if status not in (101, 200):
                    said = await reader.read(ERROR_BYTES)
                    writer.close()
                    raise refusal(f"POST {path}", status, said)
        except TimeoutError as late:
            raise EngineError(f"the engine did not answer POST {path}", retryable=True) from late
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as why:
            raise gone(self.socket_path, why) from why
        return Stream(reader, writer, framed=framed)


async def _progress(answer: Answer) -> AsyncIterator[Progress]:
    """JSON documents, one a line; a line that says `error` ends the call."""
    held = b""
    async for piece in answer.pieces():
        held += piece
        if len(held) > 8 * 1024 * 1024:
            raise EngineError("the engine told a line of more than 8 MiB")
        *lines, held = held.split(b"\n")
        for line in lines:
            if line.strip():
                yield _progress_line(line)
    if held.strip():
        yield _progress_line(held)


def _progress_line(line: bytes) -> Progress:
    told = decode(line, Progress)
    if told.error:
        raise EngineError(told.error)
    return told


def _unframed(data: bytes) -> bytes:
    """The bytes of a multiplexed log; of a terminal's they are taken as they are."""
    parts, at = [], 0
    while at + 8 <= len(data):
        if data[at] > 2 or data[at + 1 : at + 4] != b"\0\0\0":
            return data
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        parts.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return b"".join(parts)


def _filters(labels: Mapping[str, str]) -> str:
    wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
    return msgspec.json.encode({"label": wanted}).decode()


def _asked(query: Mapping[str, str] | None) -> str:
    return f"?{urlencode(query, quote_via=quote, safe='', errors='surrogateescape')}" if query else ""


def _has_tag(reference: str) -> bool:
    last = reference.rpartition("/")[2]
    return ":" in last or "@" in last
