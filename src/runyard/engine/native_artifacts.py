"""The built-in `actions/upload-artifact` and `actions/download-artifact` as steps.

Files leave the sandbox as a tar stream of the image's own tar and are packed into a zip outside, so that the original's
clients can read them; they come in as a tree that was unpacked outside, with care.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
import tarfile
import tempfile
import zipfile
from typing import TYPE_CHECKING, Final

from runyard.action.artifacts import (
    DownloadPlan,
    Known,
    UploadPlan,
    is_hidden,
    plan_download,
    plan_upload,
    root_of,
    target_of,
)
from runyard.engine.actions import action_prelude
from runyard.engine.evaluate import texts_of
from runyard.engine.glob_patterns import FILE, Matcher, read_part, read_patterns, search_paths
from runyard.engine.native_cache import matches, stopped
from runyard.engine.place import place_tree
from runyard.engine.results import Result
from runyard.engine.run_step import fail, fresh_name
from runyard.engine.sandbox_streams import StoppedError, files_below, stream, unless_stopped
from runyard.job import Artifact, RunyardError, WorkError
from runyard.sandbox.contract import FileIn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runyard.engine.services import StoredArtifact, Stores
    from runyard.engine.state import Frame
    from runyard.job import ActionStep

_CHUNK: Final = 1 << 20
_OLDEST: Final = (1980, 1, 1, 0, 0, 0)


async def run_artifacts(frame: Frame, step: ActionStep, name: str, stores: Stores) -> Result:
    """The main phase of `upload_artifact` or `download_artifact`."""
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    inputs = await texts_of(frame, step.inputs)
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")
    try:
        if name == "upload_artifact":
            upload = _Upload(frame, stores, plan_upload(inputs))
            await unless_stopped(frame, upload.run())
            return upload.result
        home = frame.job.base_environment.get("HOME") or frame.job.layout.home
        plan = plan_download(inputs, workspace=frame.job.layout.workspace, home=home)
        await unless_stopped(frame, _download(frame, stores, plan, step.ref))
    except StoppedError:
        return stopped(frame)
    except RunyardError as error:
        return fail(frame, str(error) if name == "upload_artifact" else f"Unable to download artifact(s): {error}")
    return Result.SUCCESS


# Upload ---------------------------------------------------------------------------------------------------------------


class _Upload:
    def __init__(self, frame: Frame, stores: Stores, plan: UploadPlan) -> None:
        self._frame = frame
        self._job = frame.job
        self._stores = stores
        self._plan = plan
        self.result = Result.SUCCESS

    async def run(self) -> None:
        """Search, pack, store, say."""
        plan, log = self._plan, self._frame.log
        found, root = await self._search()
        if not found:
            self._nothing()
            return
        log.say(f"With the provided path, there will be {len(found)} file{'' if len(found) == 1 else 's'} uploaded")
        if not plan.archive and len(found) > 1:
            raise WorkError(
                "When 'archive' is set to false, only a single file can be uploaded. "
                f"Found {len(found)} files to upload."
            )
        stored = await self._store(found, root)
        url = self._url(stored)
        self._frame.outputs["artifact-id"] = str(stored.id)
        self._frame.outputs["artifact-digest"] = stored.digest
        self._frame.outputs["artifact-url"] = url
        log.emit(Artifact(log.step, stored.name, stored.size, stored.digest, self._job.now_ns()))
        log.say(f"SHA256 digest of uploaded artifact is {stored.digest}")
        log.say(
            f"Artifact {stored.name} has been successfully uploaded! Final size is {stored.size} bytes. "
            f"Artifact ID is {stored.id}"
        )
        log.say(f"Artifact download URL: {url}")

    def _nothing(self) -> None:
        text = f"No files were found with the provided path: {self._plan.paths}. No artifacts will be uploaded."
        if self._plan.when_nothing == "error":
            self.result = fail(self._frame, text)
        elif self._plan.when_nothing == "warn":
            self._frame.log.issue("warning", text)
        else:
            self._frame.log.say(text)

    def _url(self, stored: StoredArtifact) -> str:
        github = self._job.scope.github
        return (
            f"{github.get('server_url')}/{github.get('repository')}/actions/runs/{github.get('run_id')}"
            f"/artifacts/{stored.id}"
        )

    async def _search(self) -> tuple[list[str], str]:
        """The files that the patterns match, sorted, and the folder that their names are relative to."""
        job = self._job
        home = job.base_environment.get("HOME")
        read = read_patterns(self._plan.paths, workspace=job.layout.workspace, home=home)
        matcher = Matcher(read)
        starts = search_paths(read)
        found: dict[str, None] = {}
        for start in starts:
            for path in await files_below(job.session, (start,), "f", env=job.base_environment):
                if matches(matcher, path) & FILE and (self._plan.hidden or not is_hidden(start, path)):
                    found[path] = None
        files = sorted(found)
        if not files:
            return [], ""
        root = root_of(starts, files)
        if len(starts) > 1:
            self._frame.log.say("Multiple search paths detected. Calculating the least common ancestor of all paths")
            self._frame.log.say(f"The least common ancestor is {root}. This will be the root directory of the artifact")
        return files, root

    async def _store(self, found: list[str], root: str) -> StoredArtifact:
        plan = self._plan
        async with _room(self._stores, "making-") as room:
            packed = f"{room}/it"
            name, mime = plan.name, "application/zip"
            if plan.archive:
                tar = f"{room}/tar"
                await _keep(tar, self._pack(found, root))
                await asyncio.to_thread(zip_of, tar, packed, plan.compression)
            else:
                name, mime = posixpath.basename(found[0]), _type_of(found[0])
                await _keep(packed, self._one(found[0]))
            return await self._stores.add_artifact(
                name, packed, mime=mime, days=plan.retention_days, overwrite=plan.overwrite
            )

    def _pack(self, found: list[str], root: str) -> AsyncIterator[bytes]:
        job = self._job
        manifest, scratch = (f"{job.layout.temp}/{fresh_name()}" for _ in range(2))
        names = "\0".join(posixpath.relpath(path, root) for path in found)
        argv = ("tar", "-chf", "-", "-C", root, "--no-recursion", "--null", "-T", manifest)
        listed = FileIn(manifest, names.encode("utf-8", "surrogateescape"))
        return stream(
            job.session, argv, env=job.base_environment, cwd="/", scratch=scratch, files=(listed,), good=(0, 1)
        )

    def _one(self, path: str) -> AsyncIterator[bytes]:
        job = self._job
        scratch = f"{job.layout.temp}/{fresh_name()}"
        return stream(job.session, ("cat", "--", path), env=job.base_environment, cwd="/", scratch=scratch)


@contextlib.asynccontextmanager
async def _room(stores: Stores, prefix: str) -> AsyncIterator[str]:
    """A folder of the host for a while; large ones are removed outside the loop."""
    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix=prefix, dir=stores.room())
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)


async def _keep(path: str, data: AsyncIterator[bytes]) -> None:
    file = await asyncio.to_thread(open, path, "wb")
    try:
        async for part in data:
            await asyncio.to_thread(file.write, part)
    finally:
        await asyncio.to_thread(file.close)


def zip_of(tar: str, path: str, level: int) -> None:
    """A zip of a tar's files with the modes of the original's archives; members are read as a stream, never unpacked.

    Blocking. Raises WorkError for a tar that breaks off.
    """
    kind = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    try:
        with tarfile.open(tar, "r|") as source, zipfile.ZipFile(path, "w", kind, compresslevel=level or None) as out:
            for member in source:
                content = source.extractfile(member) if member.isreg() else None
                if content is None:
                    continue
                info = zipfile.ZipInfo(member.name.removeprefix("./"), _time_of(member.mtime))
                info.compress_type = kind
                info.external_attr = 0o100644 << 16
                info.file_size = member.size
                with out.open(info, "w", force_zip64=member.size >= 1 << 31) as target:
                    while data := content.read(_CHUNK):
                        target.write(data)
    except tarfile.TarError as error:
        raise WorkError(f"the files could not be packed: {error}") from error


def _time_of(seconds: float) -> tuple[int, int, int, int, int, int]:
    import time

    try:
        found = time.gmtime(seconds)[:6]
    except (OverflowError, ValueError, OSError):
        return _OLDEST
    return (found[0], *found[1:]) if 1980 <= found[0] <= 2107 else _OLDEST


def _type_of(path: str) -> str:
    import mimetypes

    return mimetypes.guess_type(path)[0] or "application/octet-stream"


# Download -------------------------------------------------------------------------------------------------------------


async def _download(frame: Frame, stores: Stores, plan: DownloadPlan, ref: str) -> None:
    log = frame.log
    chosen = _choose(frame, plan, await stores.artifacts())
    if chosen:
        log.say("Preparing to download the following artifacts:")
        for each in chosen:
            log.say(f"- {each.name} (ID: {each.id}, Size: {each.size}, Expected Digest: sha256:{each.digest})")
    for each in chosen:
        known = Known(each.id, each.name, each.size)
        target = target_of(plan, known, len(chosen), ref)
        async with _room(stores, "opened-") as folder:
            await asyncio.to_thread(stores.unpack_artifact, each, folder)
            await asyncio.to_thread(_plain_modes, folder)
            frame.job.touched = True
            await place_tree(frame.job.session, folder, target, empty=False)
        log.say(f"Artifact {each.name} was written to {target}")
    log.say(f"Total of {len(chosen)} artifact(s) downloaded")
    frame.outputs["download-path"] = plan.path
    log.say("Download artifact has finished successfully")


def _choose(frame: Frame, plan: DownloadPlan, known: list[StoredArtifact]) -> list[StoredArtifact]:
    log = frame.log
    if plan.name:
        log.say("Downloading single artifact")
        found = [each for each in known if each.name == plan.name][:1]
        if not found:
            raise WorkError(f"Artifact not found for name: {plan.name}")
        return found
    if plan.ids:
        log.say("Downloading artifacts by ID")
        found = [each for each in known if each.id in plan.ids]
        missing = sorted(set(plan.ids) - {each.id for each in found})
        if not found:
            raise WorkError("None of the provided artifact IDs were found")
        if missing:
            log.issue("warning", f"Could not find the following artifact IDs: {', '.join(map(str, missing))}")
        return found
    if plan.pattern:
        log.say(f"Filtering artifacts by pattern '{plan.pattern}'")
        wanted = read_part(plan.pattern)
        return [each for each in known if _fits(wanted, each.name)]
    log.say("No input name, artifact-ids or pattern filtered specified, downloading all artifacts")
    if not plan.merge:
        log.say("An extra directory with the artifact name will be created for each download")
    return known


def _fits(wanted: object, name: str) -> bool:
    import re

    if isinstance(wanted, str):
        return wanted == name
    if isinstance(wanted, re.Pattern):
        return wanted.fullmatch(name) is not None and not name.startswith(".")
    return not name.startswith(".")


def _plain_modes(folder: str) -> None:
    """Modes of an artifact are not kept by the original; its files are plain ones."""
    os.chmod(folder, 0o755)  # noqa: PTH101 - a name
    for place, folders, files in os.walk(folder):
        for name in folders:
            os.chmod(f"{place}/{name}", 0o755)  # noqa: PTH101 - a name
        for name in files:
            os.chmod(f"{place}/{name}", 0o644)  # noqa: PTH101 - a name
