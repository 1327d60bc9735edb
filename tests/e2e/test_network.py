"""The network levels through the engine (D17): what a job sees of its network, and what it is told of a refusal."""

from __future__ import annotations

import socketserver
import threading
from typing import TYPE_CHECKING

import pytest

from e2e.command_line import repository, run_events
from runyard.sandbox.network.levels import available_levels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
BUBBLEWRAP = ("--sandbox", "bubblewrap")
MODES = pytest.mark.parametrize("flags", [(), ("--strict-github",)], ids=["D17", "D17-strict"])


class _Answer(socketserver.StreamRequestHandler):
    timeout = 10

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreached!")


@pytest.fixture
def outside() -> Iterator[int]:
    """A server of this machine that stands for the outside; its port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join(10)


PROXY = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - {name: Sees, run: 'echo "[$http_proxy][$HTTPS_PROXY$https_proxy]" | sed s/[0-9][0-9]*/N/g'}
      - name: Allowed
        run: |
          no_proxy= NO_PROXY= python3 -c 'import urllib.request as u
          print(u.urlopen("http://127.0.0.1:${{ vars.PORT }}/", timeout=8).read().decode())'
      - name: Refused
        continue-on-error: true
        run: |
          no_proxy= NO_PROXY= python3 -c 'import urllib.request as u
          for _ in range(2):
              try: u.urlopen("http://10.9.9.9/", timeout=8)
              except OSError as err: print(err)
          raise SystemExit(4)'
"""


@MODES
def test_D17_proxy_shows_its_variables_and_tells_what_it_refused(
    tmp_path: Path, outside: int, flags: tuple[str, ...]
) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: PROXY})
    given = (*BUBBLEWRAP, "--network", "proxy", "--var", f"PORT={outside}", *flags)
    told = run_events(folder, *given, env={"RUNYARD_EGRESS_ALLOW": f"127.0.0.1:{outside}"})
    assert told.code == 0, told.log("j")
    lines = told.log("j", "output")
    assert lines[0].startswith("[http://N.N.N.N:N")
    assert "][]" not in lines[0]
    assert "reached!" in lines
    refused = [e for e in told.of_type("log", job="j", kind="runner") if "refused 10.9.9.9:80" in e["text"]]
    assert [each["step"]["name"] for each in refused] == ["Refused"], "one line, in the step that tried"
    assert refused[0]["text"].startswith("The network level proxy refused 10.9.9.9:80: ")
    assert "network proxy" in "\n".join(told.log("j", "runner"))


PUBLIC = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - name: Refused
        run: python3 -c 'import socket; socket.create_connection(("10.9.9.9", 80), 5)'
"""


@MODES
def test_D17_public_tells_what_its_filter_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    refusal = available_levels()["public"]
    if refusal is not None:
        pytest.skip(f"public can't be kept here: {refusal.because}")
    folder = repository(tmp_path / "repo", {WORKFLOW: PUBLIC})
    told = run_events(folder, *BUBBLEWRAP, "--network", "public", *flags)
    assert told.code == 1
    assert told.of_type("step_finished", outcome="failure")[0]["step"]["name"] == "Refused"
    refused = [e for e in told.of_type("log", job="j", kind="runner") if "refused 10.9.9.9" in e["text"]]
    assert [each["step"]["name"] for each in refused] == ["Refused"]
    assert refused[0]["text"].startswith("The network level public refused 10.9.9.9")
