"""From an event in a hosted repository to the runs it starts, read from its mirror."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from runyard.dispatch.records import Trust
from runyard.expression import to_text
from runyard.job import InputError, RunContext
from runyard.run import RunOptions
from runyard.server.control import NewRun
from runyard.source.context import github_context, place_of
from runyard.source.payload import make_payload
from runyard.workflow import EventFacts, WorkflowError, dispatch_inputs, plan_workflow, read_workflow, triggered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Json
    from runyard.server.mirrors import Mirrors, Resolved
    from runyard.server.store.rows import Project
    from runyard.source.context import EventPlace
    from runyard.source.git import GitFacts
    from runyard.workflow import Workflow


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a project: who told it, and what it brought. `payload` lies over the one that is made here."""

    event: str
    payload: dict[str, object] = {}
    inputs: dict[str, str] = {}
    workflow: str | None = None
    actor: str = ""
    before: str | None = None
    trust: Trust = "trusted"
    approval: bool = False


class Planned(NamedTuple):
    """What an event leads to: runs, and for each workflow that it doesn't start the reason."""

    runs: tuple[NewRun, ...]
    untouched: tuple[tuple[str, str], ...]
    payload_digest: str


def plan_event(mirrors: Mirrors, project: Project, resolved: Resolved, happened: Happened) -> Planned:
    """Every workflow of the commit that the event starts.

    Raises InputError for an unknown event, workflow or input, WorkflowError with all problems of the files it starts.
    Blocking: it reads the mirror.
    """
    maker = _Maker(mirrors, project, resolved, happened)
    runs: list[NewRun] = []
    untouched: list[tuple[str, str]] = []
    for path in maker.chosen():
        made = maker.run(path)
        if isinstance(made, NewRun):
            runs.append(made)
        else:
            untouched.append((path, made))
    return Planned(tuple(runs), tuple(untouched), maker.payload_digest)


class _Maker:
    def __init__(self, mirrors: Mirrors, project: Project, resolved: Resolved, happened: Happened) -> None:
        self.mirrors = mirrors
        self.project = project
        self.resolved = resolved
        self.happened = happened
        facts = mirrors.facts(project, resolved)
        if happened.actor:
            facts = msgspec.structs.replace(facts, actor=happened.actor)
        self.facts: GitFacts = facts
        server = "https://github.com"
        given: Mapping[str, Json] = happened.payload
        self.payload = make_payload(
            happened.event, facts, server, given=given, inputs=happened.inputs, before=happened.before
        )
        self.payload_digest = _digest(self.payload)
        self.place: EventPlace = place_of(happened.event, self.payload, facts, known=True)

    def chosen(self) -> list[str]:
        """The files to look at. Raises InputError where there is none, or not the one that was asked for."""
        paths = self.mirrors.workflow_paths(self.project.repository, self.resolved.sha)
        if not paths:
            raise InputError(
                f"{self.project.repository} has no workflow at {self.resolved.sha[:12]}", code="trigger.no_workflow"
            )
        wanted = self.happened.workflow
        if wanted is None:
            return paths
        found = [path for path in paths if path == wanted or path.rpartition("/")[2] in (wanted, f"{wanted}.yml")]
        if not found:
            raise InputError(f"there is no workflow {wanted!r}; there are {', '.join(paths)}", code="trigger.workflow")
        return found

    def run(self, path: str) -> NewRun | str:
        """A run, or why the event doesn't start this workflow."""
        source = self.mirrors.read(self.project.repository, self.resolved.sha, path)
        reading = read_workflow(source or b"", path=path)
        if reading.workflow is None:
            raise WorkflowError(reading.problems)
        workflow = reading.workflow
        decision = triggered(workflow, self._facts(workflow))
        if not decision.triggered:
            return decision.reason
        payload = self.payload
        inputs = None
        if self.happened.event == "workflow_dispatch":
            inputs = dict(self.happened.inputs)
            typed = dispatch_inputs(workflow.dispatch or (), inputs, path=path)
            payload = {**payload, "inputs": {name: to_text(value) for name, value in typed.items()}, "workflow": path}
        plan = plan_workflow(workflow, event=self.happened.event, inputs=inputs, loader=self._load)
        context = RunContext(
            github=github_context(
                event=self.happened.event,
                place=self.place,
                payload=payload,
                facts=self.facts,
                workflow=workflow.name,
                workflow_path=path,
                run_id="",
            ),
            event=payload,
            event_digest=_digest(payload),
            inputs=plan.inputs,
            files=plan.files,
        )
        return NewRun(
            plan=plan,
            context=context,
            ref=self.place.ref,
            sha=self.place.sha,
            options=RunOptions(),
            trust=self.happened.trust,
            approval=self.happened.approval,
        )

    def _facts(self, workflow: Workflow) -> EventFacts:
        trigger = workflow.trigger(self.happened.event)
        changed = None
        before = self.payload.get("before")
        by_path = trigger is not None and (trigger.filter("paths") or trigger.filter("paths-ignore"))
        if by_path and isinstance(before, str) and before.strip("0"):
            changed = self.mirrors.changed(self.project.repository, before, self.resolved.sha)
        return EventFacts(
            event=self.happened.event,
            ref=self.place.ref,
            base_ref=self.place.filter_base,
            changed_files=changed,
            head_commit_message=self.place.head_message,
            payload=self.payload,
        )

    def _load(self, uses: str) -> bytes | None:
        if not uses.startswith("./"):
            return None
        return self.mirrors.read(self.project.repository, self.resolved.sha, uses.removeprefix("./"))


def _digest(payload: Mapping[str, Json]) -> str:
    return hashlib.sha256(msgspec.json.encode(payload, order="deterministic")).hexdigest()
