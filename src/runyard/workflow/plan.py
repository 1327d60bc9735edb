"""RunPlan: a workflow compiled for one trigger. Immutable; what is bound late is still a Template.

`run.advance` turns it into jobs. Job conditions are stored wrapped (workflow-language 7). Everything keeps the position
it was written at, through the file table.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runyard.job import Collect, Json, Limits, Position, Step, Template


class ConcurrencyPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A concurrency group: `group` and `cancel_in_progress` are evaluated on the newcomer.

    Where `concurrency` as a whole is one expression, `group` is that expression and may evaluate to the mapping form.
    """

    group: Template
    cancel_in_progress: Template | None = None
    queue: Literal["single", "max"] = "single"
    at: Position | None = None


class StrategyPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's strategy, not yet expanded.

    `whole` holds a strategy that isn't a mapping with plain keys as written (one expression, or `${{ insert }}`); it
    evaluates to the mapping, and the other fields are empty then.
    """

    matrix: Template | None = None
    fail_fast: Template | None = None
    max_parallel: Template | None = None
    whole: Template | None = None
    at: Position | None = None


class EnvironmentPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A deployment environment; an empty name after evaluation means none.

    Where `environment` as a whole is one expression, `name` is that expression and may evaluate to the mapping form.
    """

    name: Template
    url: Template | None = None
    deployment: Template | None = None


class InputDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of `workflow_dispatch` or `workflow_call`. `default` is a Template: a call's may hold an expression."""

    name: str
    type: Literal["string", "boolean", "number", "choice", "environment"] = "string"
    required: bool = False
    default: Template | None = None
    options: tuple[str, ...] = ()
    description: str = ""
    at: Position | None = None


class SecretDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One secret that a called workflow declares."""

    name: str
    required: bool = False
    at: Position | None = None


class CalledPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reusable workflow as compiled for one call. `ref` is "" for a file of the same commit."""

    path: str
    repository: str = ""
    ref: str = ""
    sha: str = ""
    name: str = ""
    inputs: tuple[InputDefinition, ...] = ()
    secrets: tuple[SecretDefinition, ...] = ()
    outputs: Template | None = None
    env: Template | None = None
    defaults: Template | None = None
    concurrency: ConcurrencyPlan | None = None
    permissions: dict[str, str] | None = None
    jobs: tuple[JobPlan, ...] = ()


class CallPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call of a reusable workflow. `secrets` is a mapping Template, or None; `inherit` passes the whole set."""

    uses: str
    workflow: CalledPlan
    inputs: Template | None = None
    secrets: Template | None = None
    inherit: bool = False


class PipelineJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job of a pipeline says beyond what a workflow can. None leaves it to the default of a workflow's job."""

    platform: str | None = None
    image: str | None = None
    limits: Limits = Limits()
    collect: tuple[Collect, ...] = ()
    retry_lost: int | None = None
    publish: bool = False


class JobPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job as written, before matrix expansion; either `steps` or `call`.

    `needs` are spelled as the jobs' own ids. `defaults` is the mapping below `defaults.run` (`shell`,
    `working-directory`). `permissions` None means that the level above decides; a mapping has every key.
    """

    id: str
    needs: tuple[str, ...] = ()
    condition: str = "success()"
    condition_written: str | None = None
    condition_at: Position | None = None
    name: Template | None = None
    strategy: StrategyPlan | None = None
    runs_on: Template | None = None
    environment: EnvironmentPlan | None = None
    concurrency: ConcurrencyPlan | None = None
    permissions: dict[str, str] | None = None
    timeout_minutes: Template | None = None
    cancel_timeout_minutes: Template | None = None
    continue_on_error: Template | None = None
    env: Template | None = None
    defaults: Template | None = None
    container: Template | None = None
    services: Template | None = None
    outputs: Template | None = None
    steps: tuple[Step, ...] = ()
    call: CallPlan | None = None
    pipeline: PipelineJob | None = None
    at: Position | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow compiled for one trigger.

    `inputs` are the values of a manual run (booleans and numbers typed), None otherwise. `jobs` are in file order.
    `permissions` None means the default policy. `files` is the file table of all positions, index 1 first.
    """

    path: str
    name: str
    event: str
    jobs: tuple[JobPlan, ...]
    run_name: Template | None = None
    env: Template | None = None
    defaults: Template | None = None
    concurrency: ConcurrencyPlan | None = None
    permissions: dict[str, str] | None = None
    inputs: Json = None
    input_definitions: tuple[InputDefinition, ...] = ()
    files: tuple[str, ...] = ()
