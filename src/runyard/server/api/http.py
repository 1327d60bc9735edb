"""What both sides of the API share: problems, typed bodies, routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from runyard.job import InputError, MachineError, RunyardError
from runyard.job.dialout import Problem
from runyard.server.store.port import StoreBusyError
from runyard.service.asgi import Refusal, Request, send_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.server.control import Refused
    from runyard.service.asgi import Send

T = TypeVar("T")

BODY_LIMIT: Final = 4 << 20
JSON: Final = (b"content-type", b"application/json")

_STATUS: Final = {
    "lease.over": 409,
    "claim.over": 409,
    "result.other": 409,
    "gap": 416,
    "job.unknown": 404,
    "run.unknown": 404,
    "worker.unknown": 404,
}


class ProblemError(Exception):
    """An answer of 400 and above."""

    def __init__(self, status: int, code: str, message: str, *, remedy: str = "", expected: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(code, message, remedy, expected)


def refused(refusal: Refused) -> ProblemError:
    """A flow's refusal as an answer: 409 for a lease that is over, 416 for a gap, 404 for what isn't there."""
    status = _STATUS.get(refusal.code, 409)
    return ProblemError(status, refusal.code, refusal.message, expected=refusal.expected)


def as_problem(error: Exception) -> ProblemError | None:
    """What an exception answers; None for a fault of ours."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, Refusal):
        return ProblemError(error.status, f"request.{error.code}", error.message)
    if isinstance(error, OverflowError):
        return ProblemError(400, "request.number", "a number is larger than any that is used here")
    if isinstance(error, StoreBusyError):
        return ProblemError(503, "store.busy", str(error), remedy="Try again in a moment.")
    if isinstance(error, InputError):
        place = ":".join(str(part) for part in (error.path, error.line, error.column) if part is not None)
        message = str(error) if hasattr(error, "problems") else error.message
        return ProblemError(
            422, error.code or "input", f"{place}: {message}" if place and place not in message else message
        )
    if isinstance(error, MachineError):
        return ProblemError(502 if error.retryable else 500, error.code, error.message, remedy=error.remedy or "")
    if isinstance(error, RunyardError):
        return ProblemError(409, error.code, error.message, remedy=error.remedy or "")
    return None


async def send_problem(send: Send, error: ProblemError) -> None:
    """The answer of a problem."""
    headers = [JSON]
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="runyard"'))
    if error.status == 503:
        headers.append((b"retry-after", b"5"))
    await send_bytes(send, error.status, msgspec.json.encode(error.problem), headers)


async def send_value(send: Send, value: object, status: int = 200) -> None:
    """A value as JSON."""
    await send_bytes(send, status, msgspec.json.encode(value), [JSON, (b"cache-control", b"no-store")])


async def send_nothing(send: Send) -> None:
    """204."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def body_of(request: Request, kind: type[T], limit: int = BODY_LIMIT) -> T:
    """The body as a message; unknown fields are ignored. Raises ProblemError that names a wrong field or tag."""
    data = await request.body(limit)
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise ProblemError(400, "request.field", f"{kind.__name__}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProblemError(400, "request.json", "the body is no JSON") from None


def number_of(request: Request, name: str, default: int | None = None, *, most: int = (1 << 63) - 1) -> int:
    """A whole number of the query. Raises ProblemError that names it."""
    text = request.query.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > most:
        raise ProblemError(400, "request.query", f"{name} is a whole number from 0 to {most}, not {text[:40]!r}")
    return int(text)


class Route(NamedTuple):
    """One call: method, path pattern with named groups, handler, and for OpenAPI what goes in and comes out."""

    method: str
    pattern: re.Pattern[str]
    path: str
    handler: Callable[..., Awaitable[None]]
    summary: str
    takes: Any = None
    gives: Any = None
    query: tuple[str, ...] = ()


def route(method: str, path: str, handler: Callable[..., Awaitable[None]], summary: str, **more: Any) -> Route:
    """A route from a path with `{names}`; a name takes one segment."""
    pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]{1,200})", re.escape(path)))
    return Route(method, pattern, path, handler, summary, **more)


def find(routes: tuple[Route, ...], request: Request) -> tuple[Route, dict[str, str]]:
    """The route of a request and its path's values. Raises ProblemError: 404, or 405 with what the path takes."""
    methods: list[str] = []
    for each in routes:
        found = each.pattern.fullmatch(request.path)
        if found is None:
            continue
        if each.method == request.method:
            return each, found.groupdict()
        methods.append(each.method)
    if methods:
        raise ProblemError(405, "request.method", f"{request.path} takes {', '.join(methods)}, not {request.method}")
    raise ProblemError(404, "request.path", f"there is no {request.path[:200]}")
