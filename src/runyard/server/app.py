"""The ASGI application of a server: routes to the API and the pages, and health for whoever watches the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

import runyard
from runyard.job.dialout import PREFIX as WORKER
from runyard.server.api.http import ProblemError, as_problem, find, send_problem
from runyard.server.api.openapi import document
from runyard.server.api.people import PREFIX as PEOPLE
from runyard.server.api.people import PeopleApi
from runyard.server.api.worker import WorkerApi
from runyard.service.asgi import Request, send_bytes

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from runyard.dispatch.records import Phase
    from runyard.server.core import Core
    from runyard.server.store.port import Transaction
    from runyard.service.asgi import App, Receive, Send

_READY_S: Final = 5.0

log = structlog.get_logger("runyard.server")


class ServerApp:
    """Callable by any ASGI server. `pages` answers what isn't the API's."""

    def __init__(self, core: Core, pages: App | None = None) -> None:
        self.core = core
        self.worker = WorkerApi(core)
        self.people = PeopleApi(core)
        self.pages = pages
        self.requests: dict[int, int] = {}
        self._document: bytes | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        began = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                status = int(message["status"])
                self.requests[status] = self.requests.get(status, 0) + 1
            await send(message)

        request = Request(scope, receive)
        try:
            await self._answer(request, sending, scope, receive)
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                log.exception("a call failed", method=request.method, path=request.path)
                problem = ProblemError(500, "internal", "the server failed; its log says more")
            if not began:
                await send_problem(sending, problem)
            elif problem.status == 500:
                raise

    async def _answer(self, request: Request, send: Send, scope: MutableMapping[str, Any], receive: Receive) -> None:
        path = request.path
        if path.startswith(f"{WORKER}/"):
            found, values = find(self.worker.routes, request)
            await found.handler(request, send, **values)
        elif path.startswith(f"{PEOPLE}/"):
            found, values = find(self.people.routes, request)
            await found.handler(request, send, **values)
        elif path == "/healthz":
            await send_bytes(send, 200, b"ok\n", [(b"content-type", b"text/plain")])
        elif path == "/readyz":
            await self._ready(send)
        elif path == "/metrics":
            await self._metrics(send)
        elif path == "/-/openapi.json":
            if self._document is None:
                self._document = document((*self.worker.routes, *self.people.routes))
            await send_bytes(send, 200, self._document, [(b"content-type", b"application/json")])
        elif self.pages is not None:
            await self.pages(scope, receive, send)
        else:
            raise ProblemError(404, "request.path", f"there is no {path[:200]}")

    async def _ready(self, send: Send) -> None:
        if self.core.stopping:
            raise ProblemError(503, "server.stopping", "the server is stopping")
        await self.core.store.transact(_clock)
        await send_bytes(send, 200, b"ready\n", [(b"content-type", b"text/plain")])

    async def _metrics(self, send: Send) -> None:
        phases, workers = await self.core.store.transact(_numbers, self.core.settings.presence_s)
        lines = [
            "# TYPE runyard_info gauge",
            f'runyard_info{{version="{runyard.__version__}"}} 1',
            "# TYPE runyard_uptime_seconds gauge",
            f"runyard_uptime_seconds {(time.time_ns() - self.core.started_ns) / 1e9:.1f}",
            "# TYPE runyard_jobs gauge",
            *(f'runyard_jobs{{phase="{phase}"}} {count}' for phase, count in sorted(phases.items())),
            "# TYPE runyard_workers gauge",
            f"runyard_workers {workers}",
            "# TYPE runyard_parked_claims gauge",
            f"runyard_parked_claims {self.core.waits.parked}",
            "# TYPE runyard_responses_total counter",
            *(
                f'runyard_responses_total{{status="{status}"}} {count}'
                for status, count in sorted(self.requests.items())
            ),
            "# TYPE runyard_background_failures_total counter",
            *(
                f'runyard_background_failures_total{{work="{name}"}} {count}'
                for name, count in self.core.failures.items()
            ),
        ]
        body = ("\n".join(lines) + "\n").encode()
        await send_bytes(send, 200, body, [(b"content-type", b"text/plain; version=0.0.4")])


def _clock(tx: Transaction) -> int:
    return tx.now_ns()


def _numbers(tx: Transaction, presence_s: float) -> tuple[dict[Phase, int], int]:
    return tx.phases(), len(tx.workers(tx.now_ns() - round(presence_s * 1e9)))
