"""What to know about a job before it runs: steps that will miss a token or secret, secrets that mask badly.

Pure. No value of a secret is in a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.action.native import built_in
from runyard.cli.shapes import PlanNote
from runyard.expression import ExpressionError, references_of, template_references
from runyard.job import ActionStep, RunStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from runyard.job import JobSpec, Step
    from runyard.workflow import JobPlan

SHORT: Final = 4
COMMON: Final = frozenset(
    {
        *("true", "false", "yes", "no", "on", "off", "null", "none", "default", "test", "build", "docker", "debug"),
        *("success", "failure", "cancelled", "skipped", "error", "warning", "main", "master", "latest", "linux"),
        *("ubuntu", "admin", "root", "user", "password", "secret", "token", "localhost", "production", "staging"),
    }
)
"""Words that jobs print anyway: masking them damages a log and hides nothing."""

UNUSUAL_TIMEOUT_S: Final = 6 * 3600


def secret_notes(secrets: Mapping[str, str]) -> list[PlanNote]:
    """Secrets that are too short or too common to mask well (M10, D5)."""
    notes = []
    for name, value in secrets.items():
        text = value.strip()
        if not text:
            continue
        if len(text) < SHORT:
            message = f"the secret {name} has fewer than {SHORT} characters: it is masked wherever they stand"
            notes.append(_note("short_secret", message))
        elif text.lower() in COMMON:
            notes.append(_note("common_secret", f"the secret {name} is a common word: masking it damages the log"))
        lines = [line.strip() for line in text.splitlines()]
        if len(lines) > 1 and any(0 < len(line) < SHORT for line in lines):
            message = f"the secret {name} has lines of fewer than {SHORT} characters; alone they are not masked (D5)"
            notes.append(_note("short_secret", message))
    return notes


def job_notes(
    plan: JobPlan, spec: JobSpec | None, given: Mapping[str, str], *, matrix_empty: bool = False
) -> list[PlanNote]:
    """Notes of one job: `given` are the secrets that reach it, by upper-case name."""
    notes: list[PlanNote] = []
    for step in plan.steps:
        notes += _step_notes(step, given)
    if spec is not None and spec.limits.timeout_s > UNUSUAL_TIMEOUT_S:
        notes.append(_note("unusual_limit", f"timeout-minutes allows {spec.limits.timeout_s // 60} minutes"))
    if matrix_empty:
        notes.append(_note("empty_matrix", "all combinations of the matrix are excluded: it runs once, without matrix"))
    if spec is not None and spec.group is not None:
        notes.append(_note("runner_group", f"runs-on names the group {spec.group!r}: this machine belongs to none"))
    return notes


def _step_notes(step: Step, given: Mapping[str, str]) -> Iterator[PlanNote]:
    missing: dict[str, None] = {}
    token = False
    for path in _paths(step):
        if path[:2] == ("github", "token"):
            token = True
        elif path[0] == "secrets" and len(path) > 1:
            name = path[1].upper()
            if name == "GITHUB_TOKEN":
                token = True
            elif name != "*" and not given.get(name):
                missing[name] = None
    if token and not given.get("GITHUB_TOKEN"):
        message = "it uses the job token, which is empty unless you give one as secret GITHUB_TOKEN"
        yield _note("missing_token", message, step.number)
    for name in missing:
        yield _note("missing_secret", f"it uses the secret {name}, which was not given", step.number)


def _paths(step: Step) -> Iterator[tuple[str, ...]]:
    templates = [step.name, step.env, step.continue_on_error, step.timeout_minutes]
    if isinstance(step, RunStep):
        templates += [step.script, step.shell, step.working_directory]
    else:
        templates.append(step.inputs)
    try:
        yield from references_of(step.condition).paths
        for template in templates:
            yield from (
                (path[0].lower(), *(part.lower() for part in path[1:])) for path in template_references(template).paths
            )
    except ExpressionError:
        return


def needs_remote_action(step: Step, *, native: bool) -> str | None:
    """The reference of an action that must come from elsewhere; None for local and built-in ones."""
    if not isinstance(step, ActionStep) or step.repository is None:
        return None
    if native and built_in(step) is not None:
        return None
    return step.uses


def remote_actions(jobs: Iterable[JobPlan], *, native: bool) -> Iterator[str]:
    """References of every action that must come from elsewhere, in called workflows too."""
    for job in jobs:
        for step in job.steps:
            uses = needs_remote_action(step, native=native)
            if uses is not None:
                yield uses
        if job.call is not None:
            yield from remote_actions(job.call.workflow.jobs, native=native)


def _note(code: str, message: str, step: int | None = None) -> PlanNote:
    return PlanNote(code=code, message=message, step=step)
