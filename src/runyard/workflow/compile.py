"""From a file and a trigger to a RunPlan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runyard.job import MachineError

if TYPE_CHECKING:
    from runyard.job import Json
    from runyard.workflow.model import PermissionsPolicy
    from runyard.workflow.plan import InputDefinition, RunPlan


class Loader(Protocol):
    """Brings the bytes of a called workflow by its `uses` text; None where there is no such file."""

    def __call__(self, uses: str) -> bytes | None:
        """The file's bytes; `uses` as written."""
        ...


def compile_workflow(
    source: str | bytes,
    *,
    path: str,
    event: str = "push",
    inputs: dict[str, str] | None = None,
    loader: Loader | None = None,
    policy: PermissionsPolicy = "read",
    strict_github: bool = False,
) -> RunPlan:
    """Reads a file with all it calls and compiles it for one event. Raises `WorkflowError` (an InputError, exit 2).

    `inputs` are the texts given for a `workflow_dispatch`; they are checked and typed. Local and remote `uses` go
    through `loader`; without one, a call is an error.
    """
    raise MachineError("not built yet")


def dispatch_inputs(
    definitions: tuple[InputDefinition, ...], given: dict[str, str], *, path: str = ""
) -> dict[str, Json]:
    """The typed values of a manual run (workflow-language 5.1); `InputError` names the input and its type."""
    raise MachineError("not built yet")
