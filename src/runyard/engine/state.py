"""What one job is while it runs: mutable, owned by the job process's one loop, written by steps in turn.

Three lives nest here. A Job lasts from hand-out to result; a Scope as long as a sequence of steps can refer to each
other (the workflow's, or one composite action's); a Frame while one step instance runs one phase.
"""

from __future__ import annotations

import asyncio
import operator
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from runyard.engine.command_files import prepend_path
from runyard.engine.job_containers import JobContainers
from runyard.engine.logbook import StepLog
from runyard.expression.values import ExactObject
from runyard.job import MachineError, Usage

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Awaitable, Callable, Mapping

    from runyard.action.manifest import Manifest
    from runyard.engine.actions import ActionFiles, ActionStore
    from runyard.engine.hooks import Hook
    from runyard.engine.layout import Layout
    from runyard.engine.logbook import Emitter
    from runyard.engine.matchers import Matchers
    from runyard.engine.processes import Waits
    from runyard.engine.programs import Programs
    from runyard.engine.results import Result
    from runyard.engine.services import Services
    from runyard.engine.stores import JobStores
    from runyard.engine.wire import JobSettings, PauseAction
    from runyard.job import Claim, Conclusion, JobSpec, Json, Refused, Step
    from runyard.report.masks import Masker
    from runyard.sandbox.contract import Capabilities, Session

Phase: TypeAlias = Literal["pre", "main", "post"]
Stop: TypeAlias = Literal["cancelled", "timed_out", "forced"]


class Control:
    """The stop token of a step; a nested step's token stops with its parent's. The first reason stays, force wins."""

    def __init__(self, parent: Control | None = None) -> None:
        self.stopped = asyncio.Event()
        self.forced = asyncio.Event()
        self.why: Stop | None = None
        self._children: list[Control] = []
        if parent is not None:
            parent._children.append(self)  # noqa: SLF001 - its own kind
            if parent.why is not None:
                self.stop(parent.why)

    def stop(self, why: Stop) -> None:
        """Ask the step to end. Safe to repeat."""
        if self.why is None or why == "forced":
            self.why = why
        self.stopped.set()
        if why == "forced":
            self.forced.set()
        for child in self._children:
            child.stop(why)


class Scope:
    """Where a sequence of steps looks up `steps`, `inputs` and `github`.

    `own_env` are the keys of the calling step's `env`, applied again over every write to `GITHUB_ENV` (section 6).
    `action_status` is None in the workflow's own scope, else the status that nested conditions look at (9.7).
    """

    def __init__(
        self,
        *,
        inputs: Json,
        github: dict[str, Json],
        own_env: Mapping[str, str] | None = None,
        composite: bool = False,
        depth: int = 0,
        files: tuple[str, ...] | None = None,
    ) -> None:
        self.files = files
        self.steps: dict[str, Json] = {}
        self.actions: dict[str, ActionInstance] = {}
        self.posts: list[PostStep] = []
        self.inputs = inputs
        self.github = github
        self.own_env = dict(own_env or {})
        self.composite = composite
        self.action_status: Conclusion | None = "success" if composite else None
        self.depth = depth

    def record(self, step_id: str, outputs: Mapping[str, str], outcome: Conclusion, conclusion: Conclusion) -> None:
        """Store a finished step, unless its id was generated (section 2)."""
        if step_id and not step_id.startswith("__"):
            self.steps[step_id] = {"outputs": dict(outputs), "outcome": outcome, "conclusion": conclusion}


class Frame:
    """One step instance in one phase."""

    def __init__(
        self,
        job: Job,
        step: Step,
        scope: Scope,
        log: StepLog,
        control: Control,
        *,
        phase: Phase = "main",
        state: dict[str, str] | None = None,
    ) -> None:
        self.job = job
        self.step = step
        self.scope = scope
        self.log = log
        self.control = control
        self.phase: Phase = phase
        self.condition = step.condition if phase == "main" else "always()"
        self.env: ExactObject = ExactObject(job.env)
        self.env.update(scope.own_env)
        self.own_env: dict[str, str] = dict(scope.own_env)
        self.github: dict[str, Json] = {
            **scope.github,
            "action": step.id,
            "action_repository": None,
            "action_ref": None,
        }
        self.outputs: dict[str, str] = {}
        self.state: dict[str, str] = {} if state is None else state
        self.undecided = False
        self.result: Result | None = None
        self.command_failed = False
        self.name = ""
        self.shown_command = ""
        self.exit_code: int | None = None
        self.usage: Usage | None = None
        self.reason: str | None = None
        self.reason_code: str | None = None
        self.said_deprecated: set[str] = set()
        self.last_command: tuple[dict[str, str], str] | None = None
        self.hashed: dict[tuple[str, ...], str] = {}
        self.positions: tuple[str, ...] | None = None

    def explain(self, code: str, reason: str) -> None:
        """Keep the first reason; later ones follow from it."""
        if self.reason_code is None:
            self.reason_code = code
            self.reason = reason

    @property
    def files(self) -> tuple[str, ...]:
        """The files that positions of this step's templates index."""
        if self.positions is not None:
            return self.positions
        return self.scope.files if self.scope.files is not None else self.job.claim.context.files

    def condition_contexts(self) -> dict[str, Json]:
        """What a condition may name: everything but `secrets` (4.3)."""
        found = self.contexts()
        found.pop("secrets", None)
        return found

    def add_own_env(self, values: Mapping[str, str]) -> None:
        """The step's own `env`, evaluated: over everything else, for this step alone."""
        self.env.update(values)
        self.own_env.update(values)

    def start_again(self) -> None:
        """Forget how this step went, for another try of it."""
        self.result = None
        self.command_failed = self.undecided = False
        self.exit_code = self.usage = self.reason = self.reason_code = None
        self.outputs.clear()

    def usage_since(self, started: float) -> Usage:
        """What the step used; `started` is of the monotonic clock."""
        usage = self.usage or Usage()
        return msgspec.structs.replace(usage, wall_s=time.monotonic() - started)

    def count(self, usage: Usage) -> None:
        """Add what one more process of this step used."""
        self.usage = plus(self.usage or Usage(), usage)

    def set_state(self, name: str, value: str) -> None:
        """State for later phases of this step instance: the name keeps its case but is stored ignoring it (9.4)."""
        same = next((key for key in self.state if key.lower() == name.lower()), name)
        self.state[same] = value

    def contexts(self) -> dict[str, Json]:
        """Every context that this step may name; which ones a key allows was judged when it was read."""
        job = self.job
        found: dict[str, Json] = {
            "github": self.github,
            "env": self.env,
            "inputs": self.scope.inputs,
            "job": job.job_context,
            "steps": self.scope.steps,
            "runner": job.runner,
            "strategy": job.strategy,
            "matrix": job.spec.matrix,
        }
        if not self.scope.composite:
            found |= {"vars": job.claim.context.vars, "secrets": job.secrets, "needs": job.needs}
        if self.scope.action_status is not None:
            found["github"] = {**self.github, "action_status": self.scope.action_status}
        return found


def plus(one: Usage, other: Usage) -> Usage:
    """Both together: sums, and the higher peak; what neither knows stays unknown."""
    return Usage(
        wall_s=one.wall_s + other.wall_s,
        cpu_s=one.cpu_s + other.cpu_s,
        peak_memory=_of_both(max, one.peak_memory, other.peak_memory),
        read_bytes=_of_both(operator.add, one.read_bytes, other.read_bytes),
        written_bytes=_of_both(operator.add, one.written_bytes, other.written_bytes),
    )


def _of_both(how: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return how(one, other)


class PostStep:
    """The post phase of an action that has begun, in the scope and with the state of its main phase."""

    def __init__(
        self,
        name: str,
        step: Step,
        scope: Scope,
        state: dict[str, str],
        run: Callable[[Frame], Awaitable[Result]],
    ) -> None:
        self.name = name
        self.step = step
        self.scope = scope
        self.state = state
        self.run = run


class ActionInstance:
    """One step's use of an action, through all its phases: where it is, its state, and for a composite its own scope.

    `folder` is the action's folder inside the sandbox; `post_pending` says that its post phase is on a stack already.
    """

    def __init__(self, manifest: Manifest, folder: str, *, local: bool) -> None:
        self.manifest = manifest
        self.folder = folder
        self.local = local
        self.state: dict[str, str] = {}
        self.scope: Scope | None = None
        self.post_pending = False
        self.image: str | None = None
        """Of a docker action: what its container is made from, once it is known."""


class JobHooks:
    """What a job asks of whoever started it. This one, for nobody: a failed step is never looked at."""

    async def pause(self, frame: Frame) -> PauseAction:
        """A step failed and waits for a person's choice."""
        return "go_on"

    def interrupt_pause(self) -> None:
        """The job is cancelled: a wait for a person ends. Quiet when there is none."""

    async def repository(self, depth: int) -> str:
        """A git folder with the claim's commit, `depth` commits deep (0: all). Raises MachineError."""
        raise MachineError(
            "this run has no local repository to check out from",
            code="action.no_repository",
            remedy="Run it where the repository is.",
        )


class Job:
    """One job while it runs."""

    def __init__(
        self,
        claim: Claim,
        settings: JobSettings,
        layout: Layout,
        *,
        emitter: Emitter,
        masker: Masker,
        matchers: Matchers,
        hooks: JobHooks | None = None,
        waits: Waits,
    ) -> None:
        self.hooks = hooks or JobHooks()
        self.waits = waits
        self.claim = claim
        self.spec: JobSpec = claim.spec
        self.settings = settings
        self.layout = layout
        self.emitter = emitter
        self.masker = masker
        self.matchers = matchers
        self.strict = claim.strict_github
        self.session: Session
        self.programs: Programs
        self.env: dict[str, str] = {}
        self.prepends: list[str] = []
        self.shell: str | None = None
        self.working_directory: str | None = None
        self.secrets: dict[str, str] = {"GITHUB_TOKEN": "", **claim.secrets}
        self.runner: dict[str, Json] = {}
        self.job_context: dict[str, Json] = {"status": "success"}
        self.strategy: dict[str, Json] = {}
        self.needs: dict[str, Json] = {}
        self.scope: Scope
        self.event_json = b""
        self.event_is_there = False
        self.stale_files: list[str] = []
        self.record: StepLog
        self.frames: list[Frame] = []
        self.hashes: dict[tuple[str, ...], str] = {}
        self.file_owners: dict[str, str] = {}
        self.base_environment: Mapping[str, str] = {}
        self.script_services: dict[str, str] = {}
        self.action_services: dict[str, str] = {}
        self.actions: ActionStore
        self.services: Services
        self.resolved: dict[str, ActionFiles | Refused] = {}
        self.placed: set[str] = set()
        self.checkouts: dict[str, tuple[str, str]] = {}
        self.touched = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.capabilities: Capabilities
        self.containers = JobContainers()
        self.hook_files: dict[str, Hook] = {}
        self.stores: JobStores | None = None
        self.images: dict[str, str] = {}
        self.in_container = False
        self.tracking_id = ""
        self.posts: list[PostStep] = []
        self.first_failure: Frame | None = None
        self.skips_everything = False
        self.pause_wanted = settings.pause_on_failure
        self.usage = Usage()
        self.used_by_steps = Usage()
        self.minute_s = 60.0
        self._next_number = max((step.number for step in claim.spec.steps), default=0) + 1

    @property
    def status(self) -> Conclusion:
        """`job.status`: success, failure or cancelled."""
        status: Conclusion = self.job_context["status"]
        return status

    @status.setter
    def status(self, status: Conclusion) -> None:
        if self.job_context["status"] != "cancelled":
            self.job_context["status"] = status

    @property
    def session_is_open(self) -> bool:
        """Whether set-up has come so far that steps may run."""
        return hasattr(self, "session")

    def scratch(self) -> str:
        """A folder of the host that lasts as long as the job, where no cache folder is given."""
        if self._scratch is None:
            import tempfile

            self._scratch = tempfile.TemporaryDirectory(prefix="runyard-job-", ignore_cleanup_errors=True)
        return self._scratch.name

    def clean_up(self) -> None:
        """Remove what `scratch` made; after the sandbox is closed. Safe to repeat."""
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def now_ns(self) -> int:
        """The time of an event."""
        return time.time_ns()

    def new_log(self, step: int) -> StepLog:
        """The log of one record."""
        self.record = StepLog(step, self.emitter, self.masker, strict=self.strict)
        return self.record

    def take_number(self) -> int:
        """The number of a record after the last step: they count on."""
        self._next_number += 1
        return self._next_number - 1

    async def pause_at(self, frame: Frame) -> PauseAction:
        """Ask a person about a failed step, where somebody asked to be asked."""
        if not self.pause_wanted or self.skips_everything:
            return "go_on"
        return await self.hooks.pause(frame)

    @property
    def debug(self) -> bool:
        """Whether step debugging is on."""
        return self.claim.debug or self.secrets.get("ACTIONS_STEP_DEBUG", "").lower() == "true"

    def add_path(self, entries: tuple[str, ...]) -> None:
        """Entries of `GITHUB_PATH`, in the order written."""
        self.prepends = prepend_path(self.prepends, entries)

    def set_env(self, name: str, value: str) -> None:
        """A write to the global environment: following steps see it, and so do the frames that run (11.3)."""
        self.env[name] = value
        for frame in self.frames:
            if name not in frame.own_env:
                frame.env[name] = value
