"""The built-in `actions/upload-artifact` and `actions/download-artifact`: what they are asked for. Pure."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UPLOAD: Final = re.compile(r"(v[4-7](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
_DOWNLOAD: Final = re.compile(r"(v[4-8](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")

WhenNothing = Literal["warn", "error", "ignore"]


class UploadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one upload asks for. `retention_days` 0 is the default of wherever it goes."""

    name: str
    paths: str
    when_nothing: WhenNothing = "warn"
    retention_days: int = 0
    compression: int = 6
    overwrite: bool = False
    hidden: bool = False
    archive: bool = True


class DownloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one download asks for; without `name`, `ids` and `pattern` it is every artifact of the run."""

    path: str
    name: str = ""
    ids: tuple[int, ...] = ()
    pattern: str = ""
    merge: bool = False


class Known(msgspec.Struct, frozen=True):
    """An artifact of the run."""

    id: int
    name: str
    size: int


def declares_upload(path: str, ref: str) -> bool:
    """Whether the upload adapter has the behaviour of that reference."""
    return not path and _UPLOAD.match(ref) is not None


def declares_download(path: str, ref: str, inputs: Sequence[str]) -> bool:
    """The same for downloads. With a token the original reads other runs over GitHub's API, so it is left to it."""
    return not path and _DOWNLOAD.match(ref) is not None and "github-token" not in {each.lower() for each in inputs}


def plan_upload(inputs: Mapping[str, str]) -> UploadPlan:
    """Read the inputs of an upload. Raises InputError."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    if not given.get("path"):
        raise InputError("Input required and not supplied: path", code="action.artifact")
    nothing = given.get("if-no-files-found") or "warn"
    if nothing not in {"warn", "error", "ignore"}:
        raise InputError(
            f"Unrecognized if-no-files-found input. Provided: {nothing}. Available options: warn, error, ignore",
            code="action.artifact",
        )
    return UploadPlan(
        name=given.get("name") or "artifact",
        paths=given["path"],
        when_nothing=cast("WhenNothing", nothing),
        retention_days=_number(given, "retention-days", 0, 90),
        compression=_number(given, "compression-level", 6, 9),
        overwrite=_boolean(given, "overwrite", default=False),
        hidden=_boolean(given, "include-hidden-files", default=False),
        archive=_boolean(given, "archive", default=True),
    )


def plan_download(inputs: Mapping[str, str], *, workspace: str, home: str) -> DownloadPlan:
    """Read the inputs of a download; `path` becomes absolute. Raises InputError."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    path = given.get("path") or workspace
    if path.startswith("~"):
        path = home + path[1:]
    if given.get("name") and given.get("artifact-ids"):
        raise InputError(
            "Inputs 'name' and 'artifact-ids' cannot be used together. Please specify only one.", code="action.artifact"
        )
    return DownloadPlan(
        path=posixpath.normpath(posixpath.join(workspace, path)),
        name=given.get("name", ""),
        ids=_ids(given.get("artifact-ids", "")),
        pattern=given.get("pattern", ""),
        merge=_boolean(given, "merge-multiple", default=False),
    )


def target_of(plan: DownloadPlan, artifact: Known, count: int, ref: str) -> str:
    """Where an artifact of `count` goes. From version 5 on a single one by its id goes where one by its name goes."""
    old = re.match(r"v4(\.|\Z)", ref) is not None
    alone = bool(plan.name) or (bool(plan.ids) and count == 1 and not old)
    return plan.path if alone or plan.merge else posixpath.join(plan.path, artifact.name)


def root_of(searched: Sequence[str], found: Sequence[str]) -> str:
    """The folder that names in an artifact are relative to: the one search path, or what all have in common."""
    if len(searched) > 1:
        return posixpath.commonpath(searched)
    if len(found) == 1 and searched[0] == found[0]:
        return posixpath.dirname(found[0])
    return searched[0]


def is_hidden(start: str, path: str) -> bool:
    """Whether a path is hidden as seen from its search path, whose own name counts, and those above do not."""
    names = [posixpath.basename(start), *path[len(start) :].split("/")]
    return any(name.startswith(".") for name in names)


def _ids(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if text and not parts:
        raise InputError("No valid artifact IDs provided in 'artifact-ids' input", code="action.artifact")
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise InputError(f"Invalid artifact ID: '{part}'. Must be a number.", code="action.artifact")
    return tuple(int(part) for part in parts)


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"Invalid {name}: {text}", code="action.artifact")
    if name == "compression-level" and int(text) > most:
        raise InputError(f"Invalid {name}. Valid values are 0-{most}", code="action.artifact")
    return min(int(text), most)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name) or ("true" if default else "false")
    if text not in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        raise InputError(
            f'Input does not meet YAML 1.2 "Core Schema" specification: {name}\n'
            "Support boolean input list: `true | True | TRUE | false | False | FALSE`",
            code="action.artifact",
        )
    return text.lower() == "true"
