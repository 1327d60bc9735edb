"""The job message as it stands on the wire (runner-v2 section 10).

Templates and contexts stay as JSON here; `tokens.py` and `context_data.py` know their encodings.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from runyard.github.runner.vss import UnreadableMessageError, read
from runyard.job import Json

__all__ = ["JobMessage", "UnreadableMessageError", "encode_message", "read_message"]

V2_MESSAGE = "RunnerJobRequest"
"""The message type that means this protocol; any other is the older one's."""

SYSTEM_CONNECTION = "SystemVssConnection"

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Part(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What all parts of the message share: camelCase names, and no member that says nothing."""


class Plan(_Part):
    """Names the run attempt: `plan_id` is its id in the service."""

    plan_id: str
    scope_identifier: str = ""
    plan_type: str = ""
    version: Int32 = 0


class Timeline(_Part):
    """The timeline of the job; its id names files while logs are staged."""

    id: str


class Authorization(_Part):
    """How to call an endpoint."""

    scheme: str = ""
    parameters: dict[str, str | None] | None = None


class Endpoint(_Part):
    """A service the job may call."""

    name: str
    url: str | None = None
    authorization: Authorization | None = None
    data: dict[str, str | None] | None = None


class Resources(_Part):
    """`repositories` and `containers` belong to an older form of the message."""

    endpoints: list[Endpoint] | None = None
    repositories: list[Json] | None = None
    containers: list[Json] | None = None


class Variable(_Part):
    """A setting of the service, a feature flag, or a secret."""

    value: str | None = None
    is_secret: bool = False


class MaskHint(_Part):
    """Something to hide; only `regex` is known as a type."""

    type: str
    value: str | None = None


class Reference(_Part):
    """What a step runs: `repository` (1), `containerRegistry` (2) or `script` (3)."""

    type: str | int
    name: str | None = None
    ref: str | None = None
    repository_type: str | None = None
    path: str | None = None
    image: str | None = None


class StepMessage(_Part):
    """One step; `type` is `action` (4), or `backgroundStepControl` (5)."""

    type: str | int
    id: str = ""
    name: str | None = None
    context_name: str | None = None
    display_name: str | None = None
    display_name_token: Json = None
    enabled: bool = True
    condition: str | None = None
    continue_on_error: Json = None
    timeout_in_minutes: Json = None
    reference: Reference | None = None
    inputs: Json = None
    environment: Json = None
    background: bool = False
    parallel_group_id: str | None = None
    control_type: str | None = None
    step_ids: list[str] | None = None


class ActionsEnvironment(_Part):
    """The deployment environment; `url` is a token."""

    name: str | None = None
    url: Json = None


class JobMessage(_Part):
    """What `acquirejob` answers. Absent arrays and objects count as empty."""

    message_type: str
    plan: Plan
    timeline: Timeline
    job_id: str
    job_display_name: str | None
    job_name: str | None
    request_id: Int64
    resources: Resources | None = None
    variables: dict[str, Variable] | None = None
    steps: list[StepMessage | None] | None = None
    context_data: dict[str, Json] | None = None
    environment_variables: list[Json] | None = None
    defaults: list[Json] | None = None
    mask: list[MaskHint] | None = None
    job_container: Json = None
    job_service_containers: Json = None
    job_outputs: Json = None
    actions_environment: ActionsEnvironment | None = None
    snapshot: Json = None
    file_table: list[str] | None = None
    billing_owner_id: str | None = None
    enable_debugger: bool = False
    dependencies: list[str] | None = None
    job_sidecar_containers: dict[str, str] | None = None

    @property
    def is_v2(self) -> bool:
        """Whether the message belongs to this protocol."""
        return self.message_type.lower() == V2_MESSAGE.lower()


def read_message(data: bytes) -> JobMessage:
    """The message of a body. Raises UnreadableMessageError with the place."""
    return read(data, JobMessage)


def encode_message(message: JobMessage) -> bytes:
    """The body of a message; numbers, switches and ids that say nothing are left out, never null."""
    return msgspec.json.encode(message)
