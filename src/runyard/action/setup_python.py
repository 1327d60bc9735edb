"""What `actions/setup-python` asks for, where the tool cache can give it. Pure.

Its other work (downloads, package caches, PyPy, upgrades of pip) is left to the original.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.action.semver import parse_range
from runyard.action.toolcache import Original, is_true, only_known, without

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_FILE: Final = ".python-version"

_DECLARED: Final = re.compile(r"(v[4-6](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
_NO_EFFECT: Final = ("token", "cache-dependency-path", "ignore-platform-version")
_READ: Final = ("python-version", "python-version-file", "architecture", "update-environment", "allow-prereleases")
_ASKS_MORE: Final = ("cache", "check-latest", "pip-version", "pip-install", "mirror", "mirror-token")
_KNOWN: Final = frozenset((*_READ, *_NO_EFFECT, *_ASKS_MORE, "freethreaded"))

_FREE_THREADED: Final = re.compile(r"(\d+\.\d+(?:\.\d+(?:(?:a|b|rc)\d*)?)?)t(-dev)?\Z")
_DEV: Final = re.compile(r"(\d+)\.(\d+)-dev\Z")
_PRE: Final = re.compile(r"(\d+\.\d+\.\d+)((?:a|b|rc)\d*)")
_MAJOR_MINOR: Final = re.compile(r"(\d+)\.(\d+)\Z")

MATCHER: Final = rb"""{"problemMatcher": [{"owner": "python", "pattern": [
{"regexp": "^\\s*File\\s\"(.*)\",\\sline\\s(\\d+),\\sin\\s(.*)$", "file": 1, "line": 2},
{"regexp": "^\\s*raise\\s(.*)\\(['\"](.*)['\"]\\)$", "message": 2}]}]}"""
"""A traceback: the place, and what was raised there."""


class PythonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`versions` as written; empty: they stand in `file` (which must be there if it was `named`)."""

    versions: tuple[str, ...]
    file: str
    named: bool
    arch: str
    updates: bool
    pre_releases: bool
    free_threaded: bool


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One version to look for: an npm range, the architecture's folder, and what its version's text ends with."""

    range: str
    arch: str
    suffix: str = ""


def declares(path: str, ref: str) -> bool:
    """Whether this adapter has the behaviour of that reference."""
    return not path.strip("/") and _DECLARED.match(ref) is not None


def plan_python(inputs: Mapping[str, str], arch: str) -> PythonPlan:
    """Read the inputs. Raises Original for what the adapter doesn't do."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    only_known(given, _KNOWN)
    without(given, _ASKS_MORE)
    versions = tuple(line.strip() for line in given.get("python-version", "").split("\n") if line.strip())
    named = given.get("python-version-file", "")
    return PythonPlan(
        versions=versions,
        file=named or DEFAULT_FILE,
        named=bool(named),
        arch=given.get("architecture") or arch,
        updates=is_true(given.get("update-environment", ""), "update-environment", default=True),
        pre_releases=is_true(given.get("allow-prereleases", ""), "allow-prereleases"),
        free_threaded=is_true(given.get("freethreaded", ""), "freethreaded"),
    )


def versions_in(name: str, data: bytes) -> tuple[str, ...]:
    """The versions that a file asks for, by its name. Raises Original where none can be read."""
    text = data.decode("utf-8", "replace")
    base = name.rpartition("/")[2]
    if base.endswith(".toml"):
        found = _in_toml(text)
    elif base == "Pipfile":
        requires = _toml(text).get("requires")
        table = requires if isinstance(requires, dict) else {}
        found = tuple(str(table[key]) for key in ("python_full_version", "python_version") if key in table)[:1]
    elif base == ".tool-versions":
        found = _in_tool_versions(text)
    else:
        found = tuple(
            each.partition("/")[0]
            for line in re.split(r"\r\n|\r|\n", text)
            if (each := line.strip()) and not each.startswith("#")
        )
    if not found:
        raise Original(f"{name} names no version that is understood")
    return found


def _in_tool_versions(text: str) -> tuple[str, ...]:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "python":
            return (words[1].removeprefix("v"),)
    return ()


def _in_toml(text: str) -> tuple[str, ...]:
    read = _toml(text)
    found: Any = read
    for key in ("project", "requires-python") if "project" in read else ("tool", "poetry", "dependencies", "python"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, str):
        return ()
    wanted = " ".join(found.split(","))
    return (wanted,) if parse_range(wanted) is not None else ()


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Original(f"the version file is no TOML: {error}") from error


def wanted_python(version: str, plan: PythonPlan) -> Wanted:
    """Python's way of writing versions as a range. Raises Original for other implementations."""
    if version.startswith(("pypy", "graalpy")):
        raise Original(f"it asks for {version}")
    free = plan.free_threaded
    if (found := _FREE_THREADED.match(version)) is not None:
        version, free = f"{found[1]}{found[2] or ''}", True
    version = _DEV.sub(r"~\1.\2.0-0", version)
    version = _PRE.sub(r"\1-\2", version)
    if plan.pre_releases:
        version = _MAJOR_MINOR.sub(r"~\1.\2.0-0", version)
    if free:
        return Wanted(range=version, arch=f"{plan.arch}-freethreaded", suffix="t")
    return Wanted(range=version, arch=plan.arch)


def variables(folder: str, library_path: str) -> dict[str, str]:
    """The variables that point to a Python in `folder`; `library_path` is LD_LIBRARY_PATH so far."""
    found = dict.fromkeys(("pythonLocation", "Python_ROOT_DIR", "Python2_ROOT_DIR", "Python3_ROOT_DIR"), folder)
    found["PKG_CONFIG_PATH"] = f"{folder}/lib/pkgconfig"
    if f"{folder}/lib" not in library_path.split(":"):
        found["LD_LIBRARY_PATH"] = f"{folder}/lib:{library_path}" if library_path else f"{folder}/lib"
    return found
