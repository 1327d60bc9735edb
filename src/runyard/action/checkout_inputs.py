"""What a checkout step asks for: the inputs of `actions/checkout` read, and what must not be checked out. Pure."""

from __future__ import annotations

import math
import posixpath
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DECLARED = re.compile(r"(v[2-7](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
"""References whose behaviour this adapter has: majors 2 to 7 agree in their inputs; a commit is taken for one."""

_MAJOR = re.compile(r"v([0-9]+)")
NEWEST: Final = 7
SHA = re.compile(r"[0-9a-fA-F]{40}\Z")
_PULL = re.compile(r"refs/pull/[0-9]+/(?:head|merge)\Z")

LEFT_TO_THE_ORIGINAL: Final = {"ssh-key": "", "lfs": "false"}
"""Inputs with which the original runs, and the value with which it needn't: ssh and git-lfs are the image's own."""

WITHOUT_EFFECT: Final = frozenset({"set-safe-directory", "show-progress", "ssh-user", "ssh-strict", "ssh-known-hosts"})
"""Taken and without effect: no git process of this step sees the workspace, and without a key there is no ssh."""

KNOWN: Final = frozenset(
    {
        *("repository", "ref", "token", "persist-credentials", "path", "clean", "filter", "sparse-checkout"),
        *("sparse-checkout-cone-mode", "fetch-depth", "fetch-tags", "submodules", "github-server-url"),
        *("allow-unsafe-pr-checkout", *LEFT_TO_THE_ORIGINAL, *WITHOUT_EFFECT),
    }
)


class CheckoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkout step asks for.

    `repository` is "" for the run's own; `ref` is "" for the run's own commit there, and for the default branch
    elsewhere; `depth` 0 is the whole history; `sparse` are patterns, none for the whole tree; `server` is an address
    that the repository is on, "" for the run's. No repr: the token is a secret.
    """

    path: str = "."
    repository: str = ""
    ref: str = ""
    depth: int = 1
    tags: bool = False
    clean: bool = True
    filter: str = ""
    sparse: tuple[str, ...] = ()
    cone: bool = True
    submodules: bool = False
    recursive: bool = False
    token: str = ""
    persist: bool = True
    server: str = ""
    allow_unsafe: bool = False

    def __repr__(self) -> str:
        return f"<CheckoutPlan of {self.repository or 'the own repository'} at {self.ref or 'its own ref'}>"

    @property
    def told_ref(self) -> str:
        """The `ref` output for a ref that was given: as it was written, "" for a commit."""
        return "" if SHA.match(self.ref) else self.ref


def declares(path: str, ref: str, inputs: Mapping[str, str | None] | None = None) -> bool:
    """Whether this adapter has the behaviour of that reference, used with these inputs (None: known when it runs)."""
    for name, value in (inputs or {}).items():
        plain = LEFT_TO_THE_ORIGINAL.get(name.lower())
        if plain is not None and (value is None or value.strip().lower() not in {plain, ""}):
            return False
    return not path and _DECLARED.match(ref) is not None


def major_of(ref: str) -> int:
    """The major version behind a reference; a branch or a commit is taken for the newest."""
    found = _MAJOR.match(ref)
    return int(found[1]) if found is not None else NEWEST


def plan_checkout(inputs: Mapping[str, str], repository: str) -> CheckoutPlan:
    """Read the inputs of `with`; `repository` is the run's own. Raises InputError naming every one that can't be."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    refused = [
        f"{name} (the original does)"
        for name, plain in LEFT_TO_THE_ORIGINAL.items()
        if given.get(name, "").lower() not in {plain, ""}
    ]
    refused += [f"{name} (unknown)" for name in sorted(set(given) - KNOWN)]
    if refused:
        raise InputError(
            "the built-in actions/checkout does not do " + ", ".join(refused),
            code="action.checkout",
            remedy="Leave these inputs out, or run the original with --no-native where it is available.",
        )
    other = _repository(given.get("repository", ""))
    submodules = given.get("submodules", "").lower()
    return CheckoutPlan(
        path=_inside(given.get("path", "")),
        repository="" if other.lower() == repository.lower() else other,
        ref=given.get("ref", ""),
        depth=_depth(given.get("fetch-depth", "")),
        tags=_yes(given, "fetch-tags", False),
        clean=_yes(given, "clean", True),
        filter=given.get("filter", ""),
        sparse=tuple(line for each in given.get("sparse-checkout", "").splitlines() if (line := each.strip())),
        cone=_yes(given, "sparse-checkout-cone-mode", True),
        submodules=submodules in {"true", "recursive"},
        recursive=submodules == "recursive",
        token=given.get("token", ""),
        persist=_yes(given, "persist-credentials", True),
        server=given.get("github-server-url", "").rstrip("/"),
        allow_unsafe=_yes(given, "allow-unsafe-pr-checkout", False),
    )


def _yes(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Only true counts as true; left empty, an input is its default."""
    value = given.get(name, "")
    return value.lower() == "true" if value else default


def _repository(wanted: str) -> str:
    if not wanted:
        return ""
    owner, slash, name = wanted.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise InputError(f"Invalid repository '{wanted}'. Expected format {{owner}}/{{repo}}.", code="action.checkout")
    return wanted


def _depth(wanted: str) -> int:
    """As the original reads a number: downwards, and the whole history for what is none or below zero."""
    try:
        found = float(wanted or "1")
    except ValueError:
        return 0
    return max(0, math.floor(found)) if math.isfinite(found) else 0


def _inside(path: str) -> str:
    """The path below the workspace; the original refuses one that leads out."""
    normal = posixpath.normpath(path or ".")
    if normal.startswith(("/", "..")):
        raise InputError(f"path: {path} is not under the workspace", code="action.checkout")
    return normal


# Fork pull requests ---------------------------------------------------------------------------------------------------


def refuse_fork(plan: CheckoutPlan, event_name: str, event: Any, repository: str) -> None:
    """Raises InputError where a workflow with the base's rights asks for the code of a fork's pull request.

    The rule of the original's newer releases: `pull_request_target` and `workflow_run` alone, the default checkout
    never, and only what the payload shows to be the fork's.
    """
    if plan.allow_unsafe or not (plan.repository or plan.ref):
        return
    if event_name == "pull_request_target":
        head, shas = _at(event, "pull_request", "head", "repo"), _shas(event, "head.sha", "merge_commit_sha")
    elif event_name == "workflow_run" and str(_at(event, "workflow_run", "event")).startswith("pull_request"):
        head, shas = _at(event, "workflow_run", "head_repository"), _run_shas(event)
    else:
        return
    base_id, head_id = _at(event, "repository", "id"), _at(head, "id")
    if not isinstance(base_id, int) or not isinstance(head_id, int) or base_id == head_id:
        return
    wanted = plan.repository or repository
    same = wanted.lower() == str(_at(head, "full_name")).lower()
    if same or _PULL.match(plan.ref) or plan.ref.lower() in shas:
        raise InputError(
            f"fork pull request code is not checked out in a '{event_name}' workflow: it would run with the secrets "
            "and the cache of the base repository",
            code="action.fork",
            remedy="allow-unsafe-pr-checkout: true, after a look at what runs then.",
        )


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _shas(event: Any, *paths: str) -> set[str]:
    found = (_at(event, "pull_request", *path.split(".")) for path in paths)
    return {each.lower() for each in found if isinstance(each, str) and each}


def _run_shas(event: Any) -> set[str]:
    run = _at(event, "workflow_run")
    found = [_at(run, "head_commit", "id")]
    if _at(run, "event") != "pull_request_target":
        found.append(_at(run, "head_sha"))
    return {each.lower() for each in found if isinstance(each, str) and each}
