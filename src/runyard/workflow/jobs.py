"""Jobs: from checked templates to JobPlans (workflow-language 2.2, 2.3, 2.5, 6 to 8, 12, 13)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from runyard.job import (
    BooleanToken,
    MappingToken,
    NumberToken,
    SequenceToken,
    Template,
    TextToken,
)
from runyard.workflow.graph import Need, resolve
from runyard.workflow.identifiers import Identifiers
from runyard.workflow.matrices import check_matrix
from runyard.workflow.model import CallSite
from runyard.workflow.permissions import evaluated
from runyard.workflow.plan import ConcurrencyPlan, EnvironmentPlan, JobPlan, StrategyPlan
from runyard.workflow.steps import condition, split_reference, steps
from runyard.workflow.tokens import entries, fields, is_plain, place, present, text_of, texts

if TYPE_CHECKING:
    from runyard.workflow.model import Permissions
    from runyard.workflow.problems import Problems

MAX_GROUP = 400
_GROUP_PREFIXES = ("org", "organization", "ent", "enterprise")
_SNAPSHOT_VERSION = re.compile(r"[0-9]+\.\*\Z")


def jobs(token: Template | None, problems: Problems) -> tuple[tuple[JobPlan, ...], dict[str, CallSite]]:
    """All jobs in file order, and the call sites by job id."""
    identifiers = Identifiers()
    named: dict[str, tuple[TextToken, Template]] = {}
    needs: dict[str, list[Need]] = {}
    for name, value in entries(token):
        fault = identifiers.claim(name.value)
        if fault is not None:
            problems.add(fault, name.at, f"jobs.{name.value}", code="workflow.id")
        named[name.value] = (name, value)
        needs[name.value] = [Need(each.value, each.at) for each in texts(fields(value).get("needs"))]
    if isinstance(token, MappingToken) and not token.entries:
        problems.add("a workflow needs at least one job", token.at, "jobs", code="workflow.missing")
    resolved = resolve(needs, {job: name.at for job, (name, _) in named.items()}, problems)
    plans: list[JobPlan] = []
    calls: dict[str, CallSite] = {}
    for job, (name, value) in named.items():
        plans.append(_job(name, value, resolved[job], problems))
        site = _call_site(fields(value), f"jobs.{job}", problems)
        if site is not None:
            calls[job] = site
    return tuple(plans), calls


def _job(name: TextToken, value: Template, needs: tuple[str, ...], problems: Problems) -> JobPlan:
    parts = fields(value)
    key = f"jobs.{name.value}"
    written = parts.get("if")
    common: dict[str, Any] = {
        "id": name.value,
        "needs": needs,
        "condition": condition(written),
        "condition_written": text_of(written),
        "condition_at": place(written),
        "name": present(parts.get("name")),
        "strategy": _strategy(parts.get("strategy"), key, problems),
        "concurrency": concurrency(parts.get("concurrency"), f"{key}.concurrency", problems),
        "permissions": permissions(parts.get("permissions")),
        "at": name.at,
    }
    if "uses" in parts:
        return JobPlan(**common)
    if "runs-on" in parts or "steps" in parts:
        _check_steps(name, parts, key, problems)
    _check_runs_on(parts.get("runs-on"), f"{key}.runs-on", problems)
    _check_container(parts.get("container"), f"{key}.container", problems)
    for service, container in entries(parts.get("services")):
        _check_container(container, f"{key}.services.{service.value}", problems)
    _check_snapshot(parts.get("snapshot"), f"{key}.snapshot", problems)
    _check_timeout(parts.get("timeout-minutes"), f"{key}.timeout-minutes", problems)
    return JobPlan(
        **common,
        runs_on=present(parts.get("runs-on")),
        environment=_environment(parts.get("environment")),
        timeout_minutes=present(parts.get("timeout-minutes")),
        cancel_timeout_minutes=present(parts.get("cancel-timeout-minutes")),
        continue_on_error=present(parts.get("continue-on-error")),
        env=present(parts.get("env")),
        defaults=defaults(parts.get("defaults")),
        container=present(parts.get("container")),
        services=present(parts.get("services")),
        outputs=present(parts.get("outputs")),
        steps=steps(parts.get("steps"), f"{key}.steps", problems),
    )


def _check_steps(name: TextToken, parts: dict[str, Template], key: str, problems: Problems) -> None:
    written = parts.get("steps")
    if problems.mention(f"{key}.uses") or problems.mention(f"{key}.steps"):
        return
    if written is None or (isinstance(written, SequenceToken) and not written.items):
        problems.add(
            f"job '{name.value}' has no steps and calls no workflow",
            name.at,
            key,
            code="workflow.steps",
        )


def permissions(token: Template | None) -> Permissions | None:
    """Evaluated permissions, or None where nothing was written."""
    return None if token is None else evaluated(token)


def defaults(token: Template | None) -> Template | None:
    """What stands below `defaults.run`."""
    return present(fields(token).get("run"))


def concurrency(
    token: Template | None, key: str, problems: Problems, *, workflow_level: bool = False
) -> ConcurrencyPlan | None:
    """A concurrency group in either form, checked as far as it is plain."""
    token = present(token)
    if token is None:
        return None
    if not isinstance(token, MappingToken):
        _check_group(token, key, problems, workflow_level=workflow_level)
        return ConcurrencyPlan(group=token, at=token.at)
    parts = fields(token)
    group = parts.get("group")
    if group is None:
        return ConcurrencyPlan(group=token, at=token.at)
    _check_group(group, f"{key}.group", problems, workflow_level=False)
    cancel = present(parts.get("cancel-in-progress"))
    queue: Literal["single", "max"] = "max" if text_of(parts.get("queue")) == "max" else "single"
    if queue == "max" and isinstance(cancel, BooleanToken) and cancel.value:
        problems.add("'queue: max' can't stand with 'cancel-in-progress: true'", place(parts["queue"]), f"{key}.queue")
    return ConcurrencyPlan(group=group, cancel_in_progress=cancel, queue=queue, at=token.at)


def _check_group(token: Template, key: str, problems: Problems, *, workflow_level: bool) -> None:
    if not isinstance(token, TextToken):
        return
    if not token.value and workflow_level:
        problems.add("Concurrency group name cannot be empty", token.at, key)
    if len(token.value) > MAX_GROUP:
        problems.add(f"Concurrency group name must be less than {MAX_GROUP} characters", token.at, key)


def _strategy(token: Template | None, key: str, problems: Problems) -> StrategyPlan | None:
    token = present(token)
    if token is None:
        return None
    if not is_plain(token):
        return StrategyPlan(whole=token, at=token.at)
    parts = fields(token)
    matrix = present(parts.get("matrix"))
    if matrix is not None:
        check_matrix(matrix, f"{key}.strategy.matrix", problems)
    return StrategyPlan(
        matrix=matrix,
        fail_fast=present(parts.get("fail-fast")),
        max_parallel=present(parts.get("max-parallel")),
        at=token.at,
    )


def _environment(token: Template | None) -> EnvironmentPlan | None:
    token = present(token)
    if token is None:
        return None
    parts = fields(token)
    if not isinstance(token, MappingToken) or "name" not in parts:
        return EnvironmentPlan(name=token)
    return EnvironmentPlan(
        name=parts["name"], url=present(parts.get("url")), deployment=present(parts.get("deployment"))
    )


def _check_runs_on(token: Template | None, key: str, problems: Problems) -> None:
    """A runner group may name its owner's kind, and only one (workflow-language 12)."""
    group = fields(token).get("group")
    if not isinstance(group, TextToken) or "/" not in group.value:
        return
    prefix, _, name = group.value.partition("/")
    if prefix.lower() not in _GROUP_PREFIXES or not name or "/" in name:
        problems.add(
            f"Invalid runs-on group name '{group.value}'; 'organization/NAME' or 'enterprise/NAME' target one group",
            group.at,
            f"{key}.group",
        )


def _check_container(token: Template | None, key: str, problems: Problems) -> None:
    if isinstance(token, MappingToken) and is_plain(token) and "image" not in fields(token):
        problems.add("Container image cannot be empty", token.at, key, code="workflow.missing")


def _check_snapshot(token: Template | None, key: str, problems: Problems) -> None:
    if present(token) is None:
        return
    version = fields(token).get("version")
    if isinstance(version, TextToken) and _SNAPSHOT_VERSION.match(version.value) is None:
        problems.add(f"'{version.value}' is no version of a snapshot; 'N.*' is", version.at, f"{key}.version")
    problems.add(
        "snapshots of a runner are valid on GitHub and not supported by Runyard",
        place(token),
        key,
        severity="warning",
        code="unsupported.snapshot",
    )


def _check_timeout(token: Template | None, key: str, problems: Problems) -> None:
    if isinstance(token, NumberToken) and token.value <= 0:
        problems.add(
            "a job's time limit must be positive; GitHub takes the file, Runyard fails the job when it is planned",
            token.at,
            key,
            severity="warning",
            code="lint.timeout",
        )


def _call_site(parts: dict[str, Template], key: str, problems: Problems) -> CallSite | None:
    uses = parts.get("uses")
    if not isinstance(uses, TextToken):
        return None
    if not uses.value.startswith("./") and split_reference(uses.value) is None:
        problems.add(
            f"Expected format {{org}}/{{repo}}/.github/workflows/{{file}}@ref or ./.github/workflows/{{file}}. Actual "
            f"'{uses.value}'",
            uses.at,
            f"{key}.uses",
            code="workflow.uses",
        )
    secrets = parts.get("secrets")
    inherit = isinstance(secrets, TextToken)
    return CallSite(
        uses=uses.value,
        uses_at=uses.at,
        inputs=present(parts.get("with")),
        secrets=None if inherit else present(secrets),
        inherit=inherit,
    )
