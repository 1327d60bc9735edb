"""Bare mirrors of the repositories that the server builds: fetched with git, read at a commit, handed to workers.

Only an address that an administrator gave is ever fetched. Every git call has a deadline and no terminal to ask on.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from runyard.job import InputError, MachineError
from runyard.source.git import Git, GitFacts, GitFailedError, read_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.server.store.rows import Project

FETCH_S: Final = 300.0
PACK_S: Final = 300.0
FILE_LIMIT: Final = 2 << 20
WORKFLOWS: Final = ".github/workflows"
PIPELINE: Final = ".runyard/ci.toml"
_SCHEMES: Final = ("https://", "http://", "ssh://", "git://")
_SCP: Final = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:[^:].*")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Resolved(NamedTuple):
    """A ref of a mirror: its full name and the commit it stands for."""

    ref: str
    sha: str


def check_repository(name: str) -> str:
    """`owner/name`. Raises InputError for anything else."""
    if not _REPOSITORY.fullmatch(name) or name.endswith(".git") or ".." in name:
        raise InputError(f"a project is named owner/name, not {name!r}", key="project", code="project.name")
    return name


def check_address(url: str) -> str:
    """An address that git may fetch: http(s), ssh, git, `user@host:path`, or an absolute path. Raises InputError."""
    if "\0" in url or "\n" in url or url.startswith("-"):
        raise InputError(f"{url!r} is no address of a repository", key="--git", code="project.address")
    if url.startswith(_SCHEMES) or _SCP.fullmatch(url) or Path(url).is_absolute():
        return url
    raise InputError(
        f"{url!r} is no address that can be fetched: give http(s)://, ssh://, user@host:path or an absolute path",
        key="--git",
        code="project.address",
    )


class Mirrors:
    """The mirrors below one folder; one fetch of a repository at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    def path(self, repository: str) -> Path:
        """Where the mirror of a repository is."""
        return self._folder / f"{check_repository(repository)}.git"

    async def fetch(self, project: Project) -> None:
        """Make or bring up to date. Raises MachineError with git's words; what was there stays."""
        lock = self._locks.setdefault(project.repository, asyncio.Lock())
        async with lock:
            await asyncio.to_thread(self._fetch, project)

    def _fetch(self, project: Project) -> None:
        path = self.path(project.repository)
        try:
            if not (path / "HEAD").exists():
                path.mkdir(parents=True, exist_ok=True)
                Git(str(path)).run("init", "--quiet", "--bare", ".")
            Git(str(path)).run(
                "fetch",
                "--quiet",
                "--prune",
                "--no-auto-gc",
                "--end-of-options",
                project.url,
                "+refs/heads/*:refs/heads/*",
                "+refs/tags/*:refs/tags/*",
                env={"GIT_PROTOCOL_FROM_USER": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"},
                deadline_s=FETCH_S,
            )
        except GitFailedError as error:
            raise MachineError(
                f"{project.repository} can't be fetched: {error.message}", code="project.fetch", retryable=True
            ) from error

    def remove(self, repository: str) -> None:
        """Forget a mirror. Safe to repeat."""
        shutil.rmtree(self.path(repository), ignore_errors=True)

    def default_branch(self, project: Project) -> str:
        """What the repository's HEAD points at, else the branch that there is. Raises MachineError without any."""
        git = Git(str(self.path(project.repository)))
        try:
            said = git.run(
                "ls-remote", "--symref", "--end-of-options", project.url, "HEAD", deadline_s=FETCH_S
            ).decode()
        except GitFailedError:
            said = ""
        for line in said.splitlines():
            if line.startswith("ref: refs/heads/") and line.endswith("\tHEAD"):
                return line.removeprefix("ref: refs/heads/").removesuffix("\tHEAD")
        names = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads").decode().split()
        if not names:
            raise MachineError(f"{project.repository} has no branch", code="project.empty")
        return next((name for name in ("main", "master") if name in names), names[0])

    def resolve(self, repository: str, ref: str) -> Resolved:
        """A branch, a tag, a full ref or a commit. Raises InputError for one that isn't there."""
        git = Git(str(self.path(repository)))
        candidates = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"]
        for full in candidates:
            sha = git.maybe("rev-parse", "--verify", "--quiet", "--end-of-options", f"{full}^{{commit}}")
            if sha:
                return Resolved(full, sha.strip())
        if re.fullmatch(r"[0-9a-f]{40}", ref) and git.maybe("cat-file", "-e", f"{ref}^{{commit}}") is not None:
            return Resolved(ref, ref)
        raise InputError(f"{repository} has no ref {ref!r}", key="--ref", code="trigger.ref")

    def facts(self, project: Project, resolved: Resolved) -> GitFacts:
        """What a run needs to know of the repository at a commit."""
        path = str(self.path(project.repository))
        commit = read_commit(Git(path), resolved.sha)
        # The address as people know it; a path of this machine says nothing about the repository's name.
        url = project.url if repository_of_url(project.url) else f"https://localhost/{project.repository}"
        return GitFacts(
            root=path,
            git_dir=path,
            ref=resolved.ref,
            commit=commit,
            remote_url=url,
            default_branch=project.default_branch,
            actor=commit.author_name if commit is not None else "",
        )

    def workflow_paths(self, repository: str, sha: str) -> list[str]:
        """The workflow files of a commit, and its pipeline."""
        git = Git(str(self.path(repository)))
        listed = git.run("ls-tree", "--name-only", "-z", sha, f"{WORKFLOWS}/", PIPELINE).decode(
            "utf-8", "surrogateescape"
        )
        names = sorted(filter(None, listed.split("\0")))
        return [name for name in names if name == PIPELINE or name.endswith((".yml", ".yaml"))]

    def read(self, repository: str, sha: str, path: str) -> bytes | None:
        """A file of a commit; None where there is none. Raises InputError for one beyond 2 MiB."""
        git = Git(str(self.path(repository)))
        name = f"{sha}:{path}"
        try:
            size = int(git.run("cat-file", "-s", name))
            if size > FILE_LIMIT:
                raise InputError(f"it is larger than {FILE_LIMIT} bytes", path=path, code="project.file")
            return git.run("cat-file", "blob", name)
        except GitFailedError:
            return None

    def changed(self, repository: str, before: str, after: str) -> tuple[str, ...] | None:
        """The paths that differ between two commits; None where that can't be told."""
        git = Git(str(self.path(repository)))
        said = git.maybe("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", before, after)
        return None if said is None else tuple(filter(None, said.split("\0")))

    # --- what a worker gets

    async def bundle(self, repository: str, sha: str, depth: int, folder: Path) -> Path:
        """The tar of a bare repository with that commit, made once; `depth` 0 is the whole history.

        The same commit and depth give the same file, which stays until `folder` is cleaned.
        """
        whole = folder / f"{sha}.{depth}.tar"
        if not whole.exists():
            lock = self._locks.setdefault(str(whole), asyncio.Lock())
            async with lock:
                if not whole.exists():
                    await asyncio.to_thread(self._bundle, repository, sha, depth, whole)
            self._locks.pop(str(whole), None)
        return whole

    def _bundle(self, repository: str, sha: str, depth: int, whole: Path) -> None:
        whole.parent.mkdir(parents=True, exist_ok=True)
        source = self.path(repository)
        try:
            Git(str(source)).run("config", "uploadpack.allowAnySHA1InWant", "true")
            with tempfile.TemporaryDirectory(dir=whole.parent, prefix=".bundle-") as place:
                git = Git(place)
                git.run("init", "--quiet", "--bare", ".")
                refs = [] if depth else ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
                git.run(
                    "-c",
                    "protocol.file.allow=always",
                    "fetch",
                    "--quiet",
                    "--no-tags",
                    *((f"--depth={depth}",) if depth else ()),
                    f"file://{source}",
                    f"+{sha}:refs/runyard/wanted",
                    *refs,
                    deadline_s=PACK_S,
                )
                git.run("update-ref", "--no-deref", "HEAD", sha)
                git.run("update-ref", "-d", "refs/runyard/wanted")
                git.run("pack-refs", "--all")
                git.run("repack", "-a", "-d", "-q", deadline_s=PACK_S)
                _tar(Path(place), whole)
        except GitFailedError as error:
            raise MachineError(f"{sha} can't be packed: {error.message}", code="project.pack") from error


def repository_of_url(url: str) -> str:
    """`owner/name` as an address says it, "" for a path of this machine."""
    from runyard.source.git import repository_of

    return "" if Path(url).is_absolute() else repository_of(url)


def _tar(place: Path, whole: Path) -> None:
    """What of a bare repository a worker needs, with nothing in it that differs from time to time but the pack."""
    import tarfile

    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _wanted(place):
            name = str(path.relative_to(place))
            info = tarfile.TarInfo(name)
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size, info.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    tar.addfile(info, file)
    part.rename(whole)


def _wanted(place: Path) -> Iterator[Path]:
    for name in ("HEAD", "config", "packed-refs", "shallow"):
        if (place / name).is_file():
            yield place / name
    yield place / "refs"
    yield place / "objects"
    yield place / "objects" / "pack"
    yield from sorted(path for path in (place / "objects" / "pack").iterdir() if path.suffix in (".pack", ".idx"))
