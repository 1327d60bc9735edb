"""The log of one step record: everything it says goes through the masks here and leaves as events, in order."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import msgspec

from runyard.job import Annotation, Log

if TYPE_CHECKING:
    from runyard.job import AnnotationLevel, JobEvent, LogKind
    from runyard.report.masks import Masker

MESSAGE_LIMIT = 4096
STRICT_ISSUES = 10
"""Annotations of one level that a step may have under the switch (deviation D2)."""


class Emitter(Protocol):
    """Where events go. `emit` never blocks; whoever emits much awaits `drain` now and then, which keeps memory flat."""

    def emit(self, event: JobEvent) -> None:
        """Take one masked event."""

    async def drain(self) -> None:
        """Wait until what was emitted is mostly on its way."""


class StepLog:
    """One record's log. `offset` of its events counts masked bytes, whatever their kind."""

    def __init__(self, step: int, emitter: Emitter, masker: Masker, *, strict: bool = False) -> None:
        self.step = step
        self._emitter = emitter
        self._masker = masker
        self._stream = masker.stream()
        self._strict = strict
        self._offset = 0
        self._line_open = False
        self._issues: Counter[str] = Counter()

    def output(self, data: bytes) -> None:
        """Bytes that the step printed; held back as far as they could begin a secret."""
        self._put("output", self._stream.feed(data))

    def settle(self) -> None:
        """Let go what was held back: nothing more comes for now."""
        self._put("output", self._stream.flush())

    def say(self, text: str, kind: LogKind = "runner") -> None:
        """Whole lines, without the last line end."""
        self.settle()
        if self._line_open:
            self._put("output", b"\n")
        self._put(kind, self._masker.mask(f"{text}\n".encode("utf-8", "replace")))

    def issue(self, level: AnnotationLevel, message: str, line: str | None = None) -> None:
        """A tagged line and its annotation, for what Runyard itself has to say."""
        self.annotate(Annotation(self.step, level, message, time.time_ns()), line)

    def annotate(self, annotation: Annotation, line: str | None = None) -> None:
        """An annotation and its log line; `line` stands there instead of the message (matchers: the whole line)."""
        level = annotation.level
        shown = annotation.message if line is None else line
        self.say(f"##[{level}]{shown[:MESSAGE_LIMIT]}", "runner")
        self._issues[level] += 1
        if self._strict and self._issues[level] > STRICT_ISSUES:
            return
        mask = self._masker.mask_text
        message = mask(annotation.message)
        if len(message) > MESSAGE_LIMIT:
            self.say(f"The {level} above is shown up to {MESSAGE_LIMIT} of its {len(message)} characters")
        self._emitter.emit(
            msgspec.structs.replace(
                annotation,
                step=self.step,
                message=message[:MESSAGE_LIMIT],
                truncated_from=len(message) if len(message) > MESSAGE_LIMIT else None,
                title=annotation.title and mask(annotation.title),
                file=annotation.file and mask(annotation.file),
                code=annotation.code and mask(annotation.code),
            )
        )

    def emit(self, event: JobEvent) -> None:
        """Another event of this record, already masked."""
        self._emitter.emit(event)

    async def drain(self) -> None:
        """See Emitter."""
        await self._emitter.drain()

    def _put(self, kind: LogKind, data: bytes) -> None:
        if not data:
            return
        self._emitter.emit(Log(self.step, self._offset, time.time_ns(), kind, data))
        self._offset += len(data)
        self._line_open = data[-1] not in b"\n\r"
