"""Reading a repository over git's smart HTTP: the git program's own http-backend, as a bounded process a request.

Only what a fetch needs is served, of one repository, to who has the job's token. The process sees no configuration but
the repository's own, and ends with the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.service.asgi import Refusal

if TYPE_CHECKING:
    from runyard.service.asgi import Request, Send

PREFIX: Final = "/git/"
TIMEOUT_S: Final = 600.0
BODY_LIMIT: Final = 64 << 20
HEAD_LIMIT: Final = 64 << 10
_CHUNK: Final = 1 << 18
_PROTOCOL: Final = re.compile(r"[a-z0-9=:]{1,64}\Z")
_ENDINGS: Final = ("/info/refs", "/git-upload-pack", "/HEAD")


class GitApi:
    """Serves one repository `owner/name` from a git directory of this machine."""

    def __init__(self, repository: str, git_dir: str | None) -> None:
        self._repository = repository
        self._git_dir = git_dir

    async def serve(self, request: Request, send: Send) -> None:
        """One request below PREFIX."""
        rest = request.path.removeprefix(PREFIX)
        ending = next((each for each in _ENDINGS if rest.endswith(each)), None)
        if ending is None:
            raise Refusal("bad_route", "only fetches are served here")
        named = rest.removesuffix(ending).removesuffix(".git")
        if self._git_dir is None or named.lower() != self._repository.lower():
            raise Refusal("not_found", f"{named} is not the repository of this job")
        self._check(request, ending)
        body = await request.body(BODY_LIMIT) if request.method == "POST" else b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._run(request, send, ending, body)
        except TimeoutError as error:
            raise Refusal("unavailable", f"git took longer than {TIMEOUT_S:g} s") from error

    def _check(self, request: Request, ending: str) -> None:
        if ending == "/git-upload-pack":
            fits = request.method == "POST"
        else:
            fits = request.method in {"GET", "HEAD"}
            if ending == "/info/refs" and request.query.get("service", "") != "git-upload-pack":
                raise Refusal("permission_denied", "this repository can be read here, and not be pushed to")
        if not fits:
            raise Refusal("bad_route", f"{request.method} is not served here")

    def _environment(self, request: Request, ending: str) -> dict[str, str]:
        assert self._git_dir is not None
        protocol = request.headers.get("git-protocol", "")
        settings = {
            "safe.directory": "*",
            "uploadpack.allowAnySHA1InWant": "true",
            "uploadpack.allowFilter": "true",
            "http.receivepack": "false",
            "core.hooksPath": os.devnull,
            "core.fsmonitor": "false",
        }
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": str(len(settings)),
            "GIT_PROJECT_ROOT": str(Path(self._git_dir).resolve()),
            "PATH_INFO": ending,
            "REQUEST_METHOD": "GET" if request.method == "HEAD" else request.method,
            "QUERY_STRING": "service=git-upload-pack" if ending == "/info/refs" else "",
            "CONTENT_TYPE": "application/x-git-upload-pack-request" if request.method == "POST" else "",
            "REMOTE_USER": "",
            "REMOTE_ADDR": "127.0.0.1",
        }
        if request.headers.get("content-encoding", "") == "gzip":
            env["HTTP_CONTENT_ENCODING"] = "gzip"
        if _PROTOCOL.match(protocol):
            env["GIT_PROTOCOL"] = env["HTTP_GIT_PROTOCOL"] = protocol
        for number, (key, value) in enumerate(settings.items()):
            env[f"GIT_CONFIG_KEY_{number}"] = key
            env[f"GIT_CONFIG_VALUE_{number}"] = value
        return env

    async def _run(self, request: Request, send: Send, ending: str, body: bytes) -> None:
        env = self._environment(request, ending)
        env["CONTENT_LENGTH"] = str(len(body))
        git = shutil.which("git")
        if git is None:
            raise Refusal("unavailable", "git is not installed on this machine")
        process = await asyncio.create_subprocess_exec(
            git,
            "http-backend",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        feeding = asyncio.create_task(_feed(process, body))
        try:
            await _answer(process, request, send)
            await feeding
            await process.wait()
        finally:
            feeding.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()


async def _feed(process: asyncio.subprocess.Process, body: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(body)
        await process.stdin.drain()
        process.stdin.close()


async def _answer(process: asyncio.subprocess.Process, request: Request, send: Send) -> None:
    """What a CGI program prints (RFC 3875 6), as an answer."""
    assert process.stdout is not None
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_LIMIT:
        data = await process.stdout.read(_CHUNK)
        if not data:
            break
        head += data
    top, found, rest = head.partition(b"\r\n\r\n")
    if not found:
        raise Refusal("unavailable", "git did not answer this request")
    status = 200
    headers: list[tuple[bytes, bytes]] = []
    for line in top.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"status":
            status = int(value.split()[0])
        else:
            headers.append((name.strip().lower(), value.strip()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if request.method != "HEAD":
        await send({"type": "http.response.body", "body": rest, "more_body": True})
        while data := await process.stdout.read(_CHUNK):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
