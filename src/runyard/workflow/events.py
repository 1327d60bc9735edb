"""The events of GitHub: their activity types, and the filters each takes (workflow-language 2.6 and 4.1).

One table, used to check `on`, to decide a trigger, and to suggest the name that was meant.
"""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """One event: its activity types, those that count where `types` is absent (None: all), and its filter keys."""

    types: tuple[str, ...] = ()
    default_types: tuple[str, ...] | None = None
    filters: tuple[str, ...] = ()


_CHANGES = ("created", "edited", "deleted")
_BRANCHES = ("branches", "branches-ignore")
_TAGS = ("tags", "tags-ignore")
_PATHS = ("paths", "paths-ignore")
_PULL_REQUEST = Event(
    types=(
        *("assigned", "unassigned", "labeled", "unlabeled", "milestoned", "demilestoned", "opened", "edited", "closed"),
        *("reopened", "synchronize", "converted_to_draft", "ready_for_review", "locked", "unlocked", "enqueued"),
        *("dequeued", "review_requested", "review_request_removed", "auto_merge_enabled", "auto_merge_disabled"),
        "stacked",
    ),
    default_types=("opened", "synchronize", "reopened"),
    filters=(*_BRANCHES, *_PATHS),
)

EVENTS: dict[str, Event] = {
    "branch_protection_rule": Event(_CHANGES),
    "check_run": Event(("created", "rerequested", "completed", "requested_action")),
    "check_suite": Event(("completed",)),
    "create": Event(),
    "delete": Event(),
    "deployment": Event(),
    "deployment_status": Event(),
    "discussion": Event(
        (
            *_CHANGES,
            *("transferred", "pinned", "unpinned", "labeled", "unlabeled", "locked", "unlocked"),
            *("category_changed", "answered", "unanswered"),
        )
    ),
    "discussion_comment": Event(_CHANGES),
    "fork": Event(),
    "gollum": Event(),
    "image_version": Event(("created", "ready", "deleted"), filters=("names", "versions")),
    "issue_comment": Event(_CHANGES),
    "issues": Event(
        (
            *("opened", "edited", "deleted", "transferred", "pinned", "unpinned", "closed", "reopened", "assigned"),
            *("unassigned", "labeled", "unlabeled", "locked", "unlocked", "milestoned", "demilestoned"),
            *("typed", "untyped", "field_added", "field_removed"),
        )
    ),
    "label": Event(_CHANGES),
    "merge_group": Event(("checks_requested",), filters=_BRANCHES),
    "milestone": Event(("created", "closed", "opened", "edited", "deleted")),
    "page_build": Event(),
    "project": Event(("created", "closed", "reopened", "edited", "deleted")),
    "project_card": Event(("created", "moved", "converted", "edited", "deleted")),
    "project_column": Event(("created", "updated", "moved", "deleted")),
    "public": Event(),
    "pull_request": _PULL_REQUEST,
    "pull_request_comment": Event(_CHANGES),
    "pull_request_review": Event(("submitted", "edited", "dismissed")),
    "pull_request_review_comment": Event(_CHANGES),
    "pull_request_target": _PULL_REQUEST,
    "push": Event(filters=(*_BRANCHES, *_TAGS, *_PATHS)),
    "registry_package": Event(("published", "updated")),
    "release": Event(("published", "unpublished", "created", "edited", "deleted", "prereleased", "released")),
    "repository_dispatch": Event(),
    "schedule": Event(),
    "status": Event(),
    "watch": Event(("started",)),
    "workflow_call": Event(),
    "workflow_dispatch": Event(),
    "workflow_run": Event(("requested", "in_progress", "completed"), filters=("workflows", *_BRANCHES)),
}
"""Every event that may stand below `on`. `repository_dispatch` takes free types and is special in the schema."""

EXCLUSIVE = (("branches", "branches-ignore"), ("tags", "tags-ignore"), ("paths", "paths-ignore"))
"""Filters of which an event takes one or the other (workflow-language 4.3)."""

PATTERN_FILTERS = frozenset((*_BRANCHES, *_TAGS, *_PATHS))
"""Filters whose values are patterns; `workflows`, `names` and `versions` are not checked as such."""
