"""The built-in `actions/cache`, `…/restore` and `…/save`: what they are asked for, and which archive that means. Pure.

Keys, versions and archives are those of the original's client, so what one of them saved the other finds.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DECLARED: Final = re.compile(r"(v[3-5](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
"""References whose behaviour this adapter has; a commit is taken for one."""

PHASES: Final = {"": "cache", "restore": "cache_restore", "save": "cache_save"}
"""The adapter's name by the path below the repository."""

SALT: Final = "1.0"
ZSTD: Final = "zstd-without-long"
GZIP: Final = "gzip"

DEPRECATED: Final = (
    "save-always does not work as intended and will be removed in a future release. "
    "Use the separate restore and save actions instead."
)


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one step asks for. `paths` are patterns, in the order given."""

    key: str
    paths: tuple[str, ...]
    restore_keys: tuple[str, ...] = ()
    cross_os: bool = False
    fail_on_miss: bool = False
    lookup_only: bool = False
    save_always: bool = False


def declares(path: str, ref: str) -> bool:
    """Whether this adapter has the behaviour of that reference."""
    return path.strip("/") in PHASES and _DECLARED.match(ref) is not None


def plan_cache(inputs: Mapping[str, str]) -> CachePlan:
    """Read the inputs. Raises InputError for one that is missing."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    for name in ("key", "path"):
        if not given.get(name):
            raise InputError(f"Input required and not supplied: {name}", code="action.cache")
    return CachePlan(
        key=given["key"],
        paths=_lines(given["path"]),
        restore_keys=_lines(given.get("restore-keys", "")),
        cross_os=_true(given, "enablecrossosarchive"),
        fail_on_miss=_true(given, "fail-on-cache-miss"),
        lookup_only=_true(given, "lookup-only"),
        save_always=_true(given, "save-always"),
    )


def check_keys(keys: Sequence[str]) -> None:
    """Raises InputError where the original's client does: more than ten keys, too long ones, commas."""
    if len(keys) > 10:
        raise InputError("Key Validation Error: Keys are limited to a maximum of 10.", code="action.cache")
    for key in keys:
        if len(key) > 512:
            raise InputError(f"Key Validation Error: {key} cannot be larger than 512 characters.", code="action.cache")
        if "," in key:
            raise InputError(f"Key Validation Error: {key} cannot contain commas.", code="action.cache")


def cache_version(paths: Sequence[str], compression: str) -> str:
    """The version of an archive, in hex: the same paths and the same compression give the same one."""
    return hashlib.sha256("|".join((*paths, compression, SALT)).encode()).hexdigest()


def same_key(key: str, other: str) -> bool:
    """Whether two keys count as the same: case is ignored, accents are not."""
    return unicodedata.normalize("NFC", key).casefold() == unicodedata.normalize("NFC", other).casefold()


def _lines(text: str) -> tuple[str, ...]:
    """One item a line; an exclusion may have space after its mark."""
    return tuple(re.sub(r"^!\s+", "!", line.strip()) for line in text.split("\n") if line.strip())


def _true(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "").lower() == "true"
