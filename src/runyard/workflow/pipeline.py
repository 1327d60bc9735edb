"""Pipelines: `.runyard/ci.toml`, our own small language for jobs that are a few scripts in an image.

A pipeline is read strictly and said in the terms of a workflow (jobs, steps, expressions, the same positions), so that
everything behind it (graph, conditions, matrix, engine) is one. What a workflow has no word for (platform, image of the
sandbox, limits, artifacts to collect) goes beside the job's plan. docs/pipelines.md describes the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import Collect, InputError, Json, Limits
from runyard.workflow.model import Reading
from runyard.workflow.pipeline_file import JobTable, LimitsTable, On, PipelineFile, StepTable
from runyard.workflow.plan import PipelineJob
from runyard.workflow.problems import Problems, TooManyProblemsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.config import Document
    from runyard.config.toml import Path
    from runyard.expression.positioned_yaml import Mapping, Node
    from runyard.workflow.model import Workflow

PIPELINE: Final = ".runyard/ci.toml"
"""Where a repository keeps its pipeline."""

CHECKOUT: Final = "actions/checkout@v4"
_ANY_WORKER: Final = "self-hosted"
_PLATFORM: Final = re.compile(r"(linux|darwin|windows)/(amd64|arm64|arm|386|riscv64|ppc64le|s390x)(/v[5-9])?")
_ARTIFACT: Final = re.compile(r"[^\x00-\x1f\"<>|*?:\\/\r\n]{1,128}")


def read_pipeline(
    source: str | bytes, path: str, file: int, convert: Callable[[Mapping, Problems, int], Workflow]
) -> Reading:
    """A pipeline as a Workflow, or everything that is wrong with it. Never raises."""
    from runyard.config import ConfigError, decode, read

    problems = Problems(path)
    try:
        document = read(source.encode("utf-8", "replace") if isinstance(source, str) else source, path)
        pipeline = decode(document, PipelineFile)
    except ConfigError as error:
        for found in error.problems:
            problems.add(found.message, (found.line, found.column), found.key, code="pipeline.invalid")
        return Reading(None, problems.all())
    except InputError as error:
        problems.add(error.message, (error.line, error.column), code=error.code)
        return Reading(None, problems.all())
    said = _Sayer(document, pipeline, problems)
    try:
        said.check()
        workflow = convert(said.workflow(), problems, file)
    except TooManyProblemsError:
        return Reading(None, problems.all())
    if problems.refused:
        return Reading(None, problems.all())
    jobs = tuple(msgspec.structs.replace(job, pipeline=said.beside(job.id)) for job in workflow.jobs)
    return Reading(msgspec.structs.replace(workflow, jobs=jobs, warnings=problems.all()), problems.all())


class _Sayer:
    """Says a pipeline in the terms of a workflow; every node stands where its key stands in the file."""

    def __init__(self, document: Document, pipeline: PipelineFile, problems: Problems) -> None:
        self.document = document
        self.pipeline = pipeline
        self.problems = problems

    def wrong(self, path: Path, message: str) -> None:
        from runyard.config.reading import dotted

        self.problems.add(message, self.document.place(path), dotted(path), code="pipeline.invalid")

    def check(self) -> None:
        """What the shape alone can't say."""
        if not self.pipeline.jobs:
            self.wrong((), "a pipeline has at least one job: [jobs.NAME]")
        if self.pipeline.platform is not None:
            self._check_platform(self.pipeline.platform, ("platform",))
        for name, job in self.pipeline.jobs.items():
            path: Path = ("jobs", name)
            if job.platform is not None:
                self._check_platform(job.platform, (*path, "platform"))
            if (job.run is None) == (not job.steps):
                self.wrong(path, "a job has either run, one script, or steps")
            seen: set[str] = set()
            for number, artifact in enumerate(job.artifacts):
                at: Path = (*path, "artifacts", number)
                if not _ARTIFACT.fullmatch(artifact.name):
                    self.wrong((*at, "name"), f"{artifact.name!r} can't be an artifact's name")
                if artifact.name in seen:
                    self.wrong((*at, "name"), f"two artifacts are named {artifact.name!r}")
                seen.add(artifact.name)
                parts = artifact.path.split("/")
                if not artifact.path or artifact.path.startswith("/") or ".." in parts or "\0" in artifact.path:
                    self.wrong((*at, "path"), f"{artifact.path!r} is no path below the workspace")
            if job.publish and (job.artifacts or job.matrix or job.services):
                self.wrong((*path, "publish"), "a publish job has no matrix, services or artifacts")

    def _check_platform(self, platform: str, path: Path) -> None:
        if not _PLATFORM.fullmatch(platform):
            hint = f"; did you mean 'linux/{platform}'?" if "/" not in platform else ""
            self.wrong(path, f"{platform!r} is no platform; write os/arch, as in linux/amd64 or linux/arm64/v8{hint}")

    # --- in the terms of a workflow

    def workflow(self) -> Mapping:
        jobs = {name: self._job(name, job) for name, job in self.pipeline.jobs.items()}
        said: dict[str, object] = {
            "name": self.pipeline.name,
            "on": self._on(self.pipeline.on),
            "env": (self.pipeline.env, ("env",)) if self.pipeline.env else None,
            "defaults": {"run": {"shell": self.pipeline.shell}} if self.pipeline.shell else None,
            "jobs": (jobs, ("jobs",)),
        }
        node = self._node(said, ())
        assert not isinstance(node, str)
        return node  # type: ignore[return-value]  # a mapping gives a Mapping

    def _on(self, on: On | None) -> dict[str, object]:
        on = on or On(push=True)
        said: dict[str, object] = {"workflow_dispatch": {}}
        for name, value in (("push", on.push), ("pull_request", on.pull_request)):
            if value is True:
                said[name] = {}
            elif value not in (None, False):
                table = msgspec.to_builtins(value)
                filters = {key.replace("_", "-"): lines for key, lines in table.items() if lines}
                said[name] = (filters, ("on", name))
        if on.schedule:
            said["schedule"] = ([{"cron": cron} for cron in on.schedule], ("on", "schedule"))
        return said

    def _job(self, name: str, job: JobTable) -> tuple[dict[str, object], Path]:
        path: Path = ("jobs", name)
        timeout = job.timeout or self.pipeline.timeout
        secrets = {secret: f"${{{{ secrets.{secret} }}}}" for secret in job.secrets}
        env = {**secrets, **job.env}
        steps: list[object] = [{"uses": CHECKOUT}] if job.checkout else []
        if job.run is not None:
            steps.append(({"run": job.run}, (*path, "run")))
        steps += [self._step(step, (*path, "steps", number)) for number, step in enumerate(job.steps)]
        said: dict[str, object] = {
            "name": job.name,
            "needs": (list(job.needs), (*path, "needs")) if job.needs else None,
            "if": (job.condition, (*path, "if")) if job.condition is not None else None,
            "runs-on": (list(job.labels or self.pipeline.labels or (_ANY_WORKER,)), (*path, "labels")),
            "strategy": {"matrix": (job.matrix, (*path, "matrix"))} if job.matrix else None,
            "concurrency": (job.group, (*path, "group")) if job.group else None,
            "environment": (job.environment, (*path, "environment")) if job.environment else None,
            "timeout-minutes": timeout / 60 if timeout else None,
            "continue-on-error": True if job.allow_failure else None,
            "env": (env, (*path, "env")) if env else None,
            "defaults": {"run": {"shell": job.shell}} if job.shell else None,
            "services": self._services(job, path),
            "permissions": {"contents": "read"},
            "steps": steps,
        }
        return said, path

    def _services(self, job: JobTable, path: Path) -> object:
        if not job.services:
            return None
        services: dict[str, object] = {}
        for name, service in job.services.items():
            table: dict[str, object] = {"image": service.image}
            if service.env:
                table["env"] = service.env
            if service.ports:
                table["ports"] = list(service.ports)
            services[name] = (table, (*path, "services", name))
        return services, (*path, "services")

    def _step(self, step: StepTable | str, path: Path) -> tuple[dict[str, object], Path]:
        if isinstance(step, str):
            return {"run": step}, path
        said: dict[str, object] = {
            "name": step.name,
            "run": step.run,
            "if": step.condition,
            "env": step.env or None,
            "shell": step.shell,
            "working-directory": step.working_directory,
            "continue-on-error": True if step.allow_failure else None,
        }
        return said, path

    def _node(self, value: object, path: Path) -> Node:
        """A value as a node of a file; a pair names the place its value stands at. None members are left out."""
        from runyard.expression.positioned_yaml import Mapping, Scalar, Sequence

        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], tuple):
            value, path = value
        line, column = self.document.place(path)
        if isinstance(value, dict):
            mapping = Mapping(line, column)
            for key, member in value.items():
                if member is not None:
                    at = (*path, key)
                    place = self.document.place(at)
                    mapping.pairs.append((Scalar(key, key, *place, False), self._node(member, at)))
            return mapping
        if isinstance(value, list | tuple):
            sequence = Sequence(line, column)
            sequence.items = [self._node(member, (*path, number)) for number, member in enumerate(value)]
            return sequence
        if isinstance(value, bool):
            return Scalar(value, str(value).lower(), line, column, True)
        if isinstance(value, int | float):
            return Scalar(float(value), f"{value:g}", line, column, True)
        return Scalar(str(value), str(value), line, column, False)

    # --- beside it

    def beside(self, name: str) -> PipelineJob:
        """What a workflow has no word for."""
        job = self.pipeline.jobs[name]
        return PipelineJob(
            platform=job.platform or self.pipeline.platform,
            image=job.image or self.pipeline.image,
            limits=_limits(self.pipeline.limits, job.limits),
            collect=tuple(Collect(each.name, each.path, each.browse, each.when) for each in job.artifacts),
            retry_lost=job.retry_lost,
            publish=job.publish,
        )


def _limits(*tables: LimitsTable | None) -> Limits:
    """The tables laid over each other, the last on top."""
    limits: dict[str, Json] = {}
    for table in tables:
        if table is None:
            continue
        sizes = {"memory_mb": table.memory, "disk_mb": table.disk}
        limits |= {name: max(1, size >> 20) for name, size in sizes.items() if size is not None}
        others = {"cpus": table.cpus, "pids": table.pids, "network": table.network, "run_as": table.run_as}
        limits |= {name: value for name, value in others.items() if value is not None}
    return msgspec.convert(limits, Limits)
