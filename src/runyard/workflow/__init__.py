"""Reads workflows: positioned YAML, schema, triggers, inputs, calls; compiles a RunPlan.

In: the bytes of a workflow file, a loader for the files it calls, and the facts of an event. Out: `read_workflow` gives
a `Reading` with all problems at once, `triggered` a `Decision` with its reason, `compile_workflow` a `RunPlan` in which
what is bound late is still a Template. Nothing here evaluates an expression, and nothing does I/O but the loader.
Read `model.py` first, then `schema.py` and `compile.py`.
"""

from runyard.workflow.calls import CallLimits, Loader
from runyard.workflow.compile import check_workflow, compile_workflow, plan_workflow
from runyard.workflow.inputs import dispatch_inputs
from runyard.workflow.manifest import check_manifest, is_manifest
from runyard.workflow.model import (
    Decision,
    EventFacts,
    EventTrigger,
    Filter,
    PermissionsPolicy,
    Reading,
    Schedule,
    Workflow,
)
from runyard.workflow.plan import (
    CalledPlan,
    CallPlan,
    ConcurrencyPlan,
    EnvironmentPlan,
    InputDefinition,
    JobPlan,
    PipelineJob,
    RunPlan,
    SecretDefinition,
    StrategyPlan,
)
from runyard.workflow.problems import Problem, WorkflowError
from runyard.workflow.reading import read_workflow
from runyard.workflow.triggers import triggered

__all__ = [
    "CallLimits",
    "CallPlan",
    "CalledPlan",
    "ConcurrencyPlan",
    "Decision",
    "EnvironmentPlan",
    "EventFacts",
    "EventTrigger",
    "Filter",
    "InputDefinition",
    "JobPlan",
    "Loader",
    "PermissionsPolicy",
    "PipelineJob",
    "Problem",
    "Reading",
    "RunPlan",
    "Schedule",
    "SecretDefinition",
    "StrategyPlan",
    "Workflow",
    "WorkflowError",
    "check_manifest",
    "check_workflow",
    "compile_workflow",
    "dispatch_inputs",
    "is_manifest",
    "plan_workflow",
    "read_workflow",
    "triggered",
]
