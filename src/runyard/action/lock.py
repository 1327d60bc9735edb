"""The lock file: which commit each action's tag or branch means, kept with the repository and obeyed by every run.

version = 1
[actions]
"actions/setup-node@v4" = "<commit>"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.action.remotes import is_commit
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOCK_FILE: Final = ".github/runyard-actions.lock"


def read_lock(data: bytes, path: str = LOCK_FILE) -> dict[str, str]:
    """Commits by `owner/repo@ref`, in lower case. Raises InputError for what is no lock file."""
    import tomllib

    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"it can't be read: {error}", path=path, code="lock.unreadable") from error
    if found.get("version") != 1:
        raise InputError("its version is not 1", path=path, key="version", code="lock.version")
    unknown = set(found) - {"version", "actions"}
    if unknown:
        raise InputError(f"unknown key {min(unknown)!r}", path=path, key=min(unknown), code="lock.key")
    actions = found.get("actions", {})
    if not isinstance(actions, dict):
        raise InputError("[actions] is a table", path=path, key="actions", code="lock.key")
    pins: dict[str, str] = {}
    for name, commit in actions.items():
        if not isinstance(commit, str) or not is_commit(commit) or "@" not in name:
            raise InputError(
                f"{name!r} needs a whole commit id", path=path, key=f"actions.{name}", code="lock.commit",
                remedy="runyard actions lock writes it.",
            )  # fmt: skip
        if name.lower() in pins:
            raise InputError(f"{name!r} stands twice", path=path, key=f"actions.{name}", code="lock.commit")
        pins[name.lower()] = commit
    return pins


def write_lock(pins: Mapping[str, str]) -> str:
    """The text of a lock file, sorted, so that a change is one line."""
    import json

    head = ("# Written by `runyard actions lock`: what each reference means.", "version = 1", "", "[actions]")
    rows = [f"{json.dumps(name)} = {json.dumps(commit)}" for name, commit in sorted(pins.items())]
    return "".join(f"{line}\n" for line in (*head, *rows))


def not_locked(references: Iterable[str], pins: Mapping[str, str]) -> list[str]:
    """Those of `owner/repo@ref` that the lock doesn't know and that are no commits themselves."""
    known = {name.lower() for name in pins}
    return sorted({each for each in references if each.lower() not in known and not is_commit(each.rpartition("@")[2])})
