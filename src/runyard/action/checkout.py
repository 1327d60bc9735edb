"""The built-in `actions/checkout`: the tree of a checkout, made once and kept by content.

Git runs outside the sandbox, with neither the user's nor the machine's configuration, and writes only into the cache.
The run's own repository is read from this machine; another one from the mirror of actions, else from the hosts that
actions may come from, with the token where it is for that host. What a job gets is an overlay of that tree with a
`.git` as the original leaves it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.action.checkout_build import Wanted, build, check_filter, must, run_git_plain
from runyard.action.checkout_inputs import SHA, CheckoutPlan, declares, plan_checkout
from runyard.action.remotes import ASK_DEADLINE_S, Remote, Remotes, check_ref, check_repository, host_of, is_commit
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.job import Checkout

LOCK_TIMEOUT_S: Final = 900.0
KEPT_TREES: Final = 20
KEPT_AT_LEAST_S: Final = 24 * 3600.0
_SYMREF = re.compile(r"ref: (refs/heads/\S+)\tHEAD")


class CheckedOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tree in the cache: its folder, the commit at HEAD, the full ref it was made for ("" for a commit alone)."""

    folder: str
    commit: str
    ref: str


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked beyond the run's own repository. `token` is for the host of `server_url` alone.

    `server_url` is where the run's repositories are (`https://github.com`). No repr: the token is a secret.
    """

    remotes: Remotes = Remotes()
    server_url: str = "https://github.com"
    token: str = ""
    offline: bool = False

    def __repr__(self) -> str:
        return f"<Reach to {self.server_url}>"


class Repositories:
    """Opens repositories by name or address, as far as they may be. `own` is the run's, on this machine."""

    def __init__(
        self, reach: Reach, own: Checkout | None = None, server: str = "", stop: Callable[[], bool] | None = None
    ) -> None:
        self._reach = reach
        self._own = own
        self._server = server
        self._stop = stop

    def own(self, git_dir: str) -> Remote:
        """The run's own repository."""
        return Remote(f"file://{Path(git_dir).resolve()}", stop=self._stop)

    def other(self, repository: str, commit: str = "") -> Remote:
        """Another one: from the mirror where it has it (and that commit), else from its server."""
        check_repository(repository)
        reach = self._reach
        if reach.remotes.mirror:
            bare = Path(reach.remotes.mirror, f"{repository.lower()}.git")
            if (bare / "HEAD").is_file() and (not commit or _has(str(bare), commit)):
                return Remote(f"file://{bare}", stop=self._stop)
        server = self._server or reach.server_url
        if host_of(server) == host_of(reach.server_url):
            return self._remote(reach.remotes.address(repository))
        return self._remote(self._allowed(f"{server}/{repository}"))

    def submodule(self, url: str, name: str, commit: str) -> Remote:
        """See Origins."""
        if self._own is not None and self._own.git_dir is not None:
            kept = Path(self._own.git_dir, "modules", name)
            if (kept / "HEAD").is_file() and _has(str(kept), commit):
                return Remote(f"file://{kept.resolve()}", stop=self._stop)
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        if scheme not in {"http", "https"} or "@" in host:
            raise InputError(f"submodule {name}: {_shown(url)} is not read over https", code="action.checkout")
        repository = path.removesuffix("/").removesuffix(".git")
        if host.lower() == host_of(self._server or self._reach.server_url) and repository.count("/") == 1:
            return self.other(repository, commit)
        return self._remote(self._allowed(url))

    def _allowed(self, url: str) -> str:
        """That address, where its host is on the list."""
        if host_of(url) not in self._reach.remotes.allowed() or not url.startswith(("https://", "http://127.0.0.1")):
            raise MachineError(
                f"repositories are not fetched from {host_of(url) or _shown(url)}",
                code="action.host",
                remedy="RUNYARD_ACTIONS_HOSTS names the hosts that may be asked.",
            )
        return url

    def _remote(self, address: str) -> Remote:
        reach = self._reach
        if reach.offline and not address.startswith("file://"):
            raise MachineError(
                f"{address} is not on this machine, and --offline asks nobody",
                code="action.missing",
                remedy="runyard actions mirror fetches repositories, while there is a network.",
            )
        trusted = {host_of(self._server or reach.server_url), host_of(reach.remotes.url)}
        return Remote(address, reach.token if host_of(address) in trusted else "", self._stop)


def _shown(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


class TreeCache:
    """Trees below one folder, each made once under a lock and renamed into place when it is whole.

    Blocking; for use in a thread.
    """

    def __init__(self, folder: str, stop: Callable[[], bool] | None = None) -> None:
        self._folder = Path(folder) / "trees"
        self._stop = stop

    def get(
        self,
        source: Checkout | None,
        plan: CheckoutPlan,
        *,
        ref: str,
        server_url: str = "",
        reach: Reach | None = None,
    ) -> CheckedOut:
        """The tree for a checkout; `ref` is the run's (`refs/heads/main`). Raises InputError, MachineError."""
        reach = reach or Reach(server_url=server_url or "https://github.com")
        check_filter(plan.filter)
        repositories = Repositories(reach, None if plan.repository else source, plan.server, self._stop)
        if plan.repository:
            remote, ref, commit = self._find_other(repositories, plan)
            name, known = plan.repository, remote.url
            refs = self._refs(remote) if plan.depth != 1 or plan.tags else ""
        else:
            if source is None or source.git_dir is None:
                raise MachineError(
                    "this run has no local repository to check out from",
                    code="action.no_repository",
                    remedy="Run it where the repository is.",
                )
            commit = source.commit
            if plan.ref and plan.ref not in {ref, source.commit}:
                ref, commit = _resolve(source.git_dir, plan.ref)
            remote = repositories.own(source.git_dir)
            name, known = source.repository, source.git_dir
            refs = _refs(source.git_dir) if plan.depth != 1 or plan.tags else ""
        wanted = Wanted(
            commit=commit,
            ref=ref,
            depth=plan.depth,
            tags=plan.tags,
            origin=f"{plan.server or reach.server_url}/{name}",
            local=remote.url.startswith("file://"),
            filter=plan.filter,
            sparse=plan.sparse,
            cone=plan.cone,
            submodules=plan.submodules,
            recursive=plan.recursive,
        )
        # A deeper history depends on what the repository has besides the commit.
        key = _key(wanted, *((known, refs) if refs else ()))
        folder = self._folder / key
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not folder.is_dir():
            self._make(folder, wanted, remote, repositories)
            self._forget_oldest()
        os.utime(folder)
        return CheckedOut(folder=str(folder), commit=commit, ref=ref)

    def _find_other(self, repositories: Repositories, plan: CheckoutPlan) -> tuple[Remote, str, str]:
        """Where another repository is, and what the ref means there. Always asks: who can't read it gets no tree."""
        if SHA.match(plan.ref):
            commit = plan.ref.lower()
            remote = repositories.other(plan.repository, commit)
            remote.check_readable()
            return remote, "", commit
        remote = repositories.other(plan.repository)
        if not plan.ref:
            found = _default_branch(remote)
        else:
            check_ref(plan.ref)
            # Unlike an action's reference a branch wins over a tag.
            found = None if plan.ref.startswith("refs/") else remote.find_named(f"refs/heads/{plan.ref}")
            found = found or remote.find_named(plan.ref)
        if found is None:
            raise InputError(
                f"A branch or tag with the name '{plan.ref or 'HEAD'}' could not be found in {plan.repository}",
                code="action.checkout",
            )
        return remote, *found

    def _refs(self, remote: Remote) -> str:
        return remote.ask(["ls-remote", "--quiet", "--", remote.url], ASK_DEADLINE_S).decode("utf-8", "replace")

    def _make(self, folder: Path, wanted: Wanted, remote: Remote, repositories: Repositories) -> None:
        with (self._folder / ".lock").open("a+b") as lock:
            _lock(lock.fileno())
            if folder.is_dir():
                return
            making = Path(tempfile.mkdtemp(prefix="making-", dir=self._folder))
            try:
                build(making, wanted, remote, repositories)
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


def _key(wanted: Wanted, *more: str) -> str:
    """The name of a tree in the cache: everything that it depends on."""
    return hashlib.sha256(msgspec.json.encode([2, msgspec.to_builtins(wanted), *more])).hexdigest()[:40]


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
    return must(["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"], git_dir)


def _has(git_dir: str, commit: str) -> bool:
    return run_git_plain(["cat-file", "-e", f"{commit}^{{commit}}"], git_dir).returncode == 0


def _default_branch(remote: Remote) -> tuple[str, str] | None:
    """The branch that HEAD of a repository names, with its commit."""
    said = remote.ask(["ls-remote", "--quiet", "--symref", "--", remote.url, "HEAD"], ASK_DEADLINE_S)
    text = said.decode("utf-8", "replace")
    ref = _SYMREF.search(text)
    commits = [row.partition("\t")[0] for row in text.splitlines() if row.endswith("\tHEAD")]
    commit = next((each for each in commits if is_commit(each)), "")
    return (ref[1], commit) if ref is not None and commit else None


def _resolve(git_dir: str, wanted: str) -> tuple[str, str]:
    """A ref input as the original reads it: a full ref, a commit, a branch, a tag."""
    for ref in (wanted, f"refs/heads/{wanted}", f"refs/remotes/origin/{wanted}", f"refs/tags/{wanted}"):
        if ref == wanted and not (wanted.startswith("refs/") or SHA.match(wanted)):
            continue
        done = run_git_plain(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"], git_dir)
        if done.returncode == 0:
            full = ref.replace("refs/remotes/origin/", "refs/heads/") if ref.startswith("refs/") else ""
            return full, done.stdout.decode().strip()
    raise InputError(f"ref: the repository has no branch, tag or commit '{wanted}'", code="action.checkout")


__all__ = ["CheckedOut", "CheckoutPlan", "Reach", "Repositories", "TreeCache", "declares", "plan_checkout"]
