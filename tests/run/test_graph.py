"""The pairs G1 to G22 that are about a run's graph, and what an `if`, a timeout or a call does to it."""

from __future__ import annotations

from typing import Any

import pytest

from run.drive import NOW, Drive, context, run_plan
from runyard.job import ExpressionToken, RunContext
from runyard.run import (
    Admitted,
    Begin,
    CancelRequested,
    CreateJob,
    EndJob,
    Finished,
    FinishRun,
    Group,
    RunOptions,
    Tick,
    arrive,
    leave,
    resolve_secrets,
    same_group,
    select_jobs,
)
from runyard.run.advance import RUN_LIMIT_NS
from runyard.run.legs import platform_of

Jobs = dict[str, Any]

# --- needs and conditions


def test_G1_a_failure_skips_what_needs_it() -> None:
    drive = Drive({"A": {}, "B": {"needs": "A"}, "C": {"needs": "B"}}).run({"A": "failure"})
    assert drive.ended == {"B": "skipped", "C": "skipped"}
    assert drive.conclusion == "failure"
    assert drive.end("C").reason_code == "needs_failed"
    assert drive.end("C").reason == "a need did not succeed (B: skipped, A: failure)"
    assert drive.end("B").why.values == {"success()": False, "needs.A.result": "failure"}


def test_G2_failure_sees_every_ancestor() -> None:
    drive = Drive({"A": {}, "B": {"needs": "A"}, "C": {"needs": "B", "if": "failure()"}}).run({"A": "failure"})
    assert drive.created == ["A", "C"]
    assert drive.conclusion == "failure"


def test_G3_a_skipped_need_is_no_success() -> None:
    drive = Drive({"A": {"if": "false"}, "B": {"needs": "A"}})
    assert drive.ended == {"A": "skipped", "B": "skipped"}
    assert drive.end("A").why.rule == "if"
    assert drive.end("B").why.rule == "needs"
    assert drive.conclusion == "skipped"


def test_G4_a_skipped_need_is_no_failure() -> None:
    drive = Drive({"A": {"if": "false"}, "B": {"needs": "A", "if": "${{ !failure() && !cancelled() }}"}}).run()
    assert drive.created == ["B"]
    assert drive.conclusion == "success"


def test_G5_an_implicit_success_stands_before_the_condition() -> None:
    drive = Drive({"A": {"if": "false"}, "B": {"needs": "A", "if": "needs.A.result == 'skipped'"}})
    assert drive.ended["B"] == "skipped"
    assert drive.end("B").why.condition == "success() && (needs.A.result == 'skipped')"


def test_G6_needs_ignore_case() -> None:
    drive = Drive({"A": {}, "B": {"needs": "a", "if": "needs.A.result == 'success'"}}).run()
    assert drive.created == ["A", "B"]
    assert list(drive.specs[1].needs) == ["A"]


def test_G7_only_direct_needs_are_in_the_context() -> None:
    jobs: Jobs = {"a": {}, "b": {"needs": "a"}, "c": {"needs": "b", "if": "needs.a == null && needs.b != null"}}
    drive = Drive(jobs).run()
    assert drive.created == ["a", "b", "c"]
    assert list(drive.specs[2].needs) == ["b"]


def test_outputs_travel_by_needs() -> None:
    drive = Drive({"a": {}, "b": {"needs": "a", "if": "needs.a.outputs.go == 'yes'"}})
    drive.finish("a", go="yes")
    assert drive.specs[1].needs["a"].outputs == {"go": "yes"}
    assert drive.creation("b").why.values == {"success()": True, "needs.a.outputs.go": "yes"}


def test_a_job_starts_when_all_its_needs_ended() -> None:
    drive = Drive({"a": {}, "b": {}, "c": {"needs": ["a", "b"], "if": "always()"}})
    assert drive.created == ["a", "b"]
    drive.finish("a", "failure")
    assert drive.created == ["a", "b"]
    drive.finish("b")
    assert drive.created == ["a", "b", "c"]


def test_success_and_failure_take_job_ids() -> None:
    jobs: Jobs = {
        "a": {},
        "b": {},
        "c": {"needs": ["a", "b"], "if": "failure('A') && success('b')"},
        "d": {"needs": ["a", "b"], "if": "failure('b')"},
    }
    drive = Drive(jobs).run({"a": "failure"})
    assert drive.created == ["a", "b", "c"]


def test_a_condition_that_fails_fails_its_job() -> None:
    drive = Drive({"a": {"if": "fromJSON('{')"}, "b": {"needs": "a"}})
    assert drive.ended == {"a": "failure", "b": "skipped"}
    assert drive.end("a").reason_code == "condition_error"


def test_the_condition_is_looked_at_once_before_the_matrix() -> None:
    job = {"if": "false", "name": "Variant ${{ matrix.v }} of {2}", "strategy": {"matrix": {"v": [1, 2]}}}
    drive = Drive({"t": job})
    assert [(end.key, end.name) for end in drive.decisions if isinstance(end, EndJob)] == [
        ("t", "Variant ${{ matrix.v }} of {2}")
    ]


def test_a_tolerated_failure_is_a_success_for_everybody_else() -> None:
    jobs: Jobs = {
        "a": {"continue-on-error": True, "strategy": {"matrix": {"v": [1, 2]}}},
        "b": {"needs": "a", "if": "needs.a.result == 'success'"},
    }
    drive = Drive(jobs).run({"a": "failure"})
    assert drive.created == ["a._1", "a._2", "b"]
    assert drive.cancelled == []
    assert drive.conclusion == "success"


@pytest.mark.parametrize(
    ("results", "conclusion"),
    [
        ({"a": "success", "b": "success"}, "success"),
        ({"a": "success", "b": "skipped"}, "success"),
        ({"a": "cancelled", "b": "success"}, "cancelled"),
        ({"a": "cancelled", "b": "failure"}, "failure"),
    ],
)
def test_the_conclusion_of_a_run(results: dict[str, Any], conclusion: str) -> None:
    drive = Drive({"a": {}, "b": {}}).run(results)
    assert drive.conclusion == conclusion
    assert drive.finished.why.values == {f"jobs.{job}.result": result for job, result in results.items()}


# --- fail-fast, max-parallel


def test_fail_fast_ends_running_and_waiting_siblings() -> None:
    drive = Drive({"t": {"strategy": {"max-parallel": 2, "matrix": {"v": [1, 2, 3, 4]}}}})
    assert drive.created == ["t._1", "t._2"]
    drive.start("t._2")
    drive.finish("t._1", "failure")
    assert drive.ended == {"t._3": "cancelled", "t._4": "cancelled"}
    assert drive.cancelled == ["t._2"]
    assert drive.created == ["t._1", "t._2"], "nothing starts only to be cancelled"
    assert drive.conclusion is None
    drive.finish("t._2", "cancelled")
    assert drive.conclusion == "failure"


def test_without_fail_fast_all_run() -> None:
    drive = Drive({"t": {"strategy": {"fail-fast": False, "matrix": {"v": [1, 2]}}}}).run({"t._1": "failure"})
    assert drive.created == ["t._1", "t._2"]
    assert drive.cancelled == []


def test_one_leg_may_be_tolerated_by_its_matrix() -> None:
    job = {"continue-on-error": "${{ matrix.x }}", "strategy": {"matrix": {"x": [True, False]}}}
    drive = Drive({"t": job}).run({"t.true": "failure"})
    assert drive.cancelled == []
    assert drive.conclusion == "success"


def test_max_parallel_releases_in_order() -> None:
    drive = Drive({"t": {"strategy": {"max-parallel": 1.9, "matrix": {"v": ["a", "b", "c"]}}}})
    assert drive.created == ["t.a"]
    drive.finish("t.a")
    assert drive.created == ["t.a", "t.b"]
    assert drive.creation("t.b").why.rule == "limit"
    assert drive.run().created == ["t.a", "t.b", "t.c"]


def test_a_leg_that_cannot_be_planned_fails_alone() -> None:
    job = {"strategy": {"fail-fast": False, "matrix": {"t": [5, "x"]}}, "timeout-minutes": "${{ matrix.t }}"}
    drive = Drive({"t": job}).run()
    assert drive.ended == {"t.x": "failure"}
    assert "Unexpected value 'x'" in drive.end("t.x").reason
    assert drive.conclusion == "failure"


def test_outputs_of_legs_share_one_map() -> None:
    drive = Drive({"t": {"strategy": {"matrix": {"v": [1, 2]}}}, "u": {"needs": "t"}})
    drive.finish("t._2", a="two", b="two")
    drive.finish("t._1", a="one", b="")
    assert drive.specs[-1].needs["t"].outputs == {"a": "one", "b": "two"}


# --- limits and names


@pytest.mark.parametrize(
    ("minutes", "seconds"),
    [(None, 360 * 60), (5, 300), (0.5, 30), ("${{ fromJSON(vars.T) }}", 420)],
)
def test_timeout_minutes(minutes: Any, seconds: int) -> None:
    drive = Drive({"t": {"timeout-minutes": minutes}}, run_context=context(vars={"T": "7"}))
    assert drive.specs[0].limits.timeout_s == seconds


@pytest.mark.parametrize("minutes", [0, -1, "${{ fromJSON('0') }}"])
def test_D6_a_limit_must_be_positive(minutes: Any) -> None:
    drive = Drive({"t": {"timeout-minutes": minutes}})
    assert drive.ended == {"t": "failure"}
    assert drive.end("t").reason_code == "invalid_job"
    assert "must be positive" in drive.end("t").reason
    strict = Drive({"t": {"timeout-minutes": minutes}}, options=RunOptions(strict_github=True))
    assert strict.specs[0].limits.timeout_s == 360 * 60


def test_F28_the_pool_has_a_say() -> None:
    jobs: Jobs = {
        "a": {},
        "b": {"timeout-minutes": 600},
        "c": {"timeout-minutes": 5},
        "d": {"timeout-minutes": 0},
        "e": {"timeout-minutes": "${{ fromJSON(vars.T) }}"},
    }
    options = RunOptions(job_limit_s=600, job_limit_name="pool small")
    drive = Drive(jobs, options=options, run_context=context(vars={"T": "7"}))
    assert {spec.key: spec.limits.timeout_s for spec in drive.specs} == {"a": 600, "b": 600, "c": 300, "e": 420}
    assert drive.ended == {"d": "failure"}


@pytest.mark.parametrize(
    ("runs_on", "labels", "group"),
    [
        pytest.param("ubuntu-latest", ("ubuntu-latest",), None, id="label"),
        pytest.param(["self-hosted", "gpu"], ("self-hosted", "gpu"), None, id="G21"),
        pytest.param({"labels": ["a"]}, ("a",), None, id="G22"),
        pytest.param({"group": "org/big", "labels": "a"}, ("a",), "org/big", id="group and label"),
        pytest.param({"group": "big"}, (), "big", id="group"),
        pytest.param('${{ fromJSON(\'["a","b"]\') }}', ("a", "b"), None, id="expression"),
        pytest.param(["a", "${{ vars.L }}"], ("a", "x"), None, id="mixed"),
    ],
)
def test_runs_on(runs_on: Any, labels: tuple[str, ...], group: str | None) -> None:
    (spec,) = Drive({"t": {"runs-on": runs_on}}, run_context=context(vars={"L": "x"})).specs
    assert (spec.labels, spec.group) == (labels, group)


@pytest.mark.parametrize("runs_on", ["${{ vars.NO }}", {"group": "x/y"}, "${{ fromJSON('[]') }}", {"group": ""}])
def test_runs_on_that_names_nothing(runs_on: Any) -> None:
    assert Drive({"t": {"runs-on": runs_on}}).ended == {"t": "failure"}


@pytest.mark.parametrize(
    ("labels", "platform"),
    [
        (["ubuntu-latest"], "linux/amd64"),
        (["ubuntu-24.04-arm"], "linux/arm64"),
        (["self-hosted", "Linux", "ARM64"], "linux/arm64"),
        (["windows-2022"], "windows/amd64"),
        (["macos-latest"], "darwin/arm64"),
        (["gpu"], "linux/amd64"),
    ],
)
def test_F60_labels_name_a_platform(labels: list[str], platform: str) -> None:
    assert platform_of(labels, "linux/amd64") == platform


def test_environment_and_its_retry() -> None:
    drive = Drive({"a": {"environment": "${{ vars.E }}"}, "b": {"environment": "prod"}, "c": {}})
    by_key = {spec.key: spec for spec in drive.specs}
    assert by_key["a"].environment is None
    assert by_key["b"].environment is not None
    assert by_key["b"].environment.name == "prod"
    assert [by_key[key].retry_lost for key in "bc"] == [0, 1]


def test_permissions_of_a_job_replace_those_of_the_workflow_G11_G12() -> None:
    drive = Drive({"a": {}, "b": {"permissions": {}}}, permissions={"contents": "write"})
    assert [spec.permissions for spec in drive.specs] == [{"contents": "write"}, {}]


# --- the run itself


def test_run_name_and_its_defaults() -> None:
    payload = {"head_commit": {"message": "Fix it\n\nbody"}}
    assert Drive({"a": {}}, run_context=context(event=payload)).started.name == "Fix it"
    assert Drive({"a": {}}, event="schedule").started.name == "CI"
    pull = context(event={"pull_request": {"title": "T"}})
    assert Drive({"a": {}}, event="pull_request", run_context=pull).started.name == "T"
    named = Drive({"a": {}}, run_name="by ${{ inputs.who }}", inputs={"who": "me"})
    assert named.started.name == "by me"


def test_a_run_waits_for_its_group() -> None:
    drive = Drive({"a": {}}, concurrency={"group": "g-${{ github.ref }}", "cancel-in-progress": True})
    assert drive.started.concurrency is not None
    assert drive.started.concurrency.group == "g-refs/heads/main"
    assert drive.started.concurrency.cancel_in_progress is True
    assert drive.created == []
    drive.tell(Admitted())
    assert drive.created == ["a"]


def test_G10_an_empty_group_is_an_error() -> None:
    drive = Drive({"a": {}}, concurrency="${{ github.head_ref }}")
    assert drive.conclusion == "failure"
    assert "Unexpected value ''" in str(drive.finished.reason)
    of_job = Drive({"a": {"concurrency": "${{ github.head_ref }}"}, "b": {}}).run()
    assert of_job.ended == {"a": "failure"}


def test_a_run_that_is_too_old_ends() -> None:
    drive = Drive({"a": {}})
    drive.tell(Tick(), NOW + RUN_LIMIT_NS + 1)
    assert drive.cancelled == ["a"]
    drive.finish("a", "cancelled")
    assert drive.finished.reason_code == "timed_out"


def test_nothing_happens_twice_or_after_the_end() -> None:
    drive = Drive({"a": {}, "b": {"needs": "a"}})
    drive.finish("a")
    assert drive.finish("a", "failure") == ()
    assert drive.tell(Finished("nobody", "success")) == ()
    drive.run()
    assert drive.tell(CancelRequested()) == ()
    assert drive.tell(Begin()) == ()
    assert drive.created == ["a", "b"]


# --- concurrency between jobs


def test_G8_one_runs_the_newest_waits() -> None:
    first = arrive(Group(), "1")
    assert first.verdict == "holds"
    second = arrive(first.group, "2")
    assert second.verdict == "waits"
    third = arrive(second.group, "3")
    assert (third.verdict, third.cancel_waiting, third.cancel_holder) == ("waits", ("2",), None)
    group, heir = leave(third.group, "1")
    assert heir == "3"
    assert leave(group, "3") == (Group(), None)


def test_G9_groups_ignore_case() -> None:
    assert same_group("Prod") == same_group("prod")
    drive = Drive({"a": {"concurrency": "Prod"}, "b": {"concurrency": "prod"}})
    assert drive.created == ["a"]
    drive.finish("a")
    assert drive.created == ["a", "b"]
    assert drive.creation("b").why.rule == "concurrency"


def test_cancel_in_progress_ends_the_holder() -> None:
    arrival = arrive(Group("1"), "2", cancel_in_progress=True)
    assert (arrival.verdict, arrival.cancel_holder) == ("waits", "1")
    drive = Drive({"a": {"concurrency": "g"}, "b": {"concurrency": {"group": "g", "cancel-in-progress": True}}})
    assert drive.cancelled == ["a"]
    drive.finish("a", "cancelled")
    assert drive.created == ["a", "b"]


def test_queue_max_keeps_a_hundred() -> None:
    group = Group("0")
    for number in range(1, 101):
        arrival = arrive(group, str(number), queue="max")
        assert arrival.verdict == "waits"
        group = arrival.group
    assert arrive(group, "101", queue="max").verdict == "cancelled"


def test_legs_of_one_group_compete() -> None:
    job = {"concurrency": "g", "strategy": {"fail-fast": False, "matrix": {"v": ["a", "b", "c"]}}}
    drive = Drive({"t": job})
    assert drive.created == ["t.a"]
    assert drive.ended == {"t.b": "cancelled"}
    assert drive.run().conclusion == "cancelled"


def test_a_place_in_a_group_that_is_taken_while_another_is_told_ends_the_run_all_the_same() -> None:
    matrix = {"fail-fast": False, "matrix": {"v": ["a", "b", "c"]}}
    for strategy in (matrix, {**matrix, "max-parallel": 1}):
        legs = {"needs": "go", "concurrency": "g", "strategy": strategy}
        drive = Drive({"go": {}, "held": {"concurrency": "g"}, "m": legs})
        drive.finish("go")
        assert drive.run().conclusion is not None, drive.state.legs


def test_a_job_that_waits_for_its_own_call_is_a_knot() -> None:
    called: Jobs = {"jobs": {"t": {"concurrency": "g"}}}
    drive = Drive({"c": {"uses": called, "concurrency": "G"}})
    assert drive.ended == {"c/t": "cancelled"}
    assert "waits for this job" in drive.end("c/t").reason
    assert drive.conclusion == "cancelled"
    of_run = Drive({"a": {"concurrency": "g"}}, concurrency="g")
    of_run.tell(Admitted())
    assert of_run.ended == {"a": "cancelled"}


def test_two_calls_that_wait_for_each_other_are_a_knot() -> None:
    def call(mine: str, other: str) -> dict[str, Any]:
        jobs: Jobs = {"first": {}, "second": {"needs": "first", "concurrency": other}}
        return {"uses": {"jobs": jobs}, "concurrency": mine}

    drive = Drive({"x": call("a", "b"), "y": call("b", "a")}).run()
    assert drive.conclusion in ("success", "cancelled")


# --- calls


CALLED: Jobs = {
    "inputs": {
        "s": {},
        "n": {"type": "number", "default": 3},
        "b": {"type": "boolean"},
        "d": {"default": "${{ github.ref }}"},
    },
    "outputs": {"o": "${{ jobs.t.outputs.o }}-${{ jobs.t.result }}"},
    "env": {"A": "called"},
    "jobs": {"t": {}, "u": {"needs": "t", "if": "inputs.n == 3"}},
}


def test_G18_a_call_has_its_own_inputs_names_keys_and_environment() -> None:
    jobs: Jobs = {
        "c": {"uses": CALLED, "with": {"S": "x${{ matrix.v }}"}, "strategy": {"matrix": {"v": [1, 2]}}},
        "after": {"needs": "c"},
    }
    drive = Drive(jobs, env={"A": 1})
    assert [(spec.key, spec.job, spec.name) for spec in drive.specs] == [
        ("c._1/t", "c/t", "c (1) / t"),
        ("c._2/t", "c/t", "c (2) / t"),
    ]
    assert drive.specs[0].inputs == {"s": "x1", "n": 3, "b": False, "d": "refs/heads/main"}
    assert [len(spec.env) for spec in drive.specs] == [1, 1], "the caller's env stays with the caller"
    assert drive.specs[0].workflow_path == ".github/workflows/called.yml"
    drive.finish("c._1/t", o="1")
    drive.finish("c._2/t", o="2")
    drive.run()
    assert drive.specs[-1].needs["c"].outputs == {"o": "2-success"}
    assert drive.conclusion == "success"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param({"n": "5"}, "input n: Unexpected value '5'", id="G15"),
        pytest.param({"s": 5}, None, id="G16"),
        pytest.param({"nope": 1}, "Invalid input, nope is not defined", id="G17"),
        pytest.param({"b": "true"}, "input b: Unexpected value 'true'", id="text is no boolean"),
        pytest.param({"b": "${{ github.ref == 'x' }}"}, None, id="expression"),
    ],
)
def test_inputs_of_a_call(given: dict[str, Any], problem: str | None) -> None:
    drive = Drive({"c": {"uses": CALLED, "with": given}})
    if problem is None:
        assert drive.created == ["c/t"]
        assert drive.specs[0].inputs["s"] == ("5" if "s" in given else "")
    else:
        assert drive.ended == {"c": "failure"}
        assert problem in drive.end("c").reason


def test_a_required_input_must_be_given_even_with_a_default() -> None:
    called = {"inputs": {"r": {"required": True, "default": "d"}}, "jobs": {"t": {}}}
    assert "Input r is required" in Drive({"c": {"uses": called}}).end("c").reason


def test_a_skipped_call_is_one_skipped_job() -> None:
    drive = Drive({"c": {"uses": CALLED, "if": "false"}, "after": {"needs": "c", "if": "always()"}})
    assert drive.ended == {"c": "skipped"}
    assert drive.specs[0].needs["c"].outputs == {}
    drive.run()
    assert drive.conclusion == "success"


def test_results_of_a_call_add_up() -> None:
    called: Jobs = {"jobs": {"a": {}, "b": {}}}
    for results, expected in (
        ({"c/a": "failure", "c/b": "cancelled"}, "failure"),
        ({"c/a": "success", "c/b": "cancelled"}, "cancelled"),
        ({"c/a": "success", "c/b": "success"}, "success"),
    ):
        drive = Drive({"c": {"uses": called}, "z": {"needs": "c", "if": "always()"}}).run(results)  # type: ignore[arg-type]  # literals
        assert drive.specs[-1].needs["c"].result == expected


def test_fail_fast_of_a_call_reaches_inside() -> None:
    called: Jobs = {"jobs": {"a": {}, "b": {"needs": "a", "if": "always()"}}}
    drive = Drive({"c": {"uses": called, "strategy": {"matrix": {"v": ["x", "y"]}}}})
    drive.finish("c.x/a", "failure")
    drive.finish("c.x/b")
    assert drive.cancelled == ["c.y/a"]
    assert drive.ended == {"c.y/b": "cancelled"}
    drive.finish("c.y/a", "cancelled")
    assert drive.conclusion == "failure"


def test_nested_calls_and_their_permissions() -> None:
    inner: Jobs = {"jobs": {"t": {}, "p": {"permissions": {"contents": "read"}}}}
    outer: Jobs = {"jobs": {"n": {"uses": inner}}}
    drive = Drive({"c": {"uses": outer, "permissions": {"contents": "write"}}})
    assert [(spec.job, spec.name) for spec in drive.specs] == [("c/n/t", "c / n / t"), ("c/n/p", "c / n / p")]
    assert [spec.permissions for spec in drive.specs] == [{"contents": "write"}, {"contents": "read"}]


def test_G19_a_called_job_sees_the_callers_event() -> None:
    called: Jobs = {"jobs": {"t": {"if": "github.event_name == 'push'"}}}
    assert Drive({"c": {"uses": called}}).created == ["c/t"]


# --- secrets


def secrets_of(jobs: dict[str, Any], key: str, available: dict[str, str]) -> dict[str, str]:
    drive = Drive(jobs)
    return resolve_secrets(drive.creation(key).secrets, available, drive.state.context)


def test_secrets_are_passed_by_name_and_never_in_a_spec() -> None:
    called: Jobs = {"jobs": {"t": {}}}
    secrets = {
        "inner": "${{ secrets.OUTER }}",
        "both": "x-${{ secrets.outer }}-${{ matrix.v }}",
        "none": "${{ secrets.NO }}",
    }
    jobs: Jobs = {
        "plain": {},
        "bare": {"uses": called},
        "all": {"uses": called, "secrets": "inherit"},
        "some": {"uses": called, "secrets": secrets, "strategy": {"matrix": {"v": [7]}}},
    }
    available = {"outer": "value", "GITHUB_TOKEN": "t"}
    assert secrets_of(jobs, "plain", available) == {"OUTER": "value", "GITHUB_TOKEN": "t"}
    assert secrets_of(jobs, "bare/t", available) == {"GITHUB_TOKEN": "t"}
    assert secrets_of(jobs, "all/t", available) == {"OUTER": "value", "GITHUB_TOKEN": "t"}
    assert secrets_of(jobs, "some._7/t", available) == {"INNER": "value", "BOTH": "x-value-7", "GITHUB_TOKEN": "t"}


def test_nested_calls_pass_secrets_again() -> None:
    inner: Jobs = {"jobs": {"t": {}}}
    outer: Jobs = {"jobs": {"n": {"uses": inner, "secrets": {"C": "${{ secrets.B }}"}}, "i": {"uses": inner}}}
    jobs: Jobs = {"c": {"uses": outer, "secrets": {"B": "${{ secrets.A }}"}}}
    assert secrets_of(jobs, "c/n/t", {"A": "v"}) == {"C": "v"}
    assert secrets_of(jobs, "c/i/t", {"A": "v"}) == {}


# --- cancelling


def test_a_cancel_looks_at_conditions_again() -> None:
    jobs: Jobs = {
        "plain": {},
        "always": {"if": "always()"},
        "later": {"needs": "plain"},
        "clean": {"needs": "plain", "if": "always()"},
        "ask": {"needs": "plain", "if": "cancelled()"},
    }
    drive = Drive(jobs)
    drive.start("always")
    drive.cancel()
    assert drive.cancelled == ["plain"]
    drive.finish("plain", "cancelled")
    assert drive.ended == {"later": "cancelled"}
    assert drive.created == ["plain", "always", "clean", "ask"]
    drive.run()
    assert (drive.conclusion, drive.finished.reason_code) == ("cancelled", "cancelled_by_user")


def test_a_second_cancel_ends_everything() -> None:
    drive = Drive({"a": {"if": "always()"}, "b": {"needs": "a", "if": "always()"}})
    drive.cancel()
    assert drive.cancelled == []
    drive.cancel()
    assert drive.cancelled == ["a"]
    assert drive.ended == {"b": "cancelled"}
    drive.finish("a", "cancelled")
    assert drive.conclusion == "cancelled"


def test_a_cancel_before_the_start_ends_the_run() -> None:
    drive = Drive({"a": {}}, concurrency="g")
    assert [type(each) for each in drive.cancel()] == [FinishRun]


def test_a_cancel_reaches_into_calls() -> None:
    called: Jobs = {"jobs": {"a": {}, "b": {"needs": "a"}}}
    drive = Drive({"c": {"uses": called, "if": "always()"}})
    drive.cancel()
    assert drive.cancelled == ["c/a"]
    drive.finish("c/a", "cancelled")
    assert drive.ended == {"c/b": "cancelled"}
    assert drive.conclusion == "cancelled"


# --- selection and identity


def test_selected_jobs_with_what_they_need() -> None:
    called: Jobs = {"jobs": {"x": {}, "y": {"needs": "x"}, "z": {}}}
    plan = run_plan({"a": {}, "b": {"needs": "a"}, "c": {"uses": called, "needs": "b"}, "d": {}})
    assert select_jobs(plan, ["B"]) == {"a", "b"}
    assert select_jobs(plan, ["c/y"]) == {"a", "b", "c", "c/x", "c/y"}
    assert select_jobs(plan, ["c"]) == {"a", "b", "c", "c/x", "c/y", "c/z"}
    with pytest.raises(KeyError, match="nope"):
        select_jobs(plan, ["nope"])
    drive = Drive(plan, options=RunOptions(jobs=select_jobs(plan, ["c/y"]))).run()
    assert drive.created == ["a", "b", "c/x", "c/y"]
    assert drive.ended == {"d": "skipped", "c/z": "skipped"}
    assert drive.end("d").why.rule == "selected"


def test_selected_matrix_values_keep_keys_and_index() -> None:
    job = {"strategy": {"matrix": {"os": ["a", "B"], "v": [1, 2]}}}
    whole = Drive({"t": job}).specs
    some = Drive({"t": job}, options=RunOptions(matrix=(("OS", "b"), ("v", "2"), ("v", "1"), ("no", "x")))).specs
    assert [spec.key for spec in some] == ["t.B_1", "t.B_2"]
    assert [spec.strategy for spec in some] == [spec.strategy for spec in whole[2:]]
    none = Drive({"t": job}, options=RunOptions(matrix=(("os", "zzz"),)))
    assert none.ended == {"t": "skipped"}
    assert none.end("t").why.rule == "matrix"


def test_the_same_plan_gives_the_same_specs() -> None:
    jobs: Jobs = {"t": {"strategy": {"matrix": {"v": [1, 2]}}}, "c": {"uses": CALLED}}
    one, other = Drive(jobs).specs, Drive(jobs).specs
    assert [spec.digest() for spec in one] == [spec.digest() for spec in other]
    assert len({spec.id for spec in one}) == 3


def test_why_shows_no_token() -> None:
    drive = Drive(
        {"a": {"if": "github.token == '' || github.ref != ''"}}, run_context=context(github={"token": "hush"})
    )
    made = drive.decisions[1]
    assert isinstance(made, CreateJob)
    assert made.why.values == {"success()": True, "github.token": None, "github.ref": "refs/heads/main"}


def test_templates_of_the_engine_stay_templates() -> None:
    drive = Drive({"a": {"env": {"A": "${{ secrets.S }}"}}})
    (level,) = drive.specs[0].env
    assert isinstance(level.entries[0].value, ExpressionToken)  # type: ignore[union-attr]  # a mapping token


def test_a_context_without_payload() -> None:
    assert Drive({"a": {"if": "github.event.nothing == null"}}, run_context=RunContext(github={})).created == ["a"]
