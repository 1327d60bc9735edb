"""The gateway of one job: one ASGI application that knows whose job it is, routes by path, counts and refuses.

A request is served for the token of this job, for an address that was signed here, or for the published keys; the
rest gets 401 or 403 as JSON. Nothing is looked at before that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.job import MachineError
from runyard.service import artifact_api, blob_api, cache_api, git_http, oidc
from runyard.service.asgi import Refusal, Request, send_bytes, send_json, send_refusal

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from runyard.service.asgi import Receive, Send
    from runyard.service.ports import TokenVerifier

MOST_AT_ONCE: Final = 32
"""Requests served side by side; the others wait for their turn."""

HEALTH: Final = "/health"


class GatewayCounts(msgspec.Struct):
    """What a gateway served."""

    requests: int = 0
    refused: int = 0
    failed: int = 0


class Gateway:
    """The application. A part that is None is not served."""

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        blobs: blob_api.BlobApi,
        caches: cache_api.CacheApi,
        artifacts: artifact_api.ArtifactApi,
        identity: oidc.OidcApi | None = None,
        git: git_http.GitApi | None = None,
    ) -> None:
        self._verifier = verifier
        self._blobs = blobs
        self._caches = caches
        self._artifacts = artifacts
        self._identity = identity
        self._git = git
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self.counts = GatewayCounts()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request. A refusal before the answer began is told as JSON; later the connection is cut."""
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served")
        began = False

        async def sending(message: Any) -> None:
            nonlocal began
            began = True
            await send(message)

        self.counts.requests += 1
        async with self._turns:
            try:
                await self._serve(Request(scope, receive), sending)
            except Refusal as refusal:
                self.counts.refused += 1
                await self._refuse(sending, refusal, began)
            except MachineError as error:
                self.counts.failed += 1
                await self._refuse(sending, Refusal("unavailable", error.message), began)
            except OSError as error:
                self.counts.failed += 1
                await self._refuse(sending, Refusal("unavailable", f"{error.strerror or error}"), began)

    async def _refuse(self, send: Send, refusal: Refusal, began: bool) -> None:
        if began:
            raise ConnectionAbortedError(refusal.message)
        await send_refusal(send, refusal)

    async def _serve(self, request: Request, send: Send) -> None:
        path = request.path
        if path.startswith(blob_api.PREFIX):
            await self._blobs.serve(request, send)
        elif path == oidc.DISCOVERY and self._identity is not None:
            await self._identity.discovery(send)
        elif path == oidc.KEYS and self._identity is not None:
            await self._identity.keys(send)
        elif path == HEALTH:
            await send_bytes(send, 204, b"", [])
        else:
            await self._serve_job(request, send)

    async def _serve_job(self, request: Request, send: Send) -> None:
        """What needs the token of the job."""
        path = request.path
        token = request.credential()
        if not token:
            raise Refusal("unauthenticated", "this needs the token of the job")
        tenant = self._verifier.verify(token)
        if tenant is None:
            raise Refusal("permission_denied", "this is not the token of this job, or it has expired")
        if path.startswith(cache_api.TWIRP):
            await self._caches.twirp(request, send, tenant)
        elif path.startswith(cache_api.REST):
            await self._caches.rest(request, send, tenant)
        elif path.startswith(artifact_api.TWIRP):
            await self._artifacts.twirp(request, send, tenant)
        elif path == oidc.REQUEST and self._identity is not None:
            await self._identity.token(request, send)
        elif path.startswith(git_http.PREFIX) and self._git is not None:
            await self._git.serve(request, send)
        elif path == "/":
            await send_json(send, {"plan": tenant.plan_id, "job": tenant.job_id})
        else:
            raise Refusal("bad_route", f"nothing is served at {path}")
