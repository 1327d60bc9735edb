"""Reusable workflows: the files a workflow calls, and those they call in turn (workflow-language 11).

Each file is read once, whatever calls it. Loops, depth, the number of files and the number of jobs are bounded before
anything is built, so that a few files that call each other can't make a plan without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from runyard.workflow.inputs import check_call
from runyard.workflow.permissions import default_permissions, wider
from runyard.workflow.plan import CalledPlan, CallPlan, JobPlan
from runyard.workflow.problems import Problems, TooManyProblemsError
from runyard.workflow.reading import read_workflow
from runyard.workflow.steps import split_reference
from runyard.workflow.tokens import text_of

if TYPE_CHECKING:
    from runyard.workflow.model import CallSite, Permissions, PermissionsPolicy, Reading, Workflow
    from runyard.workflow.problems import Problem

_FOLDER = ".github/workflows/"


class Loader(Protocol):
    """Brings the bytes of a called workflow; None where there is no such file."""

    def __call__(self, uses: str, /) -> bytes | None:
        """The file's bytes.

        `uses` is as written: `./.github/workflows/x.yml` for a file of the same commit, else
        `owner/repo/.github/workflows/x.yml@ref`; a local call inside a remote file arrives in the latter form.
        """
        ...


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of calling: levels below the top file, files called, and jobs in all (workflow-language 16)."""

    depth: int = 9
    files: int = 50
    jobs: int = 5_000


class _Found(NamedTuple):
    """A called file: what it reads as, its plan, its levels below, its jobs in all."""

    workflow: Workflow
    plan: CalledPlan
    height: int
    jobs: int


class Calls:
    """Resolves the calls of one top file.

    `files` is the file table, index 1 first; `problems` collects; `warnings` are those of the called files. Without
    `remote`, files of other repositories are left alone.
    """

    def __init__(self, problems: Problems, loader: Loader | None, limits: CallLimits, *, remote: bool = True) -> None:
        self.remote = remote
        self.problems = problems
        self.loader = loader
        self.limits = limits
        self.files: list[str] = []
        self.warnings: list[Problem] = []
        self._found: dict[str, _Found | None] = {}
        self._stack: list[str] = []
        self._judged: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        self._faults: dict[str, Problems] = {}

    def jobs(self, workflow: Workflow, policy: PermissionsPolicy) -> tuple[JobPlan, ...]:
        """The jobs of the top file with their calls filled in."""
        self.files.append(workflow.path)
        self._faults[workflow.path] = self.problems
        try:
            plans, _, total = self._filled(workflow, "", self.problems)
            if total > self.limits.jobs:
                self.problems.add(
                    f"The workflow may not contain more than {self.limits.jobs} jobs across all referenced files, and "
                    f"has {total}",
                    None,
                    "jobs",
                    code="workflow.limit",
                )
            if not self.problems.refused:
                self._judge(workflow, "", default_permissions(policy))
        except TooManyProblemsError:
            return ()
        return plans

    def faults(self, *, unread: bool) -> list[Problem]:
        """Problems of the called files; those of files that can't be read (each call says so too) only on request."""
        return [
            problem
            for name, faults in self._faults.items()
            if faults is not self.problems and (unread or self._found.get(name, _READ) is not None)
            for problem in faults.all()
        ]

    def _filled(self, workflow: Workflow, base: str, problems: Problems) -> tuple[tuple[JobPlan, ...], int, int]:
        """Jobs with calls, the levels below, and the number of jobs in all. `base` is the file's repository@ref."""
        plans: list[JobPlan] = []
        height = 0
        total = len(workflow.jobs)
        for job in workflow.jobs:
            site = workflow.calls.get(job.id)
            found = None if site is None else self._call(site, f"jobs.{job.id}", base, problems)
            if site is None or found is None:
                plans.append(job)
                continue
            call = CallPlan(
                uses=site.uses, workflow=found.plan, inputs=site.inputs, secrets=site.secrets, inherit=site.inherit
            )
            plans.append(msgspec.structs.replace(job, call=call))
            height = max(height, found.height + 1)
            total += found.jobs
        return tuple(plans), height, total

    def _call(self, site: CallSite, key: str, base: str, problems: Problems) -> _Found | None:
        """The called file, checked against the call; None where it can't be used."""

        def fault(message: str) -> None:
            problems.add(message, site.uses_at, f"{key}.uses", code="workflow.call")

        target = _target(site.uses, base)
        if not self.remote and not target.startswith("./"):
            return None
        way = [f"./{self.files[0]}", *self._stack]
        if target in way:
            fault(f"'{site.uses}' calls itself: {' calls '.join([*way[way.index(target) :], target])}")
            return None
        if len(self._stack) >= self.limits.depth:
            fault(f"Nested reusable workflow depth exceeded {self.limits.depth + 1}")
            return None
        if target not in self._found:
            self._found[target] = self._load(target, fault)
        found = self._found[target]
        if found is None:
            if target in self._faults:
                fault(f"the called workflow '{site.uses}' is invalid: {self._faults[target].all()[0]}")
            return None
        if len(self._stack) + found.height + 1 > self.limits.depth:
            fault(f"Nested reusable workflow depth exceeded {self.limits.depth + 1}")
            return None
        if found.workflow.call is None:
            fault("workflow_call key is not defined in the referenced workflow")
            return None
        check_call(site, found.workflow.call, key, problems)
        return found

    def _load(self, target: str, fault: _Fault) -> _Found | None:
        data = self.loader(target) if self.loader is not None else None
        if data is None:
            fault(f"Unable to find reusable workflow '{target}'")
            return None
        if len(self._found) >= self.limits.files:
            fault(f"more than {self.limits.files} reusable workflows are called")
            return None
        repository, path, ref = _parts(target)
        label = path if not repository else target
        self.files.append(label)
        faults = Problems(label)
        reading: Reading = read_workflow(data, path=label, file=len(self.files))
        if reading.workflow is None:
            faults.extend(problem for problem in reading.problems if problem.severity == "error")
            self._faults[target] = faults
            return None
        self._faults[label] = faults
        workflow = reading.workflow
        self.warnings.extend(workflow.warnings)
        self._stack.append(target)
        jobs, height, total = self._filled(workflow, f"{repository}@{ref}" if repository else "", faults)
        self._stack.pop()
        signature = workflow.call
        plan = CalledPlan(
            path=path,
            repository=repository,
            ref=ref,
            name=workflow.name,
            inputs=signature.inputs if signature else (),
            secrets=signature.secrets if signature else (),
            outputs=signature.outputs if signature else None,
            env=workflow.env,
            defaults=workflow.defaults,
            concurrency=workflow.concurrency,
            permissions=workflow.permissions,
            jobs=jobs,
        )
        return _Found(workflow, plan, height, total)

    # --- permissions -----------------------------------------------------------------------------------------------

    def _judge(self, workflow: Workflow, base: str, inherited: Permissions) -> None:
        """Called jobs may keep or lower the rights of the job that calls (workflow-language 9)."""
        problems = self._faults[workflow.path]
        level = workflow.permissions if workflow.permissions is not None else inherited
        for job in workflow.jobs:
            site = workflow.calls.get(job.id)
            target = _target(site.uses, base) if site is not None else ""
            found = self._found.get(target)
            if site is None or found is None:
                continue
            allowed = job.permissions if job.permissions is not None else level
            for request in _requests(found.workflow, target):
                beyond = wider(request.permissions, allowed)
                if beyond:
                    wanted = ", ".join(f"{key}: {request.permissions[key]}" for key in beyond)
                    given = ", ".join(f"{key}: {allowed[key]}" for key in beyond)
                    problems.add(
                        f"Error calling workflow '{site.uses}'. {request.who} is requesting '{wanted}', but is only "
                        f"allowed '{given}'",
                        job.at,
                        f"jobs.{job.id}",
                        code="workflow.permissions",
                    )
            judged = (target, tuple(sorted(allowed.items())))
            if judged not in self._judged:
                self._judged.add(judged)
                repository, _, ref = _parts(target)
                self._judge(found.workflow, f"{repository}@{ref}" if repository else "", allowed)


_READ = object()


class _Fault(Protocol):
    def __call__(self, message: str) -> None: ...


class _Request(NamedTuple):
    who: str
    permissions: Permissions


def _requests(workflow: Workflow, target: str) -> list[_Request]:
    """What a called file asks for: at its top for the jobs that say nothing, and at each job that does."""
    requests: list[_Request] = []
    if workflow.permissions is not None and any(job.permissions is None for job in workflow.jobs):
        requests.append(_Request(f"The workflow '{target}'", workflow.permissions))
    requests.extend(
        _Request(f"The nested job '{text_of(job.name) or job.id}'", job.permissions)
        for job in workflow.jobs
        if job.permissions is not None
    )
    return requests


def _target(uses: str, base: str) -> str:
    """The file a call means; a local call inside a remote file means that file's repository and ref."""
    if uses.startswith("./") and base:
        repository, _, ref = base.partition("@")
        return f"{repository}/{uses.removeprefix('./')}@{ref}"
    return uses


def _parts(target: str) -> tuple[str, str, str]:
    """Repository, path and ref; the first and the last are empty for a file of the same commit."""
    if target.startswith("./"):
        return "", target.removeprefix("./"), ""
    return split_reference(target) or ("", target, "")
