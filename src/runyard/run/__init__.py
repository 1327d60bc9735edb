"""The life of a run: one pure step from a RunPlan, a state and a happening to the next state and its decisions.

In: a RunPlan, a RunState and what happened. Out: jobs to create, jobs that end without being executed, jobs to stop,
the run's end, each with the rule, condition and values that decided. No I/O, no clock, no secret: whoever carries the
decisions out resolves secrets with `resolve_secrets`. Read `state.py` first, then `advance.py` and `graph.py`.
"""

from runyard.run.advance import advance
from runyard.run.calls import resolve_secrets
from runyard.run.concurrency import Arrival, Group, arrive, leave, same_group
from runyard.run.evaluate import UnevaluableError
from runyard.run.matrix import Combination, MatrixError, expand
from runyard.run.preview import Preview, PreviewJob, preview
from runyard.run.select import job_paths, select_jobs
from runyard.run.state import (
    Admitted,
    Begin,
    CancelJob,
    CancelRequested,
    CreateJob,
    Decision,
    EndJob,
    Finished,
    FinishRun,
    GroupRequest,
    Happening,
    Rule,
    RunOptions,
    RunState,
    SecretLevel,
    Started,
    StartRun,
    Tick,
    Why,
)

__all__ = [
    "Admitted",
    "Arrival",
    "Begin",
    "CancelJob",
    "CancelRequested",
    "Combination",
    "CreateJob",
    "Decision",
    "EndJob",
    "FinishRun",
    "Finished",
    "Group",
    "GroupRequest",
    "Happening",
    "MatrixError",
    "Preview",
    "PreviewJob",
    "Rule",
    "RunOptions",
    "RunState",
    "SecretLevel",
    "StartRun",
    "Started",
    "Tick",
    "UnevaluableError",
    "Why",
    "advance",
    "arrive",
    "expand",
    "job_paths",
    "leave",
    "preview",
    "resolve_secrets",
    "same_group",
    "select_jobs",
]
