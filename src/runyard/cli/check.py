"""`runyard check`: what GitHub would refuse in workflows and actions, and what it takes although it is hardly meant.

Thin: finds the files, reads them with bounds, prints what `runyard.workflow` found. It follows calls within the
repository and asks no network for those into others.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from runyard.workflow import Problem

WORKFLOWS: Final = Path(".github", "workflows")
_READ_AT_MOST: Final = 4 * 1_048_576 + 1
_SUFFIXES: Final = (".yml", ".yaml")
_STRICT_SILENT: Final = frozenset({"lint.timeout"})
"""Warnings about what GitHub does otherwise; none under --strict-github (deviation D6)."""


@click.command(epilog="Example: runyard check .github/workflows/ci.yml --format sarif")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    help="How to print the problems.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--strict-github", is_flag=True, help="No findings about what Runyard does otherwise on purpose.")
def command(paths: tuple[str, ...], form: str, as_json: bool, strict_github: bool) -> int:
    """Validate workflows, pipelines and action manifests.

    PATH is a file, or a folder: a repository's .github/workflows, .runyard/ci.toml and actions, else the YAML files in
    it. Without PATH: the repository of the current folder.

    Exit codes: 0 nothing found, 1 only warnings, 2 GitHub would refuse a file or a file can't be read.
    """
    results = [
        (shown, _judged(check_file(file, shown), shown, strict_github)) for file, shown in find_files(paths, Path.cwd())
    ]
    printer = _PRINTERS["json" if as_json else form]
    printer(results)
    sys.stdout.flush()
    severities = {problem.severity for _, problems in results for problem in problems}
    if form == "text" and not as_json:
        click.echo(_summary(results), err=True)
    return 2 if "error" in severities else 1 if severities else 0


Result = tuple[str, tuple["Problem", ...]]


def find_files(paths: Iterable[str], here: Path) -> list[tuple[Path, str]]:
    """The files to check with the names to show, each once; a folder with nothing to check stands for itself."""
    found: dict[Path, str] = {}
    given = list(paths)
    for path in [Path(each) for each in given] or [_repository(here) or here]:
        if path.is_dir():
            for file in sorted(_in_folder(path)) or [path]:
                found.setdefault(file, _shown(file, here, given))
        else:
            found.setdefault(path, str(path))
    return list(found.items())


def _shown(path: Path, here: Path, given: list[str]) -> str:
    """Found files are named from the current folder where they are below it; given paths stay as given."""
    return str(path.relative_to(here)) if not given and path.is_relative_to(here) else str(path)


def _in_folder(folder: Path) -> Iterator[Path]:
    """A repository's pipeline, workflows and actions, else all YAML files directly in a folder."""
    if (pipeline := folder / ".runyard" / "ci.toml").is_file():
        yield pipeline
    elif not (folder / ".github").is_dir():
        yield from _yaml_in(folder)
        return
    yield from _yaml_in(folder / WORKFLOWS)
    manifests = [folder, *sorted((folder / ".github" / "actions").glob("*"))]
    for place in manifests:
        yield from (file for name in ("action.yml", "action.yaml") if (file := place / name).is_file())


def _yaml_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (file for file in folder.iterdir() if file.suffix in _SUFFIXES and not file.is_dir())


def _repository(start: Path) -> Path | None:
    """The nearest folder upwards that is a repository."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def check_file(file: Path, shown: str) -> tuple[Problem, ...]:
    """The problems of one file; one that can't be read has that problem."""
    from runyard.expression.positioned_yaml import YamlError, decode_utf8
    from runyard.workflow import Problem, check_manifest, check_workflow, is_manifest

    if file.is_dir():
        return (Problem(message="no workflow or action files here", path=shown, code="check.nothing"),)
    try:
        data = read_bounded(file)
    except OSError as error:
        message = f"can't be read: {error.strerror or error}"
        return (Problem(message=message, path=shown, code="check.unreadable"),)
    try:
        text = decode_utf8(data[:_READ_AT_MOST], shown) if len(data) < _READ_AT_MOST else ""
    except YamlError as error:
        return (Problem(message=error.message, line=error.line, column=error.column, path=shown, code=error.code),)
    if text and is_manifest(text, file.name):
        return check_manifest(text, path=shown)
    return check_workflow(text or data, path=shown, loader=_local_loader(file), remote=False)


def read_bounded(file: Path) -> bytes:
    """The bytes of a regular file, but no more than show that it is too long. `OSError` where it can't be read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return stream.read(_READ_AT_MOST)


def _local_loader(file: Path) -> Callable[[str], bytes | None]:
    """Brings called workflows of the same repository: the one whose .github/workflows the file is in, or around it."""
    place = file.absolute().parent
    root = place.parent.parent if place.parts[-2:] == WORKFLOWS.parts else _repository(place) or place

    def load(uses: str) -> bytes | None:
        target = (root / uses).resolve()
        if not target.is_relative_to(root.resolve()):
            return None
        try:
            return read_bounded(target)
        except OSError:
            return None

    return load


def _judged(problems: tuple[Problem, ...], shown: str, strict_github: bool) -> tuple[Problem, ...]:
    """What is told of one file; what is wrong in a file it calls names that file in its message."""
    kept: list[Problem] = []
    for problem in problems:
        if strict_github and problem.code in _STRICT_SILENT:
            continue
        if problem.path == shown:
            kept.append(problem)
        else:
            kept.append(type(problem)(message=str(problem), severity=problem.severity, path=shown, code=problem.code))
    return tuple(kept)


# --- printing ------------------------------------------------------------------------------------------------------


def _text(results: list[Result]) -> None:
    for shown, problems in results:
        for problem in problems:
            place = ":".join(str(part) for part in (shown, problem.line, problem.column) if part is not None)
            key = f"  [{problem.key}]" if problem.key else ""
            click.echo(f"{place}: {problem.severity}: {problem.message}{key}")


def _summary(results: list[Result]) -> str:
    errors = sum(problem.severity == "error" for _, problems in results for problem in problems)
    warnings = sum(problem.severity == "warning" for _, problems in results for problem in problems)
    files = f"{len(results)} file{'' if len(results) == 1 else 's'} checked"
    if not errors and not warnings:
        return f"{files}, nothing found"
    counts = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for count, name in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return f"{files}, {' and '.join(counts)}"


def _json(results: list[Result]) -> None:
    import msgspec

    from runyard.cli.shapes import Checked, CheckedFile, CheckProblem

    files = [
        CheckedFile(
            path=shown,
            valid=all(problem.severity != "error" for problem in problems),
            problems=[
                CheckProblem(
                    line=problem.line,
                    column=problem.column,
                    key=problem.key or None,
                    severity=problem.severity,
                    message=problem.message,
                )
                for problem in problems
            ],
        )
        for shown, problems in results
    ]
    click.echo(msgspec.json.format(msgspec.json.encode(Checked(files=files)), indent=2).decode())


def _sarif(results: list[Result]) -> None:
    """SARIF 2.1.0, as code scanning reads it."""
    import json

    import runyard

    rules = sorted({problem.code for _, problems in results for problem in problems})
    found = [_sarif_result(shown, problem) for shown, problems in results for problem in problems]
    driver = {
        "name": "runyard",
        "version": runyard.__version__,
        "rules": [{"id": rule, "shortDescription": {"text": rule}} for rule in rules],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": found}
    click.echo(json.dumps({"version": "2.1.0", "runs": [run]}, indent=2))


def _sarif_result(shown: str, problem: Problem) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": Path(shown).as_posix()}}
    if problem.line is not None:
        location["region"] = {"startLine": problem.line, "startColumn": problem.column or 1}
    return {
        "ruleId": problem.code,
        "level": problem.severity,
        "message": {"text": problem.message},
        "locations": [{"physicalLocation": location}],
    }


def _github(results: list[Result]) -> None:
    """Workflow commands, which become annotations in a job."""
    for shown, problems in results:
        for problem in problems:
            places = {"file": shown, "line": problem.line, "col": problem.column, "title": problem.key or None}
            listed = ",".join(f"{name}={_property(value)}" for name, value in places.items() if value is not None)
            click.echo(f"::{problem.severity} {listed}::{_data(problem.message)}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str | int) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")


_PRINTERS: Final[dict[str, Callable[[list[Result]], None]]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}
