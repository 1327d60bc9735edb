"""Set-up of a job: what its log begins with, its contexts, its environment and defaults (job-semantics 3.3, 3.4, 2)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from runyard.engine.admitting import admit_job
from runyard.engine.evaluate import texts_of
from runyard.engine.programs import Programs
from runyard.engine.refusals import watch_refusals
from runyard.engine.state import Scope
from runyard.job import MachineError, MappingToken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.engine.state import Frame, Job
    from runyard.sandbox.contract import Session

_ARCHITECTURES = {"amd64": "X64", "386": "X86", "arm64": "ARM64", "arm": "ARM"}
_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "windows": "Windows"}

KEPT_IN_BOTH_MODES = (
    "D12 the job's user is the sandbox's own; D13 workspace and tool cache start empty; D14 hooks run inside the "
    "sandbox; D15 no process outlives the sandbox; D16 no engine socket, device or host path; D17 the network level in "
    "force; D18 no token unless one is given; D20 the stand-in for a hosted label; D21 limits on command files"
)
"""What `--strict-github` doesn't change, named once in the log of each strict job."""


async def set_up_job(frame: Frame, open_session: Callable[[], Awaitable[Session]], version: str) -> None:
    """Phase 3: contexts, what is evaluated once a job, and the sandbox. Raises RunyardError.

    A job with containers gets its sandbox later, when they are initialized (`job.containers` is true then).
    """
    job = frame.job
    _header(frame, version)
    _refuse_container_hooks(job)
    await admit_job(job)
    await _evaluate_environment(frame)
    await _evaluate_containers(frame)
    if not job.containers:
        enter_session(job, await open_session())
    frame.log.say("Prepare workflow directory")
    await _evaluate_defaults(frame)
    frame.log.say("Prepare all required actions")
    from runyard.engine.actions import prepare_actions

    await prepare_actions(frame)
    frame.log.say(f"Complete job name: {job.spec.name}")


def _refuse_container_hooks(job: Job) -> None:
    """They would replace the sandbox; on GitHub both this machine and the service have to want them (18)."""
    wanted = job.settings.runner_env.get("ACTIONS_RUNNER_CONTAINER_HOOKS")
    allowed = job.claim.variables.get("DistributedTask.AllowRunnerContainerHooks", "")
    if wanted and allowed.lower() == "true":
        raise MachineError(
            f"ACTIONS_RUNNER_CONTAINER_HOOKS ({wanted}): container hooks replace the sandbox by a script",
            code="refused.container_hooks",
            remedy="leave the variable out; containers of a job run on --sandbox docker or podman",
        )


def make_contexts(job: Job) -> None:
    """`github`, `runner`, `job`, `strategy`, `needs` as steps see them (section 2)."""
    claim, spec, layout = job.claim, job.spec, job.layout
    github = dict(claim.context.github)
    github["event"] = claim.context.event if claim.context.event is not None else {}
    github["token"] = job.secrets["GITHUB_TOKEN"]
    github["workspace"] = layout.workspace
    github["event_path"] = layout.event_path
    github["job"] = spec.job.rpartition("/")[2]
    job.scope = Scope(inputs=spec.inputs, github=github)
    system, _, rest = spec.platform.partition("/")
    job.runner.update(
        name=job.settings.runner_name,
        os=_SYSTEMS.get(system, system),
        arch=_ARCHITECTURES.get(rest.partition("/")[0], "X64"),
        temp=layout.temp,
        tool_cache=layout.tool_cache,
        workspace=layout.pipeline,
        environment=job.settings.runner_environment,
    )
    if job.debug:
        job.runner["debug"] = "1"
    strategy = spec.strategy
    job.strategy.update(
        {
            "fail-fast": strategy.fail_fast,
            "job-index": strategy.job_index,
            "job-total": strategy.job_total,
            "max-parallel": strategy.max_parallel,
        }
    )
    job.needs.update(
        {name: {"result": each.result, "outputs": dict(each.outputs)} for name, each in spec.needs.items()}
    )
    _describe_workflow(job)
    _name_services(job)
    job.event_json = json.dumps(github["event"], indent=2, ensure_ascii=False).encode("utf-8", "replace")
    job.tracking_id = f"github_{os.urandom(16).hex()}"


_ACTION_VARIABLES = {
    "runtime": ("ACTIONS_RUNTIME_URL", "ACTIONS_RUNTIME_TOKEN"),
    "cache": ("ACTIONS_CACHE_URL", ""),
    "results": ("ACTIONS_RESULTS_URL", ""),
}


def _name_services(job: Job) -> None:
    """The variables of the services that the claim names (7.3): scripts get the id-token pair alone."""
    endpoints, tokens = job.claim.endpoints, job.claim.tokens
    if "oidc" in endpoints and "oidc" in tokens:
        job.script_services["ACTIONS_ID_TOKEN_REQUEST_URL"] = endpoints["oidc"]
        job.script_services["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = tokens["oidc"]
    for service, (url, token) in _ACTION_VARIABLES.items():
        if service in endpoints:
            job.action_services[url] = endpoints[service]
        if token and service in tokens:
            job.action_services[token] = tokens[service]
    if "results" in endpoints:
        job.action_services["ACTIONS_CACHE_SERVICE_V2"] = "True"


def _describe_workflow(job: Job) -> None:
    spec = job.spec
    if spec.workflow_ref:
        job.job_context["workflow_ref"] = spec.workflow_ref
        job.job_context["workflow_repository"] = "/".join(spec.workflow_ref.split("/")[:2])
    if spec.workflow_sha:
        job.job_context["workflow_sha"] = spec.workflow_sha
    if spec.workflow_path:
        job.job_context["workflow_file_path"] = spec.workflow_path


def _header(frame: Frame, version: str) -> None:
    job, log = frame.job, frame.log
    settings = job.settings
    log.say(f"Current runner version: Runyard {version}")
    log.say(f"Runner name: '{settings.runner_name}'")
    image = settings.image if job.spec.container is None else "of the job's container"
    log.say(f"Sandbox: {settings.sandbox}, image {image}, network {settings.network}")
    for line in settings.header:
        log.say(line)
    if job.strict:
        log.say(f"Strict mode, except for what the sandbox promises: {KEPT_IN_BOTH_MODES}")
    if job.spec.permissions is not None:
        log.say("##[group]GITHUB_TOKEN Permissions")
        for name, level in job.spec.permissions.items():
            log.say(f"{'-'.join(part.capitalize() for part in name.split('-'))}: {level}")
        log.say("##[endgroup]")
    log.say(f"Secret source: {'Actions' if job.claim.secrets else 'None'}")
    if job.spec.inputs and "/" in job.spec.job:
        log.say(f"Uses: {job.spec.workflow_ref or job.spec.workflow_path}")
        log.say("##[group] Inputs")
        for name, value in dict(job.spec.inputs).items():
            log.say(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")
        log.say("##[endgroup]")


async def _evaluate_environment(frame: Frame) -> None:
    """One mapping a level, workflow first; each sees what the ones before it gave (3.4)."""
    for level in frame.job.spec.env:
        values = await texts_of(frame, level)
        frame.job.env.update(values)
        frame.env.update(values)


async def _evaluate_defaults(frame: Frame) -> None:
    """The last level that has anything replaces the earlier ones as a whole (3.4)."""
    job = frame.job
    for level in job.spec.defaults:
        values = await texts_of(frame, level)
        if values or (isinstance(level, MappingToken) and level.entries):
            job.shell = values.get("shell")
            job.working_directory = values.get("working-directory")


async def _evaluate_containers(frame: Frame) -> None:
    """The job's container and services, judged; on a backend without containers they are refused by name."""
    job, spec = frame.job, frame.job.spec
    if spec.container is None and spec.services is None:
        return
    from runyard.engine.containers import containers_of, move_into_container

    job.containers = await containers_of(frame)
    asked = [("container", job.containers.job is not None), ("services", bool(job.containers.services))]
    wanted = [what for what, is_asked in asked if is_asked]
    if wanted and not job.capabilities.containers:
        raise MachineError(
            f"this job has `{'` and `'.join(wanted)}`, which {cannot(job, 'start')}", code="sandbox.containers"
        )
    if job.containers.job is not None:
        move_into_container(job, frame)


def enter_session(job: Job, session: Session) -> None:
    """From here on steps may run."""
    job.session = session
    watch_refusals(job)
    job.programs = Programs(session)
    job.base_environment = {
        **session.environment,
        **({"HOME": job.layout.home} if job.in_container else {}),
        **job.settings.runner_env,
        "RUNNER_TRACKING_ID": job.tracking_id,
    }


def cannot(job: Job, do: str) -> str:
    """Why a container isn't there: the end of a sentence, with what helps where something does."""
    return f"the sandbox '{job.settings.sandbox}' can't {do}; use --sandbox docker or --sandbox podman"
