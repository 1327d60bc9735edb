"""The services of a local job, put together for its job process: the engine calls `open_services` by name.

This is the one place where the engine's port meets the service room. What is imported here is light; the rest comes
when a step needs the services, and the HTTP server with the first connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import uuid
from typing import TYPE_CHECKING, Final

from runyard.engine.services import FoundCache, ServiceVariables, StoredArtifact
from runyard.job import RunyardError, WorkError

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from runyard.engine.services import Uploaded
    from runyard.engine.wire import JobSettings
    from runyard.job import Claim, Json
    from runyard.sandbox.contract import Session
    from runyard.service.artifact_rules import Artifact
    from runyard.service.local import LocalServices
    from runyard.service.oidc import JobFacts
    from runyard.service.server import Server
    from runyard.service.tenant import Tenant

NAME: Final = "runyard.cli.run_services:open_services"
"""What `JobSettings.services` says for a local run."""

_NAMES: Final = uuid.UUID("6f2d0f0e-64a5-4c53-9c55-31b8a5f5b2a1")
_MARGIN_S: Final = 3600.0
"""How much longer than the job its token lives: post steps and completion come after the time limit."""


def open_services(settings: JobSettings, claim: Claim) -> LocalJobServices:
    """The factory. Opens nothing yet."""
    return LocalJobServices(settings, claim)


class LocalJobServices:
    """See JobServices."""

    def __init__(self, settings: JobSettings, claim: Claim) -> None:
        self._settings = settings
        self._claim = claim
        self._server: Server | None = None
        self._services: LocalServices | None = None
        self._base = ""
        self._handed: list[str] = []
        self._sweeping: asyncio.Task[None] | None = None
        self.uploaded: Uploaded | None = None
        self.scripts = (claim.spec.permissions or {}).get("id-token") == "write"

    def services(self) -> LocalServices:
        """The services themselves, made when they are first asked for; for adapters that need no HTTP."""
        if self._services is None:
            from runyard.service.local import LocalServices

            claim, settings = self._claim, self._settings
            self._services = LocalServices(
                f"{settings.cache_dir}/services",
                tenant_of(claim),
                artifacts_to=settings.artifacts_dir,
                git_dir=claim.checkout.git_dir if claim.checkout is not None else None,
                identity=facts_of(claim) if self.scripts else None,
            )
            self._services.uploaded = self._told
            self._sweeping = asyncio.create_task(self._services.sweep(), name="sweep of the services")
        return self._services

    async def mount(self, session: Session) -> ServiceVariables:
        """See JobServices. The port is one of the sandbox's own loopback."""
        from runyard.service.variables import git_variables, step_variables

        services = self.services()
        port = await session.listen(0, self._take)
        self._base = f"http://127.0.0.1:{port}/"
        token = services.token(self._claim.spec.limits.timeout_s + self._settings.clean_up_s + _MARGIN_S)
        git: dict[str, str] = {}
        if self._claim.checkout is not None and self._claim.checkout.git_dir is not None:
            server_url = str(self._claim.context.github.get("server_url") or "https://github.com")
            git = git_variables(self._base, server_url, self._claim.checkout.repository, token)
        made = step_variables(self._base, token, id_token=self.scripts, git=git)
        return ServiceVariables(script=made.scripts, node=made.node, docker=made.docker, secret=made.secret)

    def _told(self, artifact: Artifact) -> None:
        if self.uploaded is not None:
            self.uploaded(artifact.name, artifact.size or 0, artifact.digest or "")

    async def _take(self, sock: socket.socket) -> None:
        """One connection of the job."""
        if self._server is None:
            # Seconds of imports on a cold disk: not in the loop, whose standstill would look like a stuck job.
            module = await asyncio.to_thread(_server_module)
            if self._server is None:
                self._server = module(self.services().gateway(self._base))
        await self._server.take(sock)

    # See Stores ---------------------------------------------------------------------------------------------------

    async def find_cache(self, keys: tuple[str, ...], version: str) -> FoundCache | None:
        """See Stores."""
        services = self.services()
        with _refusals():
            found = await services.caches.find(services.tenant, keys, version)
        return None if found is None else FoundCache(found[0].key, found[1], found[0].size)

    async def save_cache(self, key: str, version: str, data: AsyncIterator[bytes]) -> int:
        """See Stores."""
        services = self.services()
        caches, blobs = services.caches, services.blobs
        with _refusals():
            upload = await caches.reserve(services.tenant, key, version)
            try:
                await blobs.stage(upload.id, "whole", data, limit=caches.largest)
                blob = await blobs.commit(upload.id, ("whole",))
            except BaseException:
                await blobs.abandon(upload.id)
                raise
            await caches.uploaded(upload.id, blob)
            entry = await caches.finish(services.tenant, key, version, blob.size)
        return entry.size

    async def add_artifact(
        self, name: str, path: str, *, mime: str = "application/zip", days: int = 0, overwrite: bool = False
    ) -> StoredArtifact:
        """See Stores."""
        services = self.services()
        artifacts, tenant = services.artifacts, services.tenant
        with _refusals():
            if overwrite and await artifacts.find(tenant, name=name):
                await artifacts.delete(tenant, name)
            expires = services.clock() + days * 86400 if days else None
            made = await artifacts.create(tenant, name, mime=mime, expires=expires)
            blob = await asyncio.to_thread(services.blobs.adopt, path)
            await artifacts.uploaded(made.upload, blob)
            await artifacts.finish(tenant, name, blob.size)
        return StoredArtifact(made.id, name, blob.size, blob.digest, services.blobs.path(blob.digest) or "", mime)

    async def artifacts(self) -> list[StoredArtifact]:
        """See Stores."""
        services = self.services()
        found = await services.artifacts.find(services.tenant)
        return [
            StoredArtifact(each.id, each.name, each.size or 0, each.digest, path, each.mime)
            for each in found
            if each.digest is not None and (path := services.blobs.path(each.digest)) is not None
        ]

    def unpack_artifact(self, artifact: StoredArtifact, folder: str) -> None:
        """See Stores."""
        from runyard.service.artifact_folder import open_into

        problem = open_into(artifact.path, artifact.name, folder, mime=artifact.mime)
        if problem is not None:
            raise WorkError(problem, code="service.unsafe")

    def hand_out(self, path: str, name: str) -> str:
        """See Stores. Another name for the same bytes: nothing is copied."""
        folder = tempfile.mkdtemp(prefix="handed-", dir=self.room())
        self._handed.append(folder)
        os.chmod(folder, 0o755)  # noqa: PTH101 - a name
        os.link(path, f"{folder}/{name}")
        return folder

    def room(self) -> str:
        """See Stores."""
        folder = self.services().folder / "staging"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)

    def notes(self) -> tuple[tuple[str, bool], ...]:
        """See JobServices."""
        return self._services.notes() if self._services is not None else ()

    async def close(self) -> None:
        """See JobServices."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunyardError, OSError):
                await self._sweeping
            self._sweeping = None
        if self._services is not None:
            await asyncio.to_thread(self._services.close)
        while self._handed:
            await asyncio.to_thread(shutil.rmtree, self._handed.pop(), True)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What a service refuses, in the words of the engine's port."""
    from runyard.service.asgi import Refusal
    from runyard.service.ports import IncompleteError, TooLargeError

    try:
        yield
    except Refusal as refusal:
        raise WorkError(refusal.message, code=f"service.{refusal.code}") from refusal
    except (IncompleteError, TooLargeError) as error:
        raise WorkError(str(error), code="service.too_large") from error


def _server_module() -> type[Server]:
    import runyard.service.gateway  # noqa: F401 - imported with it
    from runyard.service.server import Server

    return Server


def tenant_of(claim: Claim) -> Tenant:
    """Whose job it is, with the cache scopes of its event (runner-v2 16.2)."""
    from runyard.service.tenant import Tenant, scopes_of

    github, spec = claim.context.github, claim.spec
    event = claim.context.event if isinstance(claim.context.event, dict) else {}
    repository = event.get("repository")
    default = repository.get("default_branch") if isinstance(repository, dict) else ""
    base = _text(github.get("base_ref")) if _text(github.get("event_name")).startswith("pull_request") else ""
    return Tenant(
        plan_id=str(uuid.uuid5(_NAMES, spec.run_id)),
        job_id=str(uuid.uuid5(_NAMES, f"{spec.run_id}\0{spec.key}")),
        job_name=spec.name,
        repository=_text(github.get("repository")) or "local/repository",
        run_id=spec.run_id,
        attempt=claim.attempt,
        scopes=scopes_of(
            _text(github.get("ref")) or "refs/heads/main",
            base_ref=base,
            default_branch=_text(default),
            trusted=spec.trust == "trusted",
        ),
        strict=claim.strict_github,
    )


def facts_of(claim: Claim) -> JobFacts:
    """What an identity token says of this job."""
    from runyard.service.oidc import JobFacts

    github, spec = claim.context.github, claim.spec
    told = {name: _text(github.get(name)) for name in JobFacts.__struct_fields__ if name in github}
    return JobFacts(
        **{"repository": "local/repository", **told},
        owner_id=_text(github.get("repository_owner_id")),
        job_workflow_ref=spec.workflow_ref,
        job_workflow_sha=spec.workflow_sha,
        environment=spec.environment.name if spec.environment is not None else "",
        visibility=_text(github.get("repository_visibility")) or "private",
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
