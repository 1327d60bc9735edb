"""The `github` context of a local run: every key that GitHub gives before a job starts (job-semantics 7.1).

What belongs to a job (`job`, `workspace`, `event_path`, `action`, the files of commands, `token`) is the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.source.git import NO_COMMIT, server_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Json
    from runyard.source.git import GitFacts


class EventPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event happened: the full ref and commit of the run, and both branches of a pull request.

    `ref` is `refs/pull/N/merge` for a pull request. `base_ref` is also that of a merge group.
    """

    ref: str
    sha: str
    head_ref: str = ""
    base_ref: str = ""
    filter_base: str = ""
    head_message: str = ""


def place_of(event: str, payload: Mapping[str, Json], facts: GitFacts, known: bool) -> EventPlace:
    """Ref and commit of a run (workflow-language 4.2). `known`: git has the commit that the payload calls `after`."""
    sha, ref = facts.sha, facts.ref
    message = facts.commit.message if facts.commit is not None else ""
    match event:
        case "push":
            after = payload.get("after")
            if known and isinstance(after, str) and after != NO_COMMIT:
                sha = after
            commit = payload.get("head_commit")
            if isinstance(commit, dict) and isinstance(commit.get("message"), str):
                message = commit["message"]
            return EventPlace(ref=_text(payload.get("ref")) or ref, sha=sha, head_message=message)
        case "pull_request" | "pull_request_review" | "pull_request_review_comment" | "pull_request_target":
            return _pull_request(event, payload, facts, message)
        case "merge_group":
            group = _part(payload, "merge_group")
            base = _text(group.get("base_ref"))
            return EventPlace(ref=_text(group.get("head_ref")) or ref, sha=sha, filter_base=base, head_message=message)
        case "release":
            tag = _text(_part(payload, "release").get("tag_name"))
            return EventPlace(ref=f"refs/tags/{tag}" if tag else ref, sha=sha, head_message=message)
        case "create":
            name, kind = _text(payload.get("ref")), payload.get("ref_type")
            full = name if name.startswith("refs/") else f"refs/{'tags' if kind == 'tag' else 'heads'}/{name}"
            return EventPlace(ref=full if name else ref, sha=sha, head_message=message)
        case "workflow_dispatch":
            return EventPlace(ref=_full(_text(payload.get("ref"))) or ref, sha=sha, head_message=message)
        case _:
            return EventPlace(ref=ref, sha=sha, head_message=message)


def _pull_request(event: str, payload: Mapping[str, Json], facts: GitFacts, message: str) -> EventPlace:
    pull = _part(payload, "pull_request")
    head, base = _text(_part(pull, "head").get("ref")), _text(_part(pull, "base").get("ref"))
    number = payload.get("number", pull.get("number", 1))
    number = int(number) if isinstance(number, (int, float)) else number
    ref = f"refs/heads/{facts.default_branch}" if event == "pull_request_target" else f"refs/pull/{number}/merge"
    return EventPlace(ref=ref, sha=facts.sha, head_ref=head, base_ref=base, filter_base=base, head_message=message)


def _full(ref: str) -> str:
    return ref if not ref or ref.startswith("refs/") else f"refs/heads/{ref}"


def _part(payload: Mapping[str, Json], key: str) -> dict[str, Json]:
    found = payload.get(key)
    return found if isinstance(found, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def github_context(
    *,
    event: str,
    place: EventPlace,
    payload: Mapping[str, Json],
    facts: GitFacts,
    workflow: str,
    workflow_path: str,
    run_id: str,
) -> dict[str, Json]:
    """The `github` context of one run, without `event` and `token`; ids and numbers are text, as on GitHub."""
    server = server_of(facts.remote_url)
    api = "https://api.github.com" if server == "https://github.com" else f"{server}/api/v3"
    graphql = f"{api}/graphql" if server == "https://github.com" else f"{server}/api/graphql"
    of_payload = _part(payload, "repository")
    repository = _text(of_payload.get("full_name")) or facts.repository
    owner = repository.partition("/")[0]
    sender = _part(payload, "sender")
    actor = _text(sender.get("login")) or facts.actor
    return {
        "ref": place.ref,
        "sha": place.sha,
        "repository": repository,
        "repository_owner": owner,
        "repository_owner_id": _id(_part(of_payload, "owner").get("id")),
        "repositoryUrl": f"git://{server.partition('://')[2]}/{repository}.git",
        "run_id": run_id,
        "run_number": "1",
        "retention_days": "90",
        "run_attempt": "1",
        "artifact_cache_size_limit": "10",
        "repository_visibility": _text(of_payload.get("visibility")) or "private",
        "actor_id": _id(sender.get("id")),
        "repository_id": _id(of_payload.get("id")),
        "actor": actor,
        "triggering_actor": actor,
        "workflow": workflow,
        "head_ref": place.head_ref,
        "base_ref": place.base_ref,
        "event_name": event,
        "server_url": server,
        "api_url": api,
        "graphql_url": graphql,
        "ref_name": _short(place.ref),
        "ref_protected": False,
        "ref_type": "tag" if place.ref.startswith("refs/tags/") else "branch",
        "secret_source": "Actions",
        "workflow_ref": f"{repository}/{workflow_path}@{place.ref}",
        "workflow_sha": place.sha,
    }


def _short(ref: str) -> str:
    for prefix in ("refs/heads/", "refs/tags/", "refs/pull/"):
        if ref.startswith(prefix):
            return ref.removeprefix(prefix)
    return ref


def _id(value: Json) -> str:
    return str(int(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else "0"
