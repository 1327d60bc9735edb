"""What is certainly wrong with a matrix as written (workflow-language 6.2).

Only plain parts are looked at; expansion, and the same rules for what expressions yield, belong to the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from runyard.job import MappingToken, SequenceToken, Template
from runyard.workflow.tokens import entries, fields, is_plain

if TYPE_CHECKING:
    from runyard.workflow.problems import Problems

MAX_LEGS = 256
_FILTERS = ("include", "exclude")


def check_matrix(token: Template, key: str, problems: Problems) -> None:
    """Notes empty vectors, empty or foreign filter items, and a matrix that defines nothing or too much."""
    if not isinstance(token, MappingToken):
        return
    vectors = [(name, value) for name, value in entries(token) if name.value not in _FILTERS]
    for name, value in vectors:
        if isinstance(value, SequenceToken) and not value.items:
            problems.add(f"Matrix vector '{name.value}' does not contain any values", value.at, f"{key}.{name.value}")
    plain = is_plain(token)
    parts = fields(token)
    include = parts.get("include")
    if plain and not vectors and (include is None or (isinstance(include, SequenceToken) and not include.items)):
        problems.add("Matrix must define at least one vector", token.at, key)
    for filter_name in _FILTERS:
        _check_filter(parts.get(filter_name), filter_name, f"{key}.{filter_name}", problems)
    if plain:
        _check_exclude(parts.get("exclude"), {name.value.upper() for name, _ in vectors}, f"{key}.exclude", problems)
    sizes = [len(value.items) for _, value in vectors if isinstance(value, SequenceToken)]
    if "exclude" not in parts and math.prod(sizes) > MAX_LEGS:
        problems.add(f"this matrix makes {math.prod(sizes)} jobs; {MAX_LEGS} is the limit", token.at, key)


def _check_filter(token: Template | None, name: str, key: str, problems: Problems) -> None:
    for index, item in enumerate(token.items if isinstance(token, SequenceToken) else ()):
        if isinstance(item, MappingToken) and not item.entries:
            problems.add(f"an {name} item of a matrix can't be empty", item.at, f"{key}[{index}]")


def _check_exclude(token: Template | None, vectors: set[str], key: str, problems: Problems) -> None:
    for index, item in enumerate(token.items if isinstance(token, SequenceToken) else ()):
        for name, _ in entries(item):
            if name.value.upper() not in vectors:
                problems.add(
                    f"Matrix exclude key '{name.value}' does not match any key within the matrix",
                    name.at,
                    f"{key}[{index}].{name.value}",
                )
