"""The tool cache below the job's own layer, and setup-python and setup-node served from it, by the command line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import images
from e2e.command_line import Told, repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
BUBBLEWRAP = ("--sandbox", "bubblewrap", "--network", "none")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    for version in ("3.11.4", "3.12.1"):
        program(folder / "Python" / version / "x64/bin/python", f"echo Python {version}")
        (folder / "Python" / version / "x64.complete").touch()
    program(folder / "node/20.19.5/x64/bin/node", "echo v20.19.5")
    (folder / "node/20.19.5/x64.complete").touch()
    return folder


def run(tmp_path: Path, store: Path, steps: list[dict[str, Any]], *flags: str, **files: str) -> Told:
    text = json.dumps({"on": "push", "jobs": {"j": {"runs-on": "ubuntu-latest", "steps": steps}}})
    folder = repository(
        tmp_path / "repo", {WORKFLOW: text, **{name.replace("_", "."): each for name, each in files.items()}}
    )
    return run_events(folder, *(flags or BUBBLEWRAP), "--tool-cache", str(store))


def test_setup_python_finds_sets_and_tells(tmp_path: Path, store: Path) -> None:
    told = run(
        tmp_path,
        store,
        [
            {"id": "py", "uses": "actions/setup-python@v5", "with": {"python-version": "3.x"}},
            {"run": 'python; echo "$pythonLocation ${PATH%%:*} $LD_LIBRARY_PATH"'},
            {"run": "echo ${{ steps.py.outputs.python-version }} ${{ steps.py.outputs.python-path }}"},
            {"run": "echo ${{ runner.tool_cache }} $RUNNER_TOOL_CACHE"},
        ],
    )
    assert told.code == 0, told.err
    at = "/opt/hostedtoolcache/Python/3.12.1/x64"
    assert told.log("j", "output") == [
        "Python 3.12.1",
        f"{at} {at}/bin {at}/lib",
        f"3.12.1 {at}/bin/python",
        "/opt/hostedtoolcache /opt/hostedtoolcache",
    ]


def test_what_a_job_does_to_a_tool_is_gone_with_it(tmp_path: Path, store: Path) -> None:
    before = sorted(str(each) for each in store.rglob("*"))
    told = run(
        tmp_path,
        store,
        [
            {"uses": "actions/setup-python@v5", "with": {"python-version": "3.11"}},
            {"run": 'cd "$pythonLocation"; echo mine > bin/python; touch lib; rm -r ../x64.complete; ls'},
        ],
    )
    assert told.log("j", "output") == ["bin", "lib"]
    assert sorted(str(each) for each in store.rglob("*")) == before
    assert "3.11.4" in (store / "Python/3.11.4/x64/bin/python").read_text()


def test_setup_node_by_file_alias_and_in_a_composite(tmp_path: Path, store: Path) -> None:
    inner = "{uses: actions/setup-node@v4, with: {node-version: 20}}"
    told = run(
        tmp_path,
        store,
        [
            {"uses": "actions/checkout@v4"},
            {"id": "file", "uses": "actions/setup-node@v4", "with": {"node-version-file": "package.json"}},
            {"id": "alias", "uses": "actions/setup-node@v4", "with": {"node-version": "lts/iron"}},
            {"id": "inner", "uses": "./act"},
            {"run": "node; echo ${{ steps.file.outputs.node-version }} ${{ steps.alias.outputs.node-version }}"},
        ],
        package_json='{"engines": {"node": ">=18"}}',
        **{"act/action_yml": f"runs:\n  using: composite\n  steps: [{inner}]\n"},
    )
    assert told.code == 0, told.out
    assert told.log("j", "output") == ["v20.19.5", "v20.19.5 v20.19.5"]


def test_problems_are_matched_as_after_the_originals(tmp_path: Path, store: Path) -> None:
    told = run(
        tmp_path,
        store,
        [
            {"uses": "actions/setup-node@v4", "with": {"node-version": 20}},
            {"uses": "actions/setup-python@v5", "with": {"python-version": 3.12}},
            {"run": "echo \"a.ts(3,7): error TS2304: Cannot find name 'x'.\""},
            {"run": 'printf \'  File "b.py", line 9, in <module>\\n    raise ValueError("bad")\\n\''},
        ],
    )
    found = [(each["line"], each["message"]) for each in told.of_type("annotation", level="error")]
    assert found == [(3, "Cannot find name 'x'."), (9, "bad")]


def test_what_is_not_there_is_refused_offline_before_the_run(tmp_path: Path, store: Path) -> None:
    steps = [{"uses": "actions/setup-python@v5", "with": {"python-version": "3.8"}}]
    told = run(tmp_path, store, steps, *BUBBLEWRAP, "--offline")
    assert told.code == 3
    assert "actions/setup-python@v5" in told.err


def test_a_version_known_late_runs_the_original_or_says_why_it_cannot(tmp_path: Path, store: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "v", "run": "echo v=3.8 >> $GITHUB_OUTPUT"},
        {"uses": "actions/setup-python@v5", "with": {"python-version": "${{ steps.v.outputs.v }}"}},
    ]
    told = run(tmp_path, store, steps, *BUBBLEWRAP, "--offline")
    assert told.code == 1
    said = "\n".join(told.log("j", "runner"))
    assert "the tool cache has no Python 3.8 for x64: the original runs" in said
    assert "actions/setup-python@v5" in told.of_type("annotation", level="error")[0]["message"]


def test_no_native_means_the_originals(tmp_path: Path, store: Path) -> None:
    steps = [{"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}}]
    told = run(tmp_path, store, steps, *BUBBLEWRAP, "--offline", "--no-native")
    assert told.code == 3
    assert "actions/setup-python@v5" in told.err


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo", {WORKFLOW: "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'true'}]}}\n"}
    )
    told = runyard(folder, "run", "--tool-cache", "nowhere")
    assert (told.code, "--tool-cache: there is no folder nowhere" in told.err) == (2, True)


@pytest.mark.docker
@pytest.mark.timeout(110)
@pytest.mark.skipif(os.geteuid() != 0, reason="a layer over a folder of the host needs root with an engine")
def test_the_tool_cache_in_a_job_container(tmp_path: Path, store: Path) -> None:
    images.engine_socket()
    job = {
        "runs-on": "ubuntu-latest",
        "container": images.bash_image(),
        "steps": [
            {"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
            {"run": 'python; echo "$pythonLocation"; touch "$pythonLocation/mine"'},
        ],
    }
    folder = repository(tmp_path / "repo", {WORKFLOW: json.dumps({"on": "push", "jobs": {"j": job}})})
    told = run_events(folder, "--sandbox", "docker", "--network", "none", "--tool-cache", str(store))
    assert told.code == 0, told.out
    assert told.log("j", "output") == ["Python 3.12.1", "/__t/Python/3.12.1/x64"]
    assert not (store / "Python/3.12.1/x64/mine").exists()
