"""The engine without an event loop: a few calls for what has to be known or removed before there is one, or after.

Standard library only, and loaded when it is needed, so that the guard (`docker_guard`) starts in milliseconds beside a
job that starts too, and outlives the process it watches. Everything else goes through `docker_api`.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

API = "v1.41"


class Unanswered(Exception):  # noqa: N818 - the callers turn it into an error of theirs
    """Nobody answered, or not in HTTP."""


def call(socket_path: str, method: str, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """One call: status and body, in HTTP/1.0, where an answer ends with its connection. Raises Unanswered."""
    import socket

    deadline = time.monotonic() + timeout_s
    parts = []
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(timeout_s)
            door.connect(socket_path)
            door.sendall(f"{method} /{API}{path} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode())
            while part := door.recv(65536):
                parts.append(part)
                door.settimeout(max(0.001, deadline - time.monotonic()))
    except OSError as gone:
        raise Unanswered(str(gone)) from gone
    head, end, body = b"".join(parts).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not end or not words[0].startswith(b"HTTP/") or len(words) < 2 or not words[1].isdigit():
        raise Unanswered("what it answers is not HTTP")
    return int(words[1]), body


def listed(socket_path: str, label: str) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Ids and labels of everything with a label, by kind: `containers`, `networks`, `volumes`. Raises Unanswered."""
    import json
    from urllib.parse import quote

    wanted = quote(json.dumps({"label": [label]}), safe="")
    found: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for kind, path in (("containers", "/containers/json?all=1&"), ("networks", "/networks?"), ("volumes", "/volumes?")):
        status, body = call(socket_path, "GET", f"{path}filters={wanted}")
        rows: Any = json.loads(body) if status == 200 else []
        rows = rows.get("Volumes") if isinstance(rows, dict) else rows
        found[kind] = [(row.get("Id") or row["Name"], row.get("Labels") or {}) for row in rows or []]
    return found


def remove(socket_path: str, found: dict[str, list[tuple[str, dict[str, str]]]], seconds: float = 20.0) -> list[str]:
    """Remove containers, then networks, then volumes; what is still there after the time. Raises Unanswered."""
    deadline = time.monotonic() + seconds
    left: list[str] = []
    for kind, query in (("containers", "?force=1&v=1"), ("networks", ""), ("volumes", "?force=1")):
        for name, _ in found[kind]:
            while True:
                status, _ = call(socket_path, "DELETE", f"/{kind}/{name}{query}", timeout_s=15.0)
                if status in (200, 204, 404):
                    break
                if time.monotonic() > deadline:
                    left.append(f"{kind.removesuffix('s')} {name}")
                    break
                time.sleep(0.05)  # already going, or still held by one that goes
    return left


def default_socket(kind: Literal["docker", "podman"] = "docker") -> str:
    """Where the engine of this user is expected: what the environment names, else the usual place."""
    if kind == "podman":
        named = os.environ.get("RUNYARD_PODMAN_SOCKET")
        if named:
            return named
        if os.geteuid() == 0:
            return "/run/podman/podman.sock"
        return f"{os.environ.get('XDG_RUNTIME_DIR', f'/run/user/{os.geteuid()}')}/podman/podman.sock"
    host = os.environ.get("DOCKER_HOST", "")
    return host.removeprefix("unix://") if host.startswith("unix://") else "/var/run/docker.sock"


def answers_at(socket_path: str) -> bool:
    """Whether the path is a socket this user may write to; whether somebody listens is only known by asking."""
    try:
        mode = os.stat(socket_path).st_mode  # noqa: PTH116 - the guard loads this file, and nothing it can do without
        return stat.S_ISSOCK(mode) and os.access(socket_path, os.W_OK)
    except OSError:
        return False
