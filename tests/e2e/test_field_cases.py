"""Bugs that users of CI systems reported, through the command line: one run of many jobs, asked again and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.command_line import Told, repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none")
VALUE = 'S3cr&t "qu0te" v@l'

JOBS: dict[str, dict[str, Any]] = {
    # F10: a step registers a value; it and every later step, a composite, print its encoded forms on both streams
    "f10": {
        "steps": [
            {"uses": "actions/checkout@v4"},
            {"name": "register", "run": 'echo "::add-mask::$(cat value)"\npython3 forms.py'},
            {"name": "later", "run": "python3 forms.py >&2"},
            {"name": "nested", "uses": "./composite"},
        ],
    },
    # F12: a matrix of an earlier job's output; an empty one; a missing one
    "plan": {
        "outputs": {"m": "${{ steps.s.outputs.m }}", "empty": "${{ steps.s.outputs.empty }}"},
        "steps": [
            {
                "id": "s",
                "run": 'echo "m={\\"include\\":[{\\"p\\":\\"x\\",\\"n\\":1},{\\"p\\":\\"y\\",\\"n\\":2}]}" '
                '>> "$GITHUB_OUTPUT"\necho "empty={\\"include\\":[]}" >> "$GITHUB_OUTPUT"',
            }
        ],
    },
    "build": {
        "needs": "plan",
        "strategy": {"matrix": "${{ fromJSON(needs.plan.outputs.m) }}"},
        "steps": [
            {"run": 'echo "${{ matrix.p }} ${{ matrix.n == 1 }} ${{ strategy.job-index }}/${{ strategy.job-total }}"'}
        ],
    },
    "empty": {
        "needs": "plan",
        "strategy": {"matrix": "${{ fromJSON(needs.plan.outputs.empty) }}"},
        "steps": [{"run": "true"}],
    },
    "missing": {
        "needs": "plan",
        "strategy": {"matrix": "${{ fromJSON(needs.plan.outputs.nosuch) }}"},
        "steps": [{"run": "true"}],
    },
    "f20": {
        "steps": [
            {"id": "o", "run": "printf 'zero=0\\nno=false\\nempty=\\n' >> \"$GITHUB_OUTPUT\""},
            {"name": "a", "if": "steps.o.outputs.zero", "run": "true"},
            {"name": "b", "if": "steps.o.outputs.no", "run": "true"},
            {"name": "c", "if": "steps.o.outputs.empty", "run": "true"},
            {"name": "d", "if": "steps.o.outputs.missing", "run": "true"},
            {"name": "e", "if": "${{ steps.o.outputs.zero == 0 }}", "run": "true"},
            {"name": "f", "if": "${{ !steps.o.outputs.no }}", "run": "true"},
            {"name": "g", "if": "${{ fromJSON(steps.o.outputs.no) }}", "run": "true"},
            {"name": "h", "if": "steps.o.outputs.no == 'false' && '' || 'z'", "run": "true"},
        ]
    },
    "f24": {
        "steps": [
            {"run": 'printf \'A=b=c<<d\\nB<<X=Y\\n1\\n2\\nX=Y\\n\\nC=\\nD=a b "c" $HOME\\n\' >> "$GITHUB_ENV"'},
            {"run": "env | grep -E '^(A|B|C|D)='; echo \"[${B}]\"; echo '${{ env.A }}'"},
            {"run": "printf 'no separator here\\n' >> \"$GITHUB_ENV\""},
        ]
    },
    "f44": {
        "steps": [
            {
                "id": "a",
                "run": 'echo X=1 >> "$GITHUB_ENV"; echo o=1 >> "$GITHUB_OUTPUT"; '
                'rm -f "$GITHUB_OUTPUT" "$GITHUB_PATH" "$GITHUB_STEP_SUMMARY" "$GITHUB_STATE"',
            },
            {
                "id": "b",
                "run": 'test "$X" = 1 || exit 1; for f in "$GITHUB_ENV" "$GITHUB_OUTPUT" "$GITHUB_PATH" '
                '"$GITHUB_STEP_SUMMARY" "$GITHUB_STATE"; do test -f "$f" -a -w "$f" -a ! -s "$f" || exit 1; done; '
                'echo "$GITHUB_ENV" > p',
            },
            {
                "id": "c",
                "run": 'test "$GITHUB_ENV" != "$(cat p)"; : > "$GITHUB_ENV"; ln -sf /etc/hostname "$GITHUB_OUTPUT"',
            },
            {
                "id": "d",
                "run": 'test "$X" = 1; echo "[${{ steps.a.outputs.o }}][${{ toJSON(steps.c.outputs) }}]"',
            },
        ]
    },
    "f46": {
        "steps": [
            {
                "run": "printf '   ::warning file=app.py,line=3,title=A%%2CB%%3A c::50%%25 done%%0Anext\\n'\n"
                "echo 'log: ::error::not a command'\necho '::ERROR::upper'\necho '::unknown::kept as text'\n"
                "printf '::notice::unterminated'"
            },
            {"run": 'for i in $(seq 1 12); do echo "::notice::n$i"; done'},
        ]
    },
    "f48": {
        "steps": [
            {"name": "env", "run": "echo '::set-env name=PWN::1'", "continue-on-error": True},
            {"name": "path", "run": "echo '::add-path::/tmp/evil'", "continue-on-error": True},
            {"name": "output", "id": "o", "run": "echo '::set-output name=x::1'"},
            {"name": "node", "run": "printf 'NODE_OPTIONS=--require=/tmp/x.js\\nnode_options=y\\n' >> \"$GITHUB_ENV\""},
            {"name": "preload", "run": 'echo LD_PRELOAD=/tmp/x.so >> "$GITHUB_ENV"'},
            {
                "name": "after",
                "run": 'echo "[$PWN][$NODE_OPTIONS$node_options][$LD_PRELOAD][${{ steps.o.outputs.x }}]"; echo "$PATH"',
            },
        ]
    },
    "f48-allowed": {
        "env": {"ACTIONS_ALLOW_UNSECURE_COMMANDS": "true"},
        "steps": [{"run": "echo '::set-env name=PWN::1'"}, {"run": 'echo "[$PWN]"'}],
    },
    "x2": {
        "steps": [
            {"run": "head -c 1048575 /dev/zero | tr '\\0' a > \"$GITHUB_STEP_SUMMARY\""},
            {"run": "head -c 1048577 /dev/zero | tr '\\0' b > \"$GITHUB_STEP_SUMMARY\""},
            *({"run": 'echo "# summary" > "$GITHUB_STEP_SUMMARY"'} for _ in range(23)),
        ]
    },
}

FORMS = """
import base64, json, urllib.parse, xml.sax.saxutils
value = open("value").read()
for each in ("", "u:", "us:"):
    print("b64", base64.b64encode((each + value).encode()).decode())
print("url", urllib.parse.quote(value))
print("json", json.dumps(value)[1:-1])
print("xml", xml.sax.saxutils.escape(value, {'"': "&quot;"}))
print("quotes", value.replace('"', '\\\\"'))
print("upper", value.upper())
"""

COMPOSITE = """
name: c
description: c
runs: {using: composite, steps: [{shell: bash, run: python3 forms.py}]}
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One run of all jobs; its conclusion is failure, since some of them have to fail."""
    folder = tmp_path_factory.mktemp("field") / "repo"
    jobs = {name: {"runs-on": "ubuntu-latest", **job} for name, job in JOBS.items()}
    files = {
        WORKFLOW: json.dumps({"on": "push", "jobs": jobs}),
        "forms.py": FORMS,
        "value": VALUE,
        "composite/action.yml": COMPOSITE,
    }
    return run_events(repository(folder, files), *LOCAL, "--parallel", "2")


def outcomes(told: Told, job: str) -> dict[str, str]:
    return {event["step"]["name"]: event["outcome"] for event in told.of_type("step_finished", job=job)}


def test_F10_no_encoded_form_of_a_masked_value_is_shown(told: Told) -> None:
    lines = told.log("f10", "output", "runner", "command")
    assert not [line for line in lines if line.startswith("::add-mask::")]
    forms = [line.split(" ", 1) for line in lines if line.split(" ", 1)[0] in ("b64", "url", "json", "xml", "quotes")]
    assert len(forms) == 3 * 7, lines
    from base64 import b64encode

    for shift in ("", "u:", "us:"):
        whole = b64encode((shift + VALUE).encode()).decode()
        # What depends on the secret alone is gone: no eight characters of it can be found.
        assert not [shown for name, shown in forms if name == "b64" and whole[8:16] in shown]
    for name, shown in forms:
        assert "***" in shown, name
        assert "qu0te" not in shown
        assert "v@l" not in shown
    assert lines.count("upper " + VALUE.upper()) == 3
    assert VALUE not in told.out.replace('\\"', '"')


def test_F12_a_matrix_built_by_an_earlier_job(told: Told) -> None:
    assert told.log("build (x, 1)", "output") == ["x true 0/2"]
    assert told.log("build (y, 2)", "output") == ["y false 1/2"]
    for job in ("empty", "missing"):
        (ended,) = told.of_type("job_finished", job=job)
        assert ended["conclusion"] == "failure"
        assert f"job '{job}'" in ended["reason"]
        assert {"empty": '{"include":[]}', "missing": "the text is empty"}[job] in ended["reason"]
        assert not told.of_type("step_started", job=job)
    assert told.code == 1


def test_F20_what_counts_as_true(told: Told) -> None:
    found = outcomes(told, "f20")
    assert {name: found[name] for name in "abcdefgh"} == {
        **dict.fromkeys("abeh", "success"),
        **dict.fromkeys("cdfg", "skipped"),
    }
    reasons = {e["step"]["name"]: e.get("reason", "") for e in told.of_type("step_finished", job="f20")}
    assert "steps.o.outputs.empty" in reasons["c"]
    assert "steps.o.outputs.no" in reasons["f"]
    assert "false" in reasons["f"]


def test_F24_values_with_equals_signs_and_angle_brackets(told: Told) -> None:
    lines = told.log("f24", "output")
    assert "A=b=c<<d" in lines
    assert lines[lines.index("[1") + 1] == "2]"
    assert "C=" in lines
    assert 'D=a b "c" $HOME' in lines
    assert lines[-1] == "b=c<<d"
    assert told.conclusion("f24") == "failure"
    assert "no separator here" in "\n".join(told.log("f24", "runner"))


def test_F44_deleted_emptied_and_linked_files(told: Told) -> None:
    assert set(outcomes(told, "f44").values()) == {"success"}
    assert told.log("f44", "output") == ["[][{}]"]


def test_F46_commands_in_the_output(told: Told) -> None:
    found = told.of_type("annotation", job="f46")
    (warning,) = [each for each in found if each["level"] == "warning"]
    assert (warning["file"], warning["line"], warning["title"]) == ("app.py", 3, "A,B: c")
    assert warning["message"] == "50% done\nnext"
    assert [each["message"] for each in found if each["level"] == "error"] == ["upper"]
    notices = [each["message"] for each in found if each["level"] == "notice"]
    assert notices == ["unterminated", *(f"n{number}" for number in range(1, 13))]
    lines = told.log("f46", "output")
    assert "log: ::error::not a command" in lines
    assert "::unknown::kept as text" in lines


def test_F48_disabled_commands(told: Told) -> None:
    found = outcomes(told, "f48")
    assert (found["env"], found["path"], found["output"], found["node"]) == ("failure", "failure", "success", "success")
    said = "\n".join(told.log("f48", "runner"))
    assert "set-env" in said
    assert "add-path" in said
    errors = [each["message"] for each in told.of_type("annotation", job="f48", level="error")]
    assert len([each for each in errors if "node_options" in each.lower()]) == 2
    assert [e for e in told.of_type("annotation", job="f48", level="warning") if "set-output" in e["message"]]
    lines = told.log("f48", "output")
    after = [line for line in lines if line.startswith("[")]
    assert after == ["[][][/tmp/x.so][1]"]
    assert not [line for line in lines if "/tmp/evil" in line and not line.startswith("::")]
    # Under `runyard run`, which somebody started, the job's own word is enough (D7).
    assert told.conclusion("f48-allowed") == "success"
    assert told.log("f48-allowed", "output")[-1] == "[1]"


def test_X2_summaries_at_and_over_the_limit(told: Told) -> None:
    found = told.of_type("summary", job="x2")
    assert len(found) == 25
    sizes = {each["step"]["number"]: len(each["text"].encode()) for each in found}
    assert sizes[1] == 1048575
    assert sizes[2] <= 1048576 + 400
    (cut,) = [each for each in found if "truncated_from" in each]
    assert (cut["step"]["number"], cut["truncated_from"]) == (2, 1048577)
    assert len(cut["whole"]) == 1048577
    assert told.conclusion("x2") == "success"


F04 = """
on: {workflow_dispatch: {inputs: {dry: {type: boolean, default: false}}}}
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - {name: one,   if: "${{ inputs.dry }}",              run: "true"}
      - {name: two,   if: "${{ !inputs.dry }}",             run: "true"}
      - {name: three, if: "${{ github.event.inputs.dry }}", run: "true"}
      - run: echo "${{ inputs.dry == false }} ${{ inputs.dry == 'false' }} ${{ github.event.inputs.dry == 'false' }}"
"""


def test_F04_boolean_inputs_of_a_manual_run(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: F04})
    manual = (*LOCAL, "--event", "workflow_dispatch")
    for arguments, skipped, line in (
        ((), "one", "true false true"),
        (("--input", "dry=true"), "two", "false false false"),
    ):
        found = run_events(folder, *manual, *arguments)
        assert found.code == 0, found.err
        ran = outcomes(found, "j")
        assert [name for name in ("one", "two", "three") if ran[name] == "skipped"] == [skipped]
        assert found.log("j", "output") == [line]
    wrong = runyard(folder, "run", *manual, "--input", "dry=maybe")
    assert (wrong.code, wrong.out) == (2, "")
    assert "dry" in wrong.err
    assert "boolean" in wrong.err


F42 = """
on: push
jobs:
  docker:
    runs-on: ubuntu-latest
    steps:
      - name: docker build 1
        env: {A: "${{ secrets.A }}", B: "${{ secrets.B }}", C: "${{ secrets.C }}", D: "${{ secrets.D }}"}
        run: echo "docker build 1 of 11"
"""


def test_F42_a_common_secret_leaves_the_report_whole(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: F42})
    (tmp_path / "s.json").write_text(json.dumps({"A": "1", "B": "docker", "C": "", "D": "success"}))
    secrets = ("--secret-file", str(tmp_path / "s.json"))
    found = run_events(folder, *LOCAL, *secrets)
    assert found.code == 0
    assert found.log("docker", "output") == ["*** build *** of ***"]
    (step,) = found.of_type("step_finished", job="docker", outcome="success")[1:2]
    assert step["step"]["number"] == 1
    assert found.conclusion("docker") == "success"
    planned = json.loads(runyard(folder, "run", "--plan", "--format", "json", *secrets).out)
    notes = [note["message"] for job in planned["workflows"][0]["jobs"] for note in job["notes"]]
    for name in ("A", "B", "D"):
        assert [note for note in notes if f"{name}" in note.split()[0:3] or f"secret {name}" in note], notes


F54 = """
on: push
env: {P: 3.10, Q: yes, R: 0x10, S: 012, T: ~, U: 1e3, V: "3.10"}
jobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'echo "[$P][$Q][$R][$S][$T][$U][$V]"'}]}}
"""


def test_F54_scalars_of_yaml(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: F54})
    assert run_events(folder, *LOCAL).log("j", "output") == ["[3.1][yes][16][12][][1000][3.10]"]
    checked = runyard(folder, "check")
    assert checked.code == 1
    assert f"{WORKFLOW}:3:" in checked.out + checked.err
    assert "3.1" in checked.out + checked.err
