"""The webhook payload of an event that happens on this machine: what GitHub would have sent, made from git.

Synthesised values are replaced, part by part, by those of `--event-file`. Shapes follow GitHub's webhook documentation;
what git can't know (numeric ids, users other than the actor) is left out rather than invented, except where workflows
commonly read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.job import InputError, Json
from runyard.source.git import NO_COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runyard.source.git import Commit, GitFacts

INPUT_LIMIT: Final = 65_535
"""Characters of a dispatch payload (workflow-language 5.1, 4.2)."""

_DEFAULT_ACTIONS: Final = {
    "branch_protection_rule": "created",
    "check_run": "completed",
    "check_suite": "completed",
    "discussion": "created",
    "discussion_comment": "created",
    "image_version": "created",
    "issue_comment": "created",
    "issues": "opened",
    "label": "created",
    "merge_group": "checks_requested",
    "milestone": "created",
    "project": "created",
    "project_card": "created",
    "project_column": "created",
    "pull_request": "synchronize",
    "pull_request_review": "submitted",
    "pull_request_review_comment": "created",
    "pull_request_target": "synchronize",
    "registry_package": "published",
    "release": "published",
    "watch": "started",
    "workflow_run": "completed",
}
_EVENTS_WITHOUT_ACTION: Final = (
    *("create", "delete", "deployment", "deployment_status", "fork", "gollum", "page_build", "public", "push"),
    *("pull_request_comment", "repository_dispatch", "schedule", "status", "workflow_dispatch"),
)


def known_events() -> tuple[str, ...]:
    """The events that may start a run."""
    return tuple(sorted((*_DEFAULT_ACTIONS, *_EVENTS_WITHOUT_ACTION)))


def make_payload(
    event: str,
    facts: GitFacts,
    server: str,
    *,
    given: Mapping[str, Json] | None = None,
    inputs: Mapping[str, str] | None = None,
    before: str | None = None,
) -> dict[str, Json]:
    """The payload of `event` at the facts' commit, with `given` over it.

    `inputs` are those of a workflow_dispatch; `before` is the commit a push started from. Raises InputError for an
    unknown event, with the nearest.
    """
    if event not in _DEFAULT_ACTIONS and event not in _EVENTS_WITHOUT_ACTION:
        import difflib

        near = difflib.get_close_matches(event, known_events(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known_events())}"
        raise InputError(f"there is no event {event!r}; {hint}", code="source.unknown_event")
    payload: dict[str, Json] = {}
    if event in _DEFAULT_ACTIONS:
        payload["action"] = _DEFAULT_ACTIONS[event]
    maker = _MAKERS.get(event)
    if maker is not None:
        payload |= maker(facts, server)
    if event == "push" and before is not None:
        payload |= {"before": before, "created": before == NO_COMMIT}
    if event == "workflow_dispatch":
        payload["inputs"] = dict(inputs or {})
    payload["repository"] = repository(facts, server)
    payload["sender"] = _account(facts.actor)
    merged = merge(payload, given or {})
    assert isinstance(merged, dict)
    return merged


def merge(base: Json, over: Json) -> Json:
    """`over` laid upon `base`: mappings key by key, anything else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merge(base[key], value) if key in base else value for key, value in over.items()}}
    return over


def repository(facts: GitFacts, server: str) -> dict[str, Json]:
    """The `repository` part of every payload."""
    owner, _, name = facts.repository.partition("/")
    url = f"{server}/{facts.repository}"
    return {
        "name": name,
        "full_name": facts.repository,
        "private": True,
        "owner": {**_account(owner), "name": owner},
        "html_url": url,
        "clone_url": f"{url}.git",
        "url": url,
        "fork": False,
        "default_branch": facts.default_branch,
        "master_branch": facts.default_branch,
        "visibility": "private",
    }


def _account(login: str) -> dict[str, Json]:
    return {"login": login, "type": "User", "site_admin": False}


def _commit(commit: Commit, facts: GitFacts, server: str) -> dict[str, Json]:
    return {
        "id": commit.sha,
        "tree_id": commit.tree,
        "distinct": True,
        "message": commit.message,
        "timestamp": commit.committed,
        "url": f"{server}/{facts.repository}/commit/{commit.sha}",
        "author": {"name": commit.author_name, "email": commit.author_email, "username": facts.actor},
        "committer": {"name": commit.committer_name, "email": commit.committer_email, "username": facts.actor},
    }


def _push(facts: GitFacts, server: str) -> dict[str, Json]:
    commit = None if facts.commit is None else _commit(facts.commit, facts, server)
    before = facts.commit.parents[0] if facts.commit is not None and facts.commit.parents else NO_COMMIT
    return {
        "ref": facts.ref,
        "before": before,
        "after": facts.sha,
        "created": before == NO_COMMIT,
        "deleted": False,
        "forced": False,
        "base_ref": None,
        "compare": f"{server}/{facts.repository}/compare/{before[:12]}...{facts.sha[:12]}",
        "commits": [] if commit is None else [commit],
        "head_commit": commit,
        "pusher": {"name": facts.actor, "email": facts.commit.committer_email if facts.commit else ""},
    }


def _side(facts: GitFacts, server: str, ref: str, sha: str) -> dict[str, Json]:
    owner = facts.repository.partition("/")[0]
    return {
        "label": f"{owner}:{ref}",
        "ref": ref,
        "sha": sha,
        "user": _account(owner),
        "repo": repository(facts, server),
    }


def _pull_request(facts: GitFacts, server: str) -> dict[str, Json]:
    head = facts.ref.removeprefix("refs/heads/")
    title = facts.commit.message.partition("\n")[0] if facts.commit is not None else head
    before = facts.commit.parents[0] if facts.commit is not None and facts.commit.parents else NO_COMMIT
    return {
        "number": 1,
        "before": before,
        "after": facts.sha,
        "pull_request": {
            "number": 1,
            "state": "open",
            "title": title,
            "body": None,
            "draft": False,
            "merged": False,
            "mergeable": True,
            "locked": False,
            "labels": [],
            "assignees": [],
            "requested_reviewers": [],
            "user": _account(facts.actor),
            "html_url": f"{server}/{facts.repository}/pull/1",
            "author_association": "OWNER",
            "merge_commit_sha": facts.sha,
            "head": _side(facts, server, head, facts.sha),
            "base": _side(facts, server, facts.default_branch, before),
        },
    }


def _release(facts: GitFacts, _server: str) -> dict[str, Json]:
    tag = facts.ref.removeprefix("refs/tags/") if facts.ref.startswith("refs/tags/") else "v0.0.0"
    return {
        "release": {
            "tag_name": tag,
            "name": tag,
            "target_commitish": facts.default_branch,
            "body": "",
            "draft": False,
            "prerelease": False,
            "author": _account(facts.actor),
        }
    }


def _issue(facts: GitFacts, _server: str) -> dict[str, Json]:
    user = _account(facts.actor)
    return {
        "issue": {"number": 1, "title": "", "body": "", "state": "open", "labels": [], "user": user},
    }


def _comment(facts: GitFacts, server: str) -> dict[str, Json]:
    return {**_issue(facts, server), "comment": {"id": 1, "body": "", "user": _account(facts.actor)}}


def _merge_group(facts: GitFacts, _server: str) -> dict[str, Json]:
    base = facts.default_branch
    return {
        "merge_group": {
            "head_sha": facts.sha,
            "head_ref": f"refs/heads/gh-readonly-queue/{base}/pr-1-{facts.sha}",
            "base_sha": facts.commit.parents[0] if facts.commit is not None and facts.commit.parents else NO_COMMIT,
            "base_ref": f"refs/heads/{base}",
        }
    }


def _workflow_run(facts: GitFacts, _server: str) -> dict[str, Json]:
    branch = facts.ref.removeprefix("refs/heads/")
    return {
        "workflow_run": {
            "id": 1,
            "name": "",
            "head_branch": branch,
            "head_sha": facts.sha,
            "event": "push",
            "status": "completed",
            "conclusion": "success",
            "run_number": 1,
            "run_attempt": 1,
        }
    }


def _schedule(_facts: GitFacts, _server: str) -> dict[str, Json]:
    return {"schedule": ""}


def _dispatch(facts: GitFacts, _server: str) -> dict[str, Json]:
    return {"ref": facts.ref}


def _repository_dispatch(facts: GitFacts, _server: str) -> dict[str, Json]:
    return {"action": "", "branch": facts.default_branch, "client_payload": {}}


def _made_ref(facts: GitFacts, _server: str) -> dict[str, Json]:
    kind = "tag" if facts.ref.startswith("refs/tags/") else "branch"
    name = facts.ref.removeprefix("refs/tags/").removeprefix("refs/heads/")
    return {"ref": name, "ref_type": kind, "master_branch": facts.default_branch, "pusher_type": "user"}


_MAKERS: Final[dict[str, Callable[[GitFacts, str], dict[str, Json]]]] = {
    "create": _made_ref,
    "delete": _made_ref,
    "issue_comment": _comment,
    "issues": _issue,
    "merge_group": _merge_group,
    "pull_request": _pull_request,
    "pull_request_review": _pull_request,
    "pull_request_review_comment": _pull_request,
    "pull_request_target": _pull_request,
    "push": _push,
    "release": _release,
    "repository_dispatch": _repository_dispatch,
    "schedule": _schedule,
    "workflow_dispatch": _dispatch,
    "workflow_run": _workflow_run,
}
