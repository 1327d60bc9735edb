"""`runyard run --list` and `--plan`: the shapes, the decisions with their values, and every input that is wrong."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.cli.main import run
from runyard.cli.shapes import Listing
from source.repositories import commit, everything_in, git, make_repository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CI = """
on: [push, workflow_dispatch]
jobs:
  first:
    runs-on: ubuntu-latest
    outputs: {m: "${{ steps.s.outputs.m }}"}
    steps:
      - {id: s, run: 'echo "m=[1]" >> "$GITHUB_OUTPUT"'}
      - {name: never, if: "github.ref == 'refs/heads/other'", run: "true"}
      - {name: always, if: always(), uses: actions/checkout@v4}
      - {run: 'curl -H "${{ secrets.GITHUB_TOKEN }}" ${{ secrets.MISSING }}'}
  legs:
    runs-on: ${{ matrix.os }}
    strategy: {matrix: {os: [ubuntu-latest, windows-latest]}}
    steps: [{run: "true"}]
  planned:
    needs: first
    runs-on: self-hosted
    strategy: {matrix: {v: "${{ fromJSON(needs.first.outputs.m) }}"}}
    steps: [{run: "true"}]
  off:
    if: github.ref == 'refs/heads/other'
    runs-on: ubuntu-latest
    steps: [{run: "true"}]
  after: {needs: off, runs-on: ubuntu-latest, steps: [{run: "true"}]}
  cleanup: {needs: [off, first], if: always(), runs-on: ubuntu-latest, steps: [{run: "true"}]}
  call: {needs: first, uses: ./.github/workflows/called.yml}
"""
CALLED = """
on: workflow_call
jobs:
  t: {runs-on: ubuntu-latest, steps: [{run: "true"}]}
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("GIT_", "RUNYARD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = make_repository(
        tmp_path / "app", {".github/workflows/ci.yml": CI, ".github/workflows/called.yml": CALLED, "src/a": "1"}
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def told(repository: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def tell(*arguments: str) -> tuple[int, str, str]:
        code = run(["run", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return tell


@pytest.fixture
def planned(told: Callable[..., tuple[int, str, str]]) -> Callable[..., dict[str, Any]]:
    def plan(*arguments: str, flag: str = "--plan") -> dict[str, Any]:
        code, out, err = told(flag, "--format", "json", *arguments)
        assert (code, err) == (0, "")
        msgspec.json.decode(out, type=Listing)
        found: dict[str, Any] = json.loads(out)
        return found

    return plan


def jobs_of(listing: dict[str, Any], path: str = ".github/workflows/ci.yml") -> dict[str, dict[str, Any]]:
    workflow = next(each for each in listing["workflows"] if each["path"] == path)
    return {job["key"]: job for job in workflow["jobs"]}


def test_the_list_has_its_fields_and_no_more(planned: Callable[..., dict[str, Any]]) -> None:
    listing = planned(flag="--list")
    called, ci = listing["workflows"]
    assert called == {
        "path": ".github/workflows/called.yml",
        "triggered": False,
        "reason": "the workflow does not listen to push",
        "jobs": [],
    }
    assert (ci["triggered"], ci["path"]) == (True, ".github/workflows/ci.yml")
    jobs = jobs_of(listing)
    assert {key: (job["runs"], job["needs"]) for key, job in jobs.items()} == {
        "first": (True, []),
        "legs.ubuntu-latest": (True, []),
        "legs.windows-latest": (True, []),
        "planned": (True, ["first"]),
        "off": (False, []),
        "after": (False, ["off"]),
        "cleanup": (True, ["off", "first"]),
        "call/t": (True, []),
    }
    assert all(set(job) == {"id", "key", "name", "matrix", "needs", "runs", "reason"} for job in jobs.values())
    assert jobs["legs.windows-latest"]["matrix"] == {"os": "windows-latest"}
    assert jobs["legs.windows-latest"]["name"] == "legs (windows-latest)"
    assert jobs["call/t"]["name"] == "call / t"


def test_each_decision_has_rule_condition_and_values(planned: Callable[..., dict[str, Any]]) -> None:
    jobs = jobs_of(planned())
    decisions = {key: job["decision"] for key, job in jobs.items()}
    assert decisions["first"] == {"rule": "trigger", "condition": None, "values": {"github.event_name": "push"}}
    assert decisions["off"] == {
        "rule": "if",
        "condition": "success() && (github.ref == 'refs/heads/other')",
        "values": {"success()": True, "github.ref": "refs/heads/main"},
    }
    assert decisions["after"]["rule"] == "needs"
    assert decisions["after"]["values"] == {"success()": False, "needs.off.result": "skipped"}
    assert decisions["cleanup"]["rule"] == "later"
    assert decisions["cleanup"]["condition"] == "always()"
    assert decisions["planned"]["rule"] == "later"
    assert decisions["call/t"]["rule"] == "later"
    assert decisions["legs.windows-latest"]["rule"] == "label"
    assert jobs["legs.windows-latest"]["reason"] == "runs-on [windows-latest] needs windows/amd64, not available here"
    assert jobs["off"]["reason"].startswith("the condition is false")


def test_where_a_job_would_run_and_its_steps(planned: Callable[..., dict[str, Any]]) -> None:
    first = jobs_of(planned("--sandbox", "bubblewrap", "--network", "none"))["first"]
    assert (first["runs_on"], first["image"]) == (["ubuntu-latest"], "host")
    assert first["steps"][0]["name"] == 'Run echo "m=[1]" >> "$GITHUB_OUTPUT"'
    assert [(step["number"], step["id"], step["uses"]) for step in first["steps"]] == [
        (1, "s", None),
        (2, None, None),
        (3, None, "actions/checkout@v4"),
        (4, None, None),
    ]
    assert [step["decision"]["rule"] for step in first["steps"]] == ["later", "if", "if", "later"]
    assert first["steps"][1]["decision"]["values"]["github.ref"] == "refs/heads/main"
    codes = [(note["code"], note["step"]) for note in first["notes"]]
    assert codes == [("missing_token", 4), ("missing_secret", 4), ("stand_in", None)]


def test_a_token_that_is_given_is_not_missed(
    planned: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "a-long-enough-token")
    monkeypatch.setenv("missing", "something-long")
    first = jobs_of(planned("--secret", "GITHUB_TOKEN", "--secret", "missing"))["first"]
    assert [note["code"] for note in first["notes"]] == ["stand_in"]


def test_F42_secrets_that_mask_badly_are_named_without_their_value(
    planned: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "s.env").write_text('A=1\nB=docker\nC=\nD=success\nE="{\n \\"k\\": 1\n}"\nLONG=some-long-value\n')
    first = jobs_of(planned("--secret-file", str(tmp_path / "s.env")))["first"]
    notes = [(note["code"], note["message"].split()[2]) for note in first["notes"] if "_secret" in note["code"]]
    assert [note for note in notes if note[0] != "missing_secret"] == [
        ("short_secret", "A"),
        ("common_secret", "B"),
        ("common_secret", "D"),
        ("short_secret", "E"),
    ]


def test_images_and_labels(planned: Callable[..., dict[str, Any]]) -> None:
    jobs = jobs_of(planned("--image", "windows-latest=docker.example/win:1", "--sandbox", "docker"))
    assert jobs["legs.windows-latest"]["image"] == "docker.example/win:1"
    assert jobs["legs.windows-latest"]["decision"]["rule"] == "trigger"
    assert jobs["first"]["image"] == "host"


def test_D20_a_hosted_label_is_the_default_image_and_said_so(planned: Callable[..., dict[str, Any]]) -> None:
    for arguments in ((), ("--strict-github",)):
        first = jobs_of(planned(*arguments))["first"]
        assert first["image"] == "host"
        assert any("ubuntu-latest" in note["message"] for note in first["notes"] if note["code"] == "stand_in")


def test_selected_jobs_and_values(planned: Callable[..., dict[str, Any]]) -> None:
    jobs = jobs_of(planned("--job", "PLANNED"))
    assert {key for key, job in jobs.items() if job["runs"]} == {"first", "planned"}
    assert jobs["off"]["decision"]["rule"] == "selected"
    legs = jobs_of(planned("--job", "legs", "--matrix", "os:ubuntu-latest"))
    assert [key for key, job in legs.items() if job["runs"]] == ["legs.ubuntu-latest"]


def test_the_keys_are_the_same_each_time(planned: Callable[..., dict[str, Any]]) -> None:
    assert list(jobs_of(planned())) == list(jobs_of(planned(flag="--list")))


def test_people_read_the_same(told: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = told("--list")
    assert code == 0
    assert ".github/workflows/called.yml: not started by push: the workflow does not listen to push" in out
    assert "- off " in out
    code, out, _ = told("--plan")
    assert code == 0
    assert "[if] success() && (github.ref == 'refs/heads/other')" in out
    assert 'github.ref = "refs/heads/main"' in out


def test_planning_writes_nothing(repository: Path, told: Callable[..., tuple[int, str, str]]) -> None:
    (repository / "src" / "a").write_text("changed")
    before = everything_in(repository)
    assert told("--plan")[0] == 0
    assert everything_in(repository) == before


def test_ref_reads_workflows_at_that_commit(repository: Path, planned: Callable[..., dict[str, Any]]) -> None:
    (repository / ".github/workflows/ci.yml").write_text("on: push\njobs: {new: {runs-on: a, steps: [{run: x}]}}\n")
    assert list(jobs_of(planned(flag="--list"))) == ["new"]
    assert "first" in jobs_of(planned("--ref", "HEAD", flag="--list"))
    assert "first" in jobs_of(planned("--strict-github", flag="--list")), "D10: under the switch, the commit"
    commit(repository, {}, "Changed")
    assert "first" in jobs_of(planned("--ref", "HEAD~1", flag="--list"))


PATHS = "on: {push: {paths: ['src/**']}}\njobs: {j: {runs-on: a, steps: [{run: x}]}}\n"


def test_path_filters_see_git_or_what_is_said(repository: Path, planned: Callable[..., dict[str, Any]]) -> None:
    commit(repository, {".github/workflows/ci.yml": PATHS, "docs/x": "1"}, "Docs")
    ci = planned(flag="--list")["workflows"][1]
    assert ci["triggered"] is False
    assert "matches paths (src/**)" in ci["reason"]
    assert planned("--changed-file", "src/new", flag="--list")["workflows"][1]["triggered"] is True
    (repository / "src" / "a").write_text("edited, not committed")
    assert planned(flag="--list")["workflows"][1]["triggered"] is True
    assert planned("--ref", "HEAD", flag="--list")["workflows"][1]["triggered"] is False


def test_F04_inputs_of_a_manual_run(repository: Path, planned: Callable[..., dict[str, Any]]) -> None:
    workflow = """
on: {workflow_dispatch: {inputs: {dry: {type: boolean, default: false}, who: {required: true}}}}
run-name: by ${{ inputs.who }}
jobs:
  j: {if: "inputs.dry == false && github.event.inputs.dry == 'false'", runs-on: ubuntu-latest, steps: [{run: x}]}
"""
    (repository / ".github/workflows/ci.yml").write_text(workflow)
    arguments = ("ci", "--event", "workflow_dispatch", "--input", "who=me")
    assert jobs_of(planned(*arguments))["j"]["runs"] is True
    assert jobs_of(planned(*arguments, "--input", "dry=true"))["j"]["runs"] is False
    decision = jobs_of(planned(*arguments))["j"]["decision"]
    assert decision["values"]["inputs.dry"] is False
    assert decision["values"]["github.event.inputs.dry"] == "false"


# --- what is wrong with the input

WRONG: dict[str, tuple[list[str], int, str]] = {
    "unknown event": (["--event", "pullrequest"], 2, "did you mean 'pull_request'?"),
    "unknown job": (["--job", "frist"], 2, "there is no job 'frist'; did you mean 'first'?"),
    "unknown workflow": (["ci.ymll"], 2, "did you mean 'ci.yml'?"),
    "unknown ref": (["--ref", "nope"], 2, "there is no commit 'nope'"),
    "dirty and ref": (["--dirty", "--ref", "HEAD"], 2, "exclude each other"),
    "no event file": (["--event-file", "/nowhere/at-all"], 2, "/nowhere/at-all: it can't be read: No such file"),
    "a folder": (["--event-file", "/"], 2, "Is a directory"),
    "a secret's value": (["--secret", "A=hush-hush"], 2, "the value of A comes from the environment variable A"),
    "no such variable": (["--secret", "NOT_SET_ANYWHERE"], 2, "there is no environment variable NOT_SET_ANYWHERE"),
    "a pair": (["--var", "novalue"], 2, "--var takes NAME=VALUE"),
    "a variable's name": (["--var", "GITHUB_X=1"], 2, "must not begin with GITHUB_"),
    "a matrix value": (["--matrix", "os"], 2, "--matrix takes KEY:VALUE"),
    "an image": (["--image", "x"], 2, "--image takes LABEL=IMAGE"),
    "an unknown sandbox": (["--sandbox", "bubblewarp"], 2, "did you mean 'bubblewrap'?"),
    "microvm": (["--sandbox", "microvm"], 3, "the sandbox 'microvm' is not part of this build yet"),
    "kubernetes": (["--sandbox", "kubernetes"], 3, "the sandbox 'kubernetes' is not part of this build yet"),
    "a network": (["--network", "pubic"], 2, "did you mean 'public'?"),
    "inputs of a push": (["--input", "a=b"], 2, "--input belongs to workflow_dispatch, not to push"),
    "artifacts": (["--artifacts", "/dev/null/d"], 2, "--artifacts: /dev/null is no folder that can be written"),
    "cache-dir": (["--cache-dir", "/dev/null"], 2, "--cache-dir: /dev/null is no folder that can be written"),
    "jsonl of a plan": (["--format", "jsonl"], 2, "--format jsonl is for a run"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), list(WRONG.values()), ids=list(WRONG))
def test_wrong_arguments(
    told: Callable[..., tuple[int, str, str]], arguments: list[str], code: int, message: str
) -> None:
    given, out, err = told("--list", *arguments)
    assert (given, out) == (code, "")
    assert message in err
    assert "hush-hush" not in err


FILES: dict[str, tuple[str, bytes, str]] = {
    "no JSON": ("--event-file", b'{\n  "a": }', ":2:8: no JSON"),
    "no object": ("--event-file", b"[1]", "a payload must be a JSON object"),
    "no UTF-8": ("--event-file", b'{\n"a": "\xff"}', ":2: it is not UTF-8 text"),
    "deep JSON": ("--event-file", b"[" * 100_000, "nested too deeply"),
    "no pair": ("--secret-file", b"A=1\n\nhush hush\n", ":3:1: a line must be NAME=value"),
    "an open quote": ("--secret-file", b'A="hush', ':1:1: the " is never closed'),
    "a GITHUB_ secret": ("--secret-file", b"GITHUB_X=1", "must not begin with GITHUB_"),
    "environments": (
        "--environment-file",
        b'{"e": {"secret": {}}}',
        "environment e has secrets and vars, not 'secret'",
    ),
}


@pytest.mark.parametrize(("flag", "data", "message"), list(FILES.values()), ids=list(FILES))
def test_wrong_files(
    told: Callable[..., tuple[int, str, str]], tmp_path: Path, flag: str, data: bytes, message: str
) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    code, out, err = told("--list", flag, str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"runyard: {path}") or "must not begin" in message
    assert message in err
    assert "hush" not in err


WORKFLOWS: dict[str, tuple[bytes, str]] = {
    "a cycle": (
        (
            b"on: push\njobs:\n"
            b"  a: {needs: b, runs-on: x, steps: [{run: x}]}\n"
            b"  b: {needs: a, runs-on: x, steps: [{run: x}]}\n"
        ),
        "ci.yml:",
    ),
    "an unknown need": (b"on: push\njobs:\n  a: {needs: nope, runs-on: x, steps: [{run: x}]}\n", "ci.yml:3:"),
    "binary": (bytes(range(256)), "ci.yml"),
    "empty": (b"", "ci.yml:1:1: the file is empty"),
    "a billion laughs": (
        b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)),
        "ci.yml",
    ),
}


@pytest.mark.parametrize(("data", "message"), list(WORKFLOWS.values()), ids=list(WORKFLOWS))
def test_workflows_that_github_would_refuse(
    repository: Path, told: Callable[..., tuple[int, str, str]], data: bytes, message: str
) -> None:
    (repository / ".github/workflows/ci.yml").write_bytes(data)
    code, out, err = told("--list")
    assert (code, out) == (2, "")
    assert message in err


def test_a_workflow_that_is_no_file(repository: Path, told: Callable[..., tuple[int, str, str]]) -> None:
    os.mkfifo(repository / ".github/workflows/pipe.yml")
    code, _, err = told("--list")
    assert code == 2
    assert "pipe.yml: it is no file" in err


def test_no_repository_and_no_workflow(
    tmp_path: Path, told: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    code, _, err = told("--list")
    assert code == 2
    assert "is in no git repository" in err
    git(empty, "init", "-q")
    code, _, err = told("--list")
    assert code == 2
    assert "there is no workflow in .github/workflows" in err


def test_secret_files_in_every_form(planned: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    from runyard.cli.run_values import read_pairs

    (tmp_path / "a.env").write_text('# comment\nexport A=1 # why\nB=\'x # y\'\nC="two\\nlines"\nD="a\nb"\nE=\nF=a=b\n')
    assert read_pairs(str(tmp_path / "a.env"), "secret") == {
        "A": "1",
        "B": "x # y",
        "C": "two\nlines",
        "D": "a\nb",
        "E": "",
        "F": "a=b",
    }
    (tmp_path / "a.json").write_text('{"A": "x", "N": 1.5, "B": true, "Z": null}')
    assert read_pairs(str(tmp_path / "a.json"), "secret") == {"A": "x", "N": "1.5", "B": "true", "Z": ""}
    (tmp_path / "plain").write_text('{"A": "x"}')
    assert read_pairs(str(tmp_path / "plain"), "secret") == {"A": "x"}
    (tmp_path / "a.yml").write_text("A: x\nL: |\n  one\n  two\nN: 012\n")
    assert read_pairs(str(tmp_path / "a.yml"), "secret") == {"A": "x", "L": "one\ntwo\n", "N": "12"}
