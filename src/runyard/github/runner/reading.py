"""From the job message to a Claim (runner-v2 10 and 11).

Rule kept: what the message asks for and this build can't do is refused, all of it at once and by name; nothing is left
out of a job in silence.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from runyard.github.runner.context_data import decode_context
from runyard.github.runner.job_message import SYSTEM_CONNECTION, JobMessage, StepMessage, UnreadableMessageError
from runyard.github.runner.normal_form import spelled
from runyard.github.runner.tokens import decode_token
from runyard.job import (
    ActionStep,
    Claim,
    ContainerActionStep,
    Environment,
    ExpressionToken,
    InputError,
    JobSpec,
    Json,
    MappingToken,
    NeedResult,
    NullToken,
    Policy,
    RunContext,
    RunStep,
    Strategy,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.github.runner.job_message import Endpoint, Reference
    from runyard.job import Step

GITHUB_TOKEN_VARIABLE = "system.github.token"
HIDDEN_SECRETS = frozenset({"system.accesstoken", GITHUB_TOKEN_VARIABLE})
"""Secret variables that are masked but no `secrets` (lower case)."""

ENDPOINT_DATA = {
    "runtime": "PipelinesServiceUrl",
    "cache": "CacheServerUrl",
    "results": "ResultsServiceUrl",
    "oidc": "GenerateIdTokenUrl",
    "feed": "FeedStreamUrl",
}
"""Services of a Claim by the name that the connection's data gives their address."""

ENDPOINT_VARIABLES = {"receiver": "system.github.results_endpoint", "launch": "system.github.launch_endpoint"}
"""Services of a Claim whose address is a variable."""

_STEP_KINDS = {"action": "action", "4": "action", "backgroundstepcontrol": "background", "5": "background"}
_REFERENCE_KINDS: dict[str, Literal["repository", "container", "script"]] = {
    "repository": "repository",
    "1": "repository",
    "containerregistry": "container",
    "2": "container",
    "script": "script",
    "3": "script",
}
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_Result: TypeAlias = Literal["success", "failure", "cancelled", "skipped"]
_RESULTS: dict[str, _Result] = {
    "success": "success",
    "failure": "failure",
    "cancelled": "cancelled",
    "skipped": "skipped",
}


class UnsupportedMessageError(InputError):
    """A message that asks for what this build doesn't do; `wishes` are all of them."""

    def __init__(self, wishes: tuple[str, ...]) -> None:
        super().__init__("this job asks for what Runyard can't do: " + "; ".join(wishes), code="github.unsupported")
        self.wishes = wishes


def unsupported(message: JobMessage) -> tuple[str, ...]:
    """Everything in a message that a Claim can't carry, in words; for admission and for an audit of saved messages."""
    wishes: list[str] = []
    if not message.is_v2:
        wishes.append(f"the message type '{message.message_type}' of the older protocol")
    for number, step in enumerate(message.steps or (), 1):
        wishes.extend(f"step {number}: {wish}" for wish in _unsupported_step(step))
    if message.snapshot is not None:
        wishes.append("a snapshot of the machine as an image")
    if message.job_sidecar_containers:
        wishes.append("sidecar containers in their old form")
    aliases = {_alias(container) for container in (message.resources and message.resources.containers) or ()}
    if isinstance(message.job_container, str) and message.job_container in aliases:
        wishes.append("a job container by an alias in the resources")
    wishes.extend(f"a mask of the type '{hint.type}'" for hint in message.mask or () if hint.type.lower() != "regex")
    return tuple(wishes)


def _unsupported_step(step: StepMessage | None) -> list[str]:
    if step is None:
        return ["an empty step"]
    kind = _STEP_KINDS.get(str(step.type).lower())
    if kind is None:
        return [f"the step type '{step.type}'"]
    wishes = []
    if kind == "background" or step.background or step.parallel_group_id:
        wishes.append("steps in the background")
    elif step.reference is None or _reference_kind(step.reference) is None:
        wishes.append(f"a reference of the type '{step.reference.type if step.reference else None}'")
    elif _reference_kind(step.reference) == "repository" and _is_odd_repository(step.reference):
        wishes.append(f"an action from the repository type '{step.reference.repository_type}'")
    return wishes


def _is_odd_repository(reference: Reference) -> bool:
    return (reference.repository_type or "").lower() not in {"github", "self"}


def _alias(container: Json) -> str | None:
    return container.get("alias") if isinstance(container, dict) else None


def claim_of(
    message: JobMessage,
    *,
    attempt: int = 1,
    lease_s: float = 600.0,
    policy: Policy | None = None,
    strict: bool = False,
) -> Claim:
    """The Claim that a message is. `lease_s` is how long its lock holds without a renewal.

    Raises UnsupportedMessageError with everything that can't be done, or UnreadableMessageError.
    """
    wishes = unsupported(message)
    if wishes:
        raise UnsupportedMessageError(wishes)
    data = message.context_data or {}
    contexts = {name: decode_context(value, f"contextData.{name}") for name, value in data.items()}
    variables = {name: variable.value or "" for name, variable in (message.variables or {}).items()}
    by_name = {name.lower(): value for name, value in variables.items()}
    connection = _connection(message)
    token = by_name.get(GITHUB_TOKEN_VARIABLE, "")
    secrets, masks = _secrets(message)
    values = _texts(contexts.get("vars"))
    debug = by_name.get("actions_step_debug") or values.get("ACTIONS_STEP_DEBUG", "")
    return Claim(
        attempt=attempt,
        lease_id=str(message.request_id),
        expires_in_s=lease_s,
        spec=_spec(message, contexts, by_name),
        context=_context(message, contexts, values),
        secrets={**secrets, **({"GITHUB_TOKEN": token} if token else {})},
        masks=(*masks, *_endpoint_masks(message, connection)),
        mask_patterns=tuple(hint.value for hint in message.mask or () if hint.value),
        tokens=_tokens(connection, token),
        endpoints=_endpoints(connection, by_name),
        variables={name: value for name, value in variables.items() if not _is_secret(message, name)},
        policy=policy or Policy(),
        strict_github=strict,
        debug=debug.lower() == "true",
    )


def _spec(message: JobMessage, contexts: dict[str, Json], variables: Mapping[str, str]) -> JobSpec:
    github = contexts.get("github") or {}
    job = contexts.get("job") or {}
    strategy = contexts.get("strategy") or {}
    needs = contexts.get("needs") or {}
    environment = message.actions_environment
    return JobSpec(
        id=message.job_id.lower(),
        run_id=message.plan.plan_id.lower(),
        key=message.job_name or "",
        job=variables.get("system.github.job") or message.job_name or "",
        name=message.job_display_name or message.job_name or "",
        steps=tuple(_step(step, number) for number, step in enumerate(message.steps or (), 1) if step is not None),
        container=_template(message.job_container, "jobContainer"),
        services=_template(message.job_service_containers, "jobServiceContainers"),
        env=tuple(decode_token(token, "environmentVariables") for token in message.environment_variables or ()),
        defaults=tuple(found for token in message.defaults or () if (found := _run_defaults(token)) is not None),
        outputs=_template(message.job_outputs, "jobOutputs"),
        environment=None
        if environment is None or not environment.name
        else Environment(environment.name, _template(environment.url, "actionsEnvironment.url")),
        permissions=_permissions(variables.get("system.github.token.permissions")),
        needs={name: _need(name, value) for name, value in needs.items()},
        matrix=contexts.get("matrix"),
        strategy=Strategy(
            fail_fast=bool(strategy.get("fail-fast", True)),
            job_index=int(strategy.get("job-index", 0)),
            job_total=int(strategy.get("job-total", 1)),
            max_parallel=int(strategy.get("max-parallel", 1)),
        ),
        inputs=contexts.get("inputs") or None,
        workflow_path=job.get("workflow_file_path") or variables.get("system.workflowfilefullpath", ""),
        workflow_ref=job.get("workflow_ref") or github.get("workflow_ref") or "",
        workflow_sha=job.get("workflow_sha") or github.get("workflow_sha") or "",
    )


def _context(message: JobMessage, contexts: dict[str, Json], values: dict[str, str]) -> RunContext:
    github = contexts.get("github")
    if not isinstance(github, dict) or not github.get("repository"):
        raise UnreadableMessageError("the github context must name the repository", key="contextData.github.repository")
    event = github.get("event", {})
    return RunContext(
        github={name: value for name, value in github.items() if name not in {"event", "token"}},
        event=event,
        event_digest=hashlib.sha256(msgspec.json.encode(event, order="deterministic")).hexdigest(),
        vars=values,
        files=tuple(message.file_table or ()),
    )


def _step(message: StepMessage, number: int) -> Step:
    reference = message.reference
    assert reference is not None
    place = f"steps[{number - 1}]"
    kind = _reference_kind(reference)
    step_id = message.context_name or message.name or f"__{number}"
    name = _template(message.display_name_token, f"{place}.displayNameToken")
    if name is None and message.display_name:
        name = TextToken(message.display_name)
    condition = message.condition or "success()"
    env = _template(message.environment, f"{place}.environment")
    tolerated = _template(message.continue_on_error, f"{place}.continueOnError")
    timeout = _template(message.timeout_in_minutes, f"{place}.timeoutInMinutes")
    inputs = _template(message.inputs, f"{place}.inputs")
    if kind == "script":
        given = _by_name(inputs, place)
        return RunStep(
            id=step_id,
            number=number,
            name=name,
            condition=condition,
            env=env,
            continue_on_error=tolerated,
            timeout_minutes=timeout,
            script=given.get("script", TextToken("")),
            shell=given.get("shell"),
            working_directory=given.get("workingdirectory"),
        )
    if kind == "container":
        return ContainerActionStep(
            id=step_id,
            number=number,
            name=name,
            condition=condition,
            env=env,
            continue_on_error=tolerated,
            timeout_minutes=timeout,
            image=(reference.image or "").removeprefix("docker://"),
            inputs=spelled(inputs, "entrypoint"),
        )
    is_local = (reference.repository_type or "").lower() == "self"
    return ActionStep(
        id=step_id,
        number=number,
        name=name,
        condition=condition,
        env=env,
        continue_on_error=tolerated,
        timeout_minutes=timeout,
        repository=None if is_local else reference.name or "",
        path=reference.path or "",
        ref="" if is_local else reference.ref or "",
        inputs=inputs,
    )


def _reference_kind(reference: Reference) -> Literal["repository", "container", "script"] | None:
    return _REFERENCE_KINDS.get(str(reference.type).lower())


def _by_name(inputs: Template | None, place: str) -> dict[str, Template]:
    """The inputs of a script, by name in lower case; they are the server's own and never expressions."""
    if inputs is None:
        return {}
    if not isinstance(inputs, MappingToken) or any(not isinstance(entry.key, TextToken) for entry in inputs.entries):
        raise UnreadableMessageError("the inputs of a script must be a mapping of names", key=f"{place}.inputs")
    return {entry.key.value.lower(): entry.value for entry in inputs.entries if isinstance(entry.key, TextToken)}


def _template(value: Json, place: str) -> Template | None:
    return None if value is None else decode_token(value, place)


def _run_defaults(token: Json) -> Template | None:
    """What a level of `defaults` says of `run`; a level that says nothing of it is none."""
    level = decode_token(token, "defaults")
    if isinstance(level, MappingToken):
        for key, value in level.entries:
            if isinstance(key, TextToken) and key.value.lower() == "run" and not isinstance(value, NullToken):
                return value
        return None
    if isinstance(level, ExpressionToken):
        raise UnreadableMessageError("defaults must be a mapping", key="defaults")
    return None


def _need(name: str, value: Json) -> NeedResult:
    result = _RESULTS.get(str(value.get("result", "")).lower()) if isinstance(value, dict) else None
    if result is None:
        raise UnreadableMessageError("a need must have a result", key=f"contextData.needs.{name}")
    return NeedResult(result, _texts(value.get("outputs")))


def _texts(value: Json) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {name: item if isinstance(item, str) else "" if item is None else str(item) for name, item in value.items()}


def _permissions(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise UnreadableMessageError("the token's permissions can't be read", key="variables") from error
    return {_CAPITAL.sub("-", name).lower(): level for name, level in found.items()}


def _is_secret(message: JobMessage, name: str) -> bool:
    return (message.variables or {})[name].is_secret


def _secrets(message: JobMessage) -> tuple[dict[str, str], tuple[str, ...]]:
    """The `secrets` context, and what is only masked."""
    secrets: dict[str, str] = {}
    masks: list[str] = []
    for name, variable in (message.variables or {}).items():
        if not variable.is_secret:
            continue
        if name.lower() in HIDDEN_SECRETS:
            masks.append(variable.value or "")
        else:
            secrets[name] = variable.value or ""
    return secrets, tuple(mask for mask in masks if mask)


def _connection(message: JobMessage) -> Endpoint:
    endpoints = (message.resources.endpoints if message.resources else None) or []
    found = [endpoint for endpoint in endpoints if endpoint.name.lower() == SYSTEM_CONNECTION.lower()]
    if len(found) != 1:
        raise UnreadableMessageError(
            f"the message must have one endpoint named {SYSTEM_CONNECTION}, and has {len(found)}",
            key="resources.endpoints",
        )
    return found[0]


def _parameters(endpoint: Endpoint) -> dict[str, str]:
    given = (endpoint.authorization.parameters if endpoint.authorization else None) or {}
    return {name.lower(): value for name, value in given.items() if value}


def _endpoint_masks(message: JobMessage, connection: Endpoint) -> tuple[str, ...]:
    """Every parameter of every endpoint's authorization; the job token is among the tokens already."""
    endpoints = (message.resources.endpoints if message.resources else None) or []
    job_token = _parameters(connection).get("accesstoken")
    found = (value for endpoint in endpoints for value in _parameters(endpoint).values())
    return tuple(value for value in found if value != job_token)


def _tokens(connection: Endpoint, github_token: str) -> dict[str, str]:
    """By service: the job token goes to all of the connection's, the GitHub token to the API and to git."""
    token = _parameters(connection).get("accesstoken", "")
    found = dict.fromkeys(("job", "runtime"), token) if token else {}
    data = {name.lower(): value for name, value in (connection.data or {}).items()}
    if token and data.get(ENDPOINT_DATA["oidc"].lower()):
        found["oidc"] = token
    return {**found, **({"github": github_token} if github_token else {})}


def _endpoints(connection: Endpoint, variables: Mapping[str, str]) -> dict[str, str]:
    data = {name.lower(): value for name, value in (connection.data or {}).items() if value}
    found = {service: data[name.lower()] for service, name in ENDPOINT_DATA.items() if name.lower() in data}
    if connection.url:
        found["run"] = connection.url
        found.setdefault("runtime", connection.url)
    for service, name in ENDPOINT_VARIABLES.items():
        if variables.get(name.lower()):
            found[service] = variables[name.lower()]
    return found
