"""What a step prints: commands obeyed, masks, matchers, annotations (job-semantics 10, 12, 13, 20, 22.2, 22.4)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.scripted import Bench, Ran, Reply, by_script, claim, run_job
from runyard.job import Log


def printed(*pieces: bytes, **keys: Any) -> Ran:
    return run_job({"run": "x"}, script=by_script({"x": Reply(output=pieces)}), **keys)


def conclusion(ran: Ran) -> str:
    return ran.steps()[1].conclusion


@pytest.mark.parametrize(
    ("line", "log"),
    [
        pytest.param(b"   ::notice::x", "##[notice]x\n", id="C1"),
        pytest.param(b"::WARNING::x", "##[warning]x\n", id="C2"),
        pytest.param(b"text ##[warning]w", "##[warning]w\n", id="C7"),
        pytest.param(b"::nosuch::x", "::nosuch::x\n", id="C8"),
        pytest.param(b"::debug::x", "", id="C18"),
        pytest.param(b"::group::T", "##[group]T\n", id="C19"),
        pytest.param(b"::endgroup::", "##[endgroup]\n", id="endgroup"),
        pytest.param(b"log: ::error::not a command", "log: ::error::not a command\n", id="F46-middle-of-line"),
    ],
)
def test_lines_of_the_log(line: bytes, log: str) -> None:
    ran = printed(line + b"\n")
    assert ran.log(1, "output", "runner") == log
    assert conclusion(ran) == "success"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"::set-env name=A::1", id="C13"),
        pytest.param(b"::set-output name=::v", id="C14"),
        pytest.param(b"::stop-commands::error", id="C16"),
        pytest.param(b"::echo::maybe", id="C20"),
        pytest.param(b"::add-matcher::nowhere.json", id="matcher-file"),
        pytest.param(b"::save-state::v", id="state-name"),
    ],
)
def test_commands_that_fail_the_step(line: bytes) -> None:
    ran = printed(line + b"\n")
    assert conclusion(ran) == "failure"
    assert ran.steps()[1].reason_code == "command_error"
    assert "Unable to process command" in ran.log(1)


def test_C3_C4_outputs_by_command() -> None:
    script = by_script({"x": Reply(output=b"::set-output name=k::a::b\n::set-output name=a=b::v\n")})
    ran = run_job(
        {"run": "x", "id": "s"}, {"run": "${{ steps.s.outputs.k }} ${{ steps.s.outputs['a=b'] }}"}, script=script
    )
    assert ran.command(1).files_in[-1].data == b"a::b v"
    assert [a.level for a in ran.annotations(1)] == ["warning"]


def test_C15_stop_commands_until_the_token() -> None:
    ran = printed(b"::stop-commands::tk12345\n::error::x\n::tk12345::\n::error::y\n")
    assert [a.message for a in ran.annotations(1)] == ["y"]
    assert "::error::x\n" in ran.log(1)
    assert "tk12345" not in ran.log(1)


def test_C17_an_empty_mask_is_a_warning() -> None:
    ran = printed(b"::add-mask::\nplain\n")
    assert [a.level for a in ran.annotations(1)] == ["warning"]
    assert "plain\n" in ran.log(1)
    assert conclusion(ran) == "success"


@pytest.mark.parametrize(("strict", "count"), [(False, 12), (True, 10)], ids=["C21-D2", "C21-D2-strict"])
def test_C21_annotations_of_one_level(strict: bool, count: int) -> None:
    ran = printed(b"::error::e\n" * 12, strict=strict)
    assert len(ran.annotations(1)) == count
    assert ran.log(1).count("##[error]e\n") == 12
    assert conclusion(ran) == "success"


def test_C23_state_by_command_is_of_the_step_instance() -> None:
    bench = Bench(by_script({"x": Reply(output=b"::save-state name=x::1\n")}))
    ran = bench.run(claim({"run": "x"}))
    assert conclusion(ran) == "success"


def test_F46_properties_decoding_and_a_last_line_without_end() -> None:
    ran = printed(
        b"   ::warning file=app.py,line=3,title=A%2CB%3A c::50%25 done%0Anext\n::ERROR::upper\n::notice::unterminated"
    )
    warning, error, notice = ran.annotations(1)
    assert (warning.file, warning.line, warning.title, warning.message) == ("app.py", 3, "A,B: c", "50% done\nnext")
    assert (error.level, error.message) == ("error", "upper")
    assert (notice.level, notice.message) == ("notice", "unterminated")


def test_paths_of_annotations_are_relative_to_the_workspace() -> None:
    ran = printed(b"::error file=/home/runner/work/demo/demo/a/b.py,line=1::m\n::error file=c\\d.py::m\n")
    assert [a.file for a in ran.annotations(1)] == ["a/b.py", "c/d.py"]


def test_echo_shows_the_command_lines_that_may_be_shown() -> None:
    ran = printed(b"::echo::on\n::set-output name=a::b\n::add-mask::hunter2\n::group::g\n::echo::off\n::endgroup::\n")
    assert ran.log(1, "output").splitlines() == [
        "::set-output name=a::b",
        "::add-mask::***",
        "::group::g",
        "##[group]g",
        "::echo::off",
        "##[endgroup]",
    ]


def test_debug_lines_show_when_debugging_is_on() -> None:
    assert "##[debug]a\n##[debug]b\n" in printed(b"::debug::a%0Ab\n", debug=True).log(1)


def test_F10_a_value_masked_by_a_step_stays_masked_in_later_steps() -> None:
    value = 'S3cr&t "qu0te" v@l'
    script = by_script(
        {
            "one": Reply(output=f"::add-mask::{value}\n".encode()),
            "two": Reply(output=f"{value} {value.upper()}\n".encode()),
        }
    )
    ran = run_job({"run": "one"}, {"run": "two"}, script=script)
    assert value not in ran.log()
    assert ran.log(1, "output") == ""
    assert ran.log(2, "output") == f"*** {value.upper()}\n"


def test_masks_reach_names_annotations_summaries_reasons_and_outputs() -> None:
    script = by_script(
        {
            "x": Reply(
                output=b"::error title=hunter2::of hunter2\n",
                files={"summary": b"# hunter2\n", "output": b"k=hunter2\n"},
            )
        }
    )
    ran = run_job(
        {"run": "x", "id": "s", "name": "step hunter2"},
        {"if_": "steps.s.outputs.k == 'no'"},
        script=script,
        secrets={"S": "hunter2"},
    )
    assert not [event for event in ran.events if "hunter2" in str(event)]
    assert ran.steps()[1].name == "step ***"


def test_F42_a_short_secret_touches_the_text_of_the_job_alone() -> None:
    script = by_script({"docker build 1": Reply(output=b"docker build 1 of 11\n")})
    secrets = {"A": "1", "B": "docker", "C": "", "D": "success"}
    ran = run_job({"run": "docker build 1"}, script=script, secrets=secrets)
    assert ran.log(1, "output") == "*** build *** of ***\n"
    step = ran.steps()[1]
    assert (step.step, step.outcome, step.conclusion, step.exit_code) == (1, "success", "success", 0)
    assert ran.finished.conclusion == "success"


def test_a_secret_across_pieces_is_masked() -> None:
    ran = printed(b"a hun", b"ter", b"2 b\n", secrets={"S": "hunter2"})
    assert ran.log(1, "output") == "a *** b\n"


def test_visible_at_once_with_a_long_key_registered() -> None:
    """`ready` without line end is told while the step goes on, though a PEM is registered."""
    key = "-----BEGIN KEY-----\n" + "\n".join("A" * 64 for _ in range(45)) + "\n-----END KEY-----"

    async def first_output() -> bytes:
        bench = Bench(by_script({"x": Reply(output=b"ready", until="interrupt")}))
        seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def watch(event: object) -> bool:
            if isinstance(event, Log) and event.kind == "output" and not seen.done():
                seen.set_result(event.data)
            return False

        from runyard.job import Cancel

        bench.order_when(watch, Cancel())
        running = asyncio.create_task(bench._run(claim({"run": "x"}, secrets={"KEY": key}), 60))
        async with asyncio.timeout(10):
            data = await seen
        assert bench.run_of is not None
        bench.run_of.order(Cancel(force=True))
        await running
        return data

    assert asyncio.run(first_output()) == b"ready"


MATCHER = json.dumps(
    {
        "problemMatcher": [
            {"owner": "demo", "pattern": [{"regexp": "^E: (\\w+):(\\d+) (.+)$", "file": 1, "line": 2, "message": 3}]}
        ]
    }
).encode()
MATCHER_PATH = "/home/runner/work/demo/demo/.github/m.json"


def matched(*steps: dict[str, Any], **replies: Reply) -> Ran:
    bench = Bench(by_script(replies), files={MATCHER_PATH: MATCHER})
    return bench.run(claim(*steps))


def test_a_matcher_added_by_a_step_works_in_later_ones_until_it_is_removed() -> None:
    ran = matched(
        {"run": "add"},
        {"run": "hit"},
        {"run": "remove"},
        {"run": "hit"},
        add=Reply(output=b"::add-matcher::.github/m.json\n"),
        hit=Reply(output=(b"before\nE: a", b":3 bad\nafter\n")),
        remove=Reply(output=b"::remove-matcher owner=DEMO::\n"),
    )
    assert ran.log(2, "output", "runner") == "before\n##[error]E: a:3 bad\nafter\n"
    assert [(a.level, a.message, a.line) for a in ran.annotations(2)] == [("error", "bad", 3)]
    assert ran.annotations(4) == []
    assert ran.finished.conclusion == "success"


def test_a_matchers_file_that_is_in_no_checkout_is_left_out() -> None:
    ran = matched(
        {"run": "add"},
        add=Reply(output=b"::add-matcher::.github/m.json\nE: a:3 bad\n"),
    )
    assert [a.file for a in ran.annotations(1)] == [None]


@pytest.mark.parametrize("line", [b"::remove-matcher owner=a::b\n", b"::remove-matcher::\n"], ids=["both", "none"])
def test_remove_matcher_takes_exactly_one_of_owner_and_file(line: bytes) -> None:
    ran = printed(line)
    assert [a.level for a in ran.annotations(1)] == ["warning"]
    assert conclusion(ran) == "success"


def test_output_that_is_not_utf8_passes_unchanged() -> None:
    script = by_script({"x": Reply(output=b"\xff\xfe ok\n")})
    ran = run_job({"run": "x"}, script=script)
    logs = [event for event in ran.events if isinstance(event, Log) and event.kind == "output"]
    assert b"".join(each.data for each in logs) == b"\xff\xfe ok\n"


def test_offsets_of_a_steps_log_are_contiguous() -> None:
    ran = printed(b"a\nb", b"c\n::notice::n\nd")
    offset = 0
    for event in ran.events:
        if isinstance(event, Log) and event.step == 1:
            assert event.offset == offset
            offset += len(event.data)
