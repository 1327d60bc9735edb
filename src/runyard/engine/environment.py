"""The environment of a launched process: layers in one fixed order (job-semantics 6 and 7). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.job import Json

EXPORTED_GITHUB = frozenset(
    {
        "action",
        "action_path",
        "action_ref",
        "action_repository",
        "actor",
        "actor_id",
        "api_url",
        "artifacts",
        "artifacts_list",
        "base_ref",
        "env",
        "event_name",
        "event_path",
        "graphql_url",
        "head_ref",
        "job",
        "output",
        "path",
        "ref",
        "ref_name",
        "ref_protected",
        "ref_type",
        "repository",
        "repository_id",
        "repository_owner",
        "repository_owner_id",
        "retention_days",
        "run_attempt",
        "run_id",
        "run_number",
        "server_url",
        "sha",
        "state",
        "step_summary",
        "triggering_actor",
        "workflow",
        "workflow_ref",
        "workflow_sha",
        "workspace",
    }
)
"""The keys of `github` that become variables (7.1); never `token` or `event`."""

_GITHUB_NAMES = {key: f"GITHUB_{key.upper()}" for key in EXPORTED_GITHUB}

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def github_variables(github: Mapping[str, Json]) -> dict[str, str]:
    """`GITHUB_*` from the context: text as it is, booleans and null as text, objects never."""
    found = {}
    for key, value in github.items():
        variable = _GITHUB_NAMES.get(key)
        if variable is not None and (text := _exported(value)) is not None:
            found[variable] = text
    return found


def runner_variables(runner: Mapping[str, Json]) -> dict[str, str]:
    """`RUNNER_*`: every key of the context (7.2)."""
    return {f"RUNNER_{key.upper()}": text for key, value in runner.items() if (text := _exported(value)) is not None}


def _exported(value: Json) -> str | None:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return None


def input_name(name: str) -> str:
    """The variable of an action's input: only spaces are replaced (9.3, pair O13)."""
    return "INPUT_" + name.replace(" ", "_").upper()


def effective_path(prepends: Iterable[str], env: Mapping[str, str], base: Mapping[str, str]) -> str:
    """PATH for a process: `prepends` (first entry first) in front of the PATH of the step, else of the image (6.1)."""
    original = env.get("PATH") or base.get("PATH") or DEFAULT_PATH
    return ":".join([*prepends, original])


def process_environment(
    *,
    base: Mapping[str, str],
    env: Mapping[str, str],
    state: Mapping[str, str],
    inputs: Mapping[str, str],
    prepends: Iterable[str],
    github: Mapping[str, Json],
    runner: Mapping[str, Json],
    services: Mapping[str, str],
) -> dict[str, str]:
    """The whole environment of a process, later layers over earlier ones.

    `env` is the merged `env` context (global and step), `state` and `inputs` are values by plain name, `services` the
    `ACTIONS_*` variables that this kind of process gets (7.3).
    """
    merged = dict(base)
    merged.update(env)
    for name, value in state.items():
        merged[f"STATE_{name}"] = value
    for name, value in inputs.items():
        merged[input_name(name)] = value
    merged["PATH"] = effective_path(prepends, env, base)
    merged.update(github_variables(github))
    merged.update(runner_variables(runner))
    merged.update(services)
    merged["GITHUB_ACTIONS"] = "true"
    if "CI" not in env and "CI" not in base:
        merged["CI"] = "true"
    return merged
