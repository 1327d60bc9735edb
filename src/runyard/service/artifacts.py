"""Artifacts as facts and bytes: create, finish, list, read, delete; one name space a run (runner-v2 16.4).

A name is taken by its reservation, in one transaction, so of two jobs exactly one has it. What was never finished is
never listed. An artifact that a later attempt replaces stays until its successor is whole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runyard.service.artifact_rules import MOST_IN_JOB, Artifact, check_name, expiry, may_create
from runyard.service.asgi import Refusal
from runyard.service.caches import named
from runyard.service.index import fresh_id, row_or_none

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from runyard.service.index import Index
    from runyard.service.ports import Blob, BlobStore, Clock
    from runyard.service.tenant import Tenant

_RUN = "repository = ? AND run = ?"


class Artifacts:
    """The artifacts of all runs of one index. `finished` hears of each that is whole, with the file of its bytes."""

    def __init__(
        self,
        index: Index,
        blobs: BlobStore,
        clock: Clock,
        *,
        finished: Callable[[Artifact, str], str | None] | None = None,
    ) -> None:
        self._index = index
        self._blobs = blobs
        self._clock = clock
        self._finished = finished
        self.notes: list[str] = []

    async def create(
        self, tenant: Tenant, name: str, *, mime: str = "application/zip", expires: float | None = None
    ) -> Artifact:
        """Take a name. Refuses one that another has, naming the owner's job."""
        check_name(name)
        return await asyncio.to_thread(self._create, tenant, name, mime, expires)

    async def uploaded(self, upload: str, blob: Blob) -> None:
        """The bytes of a reservation are whole."""
        await asyncio.to_thread(self._uploaded, upload, blob)

    async def finish(self, tenant: Tenant, name: str, size: int, digest: str = "") -> Artifact:
        """Make it visible. Refuses where size or digest differ from what was uploaded."""
        artifact, dropped = await asyncio.to_thread(self._finish, tenant, name, size, digest)
        await self._remove(dropped)
        if self._finished is not None and artifact.digest is not None:
            path = self._blobs.path(artifact.digest)
            problem = await asyncio.to_thread(self._finished, artifact, path) if path is not None else None
            if problem is not None:
                self.notes.append(problem)
        return artifact

    async def find(self, tenant: Tenant, *, name: str | None = None, number: int | None = None) -> list[Artifact]:
        """The finished ones of this run, newest first; those of a name or id where one is given."""
        found = await asyncio.to_thread(self._list, tenant)
        return [each for each in found if (name is None or each.name == name) and (number is None or each.id == number)]

    async def read(self, tenant: Tenant, name: str) -> tuple[Artifact, str]:
        """A finished artifact of this run with the file of its bytes. Refuses an unknown name."""
        found = await self.find(tenant, name=name)
        path = self._blobs.path(found[0].digest) if found and found[0].digest is not None else None
        if path is None:
            raise Refusal("not_found", f"this run has no artifact '{name}'")
        return found[0], path

    async def delete(self, tenant: Tenant, name: str) -> Artifact:
        """Remove an artifact of this run. Refuses an unknown name."""
        artifact, dropped = await asyncio.to_thread(self._delete, tenant, name)
        await self._remove(dropped)
        return artifact

    async def forget_expired(self) -> int:
        """Remove what has expired in any run; returns how many. Unfinished ones go after a day."""
        count, dropped = await asyncio.to_thread(self._expired)
        await self._remove(dropped)
        return count

    async def _remove(self, digests: list[str]) -> None:
        for digest in digests:
            await self._blobs.remove(digest)

    # In a thread ------------------------------------------------------------------------------------------------------

    def _create(self, tenant: Tenant, name: str, mime: str, expires: float | None) -> Artifact:
        now = self._clock()
        where = (tenant.repository, tenant.run_id)
        with self._index.write() as rows:
            query = f"SELECT * FROM artifacts WHERE {_RUN} AND name = ? ORDER BY id DESC LIMIT 1"
            holder = _artifact(row_or_none(rows.execute(query, (*where, name))))
            may_create(tenant, holder)
            if holder is not None and not holder.finished and holder.digest is None:
                rows.execute("DELETE FROM artifacts WHERE id = ?", (holder.id,))
            query = f"SELECT COUNT(*) FROM artifacts WHERE {_RUN} AND job = ?"
            (count,) = rows.execute(query, (*where, tenant.job_id)).fetchone()
            if count >= MOST_IN_JOB:
                raise Refusal("resource_exhausted", f"a job has at most {MOST_IN_JOB} artifacts")
            made = {
                "plan": tenant.plan_id,
                "job": tenant.job_id,
                "job_name": tenant.job_name,
                "attempt": tenant.attempt,
                "name": name,
                "upload": fresh_id(),
                "mime": mime,
                "created": now,
                "expires": expiry(now, expires),
            }
            columns = ", ".join(("repository", "run", *made))
            marks = ", ".join("?" * (len(made) + 2))
            done = rows.execute(f"INSERT INTO artifacts ({columns}) VALUES ({marks})", (*where, *made.values()))
            return Artifact(id=int(done.lastrowid or 0), **made)  # type: ignore[arg-type]  # one dict of several types

    def _uploaded(self, upload: str, blob: Blob) -> None:
        with self._index.write() as rows:
            query = "UPDATE artifacts SET digest = ?, size = ? WHERE upload = ? AND NOT finished"
            if rows.execute(query, (blob.digest, blob.size, upload)).rowcount != 1:
                raise Refusal("not_found", "this upload was never announced, or it is finished")

    def _finish(self, tenant: Tenant, name: str, size: int, digest: str) -> tuple[Artifact, list[str]]:
        with self._index.write() as rows:
            query = f"SELECT * FROM artifacts WHERE {_RUN} AND name = ? AND job = ? AND attempt = ? AND NOT finished"
            given = (tenant.repository, tenant.run_id, name, tenant.job_id, tenant.attempt)
            found = _artifact(row_or_none(rows.execute(f"{query} ORDER BY id DESC LIMIT 1", given)))
            if found is None:
                raise Refusal("not_found", f"this job has not begun an artifact '{name}'")
            if found.digest is None or self._blobs.path(found.digest) is None:
                raise Refusal("invalid_argument", f"nothing whole was uploaded for '{name}'")
            if found.size != size:
                raise Refusal("invalid_argument", f"{found.size} bytes were uploaded, and {size} are announced")
            if digest and digest.lower().removeprefix("sha256:") != found.digest:
                raise Refusal("invalid_argument", f"sha256:{found.digest} was uploaded, and {digest} is announced")
            rows.execute("UPDATE artifacts SET finished = 1 WHERE id = ?", (found.id,))
            query = f"SELECT * FROM artifacts WHERE {_RUN} AND name = ? AND id <> ?"
            older = rows.execute(query, (tenant.repository, tenant.run_id, name, found.id)).fetchall()
            rows.executemany("DELETE FROM artifacts WHERE id = ?", [(row["id"],) for row in older])
            return found, _unnamed(rows, older)

    def _list(self, tenant: Tenant) -> list[Artifact]:
        with self._index.read() as rows:
            query = f"SELECT * FROM artifacts WHERE {_RUN} AND finished AND expires > ? ORDER BY id DESC"
            found = rows.execute(query, (tenant.repository, tenant.run_id, self._clock())).fetchall()
        return [artifact for row in found if (artifact := _artifact(row)) is not None]

    def _delete(self, tenant: Tenant, name: str) -> tuple[Artifact, list[str]]:
        with self._index.write() as rows:
            query = f"SELECT * FROM artifacts WHERE {_RUN} AND name = ? AND finished"
            row = row_or_none(rows.execute(query, (tenant.repository, tenant.run_id, name)))
            artifact = _artifact(row)
            if row is None or artifact is None:
                raise Refusal("not_found", f"this run has no artifact '{name}'")
            rows.execute("DELETE FROM artifacts WHERE id = ?", (artifact.id,))
            return artifact, _unnamed(rows, [row])

    def _expired(self) -> tuple[int, list[str]]:
        now = self._clock()
        with self._index.write() as rows:
            query = "SELECT * FROM artifacts WHERE expires <= ? OR (NOT finished AND created <= ?)"
            gone = rows.execute(query, (now, now - 24 * 3600.0)).fetchall()
            rows.executemany("DELETE FROM artifacts WHERE id = ?", [(row["id"],) for row in gone])
            rows.execute("DELETE FROM uploads WHERE created <= ?", (now - 24 * 3600.0,))
            return len(gone), _unnamed(rows, gone)


def _unnamed(rows: sqlite3.Connection, gone: list[sqlite3.Row]) -> list[str]:
    return [digest for digest in {row["digest"] for row in gone if row["digest"]} if not named(rows, digest)]


def _artifact(row: sqlite3.Row | None) -> Artifact | None:
    if row is None:
        return None
    values = {name: row[name] for name in Artifact.__struct_fields__}
    return Artifact(**{**values, "finished": bool(values["finished"])})
