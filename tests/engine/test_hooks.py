"""Job hooks: their place in the job, their environment, what a failing one does (job-semantics 3.2, 16; D14)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from engine.scripted import Bench, Reply, claim
from runyard.cli.run_hooks import read_hooks, without_hooks
from runyard.engine.wire import HookFiles, JobSettings
from runyard.job import Cancel, InputError, MachineError, StepStarted

if TYPE_CHECKING:
    from runyard.sandbox.contract import StepCommand


def bench(tmp_path: Path, answer: object = None, **hooks: str) -> Bench:
    settings = JobSettings(hooks=HookFiles(**hooks), cache_dir=str(tmp_path / "cache"), runner_env={"RUNNERS": "own"})
    return Bench(answer, settings=settings)  # type: ignore[arg-type]  # a script, or none


def script(tmp_path: Path, name: str = "hook.sh", text: str = "true\n") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def names(ran: object) -> list[str]:
    return [event.name for event in ran.events if isinstance(event, StepStarted)]  # type: ignore[attr-defined]


def test_started_before_the_first_step_and_completed_after_the_last(tmp_path: Path) -> None:
    path = script(tmp_path)
    ran = bench(tmp_path, started=path, completed=path).run(claim({"run": "a"}, env=[{"OF_JOB": "1"}]))
    assert names(ran) == ["Set up job", "Set up runner", "Run a", "Complete runner", "Complete job"]
    first, step, last = (running.command for running in ran.session.steps)
    assert first.argv == ("/usr/bin/bash", "-e", "/opt/runyard/hooks/started/hook.sh")
    assert last.argv[2] == "/opt/runyard/hooks/completed/hook.sh"
    assert first.cwd == "/home/runner/work/demo/demo"
    assert first.env["RUNNERS"] == "own"
    assert first.env["GITHUB_REPOSITORY"] == "octo/demo"
    assert first.env["RUNNER_OS"] == "Linux"
    assert "OF_JOB" not in first.env
    assert "OF_JOB" not in last.env
    assert step.env["OF_JOB"] == "1"


def test_the_sandbox_is_shown_a_copy_of_the_script_alone_read_only(tmp_path: Path) -> None:
    path = script(tmp_path, text="echo one\n")
    (tmp_path / "beside").write_text("not for the job")
    made = bench(tmp_path, started=path)
    made.run(claim({"run": "a"}))
    (mount,) = made.shapes[0].mounts
    assert (mount.target, mount.overlay) == ("/opt/runyard/hooks/started", False)
    assert [each.name for each in Path(mount.source).iterdir()] == ["hook.sh"]


def test_what_a_started_hook_writes_to_command_files_reaches_the_steps(tmp_path: Path) -> None:
    def answer(command: StepCommand) -> Reply | None:
        if "hooks/started" in command.argv[-1]:
            return Reply(files={"env": b"FROM=hook\n", "path": b"/hooked\n"})
        return None

    ran = bench(tmp_path, answer, started=script(tmp_path)).run(claim({"run": "a"}))
    assert ran.command(1).env["FROM"] == "hook"
    assert ran.command(1).env["PATH"].startswith("/hooked:")


def test_a_started_hook_that_fails_skips_the_steps_with_the_default_condition(tmp_path: Path) -> None:
    def answer(command: StepCommand) -> Reply | None:
        return Reply(code=3) if "hooks/started" in command.argv[-1] else None

    path = script(tmp_path)
    ran = bench(tmp_path, answer, started=path, completed=path).run(
        claim({"run": "a"}, {"run": "b", "if_": "always()"})
    )
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason == "step 'Set up runner': exit code 3"
    by_name = {each.name: each.outcome for each in ran.steps().values()}
    assert (by_name["Run a"], by_name["Run b"], by_name["Complete runner"]) == ("skipped", "success", "success")


def test_a_completed_hook_that_fails_fails_the_job(tmp_path: Path) -> None:
    def answer(command: StepCommand) -> Reply | None:
        return Reply(code=1) if "hooks/completed" in command.argv[-1] else None

    ran = bench(tmp_path, answer, completed=script(tmp_path)).run(claim({"run": "a"}))
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason is not None
    assert "Complete runner" in ran.finished.reason


def test_the_completed_hook_of_a_cancelled_job_runs(tmp_path: Path) -> None:
    def answer(command: StepCommand) -> Reply | None:
        return None if "hooks" in command.argv[-1] else Reply(until="interrupt")

    made = bench(tmp_path, answer, completed=script(tmp_path))
    made.order_when(lambda event: isinstance(event, StepStarted) and event.name == "Run a", Cancel())
    ran = made.run(claim({"run": "a"}))
    assert ran.finished.conclusion == "cancelled"
    assert {each.name: each.outcome for each in ran.steps().values()}["Complete runner"] == "success"


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing.sh", "No such file"), ("hook.rb", "has to end with .sh, .ps1, .js")],
)
def test_a_hook_that_is_missing_or_of_no_known_kind_fails(tmp_path: Path, name: str, said: str) -> None:
    if name != "missing.sh":
        script(tmp_path, name)
    ran = bench(tmp_path, started=str(tmp_path / name)).run(claim({"run": "a"}))
    assert ran.finished.conclusion == "failure"
    assert said in ran.annotations()[0].message


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("h.ps1", ("/usr/bin/pwsh", "-command", ". '/opt/runyard/hooks/started/h.ps1'")),
        ("h.js", ("/usr/bin/node", "/opt/runyard/hooks/started/h.js")),
    ],
)
def test_the_ending_decides_what_runs_a_hook(tmp_path: Path, name: str, argv: tuple[str, ...]) -> None:
    ran = bench(tmp_path, started=script(tmp_path, name)).run(claim({"run": "a"}))
    assert ran.command(0).argv == argv


def test_a_host_hook_runs_outside_with_a_warning_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN_BY_ENVIRONMENT", "hush-hush")
    monkeypatch.setenv("OF_THE_MACHINE", "own")
    seen = tmp_path / "seen"
    path = script(
        tmp_path, "host.sh", f'env > "{seen}"\necho "hook says $GITHUB_REPOSITORY"\necho FROM=host >> "$GITHUB_ENV"\n'
    )
    ran = bench(tmp_path, host_started=path, host_completed=path).run(
        claim({"run": "a"}, secrets={"TOKEN": "hush-hush"}, env=[{"OF_JOB": "1"}])
    )
    assert names(ran)[1] == "Set up runner on the host"
    assert names(ran)[-2] == "Complete runner on the host"
    assert [note.level for note in ran.annotations()] == ["warning", "warning"]
    assert "outside the sandbox" in ran.annotations()[0].message
    assert "hook says octo/demo" in ran.log()
    assert ran.command(0).env["FROM"] == "host"
    text = seen.read_text()
    assert "RUNYARD_HOOK=host_completed" in text
    assert "OF_THE_MACHINE=own" in text
    assert "hush-hush" not in text
    assert "OF_JOB" not in text


def test_a_host_hook_that_fails_or_hangs_is_ended_with_the_job(tmp_path: Path) -> None:
    ran = bench(tmp_path, host_started=script(tmp_path, text="exit 4\n")).run(claim({"run": "a"}))
    assert ran.finished.reason == "step 'Set up runner on the host': exit code 4"
    made = bench(tmp_path, host_started=script(tmp_path, text="trap '' INT TERM\nsleep 600\n"))
    made.order_when(lambda event: isinstance(event, StepStarted) and "host" in event.name, Cancel(force=True))
    assert made.run(claim({"run": "a"})).finished.conclusion == "cancelled"


def test_flags_come_before_variables_and_those_before_the_runners_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = script(tmp_path, "one.sh"), script(tmp_path, "two.sh")
    env = {"ACTIONS_RUNNER_HOOK_JOB_STARTED": "/three.sh", "OTHER": "x"}
    assert read_hooks({}, env) == HookFiles(started="/three.sh")
    monkeypatch.setenv("RUNYARD_HOOK_JOB_STARTED", two)
    monkeypatch.setenv("RUNYARD_HOST_HOOK_JOB_COMPLETED", two)
    assert read_hooks({}, env) == HookFiles(started=two, host_completed=two)
    assert read_hooks({"hook_started": one}, env).started == one
    assert without_hooks(env) == {"OTHER": "x"}


def test_a_flag_that_names_no_script_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--hook-started: there is no file"):
        read_hooks({"hook_started": str(tmp_path / "nowhere.sh")}, {})
    with pytest.raises(InputError, match=r"has to end with \.sh"):
        read_hooks({"hook_completed": script(tmp_path, "hook.py")}, {})


def test_container_hooks_are_refused_by_name() -> None:
    with pytest.raises(MachineError, match="ACTIONS_RUNNER_CONTAINER_HOOKS"):
        read_hooks({}, {"ACTIONS_RUNNER_CONTAINER_HOOKS": "/hooks/index.js"})


@pytest.mark.parametrize(("allowed", "conclusion"), [("true", "failure"), ("false", "success"), ("", "success")])
def test_container_hooks_that_the_service_allows_too_are_refused_before_anything_runs(
    allowed: str, conclusion: str
) -> None:
    settings = JobSettings(runner_env={"ACTIONS_RUNNER_CONTAINER_HOOKS": "/hooks/index.js"})
    variables = {"DistributedTask.AllowRunnerContainerHooks": allowed} if allowed else {}
    made = Bench(settings=settings)
    ran = made.run(msgspec.structs.replace(claim({"run": "a"}), variables=variables))
    assert ran.finished.conclusion == conclusion
    if conclusion == "failure":
        assert (ran.finished.reason_code, made.shapes) == ("refused", [])
        assert "ACTIONS_RUNNER_CONTAINER_HOOKS" in ran.annotations()[0].message
