"""Composite and JavaScript actions: inputs, scopes, phases and their order (job-semantics 9, 22.5)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from engine.scripted import Bench, Ran, Reply, claim, step, uses
from runyard.action.manifest import read_manifest
from runyard.engine.actions import ActionFiles
from runyard.engine.phases import node_version
from runyard.engine.wire import JobSettings
from runyard.job import ActionStep, Cancel, Log, Policy, Refused

if TYPE_CHECKING:
    from runyard.job import Step
    from runyard.sandbox.contract import StepCommand

WORKSPACE = "/home/runner/work/demo/demo"


class Store:
    """Remote actions by `owner/repo[/path]`."""

    def __init__(self, **actions: str) -> None:
        self._actions = {name.replace("__", "/"): text for name, text in actions.items()}
        self.asked: list[str] = []

    async def resolve(self, wanted: ActionStep) -> ActionFiles | Refused:
        self.asked.append(wanted.uses)
        name = f"{wanted.repository}{'/' + wanted.path if wanted.path else ''}"
        if name not in self._actions:
            return Refused(f"action {wanted.uses}", "it is not in the store")
        manifest = read_manifest(textwrap.dedent(self._actions[name]).encode(), f"{name}/action.yml")
        return ActionFiles(manifest=manifest, folder="/store/x", root="/store", commit="c" * 40)


def script_of(command: StepCommand) -> str:
    """What a command is, short: the script's text, or the file that node runs."""
    if command.argv[0] == "/usr/bin/node":
        return command.argv[1].removeprefix("/home/runner/work/")
    return command.files_in[-1].data.decode()


class Actions:
    """A bench whose workspace has local actions, and whose commands answer by what they are."""

    def __init__(self, local: dict[str, str], store: Store | None = None, **replies: Reply) -> None:
        files = {f"{WORKSPACE}/{name}/action.yml": textwrap.dedent(text).encode() for name, text in local.items()}
        self._replies = {key.replace("__", "/"): reply for key, reply in replies.items()}
        self.bench = Bench(self._answer, files=files, actions=store)

    def _answer(self, command: StepCommand) -> Reply | None:
        text = script_of(command)
        return next((reply for key, reply in self._replies.items() if key == text or text.endswith(f"{key}.js")), None)

    def run(self, *steps: Step, **keys: Any) -> Ran:
        return self.bench.run(claim(*steps, **keys))


def ran_commands(ran: Ran) -> list[str]:
    return [script_of(each.command) for each in ran.session.steps]


COMPOSITE = """
inputs:
  flag: {default: "false"}
  who: {default: "${{ github.repository }}"}
outputs:
  said: {value: "${{ steps.one.outputs.k }}"}
  undeclared_elsewhere: {value: "${{ inputs.who }}"}
runs:
  using: composite
  steps:
    - {id: one, run: "one ${{ inputs.flag == true }} ${{ inputs.flag }} ${{ inputs.who }}", shell: bash}
    - {run: "two ${{ steps.one.outcome }}", shell: bash, if: "github.action_status == 'success'"}
"""


def test_O14_inputs_of_a_composite_are_text() -> None:
    ran = Actions({"a": COMPOSITE}).run(uses(1, "./a", with_={"flag": True}))
    assert ran_commands(ran) == ["one false true octo/demo", "two success"]
    assert "INPUT_FLAG" not in ran.command(0).env


def test_outputs_of_a_composite_are_the_declared_ones() -> None:
    actions = Actions({"a": COMPOSITE})
    actions.bench._sandbox.session._script = lambda command: Reply(files={"output": b"k=v\nother=w\n"})
    ran = actions.run(uses(1, "./a", id="c"), step(2, run="${{ toJSON(steps.c.outputs) }}|${{ toJSON(steps.one) }}"))
    assert ran_commands(ran)[-1] == '{\n  "said": "v",\n  "undeclared_elsewhere": "octo/demo"\n}|null'


def test_action_path_is_of_the_nested_steps_alone() -> None:
    ran = Actions({"a": COMPOSITE}).run(uses(1, "./a"), step(2, run="after"))
    assert ran.command(0).env["GITHUB_ACTION_PATH"] == f"{WORKSPACE}/a"
    assert "GITHUB_ACTION_PATH" not in ran.command(2).env


def test_O26_a_nested_step_has_its_own_id_and_one_record_for_all() -> None:
    ran = Actions({"a": COMPOSITE}).run(uses(1, "./a"))
    assert [each.command.env["GITHUB_ACTION"] for each in ran.session.steps] == ["one", "__run"]
    assert [each.step for each in ran.named_steps()] == [1]


FAILING = """
runs:
  using: composite
  steps:
    - {run: bad, shell: bash}
    - {run: skipped, shell: bash}
    - {run: on failure, shell: bash, if: failure()}
    - {run: always, shell: bash, if: always()}
"""


def test_a_failing_nested_step_fails_the_action_and_drives_nested_conditions() -> None:
    ran = Actions({"a": FAILING}, bad=Reply(code=5)).run(uses(1, "./a"), step(2, run="later"))
    assert ran_commands(ran) == ["bad", "on failure", "always"]
    assert ran.outcomes() == [("failure", "failure"), ("skipped", "skipped")]
    assert ran.steps()[1].exit_code == 5


def test_O24_nested_success_looks_at_the_action_and_not_at_the_job() -> None:
    ran = Actions({"a": COMPOSITE}, bad=Reply(code=1)).run(step(1, run="bad"), uses(2, "./a", if_="always()"))
    assert [each.split()[0] for each in ran_commands(ran)] == ["bad", "one", "two"]


def test_nested_continue_on_error_is_honoured() -> None:
    local = """
    runs:
      using: composite
      steps:
        - {id: x, run: bad, shell: bash, continue-on-error: true}
        - {run: "${{ steps.x.outcome }} ${{ steps.x.conclusion }}", shell: bash}
    """
    ran = Actions({"a": local}, bad=Reply(code=1)).run(uses(1, "./a"))
    assert ran_commands(ran)[-1] == "failure success"
    assert ran.outcomes() == [("success", "success")]


def test_a_nested_env_error_marks_the_step_failed_and_still_runs_it() -> None:
    local = """
    runs:
      using: composite
      steps:
        - {run: runs all the same, shell: bash, env: {A: "${{ fromJSON('') }}"}}
        - {run: skipped, shell: bash}
    """
    ran = Actions({"a": local}).run(uses(1, "./a"))
    assert ran_commands(ran) == ["runs all the same"]
    assert ran.outcomes() == [("failure", "failure")]


def test_a_nested_condition_error_ends_the_action() -> None:
    local = """
    runs:
      using: composite
      steps:
        - {run: one, shell: bash, if: "fromJSON('')"}
        - {run: two, shell: bash, if: always()}
    """
    ran = Actions({"a": local}).run(uses(1, "./a"))
    assert ran_commands(ran) == []
    assert ran.outcomes() == [("failure", "failure")]


def test_environment_of_nested_steps() -> None:
    """Written values reach following nested steps unless the calling step's own env has the key (section 6)."""
    local = """
    runs:
      using: composite
      steps:
        - {run: write, shell: bash}
        - {run: read, shell: bash, env: {N: nested}}
        - {run: last, shell: bash}
    """
    actions = Actions({"a": local}, write=Reply(files={"env": b"A=written\nB=written\n"}))
    ran = actions.run(uses(1, "./a", env={"A": "own"}), step(2, run="after"), env=[{"A": "job"}])
    read, last, after = (ran.command(n).env for n in (1, 2, 3))
    assert (read["A"], read["B"], read["N"]) == ("own", "written", "nested")
    assert "N" not in last
    assert after["A"] == "written"


def test_defaults_of_the_job_do_not_reach_into_composites() -> None:
    actions = Actions({"a": COMPOSITE})
    ran = actions.run(uses(1, "./a"), defaults=[{"shell": "python", "working-directory": "sub"}])
    assert ran.command(0).argv[0] == "/usr/bin/bash"
    assert ran.command(0).cwd == WORKSPACE


def test_O31_a_local_action_inside_a_composite_is_of_the_workspace() -> None:
    outer = "runs: {using: composite, steps: [{uses: ./c}]}"
    ran = Actions({"b": outer, "c": COMPOSITE}).run(uses(1, "./b"))
    assert ran.command(0).env["GITHUB_ACTION_PATH"] == f"{WORKSPACE}/c"


def test_a_composite_that_includes_itself_ends_with_a_message() -> None:
    ran = Actions({"a": "runs: {using: composite, steps: [{uses: ./a}]}"}).run(uses(1, "./a"))
    assert ran.finished.conclusion == "failure"
    assert "nested deeper" in ran.log(1)


def test_a_missing_local_action_says_to_check_out_first() -> None:
    ran = Actions({}).run(uses(1, "./none"))
    assert ran.outcomes() == [("failure", "failure")]
    assert "Did you forget to run actions/checkout" in ran.log(1)


def test_a_broken_local_action_fails_its_step_with_the_place() -> None:
    ran = Actions({"a": "runs: {using: composite, steps: [{run: x}]}"}).run(uses(1, "./a"))
    assert ran.outcomes() == [("failure", "failure")]
    assert "./a/action.yml:1:" in ran.log(1)


def test_a_local_action_that_policy_forbids_fails_its_step() -> None:
    ran = Actions({"a": COMPOSITE}).run(uses(1, "./a"), policy=Policy(local_actions=False))
    assert ran.outcomes() == [("failure", "failure")]


def test_unknown_and_deprecated_inputs_warn() -> None:
    local = "inputs: {old: {deprecationMessage: use new}}\nruns: {using: composite, steps: [{run: x, shell: bash}]}"
    ran = Actions({"a": local}).run(uses(1, "./a", with_={"old": "1", "odd": "2"}))
    messages = [a.message for a in ran.annotations(1)]
    assert len(messages) == 2
    assert "use new" in messages[0]
    assert "'odd'" in messages[1]


def test_cancel_inside_a_composite_stops_it() -> None:
    local = """
    runs:
      using: composite
      steps:
        - {run: long, shell: bash}
        - {run: never, shell: bash, if: always()}
    """
    actions = Actions({"a": local}, long=Reply(output=b"begun\n", until="interrupt"))
    actions.bench.order_when(lambda e: isinstance(e, Log) and e.kind == "output" and b"begun" in e.data, Cancel())
    ran = actions.run(uses(1, "./a"), step(2, run="cleanup", if_="always()"))
    assert ran_commands(ran) == ["long", "cleanup"]
    assert ran.outcomes()[0] == ("cancelled", "cancelled")


# JavaScript -----------------------------------------------------------------------------------------------------------

NODE = "inputs: {msg: {default: d}, my-in.x: {}}\nruns: {using: node20, main: m.js, pre: p.js, post: q.js}"
POSTS = "runs: {using: node20, main: m.js, post: q.js}"


def test_O5_a_local_action_has_no_pre_and_says_so_in_main_and_post() -> None:
    ran = Actions({"a": NODE}).run(uses(1, "./a"))
    assert ran_commands(ran) == ["demo/demo/a/m.js", "demo/demo/a/q.js"]
    assert len(ran.annotations(1)) == len(ran.annotations(2)) == 1
    assert [each.name for each in ran.named_steps()] == ["Run ./a", "Post Run ./a"]


def test_O13_inputs_of_javascript() -> None:
    ran = Actions({"a": NODE}).run(uses(1, "./a", with_={"my-in.x": "v"}))
    env = ran.command(0).env
    assert (env["INPUT_MY-IN.X"], env["INPUT_MSG"]) == ("v", "d")
    assert ran.command(0).cwd == WORKSPACE


def test_C23_state_of_main_reaches_post_and_only_its_own() -> None:
    actions = Actions({"a": POSTS})
    count = iter(range(9))
    actions.bench._sandbox.session._script = lambda command: Reply(
        output=f"::save-state name=x::{next(count)}\n".encode(), files={"state": b"y=file\n"}
    )
    ran = actions.run(uses(1, "./a"), uses(2, "./a"))
    second, first = ran.command(2).env, ran.command(3).env
    assert (second["STATE_x"], second["STATE_y"]) == ("1", "file")
    assert first["STATE_x"] == "0"


def test_O22_a_failing_post_fails_the_job() -> None:
    ran = Actions({"a": POSTS}, q=Reply(code=1)).run(uses(1, "./a"))
    assert ran.outcomes() == [("success", "success"), ("failure", "failure")]
    assert ran.finished.conclusion == "failure"


def test_javascript_that_fails_says_nothing_of_its_own() -> None:
    ran = Actions({"a": POSTS}, m=Reply(code=1)).run(uses(1, "./a"))
    assert ran.annotations(1) == []
    assert ran.steps()[1].exit_code == 1


REMOTE = {
    "o__full": NODE,
    "o__posts": POSTS,
    "o__comp": "runs: {using: composite, steps: [{uses: o/full@v1}, {uses: ./local}]}",
}


def test_O2_posts_run_in_reverse_order() -> None:
    ran = Actions({}, Store(**REMOTE)).run(uses(1, "o/posts@v1"), uses(2, "o/posts@v2"))
    assert [each.name for each in ran.named_steps()[2:]] == ["Post Run o/posts@v2", "Post Run o/posts@v1"]


def test_O3_pre_runs_and_so_does_post_although_main_is_skipped() -> None:
    ran = Actions({}, Store(**REMOTE)).run(uses(1, "o/full@v1", if_="false"))
    assert ran_commands(ran) == ["_actions/o/full/v1/p.js", "_actions/o/full/v1/q.js"]
    assert ran.outcomes() == [("skipped", "skipped"), ("success", "success")]


def test_O4_without_pre_a_skipped_main_has_no_post() -> None:
    ran = Actions({}, Store(**REMOTE)).run(uses(1, "o/posts@v1", if_="false"))
    assert ran_commands(ran) == []


def test_the_order_of_all_phases_with_a_composite() -> None:
    """Pre A, Pre C[Pre D], Main A, Main B, Main C[Main D, Main E], Post C[Post E, Post D], Post A (9.4)."""
    actions = Actions({"local": POSTS}, Store(**{**REMOTE, "o__a": NODE}))
    ran = actions.run(uses(1, "o/a@v1"), step(2, run="B"), uses(3, "o/comp@v1"))
    assert ran_commands(ran) == [
        "_actions/o/a/v1/p.js",
        "_actions/o/full/v1/p.js",
        "_actions/o/a/v1/m.js",
        "B",
        "_actions/o/full/v1/m.js",
        "demo/demo/local/m.js",
        "demo/demo/local/q.js",
        "_actions/o/full/v1/q.js",
        "_actions/o/a/v1/q.js",
    ]
    assert [each.name for each in ran.named_steps()[3:]] == ["Post Run o/comp@v1", "Post Run o/a@v1"]


def test_remote_actions_are_asked_for_once_and_named_in_the_log() -> None:
    store = Store(**REMOTE)
    ran = Actions({}, store).run(uses(1, "o/posts@v1"), uses(2, "o/posts@v1"))
    assert store.asked == ["o/posts@v1"]
    assert f"Download action repository 'o/posts@v1' (SHA:{'c' * 40})" in ran.log(0)
    assert ran.session.overlays == [("/store", "/home/runner/work/_actions/o/posts/v1")]
    assert ran.command(0).env["GITHUB_ACTION_REPOSITORY"] == "o/posts"
    assert ran.command(0).env["GITHUB_ACTION_REF"] == "v1"
    assert "GITHUB_ACTION_PATH" not in ran.command(0).env


def test_every_refused_action_is_named_before_anything_runs() -> None:
    ran = Actions({}, Store()).run(step(1, run="x"), uses(2, "o/one@v1"), uses(3, "o/two@v1"))
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason_code == "refused"
    assert "o/one@v1" in ran.log(0)
    assert "o/two@v1" in ran.log(0)
    assert ran.session.steps == []


def test_cancel_reaches_a_pre_phase_and_a_post_phase_by_their_own_conditions() -> None:
    for condition, outcome in (("always()", "success"), ("success()", "cancelled")):
        local = f"runs: {{using: node20, main: m.js, post: q.js, post-if: {condition}}}"
        going = Reply(output=b"begun\n") if outcome == "success" else Reply(output=b"begun\n", until="interrupt")
        actions = Actions({"a": local}, q=going)
        actions.bench.order_when(lambda e: isinstance(e, Log) and e.kind == "output" and b"begun" in e.data, Cancel())
        ran = actions.run(uses(1, "./a"))
        assert ran.named_steps()[1].outcome == outcome
    early = "runs: {using: node20, main: m.js, pre: p.js, pre-if: success()}"
    pre = Actions({}, Store(o__early=early), p=Reply(output=b"begun\n", until="interrupt"))
    pre.bench.order_when(lambda e: isinstance(e, Log) and e.kind == "output" and b"begun" in e.data, Cancel())
    ran = pre.run(uses(1, "o/early@v1"))
    assert ran.session.steps[0].signals
    assert ran.finished.conclusion == "cancelled"


def test_services_of_the_claim_reach_actions_and_scripts_by_kind() -> None:
    import msgspec

    given = msgspec.structs.replace(
        claim(step(1, run="x"), uses(2, "./a"), env=[{"NODE_ICU_DATA": "x"}]),
        endpoints={"results": "http://r", "runtime": "http://t", "oidc": "http://o"},
        tokens={"runtime": "tok", "oidc": "oid"},
    )
    ran = Actions({"a": POSTS}).bench.run(given)
    script, node = ran.command(0).env, ran.command(1).env
    assert "ACTIONS_RUNTIME_TOKEN" not in script
    assert script["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] == node["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] == "oid"
    assert (node["ACTIONS_RUNTIME_URL"], node["ACTIONS_RUNTIME_TOKEN"], node["ACTIONS_RESULTS_URL"]) == (
        "http://t",
        "tok",
        "http://r",
    )
    assert node["ACTIONS_CACHE_SERVICE_V2"] == "True"
    assert "NODE_ICU_DATA" in script
    assert "NODE_ICU_DATA" not in node


def test_the_first_word_of_a_job_without_store_is_what_it_can_do() -> None:
    ran = Bench().run(claim(uses(1, "o/one@v1")))
    assert ran.finished.reason_code == "refused"


@pytest.mark.parametrize("condition", ["success()", "failure()"])
def test_post_if_sees_the_status_of_the_whole_job(condition: str) -> None:
    local = f"runs: {{using: node20, main: m.js, post: q.js, post-if: {condition}}}"
    ran = Actions({"a": local}, bad=Reply(code=1)).run(uses(1, "./a"), step(2, run="bad"))
    assert ("demo/demo/a/q.js" in ran_commands(ran)) is (condition == "failure()")


@pytest.mark.parametrize(
    ("using", "env", "runner", "version"),
    [
        ("node12", {}, {}, "node20"),
        ("node16", {}, {}, "node20"),
        ("node20", {}, {}, "node20"),
        ("node24", {}, {}, "node24"),
        ("node20", {"FORCE_JAVASCRIPT_ACTIONS_TO_NODE24": "$TRUE"}, {}, "node24"),
        ("node20", {}, {"FORCE_JAVASCRIPT_ACTIONS_TO_NODE24": "1"}, "node24"),
        (
            "node20",
            {"FORCE_JAVASCRIPT_ACTIONS_TO_NODE24": "1", "ACTIONS_ALLOW_USE_UNSECURE_NODE_VERSION": "true"},
            {},
            "node20",
        ),
    ],
)
def test_the_node_of_an_action(using: str, env: dict[str, str], runner: dict[str, str], version: str) -> None:
    assert node_version(using, env, runner) == version


def test_checkout_without_native_adapter_is_a_remote_action() -> None:
    store = Store()
    bench = Bench(actions=store, settings=JobSettings(native=False))
    assert bench.run(claim(uses(1, "actions/checkout@v4"))).finished.reason_code == "refused"
    assert store.asked == ["actions/checkout@v4"]
