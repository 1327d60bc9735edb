"""TOML with positions: the standard library reads it, a small index says where each key stands.

The index follows statements only (tables, keys, and what they hold); it is built when a problem has to be shown.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from runyard.job import InputError

Path = tuple[str | int, ...]
"""Keys and list indexes from the root."""

Place = tuple[int, int]
"""Line and column, from 1; columns count characters."""

_ERROR_AT = re.compile(r"^(.*?) ?\(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)
LIMIT = 4 << 20
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Document:
    """A file that was read: its value, its name, and on demand where each key stands."""

    def __init__(self, value: dict[str, Any], path: str, text: str) -> None:
        self.value = value
        self.path = path
        self._text = text
        self._places: dict[Path, Place] | None = None

    def place(self, path: Path) -> Place:
        """Where a key stands, or the nearest one around it; the file's beginning for the root."""
        if self._places is None:
            self._places = index(self._text)
        for length in range(len(path), 0, -1):
            found = self._places.get(path[:length])
            if found is not None:
                return found
        return 1, 1


def read(data: bytes, path: str) -> Document:
    """A TOML file. Raises InputError with line and column for what is none, and for one beyond 4 MiB."""
    if len(data) > LIMIT:
        raise InputError("it is larger than 4 MiB", path=path, code="config.too_large")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("it is not UTF-8", path=path, line=line, code="config.unreadable") from error
    text = text.removeprefix("\ufeff")
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise _unreadable(error, path, text) from error
    return Document(value, path, text)


def _unreadable(error: Exception, path: str, text: str) -> InputError:
    found = _ERROR_AT.match(str(error))
    if found is None:
        return InputError(f"it is no TOML: {str(error) or 'nested too deeply'}", path=path, code="config.unreadable")
    line, column = found[2], found[3]
    if line is None:
        return InputError(
            f"it is no TOML: {found[1]} at its end", path=path, line=text.count("\n") + 1, code="config.unreadable"
        )
    return InputError(
        f"it is no TOML: {found[1]}", path=path, line=int(line), column=int(column), code="config.unreadable"
    )


def index(text: str) -> dict[Path, Place]:
    """Where every key of a valid document stands."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    """Walks a document that is known to be valid, so it only has to know where things end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.places: dict[Path, Place] = {}
        self.lengths: dict[Path, int] = {}

    def scan(self) -> dict[Path, Place]:
        base: Path = ()
        while self._to_statement():
            if self.text[self.at] == "[":
                base = self._table()
            else:
                self._assignment(base)
        return self.places

    def _to_statement(self) -> bool:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                self._to_line_end()
            elif char in " \t\r\n":
                self.at += 1
            else:
                return True
        return False

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _mark(self, path: Path, at: int) -> None:
        line = self.text.count("\n", 0, at) + 1
        self.places.setdefault(path, (line, at - self.text.rfind("\n", 0, at)))

    def _table(self) -> Path:
        start = self.at
        is_list = self.text.startswith("[[", self.at)
        self.at += 2 if is_list else 1
        keys = self._keys()
        path = self._resolve((), keys[:-1])
        path = (*path, keys[-1])
        if is_list:
            number = self.lengths.get(path, 0)
            self.lengths[path] = number + 1
            self._mark(path, start)
            path = (*path, number)
        self._mark(path, start)
        self._to_line_end()
        return path

    def _resolve(self, base: Path, keys: list[str]) -> Path:
        """A path in which the name of a list of tables stands for its last one."""
        path = base
        for key in keys:
            path = (*path, key)
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._spaces()
            char = self.text[self.at]
            if char in "\"'":
                end = self._string()
                keys.append(tomllib.loads(f"k={self.text[self.at : end]}")["k"])
                self.at = end
            else:
                bare = _BARE.match(self.text, self.at)
                if bare is None:
                    return keys or [""]
                keys.append(bare[0])
                self.at = bare.end()
            self._spaces()
            if self.text[self.at : self.at + 1] != ".":
                return keys
            self.at += 1

    def _spaces(self) -> None:
        while self.text[self.at : self.at + 1] in {" ", "\t"}:
            self.at += 1

    def _assignment(self, base: Path) -> None:
        start = self.at
        path = base
        for key in self._keys():
            path = (*path, key)
            self._mark(path, start)
        self._spaces()
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._blank()
        char = self.text[self.at : self.at + 1]
        if char in {'"', "'"}:
            self.at = self._string()
        elif char == "[":
            self.at += 1
            number = 0
            while self._more("]"):
                self._mark((*path, number), self.at)
                self._value((*path, number))
                number += 1
        elif char == "{":
            self.at += 1
            while self._more("}"):
                self._assignment(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _more(self, end: str) -> bool:
        """Go to the next member; False, and past the end, when there is none."""
        while self.at < len(self.text):
            self._blank()
            char = self.text[self.at : self.at + 1]
            if char == ",":
                self.at += 1
            elif char == end:
                self.at += 1
                return False
            else:
                return bool(char)
        return False

    def _blank(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self._to_line_end()
            elif self.text[self.at] in " \t\r\n":
                self.at += 1
            else:
                return

    def _string(self) -> int:
        """Where the string that begins here ends."""
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            end = self.at + 3
            while not self.text.startswith(quote * 3, end) and end < len(self.text):
                end += 2 if quote == '"' and self.text[end] == "\\" else 1
            end += 3
            while self.text[end : end + 1] == quote:
                end += 1
            return end
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        return end + 1
