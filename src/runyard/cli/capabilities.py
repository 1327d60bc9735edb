"""`runyard capabilities`: what this build takes, as data; and an audit that lists everything it would not take.

Thin over `runyard.admission`, the manifest of adapters, and the reader of job messages. Nothing is fetched: what is
known of remote actions comes from the store, and their names are judged in any case.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.cli.actions_shapes import CapabilityManifest, Violation
    from runyard.cli.run_actions import Actions
    from runyard.job import ActionStep, JobSpec, Policy, Step
    from runyard.workflow import JobPlan

VERSION: Final = 1
"""Grows when an adapter, input, value or kind of action is taken away, or means something else."""

_MESSAGE_LIMIT: Final = 64 << 20


@click.group(epilog="Example: runyard capabilities check .github/workflows --policy policy.toml")
def command() -> None:
    """Audit a saved job message or a folder of workflows; print what this build takes."""


@command.command("export", epilog="Example: runyard capabilities export > capabilities.json")
def export() -> None:
    """Print the versioned manifest of adapters and of everything else that this build takes, as JSON."""
    _json(manifest())


@command.command("check", epilog="Example: runyard capabilities check message.json --policy policy.toml")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--policy", metavar="FILE", help="A policy to hold everything against as well.")
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="The backend that would run it.")
@click.option("--no-native", is_flag=True, help="Without the built-in adapters.")
@click.option("--cache-dir", metavar="D", help="The store in which actions are looked up.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def check(  # noqa: PLR0917 - one for each option
    paths: tuple[str, ...], policy: str | None, sandbox: str, no_native: bool, cache_dir: str | None, form: str
) -> int:
    """List every violation in workflows, composite actions, or saved job messages (.json).

    Without PATH: the workflows of the repository around. Ends with 0 where there is none, 1 where there are some, 2
    where a file can't be read.
    """
    from runyard.cli.actions_shapes import Audit
    from runyard.cli.run_actions import Actions, cache_folder, read_policy_file
    from runyard.cli.run_machine import check_sandbox
    from runyard.cli.run_prepare import WorkingTree

    backend = check_sandbox(sandbox)
    actions = Actions(
        cache_folder(cache_dir),
        offline=True,
        native=not no_native,
        files=WorkingTree(str(_around(paths))),
    )
    audit = _Auditor(actions, read_policy_file(policy), "docker" if backend == "auto" else backend)
    files, violations = [], []
    for file, shown in _files(paths):
        files.append(shown)
        violations += audit.file(file, shown)
    if form == "json":
        _json(Audit(files=files, violations=violations))
    else:
        for each in violations:
            click.echo(_line(each))
        count = len(violations)
        click.echo(f"{len(files)} looked at, {count} violation{'' if count == 1 else 's'}", err=True)
    sys.stdout.flush()
    return 1 if violations else 0


def _files(paths: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    from runyard.cli.check import find_files
    from runyard.job import InputError

    messages = [path for path in paths if path.endswith(".json")]
    yield from ((Path(path), path) for path in messages)
    others = [path for path in paths if path not in messages]
    if others or not messages:
        for file, shown in find_files(others, Path.cwd()):
            if file.is_dir():
                raise InputError("there are no workflows here", path=shown, code="check.nothing")
            yield file, shown


def _around(paths: tuple[str, ...]) -> Path:
    here = Path(paths[0]).absolute() if paths else Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), Path.cwd())


class _Auditor:
    """Holds files against what this build takes and a policy allows."""

    def __init__(self, actions: Actions, policy: Policy | None, backend: str) -> None:
        from runyard.admission import OWN_MACHINE
        from runyard.sandbox.contract import Capabilities

        self._actions = actions
        self._policy = policy or OWN_MACHINE
        self._capabilities = Capabilities(backend=backend, supervisor="", containers=backend in ("docker", "podman"))

    def file(self, file: Path, shown: str) -> list[Violation]:
        """Every violation of one file. Raises InputError, WorkflowError for one that can't be read."""
        from runyard.cli.check import read_bounded
        from runyard.job import InputError

        try:
            data = file.read_bytes() if shown.endswith(".json") else read_bounded(file)
        except OSError as error:
            raise InputError(
                f"it can't be read: {error.strerror or error}", path=shown, code="input.unreadable"
            ) from error
        if shown.endswith(".json"):
            return self._message(data, shown)
        return list(self._yaml(data, file, shown))

    def _message(self, data: bytes, shown: str) -> list[Violation]:
        from runyard.cli.actions_shapes import Violation
        from runyard.github.runner import UnreadableMessageError, claim_of, read_message, unsupported
        from runyard.job import InputError

        if len(data) > _MESSAGE_LIMIT:
            raise InputError(f"it has more than {_MESSAGE_LIMIT} bytes", path=shown, code="input.too_large")
        try:
            message = read_message(data)
            wishes = unsupported(message)
            if wishes:
                return [Violation(path=shown, rule="message", message=wish) for wish in wishes]
            spec = claim_of(message).spec
        except UnreadableMessageError as error:
            raise InputError(f"it is no job message: {error}", path=shown, code="input.message") from error
        return [*self._job(spec, shown), *self._steps(spec.steps, shown, spec.job or None)]

    def _job(self, spec: JobSpec, shown: str) -> Iterator[Violation]:
        from runyard.admission import admit
        from runyard.cli.actions_shapes import Violation

        found = admit(spec, (), self._policy, self._capabilities)
        if isinstance(found, tuple):
            for each in found:
                yield Violation(path=shown, rule=each.rule, message=str(each), job=spec.job or None)
        yield from self._containers(spec.container is not None, spec.services is not None, shown, spec.job or None)

    def _containers(self, container: bool, services: bool, shown: str, job: str | None) -> Iterator[Violation]:
        from runyard.cli.actions_shapes import Violation

        for wanted, what in ((container, "container"), (services, "services")):
            if wanted and not self._capabilities.containers:
                message = f"`{what}` needs a container engine, which {self._capabilities.backend} has not"
                yield Violation(path=shown, rule="containers", message=message, job=job)

    def _yaml(self, data: bytes, file: Path, shown: str) -> Iterator[Violation]:
        from runyard.action.manifest import CompositeRuns, read_manifest
        from runyard.expression.positioned_yaml import decode_utf8
        from runyard.workflow import WorkflowError, is_manifest, read_workflow

        if is_manifest(decode_utf8(data, shown), file.name):
            runs = read_manifest(data, shown).runs
            if isinstance(runs, CompositeRuns):
                yield from self._steps(runs.steps, shown, None)
            return
        reading = read_workflow(data, path=shown)
        if reading.workflow is None:
            raise WorkflowError(tuple(problem for problem in reading.problems if problem.severity == "error"))
        for job in reading.workflow.jobs:
            yield from self._planned(job, shown)

    def _planned(self, job: JobPlan, shown: str) -> Iterator[Violation]:
        from runyard.job import JobSpec

        spec = JobSpec(
            id="", run_id="", key=job.id, job=job.id, name=job.id, steps=(), container=job.container,
            services=job.services,
        )  # fmt: skip
        yield from self._job(spec, shown)
        yield from self._steps(job.steps, shown, job.id)

    def _steps(self, steps: tuple[Step, ...], shown: str, job: str | None) -> Iterator[Violation]:
        from runyard.admission import judge_use
        from runyard.cli.actions_shapes import Violation
        from runyard.job import ActionStep, ContainerActionStep

        for use in self._actions.gather(steps, pins=None, fetch=False).uses:
            step = use.step
            refusal = judge_use(use, self._policy, self._capabilities)
            messages: list[tuple[str, str]] = (
                [(refusal.rule, f"{refusal.because}; accepted: {refusal.accepted}")] if refusal else []
            )
            if isinstance(step, ContainerActionStep) and not self._capabilities.containers:
                messages.append(("containers", f"a docker action, which {self._capabilities.backend} can't run"))
            if use.native and isinstance(step, ActionStep):
                messages += [("input", text) for text in _adapter_problems(step)]
            for rule, message in messages:
                yield Violation(
                    path=shown, rule=rule, message=message, job=job, step=use.number or None, chain=list(use.chain),
                    **_place(step),
                )  # fmt: skip


def _place(step: Step) -> dict[str, Any]:
    """Where a step's inputs stand, the nearest position that a step keeps."""
    from runyard.job import ActionStep, ContainerActionStep

    at = step.inputs.at if isinstance(step, ActionStep | ContainerActionStep) and step.inputs is not None else None
    return {} if at is None else {"line": at.line, "column": at.column}


def _adapter_problems(step: ActionStep) -> list[str]:
    """Literal inputs that the built-in adapter refuses; what is computed is judged when the step runs."""
    from runyard.action.native import built_in
    from runyard.job import InputError, MappingToken, TextToken

    name = built_in(step)
    entries = step.inputs.entries if isinstance(step.inputs, MappingToken) else ()
    if name is None or (any(not isinstance(entry.value, TextToken) for entry in entries) and name != "checkout"):
        return []
    given = {
        entry.key.value: entry.value.value
        for entry in entries
        if isinstance(entry.key, TextToken) and isinstance(entry.value, TextToken)
    }
    try:
        _plan(name, given)
    except InputError as error:
        return [error.message]
    return []


def _plan(name: str, given: dict[str, str]) -> None:
    """Read inputs as the adapter of that name does. Raises InputError for what it refuses."""
    if name == "checkout":
        from runyard.action.checkout import plan_checkout

        plan_checkout(given, "")
    elif name.startswith("cache"):
        from runyard.action.cache import plan_cache

        plan_cache(given)
    elif name == "upload_artifact":
        from runyard.action.artifacts import plan_upload

        plan_upload(given)
    else:
        from runyard.action.artifacts import plan_download

        plan_download(given, workspace="/", home="/")


def _line(each: Violation) -> str:
    place = ":".join(str(part) for part in (each.path, each.line, each.column) if part is not None)
    where = f" job {each.job}" if each.job else ""
    where += f" step {each.step}" if each.step is not None else ""
    through = f" {' → '.join(each.chain)}" if each.chain else ""
    return f"{place}:{where}{through}: {each.message}  [{each.rule}]"


# --- the manifest


def manifest() -> CapabilityManifest:
    """What this build takes, as data."""
    import runyard
    from runyard.action.closure import MOST_NESTED
    from runyard.action.declaration import DECLARATIONS
    from runyard.action.manifest import USING
    from runyard.admission.policy import LEVELS, POLICY_KEYS
    from runyard.cli.actions_shapes import Adapter, AdapterInput, CapabilityManifest
    from runyard.cli.run_machine import BACKENDS

    adapters = [
        Adapter(
            repository=each.repository,
            paths=list(each.paths),
            refs=[*(f"v{major}" for major in each.majors), "main", "<commit>"],
            inputs=[
                AdapterInput(
                    name=one.name,
                    values=None if one.values is None else list(one.values),
                    default=one.default,
                    effect=one.effect,
                )
                for one in each.inputs
            ],
            outputs=list(each.outputs),
            effects=list(each.effects),
            forbidden=[list(names) for names in each.forbidden],
        )
        for each in DECLARATIONS
    ]
    return CapabilityManifest(
        version=VERSION,
        runyard=runyard.__version__,
        adapters=adapters,
        runs_using=list(USING),
        network=list(LEVELS),
        sandboxes=list(BACKENDS),
        nested_actions=MOST_NESTED,
        policy_keys=list(POLICY_KEYS),
    )


def _json(shape: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(shape), indent=2).decode())
