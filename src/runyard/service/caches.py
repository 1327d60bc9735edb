"""Caches as facts and bytes: look up, reserve, finish, make room. The HTTP forms of it are in `cache_api.py`.

An entry is made in one transaction from a blob that is whole, so there is never half of one (field case F22). Several
jobs may reserve a key; the first that finishes has it, and the others are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.service.asgi import Refusal
from runyard.service.cache_rules import LARGEST_ENTRY, QUOTA, Entry, check_keys, choose, to_evict
from runyard.service.index import fresh_id, row_or_none

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from runyard.service.index import Index
    from runyard.service.ports import Blob, BlobStore, Clock
    from runyard.service.tenant import Tenant

_FORGET_MISSES_S: Final = 7 * 24 * 3600.0


class CacheCounts(msgspec.Struct):
    """What one job's lookups came to. `saved_s` is what making the entries took the jobs that saved them."""

    lookups: int = 0
    hits: int = 0
    saves: int = 0
    saved_s: float = 0.0

    def line(self) -> str:
        """One sentence for a log; "" when there was no lookup."""
        if not self.lookups:
            return ""
        rate = f"{self.hits} of {self.lookups} lookups hit"
        return f"Cache: {rate}, about {self.saved_s:.0f} s saved" if self.saved_s >= 1 else f"Cache: {rate}"


class Upload(msgspec.Struct, frozen=True):
    """A reservation. `number` is its name in the older protocol."""

    id: str
    number: int
    key: str
    version: str


class Caches:
    """The caches of all repositories of one index and blob store."""

    def __init__(
        self, index: Index, blobs: BlobStore, clock: Clock, *, quota: int = QUOTA, largest: int = LARGEST_ENTRY
    ) -> None:
        self._index = index
        self._blobs = blobs
        self._clock = clock
        self._quota = quota
        self.largest = min(largest, quota)
        self.counts = CacheCounts()

    async def find(self, tenant: Tenant, keys: Sequence[str], version: str) -> tuple[Entry, str] | None:
        """The entry for a key and its restore keys with the file of its bytes, None for a miss. Refuses bad keys."""
        check_keys(keys)
        found = await asyncio.to_thread(self._find, tenant, list(keys), version)
        self.counts.lookups += 1
        if found is not None:
            self.counts.hits += 1
            self.counts.saved_s += found[0].cost
        return found

    async def reserve(self, tenant: Tenant, key: str, version: str) -> Upload:
        """A place to upload to. Refuses a key that exists with this version, and a job that may not write."""
        check_keys([key])
        return await asyncio.to_thread(self._reserve, tenant, key, version)

    async def uploaded(self, upload: str, blob: Blob) -> None:
        """The bytes of a reservation are whole."""
        await asyncio.to_thread(self._uploaded, upload, blob)

    async def owned(self, tenant: Tenant, number: int) -> Upload:
        """A reservation of this job by its number. Refuses any other."""
        row = await asyncio.to_thread(self._owned, tenant, number)
        if row is None:
            raise Refusal("not_found", f"this job has no reservation {number}")
        return row

    async def finish(self, tenant: Tenant, key: str, version: str, size: int) -> Entry:
        """Make the entry of this job's reservation. Refuses a wrong size and a key that another job finished first."""
        entry, blobs = await asyncio.to_thread(self._finish, tenant, key, version, size)
        self.counts.saves += 1
        for digest in blobs:
            await self._blobs.remove(digest)
        return entry

    # In a thread ------------------------------------------------------------------------------------------------------

    def _find(self, tenant: Tenant, keys: list[str], version: str) -> tuple[Entry, str] | None:
        now = self._clock()
        with self._index.write() as rows:
            while True:
                entry = choose(
                    _entries(rows, tenant.repository, version), tenant.read_scopes, keys[0], keys[1:], version
                )
                if entry is None:
                    break
                path = _file(self._blobs, entry)
                if path is not None:
                    rows.execute("UPDATE entries SET used = ? WHERE id = ?", (now, entry.id))
                    if entry.key != keys[0]:
                        self._missed(rows, tenant, keys[0], version, now)
                    return entry, path
                rows.execute("DELETE FROM entries WHERE id = ?", (entry.id,))
            self._missed(rows, tenant, keys[0], version, now)
        return None

    def _missed(self, rows: sqlite3.Connection, tenant: Tenant, key: str, version: str, now: float) -> None:
        rows.execute("DELETE FROM misses WHERE at < ?", (now - _FORGET_MISSES_S,))
        rows.execute(
            "INSERT OR IGNORE INTO misses VALUES (?, ?, ?, ?, ?)",
            (tenant.repository, _owner(tenant), key, version, now),
        )

    def _reserve(self, tenant: Tenant, key: str, version: str) -> Upload:
        scope = tenant.write_scope
        if scope is None:
            raise Refusal("permission_denied", "this job may read caches and not save any")
        with self._index.write() as rows:
            if _exists(rows, tenant, scope, key, version):
                raise Refusal("already_exists", f"a cache with the key {key} exists already; a cache never changes")
            (number,) = rows.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM uploads").fetchone()
            upload = Upload(fresh_id(), number, key, version)
            rows.execute(
                "INSERT INTO uploads (id, kind, repository, owner, scope, key, version, created, number)"
                " VALUES (?, 'cache', ?, ?, ?, ?, ?, ?, ?)",
                (upload.id, tenant.repository, _owner(tenant), scope, key, version, self._clock(), number),
            )
        return upload

    def _uploaded(self, upload: str, blob: Blob) -> None:
        with self._index.write() as rows:
            done = rows.execute(
                "UPDATE uploads SET digest = ?, size = ? WHERE id = ?", (blob.digest, blob.size, upload)
            )
            if done.rowcount != 1:
                raise Refusal("not_found", "this upload was never reserved, or it is finished")

    def _owned(self, tenant: Tenant, number: int) -> Upload | None:
        with self._index.read() as rows:
            row = row_or_none(
                rows.execute("SELECT * FROM uploads WHERE number = ? AND owner = ?", (number, _owner(tenant)))
            )
        return None if row is None else Upload(row["id"], row["number"], row["key"], row["version"])

    def _finish(self, tenant: Tenant, key: str, version: str, size: int) -> tuple[Entry, list[str]]:
        now = self._clock()
        with self._index.write() as rows:
            row = row_or_none(
                rows.execute(
                    "SELECT * FROM uploads WHERE repository = ? AND owner = ? AND key = ? AND version = ?"
                    " ORDER BY digest IS NULL, created DESC, number DESC LIMIT 1",
                    (tenant.repository, _owner(tenant), key, version),
                )
            )
            if row is None:
                raise Refusal("not_found", f"this job has no reservation of the key {key}")
            if row["digest"] is None:
                raise Refusal("invalid_argument", "nothing whole was uploaded for this reservation")
            if row["size"] != size:
                raise Refusal("invalid_argument", f"{row['size']} bytes were uploaded, and {size} are announced")
            if _exists(rows, tenant, row["scope"], key, version):
                raise Refusal("already_exists", f"another job saved the key {key} first; a cache never changes")
            cost = _cost(rows, tenant, key, version, now)
            made = rows.execute(
                "INSERT INTO entries (repository, scope, key, version, digest, size, created, used, cost)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (tenant.repository, row["scope"], key, version, row["digest"], size, now, now, cost),
            )
            entry = Entry(
                id=int(made.lastrowid or 0),
                scope=row["scope"],
                key=key,
                version=version,
                digest=row["digest"],
                size=size,
                created=now,
                used=now,
                cost=cost,
            )
            if _file(self._blobs, entry) is None:
                raise Refusal("unavailable", "the uploaded bytes were removed meanwhile")
            rows.execute("DELETE FROM uploads WHERE id = ?", (row["id"],))
            return entry, self._make_room(rows, tenant.repository, now)

    def _make_room(self, rows: sqlite3.Connection, repository: str, now: float) -> list[str]:
        """Rows of evicted entries go with this transaction; the digests that nothing names any more are returned."""
        gone = to_evict(_entries(rows, repository, None), self._quota, now)
        rows.executemany("DELETE FROM entries WHERE id = ?", [(entry.id,) for entry in gone])
        return [digest for digest in {entry.digest for entry in gone} if not named(rows, digest)]


def named(rows: sqlite3.Connection, digest: str) -> bool:
    """Whether any row still names a blob."""
    queries = ("SELECT 1 FROM entries", "SELECT 1 FROM uploads", "SELECT 1 FROM artifacts")
    return any(rows.execute(f"{query} WHERE digest = ? LIMIT 1", (digest,)).fetchone() for query in queries)


def _owner(tenant: Tenant) -> str:
    return f"{tenant.plan_id}:{tenant.job_id}"


def _exists(rows: sqlite3.Connection, tenant: Tenant, scope: str, key: str, version: str) -> bool:
    query = "SELECT 1 FROM entries WHERE repository = ? AND scope = ? AND key = ? AND version = ?"
    return rows.execute(query, (tenant.repository, scope, key, version)).fetchone() is not None


def _cost(rows: sqlite3.Connection, tenant: Tenant, key: str, version: str, now: float) -> float:
    """Seconds from this job's miss of the key to its save."""
    where = "WHERE repository = ? AND owner = ? AND key = ? AND version = ?"
    given = (tenant.repository, _owner(tenant), key, version)
    row = row_or_none(rows.execute(f"SELECT at FROM misses {where}", given))
    rows.execute(f"DELETE FROM misses {where}", given)
    return 0.0 if row is None else max(0.0, now - row["at"])


def _entries(rows: sqlite3.Connection, repository: str, version: str | None) -> Iterable[Entry]:
    query = "SELECT * FROM entries WHERE repository = ?" + ("" if version is None else " AND version = ?")
    given = (repository,) if version is None else (repository, version)
    return [
        Entry(**{name: row[name] for name in Entry.__struct_fields__}) for row in rows.execute(query, given).fetchall()
    ]


def _file(blobs: BlobStore, entry: Entry) -> str | None:
    """The file of an entry's bytes where all of it is there."""
    path = blobs.path(entry.digest)
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size == entry.size:  # noqa: PTH116 - a name
                return path
    return None
