"""How many arguments each function takes (job-semantics 1.8, 1.12). Names are in lower case; they ignore case."""

from __future__ import annotations

from typing import Final, NamedTuple


class Arity(NamedTuple):
    """The least and the most arguments, both included; `odd` where the number must be odd."""

    least: int
    most: int
    odd: bool = False


BUILT_IN: Final[dict[str, Arity]] = {
    "case": Arity(3, 255, odd=True),
    "contains": Arity(2, 2),
    "endswith": Arity(2, 2),
    "format": Arity(1, 255),
    "fromjson": Arity(1, 1),
    "join": Arity(1, 2),
    "startswith": Arity(2, 2),
    "tojson": Arity(1, 1),
}
"""Functions that exist wherever an expression does."""

STATUS_FUNCTIONS: Final = frozenset({"always", "cancelled", "failure", "success"})
"""Functions whose presence switches the implicit `success()` of a condition off."""

STEP_FUNCTIONS: Final[dict[str, Arity]] = {"hashfiles": Arity(1, 255)}
"""What the fields of a step have besides."""

STEP_CONDITION_FUNCTIONS: Final[dict[str, Arity]] = {
    "always": Arity(0, 0),
    "cancelled": Arity(0, 0),
    "failure": Arity(0, 0),
    "hashfiles": Arity(1, 255),
    "success": Arity(0, 0),
}
"""What the `if` of a step has besides."""

JOB_CONDITION_FUNCTIONS: Final[dict[str, Arity]] = {
    "always": Arity(0, 0),
    "cancelled": Arity(0, 0),
    "failure": Arity(0, 255),
    "success": Arity(0, 255),
}
"""What the `if` of a job has besides; success and failure take ids of jobs."""

KNOWN: Final[dict[str, Arity]] = STEP_CONDITION_FUNCTIONS | JOB_CONDITION_FUNCTIONS
"""Every function that isn't built in, with the widest arity it has anywhere."""
