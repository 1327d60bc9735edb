"""One function, two moments: a job before its first side effect, and a use that only shows itself later.

`admit` sees what is known before: the workflow's own uses, nested ones of remote actions, local actions as they are in
the commit. `judge_use` is the same rules for one use, when a step comes to it. A refusal names the step, the chain of
actions, and what would be accepted; it holds nothing but references, which are never secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from runyard.action.closure import MOST_NESTED, Use
from runyard.action.manifest import DockerRuns
from runyard.action.remotes import is_commit
from runyard.admission.policy import covers, outranks
from runyard.job import (
    ActionStep,
    ContainerActionStep,
    JobSpec,
    MappingToken,
    Policy,
    SequenceToken,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runyard.sandbox.contract import Capabilities

Rule: TypeAlias = Literal["action", "pin", "local", "image", "build", "network", "sandbox", "containers", "nesting"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why something may not run. `step` is 0 for what belongs to the job as a whole."""

    rule: Rule
    because: str
    accepted: str
    step: int = 0
    name: str = ""
    chain: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"step {self.step} ('{self.name}'): " if self.step else ""
        through = f"{' → '.join(self.chain)}: " if self.chain else ""
        return f"{where}{through}{self.because}; accepted: {self.accepted}"


class AdmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that may run, with everything it was known to use. It knows no backend."""

    spec: JobSpec
    closure: tuple[Use, ...]
    policy: Policy


def admit(
    spec: JobSpec,
    closure: Iterable[Use],
    policy: Policy,
    capabilities: Capabilities | None,
    *,
    network: str | None = None,
) -> AdmittedJob | tuple[Refusal, ...]:
    """Judge a job as far as it is known. `capabilities` None: no sandbox was chosen yet, and none is judged."""
    uses = tuple(closure)
    refused = [*_of_place(policy, capabilities, network), *_of_images(spec, policy)]
    for use in uses:
        if use.manifest is None and isinstance(use.step, ActionStep) and use.step.repository is None:
            continue  # not in the commit: if it is there when its step comes, it is judged then
        found = judge_use(use, policy, capabilities)
        if found is not None:
            refused.append(found)
    return tuple(refused) if refused else AdmittedJob(spec=spec, closure=uses, policy=policy)


def _of_place(policy: Policy, capabilities: Capabilities | None, network: str | None) -> Iterator[Refusal]:
    if capabilities is not None and not outranks(capabilities.backend, policy.sandbox_floor):
        yield Refusal(
            rule="sandbox",
            because=f"the sandbox {capabilities.backend} is weaker than the policy's floor",
            accepted=f"{policy.sandbox_floor} or stronger",
        )
    if network is not None and policy.network is not None and network not in policy.network:
        yield Refusal(
            rule="network",
            because=f"the policy does not allow network {network}",
            accepted=", ".join(policy.network) or "no network level at all",
        )


def _of_images(spec: JobSpec, policy: Policy) -> Iterator[Refusal]:
    """Images that stand in the job as plain text; what is computed is judged when it is known."""
    for what, template in (("container", spec.container), ("services", spec.services)):
        for image in _images(template, services=what == "services"):
            found = judge_image(image, policy)
            if found is not None:
                yield msgspec.structs.replace(found, chain=(what,))


def _images(template: Template | None, *, services: bool) -> Iterator[str]:
    if isinstance(template, TextToken):
        if template.value and not services:
            yield template.value
    elif isinstance(template, SequenceToken):
        return
    elif isinstance(template, MappingToken):
        for entry in template.entries:
            if services:
                yield from _images(entry.value, services=False)
            elif (
                isinstance(entry.key, TextToken)
                and entry.key.value.lower() == "image"
                and isinstance(entry.value, TextToken)
                and entry.value.value
            ):
                yield entry.value.value


def judge_image(image: str, policy: Policy) -> Refusal | None:
    """An engine's image, by its reference."""
    reference = image.removeprefix("docker://")
    if policy.docker_images is None or any(covers(each, reference) for each in policy.docker_images):
        return None
    return Refusal(
        rule="image",
        because=f"the policy does not allow the image {reference}",
        accepted=", ".join(policy.docker_images) or "no image at all",
    )


def judge_use(use: Use, policy: Policy, capabilities: Capabilities | None) -> Refusal | None:
    """One use, by what is known of it; the reference alone where its manifest isn't known yet."""
    found = _judged(use, policy, capabilities)
    if found is None:
        return None
    return msgspec.structs.replace(found, step=use.number, name=use.name, chain=use.chain)


def _judged(use: Use, policy: Policy, capabilities: Capabilities | None) -> Refusal | None:
    step = use.step
    if isinstance(step, ContainerActionStep):
        return judge_image(step.image, policy)
    if use.native:
        return None
    if step.repository is None:
        if not policy.local_actions:
            return Refusal(
                rule="local", because="the policy does not allow local actions", accepted="actions of repositories"
            )
    else:
        refused = _judge_remote(use, step.repository, step.ref, policy)
        if refused is not None:
            return refused
    if use.manifest is not None and isinstance(use.manifest.runs, DockerRuns):
        return _judge_docker(use.manifest.runs, policy, capabilities, remote=step.repository is not None)
    return None


def _judge_remote(use: Use, repository: str, ref: str, policy: Policy) -> Refusal | None:
    if policy.actions is not None and not any(covers(each, repository) for each in policy.actions):
        return Refusal(
            rule="action",
            because=f"the policy does not allow actions of {repository}",
            accepted=", ".join(policy.actions) or "no remote action at all",
        )
    if policy.pinned_actions and not is_commit(ref):
        return Refusal(
            rule="pin",
            because=f"the policy wants a whole commit id, and {ref!r} can move",
            accepted=f"{repository}@ and 40 hexadecimal digits",
        )
    if use.includes_itself:
        return Refusal(rule="nesting", because="it includes itself", accepted="actions that end")
    if len(use.chain) > MOST_NESTED:
        return Refusal(
            rule="nesting",
            because="actions are nested too deep",
            accepted=f"{MOST_NESTED} levels",
        )
    return None


def _judge_docker(
    runs: DockerRuns, policy: Policy, capabilities: Capabilities | None, *, remote: bool
) -> Refusal | None:
    if runs.image.startswith("docker://"):
        refused = judge_image(runs.image, policy)
        if refused is not None:
            return refused
    elif not policy.build:
        return Refusal(
            rule="build",
            because="it builds a Dockerfile, which the policy does not allow",
            accepted="docker actions with an image, or a policy with build = true",
        )
    if remote and capabilities is not None and not capabilities.containers:
        return Refusal(
            rule="containers",
            because=f"it is a docker action, which the sandbox {capabilities.backend} can't run",
            accepted="--sandbox docker or --sandbox podman",
        )
    return None
