"""Layers of a process's environment, PATH and default variables (job-semantics 6 and 7)."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.engine.environment import (
    EXPORTED_GITHUB,
    effective_path,
    github_variables,
    input_name,
    process_environment,
    runner_variables,
)


def made(**over: Any) -> dict[str, str]:
    given: dict[str, Any] = {
        "base": {"PATH": "/bin", "HOME": "/h", "A": "base"},
        "env": {},
        "state": {},
        "inputs": {},
        "prepends": [],
        "github": {},
        "runner": {},
        "services": {},
    }
    return process_environment(**{**given, **over})


def test_later_layers_override_earlier_ones() -> None:
    env = made(
        env={"A": "env", "GITHUB_SHA": "mine", "RUNNER_OS": "mine", "ACTIONS_RUNTIME_URL": "mine", "STATE_x": "mine"},
        state={"x": "1"},
        github={"sha": "real"},
        runner={"os": "Linux"},
        services={"ACTIONS_RUNTIME_URL": "http://gateway"},
    )
    assert env["A"] == "env"
    assert env["STATE_x"] == "1"
    assert env["GITHUB_SHA"] == "real"
    assert env["RUNNER_OS"] == "Linux"
    assert env["ACTIONS_RUNTIME_URL"] == "http://gateway"
    assert env["GITHUB_ACTIONS"] == "true"


@pytest.mark.parametrize(
    ("base", "env", "ci"),
    [({}, {}, "true"), ({}, {"CI": "false"}, "false"), ({"CI": "0"}, {}, "0"), ({}, {"CI": ""}, "")],
)
def test_F11_ci_is_set_only_where_nobody_did(base: dict[str, str], env: dict[str, str], ci: str) -> None:
    assert made(base=base, env=env)["CI"] == ci


def test_O13_input_names_change_spaces_and_case_only() -> None:
    assert input_name("my-in.x") == "INPUT_MY-IN.X"
    assert input_name("a b") == "INPUT_A_B"
    assert made(inputs={"my-in.x": "v"})["INPUT_MY-IN.X"] == "v"


@pytest.mark.parametrize(
    ("prepends", "env", "path"),
    [
        ([], {}, "/bin"),
        (["/b", "/a"], {}, "/b:/a:/bin"),
        (["/a"], {"PATH": "/mine"}, "/a:/mine"),
        ([], {"PATH": "/mine"}, "/mine"),
    ],
    ids=["base", "F12-latest-first", "on-top-of-the-step", "step"],
)
def test_path(prepends: list[str], env: dict[str, str], path: str) -> None:
    assert effective_path(prepends, env, {"PATH": "/bin"}) == path
    assert made(prepends=prepends, env=env)["PATH"] == path


def test_github_context_is_exported_by_list() -> None:
    variables = github_variables(
        {
            "sha": "abc",
            "ref_protected": True,
            "action_repository": None,
            "event": {"a": 1},
            "token": "t",
            "base_ref": "",
            "run_id": "1",
            "repositoryUrl": "u",
            "actor": {"no": "object"},
        }
    )
    assert variables == {
        "GITHUB_SHA": "abc",
        "GITHUB_REF_PROTECTED": "true",
        "GITHUB_ACTION_REPOSITORY": "",
        "GITHUB_BASE_REF": "",
        "GITHUB_RUN_ID": "1",
    }
    assert {"token", "event", "repositoryUrl", "action_status", "secret_source"}.isdisjoint(EXPORTED_GITHUB)


def test_every_key_of_runner_is_exported() -> None:
    assert runner_variables({"os": "Linux", "debug": "1"}) == {"RUNNER_OS": "Linux", "RUNNER_DEBUG": "1"}
