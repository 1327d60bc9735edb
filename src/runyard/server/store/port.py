"""What can be said to the store: named sync statements on a Transaction, and one door, `Store.transact`.

Statements take and return frozen rows, see what the same transaction wrote before, and are the only place for SQL.
Those that change a row that somebody else may have changed compare first and raise ConflictError; `transact` then
begins anew with the same function, so it has no side effects and no randomness: ids and tokens come in as arguments.

Beside each statement stands the index that it needs (`pk`: the primary key). Lists are bounded by a `limit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from runyard.dispatch.records import Counts, Hold, Job, JobClass, Phase, Stride, Worker
    from runyard.run import Group
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
        TokenKind,
        Trigger,
        VaultRow,
    )

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 20
"""How often `transact` begins a transaction that met a conflict, before it gives up with StoreBusyError."""


class ConflictError(Exception):
    """Somebody else changed the row since it was read. Raised by statements, answered by `transact`."""


class StoreBusyError(Exception):
    """The store could not commit in time or after TRIES conflicts; nothing was written, the call may be repeated."""


class Runs(Protocol):
    """Projects, triggers, runs and what they are made of."""

    def now_ns(self) -> int:
        """The store's clock (the database's), the same during one transaction."""

    def next_number(self, counter: str) -> int:
        """1, 2, 3, … by counter (`run`, `job`, `workflow:REPOSITORY:PATH`). Gaps may come from aborts. counters: pk."""

    def put_blob(self, digest: str, data: bytes) -> None:
        """Keep bytes under their digest; again changes nothing. blobs: pk (digest)."""

    def blob(self, digest: str) -> bytes:
        """Bytes kept before. KeyError without."""

    # projects: pk (repository)
    def save_project(self, project: Project) -> None:
        """Insert or replace."""

    def project(self, repository: str) -> Project | None:
        """One project."""

    def projects(self) -> list[Project]:
        """All, by name."""

    def delete_project(self, repository: str) -> bool:
        """Whether there was one. Its runs stay."""

    # triggers: pk (key)
    def insert_trigger(self, trigger: Trigger) -> bool:
        """False, and nothing written, when the key is there already."""

    def trigger(self, key: str) -> Trigger | None:
        """One trigger."""

    def set_trigger_runs(self, key: str, runs: tuple[str, ...]) -> None:
        """What it started."""

    # runs: pk (id); unique (number, attempt); (repository, number desc); partial (number) where phase <> 'done'
    def insert_run(self, run: Run) -> None:
        """A new row."""

    def run(self, run_id: str) -> Run | None:
        """One attempt of a run, by row id."""

    def newest_run(self, number: int) -> Run | None:
        """The newest attempt of a run."""

    def save_run(self, before: Run, after: Run) -> Run:
        """Replace `before` (same id and version) by `after`; the row as stored, its version one more. ConflictError."""

    def runs(self, repository: str | None = None, before: int | None = None, limit: int = 50) -> list[Run]:
        """Newest first, `number` below `before`, without `state` (empty bytes)."""

    def unfinished_runs(self, after: int = 0, limit: int = 100) -> list[Run]:
        """Oldest first, `number` above `after`, phase not done."""

    # groups of concurrency: pk (repository, name)
    def group(self, repository: str, name: str) -> Group:
        """Who holds it and who waits (`run:ID`, `job:ID`); an empty one if nobody does. Locks it where rows lock."""

    def save_group(self, repository: str, name: str, before: Group, after: Group) -> None:
        """Replace; a free one is deleted. ConflictError when it isn't `before` any more."""


class Jobs(Protocol):
    """The queue: jobs, their classes and attempts, and what is counted."""

    # jobs: pk (id); (run_id, sequence); (class_id, rank, sequence) where phase in (queued, reserved);
    #       (due_ns) where due_ns > 0; (phase, sequence) where phase <> 'done'; (lease worker) where phase is live
    # job_bodies: pk (job); unique (run_id, key)
    # job_classes: pk (id); rows are never changed
    def insert_job(self, job: Job, body: JobBody) -> None:
        """A new job; its class too if it is new."""

    def job(self, job_id: str) -> Job | None:
        """One job. Locks it where rows lock."""

    def save_job(self, before: Job, after: Job) -> None:
        """Replace `before` by `after`: conditional on id, phase, attempt, lease id and order number. ConflictError."""

    def body(self, job_id: str) -> JobBody | None:
        """What it is made of."""

    def save_body(self, body: JobBody) -> None:
        """Replace it (groups move on)."""

    def job_of_key(self, run_id: str, key: str) -> Job | None:
        """A run's job by its key."""

    def jobs_of_run(self, run_id: str) -> list[Job]:
        """All of a run, by sequence."""

    def bodies_of_run(self, run_id: str) -> list[JobBody]:
        """Their bodies, in the same order."""

    def open_classes(self, pools: Collection[str] = ()) -> list[JobClass]:
        """Classes with a queued job, or one reserved for one of `pools`."""

    def heads(self, classes: Collection[str], pools: Collection[str], each: int) -> list[Job]:
        """The first `each` open jobs of each class, by (rank, sequence): queued, or reserved for one of `pools`.

        Where rows lock, those that somebody holds are skipped.
        """

    def due(self, now_ns: int, limit: int = 100) -> list[Job]:
        """Jobs with 0 < due_ns <= now, the earliest first. Where rows lock, held ones are skipped."""

    def jobs_in(self, phases: Collection[Phase], after: int = 0, limit: int = 100) -> list[Job]:
        """Jobs in those phases (not done), `sequence` above `after`, in order: the queue's page."""

    def held_jobs(self, hold: Hold, repository: str | None = None, limit: int = 1000) -> list[Job]:
        """Waiting jobs with that hold, by sequence."""

    def jobs_of_worker(self, worker: str) -> list[Job]:
        """Live jobs that it holds, by sequence."""

    def phases(self) -> dict[Phase, int]:
        """How many jobs are in each phase, done ones not counted."""

    def counts(self) -> Counts:
        """Live jobs by repository, group, worker and pool. Exact within the transaction."""

    def lock_claims(self, worker: str) -> None:
        """Serialise hand-outs that bounds depend on until the end of the transaction; nothing where one writes."""

    # strides: pk (repository)
    def strides(self, repositories: Collection[str]) -> dict[str, Stride]:
        """Those that there are."""

    def save_stride(self, stride: Stride) -> None:
        """Insert or replace."""

    # attempts: pk (job, number); unique (worker, claim)
    def insert_attempt(self, attempt: Attempt) -> None:
        """A new hand-out. ConflictError when the worker's claim id is there already."""

    def attempt(self, job_id: str, number: int) -> Attempt | None:
        """One hand-out."""

    def attempts(self, job_id: str) -> list[Attempt]:
        """All of a job, the first first."""

    def attempt_of_claim(self, worker: str, claim: str) -> Attempt | None:
        """The hand-out that a claim id led to."""

    def save_attempt(self, attempt: Attempt) -> None:
        """Replace the row."""


class Execution(Protocol):
    """What comes up from an attempt and goes down to it."""

    # events: pk (job, attempt, number)
    def insert_events(self, job_id: str, attempt: int, events: Sequence[EventRow]) -> None:
        """Numbers that aren't there yet; the caller has checked the fence and the next number."""

    def events(self, job_id: str, attempt: int, first: int = 0, limit: int = 1000) -> list[EventRow]:
        """From `first` on, in order."""

    # orders: pk (job, attempt, number)
    def insert_order(self, job_id: str, attempt: int, order: OrderRow) -> None:
        """One more order of the attempt."""

    def orders(self, job_id: str, attempt: int, after: int) -> list[OrderRow]:
        """Those with a number above `after`, in order."""

    def delete_orders(self, job_id: str, attempt: int, up_to: int) -> None:
        """They were seen."""

    # results: pk (job)
    def insert_result(self, result: ResultRow) -> None:
        """The accepted result; one a job. ConflictError when there is one."""

    def result(self, job_id: str) -> ResultRow | None:
        """The accepted result."""

    # masks: pk (job, attempt)
    def masks(self, job_id: str, attempt: int) -> MaskRow | None:
        """What is hidden in this attempt's bytes."""

    def save_masks(self, row: MaskRow) -> None:
        """Insert or replace."""

    def delete_masks(self, job_id: str, attempt: int) -> None:
        """The attempt is over and its log sealed."""


class People(Protocol):
    """Workers, tokens, what was done by whom."""

    # workers: pk (id); (seen_ns)
    def save_worker(self, worker: Worker) -> None:
        """Insert or replace."""

    def worker(self, worker_id: str) -> Worker | None:
        """One worker."""

    def workers(self, since_ns: int = 0) -> list[Worker]:
        """Those seen at or after `since_ns`, by name: presence, and the page; they can't disagree."""

    def delete_worker(self, worker_id: str) -> bool:
        """Whether there was one."""

    # tokens: pk (id); unique (hash)
    def insert_token(self, token: Token) -> None:
        """A new token."""

    def token_of_hash(self, digest: str) -> Token | None:
        """By the SHA-256 of its text; revoked and expired ones too, the caller looks."""

    def tokens(self, kind: TokenKind | None = None) -> list[Token]:
        """All, the oldest first."""

    def save_token(self, token: Token) -> None:
        """Replace the row (revoked)."""

    def touch_tokens(self, used: Mapping[str, int]) -> None:
        """When tokens were last used, by id; callers batch."""

    # secrets: pk (repository, environment, name); vaults: pk (repository)
    def save_secret(self, row: SecretRow) -> None:
        """Insert or replace."""

    def delete_secret(self, repository: str, environment: str, name: str) -> bool:
        """Whether there was one."""

    def secrets(self, repository: str) -> list[SecretRow]:
        """All of a repository, by environment and name."""

    def vault(self, repository: str) -> VaultRow | None:
        """Its data key's row. Locks it where rows lock."""

    def save_vault(self, row: VaultRow) -> None:
        """Insert or replace."""

    # audit: pk (sequence)
    def insert_audit(self, entry: Audit) -> None:
        """One more line; `sequence` is given here."""

    def audit(self, before: int | None = None, limit: int = 100) -> list[Audit]:
        """Newest first, `sequence` below `before`."""


class Transaction(Runs, Jobs, Execution, People, Protocol):
    """All statements, and what to tell others after the commit."""

    def wake(self, topic: str) -> None:
        """After the commit tell who listens, on every replica; nothing on an abort. Topics: see `Topic`."""


class Topic:
    """What can be listened to: a class that got an open job, a job with news or orders, a run that moved on, claims."""

    @staticmethod
    def of_class(class_id: str) -> str:
        """An open job of that class is there."""
        return f"class:{class_id}"

    @staticmethod
    def of_job(job_id: str) -> str:
        """Its phase, its orders or its events changed."""
        return f"job:{job_id}"

    @staticmethod
    def of_run(run_id: str) -> str:
        """A job was made or ended, or the run did."""
        return f"run:{run_id}"

    SLOT = "slot"
    """A lease ended, a bound was lifted or a worker resumed: a class that had waited may be taken now."""


class Store(Protocol):
    """The one door. Implementations: memory (double), SQLite, PostgreSQL."""

    async def transact(self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn(tx, …)` in one transaction and commit; its value, once that is durable.

        An exception of `fn` rolls back and comes out; ConflictError and the database's own conflicts begin anew, at
        most TRIES times. Cancelled while it waits for its turn, it isn't begun; later it is carried to its end. Raises
        StoreBusyError.
        """

    def listen(self, hear: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call `hear` on this event loop with the topics of each commit, here or on a replica; the value ends that.

        Topics may be lost with a connection: who listens also looks by himself now and then.
        """

    async def close(self) -> None:
        """Let running transactions end and release everything. Safe to repeat."""
