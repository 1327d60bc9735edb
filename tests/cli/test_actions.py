"""`runyard actions` and `runyard capabilities`: what they print, for people and programs, and their exit codes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from action.origins import make_origin
from runyard.action.artifacts import plan_download, plan_upload
from runyard.action.checkout import plan_checkout
from runyard.action.declaration import CHECKOUT, DECLARATIONS, DOWNLOAD_ARTIFACT, UPLOAD_ARTIFACT, Declaration
from runyard.action.native import built_in
from runyard.cli.main import run
from runyard.github.runner import encode_message, message_of
from runyard.job import ActionStep, Claim, ContainerActionStep, InputError, JobSpec, Json, RunContext
from source.repositories import git, make_repository

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

COMPOSITE = "runs: {using: composite, steps: [{uses: o/leaf@v1}]}\n"
LEAF = "runs: {using: node20, main: m.js}\n"
CI = """on: push
jobs:
  a:
    runs-on: ubuntu-latest
    container: debian:12
    steps:
      - uses: o/top@v1
      - uses: ./local
      - uses: actions/checkout@v4
        with:
          submodules-of: recursive
          ref: main
      - uses: docker://alpine:3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("GIT_", "RUNYARD_"))]:
        monkeypatch.delenv(name)
    make_origin(tmp_path / "origin", "o/top", {"action.yml": COMPOSITE})
    make_origin(tmp_path / "origin", "o/leaf", {"action.yml": LEAF})
    monkeypatch.setenv("RUNYARD_ACTIONS_URL", f"file://{tmp_path}/origin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = make_repository(
        tmp_path / "repo",
        {
            ".github/workflows/ci.yml": CI.replace("      - uses: actions/checkout@v4\n        with:\n", "").replace(
                "          submodules-of: recursive\n          ref: main\n", ""
            ),
            "local/action.yml": "runs: {using: composite, steps: [{uses: o/leaf@v1}]}\n",
        },
    )
    monkeypatch.chdir(folder)
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run([*arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_lock_list_verify(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = told(capsys, "actions", "lock")
    assert code == 0
    assert [each["uses"] for each in made["actions"]] == ["o/leaf@v1", "o/top@v1"]
    lock = project / ".github/runyard-actions.lock"
    leaf = git(tmp_path / "origin/o/leaf", "rev-parse", "HEAD")
    assert f'"o/leaf@v1" = "{leaf}"' in lock.read_text()
    assert run(["actions", "lock", "--check"]) == 0
    make_origin(tmp_path / "origin", "o/leaf", {"m.js": "moved"})
    assert run(["actions", "lock", "--check"]) == 1
    assert "o/leaf@v1" in capsys.readouterr().err
    code, listed = told(capsys, "actions", "list")
    assert code == 0
    assert sorted(each["repository"] for each in listed["actions"]) == ["o/leaf", "o/leaf", "o/top"]
    assert told(capsys, "actions", "verify")[0] == 0
    (tmp_path / f"cache/runyard/actions/o/leaf/{leaf}/tree/action.yml").write_text("changed")
    code, checked = told(capsys, "actions", "verify", "--remove")
    assert code == 1
    assert [each["commit"] for each in checked["actions"] if each["problem"]] == [leaf]
    assert told(capsys, "actions", "verify")[0] == 0


def test_a_lock_that_can_not_be_made_stays_as_it_was(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = project / ".github/workflows/ci.yml"
    workflow.write_text(workflow.read_text().replace("o/top@v1", "o/nowhere@v1"))
    code, made = told(capsys, "actions", "lock")
    assert code == 1
    assert any(each["problem"] for each in made["actions"] if each["uses"] == "o/nowhere@v1")
    assert not (project / ".github/runyard-actions.lock").exists()


def test_mirror(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["actions", "mirror"]) == 2
    assert "--to DIR" in capsys.readouterr().err
    code, made = told(capsys, "actions", "mirror", "--to", str(tmp_path / "m"))
    assert code == 0
    assert [(each["uses"], each["fetched"]) for each in made["actions"]] == [("o/leaf@v1", True), ("o/top@v1", True)]
    assert (tmp_path / "m/o/leaf.git/HEAD").is_file()
    code, made = told(capsys, "actions", "mirror", "--to", str(tmp_path / "m"), ".github/workflows/ci.yml")
    assert [each["fetched"] for each in made["actions"]] == [False, False]


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    assert run(["actions", "lock"]) == 2


def test_an_audit_lists_everything(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".github/workflows/ci.yml").write_text(CI)
    assert run(["actions", "lock"]) == 1  # actions/checkout is not on that server; the others are in the store now
    capsys.readouterr()
    policy = tmp_path / "policy.toml"
    policy.write_text('actions = ["o/top"]\ndocker_images = ["debian:*"]\n')
    code, audit = told(capsys, "capabilities", "check", "--policy", str(policy), "--sandbox", "bubblewrap")
    assert code == 1
    found = {(each["rule"], each.get("step"), tuple(each.get("chain", ()))) for each in audit["violations"]}
    assert found == {
        ("containers", None, ()),
        ("action", 1, ("o/top@v1", "o/leaf@v1")),
        ("action", 2, ("./local", "o/leaf@v1")),
        ("input", 3, ("actions/checkout@v4",)),
        ("image", 4, ("docker://alpine:3",)),
        ("containers", 4, ("docker://alpine:3",)),
    }
    assert next(each["line"] for each in audit["violations"] if each["rule"] == "input") == 11
    assert run(["capabilities", "check", "--policy", str(policy)]) == 1
    assert "[action]" in capsys.readouterr().out


def test_an_audit_of_nothing_wrong_is_0_and_of_nothing_readable_2(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capabilities", "check"]) == 0
    (project / "x.json").write_text("{}")
    assert run(["capabilities", "check", "x.json"]) == 2
    assert run(["capabilities", "check", "nowhere.yml"]) == 2
    assert "nowhere.yml" in capsys.readouterr().err


def test_the_manifest_is_what_the_adapter_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capabilities", "export"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert exported["version"] == 1
    assert "node24" in exported["runs_using"]
    assert {each["repository"] for each in exported["adapters"]} >= {"actions/checkout", "actions/cache"}
    for each in CHECKOUT.inputs:
        value = (
            "o/r" if each.name == "repository" else "1" if each.name == "fetch-depth" else (each.values or ("x",))[0]
        )
        plan_checkout({each.name: value}, "o/r")
        if each.values is not None and "true" not in each.values:
            with pytest.raises(InputError):
                plan_checkout({each.name: "other"}, "o/r")
    with pytest.raises(InputError):
        plan_checkout({"undeclared": "x"}, "o/r")


@pytest.mark.parametrize("declared", DECLARATIONS, ids=lambda each: "/".join((each.repository, *each.paths[:1])))
def test_an_adapter_stands_for_what_it_declares_and_nothing_else(declared: Declaration) -> None:
    for path in declared.paths:
        for major in range(1, 12):
            for ref in (f"v{major}", f"v{major}.1.2"):
                step = ActionStep(id="x", number=1, repository=declared.repository, path=path, ref=ref)
                assert (built_in(step) is not None) is (major in declared.majors), ref
    other = ActionStep(id="x", number=1, repository=declared.repository, path="other", ref="v4")
    assert built_in(other) is None


def test_what_adapters_of_artifacts_refuse_is_declared() -> None:
    for each in UPLOAD_ARTIFACT.inputs:
        for value in each.values or ("1",):
            plan_upload({"path": "x", each.name: value})
        if each.values is not None:
            with pytest.raises(InputError):
                plan_upload({"path": "x", each.name: "other"})
    for names in DOWNLOAD_ARTIFACT.forbidden:
        with pytest.raises(InputError):
            plan_download(dict.fromkeys(names, "1"), workspace="/w", home="/h")


def test_an_audit_of_a_saved_message(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del project
    steps = (
        ActionStep(id="a", number=1, repository="evil/n", ref="v1"),
        ContainerActionStep(id="b", number=2, image="debian:12"),
        ActionStep(id="c", number=3, repository="good/n", ref="v1"),
    )
    spec = JobSpec(id="1", run_id="2", key="k", job="build", name="build", steps=steps)
    github: dict[str, Json] = {"repository": "o/r", "ref": "refs/heads/main", "sha": "a" * 40}
    made = Claim(
        attempt=1,
        lease_id="1",
        expires_in_s=600,
        spec=spec,
        context=RunContext(github=github, event={}),
        secrets={"GITHUB_TOKEN": "s3cr3t-value"},
        tokens={"job": "a.b.c"},
        endpoints={"run": "https://run.example/"},
    )
    (tmp_path / "message.json").write_bytes(encode_message(message_of(made, request_id=1)))
    policy = tmp_path / "policy.toml"
    policy.write_text('actions = ["good/*"]\ndocker_images = []\n')
    code = run(["capabilities", "check", str(tmp_path / "message.json"), "--policy", str(policy)])
    said = capsys.readouterr().out
    assert code == 1
    assert [line.rpartition("  ")[2] for line in said.splitlines()] == ["[action]", "[image]"]
    assert "evil/n" in said
    assert "s3cr3t-value" not in said
