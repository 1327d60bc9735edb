"""What `actions/setup-node` asks for, where the tool cache can give it. Pure.

Its other work (downloads, registries, package caches, the newest version) is left to the original.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.action.toolcache import Original, only_known, without

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DECLARED: Final = re.compile(r"(v[3-6](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
_NO_EFFECT: Final = ("token", "cache-dependency-path")
_ASKS_MORE: Final = ("cache", "check-latest", "registry-url", "always-auth", "scope", "mirror", "mirror-token")
_READ: Final = ("node-version", "node-version-file", "architecture", "package-manager-cache")
_KNOWN: Final = frozenset((*_READ, *_NO_EFFECT, *_ASKS_MORE))
_NEWEST: Final = ("current", "latest", "node")
_OTHER_KINDS: Final = ("nightly", "-rc", "canary")

_USING: Final = re.compile(r"""^\s+using:\s*['"]?node(\d+)['"]?\s*(?:#.*)?$""", re.MULTILINE)
_PLAIN: Final = re.compile(r"^(?:node(?:js)?\s+)?v?(\S+)$", re.MULTILINE)

LTS: Final = {
    "argon": 4,
    "boron": 6,
    "carbon": 8,
    "dubnium": 10,
    "erbium": 12,
    "fermium": 14,
    "gallium": 16,
    "hydrogen": 18,
    "iron": 20,
    "jod": 22,
    "krypton": 24,
}
"""Names of long-term lines, which never change; which of them is the newest does, and is not guessed."""

MATCHERS: Final = (
    rb"""{"problemMatcher": [{"owner": "tsc", "pattern": [{"regexp":
"^(?:\\s+\\d+>)?([^\\s].*)\\((\\d+),(\\d+)(?:,\\d+,\\d+)?\\)\\s*:\\s+(error|warning|info)\\s+(\\w{1,2}\\d+)\\s*:\\s*(.*)$",
"file": 1, "line": 2, "column": 3, "severity": 4, "code": 5, "message": 6}]}]}""",
    rb"""{"problemMatcher": [{"owner": "eslint-stylish", "pattern": [{"regexp": "^\\s*([^\\s].*)$", "file": 1},
{"regexp": "^\\s+(\\d+):(\\d+)\\s+(error|warning|info)\\s+(.*)\\s\\s+(.*)$",
"line": 1, "column": 2, "severity": 3, "message": 4, "code": 5, "loop": true}]}]}""",
    rb"""{"problemMatcher": [{"owner": "eslint-compact", "pattern": [{"regexp":
"^(.+):\\sline\\s(\\d+),\\scol\\s(\\d+),\\s(Error|Warning|Info)\\s-\\s(.+)\\s\\((.+)\\)$",
"file": 1, "line": 2, "column": 3, "severity": 4, "message": 5, "code": 6}]}]}""",
)
"""How the TypeScript compiler and ESLint print what they find."""


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """`version` as written; "": it stands in `file`. `looks_at_package`: package.json may ask for a package cache."""

    version: str
    file: str
    arch: str
    looks_at_package: bool


def declares(path: str, ref: str) -> bool:
    """Whether this adapter has the behaviour of that reference."""
    return not path.strip("/") and _DECLARED.match(ref) is not None


def plan_node(inputs: Mapping[str, str], ref: str, arch: str) -> NodePlan:
    """Read the inputs. Raises Original for what the adapter doesn't do."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    only_known(given, _KNOWN)
    without(given, _ASKS_MORE)
    version, file = given.get("node-version", ""), given.get("node-version-file", "")
    if not version and not file:
        raise Original("it names no version")
    caches = given.get("package-manager-cache", "true").lower() != "false"
    return NodePlan(
        version=version,
        file=file,
        arch=given.get("architecture") or arch,
        looks_at_package=caches and not ref.startswith(("v3", "v4")),
    )


def version_in(name: str, data: bytes) -> str:
    """The version that a file asks for. Raises Original where none can be read, or where it points elsewhere."""
    text = data.decode("utf-8", "replace")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict):
        return _in_package(name, read)
    if (using := _USING.search(text)) is not None:
        return using[1]
    plain = _PLAIN.search(text)
    found = plain[1] if plain is not None else text.strip()
    if not found:
        raise Original(f"{name} names no version")
    return found


def _in_package(name: str, read: dict[str, Any]) -> str:
    volta = _table(read, "volta")
    runtimes = _table(read, "devEngines").get("runtime")
    entries = runtimes if isinstance(runtimes, list) else [runtimes]
    named = [each for each in entries if isinstance(each, dict) and str(each.get("name", "")).lower() == "node"]
    candidates = [volta.get("node"), *(each.get("version") for each in named), _table(read, "engines").get("node")]
    found = next((each for each in candidates if isinstance(each, str) and each), None)
    if found is None:
        raise Original(f"{name} names no version itself")
    return found


def _table(read: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = read.get(key)
    return found if isinstance(found, dict) else {}


def asks_for_cache(package: bytes) -> bool:
    """Whether a package.json names its package manager: newer versions of the action cache for it unasked."""
    try:
        read = json.loads(package)
    except (ValueError, RecursionError):
        return False
    if not isinstance(read, dict):
        return False
    return bool(read.get("packageManager")) or bool(_table(read, "devEngines").get("packageManager"))


def range_of(version: str, releases: Sequence[Mapping[str, object]] | None) -> str:
    """An npm range for what is asked for; `releases` is the list of known releases, where there is one.

    Raises Original for the newest version, and for an alias that the data here doesn't answer.
    """
    if version in _NEWEST or any(kind in version for kind in _OTHER_KINDS):
        raise Original(f"it asks for {version}")
    if not version.startswith("lts/"):
        return version
    alias = version.removeprefix("lts/").lower()
    if releases is None:
        if alias not in LTS:
            raise Original(f"which version {version} is isn't known here")
        return str(LTS[alias])
    lines: dict[str, str] = {}
    for each in releases:
        if each.get("stable") and (name := str(each.get("lts") or "").lower()):
            lines.setdefault(name, str(each.get("version") or "").partition(".")[0])
    majors = list(lines.values())  # the newest first, as releases are listed
    if alias in lines:
        return lines[alias]
    back = 0 if alias == "*" else -int(alias) if re.fullmatch(r"-\d{1,3}", alias) else -1
    if not 0 <= back < len(majors):
        raise Original(f"{version} isn't in the list of releases here")
    return majors[back]
