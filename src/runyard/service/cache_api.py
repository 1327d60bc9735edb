"""The cache protocols: twirp (runner-v2 16.2) and the older REST (16.3), over the same caches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from runyard.service.asgi import Refusal, field, int_field, send_bytes, send_json, text_field
from runyard.service.ports import IncompleteError, TooLargeError

if TYPE_CHECKING:
    from runyard.service.asgi import Request, Send
    from runyard.service.blob_api import BlobApi
    from runyard.service.caches import Caches
    from runyard.service.ports import BlobStore
    from runyard.service.tenant import Tenant

TWIRP: Final = "/twirp/github.actions.results.api.v1.CacheService/"
REST: Final = "/_apis/artifactcache/"
CONTAINER: Final = "caches"

_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\*|\d+)\Z")


class CacheApi:
    """Both protocols. `base_url` is where the client reaches the blobs, with its slash."""

    def __init__(self, caches: Caches, blobs: BlobStore, blob_api: BlobApi, base_url: str) -> None:
        self._caches = caches
        self._blobs = blobs
        self._blob_api = blob_api
        self._base = base_url.rstrip("/")

    # twirp

    async def twirp(self, request: Request, send: Send, tenant: Tenant) -> None:
        """One call below TWIRP."""
        name = request.path.removeprefix(TWIRP)
        if request.method != "POST":
            raise Refusal("bad_route", "twirp calls are POST")
        message = await request.json()
        key, version = text_field(message, "key"), text_field(message, "version")
        if name == "CreateCacheEntry":
            try:
                upload = await self._caches.reserve(tenant, key, version)
            except Refusal as refusal:
                if refusal.code not in {"already_exists", "permission_denied"}:
                    raise
                # Newer clients show the message; for all of them the save is skipped and the step goes on.
                await send_json(send, {"ok": False, "message": refusal.message})
                return
            url = self._base + self._blob_api.upload_url(CONTAINER, upload.id)
            await send_json(send, {"ok": True, "signed_upload_url": url})
        elif name == "FinalizeCacheEntryUpload":
            try:
                entry = await self._caches.finish(tenant, key, version, int_field(message, "size_bytes"))
            except Refusal as refusal:
                if refusal.code != "already_exists":
                    raise
                await send_json(send, {"ok": False, "message": refusal.message})
                return
            await send_json(send, {"ok": True, "entry_id": str(entry.id)})
        elif name == "GetCacheEntryDownloadURL":
            restore = field(message, "restore_keys") or []
            if not isinstance(restore, list) or not all(isinstance(each, str) for each in restore):
                raise Refusal("invalid_argument", "restore_keys is no list of texts")
            found = await self._caches.find(tenant, [key, *restore], version)
            if found is None:
                await send_json(send, {"ok": False})
                return
            url = self._base + self._blob_api.download_url(CONTAINER, found[0].digest)
            await send_json(send, {"ok": True, "signed_download_url": url, "matched_key": found[0].key})
        else:
            raise Refusal("bad_route", f"there is no call {name}")

    # REST

    async def rest(self, request: Request, send: Send, tenant: Tenant) -> None:
        """One call below REST."""
        what = request.path.removeprefix(REST)
        if request.method == "GET" and what == "cache":
            await self._look_up(request, send, tenant)
        elif request.method == "POST" and what == "caches":
            await self._reserve(request, send, tenant)
        elif request.method in {"PATCH", "POST"} and re.fullmatch(r"caches/\d{1,15}", what):
            number = int(what.removeprefix("caches/"))
            if request.method == "PATCH":
                await self._chunk(request, tenant, number)
            else:
                await self._commit(request, tenant, number)
            await send_bytes(send, 204, b"", [])
        else:
            raise Refusal("bad_route", f"{request.method} {what} is not served here")

    async def _look_up(self, request: Request, send: Send, tenant: Tenant) -> None:
        keys = request.query.get("keys", "").split(",")
        found = await self._caches.find(tenant, keys, request.query.get("version", ""))
        if found is None:
            await send_bytes(send, 204, b"", [])
            return
        from datetime import UTC, datetime

        entry = found[0]
        answer = {
            "cacheKey": entry.key,
            "scope": entry.scope,
            "creationTime": datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
            "archiveLocation": self._base + self._blob_api.download_url(CONTAINER, entry.digest),
        }
        await send_json(send, answer)

    async def _reserve(self, request: Request, send: Send, tenant: Tenant) -> None:
        message = await request.json()
        size = int_field(message, "cacheSize")
        if size > self._caches.largest:
            raise Refusal("invalid_argument", f"a cache of {size} bytes; the limit is {self._caches.largest}")
        upload = await self._caches.reserve(tenant, text_field(message, "key"), text_field(message, "version"))
        await send_json(send, {"cacheId": upload.number}, 201)

    async def _chunk(self, request: Request, tenant: Tenant, number: int) -> None:
        upload = await self._caches.owned(tenant, number)
        match = _RANGE.match(request.headers.get("content-range", ""))
        if match is None:
            raise Refusal("invalid_argument", "Content-Range is missing or no range of bytes")
        start, end = int(match[1]), int(match[2]) + 1
        if not start < end <= self._caches.largest:
            raise Refusal("too_large", f"a cache ends at {self._caches.largest} bytes")
        try:
            size = await self._blobs.stage_at(upload.id, start, request.chunks(), limit=end - start)
        except TooLargeError as error:
            raise Refusal("invalid_argument", "more bytes came than Content-Range says") from error
        if size != end - start:
            raise Refusal("invalid_argument", "fewer bytes came than Content-Range says")

    async def _commit(self, request: Request, tenant: Tenant, number: int) -> None:
        upload = await self._caches.owned(tenant, number)
        size = int_field(await request.json(), "size")
        try:
            blob = await self._blobs.commit(upload.id)
        except IncompleteError as error:
            raise Refusal("invalid_argument", str(error)) from error
        await self._caches.uploaded(upload.id, blob)
        await self._caches.finish(tenant, upload.key, upload.version, size)
