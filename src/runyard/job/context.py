"""RunContext: what all jobs of one run share. Once a run, content-addressed."""

from __future__ import annotations

import hashlib

import msgspec

from runyard.job.template import Json


class RunContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contexts that belong to the run.

    `github` is the `github` context without `event` and without `token`; `event_digest` is the payload's SHA-256 in
    hex, and `event` the payload itself where the run travels whole (a Claim). `files` is the file table that Positions
    index from 1.
    """

    github: dict[str, Json]
    event_digest: str = ""
    event: Json = None
    vars: dict[str, str] = {}
    inputs: Json = None
    files: tuple[str, ...] = ()

    def digest(self) -> str:
        """SHA-256 of the canonical encoding without the payload (its digest stands for it), in hex."""
        by_digest = msgspec.structs.replace(self, event=None)
        return hashlib.sha256(msgspec.json.encode(by_digest, order="deterministic")).hexdigest()
