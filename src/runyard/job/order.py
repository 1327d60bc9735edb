"""Orders: what comes down to a running job."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Cancel(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    """Stop: conditions are looked at again and clean-up steps run in their own budget; `force` ends at once."""

    force: bool = False
    reason: str = ""
    reason_code: str = "cancelled_by_user"


class Drain(msgspec.Struct, frozen=True, tag="drain", omit_defaults=True):
    """The machine wants to stop: go on for at most `timeout_s` seconds (None: to the end), then cancel."""

    timeout_s: float | None = None


class Pause(msgspec.Struct, frozen=True, tag="pause", omit_defaults=True):
    """Stop at the next failing step and wait for somebody to look; `on` is what to stop at."""

    on: str = "failure"


class LeaseLost(msgspec.Struct, frozen=True, tag="lease_lost", omit_defaults=True):
    """Another attempt may run: end the sandbox at once, report nothing more."""

    reason: str = ""


Order: TypeAlias = Cancel | Drain | Pause | LeaseLost
