"""The services of one job over a folder of this machine: everything of this room, put together.

    folder/index.db, folder/blobs, folder/staging      shared by all job processes of this user
    folder/identity.pem                                the key of identity tokens

Nothing is opened before the first call that needs it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.service.artifacts import Artifacts
from runyard.service.blobs import FolderBlobs
from runyard.service.cache_rules import QUOTA
from runyard.service.caches import Caches
from runyard.service.index import Index
from runyard.service.tokens import JobTokens, Signer, mint

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.service.artifact_rules import Artifact
    from runyard.service.gateway import Gateway
    from runyard.service.oidc import JobFacts
    from runyard.service.ports import Clock
    from runyard.service.tenant import Tenant

SWEEP_EVERY_S: Final = 3600.0


class LocalServices:
    """One job's services. `artifacts_to` is a folder that finished artifacts also appear in, "" for none."""

    def __init__(
        self,
        folder: str,
        tenant: Tenant,
        *,
        artifacts_to: str = "",
        git_dir: str | None = None,
        identity: JobFacts | None = None,
        quota: int = QUOTA,
        clock: Clock = time.time,
    ) -> None:
        self.tenant = tenant
        self.clock = clock
        self.folder = Path(folder)
        self.index = Index(str(self.folder / "index.db"))
        self.blobs = FolderBlobs(folder)
        self.caches = Caches(self.index, self.blobs, clock, quota=quota)
        finished = None
        if artifacts_to:
            from runyard.service.artifact_folder import ArtifactFolder

            finished = ArtifactFolder(artifacts_to).take
        self.artifacts = Artifacts(self.index, self.blobs, clock, finished=finished)
        self.uploaded: Callable[[Artifact], None] | None = None
        """Hears of an artifact that a client has uploaded; set before `gateway`."""
        self._git_dir = git_dir
        self._identity = identity
        self._key = os.urandom(32)

    def token(self, life_s: float) -> str:
        """This job's token, good at this gateway alone."""
        return mint(self.tenant, self._key, now=self.clock(), life_s=life_s)

    def gateway(self, base_url: str) -> Gateway:
        """The application, for a client that reaches it at `base_url`."""
        from runyard.service.artifact_api import ArtifactApi
        from runyard.service.blob_api import BlobApi
        from runyard.service.cache_api import CacheApi
        from runyard.service.gateway import Gateway
        from runyard.service.git_http import GitApi
        from runyard.service.oidc import OidcApi, SigningKey

        uploads = {"caches": self.caches.uploaded, "artifacts": self.artifacts.uploaded}
        blobs = BlobApi(self.blobs, Signer(self._key, self.clock), uploads, self.caches.largest)
        identity = None
        if self._identity is not None:
            key = SigningKey(str(self.folder / "identity.pem"))
            identity = OidcApi(key, self._identity, base_url, self.clock)
        return Gateway(
            JobTokens(self.tenant, self._key, self.clock),
            blobs=blobs,
            caches=CacheApi(self.caches, self.blobs, blobs, base_url),
            artifacts=ArtifactApi(self.artifacts, blobs, base_url, self.uploaded),
            identity=identity,
            git=GitApi(self.tenant.repository, self._git_dir),
        )

    async def sweep(self) -> None:
        """Remove abandoned uploads and expired artifacts, at most once an hour for all processes of the folder."""
        if await asyncio.to_thread(self._is_swept):
            return
        await self.artifacts.forget_expired()
        await asyncio.to_thread(self.blobs.sweep)

    def _is_swept(self) -> bool:
        mark = self.folder / "swept"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mark.exists() and self.clock() - mark.stat().st_mtime < SWEEP_EVERY_S:
            return True
        mark.touch()
        os.utime(mark)
        return False

    def notes(self) -> tuple[tuple[str, bool], ...]:
        """What a log should say at the end of the job, each line with whether it is a warning."""
        counted = self.caches.counts.line()
        return (*(((counted, False),) if counted else ()), *((note, True) for note in self.artifacts.notes))

    def close(self) -> None:
        """Give the index back. Safe to repeat."""
        self.index.close()
