"""Remote actions through the real command line: fetched, judged, pinned, offline; hostile ones refused by name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from action.origins import GitServer, make_origin
from e2e.command_line import Told, repository, run_events, runyard
from e2e.test_run_corpus import has_node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not has_node(), reason="JavaScript actions need a node (pip install 'runyard[node]')"),
]

NODE = "name: n\ninputs: {who: {default: you}}\nruns: {using: node20, pre: p.js, main: m.js, post: q.js}\n"
SCRIPTS = {
    "p.js": "console.log('pre')",
    "m.js": """
const fs = require('fs');
console.log('main ' + process.env.INPUT_WHO + ' ' + process.env['INPUT_NOT-DECLARED']);
fs.appendFileSync(process.env.GITHUB_STATE, 'k=v\\n');
fs.appendFileSync(process.env.GITHUB_OUTPUT, 'said=hi\\n');
fs.writeFileSync(__dirname + '/scribble', 'x');
""",
    "q.js": "console.log('post ' + process.env.STATE_k)",
}
FLAGS = ("--sandbox", "bubblewrap", "--network", "none")


def workflow(*steps: str) -> dict[str, str]:
    rows = "\n".join(f"      - {each}" for each in steps)
    text = f"on: push\njobs:\n  j:\n    runs-on: ubuntu-latest\n    steps:\n{rows}\n"
    return {".github/workflows/ci.yml": text}


def project(tmp_path: Path, *steps: str, files: dict[str, str] | None = None) -> Path:
    return repository(tmp_path / "repo", {**workflow(*steps), **(files or {})})


def origin(tmp_path: Path, name: str, files: dict[str, str], tag: str = "v1") -> str:
    return make_origin(tmp_path / "origin", name, files, tag=tag)


def go(folder: Path, url: str, *more: str, **keys: Any) -> Told:
    env = {"RUNYARD_ACTIONS_URL": url, **keys.pop("env", {})}
    return run_events(folder, *FLAGS, *more, env=env, **keys)


def test_a_remote_action_with_all_its_phases_then_the_same_offline(tmp_path: Path) -> None:
    origin(tmp_path, "o/n", {"action.yml": NODE, **SCRIPTS})
    composite = "runs: {using: composite, steps: [{uses: o/n@v1, with: {who: inner}}]}\n"
    origin(tmp_path, "o/wrap", {"deep/action.yml": composite})
    folder = project(
        tmp_path,
        "{uses: o/n@v1, id: a, with: {who: me, not-declared: x}}",
        "{run: 'echo got ${{ steps.a.outputs.said }}'}",
        "uses: o/wrap/deep@v1",
    )
    told = go(folder, f"file://{tmp_path}/origin")
    assert told.code == 0, told.out[-3000:]
    lines = told.log("j", "output")
    wanted = ["pre", "pre", "main me x", "got hi", "main inner undefined", "post v", "post v"]
    assert [line for line in lines if line in wanted] == wanted
    assert not list((tmp_path / "cache").rglob("scribble"))
    shutil.rmtree(tmp_path / "origin")
    assert go(folder, "http://127.0.0.1:1", "--offline").code == 0


def test_offline_fails_before_the_run_and_lists_everything(tmp_path: Path) -> None:
    local = "runs: {using: composite, steps: [{uses: o/three@v1}]}\n"
    steps = ("{run: echo ran}", "uses: o/one@v1", "uses: o/two/x@v2", "uses: ./act")
    folder = project(tmp_path, *steps, files={"act/action.yml": local})
    told = go(folder, "http://127.0.0.1:1", "--offline")
    assert (told.code, told.events) == (3, [])
    for uses in ("o/one@v1", "o/two/x@v2", "o/three@v1"):
        assert f"\n  {uses}: " in told.err


def test_a_refused_action_causes_no_request_and_no_step(tmp_path: Path) -> None:
    origin(tmp_path, "evil/n", {"action.yml": NODE, **SCRIPTS})
    origin(tmp_path, "good/wrap", {"action.yml": "runs: {using: composite, steps: [{uses: evil/n@v1}]}\n"})
    (tmp_path / "policy.toml").write_text('actions = ["good/*"]\n')
    folder = project(tmp_path, "{run: echo ran}", "{name: Bad, uses: evil/n@v1}")
    with GitServer(tmp_path / "origin") as server:
        told = go(folder, server.url, "--policy", str(tmp_path / "policy.toml"))
        assert told.code == 3
        assert server.requests == []
        log = "\n".join(told.log("j"))
        assert "step 2 ('Bad'): evil/n@v1: the policy does not allow actions of evil/n; accepted: good/*" in log
        assert "ran" not in told.log("j", "output")
        nested = repository(tmp_path / "nested", workflow("{run: echo ran}", "uses: good/wrap@v1"))
        told = go(nested, server.url, "--policy", str(tmp_path / "policy.toml"))
        assert told.code == 3
        assert "good/wrap@v1 → evil/n@v1: the policy does not allow" in "\n".join(told.log("j"))
        assert not any("evil" in path for _, path, _ in server.requests)


def test_a_local_action_that_an_earlier_step_wrote_is_judged_when_its_step_comes(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('actions = ["good/*"]\n')
    folder = project(
        tmp_path,
        "uses: actions/checkout@v4",
        "{run: 'mkdir -p made && printf \"runs: {using: composite, steps: [{uses: evil/n@v1}]}\" > made/action.yml'}",
        "uses: ./made",
        "{if: always(), run: echo cleaned}",
    )
    with GitServer(tmp_path) as server:
        told = go(folder, server.url, "--policy", str(tmp_path / "policy.toml"))
        assert server.requests == []
    assert told.code == 1
    assert "cleaned" in told.log("j", "output")
    assert [(each["step"]["number"], each["conclusion"]) for each in told.of_type("step_finished")][3] == (3, "failure")
    assert "./made → evil/n@v1: the policy does not allow actions of evil/n" in "\n".join(told.log("j"))


def test_a_lock_holds_a_tag_where_it_was_and_refuses_what_it_lacks(tmp_path: Path) -> None:
    composite = "runs: {using: composite, steps: [{run: 'echo {}', shell: bash}]}\n"
    old = origin(tmp_path, "o/c", {"action.yml": composite.replace("{}", "old")})
    folder = project(tmp_path, "uses: o/c@v1")
    env = {"RUNYARD_ACTIONS_URL": f"file://{tmp_path}/origin"}
    assert runyard(folder, "actions", "lock", env=env).code == 0
    assert f'"o/c@v1" = "{old}"' in (folder / ".github/runyard-actions.lock").read_text()
    origin(tmp_path, "o/c", {"action.yml": composite.replace("{}", "new")})
    told = go(folder, env["RUNYARD_ACTIONS_URL"])
    assert "old" in told.log("j", "output"), told.out[-2000:] + told.err
    assert runyard(folder, "actions", "lock", "--check", env=env).code == 1
    (folder / ".github/workflows/ci.yml").write_text(
        workflow("uses: o/c@v1", "uses: o/other@v3")[".github/workflows/ci.yml"]
    )
    told = go(folder, env["RUNYARD_ACTIONS_URL"])
    assert (told.code, told.events) == (2, [])
    assert "o/other@v3" in told.err


def test_actions_that_include_themselves_end(tmp_path: Path) -> None:
    itself = "runs: {using: composite, steps: [{uses: o/loop@v1}]}\n"
    origin(tmp_path, "o/loop", {"action.yml": itself})
    told = go(project(tmp_path, "uses: o/loop@v1"), f"file://{tmp_path}/origin")
    assert told.code == 3
    assert "o/loop@v1 → o/loop@v1: it includes itself" in "\n".join(told.log("j"))
    local = repository(
        tmp_path / "local",
        {
            **workflow("uses: actions/checkout@v4", "uses: ./l"),
            "l/action.yml": "runs: {using: composite, steps: [{uses: ./l}]}\n",
        },
    )
    told = go(local, f"file://{tmp_path}/origin")
    assert told.code == 1
    assert "nested deeper than 10 levels" in "\n".join(told.log("j"))


def test_an_image_that_no_node_fits_is_refused_by_the_plan(tmp_path: Path) -> None:
    image = tmp_path / "musl"
    (image / "lib").mkdir(parents=True)
    (image / "lib/ld-musl-x86_64.so.1").touch()
    folder = project(tmp_path, "uses: ./n", files={"n/action.yml": "runs: {using: node24, main: m.js}\n"})
    told = runyard(folder, "run", "--plan", "--json", "--image", f"ubuntu-latest=dir:{image}")
    notes = json.loads(told.out)["workflows"][0]["jobs"][0]["notes"]
    assert [note["step"] for note in notes if note["code"] == "no_node"] == [1], notes
    assert told.code == 3
    assert runyard(folder, "run", "--plan").code == 0


def test_F16_inputs_stay_inside_and_become_no_environment(tmp_path: Path) -> None:
    node = "inputs: {own: {default: mine}}\nruns: {using: node20, main: m.js}\n"
    script = "console.log(Object.keys(process.env).filter(k => k.startsWith('INPUT_')).join())"
    outer = """
inputs: {name: {default: outer-default}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'env | grep ^INPUT_ || echo clean'}
    - uses: ./inner
    - uses: ./node
    - {shell: bash, run: 'echo "after=${{ inputs.name }}"'}
"""
    inner = """
inputs: {name: {default: inner-default}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'echo "inner=${{ inputs.name }} $INPUT_NAME."'}
"""
    files = {"outer/action.yml": outer, "inner/action.yml": inner, "node/action.yml": node, "node/m.js": script}
    folder = project(tmp_path, "uses: actions/checkout@v4", "{uses: ./outer, with: {name: given}}", files=files)
    told = run_events(folder, *FLAGS)
    assert told.code == 0, told.out[-3000:]
    lines = [line for line in told.log("j", "output") if "=" in line or line in ("clean", "INPUT_OWN")]
    assert lines == ["clean", "inner=inner-default .", "INPUT_OWN", "after=given"]


@pytest.mark.parametrize("tolerated", [False, True], ids=["F36", "F36-tolerated"])
def test_F36_failures_inside_are_tolerated_and_handled(tmp_path: Path, tolerated: bool) -> None:
    action = """
runs:
  using: composite
  steps:
    - {id: bad, shell: bash, run: exit 3, continue-on-error: true}
    - {shell: bash, run: 'echo "o=${{ steps.bad.outcome }} c=${{ steps.bad.conclusion }}"'}
    - {id: worse, shell: bash, run: exit 4}
    - {if: failure(), shell: bash, run: echo cleanup}
    - {shell: bash, run: echo never}
"""
    steps = (
        "uses: actions/checkout@v4",
        f"{{id: x, uses: ./a, continue-on-error: {str(tolerated).lower()}}}",
        "{if: failure(), run: echo on-failure}",
        "{if: always(), run: 'echo x=${{ steps.x.outcome }},${{ steps.x.conclusion }}'}",
    )
    told = run_events(project(tmp_path, *steps, files={"a/action.yml": action}), *FLAGS)
    lines = told.log("j", "output")
    assert "o=failure c=success" in lines
    assert "cleanup" in lines
    assert "never" not in lines
    assert ("on-failure" in lines) is not tolerated
    assert f"x=failure,{'success' if tolerated else 'failure'}" in lines
    assert told.code == (0 if tolerated else 1)
    step = next(each for each in told.of_type("step_finished") if each["step"]["number"] == 2)
    assert "exit code 4" in (step["reason"] or "")


def test_X10_one_fetch_for_two_jobs_a_tag_that_moves_and_offline(tmp_path: Path) -> None:
    first = origin(tmp_path, "o/n", {"action.yml": NODE, **SCRIPTS})
    job = "{runs-on: ubuntu-latest, steps: [{uses: o/n@v1}]}"
    text = f"on: push\njobs:\n  a: {job}\n  b: {job}\n"
    folder = repository(tmp_path / "repo", {".github/workflows/ci.yml": text})
    with GitServer(tmp_path / "origin") as server:
        seen = go(folder, server.url)
        assert seen.run == "success", seen.out + seen.err
        assert [seen.log(job).count("main you undefined") for job in "ab"] == [1, 1]
        assert len(server.fetches) == 1
        moved = origin(tmp_path, "o/n", {"m.js": "console.log('moved')"})
        assert moved != first
        seen = go(folder, server.url)
        assert [seen.log(job).count("moved") for job in "ab"] == [1, 1], "what the tag means is asked each time"
        assert f"Download action repository 'o/n@v1' (SHA:{moved})" in seen.log("a")
        assert len(server.fetches) == 2
        url = server.url
    seen = go(folder, url, "--offline")
    assert seen.run == "success", "the server is gone, and what it said last counts"
    assert f"Download action repository 'o/n@v1' (SHA:{moved})" in seen.log("b")
    shutil.rmtree(tmp_path / "cache")
    seen = go(folder, url, "--offline")
    assert (seen.code, seen.events) == (3, [])
    assert "\n  o/n@v1: " in seen.err
