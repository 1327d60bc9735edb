"""Requests to the applications without a socket, and services on a folder with a clock of the test's own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from runyard.service.local import LocalServices
from runyard.service.tenant import READ, WRITE, Scope, Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from runyard.service.gateway import Gateway

BASE = "http://127.0.0.1:4711/"
CACHE = "/twirp/github.actions.results.api.v1.CacheService/"
ARTIFACT = "/twirp/github.actions.results.api.v1.ArtifactService/"
MAIN = "refs/heads/main"


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


def tenant(job: str = "build", *, run: str = "1", name: str = "", **more: Any) -> Tenant:
    given: dict[str, Any] = {
        "plan_id": f"plan-{run}",
        "job_id": job,
        "job_name": name or job.title(),
        "repository": "octo/tools",
        "run_id": run,
        "scopes": (Scope(MAIN, READ | WRITE),),
    }
    return Tenant(**{**given, **more})


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Client:
    """One job's way to its gateway."""

    def __init__(self, services: LocalServices, base: str = BASE) -> None:
        self.services = services
        self.gateway: Gateway = services.gateway(base)
        self.token = services.token(3600)

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes | object = b"",
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Answer:
        """One request. A dict is sent as JSON; a full address is asked without a token, as the blob clients do."""
        parts = urlsplit(url)
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        token = token if token is not None else "" if parts.netloc else self.token
        if token:
            sent.setdefault("authorization", f"Bearer {token}")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": parts.path,
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        return await self._exchange(scope, data)

    async def _exchange(self, scope: dict[str, Any], data: bytes) -> Answer:
        pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)] or [b""]
        answer = Answer(0, {}, b"")

        async def receive() -> dict[str, Any]:
            if not pieces:
                return {"type": "http.disconnect"}
            body = pieces.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        async with asyncio.timeout(20):
            await self.gateway(scope, receive, send)
        return answer

    async def twirp(self, call: str, message: dict[str, Any], *, token: str | None = None) -> Answer:
        prefix = ARTIFACT if "Artifact" in call else CACHE
        if prefix == ARTIFACT:
            who = self.services.tenant
            message = {
                "workflow_run_backend_id": who.plan_id,
                "workflow_job_run_backend_id": who.job_id,
                **message,
            }
        return await self.ask("POST", prefix + call, message, token=token)

    async def save(self, key: str, data: bytes, version: str = "v") -> Answer:
        """A cache saved as version 2 of the client does."""
        made = await self.twirp("CreateCacheEntry", {"key": key, "version": version})
        if not made.json.get("ok"):
            return made
        put = await self.ask("PUT", made.json["signed_upload_url"], data, headers={"x-ms-blob-type": "BlockBlob"})
        assert put.status == 201, put
        return await self.twirp(
            "FinalizeCacheEntryUpload", {"key": key, "version": version, "size_bytes": str(len(data))}
        )

    async def restore(self, key: str, *restore: str, version: str = "v") -> tuple[str, bytes] | None:
        """The key that matched, and the bytes; None for a miss."""
        message = {"key": key, "restore_keys": list(restore), "version": version}
        found = await self.twirp("GetCacheEntryDownloadURL", message)
        assert found.status == 200, found
        if not found.json["ok"]:
            return None
        got = await self.ask("GET", found.json["signed_download_url"])
        assert got.status == 200, got
        return found.json["matched_key"], got.body

    async def upload(self, name: str, data: bytes, **more: Any) -> Answer:
        """An artifact in two blocks, as the client does."""
        made = await self.twirp("CreateArtifact", {"name": name, "version": 4, **more})
        if made.status != 200:
            return made
        url = made.json["signed_upload_url"]
        half = len(data) // 2
        for block, part in (("AAAA", data[:half]), ("BBBB", data[half:])):
            put = await self.ask("PUT", f"{url}&comp=block&blockid={quote(block)}", part)
            assert put.status == 201, put
        listed = b"<?xml version='1.0'?><BlockList><Latest>AAAA</Latest><Latest>BBBB</Latest></BlockList>"
        put = await self.ask("PUT", f"{url}&comp=blocklist", listed)
        assert put.status == 201, put
        return await self.twirp("FinalizeArtifact", {"name": name, "size": str(len(data))})


class House:
    """A folder of services, and clients of several jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Hands()
        self.opened: list[LocalServices] = []

    def client(self, who: Tenant | None = None, **more: Any) -> Client:
        services = LocalServices(str(self.folder), who or tenant(), clock=self.clock, **more)
        self.opened.append(services)
        return Client(services)

    def close(self) -> None:
        for services in self.opened:
            services.close()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine to its end, within a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())
