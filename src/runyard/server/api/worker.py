"""The dial-out protocol's server side. The messages and what each call promises stand in `job/dialout.py`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.dispatch.records import Worker
from runyard.job import Checkout, Claim, JobFinished, StepFinished
from runyard.job.dialout import (
    ATTEMPT_HEADER,
    LEASE_HEADER,
    PREFIX,
    PROTOCOL,
    ClaimAnswer,
    ClaimRequest,
    Events,
    EventsAnswer,
    HandBack,
    Heartbeat,
    HeartbeatAnswer,
    LogAnswer,
    MaskValues,
    ResultAnswer,
    StoredArtifact,
)
from runyard.server.api.http import (
    ProblemError,
    Route,
    body_of,
    number_of,
    refused,
    route,
    send_nothing,
    send_value,
)
from runyard.server.auth import Denied
from runyard.server.control import (
    Ask,
    Call,
    HandOut,
    Refused,
    accept_events,
    add_masks,
    check_fence,
    claim,
    hand_back,
    heartbeat,
    take_result,
)
from runyard.server.logs import AttemptKey, GapError, SealedError
from runyard.server.logs.index import KINDS
from runyard.server.store.port import Topic
from runyard.service.asgi import send_file

if TYPE_CHECKING:
    from runyard.server.core import Core
    from runyard.server.store.rows import Token
    from runyard.service.asgi import Request, Send

MOST_WAIT_S: Final = 55.0
LOG_LIMIT: Final = 1 << 20
RESULT_LIMIT: Final = 8 << 20
ARTIFACT_LIMIT: Final = 4 << 30
FENCE_KEPT_S: Final = 1.0
_NAME: Final = re.compile(r"[^\x00-\x1f\"<>|*?:\\/]{1,128}")
_FREE_TEXT: Final = frozenset({"name", "message", "title", "file", "value", "text", "whole", "reason", "destination"})
"""What of an event a job can write anything into; the rest are words of ours."""

_WORD: Final = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
_PLATFORM: Final = re.compile(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?")


class WorkerApi:
    """The calls below `/-/worker/`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._fences: dict[Call, float] = {}
        job = f"{PREFIX}/jobs/{{job}}"
        self.routes: tuple[Route, ...] = (
            route(
                "POST",
                f"{PREFIX}/claim",
                self.claim,
                "Ask for a job: a long poll",
                takes=ClaimRequest,
                gives=ClaimAnswer,
            ),
            route(
                "POST",
                f"{job}/heartbeat",
                self.heartbeat,
                "Extend the lease, hear orders",
                takes=Heartbeat,
                gives=HeartbeatAnswer,
                query=("wait",),
            ),
            route("GET", f"{job}/checkout", self.checkout, "The repository as a tar", query=("depth",)),
            route("POST", f"{job}/masks", self.masks, "Values to hide from here on", takes=MaskValues),
            route(
                "POST",
                f"{job}/log",
                self.log,
                "Bytes of a step's log",
                takes=bytes,
                gives=LogAnswer,
                query=("step", "offset", "kind", "time_ns"),
            ),
            route("POST", f"{job}/steps", self.events, "What happened, in order", takes=Events, gives=EventsAnswer),
            route(
                "PUT",
                f"{job}/artifacts/{{name}}",
                self.artifact,
                "One artifact, a tar",
                takes=bytes,
                gives=StoredArtifact,
            ),
            route("POST", f"{job}/result", self.result, "How the job ended", takes=JobFinished, gives=ResultAnswer),
            route("POST", f"{job}/handback", self.hand_back, "Give the job back", takes=HandBack),
        )

    async def token(self, request: Request) -> Token:
        """The worker's token. Raises ProblemError: 503 while no worker has one, 401, 403."""
        found = await self.core.tokens.find(request.credential(), "worker")
        if not isinstance(found, Denied):
            return found
        if not await self.core.tokens.has_worker_token():
            raise ProblemError(
                503,
                "worker.no_token",
                "this server has no worker token yet",
                remedy="runyard token create --worker NAME",
            )
        if found.why == "kind":
            raise ProblemError(403, "worker.token", "this is no worker's token")
        raise ProblemError(401, "worker.token", f"this worker token is {found.why}")

    async def call(self, request: Request, job: str) -> Call:
        """The fence of a call about a job."""
        token = await self.token(request)
        lease = request.headers.get(LEASE_HEADER.lower(), "")
        attempt = request.headers.get(ATTEMPT_HEADER.lower(), "")
        if not lease or not re.fullmatch(r"[0-9]{1,9}", attempt):
            raise ProblemError(400, "request.header", f"{LEASE_HEADER} and {ATTEMPT_HEADER} are missing")
        return Call(job, int(attempt), lease, token.id)

    # --- claims

    async def claim(self, request: Request, send: Send) -> None:
        """A long poll."""
        token = await self.token(request)
        said = await body_of(request, ClaimRequest)
        worker = _worker(token, said)
        ask = Ask(worker=worker, claim=said.claim_id, lease=secrets.token_hex(16))
        core = self.core
        until = time.monotonic() + max(0.0, min(said.wait_s, MOST_WAIT_S, core.settings.poll_s))
        gone = asyncio.create_task(request.gone(), name="claim's client")
        try:
            with core.waits.park(worker) as parked:
                while True:
                    parked.event.clear()
                    given = None if core.stopping else await core.store.transact(claim, core.rules, ask)
                    if isinstance(given, Refused):
                        raise refused(given)
                    if given is not None:
                        core.waits.again(given.job.of)
                        await send_value(send, await self._answer(given))
                        return
                    left = until - time.monotonic()
                    if left <= 0 or core.stopping:
                        break
                    woken = asyncio.create_task(parked.event.wait())
                    done, _ = await asyncio.wait({woken, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    woken.cancel()
                    if gone in done:
                        return
                    if not done:
                        break
        finally:
            gone.cancel()
        await send_nothing(send)

    async def _answer(self, given: HandOut) -> ClaimAnswer:
        settings = self.core.settings
        tree = await self.core.tree_of(given.run.repository, given.run.sha)
        return ClaimAnswer(
            claim=Claim(
                attempt=given.attempt,
                lease_id=given.lease,
                expires_in_s=given.expires_in_s,
                spec=given.spec,
                context=given.context,
                secrets=given.secrets,
                checkout=Checkout(repository=given.run.repository, commit=given.run.sha, tree=tree),
                policy=self.core.policy,
            ),
            heartbeat_s=settings.heartbeat_s,
            confirm_s=settings.confirm_s,
            features=self.core.features,
        )

    async def heartbeat(self, request: Request, send: Send, job: str) -> None:
        """Extends at once, answers late."""
        call = await self.call(request, job)
        beat = await body_of(request, Heartbeat)
        core = self.core
        wait_s = _seconds(request, "wait")
        until = time.monotonic() + min(wait_s, MOST_WAIT_S)
        with core.waits.listen(Topic.of_job(job)) as news:
            while True:
                news.clear()
                beaten = await core.store.transact(
                    heartbeat, core.rules, call, beat.seen, phase=beat.phase[:100], disk_free_mb=beat.disk_free_mb
                )
                if isinstance(beaten, Refused):
                    raise refused(beaten)
                left = until - time.monotonic()
                if beaten.orders or left <= 0 or core.stopping:
                    break
                try:
                    async with asyncio.timeout(left):
                        await news.wait()
                except TimeoutError:
                    # The lease counts from the answer on, or the wait itself would eat it.
                    beaten = await core.store.transact(heartbeat, core.rules, call, beat.seen)
                    if isinstance(beaten, Refused):
                        raise refused(beaten) from None
                    break
        await send_value(send, HeartbeatAnswer(expires_in_s=beaten.expires_in_s, orders=beaten.orders))

    async def hand_back(self, request: Request, send: Send, job: str) -> None:
        """The job goes back to the queue."""
        call = await self.call(request, job)
        back = await body_of(request, HandBack)
        answer = await self.core.store.transact(
            hand_back, self.core.rules, call, back.reason[:1000], counted=back.counted
        )
        if answer is not None:
            raise refused(answer)
        self.core.ended(AttemptKey(job, call.attempt))
        await send_nothing(send)

    # --- what comes up

    async def fenced(self, call: Call) -> None:
        """Raises 409 where the caller doesn't hold the lease; what was seen a moment ago is believed."""
        moment = time.monotonic()
        if self._fences.get(call, 0.0) > moment:
            return
        held = await self.core.store.transact(check_fence, call)
        if isinstance(held, Refused):
            self._fences.pop(call, None)
            raise refused(held)
        if len(self._fences) > 10_000:
            self._fences.clear()
        self._fences[call] = moment + FENCE_KEPT_S

    async def log(self, request: Request, send: Send, job: str) -> None:
        """Bytes of a step, in order of offsets."""
        call = await self.call(request, job)
        step, offset = number_of(request, "step", most=100_000), number_of(request, "offset")
        kind = request.query.get("kind", "output")
        if kind not in KINDS:
            raise ProblemError(400, "request.query", f"kind is one of {', '.join(KINDS)}, not {kind[:40]!r}")
        time_ns = number_of(request, "time_ns", time.time_ns())
        data = await request.body(LOG_LIMIT)
        await self.fenced(call)
        core, key = self.core, AttemptKey(job, call.attempt)
        masker = await core.masker(key)
        try:
            received = await asyncio.to_thread(
                core.logs.append, key, step, offset, data, kind=kind, time_ns=time_ns, masker=masker
            )
        except GapError as gap:
            raise ProblemError(416, "gap", gap.message, expected=gap.expected) from None
        except SealedError as error:
            raise ProblemError(409, "lease.over", error.message) from None
        core.feed.changed(key)
        await send_value(send, LogAnswer(received))

    async def masks(self, request: Request, send: Send, job: str) -> None:
        """Values to hide in what follows."""
        call = await self.call(request, job)
        said = await body_of(request, MaskValues)
        answer = await self.core.store.transact(add_masks, self.core.rules, call, said.values)
        if isinstance(answer, Refused):
            raise refused(answer)
        masker = await self.core.masker(AttemptKey(job, call.attempt))
        for value in said.values:
            masker.add_mask(value)
        await send_nothing(send)

    async def events(self, request: Request, send: Send, job: str) -> None:
        """Everything but bytes and the end; masked once more."""
        call = await self.call(request, job)
        said = await body_of(request, Events)
        key = AttemptKey(job, call.attempt)
        masker = await self.core.masker(key)
        hidden = [msgspec.json.encode(_hidden(msgspec.to_builtins(event), masker.mask_text)) for event in said.events]
        answer = await self.core.store.transact(accept_events, self.core.rules, call, said.first, hidden)
        if isinstance(answer, Refused):
            raise refused(answer)
        for event in said.events:
            if isinstance(event, StepFinished):
                await asyncio.to_thread(self.core.logs.finish, key, event.step, masker)
        self.core.feed.changed(key)
        await send_value(send, EventsAnswer(answer.next))

    async def result(self, request: Request, send: Send, job: str) -> None:
        """The end, once; the same bytes again are accepted again."""
        call = await self.call(request, job)
        body = await request.body(RESULT_LIMIT)
        try:
            finished = msgspec.json.decode(body, type=JobFinished)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProblemError(400, "request.field", f"JobFinished: {error}") from None
        key = AttemptKey(job, call.attempt)
        masker = await self.core.masker(key)
        outputs = {name: value for name, value in finished.outputs.items() if not masker.hides(value)}
        reason = masker.mask_text(finished.reason) if finished.reason else None
        finished = msgspec.structs.replace(finished, outputs=outputs, reason=reason)
        answer = await self.core.store.transact(take_result, self.core.rules, call, body, finished)
        if isinstance(answer, Refused):
            raise refused(answer)
        self.core.ended(key)
        await send_value(send, ResultAnswer(repeated=answer.repeated))

    async def artifact(self, request: Request, send: Send, job: str, name: str) -> None:
        """One tar; whole or not at all."""
        call = await self.call(request, job)
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise ProblemError(400, "artifact.name", "this can't be an artifact's name")
        await self.fenced(call)
        folder = self.core.artifact_folder(AttemptKey(job, call.attempt))
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        part = folder / f".{secrets.token_hex(8)}.part"
        digest, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as out:
                async for chunk in request.chunks():
                    size += len(chunk)
                    if size > ARTIFACT_LIMIT:
                        raise ProblemError(413, "artifact.size", f"an artifact holds {ARTIFACT_LIMIT} bytes at most")
                    digest.update(chunk)
                    await asyncio.to_thread(out.write, chunk)
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            await self.fenced(call)
            await asyncio.to_thread(part.rename, folder / f"{name}.tar")
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        await send_value(send, StoredArtifact(name, size, f"sha256:{digest.hexdigest()}"))

    async def checkout(self, request: Request, send: Send, job: str) -> None:
        """The repository at the job's commit."""
        call = await self.call(request, job)
        depth = number_of(request, "depth", 1, most=1_000_000)
        await self.fenced(call)
        path = await self.core.checkout_of(job, depth)
        etag = f'"{path.name}"'
        # A pack is compressed already, so the tar goes as it is.
        headers = [(b"content-type", b"application/x-tar"), (b"etag", etag.encode())]
        if request.headers.get("if-range", etag) != etag:
            request.headers.pop("range", None)
        await send_file(request, send, str(path), headers)


def _worker(token: Token, said: ClaimRequest) -> Worker:
    """What dispatch knows of a worker: what it says of itself, and what its token says of it."""
    if not said.claim_id or len(said.claim_id) > 100:
        raise ProblemError(400, "request.field", "ClaimRequest: claim_id has 1 to 100 characters")
    if not _WORD.fullmatch(said.name):
        raise ProblemError(400, "request.field", "ClaimRequest: name has 1 to 100 printable characters")
    for platform in (said.platform, *said.emulates):
        if not _PLATFORM.fullmatch(platform):
            raise ProblemError(400, "request.field", f"ClaimRequest: {platform[:40]!r} is no platform (os/arch)")
    if not PROTOCOL - 1 <= said.protocol <= PROTOCOL:
        raise ProblemError(
            400,
            "worker.protocol",
            f"this server speaks protocol {PROTOCOL}, not {said.protocol}",
            remedy="Upgrade the worker.",
        )
    scopes: dict[str, set[str]] = {}
    for scope in token.scopes:
        kind, _, value = scope.partition(":")
        scopes.setdefault(kind, set()).add(value)
    trust: Any = next(iter(scopes.get("trust", {"any"})))
    return Worker(
        id=token.id,
        name=said.name,
        platform=said.platform,
        version=said.version[:100],
        emulates=frozenset(said.emulates),
        labels=frozenset(said.labels),
        features=frozenset(said.features),
        pools=frozenset(scopes.get("pool", ())),
        slots=max(0, min(said.slots, 10_000)),
        free=max(0, min(said.free, 10_000)),
        disk_free_mb=said.disk_free_mb,
        disk_reclaimable_mb=said.disk_reclaimable_mb,
        trust=trust if trust in ("trusted", "untrusted") else "any",
        publish=frozenset(said.publish) & frozenset(scopes.get("publish", ())),
        draining=said.draining,
    )


def _seconds(request: Request, name: str) -> float:
    text = request.query.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise ProblemError(400, "request.query", f"{name} is a number of seconds, not {text[:40]!r}")
    return float(text)


def _hidden(value: Any, mask: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: _hidden(member, mask) if key in _FREE_TEXT else member for key, member in value.items()}
    return value
