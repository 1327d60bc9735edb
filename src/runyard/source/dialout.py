"""The client of the dial-out protocol: one session to one server, each call with a deadline, each refusal as an error.

One call here is one try: who repeats what, and for how long, is decided by the lease (`source/dialout_lease.py`). An
error says what may follow: AwayError (try again), LeaseOverError (end the sandbox, report nothing more), RefusedError
(a person has to act), GapError (go on from where the server is). The messages are those of `job/dialout.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from runyard.job import InputError, MachineError, RunyardError
from runyard.job.dialout import (
    ATTEMPT_HEADER,
    LEASE_HEADER,
    PREFIX,
    ClaimAnswer,
    EventsAnswer,
    HeartbeatAnswer,
    LogAnswer,
    Problem,
    ResultAnswer,
    StoredArtifact,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from runyard.job.dialout import ClaimRequest, Events, HandBack, Heartbeat, MaskValues
    from runyard.job.event import LogKind

CALL_S: Final = 15.0
"""How long a call may take that has nothing to wait for."""

UPLOAD_S: Final = 3600.0
STALL_S: Final = 60.0
"""How long a transfer may stand still."""

CONNECT_S: Final = 10.0
_ANSWER_LIMIT: Final = 1 << 20
_CLAIM_LIMIT: Final = 64 << 20
_CHUNK: Final = 1 << 20
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

T = TypeVar("T")


class AwayError(MachineError):
    """The server didn't answer, or not now; the same call may succeed later. `after_s` is what it asked to wait."""

    def __init__(self, message: str, *, code: str = "dialout.away", remedy: str | None = None, after_s: float = 0.0):
        super().__init__(message, code=code, remedy=remedy, retryable=True)
        self.after_s = after_s


class RefusedError(MachineError):
    """The server answers and won't serve this worker; repeating the call changes nothing."""


class LeaseOverError(RunyardError):
    """The job isn't this worker's any more: its sandbox ends at once and nothing more is reported."""


class GapError(RunyardError):
    """The server lacks what comes before: it wants the byte or event number `expected` next."""

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message, code="dialout.gap", retryable=True)
        self.expected = expected


class Fence(NamedTuple):
    """What every call about a job carries."""

    job: str
    attempt: int
    lease: str

    @property
    def headers(self) -> dict[str, str]:
        """The two headers of the protocol."""
        return {LEASE_HEADER: self.lease, ATTEMPT_HEADER: str(self.attempt)}


class Download(NamedTuple):
    """The beginning of an answer that streams: `begin` is the first byte of it (0 where the whole comes)."""

    etag: str
    encoding: str
    begin: int
    total: int | None
    chunks: AsyncIterator[bytes]


def check_url(url: str) -> str:
    """The address without a slash at its end. Raises InputError for one that is no http(s) address."""
    parts = urlsplit(url)
    try:
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine or parts.query or parts.fragment:
        raise InputError(
            f"--url takes the address of a server, as in https://ci.example.org, not {url!r}",
            key="--url",
            code="input.url",
        )
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "--url holds a name or password; a worker's token comes from --token-file or RUNYARD_WORKER_TOKEN",
            key="--url",
            code="input.url",
        )
    return url.rstrip("/")


class DialOut:
    """Calls to one server with one token. Use it as a context; every method is safe to repeat.

    `token` goes to this address alone: redirects are answered with an error.
    """

    def __init__(self, url: str, token: str, *, agent: str = "runyard-worker") -> None:
        self.url = check_url(url)
        self._token = token
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<DialOut to {self.url}>"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=45.0),
            headers={"Authorization": f"Bearer {self._token}", "User-Agent": self._agent},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Calls --------------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        """One long poll; None when there was no job. The same claim id gets the same hand-out.

        Raises AwayError, RefusedError, and LeaseOverError where what the claim id led to is over.
        """
        body = await self._call("POST", "claim", request, timeout_s=request.wait_s + CALL_S, limit=_CLAIM_LIMIT)
        return None if body is None else _decoded(body, ClaimAnswer)

    async def heartbeat(self, fence: Fence, beat: Heartbeat, *, wait_s: float) -> HeartbeatAnswer:
        """A sign of life; answered after `wait_s` seconds, or as soon as there are orders."""
        path = f"{_job(fence)}/heartbeat"
        query = {"wait": f"{wait_s:g}"}
        return _must(
            await self._call("POST", path, beat, fence=fence, query=query, timeout_s=wait_s + CALL_S), HeartbeatAnswer
        )

    async def masks(self, fence: Fence, values: MaskValues) -> None:
        """Values to hide, before the bytes that follow."""
        await self._call("POST", f"{_job(fence)}/masks", values, fence=fence)

    async def log(self, fence: Fence, *, step: int, offset: int, kind: LogKind, time_ns: int, data: bytes) -> int:
        """Bytes of a step's log; the offset that comes next. Raises GapError too."""
        query = {"step": str(step), "offset": str(offset), "kind": kind, "time_ns": str(time_ns)}
        body = await self._call("POST", f"{_job(fence)}/log", data, fence=fence, query=query)
        return _must(body, LogAnswer).offset

    async def events(self, fence: Fence, events: Events) -> int:
        """Events in order; the number that comes next. Raises GapError too."""
        return _must(await self._call("POST", f"{_job(fence)}/steps", events, fence=fence), EventsAnswer).next

    async def result(self, fence: Fence, body: bytes) -> ResultAnswer:
        """The result, as the bytes of a JobFinished in JSON: the same bytes at each repeat."""
        answer = await self._call(
            "POST", f"{_job(fence)}/result", body, fence=fence, content="application/json", timeout_s=STALL_S
        )
        return _must(answer, ResultAnswer)

    async def hand_back(self, fence: Fence, back: HandBack) -> None:
        """The job goes back to the queue."""
        await self._call("POST", f"{_job(fence)}/handback", back, fence=fence)

    async def artifact(self, fence: Fence, name: str, path: str) -> StoredArtifact:
        """Upload one tar, a file of this machine."""
        with open(path, "rb") as file:  # noqa: ASYNC230 - opening is quick, aiohttp reads it in a thread
            answer = await self._call(
                "PUT",
                f"{_job(fence)}/artifacts/{quote(name, safe='')}",
                file,
                fence=fence,
                timeout_s=UPLOAD_S,
                content="application/x-tar",
            )
        return _must(answer, StoredArtifact)

    @contextlib.asynccontextmanager
    async def checkout(self, fence: Fence, *, depth: int, etag: str = "", begin: int = 0) -> AsyncIterator[Download]:
        """The tar of the repository. With `etag` and `begin` it goes on there, where it is still the same one."""
        headers = {"Accept-Encoding": "zstd, identity;q=0.5"}
        if begin:
            headers |= {"Range": f"bytes={begin}-", "If-Range": etag}
        async with self._sent("GET", f"{_job(fence)}/checkout", fence, {"depth": str(depth)}, headers) as answer:
            if answer.status not in (200, 206):
                _refused(answer, await _read(answer, _ANSWER_LIMIT), about_job=True)
            first, total = _content_range(answer) if answer.status == 206 else (0, answer.content_length)
            yield Download(
                etag=answer.headers.get("ETag", ""),
                encoding=answer.headers.get("Content-Encoding", "identity").lower(),
                begin=first,
                total=total,
                chunks=_chunks(answer),
            )

    # One try ------------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        fence: Fence | None = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = CALL_S,
        limit: int = _ANSWER_LIMIT,
        content: str = "",
    ) -> bytes | None:
        """The body of a good answer, None of a 204."""
        if isinstance(body, msgspec.Struct):
            body, content = msgspec.json.encode(body), "application/json"
        headers = {"Content-Type": content or "application/octet-stream"}
        try:
            async with asyncio.timeout(timeout_s), self._sent(method, path, fence, query, headers, body=body) as answer:
                data = await _read(answer, limit)
                if answer.status == 204:
                    return None
                if answer.status in (200, 201):
                    return data
                _refused(answer, data, about_job=fence is not None)
        except TimeoutError as error:
            raise AwayError(f"{self.url} gave no answer within {timeout_s:g} s") from error

    @contextlib.asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        fence: Fence | None,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        *,
        body: Any = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        try:
            async with self._session.request(
                method,
                f"{self.url}{PREFIX}/{path}",
                params=query,
                data=body,
                headers={**headers, **(fence.headers if fence is not None else {})},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            ) as answer:
                yield answer
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AwayError(f"{self.url} can't be reached: {_words(error)}") from error


def _job(fence: Fence) -> str:
    return f"jobs/{quote(fence.job, safe='')}"


async def _read(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(65536):
        data += chunk
        if len(data) > limit:
            raise AwayError(f"the server's answer is longer than {limit} bytes", code="dialout.answer")
    return bytes(data)


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                chunk = await answer.content.read(_CHUNK)
        except TimeoutError as error:
            raise AwayError(f"the transfer stood still for {STALL_S:g} s") from error
        if not chunk:
            return
        yield chunk


def _content_range(answer: aiohttp.ClientResponse) -> tuple[int, int | None]:
    unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        raise AwayError("the server sent a part without saying which", code="dialout.answer")
    return int(first), int(total) if total.isdigit() else None


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Not the text itself: it may hold secrets.
        raise AwayError(f"the server's answer is no {kind.__name__}: {error}", code="dialout.answer") from None


def _must(body: bytes | None, kind: type[T]) -> T:
    return _decoded(b"{}" if body is None else body, kind)


def _words(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error
        return str(reason.strerror or reason)
    return str(error) or type(error).__name__


def problem_of(body: bytes, status: int) -> Problem:
    """The Problem of an answer; one made of its status where the body is none."""
    try:
        return msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Problem(code="", message=f"the server answered {status}")


def _refused(answer: aiohttp.ClientResponse, body: bytes, *, about_job: bool) -> NoReturn:
    """Raise what an answer that is not good means."""
    status = answer.status
    problem = problem_of(body, status)
    message, code = problem.message, problem.code or f"dialout.{status}"
    if status == 416 and problem.expected is not None:
        raise GapError(message, problem.expected)
    if status in (408, 425, 429) or status >= 500:
        after = answer.headers.get("Retry-After", "")
        raise AwayError(
            message,
            code=code,
            remedy=problem.remedy or None,
            after_s=min(float(after), 60.0) if after.isdigit() else 0.0,
        )
    gone = status == 404 and (not problem.code or problem.code.startswith(("job.", "lease.")))
    if status == 409 or (about_job and (gone or status in (401, 403, 410))):
        raise LeaseOverError(message, code=code, remedy=problem.remedy or None)
    if status in (401, 403):
        raise RefusedError(
            f"the server refuses this worker's token: {message}",
            code=code,
            remedy=problem.remedy
            or "On the server, `runyard token create` makes a worker token; give it with --token-file.",
        )
    if 300 <= status < 400:
        raise RefusedError(
            f"the server sends workers elsewhere ({status} to {answer.headers.get('Location', 'nowhere')})",
            code=code,
            remedy="--url takes the server's own address; a token is never sent on.",
        )
    if status == 404 and not problem.code:
        raise RefusedError(
            "no Runyard server answers at this address (404)", code=code, remedy="Look at --url, path included."
        )
    raise RefusedError(message, code=code, remedy=problem.remedy or None)
