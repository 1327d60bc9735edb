"""What is decided about artifacts: names, who may create one again, how long it lives. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runyard.service.asgi import Refusal

if TYPE_CHECKING:
    from runyard.service.tenant import Tenant

KEPT_S: Final = 7 * 24 * 3600.0
"""How long an artifact lives where its job doesn't say."""

KEPT_AT_MOST_S: Final = 90 * 24 * 3600.0
LARGEST: Final = 10 << 30
MOST_IN_JOB: Final = 500
LONGEST_NAME: Final = 255

_FORBIDDEN: Final = {
    '"': 'double quote "',
    ":": "colon :",
    "<": "less than <",
    ">": "greater than >",
    "|": "vertical bar |",
    "*": "asterisk *",
    "?": "question mark ?",
    "\r": "carriage return",
    "\n": "line feed",
    "\\": "backslash",
    "/": "forward slash",
}


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of a run. `digest` and `size` are known when it is finished."""

    id: int
    plan: str
    job: str
    job_name: str
    attempt: int
    name: str
    upload: str
    mime: str
    created: float
    expires: float
    digest: str | None = None
    size: int | None = None
    finished: bool = False


def check_name(name: str) -> None:
    """Refuse what the official client refuses, and what can't be a folder's name."""
    if not name:
        raise Refusal("invalid_argument", "an artifact needs a name")
    if len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        raise Refusal("invalid_argument", f"the name of an artifact has at most {LONGEST_NAME} bytes")
    for character, said in _FORBIDDEN.items():
        if character in name:
            raise Refusal("invalid_argument", f"the artifact name {name!r} has a {said}")
    if name.strip(".") == "" or not name.isprintable():
        raise Refusal("invalid_argument", f"{name!r} can't be the name of an artifact")


def may_create(tenant: Tenant, holder: Artifact | None) -> None:
    """Refuse a name that another has (deviation D11, field case F56).

    By default a later attempt of the same job may create its names again, and a job may ask again for a name that it
    has reserved and sent nothing to. Strictly a name is created once a run.
    """
    if holder is None:
        return
    same_job = holder.plan == tenant.plan_id and holder.job == tenant.job_id
    if same_job and not tenant.strict and tenant.attempt > holder.attempt:
        return
    if same_job and tenant.attempt == holder.attempt and not holder.finished and holder.digest is None:
        return
    owner = f"job '{holder.job_name}'" if not same_job else "this job"
    state = "has" if holder.finished else "is uploading"
    raise Refusal(
        "already_exists", f"an artifact with this name already exists in this run: {owner} {state} '{holder.name}'"
    )


def expiry(now: float, wanted: float | None) -> float:
    """When an artifact goes: as its job asks, within the limits."""
    if wanted is None or wanted <= now:
        return now + KEPT_S
    return min(wanted, now + KEPT_AT_MOST_S)
