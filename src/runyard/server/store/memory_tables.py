"""Tables of the store double: dictionaries with a journal, so that a transaction can be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ABSENT: Final = object()


class Table(dict[Any, Any]):
    """One table by primary key. Written through `Tables.put` and `Tables.drop` only."""


class Tables:
    """All tables of one store, and the journal of the transaction that is open."""

    def __init__(self) -> None:
        self.counters = Table()
        self.blobs = Table()
        self.projects = Table()
        self.triggers = Table()
        self.runs = Table()
        self.groups = Table()
        self.jobs = Table()
        self.bodies = Table()
        self.classes = Table()
        self.strides = Table()
        self.attempts = Table()
        self.claims = Table()
        self.events = Table()
        self.orders = Table()
        self.results = Table()
        self.masks = Table()
        self.workers = Table()
        self.tokens = Table()
        self.secrets = Table()
        self.vaults = Table()
        self.audit = Table()
        self._journal: list[tuple[Table, Any, Any]] = []

    def put(self, table: Table, key: Any, row: Any) -> None:
        """Insert or replace."""
        self._journal.append((table, key, table.get(key, _ABSENT)))
        table[key] = row

    def drop(self, table: Table, key: Any) -> bool:
        """Delete; whether it was there."""
        if key not in table:
            return False
        self._journal.append((table, key, table[key]))
        del table[key]
        return True

    def commit(self) -> None:
        """What was written stays."""
        self._journal.clear()

    def abort(self) -> None:
        """What was written since the last commit was not."""
        for table, key, before in reversed(self._journal):
            if before is _ABSENT:
                del table[key]
            else:
                table[key] = before
        self._journal.clear()

    def scan(self, table: Table, wanted: Callable[[Any], bool]) -> list[Any]:
        """Every row that is wanted, in the order of insertion."""
        return [row for row in table.values() if wanted(row)]
