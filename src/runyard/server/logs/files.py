"""The file store: one folder an attempt, two files a step while it runs, one sealed file afterwards.

    <root>/<first letters>/<job>/<attempt>/<step>.log      masked bytes
    <root>/<first letters>/<job>/<attempt>/<step>.idx      a record for each append (index.py)
    <root>/<first letters>/<job>/<attempt>.sealed          everything (sealed.py); the folder is gone then

Bytes are written before the record that speaks of them, so a crash between the two leaves bytes that nobody has been
told of: the worker sends them again. An append is in the kernel's hands when it is acknowledged, so it outlives the
process; it is on the disk when the attempt is sealed. One server process owns a root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from runyard.report.masks import MaskStream
from runyard.server.logs import reading, sealed
from runyard.server.logs.index import Record, Spans, decode
from runyard.server.logs.port import ATTEMPT_LIMIT, READ_LIMIT, AttemptKey, GapError, NoLogError, SealedError, StepLog
from runyard.server.logs.tails import TailBox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runyard.job import LogKind
    from runyard.report.masks import Masker
    from runyard.server.logs.port import Chunk, Line, Match

_OPEN_ATTEMPTS = 512
_SEALED_KEPT = 64
_MODE = 0o600


class _Step:
    """One step's two files while the attempt lives."""

    def __init__(self, folder: Path, step: int, place: bytes, box: TailBox) -> None:
        self.step = step
        self.spans = Spans()
        self._log_path = folder / f"{step}.log"
        self._place = place + b"/%d" % step
        self._box = box
        self.received = 0
        self.kind: LogKind = "output"
        self._held = b""
        self._covered = -1
        self._lines = 0
        self.stored = 0
        self._log = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            self._index = os.open(folder / f"{step}.idx", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError:
            os.close(self._log)
            raise
        self._recover()

    def _recover(self) -> None:
        raw = bytearray()
        while part := os.read(self._index, 1 << 20):
            raw += part
        records, whole = decode(bytes(raw))
        have = os.fstat(self._log).st_size
        while records and records[-1].stored > have:
            whole -= len(records.pop().encode())
        for record in records:
            self.spans.add(record)
        if records:
            last = records[-1]
            self.received, self.stored, self._lines = last.received, last.stored, last.lines
            self.kind, self._covered = last.kind, last.covered
            self._held = self._box.open(last.held, self._place)
        if len(raw) != whole:
            os.ftruncate(self._index, whole)
        if have != self.stored:
            os.ftruncate(self._log, self.stored)
        os.lseek(self._index, whole, os.SEEK_SET)
        os.lseek(self._log, self.stored, os.SEEK_SET)

    def append(self, offset: int, data: bytes, *, kind: LogKind, time_ns: int, masker: Masker, room: int) -> int:
        if offset > self.received:
            raise GapError(self.received)
        new = data[self.received - offset :]
        if not new:
            return self.received
        if kind != self.kind and self._held:
            self.finish(masker, time_ns)
        stream = MaskStream(masker, self._held, self._covered)
        shown = stream.feed(new)
        self._store(shown, stream, taken=len(new), kind=kind, time_ns=time_ns, room=room)
        return self.received

    def finish(self, masker: Masker, time_ns: int | None = None) -> None:
        if not self._held:
            return
        stream = MaskStream(masker, self._held, self._covered)
        shown = stream.flush()
        when = time_ns if time_ns is not None else (self.spans.times[-1] if len(self.spans) else 0)
        self._store(shown, stream, taken=0, kind=self.kind, time_ns=when, room=len(shown) + 1)

    def _store(self, shown: bytes, stream: MaskStream, *, taken: int, kind: LogKind, time_ns: int, room: int) -> None:
        if shown and len(shown) >= room:
            shown = _cut(shown, room)
        held, covered = stream.kept
        record = Record(
            self.received + taken,
            self.stored + len(shown),
            self._lines + shown.count(b"\n"),
            time_ns,
            covered,
            kind,
            self._box.close(held, self._place),
        )
        try:
            _write(self._log, shown)
            _write(self._index, record.encode())
        except OSError:
            # What was half written is not spoken of by any record: the next append writes over it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._log, self.stored)
                os.lseek(self._log, self.stored, os.SEEK_SET)
                self._cut_index()
            raise
        self.received, self.stored, self._lines, self.kind = record.received, record.stored, record.lines, kind
        self._held, self._covered = held, covered
        self.spans.add(record)

    def _cut_index(self) -> None:
        os.lseek(self._index, 0, os.SEEK_SET)
        raw = bytearray()
        while part := os.read(self._index, 1 << 20):
            raw += part
        whole = decode(bytes(raw))[1]
        os.ftruncate(self._index, whole)
        os.lseek(self._index, whole, os.SEEK_SET)

    def bytes_at(self, offset: int, limit: int) -> bytes:
        """At most `limit` stored bytes from `offset` on."""
        return os.pread(self._log, max(0, min(limit, self.stored - offset)), offset)

    def close(self) -> None:
        os.close(self._log)
        os.close(self._index)


def _cut(shown: bytes, room: int) -> bytes:
    """What still fits, ended by a sentence about the rest where there is room to say it at all."""
    if room <= 0:
        return b""
    said = b"\n[the log of this attempt is full; what follows is not kept]\n"
    return shown[:room] + said


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class _Attempt:
    """The open steps of one attempt, and the lock that orders their writers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.steps: dict[int, _Step] = {}
        self.closed = False
        self.whole = False

    def close(self) -> None:
        self.closed = True
        for step in self.steps.values():
            step.close()
        self.steps.clear()

    @property
    def stored(self) -> int:
        return sum(step.stored for step in self.steps.values())


class FileLogs:
    """Logs below one folder, for one server process. `key` (32 bytes) is the server's own."""

    def __init__(self, root: Path, *, key: bytes, attempt_limit: int = ATTEMPT_LIMIT) -> None:
        self._root = root
        self._box = TailBox(key)
        self._limit = attempt_limit
        self._lock = threading.Lock()
        self._live: set[AttemptKey] = set()
        self._looked = False
        self._open: OrderedDict[AttemptKey, _Attempt] = OrderedDict()
        self._sealed: OrderedDict[AttemptKey, dict[int, sealed.SealedStep]] = OrderedDict()

    def append(
        self, attempt: AttemptKey, step: int, offset: int, data: bytes, *, kind: LogKind, time_ns: int, masker: Masker
    ) -> int:
        """See LogStore."""
        if step < 0 or offset < 0:
            raise ValueError("step and offset count from 0")
        if self._is_sealed(attempt):
            raise SealedError
        with self._attempt(attempt) as opened:
            self._open_all(attempt, opened)
            log = self._step(attempt, opened, step, create=True)
            self._live.add(attempt)
            room = self._limit - opened.stored
            return log.append(offset, data, kind=kind, time_ns=time_ns, masker=masker, room=room)

    def finish(self, attempt: AttemptKey, step: int, masker: Masker) -> None:
        """See LogStore."""
        if self._is_sealed(attempt):
            return
        with self._attempt(attempt) as opened, contextlib.suppress(NoLogError):
            self._step(attempt, opened, step).finish(masker)

    def steps(self, attempt: AttemptKey) -> list[StepLog]:
        """See LogStore."""
        logs = self._sealed_steps(attempt)
        if logs is not None:
            return [
                StepLog(log.step, log.received, log.stored, reading.count_lines(log), sealed=True)
                for _, log in sorted(logs.items())
            ]
        with self._attempt(attempt) as opened:
            self._open_all(attempt, opened)
            return [
                StepLog(log.step, log.received, log.stored, reading.count_lines(log), sealed=False)
                for _, log in sorted(opened.steps.items())
            ]

    def read(self, attempt: AttemptKey, step: int, offset: int, limit: int = READ_LIMIT) -> list[Chunk]:
        """See LogStore."""
        with self._log(attempt, step) as log:
            return reading.chunks(log, max(0, offset), limit)

    def lines(self, attempt: AttemptKey, step: int, first: int, count: int) -> list[Line]:
        """See LogStore."""
        with self._log(attempt, step) as log:
            return reading.lines(log, first, count)

    def tail(self, attempt: AttemptKey, step: int, count: int) -> list[Line]:
        """See LogStore."""
        with self._log(attempt, step) as log:
            return reading.tail(log, count)

    def search(
        self, attempt: AttemptKey, text: str, *, step: int | None = None, limit: int = 200, ignore_case: bool = True
    ) -> list[Match]:
        """See LogStore."""
        found: list[Match] = []
        for entry in self.steps(attempt):
            if (step is None or entry.step == step) and len(found) < limit:
                with self._log(attempt, entry.step) as log:
                    found += reading.search(log, text, limit=limit - len(found), ignore_case=ignore_case)
        return found

    def seal(self, attempt: AttemptKey, masker: Masker) -> None:
        """See LogStore."""
        folder, path = self._folder(attempt), self._sealed_path(attempt)
        with self._attempt(attempt) as opened:
            if not path.exists():
                if not folder.is_dir():
                    self._live.discard(attempt)
                    return
                self._open_all(attempt, opened)
                for log in opened.steps.values():
                    log.finish(masker)
                sealed.write(path, [(log, log.received) for _, log in sorted(opened.steps.items())])
            opened.close()
            with self._lock:
                self._open.pop(attempt, None)
            shutil.rmtree(folder, ignore_errors=True)
            self._live.discard(attempt)

    def unsealed(self) -> list[AttemptKey]:
        """Attempts with an open log, found on the disk the first time and known from then on."""
        if not self._looked:
            self._looked = True
            for folder in self._root.glob("*/*/*/"):
                if folder.name.isdecimal():
                    with contextlib.suppress(ValueError):
                        self._live.add(AttemptKey(folder.parent.name, int(folder.name)).checked())
        return sorted(self._live)

    def size(self, attempt: AttemptKey) -> int:
        """See LogStore."""
        total = 0
        for path in (self._sealed_path(attempt), *self._folder(attempt).glob("*")):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def remove(self, attempt: AttemptKey) -> None:
        """See LogStore."""
        with self._attempt(attempt) as opened:
            opened.close()
            self._live.discard(attempt)
            with self._lock:
                self._open.pop(attempt, None)
                self._sealed.pop(attempt, None)
            self._sealed_path(attempt).unlink(missing_ok=True)
            shutil.rmtree(self._folder(attempt), ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder(attempt).parent.rmdir()

    def close(self) -> None:
        """Close every file. Safe to repeat."""
        with self._lock:
            opened = list(self._open.values())
            self._open.clear()
        for attempt in opened:
            with attempt.lock:
                attempt.close()

    # --- places

    def _folder(self, attempt: AttemptKey) -> Path:
        job, number = attempt.checked()
        return self._root / job[-2:].rjust(2, "_") / job / str(number)

    def _sealed_path(self, attempt: AttemptKey) -> Path:
        folder = self._folder(attempt)
        return folder.with_name(f"{folder.name}.sealed")

    def _is_sealed(self, attempt: AttemptKey) -> bool:
        return attempt in self._sealed or self._sealed_path(attempt).exists()

    # --- what is open

    @contextlib.contextmanager
    def _attempt(self, attempt: AttemptKey) -> Iterator[_Attempt]:
        """The attempt, locked; one that another thread closed meanwhile is opened anew."""
        while True:
            with self._lock:
                opened = self._open.get(attempt)
                if opened is None:
                    opened = self._open[attempt] = _Attempt()
                self._open.move_to_end(attempt)
                spare = self._idle() if len(self._open) > _OPEN_ATTEMPTS else None
            if spare is not None:
                spare.close()
                spare.lock.release()
            with opened.lock:
                if not opened.closed:
                    yield opened
                    return
            with self._lock:
                if self._open.get(attempt) is opened:
                    del self._open[attempt]

    def _idle(self) -> _Attempt | None:
        """The attempt used longest ago that nobody is at, locked and taken out."""
        for key, opened in self._open.items():
            if opened.lock.acquire(blocking=False):
                del self._open[key]
                return opened
        return None

    def _step(self, attempt: AttemptKey, opened: _Attempt, step: int, *, create: bool = False) -> _Step:
        log = opened.steps.get(step)
        if log is None:
            folder = self._folder(attempt)
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            elif not (folder / f"{step}.idx").exists():
                raise NoLogError(attempt, step)
            log = opened.steps[step] = _Step(folder, step, f"{attempt.job}/{attempt.attempt}".encode(), self._box)
        return log

    def _open_all(self, attempt: AttemptKey, opened: _Attempt) -> None:
        if opened.whole:
            return
        for path in self._folder(attempt).glob("*.idx"):
            if path.stem.isdecimal():
                self._step(attempt, opened, int(path.stem))
        opened.whole = True

    def _sealed_steps(self, attempt: AttemptKey) -> dict[int, sealed.SealedStep] | None:
        with self._lock:
            logs = self._sealed.get(attempt)
            if logs is not None:
                self._sealed.move_to_end(attempt)
                return logs
        try:
            logs = sealed.load(self._sealed_path(attempt))
        except FileNotFoundError:
            return None
        with self._lock:
            self._sealed[attempt] = logs
            while len(self._sealed) > _SEALED_KEPT:
                self._sealed.popitem(last=False)
        return logs

    @contextlib.contextmanager
    def _log(self, attempt: AttemptKey, step: int) -> Iterator[reading.Stored]:
        logs = self._sealed_steps(attempt)
        if logs is None:
            with self._attempt(attempt) as opened:
                # It may have been sealed while this call waited.
                logs = self._sealed_steps(attempt)
                if logs is None:
                    yield self._step(attempt, opened, step)
                    return
        if step not in logs:
            raise NoLogError(attempt, step)
        yield logs[step]
