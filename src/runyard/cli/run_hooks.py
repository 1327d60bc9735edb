"""Which job hooks a command line asks for: flags first, then RUNYARD_* variables, then the runner's environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from runyard.engine.wire import HookFiles
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS: Final = (
    ("started", "hook_started", "RUNYARD_HOOK_JOB_STARTED", "ACTIONS_RUNNER_HOOK_JOB_STARTED"),
    ("completed", "hook_completed", "RUNYARD_HOOK_JOB_COMPLETED", "ACTIONS_RUNNER_HOOK_JOB_COMPLETED"),
    ("host_started", "host_hook_started", "RUNYARD_HOST_HOOK_JOB_STARTED", ""),
    ("host_completed", "host_hook_completed", "RUNYARD_HOST_HOOK_JOB_COMPLETED", ""),
)
"""Field, flag, our variable, and the variable that GitHub's runner takes (from --env and --env-file here)."""

_CONTAINER_HOOKS: Final = "ACTIONS_RUNNER_CONTAINER_HOOKS"
_ENDINGS: Final = (".sh", ".ps1", ".js")


def read_hooks(given: Mapping[str, object], env: Mapping[str, str]) -> HookFiles:
    """The hooks in force; `env` is the runner's environment. Raises InputError for a flag or variable that names none.

    A path from `env` is taken as it is: one that is wrong fails the hook, as on GitHub.
    """
    if env.get(_CONTAINER_HOOKS):
        raise MachineError(
            f"{_CONTAINER_HOOKS} is set: container hooks replace the sandbox by a script with the engine's rights",
            code="refused.container_hooks",
            remedy="leave it out; containers of a job run on --sandbox docker or podman",
        )
    found: dict[str, str] = {}
    for field, flag, own, githubs in _SETTINGS:
        if path := str(given.get(flag) or ""):
            found[field] = _checked(path, "--" + flag.replace("_", "-"))
        elif path := os.environ.get(own, ""):
            found[field] = _checked(path, own)
        elif githubs and env.get(githubs):
            found[field] = env[githubs]
    return HookFiles(**found)


def without_hooks(env: Mapping[str, str]) -> dict[str, str]:
    """The runner's environment as jobs get it: a path of this machine says nothing inside."""
    named = {githubs for _, _, _, githubs in _SETTINGS}
    return {name: value for name, value in env.items() if name not in named}


def _checked(path: str, key: str) -> str:
    path = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    if not os.path.isfile(path):  # noqa: PTH113
        raise InputError(f"{key}: there is no file {path}", key=key, code="input.hook")
    if not path.endswith(_ENDINGS):
        raise InputError(f"{key}: {path} has to end with {', '.join(_ENDINGS)}", key=key, code="input.hook")
    return path


def host_notes(hooks: HookFiles) -> list[str]:
    """What to say before a run about hooks that leave the sandbox."""
    named = [path for path in (hooks.host_started, hooks.host_completed) if path]
    return [f"warning: job hooks run on this machine, outside the sandbox: {', '.join(named)}"] if named else []
