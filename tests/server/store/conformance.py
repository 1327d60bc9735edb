"""What every store does: the suite for the double, SQLite and PostgreSQL.

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_my_store(case, tmp_path): run(case, lambda: opened(tmp_path))

A case gets an open, empty store. No case needs a certain clock: rows carry the times they are asked by.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.dispatch.records import Job, JobClass, Lease, Stride, Worker
from runyard.run import Group
from runyard.server.store.port import ConflictError, StoreBusyError, Transaction
from runyard.server.store.rows import (
    Attempt,
    Audit,
    EventRow,
    JobBody,
    MaskRow,
    OrderRow,
    Project,
    ResultRow,
    Run,
    SecretRow,
    Token,
    Trigger,
    VaultRow,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from runyard.server.store.port import Store

    Case = Callable[[Store], Awaitable[None]]

T = 1_900_000_000_000_000_000
DEADLINE_S = 20
replace = msgspec.structs.replace


def run(case: Case, opened: Callable[[], AbstractAsyncContextManager[Store]]) -> None:
    """One case on a store of its own."""

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), opened() as store:
            await case(store)

    asyncio.run(main())


def job_row(number: int, **more: Any) -> Job:
    of = more.pop("of", JobClass(repository=more.pop("repository", "acme/app"), labels=frozenset({"linux"})))
    return Job(
        id=f"j{number}",
        run_id=more.pop("run_id", "1.1"),
        key=f"job{number}",
        sequence=number,
        created_ns=T,
        of=of,
        class_id=of.id,
        rank=more.pop("rank", T + number),
        **more,
    )


def body_row(job: Job, **more: Any) -> JobBody:
    return JobBody(job=job.id, run_id=job.run_id, key=job.key, name=job.key.title(), path=job.key, **more)


def lease_row(number: int, worker: str = "w1", **more: Any) -> Lease:
    return Lease(
        id=f"lease{number}", kind="dialout", worker=worker, worker_name=worker, since_ns=T, until_ns=T + 120, **more
    )


def run_row(number: int, attempt: int = 1, **more: Any) -> Run:
    return Run(
        id=f"{number}.{attempt}",
        number=number,
        attempt=attempt,
        run_number=number,
        repository=more.pop("repository", "acme/app"),
        workflow="ci.yml",
        name="CI",
        event="push",
        ref="refs/heads/main",
        sha="1" * 40,
        trust="trusted",
        trigger="t",
        created_ns=T,
        plan_digest="p",
        context_digest="c",
        state=b"state",
        **more,
    )


def add(tx: Transaction, *jobs: Job) -> None:
    for job in jobs:
        tx.insert_job(job, body_row(job))


def end_job(tx: Transaction, job: Job) -> None:
    tx.save_job(job, replace(job, phase="done"))


def hand_out(tx: Transaction, attempt: Attempt) -> None:
    tx.insert_attempt(attempt)


# --- the door


async def what_is_committed_stays_and_what_raised_did_not_happen(store: Store) -> None:
    def write(tx: Transaction, name: str) -> str:
        tx.save_project(Project(repository=name, url="https://git.example/x", created_ns=T))
        found = tx.project(name)
        assert found is not None, "a transaction sees what it wrote"
        return found.repository

    def fail(tx: Transaction) -> None:
        write(tx, "acme/bad")
        raise LookupError("no")

    assert await store.transact(write, "acme/app") == "acme/app"
    with pytest.raises(LookupError):
        await store.transact(fail)
    assert [row.repository for row in await store.transact(lambda tx: tx.projects())] == ["acme/app"]


async def a_conflict_begins_anew_and_gives_up_in_the_end(store: Store) -> None:
    tries: list[int] = []

    def third_time(tx: Transaction) -> int:
        tries.append(tx.next_number("tries"))
        if len(tries) < 3:
            raise ConflictError
        return tries[-1]

    def never(tx: Transaction) -> None:
        tx.save_project(Project(repository="acme/never", url="", created_ns=T))
        raise ConflictError

    assert await store.transact(third_time) >= 1
    assert len(tries) == 3
    with pytest.raises(StoreBusyError):
        await store.transact(never)
    assert await store.transact(lambda tx: tx.project("acme/never")) is None


async def many_transactions_at_once_lose_nothing(store: Store) -> None:
    def grow(tx: Transaction) -> int:
        return tx.next_number("shared")

    numbers = await asyncio.gather(*(store.transact(grow) for _ in range(60)))
    assert len(set(numbers)) == 60
    assert await store.transact(grow) > max(numbers)


async def topics_come_after_the_commit_once_and_never_after_an_abort(store: Store) -> None:
    heard: list[frozenset[str]] = []
    arrived = asyncio.Event()

    def hear(topics: frozenset[str]) -> None:
        heard.append(topics)
        arrived.set()

    def speak(tx: Transaction, *, fails: bool) -> None:
        tx.wake("class:lost" if fails else "class:a")
        if fails:
            raise LookupError("no")
        tx.wake("job:b")
        tx.wake("job:b")

    end = store.listen(hear)
    with pytest.raises(LookupError):
        await store.transact(speak, fails=True)
    await store.transact(speak, fails=False)
    await arrived.wait()
    assert {topic for topics in heard for topic in topics} == {"class:a", "job:b"}
    end()
    heard.clear()
    await store.transact(speak, fails=False)
    await asyncio.sleep(0)
    assert heard == []


async def the_clock_stands_still_in_a_transaction(store: Store) -> None:
    def look(tx: Transaction) -> tuple[int, int]:
        return tx.now_ns(), tx.now_ns()

    first, again = await store.transact(look)
    assert first == again
    assert first > 1_600_000_000_000_000_000, "nanoseconds UTC"


# --- projects, triggers, runs


async def a_trigger_happens_once(store: Store) -> None:
    row = Trigger(key="push:1", repository="acme/app", event="push", created_ns=T)
    assert await store.transact(lambda tx: tx.insert_trigger(row)) is True
    await store.transact(lambda tx: tx.set_trigger_runs("push:1", ("7.1", "8.1")))
    assert await store.transact(lambda tx: tx.insert_trigger(replace(row, event="other"))) is False
    assert await store.transact(lambda tx: tx.trigger("push:1")) == replace(row, runs=("7.1", "8.1"))


async def projects_are_kept_whole(store: Store) -> None:
    row = Project(
        repository="acme/app",
        url="https://git.example/app",
        created_ns=T,
        max_concurrent=3,
        weight=2.0,
        webhook_sealed=b"\x00\xff",
        settings=b"{}",
    )
    await store.transact(lambda tx: tx.save_project(row))
    assert await store.transact(lambda tx: tx.project("acme/app")) == row
    await store.transact(lambda tx: tx.save_project(replace(row, max_concurrent=None)))
    assert await store.transact(lambda tx: tx.projects()) == [replace(row, max_concurrent=None)]
    assert await store.transact(lambda tx: tx.delete_project("acme/app"))
    assert not await store.transact(lambda tx: tx.delete_project("acme/app"))


async def blobs_are_kept_by_digest(store: Store) -> None:
    await store.transact(lambda tx: tx.put_blob("d1", b"\x00one"))
    await store.transact(lambda tx: tx.put_blob("d1", b"\x00one"))
    assert await store.transact(lambda tx: tx.blob("d1")) == b"\x00one"
    with pytest.raises(KeyError):
        await store.transact(lambda tx: tx.blob("d2"))


async def a_run_is_saved_only_over_what_was_read(store: Store) -> None:
    row = run_row(1, priority=3, holds=frozenset({"approval"}), group="g", started_ns=T, reason="r", reason_code="lost")
    await store.transact(lambda tx: tx.insert_run(row))
    saved = await store.transact(lambda tx: tx.save_run(row, replace(row, phase="running", state=b"2")))
    assert saved.version == row.version + 1
    assert await store.transact(lambda tx: tx.run("1.1")) == saved
    with pytest.raises(StoreBusyError):
        await store.transact(lambda tx: tx.save_run(row, replace(row, phase="done")))
    assert await store.transact(lambda tx: tx.run("1.1")) == saved


async def runs_are_listed_newest_first(store: Store) -> None:
    rows = [run_row(1), run_row(2, phase="done"), run_row(3, repository="acme/lib"), run_row(2, 2)]

    def write(tx: Transaction) -> None:
        for row in rows:
            tx.insert_run(row)

    await store.transact(write)
    listed = await store.transact(lambda tx: tx.runs())
    assert [row.id for row in listed] == ["3.1", "2.2", "2.1", "1.1"]
    assert {row.state for row in listed} == {b""}
    assert [row.id for row in await store.transact(lambda tx: tx.runs("acme/app", before=2))] == ["1.1"]
    assert [row.id for row in await store.transact(lambda tx: tx.runs(limit=1))] == ["3.1"]
    newest = await store.transact(lambda tx: tx.newest_run(2))
    assert newest == rows[3]
    unfinished = await store.transact(lambda tx: tx.unfinished_runs(after=1))
    assert [row.id for row in unfinished] == ["2.2", "3.1"]


async def a_concurrency_group_is_replaced_over_what_was_read(store: Store) -> None:
    held = Group("run:1", ("run:2",))
    assert await store.transact(lambda tx: tx.group("acme/app", "deploy")) == Group()
    await store.transact(lambda tx: tx.save_group("acme/app", "deploy", Group(), held))
    assert await store.transact(lambda tx: tx.group("acme/app", "deploy")) == held
    assert await store.transact(lambda tx: tx.group("acme/lib", "deploy")) == Group()
    with pytest.raises(StoreBusyError):
        await store.transact(lambda tx: tx.save_group("acme/app", "deploy", Group(), Group("run:3")))
    await store.transact(lambda tx: tx.save_group("acme/app", "deploy", held, Group()))
    assert await store.transact(lambda tx: tx.group("acme/app", "deploy")) == Group()


# --- jobs


async def a_job_comes_back_as_it_was(store: Store) -> None:
    of = JobClass(
        repository="acme/app",
        platform="linux/arm64",
        labels=frozenset({"linux", "gpu"}),
        requires=frozenset({"containers"}),
        pool="big",
        group="builders",
        trust="untrusted",
        kind="publish",
        disk_mb=512,
    )
    job = job_row(
        1,
        of=of,
        phase="cancelling",
        holds=frozenset({"approval", "vault"}),
        priority=-2,
        attempt=3,
        lost=1,
        unconfirmed=2,
        avoid=frozenset({"w1", "w2"}),
        queued_ns=T,
        lease=lease_row(1, confirmed=True),
        reserved_for="big",
        due_ns=T + 5,
        cancel_until_ns=T + 7,
        cancel_forced=True,
        order_number=4,
        seen=3,
        conclusion="failure",
        reason="gone",
        reason_code="lost",
        result="ab",
        ended_ns=T + 9,
    )
    body = body_row(job, spec=b"spec", secrets=b"levels", matrix=b"{}", why=b"w", groups=(b"g1", b"g2"), joined=1)
    await store.transact(lambda tx: tx.insert_job(job, body))
    assert await store.transact(lambda tx: tx.job("j1")) == job
    assert await store.transact(lambda tx: tx.body("j1")) == body
    assert await store.transact(lambda tx: tx.job_of_key("1.1", "job1")) == job
    assert await store.transact(lambda tx: tx.job("j2")) is None
    assert await store.transact(lambda tx: tx.body("j2")) is None
    await store.transact(lambda tx: tx.save_body(replace(body, joined=2)))
    assert await store.transact(lambda tx: tx.bodies_of_run("1.1")) == [replace(body, joined=2)]
    assert await store.transact(lambda tx: tx.jobs_of_run("1.1")) == [job]
    assert await store.transact(lambda tx: tx.jobs_of_run("2.1")) == []


async def a_job_is_saved_only_over_its_fence(store: Store) -> None:
    job = job_row(1, phase="queued")
    leased = replace(job, phase="leased", attempt=1, lease=lease_row(1), due_ns=T)
    await store.transact(add, job)
    await store.transact(lambda tx: tx.save_job(job, leased))
    extended = replace(leased, lease=lease_row(1, confirmed=True), due_ns=T + 9)
    await store.transact(lambda tx: tx.save_job(leased, extended))
    for stale in (
        job,
        replace(leased, attempt=2),
        replace(leased, lease=lease_row(2)),
        replace(leased, order_number=1),
    ):
        with pytest.raises(StoreBusyError):
            await store.transact(end_job, stale)
    assert await store.transact(lambda tx: tx.job("j1")) == extended


async def heads_are_the_first_of_each_class(store: Store) -> None:
    arm = JobClass(repository="acme/app", platform="linux/arm64")
    pooled = JobClass(repository="acme/app", pool="big")
    jobs = [
        job_row(1, phase="queued", rank=5),
        job_row(2, phase="queued", rank=3),
        job_row(3, phase="queued", rank=3),
        job_row(4, phase="waiting", rank=1),
        job_row(5, phase="running", rank=1, lease=lease_row(5)),
        job_row(6, phase="queued", of=arm, rank=9),
        job_row(7, phase="reserved", of=pooled, reserved_for="big"),
        job_row(8, phase="done", of=JobClass(repository="acme/old")),
    ]
    await store.transact(add, *jobs)
    plain = jobs[0].class_id

    def classes(tx: Transaction, *pools: str) -> set[str]:
        return {row.id for row in tx.open_classes(pools)}

    assert await store.transact(classes) == {plain, arm.id}
    assert await store.transact(classes, "big") == {plain, arm.id, pooled.id}
    assert await store.transact(classes, "small") == {plain, arm.id}
    found = await store.transact(lambda tx: tx.heads([plain, arm.id, pooled.id], [], 2))
    assert {job.id for job in found} == {"j2", "j3", "j6"}
    assert [job.id for job in found if job.class_id == plain] == ["j2", "j3"]
    found = await store.transact(lambda tx: tx.heads([pooled.id], ["big"], 2))
    assert [job.id for job in found] == ["j7"]
    assert await store.transact(lambda tx: tx.heads([], ["big"], 2)) == []


async def what_is_due_comes_first_things_first(store: Store) -> None:
    await store.transact(
        add,
        job_row(1, phase="leased", due_ns=T + 3, lease=lease_row(1)),
        job_row(2, phase="running", due_ns=T + 1, lease=lease_row(2)),
        job_row(3, phase="queued"),
        job_row(4, phase="running", due_ns=T + 9, lease=lease_row(4)),
    )
    assert [job.id for job in await store.transact(lambda tx: tx.due(T + 3))] == ["j2", "j1"]
    assert [job.id for job in await store.transact(lambda tx: tx.due(T + 3, limit=1))] == ["j2"]
    assert await store.transact(lambda tx: tx.due(T)) == []


async def the_queue_is_listed_and_counted(store: Store) -> None:
    grouped = JobClass(repository="acme/lib", pool="big", group="builders")
    await store.transact(
        add,
        job_row(1, phase="waiting", holds=frozenset({"approval"})),
        job_row(2, phase="waiting", holds=frozenset({"vault", "approval"}), repository="acme/lib"),
        job_row(3, phase="queued"),
        job_row(4, phase="leased", of=grouped, lease=lease_row(4)),
        job_row(5, phase="running", of=grouped, lease=lease_row(5, "w2")),
        job_row(6, phase="cancelling", lease=lease_row(6)),
        job_row(7, phase="done"),
    )

    def look(tx: Transaction) -> None:
        assert [job.id for job in tx.jobs_in(("waiting", "queued"))] == ["j1", "j2", "j3"]
        assert [job.id for job in tx.jobs_in(("waiting", "queued"), after=1, limit=1)] == ["j2"]
        assert [job.id for job in tx.held_jobs("approval")] == ["j1", "j2"]
        assert [job.id for job in tx.held_jobs("vault", "acme/lib")] == ["j2"]
        assert tx.held_jobs("vault", "acme/app") == []
        assert [job.id for job in tx.jobs_of_worker("w1")] == ["j4", "j6"]
        assert tx.phases() == {"waiting": 2, "queued": 1, "leased": 1, "running": 1, "cancelling": 1}
        counts = tx.counts()
        assert counts.total == 3
        assert counts.by_repository == {"acme/lib": 2, "acme/app": 1}
        assert counts.by_group == {"builders": 2}
        assert counts.by_worker == {"w1": 2, "w2": 1}
        assert counts.by_pool == {"big": 2}

    await store.transact(look)


async def strides_are_kept(store: Store) -> None:
    row = Stride("acme/app", 2.5, 0.5)
    await store.transact(lambda tx: tx.save_stride(row))
    assert await store.transact(lambda tx: tx.strides(["acme/app", "acme/lib"])) == {"acme/app": row}
    await store.transact(lambda tx: tx.save_stride(replace(row, at=3.5)))
    assert await store.transact(lambda tx: tx.strides(["acme/app"])) == {"acme/app": replace(row, at=3.5)}
    assert await store.transact(lambda tx: tx.strides([])) == {}


async def a_claim_id_leads_to_one_hand_out(store: Store) -> None:
    first = Attempt(job="j1", number=1, lease="l", worker="w1", worker_name="one", claim="c1", granted_ns=T)
    await store.transact(lambda tx: tx.insert_attempt(first))
    for again in (replace(first, number=2), replace(first, claim="c2")):
        with pytest.raises(StoreBusyError):
            await store.transact(hand_out, again)
    second = replace(first, number=2, worker="w2")
    await store.transact(lambda tx: tx.insert_attempt(second))
    assert await store.transact(lambda tx: tx.attempt_of_claim("w1", "c1")) == first
    assert await store.transact(lambda tx: tx.attempt_of_claim("w1", "c2")) is None
    ended = replace(
        first, ended_ns=T + 1, ending="lost", reason="silent", events=4, confirmed_ns=T, platform="linux/arm64"
    )
    await store.transact(lambda tx: tx.save_attempt(ended))
    assert await store.transact(lambda tx: tx.attempts("j1")) == [ended, second]
    assert await store.transact(lambda tx: tx.attempt("j1", 1)) == ended
    assert await store.transact(lambda tx: tx.attempt("j1", 3)) is None


# --- execution


async def events_and_orders_are_numbered_by_attempt(store: Store) -> None:
    def write(tx: Transaction) -> None:
        tx.insert_events("j1", 1, [EventRow(0, b"a"), EventRow(1, b"b")])
        tx.insert_events("j1", 1, [EventRow(2, b"c")])
        tx.insert_events("j1", 2, [EventRow(0, b"x")])
        for number in (1, 2, 3):
            tx.insert_order("j1", 1, OrderRow(number, b"o%d" % number, T))

    await store.transact(write)
    assert await store.transact(lambda tx: tx.events("j1", 1)) == [
        EventRow(0, b"a"),
        EventRow(1, b"b"),
        EventRow(2, b"c"),
    ]
    assert await store.transact(lambda tx: tx.events("j1", 1, first=1, limit=1)) == [EventRow(1, b"b")]
    assert await store.transact(lambda tx: tx.events("j1", 2)) == [EventRow(0, b"x")]
    assert [row.number for row in await store.transact(lambda tx: tx.orders("j1", 1, 1))] == [2, 3]
    await store.transact(lambda tx: tx.delete_orders("j1", 1, 2))
    assert await store.transact(lambda tx: tx.orders("j1", 1, 0)) == [OrderRow(3, b"o3", T)]
    assert await store.transact(lambda tx: tx.orders("j1", 2, 0)) == []


async def a_job_has_one_result(store: Store) -> None:
    row = ResultRow("j1", 2, "digest", b"body", T)
    await store.transact(lambda tx: tx.insert_result(row))
    with pytest.raises(StoreBusyError):
        await store.transact(lambda tx: tx.insert_result(replace(row, attempt=3)))
    assert await store.transact(lambda tx: tx.result("j1")) == row
    assert await store.transact(lambda tx: tx.result("j2")) is None


async def masks_live_as_long_as_their_attempt(store: Store) -> None:
    row = MaskRow("j1", 1, b"\x01sealed", 2)
    await store.transact(lambda tx: tx.save_masks(row))
    await store.transact(lambda tx: tx.save_masks(replace(row, count=3)))
    assert await store.transact(lambda tx: tx.masks("j1", 1)) == replace(row, count=3)
    assert await store.transact(lambda tx: tx.masks("j1", 2)) is None
    await store.transact(lambda tx: tx.delete_masks("j1", 1))
    await store.transact(lambda tx: tx.delete_masks("j1", 1))
    assert await store.transact(lambda tx: tx.masks("j1", 1)) is None


# --- people


async def presence_is_who_was_seen_since(store: Store) -> None:
    one = Worker(
        id="w1",
        name="mini",
        platform="linux/arm64",
        version="0.2",
        emulates=frozenset({"linux/amd64"}),
        labels=frozenset({"linux"}),
        features=frozenset({"containers"}),
        pools=frozenset({"big"}),
        slots=4,
        free=2,
        disk_free_mb=100,
        disk_reclaimable_mb=5,
        max_concurrent=3,
        trust="trusted",
        publish=frozenset({"acme/app"}),
        draining=True,
        drained=True,
        connected_ns=T,
        seen_ns=T + 5,
    )
    two = Worker(id="w2", name="big", platform="linux/amd64", seen_ns=T)

    def write(tx: Transaction) -> None:
        tx.save_worker(replace(one, seen_ns=T))
        tx.save_worker(one)
        tx.save_worker(two)

    await store.transact(write)
    assert await store.transact(lambda tx: tx.worker("w1")) == one
    assert await store.transact(lambda tx: tx.workers()) == [two, one]
    assert await store.transact(lambda tx: tx.workers(T + 1)) == [one]
    assert await store.transact(lambda tx: tx.delete_worker("w1"))
    assert not await store.transact(lambda tx: tx.delete_worker("w1"))
    assert await store.transact(lambda tx: tx.worker("w1")) is None


async def tokens_are_found_by_hash(store: Store) -> None:
    row = Token(
        id="t1",
        kind="worker",
        hash="h1",
        name="mini",
        created_ns=T,
        scopes=frozenset({"claim"}),
        repository="acme/app",
        expires_ns=T + 9,
        created_by="root",
    )
    other = Token(id="t2", kind="api", hash="h2", name="ci", created_ns=T + 1)

    def write(tx: Transaction) -> None:
        tx.insert_token(row)
        tx.insert_token(other)

    await store.transact(write)
    with pytest.raises(StoreBusyError):
        await store.transact(lambda tx: tx.insert_token(replace(row, id="t3")))
    assert await store.transact(lambda tx: tx.token_of_hash("h1")) == row
    assert await store.transact(lambda tx: tx.token_of_hash("h3")) is None
    assert await store.transact(lambda tx: tx.tokens()) == [row, other]
    assert await store.transact(lambda tx: tx.tokens("worker")) == [row]
    await store.transact(lambda tx: tx.touch_tokens({"t1": T + 7, "gone": T}))
    await store.transact(lambda tx: tx.touch_tokens({"t1": T + 3}))
    assert await store.transact(lambda tx: tx.token_of_hash("h1")) == replace(row, used_ns=T + 7)
    await store.transact(lambda tx: tx.save_token(replace(row, revoked_ns=T + 8)))
    assert await store.transact(lambda tx: tx.tokens("worker")) == [replace(row, revoked_ns=T + 8)]


async def audit_is_read_newest_first(store: Store) -> None:
    def write(tx: Transaction) -> None:
        for what in ("a", "b", "c"):
            tx.insert_audit(Audit(time_ns=T, who="root", what=what, about="acme/app", detail="x"))

    await store.transact(write)
    rows = await store.transact(lambda tx: tx.audit())
    assert [row.what for row in rows] == ["c", "b", "a"]
    older = await store.transact(lambda tx: tx.audit(before=rows[0].sequence, limit=1))
    assert older == [rows[1]]


async def secrets_are_kept_by_place(store: Store) -> None:
    def secret(name: str, environment: str = "", value: bytes = b"sealed") -> SecretRow:
        return SecretRow(repository="acme/app", environment=environment, name=name, value_sealed=value, updated_ns=T)

    def write(tx: Transaction) -> None:
        for row in (secret("B"), secret("A", "prod"), secret("A"), secret("B", value=b"newer")):
            tx.save_secret(row)
        tx.save_secret(replace(secret("A"), repository="acme/other"))
        tx.save_vault(VaultRow(repository="acme/app", by_server=b"1"))
        tx.save_vault(VaultRow(repository="acme/app", by_passphrase=b"2", salt=b"s"))

    await store.transact(write)
    rows = await store.transact(lambda tx: tx.secrets("acme/app"))
    assert rows == [secret("A"), secret("B", value=b"newer"), secret("A", "prod")]
    assert await store.transact(lambda tx: tx.delete_secret("acme/app", "prod", "A"))
    assert not await store.transact(lambda tx: tx.delete_secret("acme/app", "prod", "A"))
    assert len(await store.transact(lambda tx: tx.secrets("acme/other"))) == 1
    vault = await store.transact(lambda tx: tx.vault("acme/app"))
    assert vault == VaultRow(repository="acme/app", by_passphrase=b"2", salt=b"s")
    assert await store.transact(lambda tx: tx.vault("acme/none")) is None


CASES: tuple[Case, ...] = (
    what_is_committed_stays_and_what_raised_did_not_happen,
    a_conflict_begins_anew_and_gives_up_in_the_end,
    many_transactions_at_once_lose_nothing,
    topics_come_after_the_commit_once_and_never_after_an_abort,
    the_clock_stands_still_in_a_transaction,
    a_trigger_happens_once,
    projects_are_kept_whole,
    blobs_are_kept_by_digest,
    a_run_is_saved_only_over_what_was_read,
    runs_are_listed_newest_first,
    a_concurrency_group_is_replaced_over_what_was_read,
    a_job_comes_back_as_it_was,
    a_job_is_saved_only_over_its_fence,
    heads_are_the_first_of_each_class,
    what_is_due_comes_first_things_first,
    the_queue_is_listed_and_counted,
    strides_are_kept,
    a_claim_id_leads_to_one_hand_out,
    events_and_orders_are_numbered_by_attempt,
    a_job_has_one_result,
    masks_live_as_long_as_their_attempt,
    presence_is_who_was_seen_since,
    tokens_are_found_by_hash,
    audit_is_read_newest_first,
    secrets_are_kept_by_place,
)
