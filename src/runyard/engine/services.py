"""What a job may call at run time, as the engine sees it: a port, opened when the first step needs it.

Whoever starts the job process names a factory in its settings (`module:function`); the engine knows no service. A job
without a step that could call one never opens anything.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from runyard.job import Artifact, MachineError, RunyardError
from runyard.sandbox.contract import SandboxRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from runyard.engine.state import Frame, Job
    from runyard.engine.wire import JobSettings
    from runyard.job import Claim
    from runyard.sandbox.contract import Session

Kind: TypeAlias = Literal["script", "node", "docker"]

Uploaded: TypeAlias = "Callable[[str, int, str], None]"
"""Hears of an artifact by name, size in bytes and SHA-256 in hex."""

_GIT = "GIT_CONFIG_"


class ServiceVariables(msgspec.Struct, frozen=True, kw_only=True):
    """The variables that each kind of step gets (7.3); `secret` are the values to hide."""

    script: dict[str, str] = {}
    node: dict[str, str] = {}
    docker: dict[str, str] = {}
    secret: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "<ServiceVariables>"


class FoundCache(msgspec.Struct, frozen=True):
    """A cache that a lookup found: its key, and the file of its bytes outside, which must not be changed."""

    key: str
    path: str
    size: int


class StoredArtifact(msgspec.Struct, frozen=True):
    """A finished artifact of the run. `digest` is SHA-256 in hex, `path` the file of its bytes outside."""

    id: int
    name: str
    size: int
    digest: str
    path: str
    mime: str = "application/zip"


class Stores(Protocol):
    """The services without HTTP, for built-in actions. Each raises WorkError with what the service says."""

    async def find_cache(self, keys: tuple[str, ...], version: str) -> FoundCache | None:
        """The cache for a key (the first) and its restore keys."""

    async def save_cache(self, key: str, version: str, data: AsyncIterator[bytes]) -> int:
        """Save one and return its size; `data` is only begun when the key is free."""

    async def add_artifact(
        self, name: str, path: str, *, mime: str = "application/zip", days: int = 0, overwrite: bool = False
    ) -> StoredArtifact:
        """Take a file of the host as an artifact; the file is gone afterwards."""

    async def artifacts(self) -> list[StoredArtifact]:
        """Those of this run, newest first."""

    def unpack_artifact(self, artifact: StoredArtifact, folder: str) -> None:
        """Write its files into an empty folder of the host. Blocking. Raises WorkError for one that isn't safe."""

    def hand_out(self, path: str, name: str) -> str:
        """A folder with that file of the stores in it, as `name`; it stays until the job is over. Blocking."""

    def room(self) -> str:
        """A folder of the host on the file system of the stores, for what is being made."""


class JobServices(Stores, Protocol):
    """The services of one job."""

    scripts: bool
    """Whether `run` steps get variables too; else the services are only opened for actions."""

    uploaded: Uploaded | None
    """Set by the engine: hears of what a client of the job has uploaded."""

    async def mount(self, session: Session) -> ServiceVariables:
        """Listen inside the sandbox. Once. Raises MachineError where this sandbox can't."""

    def notes(self) -> tuple[tuple[str, bool], ...]:
        """Lines for the end of the job's log, each with whether it is a warning."""

    async def close(self) -> None:
        """Stop, when the sandbox is closed. Safe to repeat."""


def open_services(settings: JobSettings, claim: Claim) -> JobServices | None:
    """Call the factory that the settings name; None without one, and where the claim brings services of its own."""
    if not settings.services or claim.endpoints:
        return None
    module, _, name = settings.services.partition(":")
    made: JobServices = getattr(importlib.import_module(module), name)(settings, claim)
    return made


class Services:
    """A job's services with what is known of them; everything is the claim's alone where none were given."""

    def __init__(self, services: JobServices | None) -> None:
        self.port = services
        self.problem: str | None = None
        self._mounted: ServiceVariables | None = None

    async def variables(self, job: Job, frame: Frame, kind: Kind) -> Mapping[str, str]:
        """The `ACTIONS_*` variables for a process of that kind. What can't be opened is said once, as a warning."""
        given = job.script_services if kind == "script" else {**job.script_services, **job.action_services}
        if self.port is None or (kind == "script" and not self.port.scripts):
            return given
        if self._mounted is None and self.problem is None:
            self.port.uploaded = functools.partial(_tell, job)
            try:
                self._mounted = await self.port.mount(job.session)
            except (RunyardError, OSError) as error:
                self.problem = error.message if isinstance(error, MachineError | SandboxRefused) else str(error)
                frame.log.issue("warning", f"Cache, artifact and identity services are not reachable: {self.problem}")
            else:
                for secret in self._mounted.secret:
                    job.masker.add_secret(secret)
        if self._mounted is None:
            return given
        found: dict[str, str] = getattr(self._mounted, kind)
        if f"{_GIT}COUNT" in frame.env:
            # The step configures git by environment itself, and numbered variables can't be merged.
            found = {name: value for name, value in found.items() if not name.startswith(_GIT)}
        return {**given, **found}

    def say_notes(self, frame: Frame) -> None:
        """At the end of the job."""
        for line, is_warning in self.port.notes() if self.port is not None else ():
            if is_warning:
                frame.log.issue("warning", line)
            else:
                frame.log.say(line)

    async def close(self) -> None:
        """When the sandbox is closed. Safe to repeat."""
        if self.port is not None:
            await self.port.close()


def _tell(job: Job, name: str, size: int, digest: str) -> None:
    """An artifact of an original action, as an event of the record that runs."""
    log = job.record
    log.emit(Artifact(log.step, job.masker.mask_text(name), size, digest, job.now_ns()))
