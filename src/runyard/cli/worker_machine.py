"""What this machine is as a worker: its labels and features, and how it runs a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.cli.job_settings import settings_for
from runyard.cli.run_actions import Actions
from runyard.cli.run_machine import Machine, Unserved
from runyard.cli.run_offer import Offers
from runyard.job import MachineError

if TYPE_CHECKING:
    from runyard.cli.worker_config import WorkerOptions
    from runyard.engine.wire import JobSettings
    from runyard.job import Claim


class WorkerMachine:
    """One for the whole process: what was found out of backends and nodes is kept."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._machine = Machine(options.images, options.labels)
        self._machine.platform = options.platform
        self._actions = Actions(options.cache_dir, offline=False, native=True)
        self._offers = Offers(options)
        self.labels = tuple(sorted(self._machine.labels))

    def features(self) -> tuple[str, ...]:
        """What a job may require of this machine. Blocking: an engine is asked."""
        names = ("docker", "podman") if self._options.sandbox == "auto" else (self._options.sandbox,)
        if not any(self._has_containers(name) for name in names):
            return ()
        policy = self._options.policy
        return ("containers", "services", *(("build",) if policy is not None and policy.build else ()))

    def _has_containers(self, name: str) -> bool:
        from runyard.sandbox import open_sandbox

        try:
            return open_sandbox(name).capabilities.containers
        except MachineError:
            return False

    def check(self) -> None:
        """Raises MachineError where no job at all could run here: told before the first claim. Blocking."""
        from runyard.job import JobSpec

        self._offers.backend_for(JobSpec(id="", run_id="", key="", job="", name="", steps=()), "host")

    def settings(self, claim: Claim) -> JobSettings:
        """How this claim runs here. Raises MachineError naming what is missing. Blocking."""
        spec, own = claim.spec, self._options.platform
        if own.startswith(f"{spec.platform}/"):
            spec = msgspec.structs.replace(spec, platform=own)
        place = self._machine.place(spec)
        if isinstance(place, Unserved):
            raise MachineError(place.reason, code="worker.unserved")
        backend = self._offers.backend_for(spec, place.image)
        header = (
            f"Worker: {self._options.name} ({own})",
            f"Platform: {claim.spec.platform} (native)",
            f"Image: {place.image}" + (f", on {backend.name}" if backend.name != "bubblewrap" else ""),
        )
        return msgspec.structs.replace(
            settings_for(claim.spec, place, backend, self._actions, tools=self._options.tools, header=header),
            runner_name=self._options.name,
            own_machine=False,
            policy=self._options.policy,
            collect_dir=f"{self._options.cache_dir}/collected/{claim.lease_id}" if claim.spec.collect else "",
        )
