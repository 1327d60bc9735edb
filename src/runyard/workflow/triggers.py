"""Does an event start a workflow, and by which rule (workflow-language 4.2, 4.3).

Pure: the event's facts come in, a decision with its reason goes out. The reason is what the code branched on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runyard.workflow.events import EVENTS
from runyard.workflow.model import Decision, EventFacts, EventTrigger
from runyard.workflow.patterns import any_included, has_positive, included

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.workflow.model import Workflow

_SKIP_MARKS = ("[skip ci]", "[ci skip]", "[no ci]", "[skip actions]", "[actions skip]")
_SKIP_EVENTS = frozenset({"push", "pull_request"})
_SKIP_TRAILER = re.compile(r"\n\s*\n+(?:[^\n]+\n)*skip-checks:\s*true\s*(?:\n[^\n]+)*\s*\Z", re.IGNORECASE)
_ZERO_COMMIT = re.compile(r"0{40}(?:0{24})?\Z")


def triggered(workflow: Workflow, facts: EventFacts) -> Decision:
    """Whether the event starts the workflow."""
    return decide(workflow.triggers, facts)


def decide(triggers: Sequence[EventTrigger], facts: EventFacts) -> Decision:
    """Whether one of the triggers of a workflow's `on` answers the event."""
    trigger = next((found for found in triggers if found.event == facts.event), None)
    if trigger is None:
        return Decision(False, f"the workflow does not listen to {facts.event}")
    if facts.event == "workflow_call":
        return Decision(False, "a called workflow is started by the job that calls it")
    deleted = _deleted(facts)
    if deleted is not None:
        return Decision(False, deleted)
    skip = skip_marker(facts)
    if skip is not None:
        return Decision(False, f"the head commit's message says {skip}")
    for rule in (_types, _refs, _workflows, _paths):
        decision = rule(trigger, facts)
        if decision is not None:
            return decision
    return Decision(True, _summary(trigger, facts))


def skip_marker(facts: EventFacts) -> str | None:
    """What in the head commit's message stops push and pull_request runs, or None."""
    if facts.event not in _SKIP_EVENTS or not facts.head_commit_message:
        return None
    lowered = facts.head_commit_message.lower()
    for mark in _SKIP_MARKS:
        if mark in lowered:
            return mark
    message = facts.head_commit_message.replace("\r\n", "\n").rstrip()
    # The trailer may be long text; a bounded tail is enough to hold it and keeps the search linear.
    if _SKIP_TRAILER.search("\n" + message[-4096:]):
        return "skip-checks: true"
    return None


def _deleted(facts: EventFacts) -> str | None:
    """A push that removes a ref has no commit to run for."""
    if facts.event != "push":
        return None
    after = facts.payload.get("after")
    if facts.payload.get("deleted") is True or (isinstance(after, str) and _ZERO_COMMIT.match(after)):
        return f"{facts.ref or 'the ref'} was deleted: there is no commit to run for"
    return None


def _types(trigger: EventTrigger, facts: EventFacts) -> Decision | None:
    """The activity of the event must be listed, or be one of the event's default types."""
    action = facts.payload.get("action")
    known = EVENTS.get(trigger.event)
    if not isinstance(action, str) or known is None:
        return None
    wanted = trigger.types if trigger.types is not None else known.default_types
    if wanted is None or action in wanted:
        return None
    listed = ", ".join(wanted)
    if trigger.types is None:
        return Decision(False, f"activity {action} is not one of the default types of {trigger.event} ({listed})")
    return Decision(False, f"activity {action} is not one of types ({listed})")


def _refs(trigger: EventTrigger, facts: EventFacts) -> Decision | None:
    """Branch and tag filters: pushes by what was pushed, pull requests by their base, workflow_run by its head."""
    if trigger.event == "push":
        return _pushed(trigger, facts)
    if trigger.event == "workflow_run":
        run = facts.payload.get("workflow_run")
        head = run.get("head_branch") if isinstance(run, dict) else None
        return _filtered(trigger, "branches", head if isinstance(head, str) else "", "branch of the triggering run")
    return _filtered(trigger, "branches", facts.base_ref.removeprefix("refs/heads/"), "base branch")


def _pushed(trigger: EventTrigger, facts: EventFacts) -> Decision | None:
    has_branches = trigger.filter("branches") is not None or trigger.filter("branches-ignore") is not None
    has_tags = trigger.filter("tags") is not None or trigger.filter("tags-ignore") is not None
    if facts.ref.startswith("refs/tags/"):
        if has_branches and not has_tags:
            return Decision(False, f"{facts.ref} is a tag and the workflow filters branches only")
        return _filtered(trigger, "tags", facts.ref.removeprefix("refs/tags/"), "tag")
    if has_tags and not has_branches:
        return Decision(False, f"{facts.ref} is no tag and the workflow filters tags only")
    return _filtered(trigger, "branches", facts.ref.removeprefix("refs/heads/"), "branch")


def _filtered(trigger: EventTrigger, name: str, ref: str, what: str) -> Decision | None:
    """A decision where the ref is kept out, None where it may pass."""
    wanted = trigger.filter(name)
    if wanted is not None and included(wanted, ref) is None:
        if not has_positive(wanted):
            return Decision(False, f"{name} has only negative patterns, which let nothing in")
        return Decision(False, f"{what} {ref} matches none of {name} ({', '.join(wanted)})")
    ignored = trigger.filter(f"{name}-ignore")
    if ignored is not None and included(ignored, ref) is not None:
        return Decision(False, f"{what} {ref} matches {name}-ignore ({', '.join(ignored)})")
    return None


def _workflows(trigger: EventTrigger, facts: EventFacts) -> Decision | None:
    """`workflow_run` names the workflows it follows, exactly."""
    wanted = trigger.filter("workflows")
    run = facts.payload.get("workflow_run")
    name = run.get("name") if isinstance(run, dict) else None
    if wanted is None or not isinstance(name, str) or name in wanted:
        return None
    return Decision(False, f"workflow {name} is not one of workflows ({', '.join(wanted)})")


def _paths(trigger: EventTrigger, facts: EventFacts) -> Decision | None:
    """Path filters: not evaluated for tags, and passed where the changed files are unknown."""
    wanted, ignored = trigger.filter("paths"), trigger.filter("paths-ignore")
    if (wanted is None and ignored is None) or facts.ref.startswith("refs/tags/"):
        return None
    files = facts.changed_files
    if files is None:
        return Decision(True, f"{facts.event}: the changed files could not be compared, so path filters do not count")
    if not files:
        return Decision(False, "no file changed, and the workflow filters paths")
    if wanted is not None:
        if any_included(wanted, files) is None:
            if not has_positive(wanted):
                return Decision(False, "paths has only negative patterns, which let nothing in")
            return Decision(False, f"none of {_count(files)} matches paths ({', '.join(wanted)})")
        return None
    if ignored is not None and all(included(ignored, name) is not None for name in files):
        return Decision(False, f"all of {_count(files)} match paths-ignore ({', '.join(ignored)})")
    return None


def _count(files: Sequence[str]) -> str:
    return f"{len(files)} changed file{'' if len(files) == 1 else 's'}"


def _summary(trigger: EventTrigger, facts: EventFacts) -> str:
    """The reason of a start: the event, and what its filters looked at."""
    action = facts.payload.get("action")
    what = f"{trigger.event} ({action})" if isinstance(action, str) else trigger.event
    names = [found.name for found in trigger.filters]
    return f"{what} passes {', '.join(names)}" if names else what
