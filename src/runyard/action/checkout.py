"""The built-in `actions/checkout`: what it is asked for, and the tree it gives, made once and kept by content.

Git runs outside the sandbox, on the run's own repository, with neither the user's nor the machine's configuration, and
writes only into the cache. What a job gets is an overlay of that tree with a `.git` as the original leaves it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Checkout

_DECLARED = re.compile(r"(v[2-7](\.[0-9]+){0,2}|main|[0-9a-f]{40})\Z")
"""References whose behaviour this adapter has: majors 2 to 7 agree in the inputs below; a commit is taken for one."""

GIT_TIMEOUT_S = 900.0
LOCK_TIMEOUT_S = 900.0
_FETCHED: Final = "refs/runyard/fetched"
KEPT_TREES = 20
KEPT_AT_LEAST_S = 24 * 3600.0

_WITHOUT_EFFECT: Final = frozenset(
    {
        "token",
        "persist-credentials",
        "set-safe-directory",
        "show-progress",
        "allow-unsafe-pr-checkout",
        "github-server-url",
        "ssh-user",
        "ssh-strict",
        "ssh-known-hosts",
    }
)
"""Taken and without effect: the repository is read outside the sandbox and no credential comes into it."""

_ONLY_EMPTY: Final = {
    "ssh-key": "",
    "filter": "",
    "sparse-checkout": "",
    "lfs": "false",
    "submodules": "false",
}
_KNOWN: Final = frozenset(
    {
        "repository",
        "ref",
        "path",
        "clean",
        "fetch-depth",
        "fetch-tags",
        "sparse-checkout-cone-mode",
        *_ONLY_EMPTY,
        *_WITHOUT_EFFECT,
    }
)


class CheckoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkout step asks for. `ref` is "" for the run's own commit; `depth` 0 is the whole history."""

    path: str = "."
    ref: str = ""
    depth: int = 1
    tags: bool = False
    clean: bool = True


class CheckedOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tree in the cache: its folder, the commit at HEAD, the ref it was made for."""

    folder: str
    commit: str
    ref: str


def declares(path: str, ref: str) -> bool:
    """Whether this adapter has the behaviour of that reference."""
    return not path and _DECLARED.match(ref) is not None


def plan_checkout(inputs: Mapping[str, str], repository: str) -> CheckoutPlan:
    """Read the inputs of `with`. Raises InputError naming every one that this adapter can't give."""
    given = {name.lower(): value.strip() for name, value in inputs.items()}
    refused = [
        f"{name}: {given[name]}"
        for name, plain in _ONLY_EMPTY.items()
        if given.get(name, plain).lower() not in {plain, ""}
    ]
    if given.get("repository", "") and given["repository"].lower() != repository.lower():
        refused.append(f"repository: {given['repository']}")
    refused += [f"{name} (unknown)" for name in sorted(set(given) - _KNOWN)]
    if refused:
        raise InputError(
            "the built-in actions/checkout does not do " + ", ".join(refused),
            code="action.checkout",
            remedy="Leave these inputs out, or run the original with --no-native where it is available.",
        )
    depth = given.get("fetch-depth", "1") or "1"
    if not depth.isdigit():
        raise InputError(f"fetch-depth: {depth} is no number", code="action.checkout")
    return CheckoutPlan(
        path=_inside(given.get("path", "")),
        ref=given.get("ref", ""),
        depth=int(depth),
        tags=given.get("fetch-tags", "").lower() == "true",
        clean=given.get("clean", "true").lower() != "false",
    )


def _inside(path: str) -> str:
    """The path below the workspace; the original refuses one that leads out."""
    normal = posixpath.normpath(path or ".")
    if normal.startswith(("/", "..")):
        raise InputError(f"path: {path} is not under the workspace", code="action.checkout")
    return normal


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One tree to make: everything that it depends on."""

    git_dir: str
    commit: str
    ref: str
    depth: int
    tags: bool
    origin: str

    def key(self) -> str:
        """Its name in the cache. A deeper history depends on what the repository has besides the commit."""
        parts: tuple[str, ...] = (self.commit, self.ref, str(self.depth), str(self.tags), self.origin)
        parts += () if self.depth == 1 else (self.git_dir, _refs(self.git_dir))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


class TreeCache:
    """Trees below one folder, each made once under a lock and renamed into place when it is whole.

    Blocking; for use in a thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) / "trees"

    def get(self, source: Checkout, plan: CheckoutPlan, *, ref: str, server_url: str) -> CheckedOut:
        """The tree for a checkout; `ref` is the run's (`refs/heads/main`). Raises InputError, MachineError."""
        if source.git_dir is None:
            raise MachineError(
                "this run has no local repository to check out from",
                code="action.no_repository",
                remedy="Run it where the repository is.",
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        commit = source.commit
        if plan.ref and plan.ref not in {ref, source.commit}:
            ref, commit = _resolve(source.git_dir, plan.ref)
        wanted = _Wanted(
            git_dir=source.git_dir,
            commit=commit,
            ref=ref,
            depth=plan.depth,
            tags=plan.tags,
            origin=f"{server_url}/{source.repository}",
        )
        folder = self._folder / wanted.key()
        if not folder.is_dir():
            self._make(folder, wanted)
            self._forget_oldest()
        os.utime(folder)
        return CheckedOut(folder=str(folder), commit=commit, ref=ref)

    def _make(self, folder: Path, wanted: _Wanted) -> None:
        with (self._folder / ".lock").open("a+b") as lock:
            _lock(lock.fileno())
            if folder.is_dir():
                return
            making = Path(tempfile.mkdtemp(prefix="making-", dir=self._folder))
            try:
                _build(making, wanted)
                making.chmod(0o755)
                making.rename(folder)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise

    def _forget_oldest(self) -> None:
        """Keep the newest; what was used within a day may be some job's lower layer."""
        trees = [each for each in self._folder.iterdir() if each.is_dir() and not each.name.startswith("making-")]
        trees.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for each in trees[KEPT_TREES:]:
            if time.time() - each.stat().st_mtime > KEPT_AT_LEAST_S:
                shutil.rmtree(each, ignore_errors=True)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise MachineError("another job holds the tree cache for too long", code="action.cache_lock") from None
            time.sleep(0.05)
        else:
            return


def _refs(git_dir: str) -> str:
    """All branches and tags with their commits."""
    return _must(["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"], git_dir)


def _resolve(git_dir: str, wanted: str) -> tuple[str, str]:
    """A ref input as the original reads it: a full ref, a commit, a branch, a tag."""
    for ref in (wanted, f"refs/heads/{wanted}", f"refs/remotes/origin/{wanted}", f"refs/tags/{wanted}"):
        if ref == wanted and not (wanted.startswith("refs/") or re.fullmatch(r"[0-9a-fA-F]{40}", wanted)):
            continue
        done = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"], git_dir)
        if done.returncode == 0:
            full = ref.replace("refs/remotes/origin/", "refs/heads/") if ref.startswith("refs/") else ""
            return full, done.stdout.decode().strip()
    raise InputError(f"ref: the repository has no branch, tag or commit '{wanted}'", code="action.checkout")


def _build(making: Path, wanted: _Wanted) -> None:
    """A repository as the original leaves it: origin, the branch or a detached HEAD, an index that matches the tree."""
    commit, ref = wanted.commit, wanted.ref
    branch = ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""
    own = str(making / ".git")
    _must(["init", "--quiet", f"--initial-branch={branch or 'main'}", str(making)], None)
    _must(["remote", "add", "origin", wanted.origin], own)
    fetch = ["fetch", "--quiet", "--no-recurse-submodules", "--no-write-fetch-head"]
    fetch.append("--tags" if wanted.tags or not wanted.depth else "--no-tags")
    if wanted.depth:
        fetch.append(f"--depth={wanted.depth}")
    fetch.append("--upload-pack=git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true upload-pack")
    fetch += [f"file://{Path(wanted.git_dir).resolve()}", f"+{commit}:{_FETCHED}"]
    if not wanted.depth:
        fetch.append("+refs/heads/*:refs/remotes/origin/*")
    _must(fetch, own)
    _must(["update-ref", _tracking(ref), commit], own)
    _must(["update-ref", "-d", _FETCHED], own)
    if branch:
        _must(["update-ref", f"refs/heads/{branch}", commit], own)
        _must(["config", f"branch.{branch}.remote", "origin"], own)
        _must(["config", f"branch.{branch}.merge", f"refs/heads/{branch}"], own)
    else:
        _must(["update-ref", "--no-deref", "HEAD", commit], own)
    _must(["--work-tree", str(making), "reset", "--hard", "--quiet"], own)


def _tracking(ref: str) -> str:
    """Where the original keeps what it fetched."""
    if ref.startswith("refs/heads/"):
        return "refs/remotes/origin/" + ref.removeprefix("refs/heads/")
    if ref.startswith("refs/pull/"):
        return "refs/remotes/pull/" + ref.removeprefix("refs/pull/")
    return ref if ref.startswith("refs/tags/") else "refs/remotes/origin/checkout"


def _must(arguments: list[str], git_dir: str | None) -> str:
    done = _git(arguments, git_dir)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise MachineError(f"git {arguments[0]} failed: {said}", code="action.git")
    return done.stdout.decode("utf-8", "replace")


def _git(arguments: list[str], git_dir: str | None) -> subprocess.CompletedProcess[bytes]:
    """One git command without anybody's configuration, hooks, filters or prompts."""
    settings = ["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "core.fsmonitor=false"]
    settings += ["-c", "safe.directory=*", "-c", "protocol.file.allow=always", "-c", "checkout.workers=0"]
    where = [f"--git-dir={git_dir}"] if git_dir is not None else []
    try:
        return subprocess.run(
            ["git", *settings, *where, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd="/",
            timeout=GIT_TIMEOUT_S,
            env={
                "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
                "HOME": "/nonexistent",
                "LC_ALL": "C",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_LFS_SKIP_SMUDGE": "1",
            },
        )
    except FileNotFoundError as error:
        raise MachineError(
            "git is not installed", code="action.no_git", remedy="Install git, for example: apt-get install git"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S:g} s", code="action.git") from error
