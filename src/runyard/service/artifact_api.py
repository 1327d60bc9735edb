"""The artifact protocol: twirp calls of versions 4 and 7 of the client (runner-v2 16.4)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from runyard.service.asgi import Refusal, field, int_field, send_json, text_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.service.artifact_rules import Artifact
    from runyard.service.artifacts import Artifacts
    from runyard.service.asgi import Request, Send
    from runyard.service.blob_api import BlobApi
    from runyard.service.tenant import Tenant

TWIRP: Final = "/twirp/github.actions.results.api.v1.ArtifactService/"
CONTAINER: Final = "artifacts"
_ZIP: Final = "application/zip"


class ArtifactApi:
    """`base_url` is where the client reaches the blobs, with its slash. `finished` hears of each that is whole."""

    def __init__(
        self,
        artifacts: Artifacts,
        blob_api: BlobApi,
        base_url: str,
        finished: Callable[[Artifact], None] | None = None,
    ) -> None:
        self._finished = finished
        self._artifacts = artifacts
        self._blob_api = blob_api
        self._base = base_url.rstrip("/")

    async def twirp(self, request: Request, send: Send, tenant: Tenant) -> None:
        """One call below TWIRP. The backend ids of every request have to be the token's."""
        if request.method != "POST":
            raise Refusal("bad_route", "twirp calls are POST")
        message = await request.json()
        call = request.path.removeprefix(TWIRP)
        handler = {
            "CreateArtifact": self._create,
            "FinalizeArtifact": self._finish,
            "ListArtifacts": self._list,
            "GetSignedArtifactURL": self._read,
            "DeleteArtifact": self._delete,
        }.get(call)
        if handler is None:
            raise Refusal("bad_route", f"there is no call {call}")
        _check_ids(message, tenant, any_job=call in {"ListArtifacts", "GetSignedArtifactURL", "DeleteArtifact"})
        await send_json(send, await handler(message, tenant))

    async def _create(self, message: dict[str, Any], tenant: Tenant) -> object:
        mime = text_field(message, "mime_type")
        if mime and (not mime.isascii() or not mime.isprintable() or len(mime) > 255):
            raise Refusal("invalid_argument", "mime_type is no media type")
        artifact = await self._artifacts.create(
            tenant, text_field(message, "name"), mime=mime or _ZIP, expires=_time(text_field(message, "expires_at"))
        )
        return {"ok": True, "signed_upload_url": self._base + self._blob_api.upload_url(CONTAINER, artifact.upload)}

    async def _finish(self, message: dict[str, Any], tenant: Tenant) -> object:
        artifact = await self._artifacts.finish(
            tenant, text_field(message, "name"), int_field(message, "size"), text_field(message, "hash")
        )
        if self._finished is not None:
            self._finished(artifact)
        return {"ok": True, "artifact_id": str(artifact.id)}

    async def _list(self, message: dict[str, Any], tenant: Tenant) -> object:
        name = text_field(message, "name_filter") or None
        number = int_field(message, "id_filter") if field(message, "id_filter") else None
        found = await self._artifacts.find(tenant, name=name, number=number)
        return {"artifacts": [_shown(each) for each in found]}

    async def _read(self, message: dict[str, Any], tenant: Tenant) -> object:
        artifact, _ = await self._artifacts.read(tenant, text_field(message, "name"))
        assert artifact.digest is not None
        name = f"{artifact.name}.zip" if artifact.mime == _ZIP else artifact.name
        url = self._blob_api.download_url(CONTAINER, artifact.digest, name=name, mime=artifact.mime)
        return {"signed_url": self._base + url}

    async def _delete(self, message: dict[str, Any], tenant: Tenant) -> object:
        artifact = await self._artifacts.delete(tenant, text_field(message, "name"))
        return {"ok": True, "artifact_id": str(artifact.id)}


def _check_ids(message: dict[str, Any], tenant: Tenant, *, any_job: bool) -> None:
    plan = text_field(message, "workflow_run_backend_id")
    job = text_field(message, "workflow_job_run_backend_id")
    if plan != tenant.plan_id or (job != tenant.job_id and not any_job):
        raise Refusal("permission_denied", "the backend ids are not those of this job's token")


def _shown(artifact: Artifact) -> dict[str, str]:
    return {
        "workflow_run_backend_id": artifact.plan,
        "workflow_job_run_backend_id": artifact.job,
        "database_id": str(artifact.id),
        "name": artifact.name,
        "size": str(artifact.size),
        "created_at": datetime.fromtimestamp(artifact.created, UTC).isoformat().replace("+00:00", "Z"),
        "digest": f"sha256:{artifact.digest}",
    }


def _time(text: str) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise Refusal("invalid_argument", "expires_at is no RFC 3339 time") from error
