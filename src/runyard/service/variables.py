"""The variables through which steps find the services, by kind of step (job-semantics 7.3). Pure.

`GITHUB_SERVER_URL` stays what it is: only under github.com, `*.ghe.com` and `*.localhost` does the official toolkit
speak the newer protocols (runner-v2 16.1).
"""

from __future__ import annotations

import msgspec


class StepVariables(msgspec.Struct, frozen=True, kw_only=True):
    """What each kind of step gets; `secret` are the values that a log has to hide."""

    scripts: dict[str, str] = {}
    node: dict[str, str] = {}
    docker: dict[str, str] = {}
    secret: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "<StepVariables>"


def step_variables(base_url: str, token: str, *, id_token: bool, git: dict[str, str] | None = None) -> StepVariables:
    """The variables for services at `base_url` (`http://127.0.0.1:4711/`, with the slash: paths are appended).

    `id_token` is whether the job may ask for identity tokens; then scripts get the means too. `git` are variables that
    lead git to the gateway.
    """
    identity = {}
    if id_token:
        identity = {
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{base_url}oidc/token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": token,
        }
    both = {
        "ACTIONS_RUNTIME_URL": base_url,
        "ACTIONS_RUNTIME_TOKEN": token,
        "ACTIONS_CACHE_URL": base_url,
        "ACTIONS_RESULTS_URL": base_url,
        **identity,
    }
    return StepVariables(
        scripts=identity,
        node={**both, "ACTIONS_CACHE_SERVICE_V2": "True", **(git or {})},
        docker={**both, **(git or {})},
        secret=(token,),
    )


def git_variables(base_url: str, server_url: str, repository: str, token: str) -> dict[str, str]:
    """Configuration by environment: the run's own repository is read from the gateway, with the job's token.

    Git matches an address by its beginning, so one that only begins like the repository's reaches the gateway as well
    and is answered with 404.
    """
    ours = f"{base_url}git/{repository}"
    pairs = [
        (f"url.{ours}.insteadOf", f"{server_url.rstrip('/')}/{repository}"),
        (f"http.{base_url}.extraHeader", f"Authorization: Bearer {token}"),
    ]
    found = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        found[f"GIT_CONFIG_KEY_{number}"] = key
        found[f"GIT_CONFIG_VALUE_{number}"] = value
    return found
