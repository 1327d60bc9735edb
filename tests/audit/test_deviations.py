"""The rows of the deviations as a user meets them: one repository, run in both modes through the command line.

Each test is named after its row. In the first table the modes differ; in the second the switch changes nothing, and the
log of a strict job says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.command_line import Told, repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none")
MODES = {"default": (), "strict": ("--strict-github",)}

JOBS: dict[str, dict[str, Any]] = {
    "d1": {"steps": [{"run": "head -c 1048577 /dev/zero | tr '\\0' x > \"$GITHUB_STEP_SUMMARY\""}]},
    "d2": {"steps": [{"run": 'for i in $(seq 12); do echo "::error::e$i"; done'}]},
    "d5": {"steps": [{"env": {"S": "${{ secrets.J }}"}, "run": 'echo "{x}"; echo "$S"'}]},
    "d6": {"timeout-minutes": 0, "steps": [{"run": "true"}]},
    "d7": {
        "env": {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"},
        "steps": [{"run": "echo '::set-env name=A::1'"}, {"run": 'echo "[$A]"'}],
    },
    "d8": {
        "steps": [
            {"id": "s", "run": "echo 'x=[1, 2,]' >> \"$GITHUB_OUTPUT\""},
            {"if": "fromJSON(steps.s.outputs.x)[1] == 2", "run": "echo JSON"},
        ]
    },
    "d10": {"steps": [{"uses": "actions/checkout@v4"}, {"run": "cat a.txt"}]},
    "d12": {
        "steps": [
            {"run": 'echo "$(id -u) $HOME $USER"'},
            {"run": "sudo -n id -u"},
            {"run": "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status | tr -s '[:space:]' ' '"},
        ]
    },
    "d13a": {
        "steps": [
            {"run": 'touch left "$HOME/left" "$RUNNER_TEMP/left"; mkdir -p "$RUNNER_TOOL_CACHE/left"; echo wrote'},
        ]
    },
    "d13b": {
        "needs": "d13a",
        "steps": [{"run": 'find . "$HOME" "$RUNNER_TEMP" "$RUNNER_TOOL_CACHE" -name left | wc -l'}],
    },
    "d15": {"steps": [{"run": "RUNNER_TRACKING_ID='' sleep 48115 >/dev/null 2>&1 & true"}]},
    "d16": {
        "steps": [
            {"run": "ls /var/run/docker.sock /run/docker.sock 2>/dev/null | wc -l"},
            {"run": "find /dev -type b | wc -l; ls /dev/mem /dev/kvm /dev/fuse 2>/dev/null | wc -l"},
        ]
    },
    "d17": {"steps": [{"run": "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 5)\""}]},
    "d18": {"steps": [{"run": 'echo "[${{ secrets.GITHUB_TOKEN }}][${{ github.token }}]"'}]},
    "d20": {"steps": [{"run": "true"}]},
    "d21": {
        "steps": [
            {"run": 'ln -sf /etc/hostname "$GITHUB_ENV"', "name": "link"},
            {"run": 'head -c 17000000 /dev/zero | tr "\\0" x > "$GITHUB_ENV"', "name": "large"},
        ]
    },
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """The same run in both modes."""
    place = tmp_path_factory.mktemp("audit")
    jobs = {name: {"runs-on": "ubuntu-latest", **job} for name, job in JOBS.items()}
    folder = repository(place / "repo", {WORKFLOW: json.dumps({"on": "push", "jobs": jobs}), "a.txt": "committed\n"})
    (folder / "a.txt").write_text("edited\n")
    (place / "s.json").write_text(json.dumps({"J": '{\n  "key": "hush-hush-hush"\n}'}))
    given = (*LOCAL, "--parallel", "2", "--secret-file", str(place / "s.json"))
    return {mode: run_events(folder, *given, *flags) for mode, flags in MODES.items()}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def told(both: dict[str, Told], mode: str) -> Told:
    return both[mode]


def output(told: Told, job: str) -> list[str]:
    return told.log(job, "output")


def said(told: Told, job: str) -> str:
    return "\n".join(told.log(job, "runner"))


def step(told: Told, job: str, number: int) -> dict[str, Any]:
    return next(event for event in told.of_type("step_finished", job=job) if event["step"]["number"] == number)


def test_D1_a_long_summary(told: Told, mode: str) -> None:
    assert told.conclusion("d1") == "success"
    summaries = told.of_type("summary", job="d1")
    if mode == "strict":
        assert summaries == []
        assert "summary" in told.of_type("annotation", job="d1", level="error")[0]["message"].lower()
    else:
        (shown,) = summaries
        assert (shown["truncated_from"], len(shown["whole"])) == (1048577, 1048577)


def test_D2_the_eleventh_annotation(told: Told, mode: str) -> None:
    found = [each["message"] for each in told.of_type("annotation", job="d2")]
    assert found == [f"e{number}" for number in range(1, 11 if mode == "strict" else 13)]
    assert len([line for line in told.log("d2") if line.startswith("##[error]e")]) == 12


def test_D5_short_lines_of_a_secret(told: Told, mode: str) -> None:
    lines = output(told, "d5")
    assert lines[0] == ("***x***" if mode == "strict" else "{x}")
    assert "hush" not in told.out


def test_D6_a_limit_that_is_not_positive(told: Told, mode: str) -> None:
    if mode == "strict":
        assert told.conclusion("d6") == "success"
    else:
        assert told.conclusion("d6") == "failure"
        (ended,) = told.of_type("job_finished", job="d6")
        assert "must be positive" in ended["reason"]
        assert not told.of_type("step_started", job="d6")


def test_D7_the_jobs_own_word_counts_in_a_run_that_a_person_started(told: Told) -> None:
    assert told.conclusion("d7") == "success"
    assert output(told, "d7")[-1] == "[1]"


def test_D8_loose_json(told: Told, mode: str) -> None:
    if mode == "strict":
        assert output(told, "d8") == ["JSON"]
    else:
        assert told.conclusion("d8") == "failure"
        assert step(told, "d8", 2)["outcome"] == "failure"
        assert "fromJSON" in said(told, "d8")


def test_D10_what_is_checked_out(told: Told, mode: str) -> None:
    assert output(told, "d10")[-1] == ("committed" if mode == "strict" else "edited")


def test_D12_the_jobs_user(told: Told) -> None:
    lines = output(told, "d12")
    assert "0 /home/runner runner" in lines
    assert any(line.startswith("CapEff: 0000000000000000 NoNewPrivs: 1") for line in lines)
    assert step(told, "d12", 2)["outcome"] == "success", "sudo works because its caller is root in there"
    assert lines.count("0") == 1


def test_D13_every_job_starts_empty(told: Told) -> None:
    assert output(told, "d13a") == ["wrote"]
    assert output(told, "d13b") == ["0"]


def test_D14_hooks_run_inside_the_sandbox_and_are_shown_read_only(tmp_path: Path, mode: str) -> None:
    steps = [{"run": "touch /opt/runyard/hooks/started/mine 2>&1 | grep -c Read-only"}]
    text = json.dumps({"on": "push", "jobs": {"j": {"runs-on": "ubuntu-latest", "steps": steps}}})
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    hook = tmp_path / "hook.sh"
    hook.write_text(f"echo $(hostname) $PWD\nls -d {tmp_path} 2>&1 || true\n")
    told = run_events(folder, *LOCAL, "--hook-started", str(hook), *MODES[mode])
    assert told.conclusion("j") == "success"
    where, outside, shown = output(told, "j")
    assert where.startswith("runyard /home/runner/work/")
    assert "No such file" in outside
    assert shown == "1"


def test_D15_nothing_outlives_the_sandbox(told: Told) -> None:
    from faults.going import processes_with

    assert told.conclusion("d15") == "success"
    assert processes_with("sleep\00048115") == []


def test_D16_no_engine_socket_and_no_device_of_the_host(told: Told) -> None:
    assert output(told, "d16") == ["0", "0", "0"]


def test_D17_only_what_the_network_level_gives(told: Told) -> None:
    assert told.conclusion("d17") == "failure"
    assert "Network is unreachable" in "\n".join(output(told, "d17"))
    assert "network none" in said(told, "d17")


def test_D18_no_token_unless_one_is_given(told: Told) -> None:
    assert output(told, "d18") == ["[][]"]


def test_D20_the_stand_in_for_a_hosted_label(told: Told) -> None:
    assert "ubuntu-latest is the image 'host' of this machine here" in said(told, "d20")


def test_D21_links_and_large_command_files(told: Told) -> None:
    assert step(told, "d21", 1)["outcome"] == "success"
    assert step(told, "d21", 2)["outcome"] == "failure"
    reason = said(told, "d21")
    assert "17,000,000 bytes" in reason
    assert "16,777,216 bytes" in reason


@pytest.mark.parametrize("row", ["D12", "D13", "D14", "D15", "D16", "D17", "D18", "D20", "D21"])
def test_a_strict_job_names_once_what_the_switch_does_not_change(both: dict[str, Told], row: str) -> None:
    strict = [line for line in both["strict"].log("d20", "runner") if row in line.split("Strict mode", 1)[-1]]
    assert len([line for line in strict if line.startswith("Strict mode")]) == 1
    assert not [line for line in both["default"].log("d20", "runner") if line.startswith("Strict mode")]


def test_D18_the_plan_names_the_steps_that_miss_the_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = (
        "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'true'}, "
        "{name: Publish, run: 'true', env: {T: '${{ secrets.GITHUB_TOKEN }}'}}]}}\n"
    )
    folder = repository(tmp_path_factory.mktemp("d18") / "repo", {WORKFLOW: text})
    for flags in MODES.values():
        planned = json.loads(runyard(folder, "run", "--plan", "--format", "json", *flags).out)
        notes = planned["workflows"][0]["jobs"][0]["notes"]
        assert [(note["code"], note["step"]) for note in notes if "GITHUB_TOKEN" in note["message"]] != []
