"""Makes the tree of a checkout: a repository as the original leaves it, outside every sandbox, in a folder of ours.

Nothing of the repository runs here: no hook, no filter, no configuration; a submodule's address counts only where
`Origins` allows it.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from runyard.action.remotes import FETCH_DEADLINE_S, Remote, is_commit
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GIT_TIMEOUT_S: Final = 900.0
_FETCHED: Final = "refs/runyard/fetched"
_SERVED: Final = (
    "--upload-pack=git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true "
    "-c uploadpack.allowFilter=true upload-pack"
)
_FILTER = re.compile(r"(?:blob:none|blob:limit=\d+[kmg]?|tree:\d+|object:type=[a-z]+|sparse:oid=[^\s+]+|combine:\S+)\Z")
MOST_NESTED: Final = 10
"""How deep submodules of submodules go."""

_PLAIN: Final = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One tree to make. `ref` is full, "" for a commit alone; `origin` the address that its configuration names.

    `local` says that the objects come from this machine: then they all come, also with a filter.
    """

    commit: str
    ref: str
    depth: int = 1
    tags: bool = False
    origin: str = ""
    local: bool = True
    filter: str = ""
    sparse: tuple[str, ...] = ()
    cone: bool = True
    submodules: bool = False
    recursive: bool = False

    @property
    def real_filter(self) -> str:
        """The filter of the fetch; one for blobs is what a sparse checkout of the original has by itself."""
        return "" if self.local else self.filter or ("blob:none" if self.sparse else "")


class Origins(Protocol):
    """Where repositories are read."""

    def submodule(self, url: str, name: str, commit: str) -> Remote:
        """The address behind a submodule's. Raises InputError or MachineError for one that may not be asked."""


def check_filter(given: str) -> None:
    """Raises InputError for what git takes for no filter."""
    if given and not _FILTER.match(given):
        raise InputError(f"filter: git knows no filter {given!r}", code="action.checkout")


def build(making: Path, wanted: Wanted, remote: Remote, origins: Origins) -> None:
    """A repository in the empty folder `making`: origin, the branch or a detached HEAD, an index that matches."""
    git_dir = making / ".git"
    branch = wanted.ref.removeprefix("refs/heads/") if wanted.ref.startswith("refs/heads/") else ""
    form = [] if len(wanted.commit) == 40 else ["--object-format=sha256"]
    must(["init", "--quiet", f"--initial-branch={branch or 'main'}", *form, str(making)], None)
    fill(git_dir, wanted, remote, branch)
    _check_out(making, git_dir, wanted, remote)
    if wanted.submodules:
        _add_submodules(making, git_dir, wanted, origins, 1)


def fill(git_dir: Path, wanted: Wanted, remote: Remote, branch: str) -> None:
    """Objects, references and configuration; HEAD is at the commit afterwards."""
    commit, ref = wanted.commit, wanted.ref
    fetch = ["fetch", "--quiet", "--no-recurse-submodules", "--no-write-fetch-head"]
    fetch.append("--tags" if wanted.tags or not wanted.depth else "--no-tags")
    if wanted.depth:
        fetch.append(f"--depth={wanted.depth}")
    if wanted.real_filter:
        fetch.append(f"--filter={wanted.real_filter}")
    if wanted.local:
        fetch.append(_SERVED)
    specs = [f"+{commit}:{_FETCHED}"]
    if not wanted.depth:
        specs.append("+refs/heads/*:refs/remotes/origin/*")
    tag = ref.startswith("refs/tags/") and remote.find_named(ref) == (ref, commit)
    if tag:
        specs.append(f"+{ref}:{ref}")
    remote.ask([*fetch, "--", remote.url, *specs], FETCH_DEADLINE_S, git_dir=git_dir)
    moves = [f"delete {_FETCHED}"]
    if not tag:
        moves.append(f"update {_tracking(ref)} {commit}")
    if branch:
        moves.append(f"update refs/heads/{branch} {commit}")
    must(["update-ref", "--stdin"], git_dir, stdin="".join(f"{each}\n" for each in moves))
    if not branch:
        must(["update-ref", "--no-deref", "HEAD", commit], git_dir)
    with (git_dir / "config").open("a") as config:
        config.write(_configuration(wanted, branch))


def _configuration(wanted: Wanted, branch: str) -> str:
    """What the original writes into the repository's configuration."""
    text = f'[remote "origin"]\n\turl = {_value(wanted.origin)}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
    filter_ = wanted.filter or ("blob:none" if wanted.sparse and not wanted.local else "")
    if filter_:
        text += f"\tpromisor = true\n\tpartialclonefilter = {_value(filter_)}\n"
    text += "[gc]\n\tauto = 0\n"
    if branch:
        text += f"[branch {_quoted(branch)}]\n\tremote = origin\n\tmerge = {_value(f'refs/heads/{branch}')}\n"
    return text


def _value(text: str) -> str:
    """A value as git writes it: quoted only where it has to be."""
    return text if re.fullmatch(r"[\w:/.@+=-]+", text) else _quoted(text)


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tracking(ref: str) -> str:
    """Where the original keeps what it fetched."""
    if ref.startswith("refs/heads/"):
        return "refs/remotes/origin/" + ref.removeprefix("refs/heads/")
    if ref.startswith("refs/pull/"):
        return "refs/remotes/pull/" + ref.removeprefix("refs/pull/")
    return ref if ref.startswith("refs/tags/") else "refs/remotes/origin/checkout"


def _check_out(worktree: Path, git_dir: Path, wanted: Wanted, remote: Remote) -> None:
    """The files. Objects that a filter left out are asked for from where the others came."""
    env = None
    where = [f"--work-tree={worktree}"]
    if wanted.real_filter:
        env = remote.env
        where += ["-c", f"remote.origin.url={remote.url}"]
    if wanted.sparse:
        _set_sparse(worktree, git_dir, wanted, where, env)
    must([*where, "reset", "--hard", "--quiet"], git_dir, env=env)


def _set_sparse(worktree: Path, git_dir: Path, wanted: Wanted, where: list[str], env: Mapping[str, str] | None) -> None:
    """In cone mode git judges the folders; otherwise the patterns stand as they were given."""
    if wanted.cone:
        patterns = "".join(f"{each}\n" for each in wanted.sparse)
        must([*where, "sparse-checkout", "set", "--cone", "--stdin"], git_dir, env=env, stdin=patterns, cwd=worktree)
        return
    (git_dir / "info").mkdir(exist_ok=True)
    with (git_dir / "info" / "sparse-checkout").open("a") as file:
        file.write("".join(f"{each}\n" for each in ("", *wanted.sparse)))
    with (git_dir / "config").open("a") as config:
        config.write("[core]\n\tsparseCheckout = true\n")


# Submodules -----------------------------------------------------------------------------------------------------------


def _add_submodules(worktree: Path, git_dir: Path, wanted: Wanted, origins: Origins, level: int) -> None:
    """Each one at the commit that the tree names, as `git submodule update --init` leaves it."""
    listed = must(["ls-files", "-s", "-z"], git_dir).split("\0")
    modules = [row.partition("\t")[::2] for row in listed if row.startswith("160000 ")]
    if not modules:
        return
    if level > MOST_NESTED:
        raise InputError(f"submodules are nested deeper than {MOST_NESTED} levels", code="action.checkout")
    names, urls = _declared(git_dir)
    for facts, path in modules:
        name, commit = names.get(path), facts.split()[1]
        if name is None or name not in urls:
            raise InputError(f"No url found for submodule path '{path}' in .gitmodules", code="action.checkout")
        module = _Module(name, path, commit, submodule_url(urls[name], wanted.origin))
        own, inner = _add_one(worktree, git_dir, wanted, origins, module)
        if wanted.recursive:
            _add_submodules(worktree / path, own, inner, origins, level + 1)


class _Module(msgspec.Struct, frozen=True):
    name: str
    path: str
    commit: str
    url: str


def _declared(git_dir: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Names by path, and addresses by name, of the commit's .gitmodules; never a file that a link leads to."""
    done = run_git_plain(
        ["config", "--blob", "HEAD:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.(path|url)$"], git_dir
    )
    names: dict[str, str] = {}
    urls: dict[str, str] = {}
    for entry in done.stdout.decode("utf-8", "replace").split("\0"):
        key, _, value = entry.partition("\n")
        name, _, kind = key.removeprefix("submodule.").rpartition(".")
        if kind == "path":
            names[value.rstrip("/")] = name
        elif kind == "url":
            urls[name] = value
    return names, urls


def _add_one(worktree: Path, git_dir: Path, wanted: Wanted, origins: Origins, module: _Module) -> tuple[Path, Wanted]:
    """One of them; its git folder, and what was wanted of it."""
    parts = module.name.split("/")
    place = worktree / module.path
    if any(part in {"", ".", "..", ".git"} for part in parts) or not is_commit(module.commit):
        raise InputError(f"submodule {module.name!r} has a name that leads elsewhere", code="action.checkout")
    if place.is_symlink() or place.resolve() != worktree.resolve() / module.path:
        raise InputError(f"submodule {module.name!r} lies behind a link", code="action.checkout")
    remote = origins.submodule(module.url, module.name, module.commit)
    own = git_dir / "modules" / module.name
    inner = msgspec.structs.replace(
        wanted, commit=module.commit, ref="", origin=module.url, tags=False, filter="", sparse=(),
        local=remote.url.startswith("file://"),
    )  # fmt: skip
    form = [] if len(module.commit) == 40 else ["--object-format=sha256"]
    must(["init", "--quiet", "--bare", "--template=", "--initial-branch=main", *form, str(own)], None)
    must(["config", "core.bare", "false"], own)
    must(["config", "core.worktree", os.path.relpath(place, own)], own)
    fill(own, inner, remote, "")
    place.mkdir(exist_ok=True)
    (place / ".git").write_text(f"gitdir: {os.path.relpath(own, place)}\n")
    _check_out(place, own, inner, remote)
    for key, value in (("active", "true"), ("url", module.url)):
        must(["config", f"submodule.{module.name}.{key}", value], git_dir)
    return own, inner


def submodule_url(url: str, origin: str) -> str:
    """What an address in .gitmodules means below `origin`; GitHub's ssh form is read over https, as there is no key."""
    if url.startswith(("./", "../")):
        scheme, _, rest = origin.partition("://")
        host, _, path = rest.partition("/")
        return f"{scheme}://{host}/{posixpath.normpath(posixpath.join('/', path, url)).lstrip('/')}"
    for ssh in ("git@github.com:", "ssh://git@github.com/", "org-git@github.com:"):
        if url.startswith(ssh):
            return "https://github.com/" + url.removeprefix(ssh)
    return url


# Git ------------------------------------------------------------------------------------------------------------------


def must(
    arguments: list[str],
    git_dir: str | Path | None,
    *,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    cwd: str | Path = "/",
) -> str:
    """What git prints. Raises MachineError with what it says where it fails."""
    done = run_git_plain(arguments, git_dir, env=env, stdin=stdin, cwd=cwd)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        name = next((each for each in arguments if not each.startswith("-") and "=" not in each), "")
        raise MachineError(f"git {name} failed: {said}", code="action.git")
    return done.stdout.decode("utf-8", "surrogateescape")


def run_git_plain(
    arguments: list[str],
    git_dir: str | Path | None,
    *,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    cwd: str | Path = "/",
) -> subprocess.CompletedProcess[bytes]:
    """One git command without anybody's configuration, hooks, filters or prompts."""
    settings = ["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "core.fsmonitor=false"]
    settings += ["-c", "safe.directory=*", "-c", "protocol.file.allow=always", "-c", "checkout.workers=0"]
    where = [f"--git-dir={git_dir}"] if git_dir is not None else []
    try:
        return subprocess.run(
            ["git", *settings, *where, *arguments],
            input=stdin.encode("utf-8", "surrogateescape"),
            capture_output=True,
            check=False,
            cwd=cwd,
            timeout=GIT_TIMEOUT_S,
            env={**_PLAIN, "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **(env or {})},
        )
    except FileNotFoundError as error:
        raise MachineError(
            "git is not installed", code="action.no_git", remedy="Install git, for example: apt-get install git"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S:g} s", code="action.git") from error
