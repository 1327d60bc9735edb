"""A sandbox double: every command is answered by a function of the test, and remembered.

What a command would have written into command files is given by the file's kind; which paths those are stands in the
command's own environment, as for a real process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from runyard.action.manifest import parse_reference
from runyard.engine.job import JobRun
from runyard.engine.processes import Waits
from runyard.engine.wire import JobSettings
from runyard.expression.conditions import wrap_condition
from runyard.expression.scanner import parse_text
from runyard.job import (
    ActionStep,
    Annotation,
    BooleanToken,
    Claim,
    ContainerActionStep,
    Entry,
    JobEvent,
    JobFinished,
    JobSpec,
    Limits,
    Log,
    MappingToken,
    NullToken,
    NumberToken,
    Order,
    Policy,
    RunContext,
    RunStep,
    SequenceToken,
    Step,
    StepFinished,
    Template,
    Usage,
)
from runyard.sandbox.contract import (
    Capabilities,
    ContainerRun,
    ContainerState,
    Exit,
    ExitReason,
    FileBack,
    Identity,
    ImageBuild,
    Leftovers,
    ServiceSpec,
    Shape,
    SignalKind,
    StepCommand,
    TakeConnection,
    Told,
)

FILE_VARIABLES = {
    "env": "GITHUB_ENV",
    "output": "GITHUB_OUTPUT",
    "path": "GITHUB_PATH",
    "state": "GITHUB_STATE",
    "summary": "GITHUB_STEP_SUMMARY",
}


if TYPE_CHECKING:
    from runyard.engine.actions import ActionStore
    from runyard.engine.state import JobHooks
    from runyard.sandbox.container_wishes import RegistryLogin


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """How a command goes: what it prints (in pieces), writes, and ends with.

    `until` makes it run until that signal comes (the code is then 128 + its number, or `code` where it `ends_itself`);
    `leaves_output_open` is a daemon; with `child_until` another process of it, without output, ends at that signal.
    """

    output: bytes | tuple[bytes, ...] = b""
    code: int = 0
    files: Mapping[str, bytes | FileBack] = {}
    until: SignalKind | None = None
    ends_itself: bool = False
    child_until: SignalKind | None = None
    leaves_output_open: bool = False
    problem: str | None = None
    reason: ExitReason | None = None
    detail: str | None = None
    before_end: Callable[[], object] | None = None


Script = Callable[[StepCommand], Reply | None]


class ScriptedRunning:
    """One command under way."""

    def __init__(self, command: StepCommand, reply: Reply) -> None:
        self.command = command
        self.reply = reply
        self.signals: list[tuple[SignalKind, bool]] = []
        self._pieces = [reply.output] if isinstance(reply.output, bytes) else list(reply.output)
        self._ended = asyncio.Event()
        self._killed_by: SignalKind | None = None
        if reply.until is None:
            self._ended.set()

    async def read(self, limit: int = 65536) -> bytes:
        await asyncio.sleep(0)
        if self._pieces:
            return self._pieces.pop(0)
        await self._ended.wait()
        if self.reply.leaves_output_open:
            await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        self._pieces.append(data)

    async def wait(self) -> Exit:
        await self._ended.wait()
        await asyncio.sleep(0)
        if self.reply.before_end is not None:
            self.reply.before_end()
        files = {}
        for kind, content in self.reply.files.items():
            path = self.command.env.get(FILE_VARIABLES.get(kind, ""), kind)
            files[path] = content if isinstance(content, FileBack) else FileBack(content)
        code = (
            {"interrupt": 130, "terminate": 143, "kill": 137}[self._killed_by] if self._killed_by else self.reply.code
        )
        return Exit(
            code=code,
            files={out.path: files.get(out.path, FileBack()) for out in self.command.files_out},
            problem=self.reply.problem,
            reason=self.reply.reason,
            detail=self.reply.detail,
        )

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        self.signals.append((kind, everyone))
        order: list[SignalKind] = ["interrupt", "terminate", "kill"]
        if self.reply.until and not self._ended.is_set() and order.index(kind) >= order.index(self.reply.until):
            self._killed_by = kind
            self._ended.set()

    async def left(self) -> bool:
        order: list[SignalKind] = ["interrupt", "terminate", "kill"]
        until = self.reply.child_until
        got = [order.index(kind) for kind, everyone in self.signals if everyone]
        return not self._ended.is_set() or (until is not None and max(got, default=-1) < order.index(until))


class ScriptedNetwork:
    """A packet filter that refused these, told when it is asked."""

    def __init__(self, *refused: tuple[str, str]) -> None:
        self.on_refused: Callable[[str, str], None] | None = None
        self.pending = list(refused)
        self.hung_up = 0

    def hang_up(self) -> None:
        self.hung_up += 1

    async def refused(self) -> tuple[tuple[str, str], ...]:
        told, self.pending = tuple(self.pending), []
        for destination, because in told:
            assert self.on_refused is not None
            self.on_refused(destination, because)
        return told


class ScriptedContainers:
    """Containers beside the sandbox: remembers what was asked; docker actions are answered by the session's script.

    `fails` is what the start of services raises, `hangs` makes it wait without end.
    """

    def __init__(self, *, fails: Exception | None = None, hangs: bool = False) -> None:
        self.session: ScriptedSession
        self.services: tuple[ServiceSpec, ...] = ()
        self.runs: list[ContainerRun] = []
        self.builds: list[ImageBuild] = []
        self.asked: list[str] = []
        self._fails = fails
        self._hangs = hangs

    @property
    def job(self) -> ContainerState:
        return ContainerState(id="c0", network="n0" if self.services else "")

    async def pull(self, image: str, login: RegistryLogin | None, told: Told) -> str:
        self.asked.append(f"pull {image}")
        return image

    async def build(self, build: ImageBuild, told: Told) -> str:
        self.builds.append(build)
        return f"built-{len(self.builds)}"

    async def start_services(self, specs: tuple[ServiceSpec, ...], told: Told) -> Mapping[str, ContainerState]:
        self.services = specs
        self.asked.append("start")
        if self._hangs:
            await asyncio.Event().wait()
        if self._fails is not None:
            told("its log")
            raise self._fails
        return {
            each.name: ContainerState(
                id=f"c-{each.name}",
                network="n0",
                ports={str(inside): str(outside or 40000 + inside % 1000) for outside, inside, _ in each.wishes.ports},
            )
            for each in specs
        }

    async def stop_services(self, told: Told) -> None:
        self.asked.append("stop")

    async def run(self, run: ContainerRun, told: Told) -> ScriptedRunning:
        self.runs.append(run)
        return await self.session.start(
            StepCommand(
                argv=(run.entrypoint or run.image, *(run.args or ())),
                env=run.env,
                cwd=run.cwd,
                files_in=run.files_in,
                files_out=run.files_out,
            )
        )


class ScriptedSession:
    """Answers commands by `script`; programs are all in /usr/bin."""

    capabilities = Capabilities(backend="scripted", supervisor="scripted")
    network: ScriptedNetwork | None = None

    def __init__(
        self, script: Script, files: Mapping[str, bytes], containers: ScriptedContainers | None = None
    ) -> None:
        self.containers = containers
        if containers is not None:
            containers.session = self
        self._script = script
        self.files = dict(files)
        self.steps: list[ScriptedRunning] = []
        self.adopted: Identity | None = None
        self.overlays: list[tuple[str, str]] = []
        self.got: list[str] = []
        self.closed = 0

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": "/home/runner"}

    def how_to_enter(self) -> str | None:
        return "enter here"

    async def adopt(self, identity: Identity) -> None:
        self.adopted = identity

    async def listen(self, port: int, take: TakeConnection) -> int:
        return port

    async def start(self, command: StepCommand) -> ScriptedRunning:
        if command.argv[:2] == ("/bin/sh", "-c"):
            names = command.argv[4:] if "in $PATH" in command.argv[2] else ()
            found = "".join(f"/usr/bin/{name}\n" if name not in MISSING_PROGRAMS else "\n" for name in names)
            return ScriptedRunning(command, Reply(output=found.encode()))
        if command.argv == ("/bin/true",):
            running = ScriptedRunning(command, Reply())
            known: dict[str, bytes | FileBack] = {
                out.path: self.files.get(out.path, FileBack(problem="missing")) for out in command.files_out
            }
            running.reply = Reply(files=known)
            return running
        running = ScriptedRunning(command, self._script(command) or Reply())
        self.steps.append(running)
        return running

    async def put(self, tar: bytes | str, path: str) -> None:
        raise AssertionError("nothing is put")

    async def overlay(self, source: str, target: str) -> bool:
        self.overlays.append((source, target))
        return True

    async def get(self, path: str, destination: str) -> None:
        self.got.append(path)

    async def usage(self) -> Usage:
        return Usage()

    async def close(self) -> Leftovers:
        self.closed += 1
        return Leftovers()


MISSING_PROGRAMS = frozenset({"cmd", "PWSH", "nosuch"})


class ScriptedSandbox:
    """One session for each prepare."""

    def __init__(
        self, script: Script, files: Mapping[str, bytes], containers: ScriptedContainers | None = None
    ) -> None:
        self.capabilities = msgspec.structs.replace(ScriptedSession.capabilities, containers=containers is not None)
        self.shapes: list[Shape] = []
        self.session = ScriptedSession(script, files, containers)

    async def prepare(self, shape: Shape) -> ScriptedSession:
        self.shapes.append(shape)
        return self.session


class Collected:
    """Everything a job told."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.on_event: Callable[[JobEvent], None] | None = None

    def emit(self, event: JobEvent) -> None:
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event)

    async def drain(self) -> None:
        return


class Ran(msgspec.Struct, kw_only=True):
    """A job that has ended, with questions a test may ask."""

    finished: JobFinished
    events: list[JobEvent]
    session: ScriptedSession

    def steps(self) -> dict[int, StepFinished]:
        return {event.step: event for event in self.events if isinstance(event, StepFinished)}

    def outcomes(self) -> list[tuple[str, str]]:
        """Outcome and conclusion of each step as written, in order."""
        return [(each.outcome, each.conclusion) for each in self.named_steps()]

    def named_steps(self) -> list[StepFinished]:
        """The records without set-up and completion."""
        return [each for _, each in sorted(self.steps().items())][1:-1]

    def log(self, step: int | None = None, *kinds: str) -> str:
        logs = [event for event in self.events if isinstance(event, Log)]
        wanted = [each for each in logs if (step is None or each.step == step) and (not kinds or each.kind in kinds)]
        return b"".join(each.data for each in wanted).decode()

    def annotations(self, step: int | None = None) -> list[Annotation]:
        return [e for e in self.events if isinstance(e, Annotation) and (step is None or e.step == step)]

    def command(self, index: int) -> StepCommand:
        return self.session.steps[index].command


def template(value: Any) -> Template:
    """A YAML value as the reader would give it."""
    if isinstance(value, dict):
        return MappingToken(tuple(Entry(parse_text(key, is_key=True), template(each)) for key, each in value.items()))
    if isinstance(value, list):
        return SequenceToken(tuple(template(each) for each in value))
    if value is None:
        return NullToken()
    if isinstance(value, bool):
        return BooleanToken(value)
    if isinstance(value, int | float):
        return NumberToken(value)
    return parse_text(value)


def step(number: int, **keys: Any) -> Step:
    """A `run` step as a workflow writes it; `if` is `if_`."""
    generated = "__run" if number == 1 else f"__run_{number}"
    return RunStep(
        id=keys.get("id") or generated,
        number=number,
        name=template(keys["name"]) if "name" in keys else None,
        condition=wrap_condition(keys.get("if_")),
        env=template(keys["env"]) if "env" in keys else None,
        continue_on_error=template(keys["continue_on_error"]) if "continue_on_error" in keys else None,
        timeout_minutes=template(keys["timeout_minutes"]) if "timeout_minutes" in keys else None,
        script=template(keys.get("run", "true")),
        shell=template(keys["shell"]) if "shell" in keys else None,
        working_directory=template(keys["working_directory"]) if "working_directory" in keys else None,
    )


def uses(number: int, reference: str, **keys: Any) -> Step:
    """A step that uses an action; `with` is `with_`."""
    found = parse_reference(reference)
    assert isinstance(found, tuple)
    repository, path, ref = found
    return ActionStep(
        id=keys.get("id") or f"__uses_{number}",
        number=number,
        condition=wrap_condition(keys.get("if_")),
        env=template(keys["env"]) if "env" in keys else None,
        continue_on_error=template(keys["continue_on_error"]) if "continue_on_error" in keys else None,
        repository=repository,
        path=path,
        ref=ref,
        inputs=template(keys["with_"]) if "with_" in keys else None,
    )


def docker_uses(number: int, image: str, **keys: Any) -> Step:
    """A step with `uses: docker://image`; `with` is `with_`."""
    return ContainerActionStep(
        id=keys.get("id") or f"__docker_{number}",
        number=number,
        condition=wrap_condition(keys.get("if_")),
        env=template(keys["env"]) if "env" in keys else None,
        image=image,
        inputs=template(keys["with_"]) if "with_" in keys else None,
    )


def claim(*steps: dict[str, Any] | Step, **keys: Any) -> Claim:
    """A claim of these steps; `env`, `defaults`, `outputs`, `secrets`, `github`, `strict` and so on by keyword."""
    made = tuple(step(n, **each) if isinstance(each, dict) else each for n, each in enumerate(steps, 1))
    spec = JobSpec(
        id="j1",
        run_id="r1",
        key="job",
        job="job",
        name="job",
        steps=made,
        env=tuple(template(each) for each in keys.get("env", ())),
        defaults=tuple(template(each) for each in keys.get("defaults", ())),
        outputs=template(keys["outputs"]) if "outputs" in keys else None,
        inputs=keys.get("inputs"),
        matrix=keys.get("matrix"),
        needs=keys.get("needs", {}),
        container=template(keys["container"]) if "container" in keys else None,
        services=template(keys["services"]) if "services" in keys else None,
        limits=keys.get("limits", Limits()),
    )
    github = {"repository": "octo/demo", "sha": "f" * 40, "ref": "refs/heads/main", **keys.get("github", {})}
    return Claim(
        attempt=1,
        lease_id="l1",
        expires_in_s=60,
        spec=spec,
        context=RunContext(github=github, event=keys.get("event", {}), vars=keys.get("vars", {})),
        secrets=keys.get("secrets", {}),
        strict_github=keys.get("strict", False),
        debug=keys.get("debug", False),
        policy=keys.get("policy", Policy()),
    )


class Bench:
    """Runs claims against a script. `order_when` sends an order at the first event that a test picks."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        settings: JobSettings | None = None,
        waits: Waits | None = None,
        hooks: JobHooks | None = None,
        actions: ActionStore | None = None,
        containers: ScriptedContainers | None = None,
    ) -> None:
        self._actions = actions
        self._sandbox = ScriptedSandbox(script or (lambda _command: None), files or {}, containers)
        self._settings = settings or JobSettings()
        self._waits = waits or Waits(interrupt=0.05, terminate=0.05, gone=5, output=0.05)
        self._hooks = hooks
        self._orders: list[tuple[Callable[[JobEvent], bool], Order]] = []
        self.run_of: JobRun | None = None

    @property
    def session(self) -> ScriptedSession:
        """The session that the job will get."""
        return self._sandbox.session

    @property
    def shapes(self) -> list[Shape]:
        """What was asked of the backend."""
        return self._sandbox.shapes

    def order_when(self, picked: Callable[[JobEvent], bool], order: Order) -> None:
        self._orders.append((picked, order))

    def run(self, given: Claim, *, minute_s: float = 60.0) -> Ran:
        return asyncio.run(self._run(given, minute_s))

    async def _run(self, given: Claim, minute_s: float) -> Ran:
        collected = Collected()
        run = JobRun(
            given,
            self._settings,
            sandbox=self._sandbox,
            emitter=collected,
            hooks=self._hooks,
            waits=self._waits,
            actions=self._actions,
        )
        run.job.minute_s = minute_s
        self.run_of = run

        def watch(event: JobEvent) -> None:
            for picked, order in list(self._orders):
                if picked(event):
                    self._orders.remove((picked, order))
                    asyncio.get_running_loop().call_soon(run.order, order)

        collected.on_event = watch
        async with asyncio.timeout(15):
            finished = await run.run()
        return Ran(finished=finished, events=collected.events, session=self._sandbox.session)


def run_job(*steps: dict[str, Any] | Step, script: Script | None = None, **keys: Any) -> Ran:
    """Run a job of these steps."""
    return Bench(script).run(claim(*steps, **keys))


def by_script(replies: Mapping[str, Reply]) -> Script:
    """Answer by the text of the script file."""

    def answer(command: StepCommand) -> Reply | None:
        for each in command.files_in:
            if each.path.startswith("/home/runner/work/_temp/") and "/_" not in each.path.removeprefix(
                "/home/runner/work/_temp"
            ):
                return replies.get(each.data.decode())
        return None

    return answer
