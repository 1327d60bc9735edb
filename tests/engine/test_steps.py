"""Order, results, contexts and conditions of steps (job-semantics 4, 2, 6, 22.3, 22.5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.scripted import Bench, Reply, by_script, claim, run_job
from runyard.engine.results import Result, merge
from runyard.engine.wire import JobSettings
from runyard.job import Limits, NeedResult, Policy
from runyard.sandbox.contract import FileBack

FAILS = by_script({"bad": Reply(code=3)})


def outcomes(*steps: dict[str, Any], script: Any = FAILS, **keys: Any) -> list[tuple[str, str]]:
    return run_job(*steps, script=script, **keys).outcomes()


S, F, K, C = (("success", "success"), ("failure", "failure"), ("skipped", "skipped"), ("cancelled", "cancelled"))
FORGIVEN = ("failure", "success")


@pytest.mark.parametrize(
    ("steps", "expected", "job"),
    [
        pytest.param(
            [{"run": "bad", "continue_on_error": True}, {"if_": "failure()"}, {}], [FORGIVEN, K, S], "success", id="O1"
        ),
        pytest.param([{"run": "bad", "continue_on_error": False}], [F], "failure", id="coe-false"),
        pytest.param(
            [{"run": "bad"}, {}, {"if_": "always()"}, {"if_": "failure()"}], [F, K, S, S], "failure", id="4.6"
        ),
        pytest.param([{"env": {"A": "${{ fromJSON('x') }}"}, "if_": "false"}], [F], "failure", id="O19"),
        pytest.param(
            [{"env": {"A": "${{ fromJSON('x') }}"}, "continue_on_error": True}],
            [F],
            "failure",
            id="env-error-not-forgiven",
        ),
        pytest.param(
            [{"if_": "fromJSON('x')", "continue_on_error": True}], [F], "failure", id="condition-error-not-forgiven"
        ),
        pytest.param(
            [{"run": "bad", "env": {"F": "false"}, "continue_on_error": "${{ env.F }}"}], [F], "failure", id="O20"
        ),
        pytest.param(
            [{"run": "bad", "continue_on_error": "${{ github.sha != '' }}"}], [FORGIVEN], "success", id="coe-expression"
        ),
        pytest.param([{"if_": "${{ false }} || false"}], [S], "success", id="E48"),
        pytest.param([{"run": "bad"}, {"if_": "contains('always()', 'x')"}], [F, K], "failure", id="E49"),
        pytest.param([{"shell": "node"}], [F], "failure", id="O12"),
        pytest.param([{"shell": "PWSH"}], [F], "failure", id="O34"),
        pytest.param([{"shell": "cmd", "if_": "false"}, {"shell": "sh"}], [K, S], "success", id="F60-cmd-skipped"),
        pytest.param([{"timeout_minutes": 0}], [S], "success", id="O6"),
        pytest.param([{"timeout_minutes": 0.9}], [S], "success", id="O7"),
        pytest.param([{"timeout_minutes": "${{ github.sha }}"}], [S], "success", id="timeout-error-still-runs"),
        pytest.param(
            [{"run": "bad"}, {"if_": "cancelled()"}, {"if_": "success() || failure()"}], [F, K, S], "failure", id="4"
        ),
    ],
)
def test_results(steps: list[dict[str, Any]], expected: list[tuple[str, str]], job: str) -> None:
    ran = run_job(*steps, script=FAILS)
    assert ran.outcomes() == expected
    assert ran.finished.conclusion == job


def test_O21_an_error_command_alone_fails_nothing() -> None:
    ran = run_job({"run": "x"}, script=by_script({"x": Reply(output=b"::error::e\n")}))
    assert ran.outcomes() == [S]
    assert [a.message for a in ran.annotations()] == ["e"]


def test_O20_the_error_of_continue_on_error_is_logged() -> None:
    ran = run_job({"run": "bad", "env": {"F": "false"}, "continue_on_error": "${{ env.F }}"}, script=FAILS)
    assert "continue-on-error could not be evaluated" in ran.log(1)


def test_O23_skipped_step_in_the_steps_context() -> None:
    ran = run_job(
        {"id": "s", "if_": "false"},
        {"env": {"O": "${{ steps.s.outcome }}/${{ steps.s.conclusion }}/${{ steps.s.outputs.x }}"}},
    )
    assert ran.command(0).env["O"] == "skipped/skipped/"


def test_O8_values_of_one_env_map_do_not_see_each_other() -> None:
    ran = run_job({"env": {"A": "1", "B": "${{ env.A }}"}})
    assert ran.command(0).env["A"] == "1"
    assert ran.command(0).env["B"] == ""


def test_E45_E46_env_is_case_sensitive_and_has_no_default_variables() -> None:
    ran = run_job({"env": {"Foo": "1"}, "run": "${{ env.foo }}|${{ env.Foo }}|${{ env.CI }}|${{ env.GITHUB_SHA }}"})
    assert ran.command(0).files_in[-1].data == b"|1||"


def test_O25_O26_generated_ids_and_unset_variables_of_a_run_step() -> None:
    ran = run_job({}, {}, {"id": "own"})
    assert [each.command.env["GITHUB_ACTION"] for each in ran.session.steps] == ["__run", "__run_2", "own"]
    assert "GITHUB_ACTION_PATH" not in ran.command(0).env
    assert ran.command(0).env["GITHUB_ACTION_REPOSITORY"] == ran.command(0).env["GITHUB_ACTION_REF"] == ""


def test_O32_outputs_are_evaluated_although_the_job_failed() -> None:
    script = by_script({"one": Reply(files={"output": b"k=v\n"}), "bad": Reply(code=1)})
    ran = run_job({"id": "a", "run": "one"}, {"run": "bad"}, script=script, outputs={"o": "${{ steps.a.outputs.k }}"})
    assert ran.finished.conclusion == "failure"
    assert ran.finished.outputs == {"o": "v"}


def test_M11_an_output_that_holds_a_mask_is_dropped_and_named() -> None:
    script = by_script({"one": Reply(files={"output": b"k=top hunter2\nl=plain\ne=\n"})})
    ran = run_job(
        {"id": "a", "run": "one"},
        script=script,
        secrets={"S": "hunter2"},
        outputs={"o": "${{ steps.a.outputs.k }}", "p": "${{ steps.a.outputs.l }}", "q": "${{ steps.a.outputs.e }}"},
    )
    assert ran.finished.outputs == {"p": "plain"}
    assert ran.finished.dropped_outputs == ("o",)
    assert "Skip output 'o' since it may contain secret." in ran.log()


def test_an_output_that_cannot_be_evaluated_fails_the_job() -> None:
    ran = run_job({}, outputs={"o": "${{ fromJSON('') }}"})
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason_code == "evaluation_error"


def test_O30_a_daemon_that_holds_the_output_does_not_hold_the_step() -> None:
    ran = run_job({"run": "x"}, {}, script=by_script({"x": Reply(output=b"a\n", leaves_output_open=True)}))
    assert ran.outcomes() == [S, S]
    assert "a\n" in ran.log(1)


def test_timeout_ends_the_step_by_the_ladder_and_counts_as_failure() -> None:
    bench = Bench(by_script({"long": Reply(until="terminate")}))
    given = claim({"run": "long", "timeout_minutes": 1, "name": "slow"}, {"if_": "failure()"})
    ran = bench.run(given, minute_s=0.02)
    assert ran.outcomes() == [F, S]
    assert "The action 'slow' has timed out after 1 minutes." in ran.log(1)
    assert ran.steps()[1].reason_code == "timed_out"
    assert [kind for kind, _ in ran.session.steps[0].signals][:2] == ["interrupt", "terminate"]


def test_timeout_is_forgiven_by_continue_on_error() -> None:
    bench = Bench(by_script({"long": Reply(until="interrupt")}))
    ran = bench.run(claim({"run": "long", "timeout_minutes": 1, "continue_on_error": True}), minute_s=0.02)
    assert ran.outcomes() == [FORGIVEN]
    assert ran.finished.conclusion == "success"


def test_F20_outputs_are_text_and_the_deciding_value_is_shown() -> None:
    script = by_script({"o": Reply(files={"output": b"zero=0\nno=false\nempty=\n"})})
    conditions = [
        "steps.o.outputs.zero",
        "steps.o.outputs.no",
        "steps.o.outputs.empty",
        "steps.o.outputs.missing",
        "${{ steps.o.outputs.zero == 0 }}",
        "${{ !steps.o.outputs.no }}",
        "${{ fromJSON(steps.o.outputs.no) }}",
        "steps.o.outputs.no == 'false' && '' || 'z'",
    ]
    ran = run_job({"id": "o", "run": "o"}, *({"if_": each} for each in conditions), script=script)
    assert [outcome for outcome, _ in ran.outcomes()[1:]] == [
        "success",
        "success",
        "skipped",
        "skipped",
        "success",
        "skipped",
        "skipped",
        "success",
    ]
    assert "steps.o.outputs.empty = ''" in (ran.steps()[4].reason or "")
    assert "steps.o.outputs.no = 'false'" in (ran.steps()[7].reason or "")
    assert ran.steps()[4].reason_code == "condition_false"


def test_F04_inputs_keep_their_type_and_the_payload_its_text() -> None:
    ran = run_job(
        {"if_": "${{ inputs.dry }}"},
        {"if_": "${{ !inputs.dry }}"},
        {"if_": "${{ github.event.inputs.dry }}"},
        {"run": "${{ inputs.dry == false }} ${{ inputs.dry == 'false' }} ${{ github.event.inputs.dry == 'false' }}"},
        inputs={"dry": False},
        event={"inputs": {"dry": "false"}},
    )
    assert ran.outcomes() == [K, S, S, S]
    assert ran.command(2).files_in[-1].data == b"true false true"


def test_F12_matrix_and_strategy_in_a_step() -> None:
    ran = run_job(
        {"run": "${{ matrix.p }} ${{ matrix.n == 1 }} ${{ strategy.job-index }}/${{ strategy.job-total }}"},
        matrix={"p": "x", "n": 1},
    )
    assert ran.command(0).files_in[-1].data == b"x true 0/1"


def test_needs_context_and_job_context() -> None:
    ran = run_job(
        {"run": "${{ needs.a.result }} ${{ needs.a.outputs.k }} ${{ job.status }} ${{ runner.os }}"},
        needs={"a": NeedResult("success", {"k": "v"})},
    )
    assert ran.command(0).files_in[-1].data == b"success v success Linux"


@pytest.mark.parametrize(("strict", "outcome"), [(False, F), (True, S)], ids=["D8", "D8-strict"])
def test_D8_lenient_json_is_read_under_the_switch_alone(strict: bool, outcome: tuple[str, str]) -> None:
    ran = run_job({"run": "${{ fromJSON('{a: 1,} x').a }}"}, strict=strict)
    assert ran.outcomes() == [outcome]
    if strict:
        assert ran.command(0).files_in[-1].data == b"1"


@pytest.mark.parametrize("strict", [False, True], ids=["D18", "D18-strict"])
@pytest.mark.parametrize(("secrets", "token"), [({}, b"[][]"), ({"GITHUB_TOKEN": "given"}, b"[given][given]")])
def test_D18_the_token_is_empty_unless_given_and_never_exported(
    strict: bool, secrets: dict[str, str], token: bytes
) -> None:
    ran = run_job({"run": "[${{ github.token }}][${{ secrets.GITHUB_TOKEN }}]"}, secrets=secrets, strict=strict)
    assert ran.command(0).files_in[-1].data == token
    assert "GITHUB_TOKEN" not in ran.command(0).env


@pytest.mark.parametrize("strict", [False, True], ids=["D13", "D13-strict"])
def test_D13_every_job_gets_folders_of_its_own_made_empty(strict: bool) -> None:
    bench = Bench()
    bench.run(claim({}, strict=strict))
    shape = bench._sandbox.shapes[0]
    assert "/home/runner/work/demo/demo" in shape.directories
    assert "/home/runner/work/_temp" in shape.directories
    assert "/opt/hostedtoolcache" in shape.directories
    assert "/home/runner/work/_temp/_runner_file_commands" in shape.tmpfs


@pytest.mark.parametrize("strict", [False, True], ids=["D20", "D20-strict"])
def test_D20_D17_the_log_header_names_stand_in_image_and_network(strict: bool) -> None:
    settings = JobSettings(header=("ubuntu-latest is the image 'host' here",), network="proxy")
    log = Bench(settings=settings).run(claim({}, strict=strict)).log(0)
    assert "ubuntu-latest is the image 'host' here\n" in log
    assert "network proxy" in log


# Environment files ----------------------------------------------------------------------------------------------------


def after_file(kind: str, content: bytes, second: str = "two", **keys: Any) -> Any:
    return run_job(
        {"run": "one", "id": "one"},
        {"run": second, "if_": "always()"},
        script=by_script({"one": Reply(files={kind: content})}),
        **keys,
    )


def test_F8_entries_before_a_bad_one_count_and_the_step_fails() -> None:
    ran = after_file("output", b"K=1\nBAD\nL=2\n", second="${{ steps.one.outputs.K }}${{ steps.one.outputs.L }}")
    assert ran.outcomes()[0] == F
    assert ran.command(1).files_in[-1].data == b"1"
    assert "Unable to process file command 'output' successfully." in ran.log(1)
    assert "Invalid format 'BAD'" in ran.log(1)


def test_F9_node_options_is_refused_without_failing() -> None:
    ran = after_file("env", b"NODE_OPTIONS=--v\nB=2\n")
    assert ran.outcomes() == [S, S]
    assert "NODE_OPTIONS" not in ran.command(1).env
    assert ran.command(1).env["B"] == "2"
    assert [a.level for a in ran.annotations(1)] == ["error"]


def test_F10_default_variables_win_for_the_process_and_not_for_the_context() -> None:
    ran = after_file("env", b"GITHUB_SHA=0\n", second="${{ env.GITHUB_SHA }}")
    assert ran.command(1).env["GITHUB_SHA"] == "f" * 40
    assert ran.command(1).files_in[-1].data == b"0"


def test_F11_env_file_may_set_ci() -> None:
    assert after_file("env", b"CI=false\n").command(1).env["CI"] == "false"


def test_F12_F13_path_file() -> None:
    script = by_script({"one": Reply(files={"path": b"/a\n/b\n"}), "two": Reply(files={"path": b"/a\n"})})
    ran = run_job({"run": "one"}, {"run": "two"}, {}, script=script)
    assert ran.command(1).env["PATH"] == "/b:/a:/usr/bin:/bin"
    assert ran.command(2).env["PATH"] == "/a:/b:/usr/bin:/bin"


def test_F14_an_output_written_before_a_failure_counts() -> None:
    script = by_script({"one": Reply(code=1, files={"output": b"k=v\n"})})
    ran = run_job({"run": "one", "id": "one"}, {"run": "${{ steps.one.outputs.k }}", "if_": "always()"}, script=script)
    assert ran.command(1).files_in[-1].data == b"v"


def test_F15_outputs_of_a_step_without_id_are_not_reachable() -> None:
    script = by_script({"one": Reply(files={"output": b"k=v\n"})})
    ran = run_job({"run": "one"}, {"run": "${{ steps.__run.outputs.k }}|${{ toJSON(steps) }}"}, script=script)
    assert ran.command(1).files_in[-1].data == b"|{}"
    assert not [event for event in ran.events if type(event).__name__ == "Output"]


@pytest.mark.parametrize("strict", [False, True], ids=["F16-D1", "F16-D1-strict"])
def test_F16_an_oversized_summary(strict: bool) -> None:
    ran = after_file("summary", b"x" * 1_048_577, strict=strict)
    summaries = [event for event in ran.events if type(event).__name__ == "Summary"]
    assert ran.outcomes()[0] == S
    assert len(summaries) == (0 if strict else 1)
    assert [a.level for a in ran.annotations(1)] == (["error"] if strict else [])


def test_X2_a_summary_at_the_limit_is_whole_and_every_step_may_have_one() -> None:
    script = by_script({"s": Reply(files={"summary": b"y" * 1_048_575})})
    ran = run_job(*({"run": "s"} for _ in range(25)), script=script)
    summaries = [event for event in ran.events if type(event).__name__ == "Summary"]
    assert [(len(each.text), each.truncated_from) for each in summaries] == [(1_048_575, None)] * 25  # type: ignore[union-attr]


def test_F19_an_output_without_name_fails_the_step() -> None:
    assert after_file("output", b"=v\n").outcomes()[0] == F


def test_F20_F21_env_file_over_job_env_and_step_env_over_both() -> None:
    script = by_script({"one": Reply(files={"env": b"A=2\n"})})
    ran = run_job({"run": "one"}, {"run": "two", "env": {"A": "9"}}, {}, script=script, env=[{"A": "1"}])
    assert [each.command.env["A"] for each in ran.session.steps] == ["1", "9", "2"]


@pytest.mark.parametrize("strict", [False, True], ids=["D21", "D21-strict"])
@pytest.mark.parametrize("kind", ["env", "output"])
def test_D21_a_link_counts_as_nothing_and_a_large_file_fails(strict: bool, kind: str) -> None:
    link = by_script({"one": Reply(files={kind: FileBack(problem="link")})})
    assert run_job({"run": "one"}, script=link, strict=strict).outcomes() == [S]
    large = by_script({"one": Reply(files={kind: FileBack(problem="too_large", size=200_000_000)})})
    ran = run_job({"run": "one"}, script=large, strict=strict)
    assert ran.outcomes() == [F]
    assert "200,000,000" in ran.log(1) or "200000000" in ran.log(1)


def test_what_earlier_steps_wrote_into_command_files_is_emptied_in_memory() -> None:
    script = by_script(
        {"one": Reply(files={"output": b"k=v\n", "summary": FileBack(problem="too_large", size=1 << 30)})}
    )
    ran = run_job({"run": "one"}, {"if_": "always()"}, {"if_": "always()"}, script=script)
    first = {ran.command(0).env["GITHUB_OUTPUT"], ran.command(0).env["GITHUB_STEP_SUMMARY"]}
    assert first <= {each.path for each in ran.command(1).files_in if each.data == b""}
    assert not first & {each.path for each in ran.command(2).files_in}


def test_the_payload_is_written_before_each_step_and_a_large_one_once() -> None:
    for size, times in ((10, 3), (300_000, 1)):
        ran = run_job({}, {}, {}, event={"x": "y" * size})
        path = "/home/runner/work/_temp/_github_workflow/event.json"
        assert sum(each.path == path for step in ran.session.steps for each in step.command.files_in) == times


# Set-up ---------------------------------------------------------------------------------------------------------------


def test_job_env_levels_see_the_earlier_ones_and_the_last_defaults_replace_the_first() -> None:
    ran = run_job(
        {},
        env=[{"A": "1", "B": "x"}, {"C": "${{ env.A }}", "B": "y"}],
        defaults=[{"shell": "python"}, {"working-directory": "sub"}],
    )
    command = ran.command(0)
    assert (command.env["A"], command.env["B"], command.env["C"]) == ("1", "y", "1")
    assert command.argv[0] == "/usr/bin/bash"
    assert command.cwd == "/home/runner/work/demo/demo/sub"


def test_a_bad_job_env_ends_the_job_in_set_up_without_completion() -> None:
    ran = run_job({}, env=[{"A": "${{ fromJSON('') }}"}])
    assert ran.finished.conclusion == "failure"
    assert list(ran.steps()) == [0]
    assert ran.session.adopted is None


def test_a_job_container_is_refused_by_name_where_there_are_none() -> None:
    ran = run_job({}, container="alpine")
    assert ran.finished.conclusion == "failure"
    assert "container" in (ran.finished.reason or "")
    assert "--sandbox docker" in ran.log(0)


def test_an_empty_container_means_the_host() -> None:
    assert run_job({}, container="${{ github.none }}").finished.conclusion == "success"


def test_D12_to_D21_strict_names_what_it_does_not_change() -> None:
    log = run_job({}, strict=True).log(0)
    assert all(f"D{n}" in log for n in (12, 13, 14, 15, 16, 17, 18, 20, 21))
    assert "D12" not in run_job({}).log(0)


@pytest.mark.parametrize(
    ("policy", "env", "strict", "allowed"),
    [
        (None, {}, False, False),
        (None, {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"}, False, True),
        (False, {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"}, False, False),
        (False, {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"}, True, False),
        (None, {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"}, True, True),
    ],
    ids=["C13-F48", "D7-own-machine", "D7-policy", "D7-policy-strict", "D7-strict"],
)
def test_D7_set_env_and_add_path(policy: bool | None, env: dict[str, str], strict: bool, allowed: bool) -> None:
    script = by_script({"one": Reply(output=b"::set-env name=PWN::1\n::add-path::/tmp/evil\n")})
    ran = run_job(
        {"run": "one"},
        {"if_": "always()"},
        script=script,
        env=[env],
        strict=strict,
        policy=Policy(unsecure_commands=policy),
    )
    assert ran.outcomes()[0] == (S if allowed else F)
    assert ran.command(1).env.get("PWN") == ("1" if allowed else None)
    assert ran.command(1).env["PATH"].startswith("/tmp/evil:") is allowed
    if not allowed:
        assert "GITHUB_ENV" in ran.log(1)
        assert "GITHUB_PATH" in ran.log(1)


def test_F48_the_rest_set_output_warns_and_ld_preload_reaches_later_steps_alone() -> None:
    script = by_script(
        {
            "out": Reply(output=b"::set-output name=x::1\n"),
            "node": Reply(files={"env": b"NODE_OPTIONS=--require=/tmp/x.js\nnode_options=y\n"}),
            "ld": Reply(files={"env": b"LD_PRELOAD=/tmp/x.so\n"}),
        }
    )
    ran = run_job(
        {"run": "out", "id": "o"}, {"run": "node"}, {"run": "ld"}, {"run": "${{ steps.o.outputs.x }}"}, script=script
    )
    assert ran.finished.conclusion == "success"
    assert [a.level for a in ran.annotations(1)] == ["warning"]
    assert len(ran.annotations(2)) == 2
    last = ran.command(3)
    assert last.files_in[-1].data == b"1"
    assert last.env["LD_PRELOAD"] == "/tmp/x.so"
    assert not any(name.upper() == "NODE_OPTIONS" for name in last.env)


def test_limits_reach_the_sandbox_and_the_session_is_adopted_and_closed() -> None:
    bench = Bench()
    ran = bench.run(claim({}, limits=Limits(memory_mb=64)))
    assert bench._sandbox.shapes[0].limits.memory_mb == 64
    assert ran.session.adopted is not None
    assert ran.session.adopted.job_key == "job"
    assert ran.session.closed == 1


@pytest.mark.parametrize("reason", ["out_of_memory", "disk_full", "too_many_processes"])
def test_a_limit_that_ended_a_step_is_its_reason_with_the_peak(reason: Any) -> None:
    reply = Reply(code=137, reason=reason, detail="peak 64 MB of 64 MB")
    ran = run_job({"run": "x"}, script=by_script({"x": reply}))
    assert ran.outcomes() == [F]
    assert ran.steps()[1].reason_code == reason
    assert ran.finished.reason_code == reason
    assert "peak 64 MB of 64 MB" in (ran.finished.reason or "")


def test_a_limit_hit_on_the_way_to_success_is_a_warning() -> None:
    reply = Reply(reason="out_of_memory", detail="a child was ended")
    ran = run_job({"run": "x"}, script=by_script({"x": reply}))
    assert ran.outcomes() == [S]
    assert [a.level for a in ran.annotations(1)] == ["warning"]


def test_a_command_that_cannot_start_fails_with_what_was_said() -> None:
    ran = run_job(
        {"run": "x", "working_directory": "none"}, script=by_script({"x": Reply(code=127, problem="no such folder")})
    )
    assert ran.outcomes() == [F]
    assert "no such folder" in ran.log(1)


# Results, pure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "new", "merged"),
    [
        (None, Result.SUCCESS, Result.SUCCESS),
        (Result.SUCCESS, Result.FAILURE, Result.FAILURE),
        (Result.FAILURE, Result.SUCCESS, Result.FAILURE),
        (Result.CANCELLED, Result.FAILURE, Result.CANCELLED),
        (Result.FAILURE, Result.CANCELLED, Result.CANCELLED),
        (Result.SKIPPED, Result.FAILURE, Result.SKIPPED),
    ],
)
def test_merge(current: Result | None, new: Result, merged: Result) -> None:
    assert merge(current, new) is merged


def test_the_names_of_steps() -> None:
    ran = run_job(
        {"run": "echo a\necho b"},
        {"name": "own ${{ github.sha }}"},
        {"name": "late ${{ env.L }}", "env": {"L": "x"}},
        {"name": "raw ${{ fromJSON('') }}", "if_": "false"},
    )
    assert [each.name for each in ran.named_steps()][:3] == ["Run echo a", f"own {'f' * 40}", "late x"]


def test_steps_that_never_began_leave_the_loop_free() -> None:
    """No task of a job is left behind when it has ended."""

    async def both() -> int:
        bench = Bench(by_script({"x": Reply(leaves_output_open=True)}))
        await bench._run(claim({"run": "x"}), 60)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(both()) == 1
