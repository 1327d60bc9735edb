"""Payloads, the github context, changed files, and claims of a local run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runyard.job import Environment, InputError, JobSpec, RunContext
from runyard.source import (
    EnvironmentValues,
    GitFacts,
    LocalSource,
    Snapshot,
    changed_files,
    github_context,
    known_events,
    make_payload,
    merge,
    place_of,
    read_facts,
)
from runyard.source.git import NO_COMMIT
from source.repositories import commit, git, make_repository

if TYPE_CHECKING:
    from pathlib import Path

SERVER = "https://github.com"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = make_repository(tmp_path / "app", {"a": "1\n"})
    git(made, "remote", "add", "origin", "https://github.com/acme/app.git")
    commit(made, {"b": "2\n"}, "Add b")
    return made


@pytest.fixture
def facts(repository: Path) -> GitFacts:
    return read_facts(str(repository))


def context_for(event: str, facts: GitFacts, given: dict[str, Any] | None = None) -> dict[str, Any]:
    payload = make_payload(event, facts, SERVER, given=given)
    place = place_of(event, payload, facts, known=False)
    return github_context(
        event=event,
        place=place,
        payload=payload,
        facts=facts,
        workflow="CI",
        workflow_path=".github/workflows/ci.yml",
        run_id="12",
    )


def test_push(facts: GitFacts) -> None:
    payload = make_payload("push", facts, SERVER)
    assert facts.commit is not None
    assert payload["ref"] == "refs/heads/main"
    assert (payload["after"], payload["before"]) == (facts.sha, facts.commit.parents[0])
    assert payload["head_commit"]["message"] == "Add b"
    assert payload["head_commit"]["tree_id"] == facts.commit.tree
    assert payload["repository"]["full_name"] == "acme/app"
    assert payload["repository"]["owner"]["login"] == "acme"
    assert payload["repository"]["default_branch"] == "main"
    assert payload["sender"]["login"] == facts.actor
    context = context_for("push", facts)
    assert context["ref"] == "refs/heads/main"
    assert (context["ref_name"], context["ref_type"]) == ("main", "branch")
    assert context["sha"] == facts.sha
    assert (context["head_ref"], context["base_ref"]) == ("", "")
    assert context["workflow_ref"] == "acme/app/.github/workflows/ci.yml@refs/heads/main"


def test_the_context_has_every_key_that_becomes_a_variable(facts: GitFacts) -> None:
    keys = {
        *("actor", "actor_id", "api_url", "base_ref", "event_name", "graphql_url", "head_ref", "ref", "ref_name"),
        *("ref_protected", "ref_type", "repository", "repository_id", "repository_owner", "repository_owner_id"),
        *("retention_days", "run_attempt", "run_id", "run_number", "server_url", "sha", "triggering_actor", "workflow"),
        *("workflow_ref", "workflow_sha", "repositoryUrl", "secret_source"),
    }
    context = context_for("push", facts)
    assert keys <= set(context)
    assert all(isinstance(context[key], str) for key in keys if key != "ref_protected")
    assert "token" not in context
    assert "event" not in context


def test_an_event_file_wins_part_by_part(facts: GitFacts) -> None:
    given = {
        "ref": "refs/heads/dev",
        "repository": {"full_name": "x/y", "id": 7.0, "owner": {"id": 8}},
        "head_commit": {"message": "other"},
        "sender": {"login": "octocat", "id": 5},
    }
    payload = make_payload("push", facts, SERVER, given=given)
    assert payload["head_commit"]["message"] == "other"
    assert payload["head_commit"]["id"] == facts.sha
    assert place_of("push", payload, facts, known=False).head_message == "other"
    context = context_for("push", facts, given)
    assert context["ref"] == "refs/heads/dev"
    assert (context["repository"], context["repository_owner"]) == ("x/y", "x")
    assert (context["repository_id"], context["repository_owner_id"]) == ("7", "8")
    assert (context["actor"], context["actor_id"]) == ("octocat", "5")
    assert merge({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


def test_pull_request(facts: GitFacts) -> None:
    given = {"number": 5, "pull_request": {"head": {"ref": "feature"}, "base": {"ref": "release"}}}
    context = context_for("pull_request", facts, given)
    assert (context["ref"], context["ref_name"]) == ("refs/pull/5/merge", "5/merge")
    assert (context["head_ref"], context["base_ref"]) == ("feature", "release")
    assert context_for("pull_request_target", facts, given)["ref"] == "refs/heads/main"
    payload = make_payload("pull_request", facts, SERVER)
    assert payload["action"] == "synchronize"
    assert payload["pull_request"]["title"] == "Add b"
    assert payload["pull_request"]["base"]["ref"] == "main"


def test_release_dispatch_schedule_and_others(facts: GitFacts) -> None:
    tag = context_for("release", facts, {"release": {"tag_name": "v2"}})
    assert (tag["ref"], tag["ref_type"], tag["ref_name"]) == ("refs/tags/v2", "tag", "v2")
    payload = make_payload("workflow_dispatch", facts, SERVER, inputs={"dry": "false"})
    assert payload["inputs"] == {"dry": "false"}
    assert context_for("workflow_dispatch", facts, {"ref": "dev"})["ref"] == "refs/heads/dev"
    sent = make_payload("repository_dispatch", facts, SERVER, given={"action": "go", "client_payload": {"a": 1}})
    assert (sent["action"], sent["client_payload"]) == ("go", {"a": 1})
    assert make_payload("schedule", facts, SERVER, given={"schedule": "0 0 * * *"})["schedule"] == "0 0 * * *"
    queue = context_for("merge_group", facts)
    assert queue["ref"].startswith("refs/heads/gh-readonly-queue/main/")
    for event in known_events():
        made = make_payload(event, facts, SERVER)
        assert made["repository"]["full_name"] == "acme/app"
        assert place_of(event, made, facts, known=False).sha == facts.sha


def test_an_unknown_event_names_the_nearest(facts: GitFacts) -> None:
    with pytest.raises(InputError, match="did you mean 'pull_request'"):
        make_payload("pullrequest", facts, SERVER)


def test_changed_files_of_a_push(repository: Path, facts: GitFacts) -> None:
    payload = make_payload("push", facts, SERVER)
    assert changed_files("push", payload, facts, with_working_tree=False) == ("b",)
    (repository / "a").write_text("edited")
    (repository / "new").write_text("new")
    assert changed_files("push", payload, facts, with_working_tree=True) == ("b", "a", "new")
    assert changed_files("push", {**payload, "before": NO_COMMIT}, facts, with_working_tree=False) == ("b",)
    listed = {"commits": [{"added": ["x"], "removed": [], "modified": ["y"]}, {"added": ["x"]}]}
    assert changed_files("push", listed, facts, with_working_tree=True) == ("x", "y")


def test_changed_files_of_the_first_commit(tmp_path: Path) -> None:
    facts = read_facts(str(make_repository(tmp_path, {"a": "1", "d/b": "2"})))
    assert changed_files("push", make_payload("push", facts, SERVER), facts, with_working_tree=False) == ("a", "d/b")


def test_changed_files_of_a_pull_request_start_where_the_branches_part(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "feature")
    commit(repository, {"f": "f"}, "On feature")
    git(repository, "checkout", "-q", "main")
    commit(repository, {"m": "m"}, "On main")
    git(repository, "checkout", "-q", "feature")
    facts = read_facts(str(repository))
    payload = make_payload("pull_request", facts, SERVER)
    assert changed_files("pull_request", payload, facts, with_working_tree=False) == ("f",)
    unknown = {"pull_request": {"base": {"ref": "gone", "sha": "1" * 40}}}
    assert changed_files("pull_request", unknown, facts, with_working_tree=False) is None
    assert changed_files("issues", {}, facts, with_working_tree=False) is None


def spec(environment: str | None = None) -> JobSpec:
    return JobSpec(
        id="i",
        run_id="12",
        key="t",
        job="t",
        name="t",
        steps=(),
        environment=None if environment is None else Environment(environment),
    )


def test_a_claim_has_the_secrets_of_its_environment() -> None:
    context = RunContext(github={"repository": "acme/app"}, vars={"Region": "eu", "KEEP": "1"})
    source = LocalSource(
        context,
        Snapshot("c" * 40, "t" * 40, "/git", True),
        environments={"Prod": EnvironmentValues({"key": "inner"}, {"REGION": "us"})},
        token="tok",
    )
    plain = source.claim(spec(), {"KEY": "outer"})
    assert plain.secrets == {"KEY": "outer", "GITHUB_TOKEN": "tok"}
    assert plain.context.vars == {"Region": "eu", "KEEP": "1"}
    assert plain.checkout is not None
    assert (plain.checkout.commit, plain.checkout.git_dir) == ("c" * 40, "/git")
    inner = source.claim(spec("prod"), {"KEY": "outer"})
    assert inner.secrets["KEY"] == "inner"
    assert inner.context.vars == {"KEEP": "1", "REGION": "us"}
    assert source.claim(spec("unknown"), {"KEY": "outer"}).secrets["KEY"] == "outer"
    assert plain.lease_id != inner.lease_id
    assert "inner" not in repr(inner) + repr(EnvironmentValues({"key": "inner"}))


def test_step_debugging_is_asked_for_by_a_secret_or_variable() -> None:
    source = LocalSource(RunContext(github={}), None)
    assert source.claim(spec(), {"ACTIONS_STEP_DEBUG": "true"}).debug
    assert not source.claim(spec(), {}).debug
    assert LocalSource(RunContext(github={}, vars={"ACTIONS_STEP_DEBUG": "True"}), None).claim(spec(), {}).debug
