"""`runyard serve` and `runyard worker` together: the faults of the way, with real processes on both sides."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.command_line import RUNYARD, environment
from source.repositories import git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.timeout(110)
DEADLINE_S = 20

COUNT = 'for i in $(seq 0 49); do echo "n $i"; sleep 0.1; done'


class Stage:
    """A server with one project, and a worker, each a process that can be ended and started again."""

    def __init__(self, home: Path, script: str, *, lease: str = "60s", heartbeat: str = "15s") -> None:
        self.home = home
        self.repository = home / "repository"
        (self.repository / ".github" / "workflows").mkdir(parents=True)
        (self.repository / "hello.txt").write_text("hello from the repository\n")
        lines = "".join(f"          {line}\n" for line in script.splitlines())
        (self.repository / ".github" / "workflows" / "ci.yml").write_text(
            "on: workflow_dispatch\njobs:\n  t:\n    runs-on: ubuntu-latest\n    steps:\n"
            f"      - uses: actions/checkout@v4\n      - run: |\n{lines}"
        )
        git(self.repository, "init", "-q", "-b", "main")
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-q", "-m", "one")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        (home / "server.toml").write_text(f'[limits]\nlease = "{lease}"\nheartbeat = "{heartbeat}"\n')
        self.env = environment(
            home,
            {
                "RUNYARD_STATE_DIR": str(home / "state"),
                "RUNYARD_URL": self.url,
                "RUNYARD_TOKEN_FILE": str(home / "data" / "admin.token"),
            },
        )
        self.server: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.serve()
        self.ask("token", "create", "--worker", "w1", "--to", str(self.home / "worker.token"))
        self.ask("project", "add", "acme/app", "--git", str(self.repository))
        self.work()

    def serve(self) -> None:
        self.server = self._spawn(
            "serve", "--listen", self.url.removeprefix("http://"), "--data", str(self.home / "data"),
            "--config", str(self.home / "server.toml"),
        )  # fmt: skip
        self.until(self._listens)

    def work(self) -> None:
        self.worker = self._spawn(
            "worker", "--url", self.url, "--token-file", str(self.home / "worker.token"), "--name", "w1",
            "--network", "none", "--cache-dir", str(self.home / "cache"),
        )  # fmt: skip

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [*RUNYARD, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, cwd=self.home
            )

    def _listens(self) -> bool:
        host, _, port = self.url.removeprefix("http://").partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return (self.home / "data" / "admin.token").exists()
        return False

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            [*RUNYARD, *arguments], stdin=subprocess.DEVNULL, capture_output=True, env=self.env, cwd=self.home,
            timeout=DEADLINE_S, check=False, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}{self.said()}"
        return done.stdout

    def trigger(self) -> None:
        self.ask("trigger", "acme/app", "--ref", "main")

    def job(self) -> dict[str, Any]:
        shown = json.loads(self.ask("runs", "show", "1", "--json"))
        jobs: list[dict[str, Any]] = shown["jobs"]
        return jobs[0]

    def logs(self) -> str:
        return self.ask("runs", "logs", "1")

    def until(self, true: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s\n{self.said()}"
            time.sleep(0.1)

    def said(self) -> str:
        return "".join(f"--- {each.name}\n{each.read_text()[-3000:]}" for each in sorted(self.home.glob("*.log")))

    def prints(self, text: str) -> None:
        """Wait for a line of the job's log on the server."""
        self.until(lambda: text in self.logs())

    def end(self) -> None:
        for process in (self.worker, self.server):
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            if process is self.worker:
                time.sleep(0.2)  # real time: a second signal that comes with the first one is the same
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)


@contextlib.contextmanager
def stage(home: Path, script: str, **keys: Any) -> Iterator[Stage]:
    made = Stage(home, script, **keys)
    try:
        made.start()
        yield made
    finally:
        made.end()


def processes_with(text: str) -> list[str]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if text.encode() in (each / "cmdline").read_bytes():
                    found.append(each.name)
    return found


def numbers(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("n ")]


def ended(made: Stage) -> Mapping[str, Any]:
    made.until(lambda: bool(made.job().get("conclusion")), seconds=40)
    return made.job()


def test_a_run_with_a_checkout_from_trigger_to_log(tmp_path: Path) -> None:
    with stage(tmp_path, 'cat hello.txt\ngit log --format=%s -1\ntest -z "$(git status --porcelain)"') as made:
        made.trigger()
        assert ended(made)["conclusion"] == "success", made.logs() + made.said()
        assert "hello from the repository" in made.logs()
        assert "\none\n" in made.logs()


def test_F02_a_server_that_is_killed_under_a_job_and_comes_back(tmp_path: Path) -> None:
    with stage(tmp_path, COUNT) as made:
        made.trigger()
        made.prints("n 5\n")
        assert made.server is not None
        made.server.kill()
        made.server.wait(10)
        time.sleep(1)  # real time: the job works on meanwhile
        made.serve()
        job = ended(made)
        assert job["conclusion"] == "success", made.said()
        assert job["attempt"] == 1
        assert numbers(made.logs()) == list(range(50))


def test_a_cancellation_reaches_a_silent_step(tmp_path: Path) -> None:
    with stage(tmp_path, "echo here\nexec sleep 97.6501") as made:
        made.trigger()
        made.prints("here\n")
        began = time.monotonic()
        made.ask("runs", "cancel", "1")
        made.until(lambda: not processes_with("97.6501"))
        assert time.monotonic() - began < 12
        assert ended(made)["conclusion"] == "cancelled"


def test_a_worker_that_is_killed_gives_its_job_to_the_next(tmp_path: Path) -> None:
    script = "echo here; sleep 3.1602; echo all"
    with stage(tmp_path, script) as made:
        made.trigger()
        made.prints("here\n")
        assert made.worker is not None
        made.worker.kill()
        made.worker.wait(10)
        made.until(lambda: not processes_with("3.1602"))
        made.work()
        job = ended(made)
        assert job["conclusion"] == "success", made.said()
        assert job["attempt"] == 2
