"""The shape of `.runyard/ci.toml`: what may stand in it, and nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from runyard.config import Duration, Size
from runyard.job import NetworkLevel

Count = Annotated[int, msgspec.Meta(ge=0)]
Scalar = str | int | float | bool


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which refs and paths an event counts for; the patterns are those of workflows."""

    branches: tuple[str, ...] = ()
    branches_ignore: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tags_ignore: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    paths_ignore: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class On(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What starts the pipeline; a start by hand always does. Without the table every push does."""

    push: bool | Filters | None = None
    pull_request: bool | Filters | None = None
    schedule: tuple[str, ...] = ()


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of a job."""

    memory: Size | None = None
    disk: Size | None = None
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pids: Annotated[int, msgspec.Meta(ge=1)] | None = None
    network: NetworkLevel | None = None
    run_as: str | None = None


class ArtifactTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or folder that a job leaves."""

    name: str
    path: str
    browse: bool = False
    when: Literal["success", "always"] = "success"


class StepTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"condition": "if"}):
    """One script of a job, with more to say than its text."""

    run: str
    name: str | None = None
    condition: str | None = None
    env: dict[str, Scalar] = {}
    shell: str | None = None
    working_directory: str | None = None
    allow_failure: bool = False


class ServiceTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container beside the job."""

    image: str
    env: dict[str, Scalar] = {}
    ports: tuple[str | int, ...] = ()


class JobTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"condition": "if"}):
    """One job: `run` or `steps`, and what it needs."""

    run: str | None = None
    steps: tuple[str | StepTable, ...] = ()
    name: str | None = None
    needs: tuple[str, ...] = ()
    condition: str | None = None
    image: str | None = None
    platform: str | None = None
    labels: tuple[str, ...] = ()
    env: dict[str, Scalar] = {}
    secrets: tuple[str, ...] = ()
    artifacts: tuple[ArtifactTable, ...] = ()
    services: dict[str, ServiceTable] = {}
    matrix: dict[str, tuple[Scalar, ...]] = {}
    limits: LimitsTable | None = None
    timeout: Duration | None = None
    shell: str | None = None
    checkout: bool = True
    group: str | None = None
    environment: str | None = None
    allow_failure: bool = False
    retry_lost: Count | None = None
    publish: bool = False


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole file; what stands here is the default of every job."""

    name: str | None = None
    on: On | None = None
    image: str | None = None
    platform: str | None = None
    labels: tuple[str, ...] = ()
    env: dict[str, Scalar] = {}
    limits: LimitsTable | None = None
    timeout: Duration | None = None
    shell: str | None = None
    jobs: dict[str, JobTable] = {}
