"""`runyard check`: which files it finds, what it prints in each format, and how it ends."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest

from corpus_path import corpus
from runyard.cli import check
from runyard.cli.shapes import Checked

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "on: push\njobs: {j: {runs-on: x, steps: [{run: 'true'}]}}\n"
BAD = "on: push\njobs:\n  j:\n    runs-on: x\n    steps:\n      - runn: 'a, b: 100%'\n"
LINT = "on: push\njobs: {j: {runs-on: x, timeout-minutes: 0, steps: [{run: 'true'}]}}\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with workflows and actions; the current folder is one below its top."""
    (tmp_path / ".git").mkdir()
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "good.yml").write_text(GOOD)
    (workflows / "notes.txt").write_text("not a workflow")
    action = tmp_path / ".github" / "actions" / "a"
    action.mkdir(parents=True)
    (action / "action.yml").write_text("runs: {using: node20, main: a.js}")
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    """The exit code of one command line."""
    code = check.command.main(list(arguments), standalone_mode=False)
    assert isinstance(code, int)
    return code


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any]]:
    """The exit code and the files of `--format json`."""
    code = run("--format", "json", *arguments)
    printed = capsys.readouterr().out
    msgspec.json.decode(printed, type=Checked)
    return code, json.loads(printed)["files"]


def test_the_repository_by_default(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, files = checked(capsys)
    assert code == 0
    assert [file["path"] for file in files] == [".github/actions/a/action.yml", ".github/workflows/good.yml"]
    monkeypatch.chdir(repository / "src")
    assert [file["path"] for file in checked(capsys)[1]] == [str(repository / file["path"]) for file in files]


def test_exit_codes(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint = repository / ".github" / "workflows" / "lint.yml"
    lint.write_text(LINT)
    assert checked(capsys)[0] == 1
    assert checked(capsys, "--strict-github")[0] == 0
    lint.write_text(BAD)
    code, files = checked(capsys)
    assert code == 2
    (bad,) = [file for file in files if not file["valid"]]
    assert bad["path"] == ".github/workflows/lint.yml"
    (problem,) = bad["problems"]
    assert problem == {
        "line": 6,
        "column": 9,
        "key": "jobs.j.steps[0].runn",
        "severity": "error",
        "message": "Unexpected value 'runn'; did you mean 'run'?",
    }


def test_text(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a.yml").write_text(BAD)
    assert run("a.yml") == 2
    told = capsys.readouterr()
    assert told.out == ("a.yml:6:9: error: Unexpected value 'runn'; did you mean 'run'?  [jobs.j.steps[0].runn]\n")
    assert told.err == "1 file checked, 1 error\n"
    assert run() == 0
    assert capsys.readouterr().err == "2 files checked, nothing found\n"


def test_annotations_are_escaped(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a,b:c.yml").write_text("on: push\njobs: {j: {runs-on: x, steps: [{uses: '50%'}]}}\n")
    assert run("--format", "github", "a,b:c.yml") == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=a%2Cb%3Ac.yml,line=2,col=39,title=jobs.j.steps[0].uses::Expected format ")
    assert "Actual '50%25'" in line


def test_sarif(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a.yml").write_text(BAD)
    (repository / "b.yml").write_text("")
    assert run("--format", "sarif", "a.yml", "b.yml", "missing.yml") == 2
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, SARIF)
    first, second, third = told["runs"][0]["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a.yml"}, "region": {"startLine": 6, "startColumn": 9}}
    assert second["message"]["text"] == "the file is empty"
    assert "region" not in third["locations"][0]["physicalLocation"]
    rules = {rule["id"] for rule in told["runs"][0]["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in (first, second, third)} == rules


SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "results": {
                        "items": {
                            "required": ["ruleId", "level", "message", "locations"],
                            "properties": {"level": {"enum": ["error", "warning", "note", "none"]}},
                        }
                    }
                },
            }
        },
    },
}
"""What code scanning needs of SARIF 2.1.0."""


def test_what_cannot_be_read(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(repository / "pipe.yml")
    (repository / "binary.yml").write_bytes(b"on: push\n\x00\xff")
    (repository / "latin.yml").write_bytes("on: push # é".encode("latin-1"))
    (repository / "big.yml").write_bytes(b"# 123456\n" * 6_000_000)
    (repository / "empty").mkdir()
    code, files = checked(capsys, "missing.yml", "pipe.yml", "binary.yml", "latin.yml", "big.yml", "empty")
    assert code == 2
    told = {file["path"]: file["problems"][0]["message"] for file in files}
    assert told == {
        "missing.yml": "can't be read: No such file or directory",
        "pipe.yml": "can't be read: not a regular file",
        "binary.yml": "this is a binary file: byte 0xff has no meaning here",
        "latin.yml": "this is not UTF-8: byte 0xe9 has no meaning here",
        "big.yml": "the maximum file size of 1,048,576 characters is exceeded",
        "empty": "no workflow or action files here",
    }
    assert all(not file["valid"] for file in files)


def test_a_pipeline_is_checked_with_the_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / ".runyard").mkdir()
    (repository / ".runyard" / "ci.toml").write_text("[jobs.a]\nrunn = 'true'\n")
    assert run() == 2
    assert ".runyard/ci.toml:2:1: error: no such key; did you mean run?" in capsys.readouterr().out


def test_calls_are_followed_within_the_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflows = repository / ".github" / "workflows"
    call = "on: push\njobs: {{j: {{uses: {}, with: {{a: 1}}}}}}\n"
    (workflows / "call.yml").write_text(call.format("./.github/workflows/called.yml"))
    code, files = checked(capsys, ".github/workflows/call.yml")
    assert code == 2
    assert files[0]["problems"][0]["message"].startswith("Unable to find reusable workflow")
    (workflows / "called.yml").write_text(f"on: {{workflow_call: {{inputs: {{b: {{type: string}}}}}}}}\n{GOOD[9:]}")
    _, files = checked(capsys, ".github/workflows/call.yml")
    assert files[0]["problems"][0]["message"].startswith("Invalid input, a is not defined")
    (workflows / "called.yml").write_text(BAD)
    _, files = checked(capsys, ".github/workflows/call.yml")
    assert "called.yml:6:9: Unexpected value 'runn'" in files[0]["problems"][0]["message"]
    for elsewhere in ("o/r/.github/workflows/x.yml@v1", "./../../outside.yml"):
        (workflows / "call.yml").write_text(call.format(elsewhere))
        code, files = checked(capsys, ".github/workflows/call.yml")
        assert code == (0 if elsewhere.startswith("o/") else 2)


def test_a_problem_in_a_called_file_names_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only goes wrong through the call is told with the caller, naming the file it is in."""
    workflows = repository / ".github" / "workflows"
    permissions = "permissions: {contents: read}"
    (workflows / "a.yml").write_text(f"on: push\n{permissions}\njobs: {{j: {{uses: ./.github/workflows/b.yml}}}}\n")
    (workflows / "b.yml").write_text("on: workflow_call\njobs: {j: {uses: ./.github/workflows/c.yml}}\n")
    (workflows / "c.yml").write_text(f"on: workflow_call\npermissions: {{contents: write}}\n{GOOD[9:]}")
    code, files = checked(capsys, ".github/workflows/a.yml")
    assert code == 2
    (problem,) = files[0]["problems"]
    assert problem["message"].startswith(".github/workflows/b.yml:2:8: Error calling workflow")
    assert checked(capsys, ".github/workflows/b.yml")[0] == 0


@pytest.mark.corpus("real-workflows/check-command")
def test_real_workflows_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, files = checked(capsys, str(corpus("real-workflows")))
    assert code == 0
    assert len(files) == 51


@pytest.mark.corpus("workflows-invalid/check-command")
def test_invalid_workflows_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Each invalid file of the corpus but those that need files of another repository, or a smaller limit."""
    for place in sorted(each for each in corpus("workflows-invalid").iterdir() if each.is_dir()):
        expected = json.loads((place / "expected.json").read_text())
        if expected.get("called_workflows") or expected.get("options"):
            continue
        code, (file,) = checked(capsys, str(place / "workflow.yml"))
        assert code == 2, place.name
        lines = {error["line"] for error in expected["errors"]} | set(expected.get("also_accepted_lines") or ())
        told = {problem["line"] for problem in file["problems"] if problem["severity"] == "error"}
        assert None in lines or told & lines, place.name
