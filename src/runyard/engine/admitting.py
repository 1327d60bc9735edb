"""Where the engine asks admission: before the first side effect of a job, and when a step comes to something new.

The policy of the claim is the one in force: `narrowed` has met it with this machine's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from runyard.action.closure import CommittedActions, Use, committed_closure
from runyard.admission.admit import admit, judge_use
from runyard.admission.policy import meet
from runyard.job import ActionStep, MachineError
from runyard.sandbox.contract import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.action.manifest import Manifest
    from runyard.admission.admit import Refusal
    from runyard.engine.state import Frame, Job
    from runyard.job import Claim, ContainerActionStep, Policy


def narrowed(claim: Claim, own: Policy | None) -> Claim:
    """The claim under this machine's policy as well."""
    return claim if own is None else msgspec.structs.replace(claim, policy=meet(claim.policy, own))


async def admit_job(job: Job) -> None:
    """The first moment: before a sandbox is opened or an action asked for. Raises MachineError with every refusal."""
    policy = job.claim.policy
    committed = CommittedActions(job.claim.checkout if _looks_inside(policy) else None)
    local = any(isinstance(step, ActionStep) and step.repository is None for step in job.spec.steps)
    closure = await asyncio.to_thread(committed_closure, job.spec.steps, committed) if local else _named(job)
    # Which containers the sandbox can do is judged when it is open; here only its name counts.
    place = Capabilities(backend=job.settings.sandbox, supervisor="", containers=True)
    admitted = admit(job.spec, (_marked(job, use) for use in closure), policy, place, network=job.settings.network)
    if isinstance(admitted, tuple):
        raise _refused(admitted)


def _looks_inside(policy: Policy) -> bool:
    """Whether a local action's manifest could matter to this policy."""
    narrow = policy.actions is not None or policy.docker_images is not None or policy.pinned_actions
    return narrow or not policy.local_actions or not policy.build


def _named(job: Job) -> tuple[Use, ...]:
    return committed_closure(job.spec.steps, CommittedActions(None))


def _marked(job: Job, use: Use) -> Use:
    from runyard.engine.actions import native_name

    if isinstance(use.step, ActionStep) and native_name(job, use.step) is not None:
        return msgspec.structs.replace(use, native=True)
    return use


def refuse_uses(job: Job, uses: Iterable[Use]) -> None:
    """Judge what became known while actions are prepared. Raises MachineError with every refusal."""
    refused = [found for use in uses if (found := judge_use(use, job.claim.policy, job.capabilities))]
    if refused:
        raise _refused(refused)


def judge_now(frame: Frame, step: ActionStep | ContainerActionStep, manifest: Manifest | None = None) -> Refusal | None:
    """The second moment: a use as a step comes to it, maybe of what an earlier step wrote. A refusal fails the step."""
    job = frame.job
    around = [each for each in job.frames if each is not frame and isinstance(each.step, ActionStep)]
    chain = tuple(each.step.uses for each in around if isinstance(each.step, ActionStep))
    first = around[0] if around else frame
    use = Use(number=first.step.number, name=first.name, chain=(*chain, step.uses), step=step, manifest=manifest)
    return judge_use(_marked(job, use), job.claim.policy, None)


def _refused(refusals: Iterable[Refusal]) -> MachineError:
    return MachineError("\n".join(str(each) for each in refusals), code="admission.refused")
