"""What people and the command line ask: projects, runs, jobs, logs, reasons, workers, tokens."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.dispatch.records import LIVE
from runyard.job import InputError
from runyard.server.api.http import ProblemError, body_of, number_of, refused, route, send_nothing, send_value
from runyard.server.api.shapes import (
    ArtifactShape,
    FreedShape,
    LogLine,
    ProjectShape,
    ReasonShape,
    RunShape,
    SecretShape,
    StartedShape,
    TokenShape,
    VaultShape,
    WorkerShape,
    rfc3339,
)
from runyard.server.api.shaping import (
    artifact_shapes,
    project_shape,
    reason_shape,
    run_shape,
    time_or_none,
    token_shape,
    worker_shape,
)
from runyard.server.auth import SCOPES, Denied, new_token
from runyard.server.control import (
    LockedError,
    NewTrigger,
    Refused,
    approve,
    cancel_run,
    create_runs,
    drain_worker,
    explain_queue,
    explain_run,
    remove_worker,
    rerun,
    resume_worker,
    unlocked,
)
from runyard.server.logs import AttemptKey
from runyard.server.logs.feed import read_cursor, write_cursor
from runyard.server.mirrors import check_address, check_repository
from runyard.server.planning import Happened, Planned, plan_event
from runyard.server.store.rows import Audit, Project
from runyard.server.vault import new_salt, stretched
from runyard.service.asgi import send_file

if TYPE_CHECKING:
    from runyard.dispatch.records import Job, Worker
    from runyard.server.api.http import Route
    from runyard.server.control import Rules
    from runyard.server.core import Core
    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import JobBody, Run, Token
    from runyard.server.vault import StoredVault
    from runyard.service.asgi import Request, Send

PREFIX: Final = "/-/api"
_ROLES: Final = {"read": 0, "write": 1, "admin": 2}


class AddProject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A repository to build."""

    project: str
    git: str
    default_branch: str = ""
    max_concurrent: int | None = None
    weight: float = 1.0


class Trigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A start by hand. `key` makes a repeat harmless."""

    event: str = "workflow_dispatch"
    ref: str = ""
    inputs: dict[str, str] = {}
    workflow: str | None = None
    payload: dict[str, Any] = {}
    key: str = ""


class MakeToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token to make: of a worker (with pools, a trust tier, what it may publish) or for the API (with scopes)."""

    kind: str
    name: str
    scopes: tuple[str, ...] = ()
    expires_s: float | None = None


class CancelBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to cancel."""

    force: bool = False
    reason: str = ""


class RerunBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to run again."""

    failed: bool = False


class SecretBody(msgspec.Struct, frozen=True):
    """The value of a secret. No repr."""

    value: str

    def __repr__(self) -> str:
        return "<SecretBody>"


class PassphraseBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What opens a vault, and for how long. No repr."""

    passphrase: str = ""
    for_s: float = 0.0

    def __repr__(self) -> str:
        return "<PassphraseBody>"


class PeopleApi:
    """The calls below `/-/api/`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        project = f"{PREFIX}/projects/{{owner}}/{{name}}"
        run = f"{PREFIX}/runs/{{run}}"
        self.routes: tuple[Route, ...] = (
            route("GET", f"{PREFIX}/projects", self.projects, "Repositories", gives=list[ProjectShape]),
            route("POST", f"{PREFIX}/projects", self.add_project, "Add one", takes=AddProject, gives=ProjectShape),
            route("GET", project, self.project, "One repository", gives=ProjectShape),
            route("DELETE", project, self.remove_project, "Build it no more"),
            route("GET", f"{project}/secrets", self.secrets, "Names of its secrets", gives=VaultShape),
            route(
                "PUT",
                f"{project}/secrets/{{secret}}",
                self.set_secret,
                "Keep one",
                takes=SecretBody,
                query=("environment",),
            ),
            route("DELETE", f"{project}/secrets/{{secret}}", self.remove_secret, "Forget one", query=("environment",)),
            route("POST", f"{project}/vault/lock", self.lock, "Close its vault", takes=PassphraseBody),
            route(
                "POST",
                f"{project}/vault/unlock",
                self.unlock,
                "Open it for a time",
                takes=PassphraseBody,
                gives=FreedShape,
            ),
            route("POST", f"{project}/trigger", self.trigger, "Start by hand", takes=Trigger, gives=StartedShape),
            route(
                "GET",
                f"{PREFIX}/runs",
                self.runs,
                "Newest first",
                gives=list[RunShape],
                query=("project", "before", "limit"),
            ),
            route("GET", run, self.run, "One run with its jobs", gives=RunShape),
            route("POST", f"{run}/cancel", self.cancel, "Cancel it", takes=CancelBody),
            route("POST", f"{run}/approve", self.approve, "Let an untrusted run go"),
            route("POST", f"{run}/rerun", self.rerun, "Run it again", takes=RerunBody, gives=RunShape),
            route("GET", f"{run}/reasons", self.reasons_of_run, "Why its jobs wait", gives=list[ReasonShape]),
            route("GET", f"{run}/artifacts", self.artifacts, "What its jobs left", gives=list[ArtifactShape]),
            route("GET", f"{PREFIX}/reasons", self.reasons, "Why jobs wait", gives=list[ReasonShape], query=("after",)),
            route(
                "GET",
                f"{PREFIX}/jobs/{{job}}/log",
                self.log,
                "Its log, a line of JSON each",
                query=("follow", "attempt", "cursor"),
            ),
            route(
                "GET", f"{PREFIX}/jobs/{{job}}/events", self.events, "What happened in it", query=("attempt", "first")
            ),
            route("GET", f"{PREFIX}/jobs/{{job}}/artifacts/{{attempt}}/{{name}}", self.artifact, "One artifact, a tar"),
            route("GET", f"{PREFIX}/workers", self.workers, "Who is connected", gives=list[WorkerShape]),
            route("POST", f"{PREFIX}/workers/{{worker}}/drain", self.drain, "Give it no more jobs"),
            route("POST", f"{PREFIX}/workers/{{worker}}/resume", self.resume, "Give it jobs again"),
            route("DELETE", f"{PREFIX}/workers/{{worker}}", self.remove, "Forget it"),
            route("GET", f"{PREFIX}/tokens", self.tokens, "All tokens", gives=list[TokenShape]),
            route("POST", f"{PREFIX}/tokens", self.make_token, "Make one", takes=MakeToken, gives=TokenShape),
            route("DELETE", f"{PREFIX}/tokens/{{token}}", self.revoke, "It opens nothing any more"),
        )

    async def may(self, request: Request, role: str) -> Token:
        """The caller's token, where it opens that much. Raises ProblemError; 404 hides what only administrators see."""
        found = await self.core.tokens.find(request.credential(), "api")
        if isinstance(found, Denied):
            raise ProblemError(401, "api.token", f"this token is {found.why}", remedy="RUNYARD_TOKEN or --token-file")
        have = max((_ROLES.get(scope, -1) for scope in found.scopes), default=-1)
        if have < _ROLES[role]:
            if role == "admin":
                raise ProblemError(404, "request.path", f"there is no {request.path[:200]}")
            raise ProblemError(403, "api.scope", f"this token may not do that: it needs the scope {role}")
        return found

    # --- projects

    async def projects(self, request: Request, send: Send) -> None:
        await self.may(request, "read")
        rows = await self.core.store.transact(lambda tx: tx.projects())
        await send_value(send, [project_shape(row) for row in rows])

    async def project(self, request: Request, send: Send, owner: str, name: str) -> None:
        await self.may(request, "read")
        await send_value(send, project_shape(await self._project(f"{owner}/{name}")))

    async def _project(self, repository: str) -> Project:
        found = await self.core.store.transact(lambda tx: tx.project(repository))
        if found is None:
            raise ProblemError(
                404, "project.unknown", f"there is no project {repository}", remedy="runyard project list"
            )
        return found

    async def add_project(self, request: Request, send: Send) -> None:
        who = await self.may(request, "admin")
        said = await body_of(request, AddProject)
        if said.weight <= 0 or (said.max_concurrent is not None and said.max_concurrent < 1):
            raise InputError("weight is above 0, max_concurrent at least 1", code="project.bounds")
        project = Project(
            repository=check_repository(said.project),
            url=check_address(said.git),
            created_ns=time.time_ns(),
            default_branch=said.default_branch or "main",
            max_concurrent=said.max_concurrent,
            weight=said.weight,
        )
        await self.core.mirrors.fetch(project)
        if not said.default_branch:
            branch = await asyncio.to_thread(self.core.mirrors.default_branch, project)
            project = msgspec.structs.replace(project, default_branch=branch)
        await self.core.store.transact(_add_project, project, who.name)
        await send_value(send, project_shape(project), 201)

    async def remove_project(self, request: Request, send: Send, owner: str, name: str) -> None:
        who = await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        await self.core.store.transact(_remove_project, project.repository, who.name)
        await asyncio.to_thread(self.core.mirrors.remove, project.repository)
        await send_nothing(send)

    async def trigger(self, request: Request, send: Send, owner: str, name: str) -> None:
        who = await self.may(request, "write")
        project = await self._project(f"{owner}/{name}")
        said = await body_of(request, Trigger)
        core = self.core
        await core.mirrors.fetch(project)
        ref = said.ref or project.default_branch
        resolved = await asyncio.to_thread(core.mirrors.resolve, project.repository, ref)
        happened = Happened(
            event=said.event, inputs=said.inputs, workflow=said.workflow, payload=said.payload, actor=who.name
        )
        planned: Planned = await asyncio.to_thread(plan_event, core.mirrors, project, resolved, happened)
        key = f"hand:{said.key}" if said.key else f"hand:{secrets.token_hex(12)}"
        new = NewTrigger(
            key=key, repository=project.repository, event=said.event, payload_digest=planned.payload_digest
        )
        created = await core.store.transact(create_runs, core.rules, new, planned.runs)
        rows = await core.store.transact(_runs_by_id, created.runs)
        started = StartedShape(
            runs=tuple(run_shape(row) for row in rows), repeated=created.repeated, not_triggered=dict(planned.untouched)
        )
        await send_value(send, started, 200 if created.repeated else 201)

    # --- secrets

    async def secrets(self, request: Request, send: Send, owner: str, name: str) -> None:
        await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        await send_value(send, await self.core.store.transact(_vault, self.core.vault, project.repository))

    async def set_secret(self, request: Request, send: Send, owner: str, name: str, secret: str) -> None:
        who = await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        said = await body_of(request, SecretBody)
        try:
            await self.core.store.transact(
                _set_secret,
                self.core.vault,
                project.repository,
                (request.query.get("environment", ""), secret, said.value),
                who.name,
            )
        except LockedError:
            raise _locked(project.repository) from None
        await send_nothing(send)

    async def remove_secret(self, request: Request, send: Send, owner: str, name: str, secret: str) -> None:
        who = await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        place = (project.repository, request.query.get("environment", ""), secret.upper())
        if not await self.core.store.transact(_remove_secret, place, who.name):
            raise ProblemError(
                404, "secret.unknown", f"there is no secret {secret[:80]!r}", remedy="runyard secret list"
            )
        await send_nothing(send)

    async def lock(self, request: Request, send: Send, owner: str, name: str) -> None:
        who = await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        said = await body_of(request, PassphraseBody)
        salt = new_salt()
        key = await asyncio.to_thread(stretched, said.passphrase, salt) if said.passphrase else None
        try:
            await self.core.store.transact(_lock, self.core.vault, project.repository, (key, salt), who.name)
        except LockedError:
            raise _locked(project.repository) from None
        await send_nothing(send)

    async def unlock(self, request: Request, send: Send, owner: str, name: str) -> None:
        who = await self.may(request, "admin")
        project = await self._project(f"{owner}/{name}")
        said = await body_of(request, PassphraseBody)
        row = await self.core.store.transact(lambda tx: tx.vault(project.repository))
        key = await asyncio.to_thread(
            stretched, said.passphrase, row.salt if row is not None and row.salt else bytes(16)
        )
        until = time.time_ns() + round(said.for_s * 1e9) if said.for_s else 0
        core = self.core
        freed = await core.store.transact(_unlock, core.vault, core.rules, project.repository, (key, until, who.name))
        await send_value(send, {"freed": freed})

    # --- runs

    async def runs(self, request: Request, send: Send) -> None:
        await self.may(request, "read")
        before = number_of(request, "before", 0) or None
        limit = number_of(request, "limit", 30, most=200)
        rows = await self.core.store.transact(lambda tx: tx.runs(request.query.get("project") or None, before, limit))
        await send_value(send, [run_shape(row) for row in rows])

    async def run(self, request: Request, send: Send, run: str) -> None:
        await self.may(request, "read")
        row = await self._run(run)
        jobs, bodies = await self.core.store.transact(_jobs, row.id)
        await send_value(send, run_shape(row, jobs, bodies))

    async def _run(self, said: str) -> Run:
        """A run by number, or by number and attempt. Raises ProblemError."""
        number, dot, attempt = said.partition(".")
        if not number.isdecimal() or (dot and not attempt.isdecimal()) or len(said) > 40:
            raise ProblemError(400, "run.number", f"a run is a number, or number.attempt, not {said[:40]!r}")
        if dot:
            row = await self.core.store.transact(lambda tx: tx.run(said))
        else:
            row = await self.core.store.transact(lambda tx: tx.newest_run(int(number)))
        if row is None:
            raise ProblemError(404, "run.unknown", f"there is no run {said}", remedy="runyard runs list")
        return row

    async def cancel(self, request: Request, send: Send, run: str) -> None:
        who = await self.may(request, "write")
        said = await body_of(request, CancelBody)
        row = await self._run(run)
        answer = await self.core.store.transact(
            cancel_run, self.core.rules, row.id, who.name, force=said.force, reason=said.reason[:500]
        )
        _checked(answer)
        await send_nothing(send)

    async def approve(self, request: Request, send: Send, run: str) -> None:
        who = await self.may(request, "write")
        row = await self._run(run)
        _checked(await self.core.store.transact(approve, self.core.rules, row.id, who.name))
        await send_nothing(send)

    async def rerun(self, request: Request, send: Send, run: str) -> None:
        who = await self.may(request, "write")
        said = await body_of(request, RerunBody)
        row = await self._run(run)
        answer = await self.core.store.transact(rerun, self.core.rules, row.id, who.name, failed_only=said.failed)
        if isinstance(answer, Refused):
            raise refused(answer)
        await send_value(send, run_shape(answer), 201)

    async def reasons_of_run(self, request: Request, send: Send, run: str) -> None:
        await self.may(request, "read")
        row = await self._run(run)
        waiting = await self.core.store.transact(explain_run, self.core.rules, row.id)
        await send_value(send, [reason_shape(each) for each in waiting])

    async def reasons(self, request: Request, send: Send) -> None:
        await self.may(request, "read")
        after = number_of(request, "after", 0)
        waiting = await self.core.store.transact(explain_queue, self.core.rules, after)
        await send_value(send, [reason_shape(each) for each in waiting])

    # --- jobs

    async def _job(self, job_id: str) -> Job:
        job = await self.core.store.transact(lambda tx: tx.job(job_id))
        if job is None:
            raise ProblemError(404, "job.unknown", f"there is no job {job_id[:80]}")
        return job

    async def log(self, request: Request, send: Send, job: str) -> None:
        """Pieces of the stored log as lines of JSON; with `follow` until the attempt is over."""
        await self.may(request, "read")
        row = await self._job(job)
        attempt = number_of(request, "attempt", row.attempt, most=1 << 31)
        key = AttemptKey(job, attempt)
        try:
            cursor = read_cursor(request.query.get("cursor", ""))
        except ValueError as error:
            raise ProblemError(400, "request.query", str(error)) from None
        follow = request.query.get("follow", "") in ("1", "true")
        core = self.core
        state = {"over": not follow or _is_over(row, attempt)}
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]}
        )
        gone = asyncio.create_task(request.gone(), name="log's reader")
        try:
            async for piece in core.feed.follow(core.logs, key, cursor, is_over=lambda: state["over"] or core.stopping):
                if gone.done():
                    return
                if piece is None:
                    if not state["over"]:
                        state["over"] = _is_over(await self._job(job), attempt)
                    await send({"type": "http.response.body", "body": b"\n", "more_body": True})
                    continue
                chunk = piece.chunk
                line = LogLine(
                    step=piece.step,
                    kind=chunk.kind,
                    time_ns=chunk.time_ns,
                    text=chunk.data.decode("utf-8", "replace"),
                    cursor=write_cursor(piece.cursor),
                )
                await send({"type": "http.response.body", "body": msgspec.json.encode(line) + b"\n", "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def events(self, request: Request, send: Send, job: str) -> None:
        await self.may(request, "read")
        row = await self._job(job)
        attempt = number_of(request, "attempt", row.attempt, most=1 << 31)
        first = number_of(request, "first", 0)
        rows = await self.core.store.transact(lambda tx: tx.events(job, attempt, first, 1000))
        await send_value(send, [msgspec.Raw(each.event) for each in rows])

    async def artifacts(self, request: Request, send: Send, run: str) -> None:
        await self.may(request, "read")
        row = await self._run(run)
        jobs = await self.core.store.transact(lambda tx: tx.jobs_of_run(row.id))
        await send_value(send, await asyncio.to_thread(artifact_shapes, self.core, jobs))

    async def artifact(self, request: Request, send: Send, job: str, attempt: str, name: str) -> None:
        await self.may(request, "read")
        await self._job(job)
        if not attempt.isdecimal() or name.startswith(".") or "/" in name or "\0" in name:
            raise ProblemError(404, "artifact.unknown", "there is no such artifact")
        path = self.core.artifact_folder(AttemptKey(job, int(attempt))) / f"{name}.tar"
        if not path.is_file():
            raise ProblemError(404, "artifact.unknown", f"there is no artifact {name!r} of that attempt")
        await send_file(request, send, str(path), [(b"content-type", b"application/x-tar")])

    # --- workers

    async def workers(self, request: Request, send: Send) -> None:
        await self.may(request, "read")
        workers, jobs, now = await self.core.store.transact(_workers)
        await send_value(send, [worker_shape(each, jobs, now, self.core) for each in workers])

    async def drain(self, request: Request, send: Send, worker: str) -> None:
        who = await self.may(request, "admin")
        _checked(await self.core.store.transact(drain_worker, await self._worker_id(worker), who.name))
        await send_nothing(send)

    async def resume(self, request: Request, send: Send, worker: str) -> None:
        who = await self.may(request, "admin")
        _checked(await self.core.store.transact(resume_worker, await self._worker_id(worker), who.name))
        await send_nothing(send)

    async def remove(self, request: Request, send: Send, worker: str) -> None:
        who = await self.may(request, "admin")
        found = await self._worker_id(worker)
        _checked(await self.core.store.transact(remove_worker, self.core.rules, found, who.name))
        await send_nothing(send)

    async def _worker_id(self, said: str) -> str:
        """A worker by id, or by a name that only one has."""
        workers = await self.core.store.transact(lambda tx: tx.workers())
        found = [each.id for each in workers if said in (each.id, each.name)]
        if len(found) > 1:
            raise ProblemError(409, "worker.ambiguous", f"{len(found)} workers are named {said!r}; give an id")
        return found[0] if found else said

    # --- tokens

    async def tokens(self, request: Request, send: Send) -> None:
        await self.may(request, "admin")
        await self.core.tokens.flush()
        rows = await self.core.store.transact(lambda tx: tx.tokens())
        await send_value(send, [token_shape(row) for row in rows])

    async def make_token(self, request: Request, send: Send) -> None:
        who = await self.may(request, "admin")
        said = await body_of(request, MakeToken)
        if said.kind not in ("worker", "api"):
            raise InputError(f"a token is of a worker or for the api, not {said.kind!r}", code="token.kind")
        if not said.name.strip() or len(said.name) > 100:
            raise InputError("a token has a name of 1 to 100 characters", code="token.name")
        for scope in said.scopes:
            known = scope in SCOPES if said.kind == "api" else scope.partition(":")[0] in ("pool", "trust", "publish")
            if not known:
                wanted = ", ".join(SCOPES) if said.kind == "api" else "pool:NAME, trust:TIER, publish:OWNER/NAME"
                raise InputError(f"there is no scope {scope!r}; there are {wanted}", code="token.scope")
        scopes = frozenset(said.scopes or (("read",) if said.kind == "api" else ()))
        now = time.time_ns()
        expires = now + round(said.expires_s * 1e9) if said.expires_s else 0
        made = new_token(
            "worker" if said.kind == "worker" else "api",
            said.name,
            scopes=scopes,
            now_ns=now,
            expires_ns=expires,
            created_by=who.name,
        )
        await self.core.store.transact(_insert_token, made.token, who.name)
        self.core.tokens.forget()
        await send_value(send, msgspec.structs.replace(token_shape(made.token), token=made.text), 201)

    async def revoke(self, request: Request, send: Send, token: str) -> None:
        who = await self.may(request, "admin")
        if not await self.core.store.transact(_revoke, token, who.name):
            raise ProblemError(404, "token.unknown", f"there is no token {token[:80]!r}", remedy="runyard token list")
        self.core.tokens.forget()
        await send_nothing(send)


# ruff: noqa: D102 - the routes above say what each call does


def _checked(answer: Refused | None) -> None:
    if answer is not None:
        raise refused(answer)


def _is_over(job: Job, attempt: int) -> bool:
    return job.lease is None or job.attempt != attempt


def _locked(repository: str) -> ProblemError:
    return ProblemError(
        409, "vault.locked", f"the vault of {repository} is locked", remedy=f"runyard secret unlock {repository}"
    )


# --- transactions


def _vault(tx: Transaction, vault: StoredVault, repository: str) -> VaultShape:
    row = tx.vault(repository)
    return VaultShape(
        project=repository,
        locked=vault.is_locked(tx, repository),
        passphrase=row is not None and bool(row.by_passphrase),
        until=time_or_none(row.until_ns) if row is not None and row.by_server else None,
        secrets=tuple(
            SecretShape(name=each.name, environment=each.environment, updated=rfc3339(each.updated_ns))
            for each in tx.secrets(repository)
        ),
    )


def _set_secret(tx: Transaction, vault: StoredVault, repository: str, what: tuple[str, str, str], who: str) -> None:
    environment, name, value = what
    vault.set(tx, repository, environment, name, value)
    _noted(tx, who, "secret.set", f"{repository} {name.upper()}")


def _remove_secret(tx: Transaction, place: tuple[str, str, str], who: str) -> bool:
    found = tx.delete_secret(*place)
    if found:
        _noted(tx, who, "secret.remove", f"{place[0]} {place[2]}")
    return found


def _lock(
    tx: Transaction, vault: StoredVault, repository: str, passphrase: tuple[bytes | None, bytes], who: str
) -> None:
    vault.lock(tx, repository, *passphrase)
    _noted(tx, who, "vault.lock", repository)


def _unlock(tx: Transaction, vault: StoredVault, rules: Rules, repository: str, how: tuple[bytes, int, str]) -> int:
    key, until_ns, who = how
    vault.unlock(tx, repository, key, until_ns)
    return unlocked(tx, rules, repository, who)


def _noted(tx: Transaction, who: str, what: str, about: str) -> None:
    tx.insert_audit(Audit(time_ns=tx.now_ns(), who=who, what=what, about=about))


def _add_project(tx: Transaction, project: Project, who: str) -> None:
    tx.save_project(project)
    _noted(tx, who, "project.add", project.repository)


def _remove_project(tx: Transaction, repository: str, who: str) -> None:
    tx.delete_project(repository)
    _noted(tx, who, "project.remove", repository)


def _runs_by_id(tx: Transaction, ids: tuple[str, ...]) -> list[Run]:
    return [row for run_id in ids if (row := tx.run(run_id)) is not None]


def _jobs(tx: Transaction, run_id: str) -> tuple[list[Job], list[JobBody]]:
    return tx.jobs_of_run(run_id), tx.bodies_of_run(run_id)


def _workers(tx: Transaction) -> tuple[list[Worker], list[Job], int]:
    return tx.workers(), tx.jobs_in(sorted(LIVE), limit=1000), tx.now_ns()


def _insert_token(tx: Transaction, token: Token, who: str) -> None:
    tx.insert_token(token)
    _noted(tx, who, "token.create", f"{token.kind} {token.name}")


def _revoke(tx: Transaction, token_id: str, who: str) -> bool:
    for token in tx.tokens():
        if token.id == token_id:
            if not token.revoked_ns:
                tx.save_token(msgspec.structs.replace(token, revoked_ns=tx.now_ns()))
                _noted(tx, who, "token.revoke", f"{token.kind} {token.name}")
            return True
    return False
