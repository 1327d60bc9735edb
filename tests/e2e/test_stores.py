"""Declared stores through the command line: the second run begins with what the first one left, if it succeeded."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

import images
from e2e.command_line import RUNYARD, Told, environment, repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

MISSING = "cat: target/n: No such file or directory"
WORKFLOW = ".github/workflows/ci.yml"
STORES = ".runyard/stores.toml"
BUBBLEWRAP = ("--sandbox", "bubblewrap", "--network", "none")
DECLARED = '[target]\npath = "target"\nkind = "build"\n\n[dl]\npath = "~/.cache/dl"\n'


def workflow(*steps: str, checkout: bool = True, **keys: str) -> str:
    first = ["{uses: actions/checkout@v4}"] if checkout else []
    more = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    listed = "".join(f"      - {step}\n" for step in (*first, *steps))
    return f"on: push\njobs:\n  j:\n    runs-on: ubuntu-latest\n{more}    steps:\n{listed}"


def run(folder: Path, *flags: str) -> Told:
    return run_events(folder, *(flags or BUBBLEWRAP))


BUILD = (
    "run: 'cat target/n ~/.cache/dl/n || true; echo -n x >> target/n; echo -n y >> ~/.cache/dl/n; "
    "mv target/n target/m; mv target/m target/n'"
)


def test_the_second_run_begins_with_what_the_first_left(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: workflow(BUILD), STORES: DECLARED})
    told = run(folder)
    assert told.code == 0, told.out
    assert "Store target: nothing is kept for target yet" in told.log("j")
    told = run(folder)
    assert told.log("j", "output") == ["xy"]
    assert any(line.startswith("Store target: target begins with what was kept: 1 ") for line in told.log("j"))
    assert run(folder).log("j", "output") == ["xxyy"]


@pytest.mark.parametrize("end", ["exit 1", "kill -9 $$"])
def test_a_run_that_fails_publishes_nothing(tmp_path: Path, end: str) -> None:
    text = workflow(
        "run: 'mkdir -p target; cat target/n || true'", f"run: 'echo x > target/n; if [ -f fail ]; then {end}; fi'"
    )
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: DECLARED, "fail": ""})
    assert run(folder).conclusion("j") == "failure"
    (folder / "fail").unlink()
    told = run(folder)
    assert (told.conclusion("j"), told.log("j", "output")[:1]) == (
        "success",
        [MISSING],
    )
    assert run(folder).log("j", "output") == ["x"]


def test_a_job_that_is_cancelled_or_killed_publishes_nothing(tmp_path: Path) -> None:
    text = workflow("run: 'cat target/n || true; echo x > target/n; echo ready; if [ -f wait ]; then sleep 50; fi'")
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: DECLARED, "wait": ""})
    for ends in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(
            [*RUNYARD, "run", *BUBBLEWRAP, "--format", "jsonl"],
            cwd=folder,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as command:
            assert command.stdout is not None
            deadline = time.monotonic() + 20
            while json.loads(command.stdout.readline()).get("text") != "ready":
                assert time.monotonic() < deadline
            command.send_signal(ends)
            command.stdout.read()
        assert command.wait(20) != 0
    (folder / "wait").unlink()
    assert run(folder).log("j", "output")[:1] == [MISSING]


def test_jobs_workflows_and_keys_have_stores_of_their_own(tmp_path: Path) -> None:
    text = workflow("run: 'cat target/n || true; echo ${{ matrix.v }} > target/n'", strategy="{matrix: {v: [1, 2]}}")
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: '[target]\npath = "target"\n'})
    run(folder)
    told = run(folder)
    for value in ("1", "2"):
        lines = [each["text"] for each in told.of_type("log", kind="output") if str(each["matrix"]["v"]) == value]
        assert lines == [value]
    (folder / STORES).write_text('[target]\npath = "target"\nkey = "v2"\n')
    assert "1" not in run(folder).log("j", "output")


def test_a_folder_that_the_commit_fills_is_left_as_it_is(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo", {WORKFLOW: workflow("run: cat target/n"), STORES: DECLARED, "target/n": "own"}
    )
    told = run(folder)
    assert told.log("j", "output") == ["own"]
    assert "Store target: target is not an empty folder: it is left as it is, and not kept" in told.log("j")


def test_a_link_in_the_place_of_a_store_is_not_followed(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: workflow("run: ls -A /tmp"), STORES: DECLARED})
    (folder / "target").symlink_to("/tmp")
    told = run(folder)
    assert told.code == 0, told.out
    assert "Store target: target is not an empty folder: it is left as it is, and not kept" in told.log("j")


def test_a_folder_that_the_job_replaced_by_a_link_is_not_kept(tmp_path: Path) -> None:
    text = workflow("run: 'ls target; rmdir target || true; [ -e target ] || ln -s /etc target'")
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: '[target]\npath = "target"\n'})
    told = run(folder)
    assert "Store target: target is no folder any more: nothing new is kept" in told.log("j")
    assert run(folder).log("j", "output") == []


def test_what_is_larger_than_it_may_be_is_not_kept(tmp_path: Path) -> None:
    declared = '[target]\npath = "target"\nmax_size = "100KiB"\n'
    text = workflow("run: 'ls target; head -c 300000 /dev/zero > target/n'")
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: declared})
    told = run(folder)
    assert told.code == 0
    assert "are more than its max_size of 102400" in told.of_type("annotation", level="warning")[0]["message"]
    assert run(folder).log("j", "output") == []


def test_a_compiler_cache_is_named_to_the_job(tmp_path: Path) -> None:
    declared = '[cc]\nkind = "compiler"\ntool = "ccache"\n'
    text = workflow("run: 'echo $CCACHE_DIR; cat $CCACHE_DIR/n || true; echo kept > $CCACHE_DIR/n'", checkout=False)
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: declared})
    run(folder)
    assert run(folder).log("j", "output") == ["/home/runner/.cache/ccache", "kept"]


def test_a_wrong_declaration_ends_before_anything_runs(tmp_path: Path) -> None:
    two = '[a]\nkind = "compiler"\ntool = "ccache"\n[b]\nkind = "compiler"\ntool = "sccache"\n'
    folder = repository(tmp_path / "repo", {WORKFLOW: workflow("run: 'true'"), STORES: '[a]\npath = ".."\n'})
    told = runyard(folder, "run", *BUBBLEWRAP)
    assert (told.code, f"{STORES}:2:1: a.path" in told.err) == (2, True)
    (folder / STORES).write_text(two)
    told = runyard(folder, "run", *BUBBLEWRAP)
    assert (told.code, "one is the most" in told.err) == (2, True)
    assert runyard(folder, "run", *BUBBLEWRAP, "--stores", "").code == 0


@pytest.mark.docker
@pytest.mark.timeout(110)
def test_stores_of_a_job_in_a_container(tmp_path: Path) -> None:
    images.engine_socket()
    text = workflow(BUILD, container=f"'{images.bash_image()}'")
    folder = repository(tmp_path / "repo", {WORKFLOW: text, STORES: DECLARED})
    flags = ("--sandbox", "docker", "--network", "none")
    assert run(folder, *flags).code == 0
    assert run(folder, *flags).log("j", "output") == ["xy"]
