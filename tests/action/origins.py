"""Git servers for tests of actions: folders of bare repositories, and a smart HTTP server that remembers requests."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from source.repositories import ENVIRONMENT, git

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def make_origin(folder: Path, repository: str, files: Mapping[str, str], *, tag: str = "v1") -> str:
    """A bare-like repository `folder/owner/name` with one commit and a tag; the commit comes back."""
    place = folder / repository
    if not (place / ".git").exists():
        place.mkdir(parents=True, exist_ok=True)
        git(place, "init", "-q", "-b", "main")
        git(place, "config", "uploadpack.allowAnySHA1InWant", "true")
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(place, "add", "-A", "-f")
    git(place, "commit", "-q", "--allow-empty", "-m", tag)
    git(place, "tag", "-f", tag)
    return git(place, "rev-parse", "HEAD")


def hostile_commit(place: Path, tree_text: bytes) -> str:
    """A commit, tagged `evil`, whose tree is made of raw `mode kind id name` rows, with no check of names."""
    tree = _piped(place, ["mktree", "-z", "--missing"], tree_text)
    commit = git(place, "commit-tree", "-m", "evil", tree)
    git(place, "tag", "-f", "evil", commit)
    return commit


def raw_commit(place: Path, raw_tree: bytes) -> str:
    """The same from the bytes of a tree object."""
    tree = _piped(place, ["hash-object", "-t", "tree", "-w", "--stdin", "--literally"], raw_tree)
    commit = git(place, "commit-tree", "-m", "evil", tree)
    git(place, "tag", "-f", "evil", commit)
    return commit


def blob(place: Path, data: bytes) -> str:
    return _piped(place, ["hash-object", "-w", "--stdin"], data)


def _piped(place: Path, arguments: list[str], data: bytes) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=place, input=data, capture_output=True, check=True, timeout=20,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    return done.stdout.decode().strip()


@dataclass
class GitServer:
    """`git http-backend` on loopback. `requests` are (method, path with query, Authorization)."""

    folder: Path
    token: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> GitServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer(self, b"")

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
                    outer.answer(self, _chunks(self))
                else:
                    outer.answer(self, self.rfile.read(size))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def fetches(self) -> list[str]:
        """Paths of requests that asked for objects; everything else is metadata."""
        return [path for method, path, body in self.requests if method == "POST" and body == "fetch"]

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path, _, query = handler.path.partition("?")
        kind = "fetch" if b"command=fetch" in body or b"want " in body else "metadata"
        self.requests.append((handler.command, path, kind))
        if self.token:
            import base64

            wanted = "Basic " + base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
            if handler.headers.get("Authorization") != wanted:
                handler.send_response(401)
                handler.send_header("WWW-Authenticate", "Basic realm=x")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
        env = {
            **os.environ,
            **ENVIRONMENT,
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": handler.command,
            "CONTENT_TYPE": handler.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding") or "",
            "GIT_PROTOCOL": handler.headers.get("Git-Protocol") or "",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "http.uploadpack",
            "GIT_CONFIG_VALUE_1": "true",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, env=env, timeout=20, check=False
        )
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        handler.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        handler.wfile.write(rest)


def _chunks(handler: BaseHTTPRequestHandler) -> bytes:
    parts = []
    while size := int(handler.rfile.readline().strip() or b"0", 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)
