"""JobSpec: what a job is. Immutable, without secrets, the same for each attempt; its digest is the plan digest."""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

from runyard.job.limits import Limits
from runyard.job.template import Json, Template


class _StepBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every step has.

    `id` is the step's name in the `steps` context (generated ids start with `__` and are never stored there);
    `number` counts from 1 as written. `condition` is stored wrapped: `success() && (…)` unless a status function stands
    in it (job-semantics 4.3). The other fields are evaluated by the engine.
    """

    id: str
    number: int
    name: Template | None = None
    condition: str = "success()"
    env: Template | None = None
    continue_on_error: Template | None = None
    timeout_minutes: Template | None = None


class RunStep(_StepBase, frozen=True, kw_only=True, tag="run", omit_defaults=True):
    """A script run by a shell."""

    script: Template
    shell: Template | None = None
    working_directory: Template | None = None


class ActionStep(_StepBase, frozen=True, kw_only=True, tag="action", omit_defaults=True):
    """An action: `repository` with `path` at `ref`, or a local one (`repository` None, `path` starts with `./`)."""

    repository: str | None
    path: str = ""
    ref: str = ""
    inputs: Template | None = None

    @property
    def uses(self) -> str:
        """The reference as a workflow writes it."""
        if self.repository is None:
            return self.path
        return f"{self.repository}{'/' + self.path if self.path else ''}@{self.ref}"


class ContainerActionStep(_StepBase, frozen=True, kw_only=True, tag="container", omit_defaults=True):
    """`uses: docker://image`."""

    image: str
    inputs: Template | None = None

    @property
    def uses(self) -> str:
        """The reference as a workflow writes it."""
        return f"docker://{self.image}"


Step: TypeAlias = RunStep | ActionStep | ContainerActionStep


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The deployment environment of a job; `name` is known before it starts, `url` is evaluated after its steps."""

    name: str
    url: Template | None = None


class Collect(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or folder below the workspace that a job leaves as an artifact; `browse` shows it as pages."""

    name: str
    path: str
    browse: bool = False
    when: Literal["success", "always"] = "success"


class NeedResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a direct need left, as the `needs` context shows it."""

    result: Literal["success", "failure", "cancelled", "skipped"]
    outputs: dict[str, str] = {}


class Strategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `strategy` context of one leg."""

    fail_fast: bool = True
    job_index: int = 0
    job_total: int = 1
    max_parallel: int = 1


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a run after matrix expansion.

    `key` is unique in its run, opaque, and the same for the same plan; `job` is the id as written (`caller/called`
    inside a reusable workflow), shared by the legs of a matrix; `name` is what people see. `env` holds one mapping per
    level, workflow first; `defaults` one mapping per level, each with `shell` and `working-directory` at most.
    `inputs` are the inputs of the workflow file the job stands in. `workflow_ref` names that file (`job.workflow_*`).
    """

    id: str
    run_id: str
    key: str
    job: str
    name: str
    steps: tuple[Step, ...]
    platform: str = "linux/amd64"
    labels: tuple[str, ...] = ()
    group: str | None = None
    pool: str | None = None
    image: str | None = None
    container: Template | None = None
    services: Template | None = None
    env: tuple[Template, ...] = ()
    defaults: tuple[Template, ...] = ()
    outputs: Template | None = None
    environment: Environment | None = None
    permissions: dict[str, str] | None = None
    needs: dict[str, NeedResult] = {}
    matrix: Json = None
    strategy: Strategy = Strategy()
    inputs: Json = None
    continue_on_error: bool = False
    limits: Limits = Limits()
    retry_lost: int = 1
    trust: Literal["trusted", "untrusted"] = "trusted"
    collect: tuple[Collect, ...] = ()
    requires: tuple[str, ...] = ()
    workflow_path: str = ""
    workflow_ref: str = ""
    workflow_sha: str = ""

    def digest(self) -> str:
        """The plan digest: SHA-256 of the canonical encoding, in hex, without what names one run (`id`, `run_id`)."""
        same_for_each_run = msgspec.structs.replace(self, id="", run_id="")
        return hashlib.sha256(msgspec.json.encode(same_for_each_run, order="deterministic")).hexdigest()
