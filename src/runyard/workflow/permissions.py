"""The rights of the job token: evaluated levels, defaults, and what a called workflow may ask for (section 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import MappingToken, Template, TextToken
from runyard.workflow.schema import PERMISSION_LEVELS

if TYPE_CHECKING:
    from runyard.workflow.model import Permissions, PermissionsPolicy

_RANK = {"none": 0, "read": 1, "write": 2}


def evaluated(token: Template) -> Permissions:
    """A checked `permissions` value with every key; what it doesn't name is `none`."""
    if isinstance(token, TextToken):
        wanted = "read" if token.value == "read-all" else "write"
        return {key: _highest(levels, wanted) for key, levels in PERMISSION_LEVELS.items()}
    levels = dict.fromkeys(PERMISSION_LEVELS, "none")
    if isinstance(token, MappingToken):
        for key, value in token.entries:
            if isinstance(key, TextToken) and isinstance(value, TextToken) and key.value in levels:
                levels[key.value] = value.value
    return levels


def default_permissions(policy: PermissionsPolicy) -> Permissions:
    """What a job's token may do where no file says anything."""
    if policy == "read":
        return {key: "read" if key in {"contents", "packages"} else "none" for key in PERMISSION_LEVELS}
    levels = {key: _highest(allowed, "write") for key, allowed in PERMISSION_LEVELS.items()}
    levels["id-token"] = "none"
    return levels


def wider(requested: Permissions, allowed: Permissions) -> list[str]:
    """The keys for which more is requested than allowed, in the order of the table."""
    return [key for key in PERMISSION_LEVELS if _RANK[requested.get(key, "none")] > _RANK[allowed.get(key, "none")]]


def _highest(levels: tuple[str, ...], wanted: str) -> str:
    """The widest level a key has that is no wider than `wanted`; a key without it stays closed."""
    fitting = [level for level in levels if _RANK[level] <= _RANK[wanted]]
    return max(fitting, key=_RANK.__getitem__)
