"""Ids of jobs and steps: what is legal, and the ones that are made up (workflow-language 7, 15)."""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 100
_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class Identifiers:
    """The ids of one scope: the jobs of a workflow, or the steps of a job."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._attempts: dict[str, int] = {}

    def claim(self, name: str) -> str | None:
        """Takes a written id; what is wrong with it, or None."""
        if _LEGAL.match(name) is None or len(name) >= MAX_LENGTH:
            return (
                f"The identifier '{name[:MAX_LENGTH]}' is invalid. IDs may only contain alphanumeric characters, '_', "
                f"and '-'; they start with a letter or '_' and are shorter than {MAX_LENGTH} characters"
            )
        if name.startswith("__"):
            return f"The identifier '{name}' is invalid. IDs that start with '__' are reserved"
        if name.upper() in self._taken:
            return f"The identifier '{name}' may not be used more than once within the same scope"
        self._taken.add(name.upper())
        return None

    def generate(self, *segments: str) -> str:
        """An id made of `segments`, the first of which begins with `__`; repeats get `_2`, `_3` and so on."""
        stem = "_".join(_OTHER.sub("_", segment) for segment in segments if segment)
        attempt = self._attempts.get(stem.upper(), 1)
        while True:
            suffix = "" if attempt == 1 else f"_{attempt}"
            name = stem[: MAX_LENGTH - len(suffix)] + suffix
            if name.upper() not in self._taken:
                self._taken.add(name.upper())
                self._attempts[stem.upper()] = attempt + 1
                return name
            attempt += 1
