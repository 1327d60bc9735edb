"""`runyard actions`: fills a mirror with what workflows need, lists and verifies the store, writes the lock.

Thin: finds workflows, asks `runyard.action`, prints. Everything that can't be had is named at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.action.gather import Gathered
    from runyard.action.store import ActionStore, Stored
    from runyard.cli.actions_shapes import FetchedAction
    from runyard.job import Step

_FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
_CACHE = click.option("--cache-dir", metavar="D", help="Where actions are kept between runs.")
_PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...")


@click.group(epilog="Example: runyard actions lock")
def command() -> None:
    """Fill a mirror with actions, list and verify the store, pin references in a lock file.

    PATH is a workflow file or a folder of them; without PATH, the workflows of the repository around. Actions come from
    GitHub, or from RUNYARD_ACTIONS_URL; RUNYARD_ACTIONS_TOKEN may read private ones.
    """


@command.command("mirror", epilog="Example: runyard actions mirror --to /srv/actions")
@_PATHS
@click.option("--to", metavar="DIR", help="The mirror (default: RUNYARD_ACTIONS_MIRROR).")
@_CACHE
@_FORMAT
def mirror(paths: tuple[str, ...], to: str | None, cache_dir: str | None, form: str) -> int:
    """Fetch what workflows use, nested actions too, into a folder of bare repositories.

    RUNYARD_ACTIONS_MIRROR=DIR makes runs look there first. Ends with 1 where something could not be fetched.
    """
    import os

    from runyard.job import InputError

    folder = to or os.environ.get("RUNYARD_ACTIONS_MIRROR")
    if not folder:
        raise InputError("which folder is the mirror?", key="--to", code="input.missing", remedy="--to DIR")
    place = Path(folder).absolute()
    return _printed(form, str(place), _mirror(_steps(paths), place, cache_dir, paths))


@command.command("list", epilog="Example: runyard actions list --format json")
@_CACHE
@_FORMAT
def list_(cache_dir: str | None, form: str) -> int:
    """Print what the store has."""
    return _stored(cache_dir, form, check=None)


@command.command("verify", epilog="Example: runyard actions verify --remove")
@click.option("--remove", is_flag=True, help="Remove entries that aren't what their commit says.")
@_CACHE
@_FORMAT
def verify(remove: bool, cache_dir: str | None, form: str) -> int:
    """Read the whole store and compare it with the commits it was made from. Ends with 1 where something differs."""

    def check(store: ActionStore, stored: Stored) -> str | None:
        problem = store.verify(stored)
        if problem is not None and remove:
            store.remove(stored)
        return problem

    return _stored(cache_dir, form, check=check)


@command.command("lock", epilog="Example: runyard actions lock --check")
@_PATHS
@click.option("--check", is_flag=True, help="Write nothing; end with 1 where the lock isn't what it would be.")
@_CACHE
@_FORMAT
def lock(paths: tuple[str, ...], check: bool, cache_dir: str | None, form: str) -> int:
    """Write .github/runyard-actions.lock: the commit that each tag and branch means now. Runs obey it from then on.

    Ends with 1 where a reference can't be resolved; the lock stays as it was then.
    """
    from runyard.action.lock import LOCK_FILE, read_lock, write_lock
    from runyard.action.remotes import is_commit
    from runyard.cli.actions_shapes import FetchedAction
    from runyard.job import WorkError

    place = _root(paths) / LOCK_FILE
    found = _gathered(paths, cache_dir)
    rows = [FetchedAction(uses=uses, commit=None, fetched=False, problem=why) for uses, why in found.missing.items()]
    rows += [FetchedAction(uses=uses, commit=each, fetched=False, problem=None) for uses, each in found.commits.items()]
    pins = {uses: commit for uses, commit in found.commits.items() if not is_commit(uses.rpartition("@")[2])}
    code = _printed(form, str(place), rows)
    if code:
        return code
    if not check:
        place.parent.mkdir(exist_ok=True)
        place.write_text(write_lock(pins), "utf-8")
        return 0
    known = read_lock(place.read_bytes(), str(place)) if place.is_file() else {}
    now = {name.lower(): commit for name, commit in pins.items()}
    if known != now:
        changed = sorted(name for name in {*known, *now} if known.get(name) != now.get(name))
        raise WorkError(
            f"{place} is not what it would be now: {', '.join(changed)}",
            code="lock.stale",
            remedy="runyard actions lock writes it again.",
        )
    return 0


# --- what workflows use


def _root(paths: tuple[str, ...]) -> Path:
    """The repository that the first path is in, else the current folder's."""
    from runyard.job import InputError

    here = Path(paths[0]).absolute() if paths else Path.cwd()
    found = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    if found is None:
        raise InputError(f"{here} is in no git repository", code="source.no_repository")
    return found


def _steps(paths: tuple[str, ...]) -> list[Step]:
    """The steps of every workflow. Raises WorkflowError for one that can't be read."""
    from runyard.cli.check import find_files, read_bounded
    from runyard.expression.positioned_yaml import decode_utf8
    from runyard.job import InputError
    from runyard.workflow import WorkflowError, is_manifest, read_workflow

    steps: list[Step] = []
    problems = []
    for file, shown in find_files(paths, Path.cwd()):
        if file.is_dir():
            raise InputError("there are no workflows here", path=shown, code="check.nothing")
        try:
            data = read_bounded(file)
        except OSError as error:
            raise InputError(
                f"it can't be read: {error.strerror or error}", path=shown, code="input.unreadable"
            ) from error
        if is_manifest(decode_utf8(data, shown), file.name):
            steps += _manifest_steps(data, shown)
            continue
        reading = read_workflow(data, path=shown)
        if reading.workflow is None:
            problems += [problem for problem in reading.problems if problem.severity == "error"]
        else:
            steps += [step for job in reading.workflow.jobs for step in job.steps]
    if problems:
        raise WorkflowError(tuple(problems))
    return steps


def _manifest_steps(data: bytes, shown: str) -> list[Step]:
    from runyard.action.manifest import CompositeRuns, read_manifest

    runs = read_manifest(data, shown).runs
    return list(runs.steps) if isinstance(runs, CompositeRuns) else []


def _gathered(paths: tuple[str, ...], cache_dir: str | None) -> Gathered:
    from runyard.cli.run_actions import Actions, cache_folder
    from runyard.cli.run_prepare import WorkingTree

    files = WorkingTree(str(_root(paths)))
    actions = Actions(cache_folder(cache_dir), offline=False, native=False, files=files)
    return actions.gather(_steps(paths), pins=None, fetch=True)


def _mirror(steps: list[Step], place: Path, cache_dir: str | None, paths: tuple[str, ...]) -> list[FetchedAction]:
    """Fetch level by level: what a mirrored action uses itself is known once it is here."""
    import msgspec

    from runyard.action.gather import gather
    from runyard.action.mirror import Mirror
    from runyard.action.remotes import Remote, host_of
    from runyard.action.store import ActionStore
    from runyard.cli.actions_shapes import FetchedAction
    from runyard.cli.run_actions import Actions, LocalFiles, cache_folder
    from runyard.cli.run_prepare import WorkingTree
    from runyard.job import ActionStep, RunyardError

    actions = Actions(cache_folder(cache_dir), offline=False, native=False)
    token, remotes = actions.own_token, actions.remotes

    def remote(repository: str) -> Remote:
        address = remotes.address(repository)
        return Remote(address, token if host_of(address) == host_of(remotes.url) else "")

    made = Mirror(place, remote)
    local = LocalFiles(WorkingTree(str(_root(paths))))
    offline = msgspec.structs.replace(remotes, mirror=str(place))
    rows: dict[str, FetchedAction] = {}
    while True:
        store = ActionStore(actions.cache, offline, offline=True)
        new = False
        for use in gather(steps, local, store, native=False).uses:
            step = use.step
            if not isinstance(step, ActionStep) or step.repository is None:
                continue
            name = f"{step.repository}@{step.ref}"
            if name.lower() in rows:
                continue
            new = True
            try:
                commit, fetched = made.fill(step.repository, step.ref)
                rows[name.lower()] = FetchedAction(uses=name, commit=commit, fetched=fetched, problem=None)
            except RunyardError as error:
                rows[name.lower()] = FetchedAction(uses=name, commit=None, fetched=False, problem=error.message)
        if not new:
            return list(rows.values())


# --- printing


def _printed(form: str, folder: str, rows: list[FetchedAction]) -> int:
    from runyard.cli.actions_shapes import FetchedActions

    rows.sort(key=lambda row: row.uses.lower())
    if form == "json":
        _json(FetchedActions(folder=folder, actions=rows))
    else:
        for row in rows:
            mark = "fetched" if row.fetched else "here" if row.commit else "failed"
            click.echo(f"{mark:<8}{row.uses}  {row.commit or row.problem}")
        if not rows:
            click.echo("no remote actions are used", err=True)
    sys.stdout.flush()
    return 1 if any(row.problem is not None for row in rows) else 0


def _stored(cache_dir: str | None, form: str, *, check: Callable[[ActionStore, Stored], str | None] | None) -> int:
    from runyard.action.remotes import Remotes
    from runyard.action.store import ActionStore
    from runyard.cli.actions_shapes import StoredAction, StoredActionList
    from runyard.cli.run_actions import cache_folder

    store = ActionStore(cache_folder(cache_dir), Remotes(), offline=True)
    rows = []
    for stored in store.entries():
        entry = stored.entry
        rows.append(
            StoredAction(
                repository=entry.repository,
                commit=entry.commit,
                files=entry.written.files,
                bytes=entry.written.bytes,
                origin="archive" if entry.origin == "archive" else "git",
                folder=str(Path(stored.root).parent),
                problem=check(store, stored) if check is not None else None,
            )
        )
    if form == "json":
        _json(StoredActionList(folder=str(store.folder), actions=rows))
    else:
        for row in rows:
            state = "" if check is None else f"  {row.problem or 'whole'}"
            click.echo(f"{row.repository}  {row.commit}  {row.files} files, {row.bytes} bytes{state}")
        click.echo(f"{len(rows)} in {store.folder}", err=True)
    return 1 if any(row.problem is not None for row in rows) else 0


def _json(shape: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(shape), indent=2).decode())
