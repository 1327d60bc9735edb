"""What travels between the rooms: a job's description, one hand-out of it, and what its execution tells.

Specs and orders go down, events come up. Everything here is data: frozen msgspec structs without I/O, clock or
behaviour beyond keeping secrets out of sight. Every other room may import this one; it imports nothing of ours.
Read `spec.py` first, then `claim.py` and `event.py`.
"""

from runyard.job.claim import Checkout, Claim, Policy, Secret
from runyard.job.context import RunContext
from runyard.job.errors import InputError, MachineError, Refused, RunyardError, WorkError
from runyard.job.event import (
    Annotation,
    AnnotationLevel,
    Artifact,
    JobEvent,
    JobFinished,
    JobStarted,
    Log,
    LogKind,
    Output,
    Refusal,
    StepFinished,
    StepStarted,
    Summary,
    Usage,
)
from runyard.job.limits import Limits, NetworkLevel
from runyard.job.order import Cancel, Drain, LeaseLost, Order, Pause
from runyard.job.outcome import Conclusion, ReasonCode
from runyard.job.spec import (
    ActionStep,
    Collect,
    ContainerActionStep,
    Environment,
    JobSpec,
    NeedResult,
    RunStep,
    Step,
    Strategy,
)
from runyard.job.template import (
    BooleanToken,
    Entry,
    ExpressionToken,
    InsertToken,
    Json,
    MappingToken,
    NullToken,
    NumberToken,
    Position,
    SequenceToken,
    Template,
    TextToken,
)

__all__ = [
    "ActionStep",
    "Annotation",
    "AnnotationLevel",
    "Artifact",
    "BooleanToken",
    "Cancel",
    "Checkout",
    "Claim",
    "Collect",
    "Conclusion",
    "ContainerActionStep",
    "Drain",
    "Entry",
    "Environment",
    "ExpressionToken",
    "InputError",
    "InsertToken",
    "JobEvent",
    "JobFinished",
    "JobSpec",
    "JobStarted",
    "Json",
    "LeaseLost",
    "Limits",
    "Log",
    "LogKind",
    "MachineError",
    "MappingToken",
    "NeedResult",
    "NetworkLevel",
    "NullToken",
    "NumberToken",
    "Order",
    "Output",
    "Pause",
    "Policy",
    "Position",
    "ReasonCode",
    "Refusal",
    "Refused",
    "RunContext",
    "RunStep",
    "RunyardError",
    "Secret",
    "SequenceToken",
    "Step",
    "StepFinished",
    "StepStarted",
    "Strategy",
    "Summary",
    "Template",
    "TextToken",
    "Usage",
    "WorkError",
]
