"""What a job may use. A limit is enforced or the job is refused by name; it is never dropped in silence."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

NetworkLevel: TypeAlias = Literal["none", "proxy", "public"]
"""What a job reaches: its services only; HTTP(S) through the job's own proxy; DNS and public 80 and 443."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of one job; None leaves a bound to the sandbox's own default.

    `timeout_s` is the wall-clock time of the whole job in seconds; sizes are mebibytes; `cpus` may be a fraction.
    `timeout_from` says in words which limit that is, where it isn't the job's own (field case F28).
    """

    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_mb: int | None = None
    timeout_s: int = 360 * 60
    timeout_from: str = ""
    network: NetworkLevel | None = None
    run_as: str | None = None
