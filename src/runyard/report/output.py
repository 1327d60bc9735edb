"""Where a display writes: bytes to a stream whose reader may go away, and text that can't take over a terminal.

Rule kept: a reader that stops reading (`| head`) ends the display, not the run, and is never answered with a traceback.
"""

from __future__ import annotations

import os
import re
import time
from typing import IO

_SECOND = 1_000_000_000
_COLOURS = re.compile(rb"\x1b\[[0-9;:]*m")
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?|[ -~])?|\xc2\x9b"
)
_DRAWN_OVER = re.compile(rb"[^\n]*\r(?!\n)")
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\x1b") + b"\x7f"


class Output:
    """A stream of bytes. `broken` turns true when nobody reads any more; what comes then is dropped.

    `problem` says why bytes were lost that somebody wanted: a full disk, say, and not a reader that had enough.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.broken = False
        self.problem: str | None = None

    def write(self, data: bytes) -> None:
        """Write and hand on at once."""
        if self.broken or not data:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            self._give_up()
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._give_up()

    def _give_up(self) -> None:
        """Let what Python still flushes at its end go nowhere: it would fail once more, loudly."""
        self.broken = True
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._stream.fileno())
            finally:
                os.close(nowhere)
        except (OSError, ValueError):
            return


def is_terminal(stream: IO[bytes]) -> bool:
    """Whether a person looks at the stream."""
    try:
        return stream.isatty()
    except (OSError, ValueError):
        return False


def terminal_size(stream: IO[bytes]) -> tuple[int, int]:
    """Columns and lines; 80 and 24 where nobody knows."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return (size.columns or 80, size.lines or 24)


class Clock:
    """Writes times of events, most of which fall into the same second as the one before."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def _seconds(self, second: int) -> str:
        if second != self._second:
            try:
                self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            except (OverflowError, ValueError, OSError):
                self._text = "1970-01-01T00:00:00"
            self._second = second
        return self._text

    def rfc3339(self, time_ns: int) -> str:
        """UTC with nine digits, as JSON has it."""
        return f"{self._seconds(time_ns // _SECOND)}.{time_ns % _SECOND:09d}Z"

    def github(self, time_ns: int) -> str:
        """UTC with seven digits, as GitHub's logs have it."""
        return f"{self._seconds(time_ns // _SECOND)}.{time_ns % _SECOND // 100:07d}Z"


def duration(seconds: float) -> str:
    """A duration for people: `0.4s`, `12s`, `3m 05s`, `1h 02m`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def harmless(data: bytes, *, color: bool) -> bytes:
    """Job output without what moves a cursor or renames a window; colours stay where `color`."""
    if b"\x1b" in data or b"\xc2\x9b" in data:
        data = _ESCAPES.sub(lambda found: found[0] if color and _COLOURS.fullmatch(found[0]) else b"", data)
    return data.translate(None, _CONTROLS)


def last_states(data: bytes) -> bytes:
    """Whole lines with CRLF as LF, and of a line that was drawn over only what stood there last."""
    if b"\r" not in data:
        return data
    return _DRAWN_OVER.sub(b"", data.replace(b"\r\n", b"\n"))


def one_line(text: str, width: int = 200) -> str:
    """A name or message as one short line without control characters."""
    cleaned = harmless(text.encode("utf-8", "replace"), color=False).decode("utf-8", "replace")
    line = " ".join(cleaned.split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def indented(prefix: str, text: str, width: int) -> str:
    """`text` as one line behind `prefix`, both together at most `width` characters."""
    return prefix + one_line(text, max(width - len(prefix), 1))


class Lines:
    """Cuts pieces of one stream into whole lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def whole(self, data: bytes) -> bytes:
        """The whole lines that `data` completes, with their ends."""
        end = data.rfind(b"\n") + 1
        if not end:
            if data:
                self._rest.append(data)
            return b""
        lines = b"".join((*self._rest, data[:end])) if self._rest else data[:end]
        self._rest = [data[end:]] if end < len(data) else []
        return lines

    def rest(self) -> bytes:
        """What has no line end, given one; b"" where nothing waits."""
        if not self._rest:
            return b""
        line = b"".join(self._rest) + b"\n"
        self._rest = []
        return line
