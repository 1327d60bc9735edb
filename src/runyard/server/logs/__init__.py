"""Live logs: what a worker sends is masked again, stored at once, and what is stored is what everybody sees.

Offsets of a worker count the bytes it sent for one step of one attempt; offsets of a reader count stored bytes. An
append that repeats what was received changes nothing, one that leaves a gap is refused with the offset that is wanted.
A step's bytes come back exactly as stored, by offset, by line, from the end, or by a text that stands in them. Sealing
an attempt makes one immutable file of compressed frames; reading it is the same. Logs of lost attempts stay.

    store = FileLogs(folder, key=key)
    store.append(attempt, step, offset, data, kind="output", time_ns=now, masker=masker)   # -> bytes received so far
    store.read(attempt, step, offset, limit)                                               # -> Chunks
    store.lines(attempt, step, first, count); store.tail(attempt, step, count)
    store.search(attempt, "text")
    store.seal(attempt, masker)

Every function is synchronous, safe to call from several threads, and short; a server calls them off its event loop.
`feed.follow` is the live stream: it reads the store and waits for more. Read `port.py` first.
"""

from runyard.server.logs.files import FileLogs
from runyard.server.logs.port import (
    AttemptKey,
    Chunk,
    GapError,
    Line,
    LogStore,
    Match,
    NoLogError,
    SealedError,
    StepLog,
)

__all__ = [
    "AttemptKey",
    "Chunk",
    "FileLogs",
    "GapError",
    "Line",
    "LogStore",
    "Match",
    "NoLogError",
    "SealedError",
    "StepLog",
]
