"""The original actions, unchanged, under `runyard run --no-native` against the services of the job.

    python tests/trials/originals.py --mirror DIR

DIR is a mirror as `runyard actions mirror` fills it: bare repositories `owner/name.git` with the tags of the versions.
Prints a table of action, version, network level and result, and ends with 1 when one fails, 2 when nothing was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trials.scenarios import DONE, SCENARIOS, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RUN_DEADLINE_S = 300.0
GIT_DEADLINE_S = 20.0
LEVELS = ("none", "public")
_MAJOR = re.compile(r"refs/tags/(v(\d+))\Z")


class Row(NamedTuple):
    """One line of the table. `version` is the most exact tag at the commit; `why` is "" where all is well."""

    action: str
    version: str
    commit: str
    network: str
    why: str
    seconds: float

    def line(self) -> str:
        result = "works" if not self.why else f"FAILS: {self.why}"
        return f"{self.action:26} {self.version:9} {self.commit[:12]}  {self.network:7} {self.seconds:6.1f} s  {result}"


class Version(NamedTuple):
    """A version of an action in the mirror."""

    name: str
    commit: str
    exact: str


def git(folder: Path, *arguments: str) -> str:
    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{who}_NAME": "trial" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "trial@example.org" for who in ("AUTHOR", "COMMITTER")},
    }
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=GIT_DEADLINE_S)
    return done.stdout.strip()


def versions(mirror: Path, scenario: Scenario) -> list[Version]:
    """The majors that the scenario is for, as far as the mirror has them."""
    bare = mirror / f"{scenario.action}.git"
    if not bare.exists():
        return []
    tags = {}
    for line in git(bare, "for-each-ref", "--format=%(refname) %(*objectname) %(objectname)", "refs/tags").splitlines():
        name, *ids = line.split()
        tags[name] = ids[0]
    found = []
    for name, commit in tags.items():
        match = _MAJOR.match(name)
        if match is not None and int(match[2]) in scenario.majors:
            same = [each.removeprefix("refs/tags/") for each, id_ in tags.items() if id_ == commit]
            found.append(Version(match[1], commit, max(same, key=lambda each: each.count("."))))
    return sorted(found, key=lambda each: int(each.name[1:]))


def make_repository(folder: Path, workflow: str) -> None:
    """The repository of the scenarios, with one file edited after the last commit."""
    for name, text in {"src/code.txt": "one\n", "docs/page.md": "page\n", ".github/workflows/w.yml": workflow}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "remote", "add", "origin", "https://github.com/octo/trial")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "-a", "-m", "one", "v1.0")
    (folder / "src/code.txt").write_text("other\n")
    git(folder, "checkout", "-q", "-b", "other")
    git(folder, "commit", "-q", "-am", "other")
    git(folder, "checkout", "-q", "main")
    for text in ("one and a half", "two"):
        (folder / "src/code.txt").write_text(f"{text}\n")
        git(folder, "commit", "-q", "-am", text)
    (folder / "src/code.txt").write_text("edited\n")


def workflow_of(scenario: Scenario, found: Sequence[Version], mirror: Path, tool: str) -> str:
    """A job a version."""
    others = {"UP": "actions/upload-artifact", "DOWN": "actions/download-artifact"}
    partner = {}
    for word, action in others.items():
        known = [each for other in SCENARIOS if other.action == action for each in versions(mirror, other)]
        partner[word] = known[-1].name if known else "v4"
    text = "on: push\njobs:\n"
    for version in found:
        steps = scenario.steps.replace("@V", f"@{version.name}").replace("-V", f"-{version.name}")
        for word, name in partner.items():
            steps = steps.replace(f"@{word}", f"@{name}")
        text += f"  {version.name}:\n    runs-on: ubuntu-latest\n    steps:{steps.replace('@TOOL', tool)}"
    return text


def make_tools(folder: Path) -> dict[str, str]:
    """A tool cache with this machine's node and Python; the version of each that is there."""
    made = {}
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, "x64")
    for name, label, programs in (("node", "node", ("node",)), ("python3", "Python", ("python", "python3"))):
        path = shutil.which(name, path="/usr/bin:/bin")
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=GIT_DEADLINE_S)
        version = said.stdout.split()[-1].removeprefix("v")
        place = folder / label / version / machine
        (place / "bin").mkdir(parents=True)
        for program in programs:
            (place / "bin" / program).symlink_to(path)
        (place.parent / f"{machine}.complete").touch()
        made["python" if label == "Python" else label] = version
    return made


def try_action(scenario: Scenario, mirror: Path, level: str, work: Path, tools: dict[str, str]) -> list[Row]:
    """One run with a job for each version."""
    found = versions(mirror, scenario)
    folder = work / f"{scenario.action.replace('/', '-')}-{level}" / "repo"
    folder.mkdir(parents=True)
    make_repository(folder, workflow_of(scenario, found, mirror, tools.get(scenario.tool, "")))
    command = [sys.executable, "-m", "runyard.cli.main", "run", "--format", "jsonl", "--no-native"]
    command += ["--sandbox", "bubblewrap", "--network", level, "--tool-cache", str(work / "tools")]
    command += ["--cache-dir", str(work / "cache" / level)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "GITHUB_", "RUNYARD_"))}
    if "RUNYARD_NODE" in os.environ:
        kept["RUNYARD_NODE"] = os.environ["RUNYARD_NODE"]
    env = {**kept, "RUNYARD_ACTIONS_MIRROR": str(mirror), "RUNYARD_STATE_DIR": str(work / "state")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_DEADLINE_S,
            check=False,
        )  # fmt: skip
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        out, err = "", f"not over within {RUN_DEADLINE_S:g} s"
    (folder.parent / "events.jsonl").write_text(out)
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [_row(scenario.action, version, level, events, err) for version in found]


def _row(action: str, version: Version, level: str, events: Iterable[dict[str, object]], err: str) -> Row:
    ended, said, seconds = None, False, 0.0
    problems: list[str] = []
    for event in events:
        if event.get("job") != version.name and event.get("key") != version.name:
            continue
        if event["type"] == "log" and event.get("kind") == "output" and event.get("text") == DONE:
            said = True
        elif event["type"] == "step_finished" and event.get("conclusion") == "failure":
            step = event.get("step")
            name = step.get("name") if isinstance(step, dict) else ""
            problems.append(f"step {name}: {event.get('reason')}")
        elif event["type"] == "job_finished":
            ended = event.get("conclusion")
            usage = event.get("usage")
            seconds = float(usage.get("wall_s", 0.0)) if isinstance(usage, dict) else 0.0
    if ended == "success" and said:
        why = ""
    else:
        why = problems[0] if problems else (err.strip().splitlines() or ["the job did not end well"])[-1]
    return Row(action, version.exact, version.commit, level, why, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", required=True, type=Path, help="bare repositories owner/name.git")
    parser.add_argument("--network", action="append", choices=LEVELS, help="a level; default: both")
    parser.add_argument("--only", action="append", metavar="ACTION", help="this action alone; repeatable")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="repositories and events of the trial stay here")
    given = parser.parse_args(arguments)
    mirror = given.mirror.resolve()
    work = given.keep.resolve() if given.keep else Path(tempfile.mkdtemp(prefix="originals-"))
    rows: list[Row] = []
    try:
        work.mkdir(parents=True, exist_ok=True)
        tools = make_tools(work / "tools")
        for scenario in SCENARIOS:
            if given.only and scenario.action not in given.only:
                continue
            if not versions(mirror, scenario):
                sys.stdout.write(f"{scenario.action:26} not in the mirror\n")
                continue
            if scenario.tool and scenario.tool not in tools:
                sys.stdout.write(f"{scenario.action:26} needs a {scenario.tool} in /usr/bin\n")
                continue
            for level in given.network or LEVELS:
                made = try_action(scenario, mirror, level, work, tools)
                rows += made
                sys.stdout.write("".join(f"{row.line()}\n" for row in made))
                sys.stdout.flush()
    finally:
        if not given.keep:
            shutil.rmtree(work, ignore_errors=True)
    good = sum(not row.why for row in rows)
    sys.stdout.write(f"{good} of {len(rows)} work\n")
    if not rows:
        return 2
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
