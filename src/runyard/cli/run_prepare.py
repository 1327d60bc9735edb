"""From a command line to runs that could start: repository, event, workflows, triggers, plans.

Everything that can be wrong with the input is found here, before anything runs, and ends with exit code 2.
"""

from __future__ import annotations

import difflib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from runyard.cli.run_actions import check_lock, read_pins, steps_of
from runyard.engine.wire import HookFiles
from runyard.expression import to_text
from runyard.job import InputError, Json, Policy, RunContext
from runyard.run import RunOptions, RunState, job_paths, select_jobs
from runyard.source import (
    EnvironmentValues,
    EventPlace,
    Git,
    GitFacts,
    GitFailedError,
    changed_files,
    github_context,
    has_commit,
    make_payload,
    place_of,
    read_facts,
    server_of,
)
from runyard.workflow import (
    EventFacts,
    RunPlan,
    Workflow,
    WorkflowError,
    dispatch_inputs,
    plan_workflow,
    read_workflow,
    triggered,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.cli.run_stores import Stores  # noqa: TC004 - nobody reads the types of this struct at run time
    from runyard.job import Step
    from runyard.source.git import FactsUnderWay

FOLDER: Final = ".github/workflows"
PIPELINE: Final = ".runyard/ci.toml"
STORES: Final = ".runyard/stores.toml"
FILE_LIMIT: Final = 8 << 20
"""Bytes of a workflow file that are read at all; the reader refuses what is too long for GitHub."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `run`, parsed. `event` None is the default event; `ref` None the working tree.

    No repr: it holds secrets.
    """

    workflows: tuple[str, ...] = ()
    event: str | None = None
    payload: dict[str, Json] = {}
    payload_given: bool = False
    jobs: tuple[str, ...] = ()
    matrix: tuple[tuple[str, str], ...] = ()
    inputs: dict[str, str] = {}
    vars: dict[str, str] = {}
    secrets: dict[str, str] = {}
    env: dict[str, str] = {}
    environments: dict[str, EnvironmentValues] = {}
    sandbox: str = "auto"
    network: str | None = None
    images: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    ref: str | None = None
    parallel: int = 0
    offline: bool = False
    native: bool = True
    strict_github: bool = False
    format: str | None = None
    cache_dir: str | None = None
    artifacts: str | None = None
    keep: bool = False
    pause_on_failure: bool = False
    platform: str = "linux/amd64"
    policy: Policy | None = None
    hooks: HookFiles = HookFiles()
    tools: str = ""
    stores: str | None = None

    def __repr__(self) -> str:
        return "<Options of runyard run>"

    @property
    def token(self) -> str:
        """The token that was given, "" without one."""
        return self.secrets.get("GITHUB_TOKEN", "")


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow for the event. `state` and `plan` are None where the event doesn't start it."""

    path: str
    name: str
    triggered: bool
    reason: str
    plan: RunPlan | None = None
    state: RunState | None = None
    selected: bool = True


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known before a run."""

    facts: GitFacts
    event: str
    runs: tuple[PlannedRun, ...]
    files: Files
    pins: dict[str, str] | None = None
    """Commits of actions by reference, from the lock file; None without one."""
    stores: Stores | None = None
    """What is declared to be kept between jobs."""

    def steps(self) -> list[Step]:
        """Every step that may run, of called workflows too."""
        plans = [run.plan for run in self.runs if run.plan is not None and run.selected]
        return [step for plan in plans for step in steps_of(plan.jobs)]


class Files(Protocol):
    """The files of the repository as the run sees them, by path from its root."""

    def names(self, folder: str) -> list[str]:
        """Files directly in a folder, sorted; none where it isn't there."""

    def read(self, path: str) -> bytes | None:
        """A file's bytes, None where there is none. Raises InputError for what is no readable file."""


class WorkingTree:
    """Files as they are now."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def names(self, folder: str) -> list[str]:
        """Files directly in a folder, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self._root / folder) if not entry.is_dir())
        except OSError:
            return []

    def read(self, path: str) -> bytes | None:
        """A file's bytes; never waits on a pipe or device."""
        try:
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(f"it can't be read: {error.strerror}", path=path, code="input.unreadable") from error
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError("it is no file", path=path, code="input.unreadable")
            return file.read(FILE_LIMIT)


class CommitTree:
    """Files of one commit."""

    def __init__(self, git: Git, sha: str) -> None:
        self._git = git
        self._sha = sha

    def names(self, folder: str) -> list[str]:
        """Files directly in a folder, sorted."""
        listed = self._git.run("ls-tree", "-z", f"{self._sha}", "--", f"{folder}/")
        entries = [entry.decode(errors="surrogateescape").partition("\t") for entry in listed.split(b"\0") if entry]
        return sorted(path.rpartition("/")[2] for facts, _, path in entries if " blob " in facts)

    def read(self, path: str) -> bytes | None:
        """A file's bytes."""
        try:
            return self._git.run("cat-file", "blob", f"{self._sha}:{path}")
        except GitFailedError:
            return None


def prepare(options: Options, under_way: FactsUnderWay) -> Prepared:
    """Everything that `run`, `--list` and `--plan` need of a folder. Raises InputError, MachineError."""
    folder = under_way.folder
    facts = read_facts(folder, ref=options.ref, under_way=under_way)
    event = options.event or "push"
    git = Git(facts.root)
    files: Files = WorkingTree(facts.root) if options.ref is None else CommitTree(git, facts.sha)
    if options.inputs and event != "workflow_dispatch":
        raise InputError(
            f"--input belongs to workflow_dispatch, not to {event}", key="--input", code="input.inputs",
            remedy="runyard run --event workflow_dispatch --input …",
        )  # fmt: skip
    payload = make_payload(event, facts, server_of(facts.remote_url), given=options.payload, inputs=options.inputs)
    after = payload.get("after")
    known = options.payload_given and isinstance(after, str) and after != facts.sha and has_commit(git, after)
    place = place_of(event, payload, facts, known)
    workflows = _read_all(files, _chosen(files, options.workflows, folder, facts.root))
    changed = _changed(options, event, payload, facts, workflows)
    happened = EventFacts(
        event=event,
        ref=place.ref,
        base_ref=place.filter_base,
        changed_files=changed,
        head_commit_message=place.head_message,
        payload=payload,
    )
    maker = _Maker(options, facts, event, payload, place, files)
    runs = tuple(maker.run(workflow, happened, index) for index, workflow in enumerate(workflows))
    prepared = Prepared(
        facts=facts,
        event=event,
        runs=_select(runs, options),
        files=files,
        pins=read_pins(files),
        stores=_stores(options, files, runs),
    )
    check_lock(prepared.steps(), prepared.pins, native=options.native)
    return prepared


def _stores(options: Options, files: Files, runs: tuple[PlannedRun, ...]) -> Stores | None:
    """Declared stores; most repositories have none, and then nothing of them is loaded."""
    given = options.stores if options.stores is not None else os.environ.get("RUNYARD_STORES")
    data = files.read(STORES) if given is None else None
    if not given and data is None:
        return None
    from runyard.cli.run_stores import find_stores

    return find_stores(given, data, runs)


def _changed(
    options: Options, event: str, payload: Mapping[str, Json], facts: GitFacts, workflows: Iterable[Workflow]
) -> tuple[str, ...] | None:
    if options.changed_files:
        return options.changed_files
    for workflow in workflows:
        trigger = workflow.trigger(event)
        if trigger is not None and (trigger.filter("paths") or trigger.filter("paths-ignore")):
            return changed_files(event, payload, facts, with_working_tree=options.ref is None)
    return None


def _chosen(files: Files, wanted: tuple[str, ...], folder: str, root: str) -> list[str]:
    names = [name for name in files.names(FOLDER) if name.endswith((".yml", ".yaml"))]
    if not wanted:
        pipeline = [PIPELINE] if _is_there(files, PIPELINE) else []
        if not names and pipeline:
            return pipeline
        if not names:
            raise InputError(
                f"there is no workflow in {FOLDER} of {root}", code="run.no_workflow", remedy=f"Put one into {FOLDER}."
            )
        return [*pipeline, *(f"{FOLDER}/{name}" for name in names)]
    chosen: dict[str, None] = {}
    for each in wanted:
        inside = os.path.relpath(Path(folder, each).absolute(), root)
        candidates = [inside, each, f"{FOLDER}/{each}", f"{FOLDER}/{each}.yml", f"{FOLDER}/{each}.yaml"]
        found = next((path for path in candidates if not path.startswith("..") and _is_there(files, path)), None)
        if found is None:
            near = difflib.get_close_matches(each.rpartition("/")[2], names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f" in {FOLDER}: {', '.join(names) or 'it is empty'}"
            raise InputError(f"there is no workflow {each!r}{hint}", code="run.no_workflow")
        chosen[found] = None
    return list(chosen)


def _is_there(files: Files, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in files.names(folder or ".")


def _read_all(files: Files, paths: list[str]) -> list[Workflow]:
    workflows, problems = [], []
    for path in paths:
        source = files.read(path)
        if source is None:
            raise InputError("it can't be read", path=path, code="input.unreadable")
        reading = read_workflow(source, path=path)
        if reading.workflow is None:
            problems += [problem for problem in reading.problems if problem.severity == "error"]
        else:
            workflows.append(reading.workflow)
    if problems:
        raise WorkflowError(tuple(problems))
    return workflows


class _Maker:
    def __init__(  # noqa: PLR0917 - what all workflows of one event share
        self,
        options: Options,
        facts: GitFacts,
        event: str,
        payload: dict[str, Json],
        place: EventPlace,
        files: Files,
    ) -> None:
        self.options = options
        self.facts = facts
        self.event = event
        self.payload = payload
        self.place = place
        self.files = files
        self.number = time.time_ns() // 1_000_000

    def run(self, workflow: Workflow, happened: EventFacts, index: int) -> PlannedRun:
        """One workflow: triggered, compiled, with its contexts."""
        decision = triggered(workflow, happened)
        if not decision.triggered:
            return PlannedRun(path=workflow.path, name=workflow.name, triggered=False, reason=decision.reason)
        payload = self.payload
        inputs = None
        if self.event == "workflow_dispatch":
            inputs = self._inputs(workflow)
            payload = {**payload, "inputs": self._texts(workflow, inputs), "workflow": workflow.path}
        if self.event == "schedule" and not payload.get("schedule"):
            trigger = workflow.trigger("schedule")
            payload = {**payload, "schedule": trigger.schedules[0].cron if trigger and trigger.schedules else ""}
        plan = plan_workflow(workflow, event=self.event, inputs=inputs, loader=self._load)
        run_id = str(self.number + index)
        context = RunContext(
            github=github_context(
                event=self.event,
                place=self.place,
                payload=payload,
                facts=self.facts,
                workflow=workflow.name,
                workflow_path=workflow.path,
                run_id=run_id,
            ),
            event=payload,
            event_digest=_digest(payload),
            vars=self.options.vars,
            inputs=plan.inputs,
            files=plan.files,
        )
        options = RunOptions(
            strict_github=self.options.strict_github, matrix=self.options.matrix, platform=self.options.platform
        )
        state = RunState(run_id=run_id, context=context, options=options)
        return PlannedRun(
            path=workflow.path, name=workflow.name, triggered=True, reason=decision.reason, plan=plan, state=state
        )

    def _inputs(self, workflow: Workflow) -> dict[str, str]:
        given = self.options.payload.get("inputs")
        texts = {name: to_text(value) for name, value in given.items()} if isinstance(given, dict) else {}
        known = {definition.name.lower() for definition in workflow.dispatch or ()}
        if len(self.options.workflows) != 1:
            return {name: value for name, value in {**texts, **self.options.inputs}.items() if name.lower() in known}
        return {**texts, **self.options.inputs}

    def _texts(self, workflow: Workflow, inputs: dict[str, str]) -> dict[str, str]:
        typed = dispatch_inputs(workflow.dispatch or (), inputs, path=workflow.path)
        return {name: to_text(value) for name, value in typed.items()}

    def _load(self, uses: str) -> bytes | None:
        return self.files.read(uses.removeprefix("./")) if uses.startswith("./") else None


def _digest(payload: Json) -> str:
    import hashlib

    return hashlib.sha256(msgspec.json.encode(payload, order="deterministic")).hexdigest()


def _select(runs: tuple[PlannedRun, ...], options: Options) -> tuple[PlannedRun, ...]:
    """Keep to the jobs that were asked for; a job that no started workflow has is an error with the nearest id."""
    if not options.jobs:
        return runs
    started = [run for run in runs if run.plan is not None]
    known = [path for run in started if run.plan is not None for path in job_paths(run.plan)]
    lowered = {path.lower() for path in known}
    for wanted in options.jobs:
        if wanted.lower() not in lowered:
            near = difflib.get_close_matches(wanted, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if not started:
                hint = ": the event starts no workflow"
            raise InputError(f"there is no job {wanted!r}{hint}", key="--job", code="run.unknown_job")
    return tuple(_selected(run, options.jobs) for run in runs)


def _selected(run: PlannedRun, wanted: tuple[str, ...]) -> PlannedRun:
    if run.plan is None or run.state is None:
        return run
    here = {path.lower() for path in job_paths(run.plan)}
    jobs = select_jobs(run.plan, [each for each in wanted if each.lower() in here])
    narrowed = msgspec.structs.replace(run.state.options, jobs=jobs)
    return msgspec.structs.replace(run, state=msgspec.structs.replace(run.state, options=narrowed), selected=bool(jobs))
