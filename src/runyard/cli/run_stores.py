"""Declared stores: read from a file of this machine or of the repository, and chosen for each job.

[target]                      # a name; what follows is the store's
path = "target"               # in the workspace, or ~/… in the job's home
kind = "build"                # cache (default), build, compiler
scope = "job"                 # whose it is: job (default), workflow, repository
jobs = ["build", "test-*"]    # ids of jobs; absent: every job
max_size = "5GiB"
key = "v2"                    # another word, another store

[ccache]
kind = "compiler"
tool = "ccache"               # ccache or sccache; at most one compiler cache a job
"""

from __future__ import annotations

import fnmatch
import posixpath
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from runyard.config.reading import ConfigError, Problem, decode
from runyard.config.toml import read
from runyard.config.units import Size
from runyard.engine.declared_stores import COMPILERS, DeclaredStore, StoreSettings
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.cli.run_prepare import PlannedRun, Prepared
    from runyard.config.toml import Document
    from runyard.job import JobSpec

FILE: Final = ".runyard/stores.toml"
_DEFAULT_SIZE: Final = Size(5 << 30)
_PATHS: Final = {"ccache": "~/.cache/ccache", "sccache": "~/.cache/sccache"}


class StoreTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One store of the file."""

    path: str = ""
    kind: Literal["cache", "build", "compiler"] = "cache"
    scope: Literal["job", "workflow", "repository"] = "job"
    tool: str = ""
    jobs: list[str] = []
    max_size: Size = _DEFAULT_SIZE
    key: str = ""


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """Every declared store, with the patterns of the jobs that get it; `path` is the file they come from."""

    path: str = FILE
    declared: tuple[tuple[DeclaredStore, tuple[str, ...]], ...] = ()

    def of_job(self, job: str) -> tuple[DeclaredStore, ...]:
        """Those of a job by its id. Raises InputError for a second compiler cache."""
        found = tuple(
            store
            for store, patterns in self.declared
            if not patterns or any(fnmatch.fnmatchcase(job, each) for each in patterns)
        )
        compilers = [store.name for store in found if store.kind == "compiler"]
        if len(compilers) > 1:
            raise InputError(
                f"the job {job!r} has the compiler caches {' and '.join(compilers)}: one is the most",
                path=self.path,
                code="stores.compilers",
            )
        return found


def find_stores(given: str | None, data: bytes | None, runs: Iterable[PlannedRun]) -> Stores:
    """The declarations of the file `given`, or those of the repository, as `data`. Raises InputError."""
    from runyard.cli.run_values import read_input_file
    from runyard.run import job_paths

    path = given or FILE
    stores = read_stores(read_input_file(given) if given else data or b"", path)
    for run in runs:
        for job in job_paths(run.plan) if run.plan is not None else ():
            stores.of_job(job)
    return stores


def read_stores(data: bytes, path: str) -> Stores:
    """A file of declarations. Raises InputError with every problem and its place."""
    document = read(data, path)
    problems: list[Problem] = []
    made: list[tuple[DeclaredStore, tuple[str, ...]]] = []
    for name, value in document.value.items():
        if not isinstance(value, dict):
            problems.append(_problem(document, (name,), "a store is a table"))
            continue
        try:
            table = decode(_Part(document, name), StoreTable)  # type: ignore[arg-type]  # a part of the document
        except ConfigError as error:
            problems += [each._replace(key=f"{name}.{each.key}") for each in error.problems]
            continue
        problems += [_problem(document, (name, key), text) for key, text in _wrong(table)]
        path_inside = table.path or _PATHS.get(table.tool, "")
        store = DeclaredStore(
            name=name,
            path=posixpath.normpath(path_inside) if path_inside else "",
            kind=table.kind,
            scope=table.scope,
            tool=table.tool,
            extra=table.key,
            max_bytes=int(table.max_size),
        )
        made.append((store, tuple(table.jobs)))
    problems += _overlaps(document, [store for store, _ in made])
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return Stores(path=path, declared=tuple(made))


class _Part:
    """One table of a document, as a document of its own."""

    def __init__(self, whole: Document, name: str) -> None:
        self._whole = whole
        self._name = name
        self.value: dict[str, Any] = whole.value[name]
        self.path = whole.path

    def place(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Where a key stands in the whole."""
        return self._whole.place((self._name, *path))


def _problem(document: Document, path: tuple[str | int, ...], message: str) -> Problem:
    line, column = document.place(path)
    return Problem(document.path, line, column, ".".join(map(str, path)), message)


def _wrong(table: StoreTable) -> Iterable[tuple[str, str]]:
    if table.kind == "compiler" and table.tool not in COMPILERS:
        yield "tool", f"a compiler cache needs a tool: {' or '.join(COMPILERS)}"
    if table.kind != "compiler" and table.tool:
        yield "tool", "only a store of the kind compiler has a tool"
    if not table.path:
        if table.kind != "compiler":
            yield "path", "a store needs a path"
        return
    plain = posixpath.normpath(table.path)
    inside = plain.removeprefix("~/")
    outside = ".." in table.path.split("/") or inside.startswith(("/", "~")) or "\0" in plain
    if plain in (".", "~", "~/") or outside:
        yield "path", f"{table.path!r} is no folder below the workspace or below ~/"
    elif inside.split("/")[0] in (".git", "work") and (inside.split("/")[0] == ".git" or plain.startswith("~/")):
        yield "path", f"{table.path!r} is not for a store"


def _overlaps(document: Document, stores: list[DeclaredStore]) -> Iterable[Problem]:
    for at, store in enumerate(stores):
        for other in stores[:at]:
            one, two = f"{store.path}/", f"{other.path}/"
            if store.path and other.path and (one.startswith(two) or two.startswith(one)):
                yield _problem(document, (store.name, "path"), f"it lies in, or around, the path of {other.name}")


def settings_for(prepared: Prepared, spec: JobSpec, cache: str) -> StoreSettings:
    """What a job process gets. A repository without a remote is told from others by where it lies."""
    declared = prepared.stores.of_job(spec.job) if prepared.stores is not None else ()
    if not declared:
        return StoreSettings()
    facts = prepared.facts
    repository = facts.repository if facts.remote_url else f"{facts.root} on this machine"
    return StoreSettings(folder=f"{cache}/stores", repository=repository, declared=declared)
