"""From a job as written to its legs: strategy, and per combination everything that `run` evaluates before it starts.

Workflow-language 6 and 12, job-semantics 3.4. What can't be evaluated ends that leg alone, with a message and a place.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import Environment, JobSpec, Json, Limits, NeedResult, Position, RunContext, Strategy, TextToken
from runyard.run.calls import call_inputs, call_secrets
from runyard.run.concurrency import GROUP_LENGTH_LIMIT
from runyard.run.evaluate import UnevaluableError, boolean, number, text, written
from runyard.run.matrix import Combination, IdBuilder, MatrixError, display_name, expand, leaf_texts
from runyard.run.state import GroupRequest, LegState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.job import Template
    from runyard.run.state import NodeState
    from runyard.run.work import Work
    from runyard.workflow.plan import CalledPlan, ConcurrencyPlan, JobPlan, PipelineJob

DEFAULT_TIMEOUT_MINUTES: Final = 360
_JOB_IDS = uuid.UUID("5a0f3f5b-6f0e-4c59-9d63-6c1d6f0c4e21")
_GROUP_PREFIXES = frozenset({"org", "organization", "ent", "enterprise"})
_SHOWN_MATRIX = 200


class Broken(msgspec.Struct, frozen=True):
    """A leg that can't be planned: its key and name so far, and what is wrong where."""

    key: str
    name: str
    matrix: Json
    message: str
    code: str
    at: Position | None = None


class Opened(msgspec.Struct, frozen=True):
    """What became of a node: its legs in order (planned or broken), and the strategy they share."""

    legs: tuple[tuple[str, LegState] | Broken, ...]
    fail_fast: bool
    max_parallel: int
    left_out: int = 0


class _NotPlannedError(Exception):
    """A rule of Runyard forbids the job; `code` is its reason code."""

    def __init__(self, message: str, at: Position | None = None, code: str = "invalid_job") -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.code = code


def plain_name(job: JobPlan) -> str:
    """The name of a job that is not expanded, as written: expressions stay in their braces."""
    return (written(job.name) if job.name is not None else "") or job.id


def open_node(work: Work, key: str, node: NodeState) -> Opened:
    """All legs of a node whose condition held. UnevaluableError and MatrixError say that the strategy is wrong."""
    job = work.job_of(node)
    contexts = work.node_contexts(node)
    combinations: Sequence[Combination | None] = (None,)
    fail_fast, given_parallel = True, None
    plan = job.strategy
    if plan is not None:
        if plan.fail_fast is not None:
            fail_fast = boolean(work.evaluator.value(plan.fail_fast, contexts), plan.fail_fast)
        if plan.max_parallel is not None:
            given_parallel = number(work.evaluator.value(plan.max_parallel, contexts), plan.max_parallel)
        if plan.matrix is not None:
            matrix = work.evaluator.value(plan.matrix, contexts)
            try:
                combinations = expand(matrix, work.evaluator.equal) or (None,)
            except MatrixError as error:
                raise MatrixError(f"the matrix of job '{job.id}': {error}, and it is {_shown(matrix)}") from error
    total = len(combinations)
    parallel = int(given_parallel) if given_parallel is not None and given_parallel >= 1 else total
    legs: list[tuple[str, LegState] | Broken] = []
    maker = _Maker(work, key, node, job, contexts, fail_fast=fail_fast, total=total, parallel=parallel)
    for index, combination in enumerate(combinations):
        leg = maker.leg(index, combination)
        if leg is not None:
            legs.append(leg)
    return Opened(tuple(legs), fail_fast, parallel, total - len(legs))


def _shown(matrix: Json) -> str:
    """A wrong matrix for a message: its JSON, the beginning of a long one."""
    shown = msgspec.json.encode(matrix).decode()
    return shown if len(shown) <= _SHOWN_MATRIX else f"{shown[:_SHOWN_MATRIX]}…"


def _selected(wanted: Sequence[tuple[str, str]], values: dict[str, Json], work: Work) -> bool:
    by_key: dict[str, set[str]] = {}
    for key, value in wanted:
        by_key.setdefault(key.casefold(), set()).add(value.casefold())
    return all(
        " ".join(leaf_texts(value, work.evaluator.text)).casefold() in by_key[key.casefold()]
        for key, value in values.items()
        if key.casefold() in by_key
    )


class _Maker:
    """What all legs of one node share, and how one of them is made."""

    def __init__(
        self,
        work: Work,
        key: str,
        node: NodeState,
        job: JobPlan,
        contexts: dict[str, Json],
        *,
        fail_fast: bool,
        total: int,
        parallel: int,
    ) -> None:
        self.work = work
        self.key = key
        self.node = node
        self.job = job
        self.contexts = contexts
        self.fail_fast = fail_fast
        self.total = total
        self.parallel = parallel
        self.ids = IdBuilder()
        self.scope = work.scopes[node.scope]
        self.called = work.called_of(node.scope)
        self.needs = {
            job_id: NeedResult(needed.result, needed.outputs)
            for job_id in node.needs
            if (needed := work.nodes[work.node_path(node.scope, job_id)]).result is not None
        }

    def leg(self, index: int, combination: Combination | None) -> tuple[str, LegState] | Broken | None:
        """One leg; None where `--matrix` leaves it out (it takes its id all the same, so keys stay)."""
        texts: list[str] = []
        key, values = self.key, None
        if combination is not None:
            texts = list(leaf_texts(combination.shown, self.work.evaluator.text))
            key = f"{key}.{self.ids.build(texts)}"
            values = combination.values
            wanted = self.work.before.options.matrix
            if wanted and not _selected(wanted, values, self.work):
                return None
        contexts = {
            **self.contexts,
            "matrix": values,
            "strategy": {
                "fail-fast": self.fail_fast,
                "job-index": index,
                "job-total": self.total,
                "max-parallel": self.parallel,
            },
        }
        name = display_name(self._plain(), texts)
        try:
            name = self._name(contexts, texts)
            leg = self._call(key, name, values, contexts) if self.job.call else self._job(key, name, contexts, index)
        except UnevaluableError as error:
            return Broken(key, self._prefixed(name), values, error.message, "evaluation_error", error.at or self.job.at)
        except _NotPlannedError as error:
            return Broken(key, self._prefixed(name), values, error.message, error.code, error.at or self.job.at)
        return key, leg

    def _plain(self) -> str:
        return self.job.name.value if isinstance(self.job.name, TextToken) and self.job.name.value else self.job.id

    def _name(self, contexts: dict[str, Json], texts: Sequence[str]) -> str:
        default = display_name(self._plain(), texts)
        if self.job.name is None or isinstance(self.job.name, TextToken):
            return default
        return text(self.work.evaluator.value(self.job.name, contexts), self.job.name) or default

    def _prefixed(self, name: str) -> str:
        return f"{self.scope.name} / {name}" if self.scope.name else name

    def _call(self, key: str, name: str, values: Json, contexts: dict[str, Json]) -> LegState:
        call = self.job.call
        assert call is not None
        inputs = call_inputs(self.work.evaluator, call, contexts)
        groups = [self._group(self.job.concurrency, contexts, "concurrency")]
        if call.workflow.concurrency is not None:
            groups.append(self._group(call.workflow.concurrency, {"inputs": inputs}, "concurrency"))
        return LegState(
            self.key,
            "held",
            self._prefixed(name),
            matrix=values,
            call=True,
            secrets=(*self.scope.secrets, call_secrets(call, contexts)),
            inputs=inputs,
            permissions=self._permissions(),
            groups=tuple(group for group in groups if group is not None),
        )

    def _job(self, key: str, name: str, contexts: dict[str, Json], index: int) -> LegState:
        job, work = self.job, self.work
        labels, group = self._runs_on(contexts)
        tolerated = False
        if job.continue_on_error is not None:
            tolerated = boolean(work.evaluator.value(job.continue_on_error, contexts), job.continue_on_error)
        concurrency = self._group(job.concurrency, contexts, "concurrency")
        called, plan, options = self.called, work.plan, work.before.options
        run_id = work.before.run_id
        path, ref, sha = workflow_names(work.before.context, plan.path, called)
        env = called.env if called is not None else plan.env
        defaults = called.defaults if called is not None else plan.defaults
        spec = JobSpec(
            id=str(uuid.uuid5(_JOB_IDS, f"{run_id}/{key}")),
            run_id=run_id,
            key=key,
            job=work.job_path(self.node),
            name=self._prefixed(name),
            steps=job.steps,
            platform=platform_of(labels, options.platform),
            labels=labels,
            group=group,
            container=job.container,
            services=job.services,
            env=tuple(level for level in (env, job.env) if level is not None),
            defaults=tuple(level for level in (defaults, job.defaults) if level is not None),
            outputs=job.outputs,
            environment=self._environment(contexts),
            permissions=self._permissions(),
            needs=self.needs,
            matrix=contexts["matrix"],
            strategy=Strategy(self.fail_fast, index, self.total, self.parallel),
            inputs=self.scope.inputs,
            continue_on_error=tolerated,
            limits=Limits(timeout_s=self._timeout(contexts)),
            retry_lost=0 if job.environment is not None or options.strict_github else 1,
            trust=options.trust,
            workflow_path=path,
            workflow_ref=ref,
            workflow_sha=sha,
        )
        if job.pipeline is not None:
            spec = _with_pipeline(spec, job.pipeline)
        return LegState(
            self.key,
            "held",
            spec.name,
            matrix=contexts["matrix"],
            spec=spec,
            secrets=self.scope.secrets,
            groups=() if concurrency is None else (concurrency,),
            tolerated=tolerated,
        )

    def _permissions(self) -> dict[str, str] | None:
        if self.job.permissions is not None:
            return self.job.permissions
        if self.called is not None and self.called.permissions is not None:
            return self.called.permissions
        return self.scope.permissions if self.node.scope else self.work.plan.permissions

    def _timeout(self, contexts: dict[str, Json]) -> int:
        options = self.work.before.options
        minutes: float = DEFAULT_TIMEOUT_MINUTES
        template = self.job.timeout_minutes
        if template is not None:
            minutes = number(self.work.evaluator.value(template, contexts), template)
            if not minutes > 0:
                if not options.strict_github:
                    shown = self.work.evaluator.text(minutes)
                    raise _NotPlannedError(f"timeout-minutes must be positive, not {shown} (deviation D6)", template.at)
                minutes = DEFAULT_TIMEOUT_MINUTES
        seconds = max(1, int(min(minutes, 35 * 24 * 60) * 60))
        return seconds if options.job_limit_s is None else min(seconds, options.job_limit_s)

    def _environment(self, contexts: dict[str, Json]) -> Environment | None:
        plan = self.job.environment
        if plan is None:
            return None
        name = text(self.work.evaluator.value(plan.name, contexts), plan.name)
        return Environment(name, plan.url) if name else None

    def _group(self, plan: ConcurrencyPlan | None, contexts: dict[str, Json], key: str) -> GroupRequest | None:
        return None if plan is None else evaluate_group(self.work, plan, contexts, key)

    def _runs_on(self, contexts: dict[str, Json]) -> tuple[tuple[str, ...], str | None]:
        template = self.job.runs_on
        if template is None:
            return (), None
        value = self.work.evaluator.value(template, contexts)
        if not isinstance(value, dict):
            return _labels(value, template), None
        known = {key.lower(): item for key, item in value.items()}
        extra = sorted(set(known) - {"group", "labels"})
        if extra:
            raise UnevaluableError(f"Unexpected value '{extra[0]}' in runs-on", template.at)
        group = known.get("group")
        if group is not None and (not isinstance(group, str) or not group):
            raise UnevaluableError("runs-on.group must be text", template.at)
        if group is not None and "/" in group:
            prefix = group.partition("/")[0]
            if prefix not in _GROUP_PREFIXES:
                raise UnevaluableError(
                    f"Invalid runs-on group name '{group}': '{prefix}' is no prefix of a group", template.at
                )
        labels = known.get("labels")
        if labels is None and group is None:
            raise UnevaluableError("runs-on names neither labels nor a group", template.at)
        return (() if labels is None else _labels(labels, template)), group


def _with_pipeline(spec: JobSpec, said: PipelineJob) -> JobSpec:
    """The job with what its pipeline says beyond a workflow."""
    return msgspec.structs.replace(
        spec,
        platform=said.platform or spec.platform,
        image=said.image,
        limits=msgspec.structs.replace(
            said.limits, timeout_s=spec.limits.timeout_s, timeout_from=spec.limits.timeout_from
        ),
        collect=said.collect,
        retry_lost=0 if said.publish else spec.retry_lost if said.retry_lost is None else said.retry_lost,
        requires=("publish",) if said.publish else spec.requires,
    )


def evaluate_group(work: Work, plan: ConcurrencyPlan, contexts: dict[str, Json], key: str) -> GroupRequest:
    """The group of a newcomer (workflow-language 8). Raises UnevaluableError for an empty or too long name."""
    name = text(work.evaluator.value(plan.group, contexts), plan.group)
    if not name:
        raise UnevaluableError(f"{key}: Unexpected value '' (a concurrency group must have a name)", plan.group.at)
    if len(name) > GROUP_LENGTH_LIMIT:
        raise UnevaluableError(
            f"{key}: a group's name must be less than {GROUP_LENGTH_LIMIT} characters", plan.group.at
        )
    cancel = plan.cancel_in_progress
    in_progress = cancel is not None and boolean(work.evaluator.value(cancel, contexts), cancel)
    return GroupRequest(name, in_progress, plan.queue)


def _labels(value: Json, template: Template) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    labels: dict[str, None] = {}
    for item in items:
        if isinstance(item, (dict, list)):
            raise UnevaluableError("a label of runs-on must be text", template.at)
        label = text(item, template)
        if not label:
            raise UnevaluableError("Unexpected value '' in runs-on: a label must not be empty", template.at)
        labels[label] = None
    if not labels:
        raise UnevaluableError("runs-on names no label", template.at)
    return tuple(labels)


def platform_of(labels: Sequence[str], default: str) -> str:
    """The platform that labels ask for (`os/arch`), or the default where they name none."""
    words = {label.lower() for label in labels}
    system, _, machine = default.partition("/")
    if any(word == "windows" or word.startswith("windows-") for word in words):
        system, machine = "windows", "amd64"
    elif any(word == "macos" or word.startswith("macos-") for word in words):
        system, machine = "darwin", "arm64"
    elif any(word == "linux" or word.startswith("ubuntu-") for word in words):
        system = "linux"
    if "x64" in words:
        machine = "amd64"
    elif "arm64" in words or any(word.endswith("-arm") for word in words):
        machine = "arm64"
    elif "arm" in words:
        machine = "arm"
    return f"{system}/{machine}"


def workflow_names(context: RunContext, path: str, called: CalledPlan | None) -> tuple[str, str, str]:
    """Path, ref (`owner/repo/path@ref`) and commit of the file a job stands in."""
    github = context.github
    sha = str(github.get("workflow_sha") or github.get("sha") or "")
    if called is None:
        return path, str(github.get("workflow_ref") or ""), sha
    repository = called.repository or github.get("repository", "")
    return called.path, f"{repository}/{called.path}@{called.ref or github.get('ref', '')}", called.sha or sha
