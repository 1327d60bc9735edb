"""Which backend and network a job gets on this machine: asked of the backends once, and only when a job wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runyard.admission.policy import outranks
from runyard.cli.run_machine import choose_network, needs_engine
from runyard.job import ContainerActionStep, MachineError, NetworkLevel

if TYPE_CHECKING:
    from runyard.cli.run_actions import Actions
    from runyard.cli.run_show import Offer
    from runyard.job import JobSpec, Policy
    from runyard.run import PreviewJob
    from runyard.sandbox.contract import Capabilities


class Wishes(Protocol):
    """What a command line asks for, of which a backend is chosen."""

    @property
    def sandbox(self) -> str:
        """A backend, or `auto`."""

    @property
    def network(self) -> str | None:
        """The level, None for the widest."""

    @property
    def policy(self) -> Policy | None:
        """This machine's own."""


class Backend:
    """A backend that was found, with the network level in use and the line to say about it (None: nothing).

    `known` is what was learned about it, for the job process that opens it next.
    """

    def __init__(self, name: str, network: NetworkLevel, line: str | None, known: bytes = b"") -> None:
        self.name = name
        self.network = network
        self.line = line
        self.known = known


class Offers:
    """Answers for one command line. Nothing is asked of a backend before a job wants it."""

    def __init__(self, options: Wishes, actions: Actions | None = None) -> None:
        self._options = options
        self._actions = actions
        self._known: dict[str, Backend | MachineError] = {}
        self._learned: dict[str, bytes] = {}

    def backend_for(self, spec: JobSpec, image: str) -> Backend:
        """The backend of one job. Raises MachineError where this machine has none that will do."""
        wanted = self._options.sandbox
        needs = needs_engine(spec, image) or self._docker_action(spec)
        if wanted == "bubblewrap" and needs is not None:
            raise MachineError(
                f"bubblewrap can't do {needs}: it has no container engine",
                code="sandbox.containers",
                remedy="--sandbox auto, docker or podman",
            )
        if wanted != "auto":
            return self._open(wanted)
        policy = self._options.policy
        if needs is None and (policy is None or outranks("bubblewrap", policy.sandbox_floor)):
            return self._open("bubblewrap")
        needs = needs or f"the policy's floor {policy.sandbox_floor if policy else ''}"
        try:
            return self._open("docker")
        except MachineError as no_docker:
            try:
                return self._open("podman")
            except MachineError:
                raise MachineError(
                    f"{needs} needs a container engine: {no_docker.message}",
                    code=no_docker.code,
                    remedy=no_docker.remedy,
                ) from no_docker

    def _docker_action(self, spec: JobSpec) -> str | None:
        """A docker action among what the job uses, as far as it is on this machine; None where none is known."""
        from runyard.action.manifest import DockerRuns
        from runyard.cli.run_actions import needs_node

        if self._actions is None or not needs_node(spec.steps, native=self._actions.native):
            return None
        for use in self._actions.gather(spec.steps, pins=None, fetch=False).uses:
            if use.manifest is not None and isinstance(use.manifest.runs, DockerRuns):
                return f"the docker action {use.uses}"
            if isinstance(use.step, ContainerActionStep):
                return f"the docker action {use.uses}"
        return None

    def _open(self, name: str) -> Backend:
        found = self._known.get(name)
        if found is None:
            try:
                found = self._found(name)
            except MachineError as error:
                found = error
            self._known[name] = found
        if isinstance(found, MachineError):
            raise found
        return found

    def _found(self, name: str) -> Backend:
        policy = self._options.policy
        allowed = policy.network if policy is not None else None
        network, line = choose_network(self._options.network, self._capabilities(name), allowed)
        return Backend(name, network, line, self._learned.get(name, b""))

    def _capabilities(self, name: str) -> Capabilities:
        from runyard.sandbox import open_sandbox

        sandbox = open_sandbox(name)
        self._learned[name] = getattr(sandbox, "known", b"")
        return sandbox.capabilities

    def offer(self, job: PreviewJob, image: str) -> Offer:
        """The same for a plan: what can't be offered is told as nothing, and why stands in the notes of the run."""
        from runyard.cli.run_show import Offer

        if job.spec is None:
            return Offer(None, None)
        try:
            backend = self.backend_for(job.spec, image)
        except MachineError:
            return Offer(None, None)
        return Offer(backend.name, backend.network)
