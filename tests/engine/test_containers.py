"""A job's container, services and docker actions, decided against a double: what is asked of the engine, and when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import Bench, Ran, Reply, ScriptedContainers, by_script, claim, docker_uses, uses
from runyard.engine.containers import engine_image
from runyard.job import Cancel, InputError, Policy, StepStarted, WorkError

if TYPE_CHECKING:
    from runyard.sandbox.contract import StepCommand


def run_with(*steps: Any, **keys: Any) -> tuple[Ran, Bench]:
    containers = keys.pop("containers", None)
    files = keys.pop("files", None)
    script = keys.pop("script", None)
    bench = Bench(script, files=files, containers=containers or ScriptedContainers())
    return bench.run(claim(*steps, **keys)), bench


def names(ran: Ran) -> list[str]:
    return [event.name for event in ran.events if isinstance(event, StepStarted)]


def test_a_job_container_is_the_sandbox_and_moves_the_paths() -> None:
    ran, bench = run_with(
        {"run": "${{ github.workspace }} ${{ runner.temp }} ${{ job.container.id }} ${{ job.container.network }}"},
        container={"image": "tool:${{ matrix.v }}", "env": {"A": 1, "B": True}, "options": "--cpus 1 -h box"},
        matrix={"v": 3},
    )
    (shape,) = bench.shapes
    assert shape.image == "tool:3"
    assert shape.container is not None
    assert (shape.container.hostname, shape.container.cpus) == ("box", 1.0)
    assert shape.container.env == {"A": "1", "B": "true", "GITHUB_ACTIONS": "true", "CI": "true"}
    assert shape.home == "/github/home"
    assert "/__w/demo/demo" in shape.directories
    command = ran.command(0)
    assert command.argv[0] == "/usr/bin/sh"
    assert command.argv[1:2] == ("-e",)
    assert command.cwd == "/__w/demo/demo"
    assert command.env["HOME"] == "/github/home"
    assert command.env["GITHUB_WORKSPACE"] == "/__w/demo/demo"
    assert command.env["RUNNER_TOOL_CACHE"] == "/__t"
    assert command.env["GITHUB_EVENT_PATH"] == "/github/workflow/event.json"
    assert "/__w/demo/demo /__w/_temp c0 " in [file.data.decode() for file in command.files_in][-1]
    assert names(ran) == [
        "Set up job",
        "Initialize containers",
        "Run /__w/demo/demo /__w/_temp c0 ",
        "Stop containers",
        "Complete job",
    ]


@pytest.mark.parametrize("container", ["", {"image": "${{ '' }}"}, {"image": None}, None], ids=repr)
def test_an_empty_image_is_no_container(container: Any) -> None:
    ran, bench = run_with({}, container=container)
    assert bench.shapes[0].image == "host"
    assert names(ran) == ["Set up job", "Run true", "Complete job"]
    assert ran.command(0).argv[0] == "/usr/bin/bash"


def test_O36_contexts_of_services_are_filled_and_F40_keys_agree() -> None:
    containers = ScriptedContainers()
    fields = ("services.db.id", "services.db.ports[5432]", "services.db.ports['5432']", "container.network")
    script = " ".join(f"${{{{ job.{each} }}}}" for each in fields)
    ran, _ = run_with(
        {"run": script},
        services={
            "db": {"image": "db:1", "ports": ["5432/tcp"], "env": {"P": "${{ secrets.S }}"}, "command": 'a "b c"'},
            "none": {"image": "${{ vars.NO }}"},
        },
        secrets={"S": "hidden-value"},
        containers=containers,
    )
    assert [each.name for each in containers.services] == ["db"]
    (db,) = containers.services
    assert db.env["P"] == "hidden-value"
    assert db.command == ("a", "b c")
    assert ran.command(0).files_in[-1].data == b"c-db 40432 40432 n0"
    assert ran.command(0).argv[0] == "/usr/bin/bash"
    assert "'none' will not be started" in ran.log(0)
    assert containers.asked == ["start", "stop"]


def test_O35_a_service_that_fails_skips_steps_but_not_always() -> None:
    containers = ScriptedContainers(fails=WorkError("One or more containers failed to start."))
    ran, _ = run_with(
        {"run": "no"}, {"run": "yes", "if_": "always()"}, services={"db": {"image": "db:1"}}, containers=containers
    )
    assert [each.conclusion for each in ran.named_steps()][:2] == ["skipped", "success"]
    assert ran.finished.conclusion == "failure"
    assert "One or more containers failed to start." in (ran.finished.reason or "")
    assert "its log" in ran.log()
    assert containers.asked == ["start", "stop"]


def test_a_cancellation_ends_the_wait_for_services() -> None:
    bench = Bench(containers=ScriptedContainers(hangs=True))
    bench.order_when(lambda event: isinstance(event, StepStarted) and event.name.startswith("Init"), Cancel())
    ran = bench.run(claim({"run": "no"}, {"run": "yes", "if_": "always()"}, services={"db": {"image": "db:1"}}))
    assert ran.finished.conclusion == "cancelled"
    assert [each.conclusion for each in ran.named_steps()][:2] == ["skipped", "success"]
    assert bench.session.closed == 1


@pytest.mark.parametrize("strict", [False, True], ids=["D16", "D16-strict"])
def test_F38_everything_refused_stands_in_one_message_and_nothing_is_opened(strict: bool) -> None:
    options = "--cpus 1 --memory 256m --privileged -v /:/host --network host --pid host --name tool"
    ran, bench = run_with(
        {},
        container={"image": "local/tool", "options": options, "volumes": ["/var/run/docker.sock:/s", "data:/data"]},
        services={"db": {"image": "db", "options": "--privileged"}},
        strict=strict,
    )
    assert bench.shapes == []
    assert ("D16" in ran.log(0)) is strict
    reason = ran.finished.reason or ""
    for words in ("--privileged", "/:/host", "--network host", "--pid host", "docker.sock", "the service db"):
        assert words in reason
    for words in ("--cpus", "--memory", "--name", "data:/data"):
        assert words not in reason


@pytest.mark.parametrize("where", ["container", "services"])
def test_computed_images_are_judged_by_the_policy(where: str) -> None:
    image: Any = {"image": "${{ vars.IMAGE }}"}
    asked: dict[str, Any] = {where: image if where == "container" else {"db": image}}
    ran, bench = run_with(
        {},
        **asked,
        vars={"IMAGE": "evil/tool"},
        policy=Policy(docker_images=("good/*",)),
    )
    assert bench.shapes == []
    assert "does not allow the image evil/tool" in (ran.finished.reason or "")
    assert ran.finished.reason_code == "refused"


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ("alpine:3", "alpine:3"),
        ("docker://alpine", "alpine"),
        ("host", "docker.io/library/host"),
        ("dir:etc", "docker.io/library/dir:etc"),
        ("localhost:5000/a/b:c@sha256:" + "0" * 64, "localhost:5000/a/b:c@sha256:" + "0" * 64),
    ],
)
def test_a_name_is_always_an_image_of_the_engine(given: str, image: str) -> None:
    assert engine_image(given, "it") == image


@pytest.mark.parametrize("given", ["dir:/etc", "tar:/x.tar", "dir:80/etc", "oci:9/x", "a b", "-x", "A/b:", "../x"])
def test_a_name_that_could_mean_a_folder_of_the_host_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        engine_image(given, "it")


def test_credentials_go_to_the_pull_alone_and_are_masked() -> None:
    ran, bench = run_with(
        {"run": "echo"},
        container={"image": "reg.example/x", "credentials": {"username": "me", "password": "${{ secrets.P }}"}},
        secrets={"P": "pull-secret-1"},
        script=lambda command: Reply(output=b"pull-secret-1\n") if "echo" in str(command.files_in) else None,
    )
    login = bench.shapes[0].login
    assert login is not None
    assert (login.username, login.password) == ("me", "pull-secret-1")
    assert "pull-secret-1" not in ran.log()


def test_half_a_login_is_an_error() -> None:
    ran, bench = run_with(
        {}, container={"image": "x", "credentials": {"username": "me", "password": "${{ secrets.NO }}"}}
    )
    assert bench.shapes == []
    assert "username and a password" in (ran.finished.reason or "")


def test_17_6_githubs_own_registry_is_asked_with_the_jobs_token() -> None:
    github = {"server_url": "https://github.com", "actor": "octo"}
    _, bench = run_with({}, container="ghcr.io/octo/tool", secrets={"GITHUB_TOKEN": "token-of-the-job"}, github=github)
    login = bench.shapes[0].login
    assert login is not None
    assert (login.username, login.password) == ("octo", "token-of-the-job")
    _, bench = run_with({}, container="example.io/tool", secrets={"GITHUB_TOKEN": "t0ken"}, github=github)
    assert bench.shapes[0].login is None


# Docker actions -------------------------------------------------------------------------------------------------------


def action(**runs: Any) -> dict[str, bytes]:
    manifest = {
        "name": "a",
        "inputs": {"who": {"default": "nobody"}},
        "outputs": {"o": {"description": "x"}},
        "runs": {"using": "docker", "image": "docker://tool:1", **runs},
    }
    return {"/home/runner/work/demo/demo/a/action.yml": json.dumps(manifest).encode()}


@pytest.mark.parametrize(
    ("runs", "with_", "entrypoint", "args"),
    [
        pytest.param(
            {"entrypoint": "/m"}, {"entrypoint": "/w"}, "/m", None, id="O15 the manifest's entrypoint is used"
        ),
        pytest.param({}, {"entrypoint": "/w"}, "/w", None, id="O15 the caller's where it has none"),
        pytest.param(
            {"args": ["x ${{ inputs.who }}", "", 'q"q']},
            {"args": "no", "who": "Mona"},
            None,
            ("x Mona", "", 'q"q'),
            id="O16 the manifest's args are used",
        ),
        pytest.param({}, {"args": 'a "b c" d'}, None, ("a", "b c", "d"), id="O16 the caller's where it has none"),
        pytest.param({}, {}, None, None, id="neither: the image's own"),
    ],
)
def test_entrypoint_and_args(
    runs: dict[str, Any], with_: dict[str, str], entrypoint: str | None, args: tuple[str, ...] | None
) -> None:
    containers = ScriptedContainers()
    ran, _ = run_with(uses(1, "./a", with_=with_), files=action(**runs), containers=containers)
    assert ran.finished.conclusion == "success"
    (run,) = containers.runs
    assert (run.image, run.entrypoint, run.args) == ("tool:1", entrypoint, args)


def test_9_6_environment_and_mounts_of_a_docker_action() -> None:
    containers = ScriptedContainers()
    ran, bench = run_with(
        uses(
            1,
            "./a",
            with_={"who": "Mona"},
            env={"P": "/home/runner/work/demo/demo/x", "Q": "/home/runner/work/demo/demox", "KEEP": "mine"},
        ),
        files=action(env={"EXTRA": "${{ inputs.who }}!", "KEEP": "manifest"}),
        containers=containers,
        env=({"GLOBAL": "g"},),
    )
    (run,) = containers.runs
    env = run.env
    assert run.cwd == "/github/workspace"
    assert env["INPUT_WHO"] == "Mona"
    assert (env["EXTRA"], env["KEEP"], env["GLOBAL"]) == ("Mona!", "mine", "g")
    assert (env["P"], env["Q"]) == ("/github/workspace/x", "/home/runner/work/demo/demox")
    assert env["HOME"] == "/github/home"
    assert env["RUNNER_TEMP"] == "/github/runner_temp"
    assert env["GITHUB_WORKSPACE"] == "/github/workspace"
    assert env["GITHUB_EVENT_PATH"] == "/github/workflow/event.json"
    assert env["GITHUB_OUTPUT"].startswith("/github/file_commands/set_output_")
    assert (env["CI"], env["GITHUB_ACTIONS"]) == ("true", "true")
    assert "PATH" not in env
    assert run.shares == {
        "/home/runner/work/_temp": "/github/runner_temp",
        "/home/runner/work/_temp/_github_home": "/github/home",
        "/home/runner/work/demo/demo": "/github/workspace",
    }
    assert set(run.shares) <= {bench.shapes[0].home, *bench.shapes[0].directories}
    assert {file.path for file in run.files_out} <= {file.path for file in run.files_in}
    assert ran.finished.conclusion == "success"


def test_command_files_of_a_docker_action_reach_the_job() -> None:
    def script(command: StepCommand) -> Reply | None:
        if command.argv[0] == "tool:1":
            return Reply(output=b"::notice::told\n", files={"output": b"o=1\n", "env": b"E=2\n", "path": b"/p\n"})
        return None

    ran, _ = run_with(
        docker_uses(1, "tool:1", id="d", with_={"x": "y"}), {"run": "${{ steps.d.outputs.o }}"}, script=script
    )
    command = ran.command(1)
    assert command.files_in[-1].data == b"1"
    assert command.env["E"] == "2"
    assert command.env["PATH"].startswith("/p:")
    assert ran.command(0).env["INPUT_X"] == "y"
    assert [each.message for each in ran.annotations()] == ["told"]


def test_post_entrypoint_runs_after_the_steps_and_pre_of_a_local_action_does_not() -> None:
    containers = ScriptedContainers()
    runs = {"entrypoint": "/main", "pre-entrypoint": "/pre", "post-entrypoint": "/post"}
    ran, _ = run_with(uses(1, "./a"), {"run": "mid"}, files=action(**runs), containers=containers)
    assert [each.command.argv[0] for each in ran.session.steps] == ["/main", "/usr/bin/bash", "/post"]
    assert "pre phase" in ran.log(1)
    assert names(ran)[-2:] == ["Post Run ./a", "Complete job"]


def test_a_dockerfile_is_built_from_its_own_folder() -> None:
    containers = ScriptedContainers()
    ran, _ = run_with(
        uses(1, "./a"), files=action(image="docker/Tool.Dockerfile"), containers=containers, policy=Policy(build=True)
    )
    assert ran.session.got == ["/home/runner/work/demo/demo/a/docker"]
    assert [each.dockerfile for each in containers.builds] == ["Tool.Dockerfile"]
    assert containers.runs[0].image == "built-1"


@pytest.mark.parametrize(
    ("runs", "policy", "words"),
    [
        ({"image": "Dockerfile"}, Policy(), "policy with build"),
        ({"image": "tool:1"}, Policy(build=True), "path of a Dockerfile"),
        ({"image": "docker://evil"}, Policy(docker_images=("good",)), "does not allow the image evil"),
        ({"image": "docker://dir:/etc"}, Policy(), "not the name of an image"),
    ],
    ids=["no build", "no image", "image", "folder"],
)
def test_a_docker_action_is_refused(runs: dict[str, Any], policy: Policy, words: str) -> None:
    containers = ScriptedContainers()
    ran, _ = run_with(uses(1, "./a"), files=action(**runs), containers=containers, policy=policy)
    assert ran.finished.conclusion == "failure"
    assert words in ran.log()
    assert containers.runs == []
    assert containers.builds == []


def test_a_docker_action_without_containers_is_refused_by_name() -> None:
    bench = Bench(files=action())
    ran = bench.run(claim(uses(1, "./a"), docker_uses(2, "x", if_="always()")))
    assert [each.conclusion for each in ran.named_steps()] == ["failure", "failure"]
    assert ran.log().count("--sandbox docker") == 2


def test_a_failing_docker_action_says_its_exit_code() -> None:
    ran, _ = run_with(docker_uses(1, "x"), script=lambda command: Reply(code=7) if command.argv[0] == "x" else None)
    assert ran.named_steps()[0].exit_code == 7
    assert "exit code 7" in (ran.finished.reason or "")


def test_scripts_in_a_container_use_sh() -> None:
    """O11."""
    ran, _ = run_with({"run": "[[ a == a ]]"}, container="tool", script=by_script({}))
    assert ran.command(0).argv[:2] == ("/usr/bin/sh", "-e")
