"""Job hooks through the command line: in bubblewrap, in a job container, and on the host when that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import images
from e2e.command_line import repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
BUBBLEWRAP = ("--sandbox", "bubblewrap", "--network", "none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'echo $FROM_HOOK > made'}]}}\n"
    return repository(tmp_path / "repo", {WORKFLOW: text})


def test_a_hook_sees_what_the_job_made_and_speaks_to_its_steps(folder: Path) -> None:
    started, completed = folder.parent / "s.sh", folder.parent / "c.sh"
    started.write_text('echo FROM_HOOK=hooked >> "$GITHUB_ENV"\n')
    completed.write_text("cat made\n")
    told = run_events(folder, *BUBBLEWRAP, "--hook-started", str(started), "--hook-completed", str(completed))
    assert told.code == 0, told.err
    assert told.log("j", "output") == ["hooked"]


def test_a_hook_on_the_host_is_said_before_the_run_and_in_the_log(folder: Path) -> None:
    hook, proof = folder.parent / "h.sh", folder.parent / "proof"
    hook.write_text(f'echo "$GITHUB_JOB" > {proof}\n')
    told = run_events(folder, *BUBBLEWRAP, env={"RUNYARD_HOST_HOOK_JOB_COMPLETED": str(hook)})
    assert told.code == 0, told.err
    assert proof.read_text() == "j\n"
    assert "outside the sandbox" in told.err
    (warning,) = told.of_type("annotation", level="warning")
    assert str(hook) in warning["message"]


def test_the_runners_environment_names_a_hook_as_on_github(folder: Path) -> None:
    told = run_events(folder, *BUBBLEWRAP, "--env", "ACTIONS_RUNNER_HOOK_JOB_STARTED=/nowhere/hook.sh")
    assert told.code == 1
    assert "/nowhere/hook.sh can't be read" in told.of_type("annotation", level="error")[0]["message"]


def test_bad_hooks_end_before_anything_runs(folder: Path) -> None:
    told = runyard(folder, "run", "--hook-started", "nowhere.sh")
    assert (told.code, "--hook-started: there is no file" in told.err) == (2, True)
    told = runyard(folder, "run", "--env", "ACTIONS_RUNNER_CONTAINER_HOOKS=/index.js")
    assert (told.code, "ACTIONS_RUNNER_CONTAINER_HOOKS" in told.err) == (3, True)


@pytest.mark.docker
@pytest.mark.timeout(110)
def test_D14_hooks_of_a_job_with_a_container_run_in_it(tmp_path: Path) -> None:
    images.engine_socket()
    image = images.bash_image()
    text = f"on: push\njobs: {{j: {{runs-on: ubuntu-latest, container: '{image}', steps: [{{run: 'echo step'}}]}}}}\n"
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    hook = tmp_path / "h.sh"
    hook.write_text("pwd\ntouch /opt/runyard/hooks/started/x 2>&1 | grep -c Read-only\n")
    told = run_events(folder, "--sandbox", "docker", "--network", "none", "--hook-started", str(hook))
    assert told.code == 0, told.err
    assert told.log("j", "output") == ["/__w/repo/repo", "1", "step"]
