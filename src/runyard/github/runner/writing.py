"""From a Claim to the job message that a server hands out (runner-v2 10).

The official runner reads what this writes: no null where a number belongs, addresses that end in a slash, a condition
in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.github.runner.context_data import encode_context
from runyard.github.runner.job_message import (
    SYSTEM_CONNECTION,
    V2_MESSAGE,
    ActionsEnvironment,
    Authorization,
    Endpoint,
    JobMessage,
    MaskHint,
    Plan,
    Reference,
    Resources,
    StepMessage,
    Timeline,
    Variable,
)
from runyard.github.runner.normal_form import guid_of, spelled, step_guid
from runyard.github.runner.reading import ENDPOINT_DATA, ENDPOINT_VARIABLES, GITHUB_TOKEN_VARIABLE
from runyard.github.runner.tokens import encode_token
from runyard.job import ActionStep, Claim, ContainerActionStep, Entry, MappingToken, RunStep, TextToken

if TYPE_CHECKING:
    from runyard.job import JobSpec, Json, Step, Template

PLAN_VERSION = 12
PLAN_TYPE = "actions"
NO_SCOPE = "00000000-0000-0000-0000-000000000000"
_FLAGS = {"actions_uses_cache_service_v2": "true", "system.github.results_upload_with_sdk": "true"}


def message_of(claim: Claim, *, request_id: int, billing_owner: str | None = None) -> JobMessage:
    """The message that hands `claim` out. `request_id` names the hand-out, the same when it is fetched again.

    The claim must have the job token (`tokens["job"]`, a JWT of three parts: the official listener parses it) and the
    address of the run service (`endpoints["run"]`).
    """
    spec, context = claim.spec, claim.context
    return JobMessage(
        message_type=V2_MESSAGE,
        plan=Plan(plan_id=guid_of(spec.run_id), scope_identifier=NO_SCOPE, plan_type=PLAN_TYPE, version=PLAN_VERSION),
        timeline=Timeline(id=step_guid(spec.id, 0)),
        job_id=guid_of(spec.id),
        job_display_name=spec.name,
        job_name=spec.key,
        request_id=request_id,
        resources=Resources(endpoints=[_connection(claim)]),
        variables=_variables(claim),
        steps=[_step(spec, step, number) for number, step in enumerate(spec.steps, 1)],
        context_data=_contexts(claim),
        environment_variables=[encode_token(level) for level in spec.env] or None,
        defaults=[encode_token(MappingToken((Entry(TextToken("run"), level),))) for level in spec.defaults] or None,
        mask=[MaskHint(type="regex", value=pattern) for pattern in claim.mask_patterns] or None,
        job_container=_token(spec.container),
        job_service_containers=_token(spec.services),
        job_outputs=_token(spec.outputs),
        actions_environment=None
        if spec.environment is None
        else ActionsEnvironment(name=spec.environment.name, url=_token(spec.environment.url)),
        file_table=list(context.files) or None,
        billing_owner_id=billing_owner,
    )


def _token(template: Template | None) -> Json:
    return None if template is None else encode_token(template)


def _connection(claim: Claim) -> Endpoint:
    data = {name: claim.endpoints[service] for service, name in ENDPOINT_DATA.items() if service in claim.endpoints}
    return Endpoint(
        name=SYSTEM_CONNECTION,
        url=claim.endpoints.get("run"),
        authorization=Authorization(scheme="OAuth", parameters={"AccessToken": claim.tokens.get("job")}),
        data=dict(data),
    )


def _variables(claim: Claim) -> dict[str, Variable]:
    """Secrets, then what the service sets; a claim's own variables win over what would be said by default."""
    spec = claim.spec
    given = {
        **_FLAGS,
        "system.github.job": spec.job.rpartition("/")[2],
        "system.orchestrationId": f"{spec.run_id}.{spec.key}",
        "system.runnerEnvironment": "self-hosted",
    }
    if spec.permissions is not None:
        permissions = {_capitalised(name): level for name, level in spec.permissions.items()}
        given["system.github.token.permissions"] = msgspec.json.encode(permissions).decode()
    for service, name in ENDPOINT_VARIABLES.items():
        if service in claim.endpoints:
            given[name] = claim.endpoints[service]
    if "/" in spec.job and spec.workflow_path:
        given["system.workflowFileFullPath"] = spec.workflow_path
        given["system.workflowFileRef"] = spec.workflow_ref.rpartition("@")[2]
        given["system.workflowFileSha"] = spec.workflow_sha
    given.update(claim.variables)
    variables = {name: Variable(value=value) for name, value in given.items()}
    token = claim.tokens.get("github") or claim.secrets.get("GITHUB_TOKEN")
    if token:
        variables[GITHUB_TOKEN_VARIABLE] = Variable(value=token, is_secret=True)
    for name, value in claim.secrets.items():
        if name.upper() != "GITHUB_TOKEN":
            variables[name] = Variable(value=value, is_secret=True)
    if claim.debug and "ACTIONS_STEP_DEBUG" not in variables:
        variables["ACTIONS_STEP_DEBUG"] = Variable(value="true")
    return variables


def _capitalised(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _contexts(claim: Claim) -> dict[str, Json]:
    spec, context = claim.spec, claim.context
    strategy = spec.strategy
    event = context.event if context.event is not None else {}
    plain: dict[str, Json] = {
        "github": {**context.github, "event": event},
        "inputs": spec.inputs or {},
        "vars": context.vars,
        "needs": {name: {"result": need.result, "outputs": need.outputs} for name, need in spec.needs.items()},
        "strategy": {
            "fail-fast": strategy.fail_fast,
            "job-index": strategy.job_index,
            "job-total": strategy.job_total,
            "max-parallel": strategy.max_parallel,
        },
        "matrix": spec.matrix,
    }
    workflow = {
        "workflow_ref": spec.workflow_ref,
        "workflow_sha": spec.workflow_sha,
        "workflow_repository": "/".join(spec.workflow_ref.split("/")[:2]),
        "workflow_file_path": spec.workflow_path,
    }
    if any(workflow.values()):
        plain["job"] = {name: value for name, value in workflow.items() if value}
    return {name: encode_context(value) for name, value in plain.items()}


def _step(spec: JobSpec, step: Step, number: int) -> StepMessage:
    return StepMessage(
        type="action",
        id=step_guid(spec.id, number),
        name=step.id,
        context_name=step.id,
        display_name_token=_token(step.name),
        condition=step.condition,
        continue_on_error=_token(step.continue_on_error),
        timeout_in_minutes=_token(step.timeout_minutes),
        environment=_token(step.env),
        reference=_reference(step),
        inputs=_token(_inputs(step)),
    )


def _reference(step: Step) -> Reference:
    match step:
        case RunStep():
            return Reference(type="script")
        case ContainerActionStep():
            return Reference(type="containerRegistry", image=step.image)
        case ActionStep(repository=None):
            return Reference(type="repository", repository_type="self", path=step.path)
        case ActionStep():
            return Reference(
                type="repository",
                repository_type="GitHub",
                name=step.repository,
                ref=step.ref,
                path=step.path or None,
            )


def _inputs(step: Step) -> Template | None:
    if isinstance(step, ContainerActionStep):
        return spelled(step.inputs, "entryPoint")
    if isinstance(step, ActionStep):
        return step.inputs
    given = (("script", step.script), ("workingDirectory", step.working_directory), ("shell", step.shell))
    return MappingToken(tuple(Entry(TextToken(name), value) for name, value in given if value is not None))
