"""Jobs with containers on a real engine, through the real command line (job-semantics 9.6, 17; F38, F40; D12, D16)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import images
from action.origins import make_origin
from e2e.command_line import RUNYARD, environment, repository, run_events, runyard
from runyard.sandbox.docker_api import EngineApi
from runyard.sandbox.docker_ask import NoSuchObjectError
from runyard.sandbox.docker_now import default_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(110)]

SECONDS = 20.0
SECRET = "seed-7f1c-in-a-step"
SERVICE = "mkdir -p /www && echo hello > /www/index.html && exec httpd -f -p 5432 -h /www"


@pytest.fixture(scope="module")
def image() -> str:
    images.engine_socket()
    return images.bash_image()


def workflow(*jobs: str) -> dict[str, str]:
    return {".github/workflows/ci.yml": "on: push\njobs:\n" + "".join(jobs)}


def with_service(name: str, image: str, script: str) -> str:
    return f"""
  {name}:
    runs-on: ubuntu-latest
    container: {{image: "{image}", options: --name main}}
    services:
      db:
        image: {image}
        command: sh -c "{SERVICE}"
        ports: [5432/tcp]
        options: --health-cmd "wget -qO- http://localhost:5432/" --health-interval 200ms --name other
    steps:
      - run: |
          echo "db=${{{{ job.services.db.id }}}} net=${{{{ job.services.db.network }}}} job=${{{{ job.container.id }}}}"
          echo "port=${{{{ job.services.db.ports['5432'] }}}} same=${{{{ job.services.db.ports[5432] }}}}"
          echo "status=${{{{ job.status }}}}"
      - env: {{TOKEN_OF_STEP: "${{{{ secrets.SEED }}}}"}}
        run: |
          for name in db:5432 other:5432 "localhost:${{{{ job.services.db.ports[5432] }}}}"; do
            wget -qO- "http://$name/"
          done
          {script}
"""


def told_ids(lines: list[str]) -> dict[str, str]:
    words = [word.partition("=") for line in lines for word in line.split()]
    return {name: value for name, is_pair, value in words if is_pair}


def is_there(ids: dict[str, str]) -> list[str]:
    """Which of the containers and networks that a job named are still there."""

    async def ask() -> list[str]:
        found = []
        async with EngineApi(default_socket()) as api:
            for name in ("db", "job"):
                with contextlib.suppress(NoSuchObjectError):
                    await api.container(ids[name])
                    found.append(name)
            found += ["net" for network in await api.networks({}) if network.id == ids["net"]]
        return found

    return asyncio.run(ask())


def get(path: str) -> Any:
    """A question to the engine as anybody could ask it, answered with everything it knows."""
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(SECONDS)
        door.connect(default_socket())
        door.sendall(f"GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
        answer = b""
        while piece := door.recv(65536):
            answer += piece
    return answer.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")


def of_sandbox(label: str) -> list[str]:
    """Everything of the engine that carries a sandbox's label."""
    wanted = json.dumps({"label": [f"runyard.sandbox={label}"]}).replace('"', "%22").replace(" ", "")
    found = [f"container {each['Id']}" for each in json.loads(get(f"/containers/json?all=1&filters={wanted}"))]
    found += [f"network {each['Id']}" for each in json.loads(get(f"/networks?filters={wanted}"))]
    found += [f"volume {each['Name']}" for each in json.loads(get(f"/volumes?filters={wanted}"))["Volumes"] or ()]
    found += [f"image {each['Id']}" for each in json.loads(get(f"/images/json?filters={wanted}"))]
    return found


class Going:
    """A run under way; `until` waits for a line of its log."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        secrets = folder.parent / "secrets.json"
        secrets.write_text(json.dumps({"SEED": SECRET}))
        self.process = subprocess.Popen(
            [*RUNYARD, "run", "--format", "jsonl", "--network", "none", "--secret-file", str(secrets)],
            cwd=folder,
            env=environment(folder.parent),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            with self._changed:
                self.lines.append(event["text"] if event["type"] == "log" else f"<{event['type']}>")
                self._changed.notify_all()
        with self._changed:
            self.lines.append("<over>")
            self._changed.notify_all()

    def until(self, line: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: line in self.lines or "<over>" in self.lines, SECONDS), self.lines
        assert line in self.lines, self.lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def going(tmp_path: Path, image: str) -> Iterator[Going]:
    files = workflow(with_service("t", image, "echo ready; while :; do sleep 0.1; done"))
    run = Going(repository(tmp_path / "repo", files))
    try:
        yield run
    finally:
        run.close()


def test_F40_contexts_are_filled_and_everything_is_removed(tmp_path: Path, image: str) -> None:
    files = workflow(with_service("good", image, "true"), with_service("bad", image, "exit 4"))
    told = run_events(repository(tmp_path / "repo", files), "--network", "none", "--parallel", "1", deadline_s=90)
    assert told.conclusion("good") == "success", told.out[-4000:]
    assert told.conclusion("bad") == "failure"
    for job in ("good", "bad"):
        lines = told.log(job)
        ids = told_ids(lines)
        assert lines.count("hello") == 3
        assert ids["port"] == ids["same"]
        assert ids["port"].isdigit()
        assert ids["status"] == "success"
        assert len(ids["db"]) == len(ids["net"]) == len(ids["job"]) == 64
        assert is_there(ids) == []
    names = [event["step"]["name"] for event in told.of_type("step_finished", job="good")]
    assert names[1] == "Initialize containers"
    assert names[-2:] == ["Stop containers", "Complete job"]


def test_F40_a_cancelled_job_leaves_nothing_and_its_variables_were_its_own(going: Going) -> None:
    began = int(time.time()) - 1
    going.until("ready")
    ids = told_ids(going.lines)
    own = get(f"/containers/{ids['job']}/json")
    label = json.loads(own)["Config"]["Labels"]["runyard.sandbox"]
    assert len([each for each in of_sandbox(label) if each.startswith("container")]) == 2
    known = own + get(f"/containers/{ids['db']}/json")
    for exec_id in json.loads(own)["ExecIDs"] or ():
        known += get(f"/exec/{exec_id}/json")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            known += process.read_bytes().decode("utf-8", "replace")
    going.process.send_signal(signal.SIGINT)
    assert going.process.wait(SECONDS) == 130
    known += get(f"/events?since={began}&until={int(time.time())}")
    assert ids["job"] in known
    assert SECRET not in known
    assert of_sandbox(label) == []


def test_kill_9_of_the_command_leaves_nothing(going: Going) -> None:
    going.until("ready")
    label = json.loads(get(f"/containers/{told_ids(going.lines)['job']}/json"))["Config"]["Labels"]["runyard.sandbox"]
    assert of_sandbox(label)
    os.kill(going.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while (left := of_sandbox(label)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_F38_what_is_left_after_the_refusals_is_in_effect(tmp_path: Path, image: str) -> None:
    job = f"""
  t:
    runs-on: ubuntu-latest
    container:
      image: {image}
      options: --cpus 1 --memory 256m --name tool --hostname box --add-host db.test:127.0.0.1
      volumes: ["data:/data"]
    steps:
      - run: |
          hostname; grep db.test /etc/hosts; echo x > /data/x && cat /data/x
          cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true
      - uses: docker://{image}
        with: {{entrypoint: sh, args: '-c "touch made; exit 3"'}}
        continue-on-error: true
      - run: ls; head -c 300m /dev/zero | tail
"""
    refused = job.replace("--cpus 1", "--privileged -v /:/host").replace(image, "no.registry.invalid/never:1", 1)
    folder = repository(tmp_path / "repo", workflow(job, refused.replace("  t:\n", "  refused:\n", 1)))
    told = run_events(folder, "--network", "none", "--parallel", "1", deadline_s=90)
    lines = told.log("t")
    assert told.conclusion("t") == "failure", told.out[-4000:]
    assert any("memory peaked" in event["message"] for event in told.of_type("annotation", job="t"))
    assert "box" in lines
    assert any("127.0.0.1" in line and "db.test" in line for line in lines)
    assert "x" in lines
    assert str(256 << 20) in lines
    assert "made" in lines
    whole = "\n".join(told.log("refused"))
    assert told.conclusion("refused") == "failure"
    assert "--privileged" in whole
    assert "/:/host" in whole
    assert ".github/workflows/ci.yml:" in whole
    assert "can't be pulled" not in whole


def test_docker_actions_with_a_dockerfile_state_and_post(tmp_path: Path, image: str) -> None:
    action = """
name: dock
inputs: {who: {default: nobody}}
outputs: {seen: {description: x}}
runs:
  using: docker
  image: Dockerfile
  entrypoint: /main.sh
  post-entrypoint: /post.sh
  args: ["${{ inputs.who }}", "two words"]
"""
    main = (
        'echo "args=$# $1,$2 $(pwd)"; echo "seen=$1" >> "$GITHUB_OUTPUT"; echo "k=v1" >> "$GITHUB_STATE"; id -u > own'
    )
    script = "#!/bin/sh\n"
    job = """
  t:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - id: d
        uses: ./dock
        with: {who: Mona}
      - run: 'echo "seen ${{ steps.d.outputs.seen }}"; cat own'
"""
    files = workflow(job) | {
        "dock/action.yml": action,
        "dock/Dockerfile": f"FROM {image}\nCOPY main.sh post.sh /\nRUN chmod +x /main.sh /post.sh\n",
        "dock/main.sh": f"{script}{main}\n",
        "dock/post.sh": f'{script}echo "post has $STATE_k"\n',
    }
    folder = repository(tmp_path / "repo", files)
    told = run_events(folder, "--network", "none", deadline_s=90)
    lines = told.log("t")
    assert told.run == "success", told.out[-4000:]
    assert "args=2 Mona,two words /github/workspace" in lines
    assert "seen Mona" in lines
    assert "post has v1" in lines
    plan = json.loads(runyard(folder, "run", "--plan", "--json").out)
    assert plan["workflows"][0]["jobs"][0]["sandbox"] == "docker"
    refused = run_events(folder, "--sandbox", "bubblewrap", "--network", "none")
    assert refused.code == 3
    assert "docker action" in refused.out


def test_a_plain_job_runs_the_same_on_an_engine(tmp_path: Path, image: str) -> None:
    del image
    job = """
  t:
    runs-on: ubuntu-latest
    outputs: {o: "${{ steps.a.outputs.o }}"}
    steps:
      - uses: actions/checkout@v4
      - id: a
        run: |
          echo "o=1" >> "$GITHUB_OUTPUT"; echo "E=2" >> "$GITHUB_ENV"; echo "$PWD/bin" >> "$GITHUB_PATH"
          echo "digest=${{ hashFiles('data') }}"; echo "sum" >> "$GITHUB_STEP_SUMMARY"
          touch made; git status --short
      - run: 'own; echo "E=$E o=${{ steps.a.outputs.o }}"'
"""
    files = workflow(job) | {"data": "hello\n", "bin/own": "#!/bin/sh\necho own program\n"}
    folder = repository(tmp_path / "repo", files)
    (folder / "bin" / "own").chmod(0o755)
    told = run_events(folder, "--sandbox", "docker", "--network", "none", deadline_s=90)
    lines = told.log("t")
    assert any(line.startswith("digest=ecb65bb9") and line.endswith("2438cc") for line in lines), told.out[-4000:]
    assert "own program" in lines
    assert "E=2 o=1" in lines
    assert "?? made" in lines


def test_X8_a_docker_action_with_all_phases_whose_main_fails(tmp_path: Path, image: str) -> None:
    manifest = """
name: dock
inputs: {who: {default: nobody}}
runs:
  using: docker
  image: Dockerfile
  pre-entrypoint: /pre.sh
  entrypoint: /main.sh
  post-entrypoint: /post.sh
  args: ["${{ inputs.who }}", "a  b", "${{ format('{0}-{1}', inputs.who, '$HOME') }}"]
"""
    script = '#!/bin/sh\nfor each; do echo "%s got [$each]"; done\n'
    files = {"action.yml": manifest, "Dockerfile": f"FROM {image}\nCOPY *.sh /\nRUN chmod +x /*.sh\n"}
    for phase, more in (("pre", ""), ("main", "exit 3\n"), ("post", "")):
        files[f"{phase}.sh"] = script % phase + f"echo {phase} ran\n" + more
    make_origin(tmp_path / "origin", "o/dock", files)
    job = """
  t:
    runs-on: ubuntu-latest
    steps:
      - run: echo first step
      - uses: o/dock@v1
        with: {who: "${{ github.job }} 'x'"}
      - run: echo never
"""
    folder = repository(tmp_path / "repo", workflow(job))
    env = {"RUNYARD_ACTIONS_URL": f"file://{tmp_path}/origin"}
    told = run_events(folder, "--sandbox", "docker", "--network", "none", env=env, deadline_s=90)
    lines = told.log("t", "output")
    shown = [line for line in lines if line.endswith((" ran", " step")) or line.startswith("main got")]
    args = ["main got [t 'x']", "main got [a  b]", "main got [t 'x'-$HOME]"]
    assert shown == ["pre ran", "first step", *args, "main ran", "post ran"], told.out[-4000:]
    assert "never" not in lines
    (failed,) = [event["step"] for event in told.of_type("step_finished") if event["outcome"] == "failure"]
    assert failed["name"] == "Run o/dock@v1"
