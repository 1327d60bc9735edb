"""Stored blobs: a version byte, then MessagePack. Written in the newest version, read in the last two.

The state of a run is kept without its context, which is a blob of its own and the same for its whole life.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from runyard.job import JobSpec, Json, Order, RunContext
from runyard.run import GroupRequest, RunState, SecretLevel, Why
from runyard.workflow.plan import RunPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
READABLE: Final = frozenset({VERSION})
_NOTHING: Final = RunContext(github={})
_encoder: Final = msgspec.msgpack.Encoder()
T = TypeVar("T")


class BlobVersionError(Exception):
    """The blob was written by a release that this one can't read."""


@lru_cache(maxsize=32)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def encode(value: object) -> bytes:
    """A blob of the newest version."""
    return bytes([VERSION]) + _encoder.encode(value)


def decode(blob: bytes, kind: type[T]) -> T:
    """What was encoded. Raises BlobVersionError."""
    if not blob or blob[0] not in READABLE:
        raise BlobVersionError(f"a stored {kind.__name__} has version {blob[0] if blob else 'none'}")
    decoded: T = _decoder(kind).decode(memoryview(blob)[1:])  # type: ignore[arg-type]  # every type is hashable
    return decoded


def digest(blob: bytes) -> str:
    """SHA-256 in hex: the name of a blob."""
    return hashlib.sha256(blob).hexdigest()


def encode_state(state: RunState) -> bytes:
    """A RunState without its context."""
    return encode(msgspec.structs.replace(state, context=_NOTHING))


def decode_state(blob: bytes, context: RunContext) -> RunState:
    """A RunState with the context it belongs to."""
    return msgspec.structs.replace(decode(blob, RunState), context=context)


@lru_cache(maxsize=256)
def decode_plan(blob: bytes) -> RunPlan:
    """A RunPlan; plans are immutable, so a few are kept decoded."""
    return decode(blob, RunPlan)


@lru_cache(maxsize=256)
def decode_context(blob: bytes) -> RunContext:
    """A RunContext; likewise."""
    return decode(blob, RunContext)


def decode_spec(blob: bytes) -> JobSpec:
    """A JobSpec."""
    return decode(blob, JobSpec)


def encode_levels(levels: Sequence[SecretLevel]) -> bytes:
    """The levels that secrets of a job come through."""
    return encode(tuple(levels))


def decode_levels(blob: bytes) -> tuple[SecretLevel, ...]:
    """They again."""
    return decode(blob, tuple[SecretLevel, ...]) if blob else ()


class GroupMember(msgspec.Struct, frozen=True):
    """A concurrency group that a job goes through, and as whom: itself, or the call it stands in."""

    member: str
    request: GroupRequest


def decode_member(blob: bytes) -> GroupMember:
    """One of a body's `groups`."""
    return decode(blob, GroupMember)


def decode_why(blob: bytes) -> Why | None:
    """What decided that a job was made or ended."""
    return decode(blob, Why) if blob else None


def decode_matrix(blob: bytes) -> Json:
    """The matrix to show; None without."""
    return msgspec.msgpack.decode(blob[1:]) if blob else None


class _OrderBox(msgspec.Struct, frozen=True):
    order: Order


def encode_order(order: Order) -> bytes:
    """An order as a row keeps it."""
    return encode(_OrderBox(order))


def decode_order(blob: bytes) -> Order:
    """It again."""
    return decode(blob, _OrderBox).order
