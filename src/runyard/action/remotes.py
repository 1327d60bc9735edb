"""Where actions come from: a mirror on this machine first, then the one server that their owner is fetched from.

Only addresses whose host is on the list are asked, over https (http for this machine's own address, file for a folder),
and never with credentials inside the address.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from urllib.parse import SplitResult

    from runyard.action.git_call import GitCallError

GITHUB: Final = "https://github.com"
TRIES: Final = 3
"""How often a server is asked before it counts as out of reach."""

ASK_DEADLINE_S: Final = 30.0
FETCH_DEADLINE_S: Final = 600.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(?:/|\Z)|\.\Z|/\Z|^/|^-|(?:^|/)\.")
_FINAL = re.compile(
    r"not found|403|401|could not read username|authentication failed|access denied|does not exist|"
    r"does not appear to be a git repository|no such file|not our ref|unadvertised object|couldn't find remote ref|"
    r"redirect",
    re.IGNORECASE,
)
_NO_ACCESS = re.compile(r"403|401|could not read username|authentication failed|access denied", re.IGNORECASE)
FETCHED: Final = "refs/runyard/fetched"


class Remotes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The addresses of actions. `owners` maps an owner in lower case to the address that stands for it.

    `hosts` is the list of hosts that may be asked (empty: those of the addresses here). `mirror` is a folder of bare
    repositories (`owner/name.git`) and archives (`owner_name/<commit>.tar.gz`), looked at first; "" for none.
    """

    url: str = GITHUB
    owners: dict[str, str] = {}
    hosts: tuple[str, ...] = ()
    mirror: str = ""

    def allowed(self) -> tuple[str, ...]:
        """The hosts that may be asked."""
        return self.hosts or tuple(host_of(each) for each in (self.url, *self.owners.values()))

    def address(self, repository: str) -> str:
        """The address of one repository. Raises InputError for a name that is none, MachineError for a refused host."""
        check_repository(repository)
        base = self.owners.get(repository.partition("/")[0].lower(), self.url)
        parts = urlsplit(base)
        if parts.scheme != "file" and host_of(base) not in self.allowed():
            raise MachineError(
                f"actions are not fetched from {host_of(base) or base}",
                code="action.host",
                remedy="RUNYARD_ACTIONS_HOSTS names the hosts that may be asked.",
            )
        return f"{base.rstrip('/')}/{repository}"


def remotes_from(environment: Mapping[str, str]) -> Remotes:
    """The addresses as the environment sets them; without it, GitHub's.

    `RUNYARD_ACTIONS_URL` holds an address, and `OWNER=ADDRESS` pairs, separated by spaces; `RUNYARD_ACTIONS_HOSTS`
    hosts; `RUNYARD_ACTIONS_MIRROR` a folder. Raises InputError for an address of another kind.
    """
    url, owners = GITHUB, {}
    for word in environment.get("RUNYARD_ACTIONS_URL", "").split():
        owner, equals, address = word.partition("=")
        if equals and "/" not in owner and ":" not in owner:
            owners[owner.lower()] = _checked_address(address)
        else:
            url = _checked_address(word)
    from pathlib import Path

    hosts = tuple(environment.get("RUNYARD_ACTIONS_HOSTS", "").replace(",", " ").lower().split())
    mirror = environment.get("RUNYARD_ACTIONS_MIRROR", "")
    return Remotes(url=url, owners=owners, hosts=hosts, mirror=str(Path(mirror).absolute()) if mirror else "")


def _checked_address(address: str) -> str:
    parts = urlsplit(address)
    problem = ""
    if "@" in parts.netloc:
        problem = "an address never holds credentials; they come as RUNYARD_ACTIONS_TOKEN"
    elif parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        problem = "http is for this machine alone, use https"
    elif parts.scheme not in ("http", "https", "file") or (parts.scheme != "file" and not parts.hostname):
        problem = "it is none of https://…, http://127.0.0.1…, file:///…"
    elif parts.query or parts.fragment:
        problem = "it ends with something that is no path"
    if problem:
        shown = address if "@" not in address else f"{parts.scheme}://…"
        raise InputError(f"{shown}: {problem}", key="RUNYARD_ACTIONS_URL", code="action.address")
    return address


def urlsplit(url: str) -> SplitResult:
    """The parts of an address. The parser is loaded when an address is looked at: most jobs never do."""
    from urllib import parse

    return parse.urlsplit(url)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(url: str) -> str:
    """The host of an address, with its port where it has one."""
    return urlsplit(url).netloc.lower()


def check_repository(repository: str) -> None:
    """Raises InputError for what isn't `owner/name`."""
    owner, slash, name = repository.partition("/")
    good = slash and _NAME.match(owner) and _NAME.match(name)
    if not good or owner.strip(".") == "" or name.strip(".") == "":
        raise InputError(f"{repository!r} is no repository: owner/name", code="action.reference")


def is_commit(ref: str) -> bool:
    """Whether a reference is a whole commit id."""
    return _COMMIT.match(ref) is not None


def check_ref(ref: str) -> None:
    """Raises InputError for what git takes for no name."""
    if not ref or len(ref) > 512 or _NO_REF.search(ref):
        raise InputError(f"{ref!r} is no branch, tag or commit", code="action.reference")


class Remote:
    """One repository at one address. `token` is for it alone."""

    def __init__(self, url: str, token: str = "", stop: Callable[[], bool] | None = None) -> None:
        self.url = url
        self._stop = stop
        from runyard.action.git_call import git_environment

        self.env = git_environment(url, token, protocol=urlsplit(url).scheme)
        self._with_token = bool(token)

    def find(self, ref: str) -> str | None:
        """The commit behind a branch or tag (a tag wins), None where there is none. Only metadata is asked for.

        Raises MachineError where the repository can't be read.
        """
        found = self.find_named(ref)
        return None if found is None else found[1]

    def find_named(self, ref: str) -> tuple[str, str] | None:
        """The same with the full name of the branch or tag."""
        names = [ref] if ref.startswith("refs/") else [f"refs/tags/{ref}", f"refs/heads/{ref}"]
        wanted = [each for name in names for each in (f"{name}^{{}}", name)]
        listed = self.ask(["ls-remote", "--quiet", "--", self.url, *wanted], ASK_DEADLINE_S)
        found: dict[str, str] = {}
        for line in listed.decode("utf-8", "replace").splitlines():
            commit, _, name = line.partition("\t")
            if is_commit(commit):
                found[name] = commit
        for name in wanted:
            if name in found:
                return name.removesuffix("^{}"), found[name]
        return None

    def check_readable(self) -> None:
        """Raises MachineError where this repository can't be read with this token."""
        self.ask(["ls-remote", "--quiet", "--", self.url, "HEAD"], ASK_DEADLINE_S)

    def fetch(self, commit: str, into: Path, name: str = FETCHED, *, ref: str = "") -> None:
        """Bring one commit without its history into the bare repository `into`, as `name`. Raises MachineError."""
        fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
        try:
            self.ask([*fetch, "--", self.url, f"+{commit}:{name}"], FETCH_DEADLINE_S, git_dir=into)
        except MachineError as error:
            if error.code != "action.not_offered" or not ref or is_commit(ref):
                raise
            # A server that gives only what it lists: the name is asked for, and the commit is compared afterwards.
            source = ref if ref.startswith("refs/") else f"refs/*/{ref}"
            for each in [source] if "*" not in source else [f"refs/tags/{ref}", f"refs/heads/{ref}"]:
                try:
                    self.ask([*fetch, "--", self.url, f"+{each}:{name}"], FETCH_DEADLINE_S, git_dir=into)
                    return
                except MachineError as other:
                    if other.code != "action.not_offered":
                        raise
            raise

    def ask(self, arguments: list[str], deadline_s: float, *, git_dir: Path | None = None) -> bytes:
        """What one git command that talks to the server prints; repeated where that can help. Raises MachineError."""
        import random

        from runyard.action.git_call import GitCallError, run_git

        for attempt in range(1, TRIES + 1):
            try:
                return run_git(arguments, git_dir=git_dir, env=self.env, deadline_s=deadline_s, stop=self._stop)
            except GitCallError as error:
                if _FINAL.search(error.message) or attempt == TRIES:
                    raise self._told(error) from error
            time.sleep(attempt * random.uniform(0.2, 0.6))
        raise AssertionError

    def _told(self, error: GitCallError) -> MachineError:
        said = error.message
        if "not our ref" in said or "unadvertised object" in said or "couldn't find remote ref" in said.lower():
            return MachineError(f"{self.url} does not give this commit: {said}", code="action.not_offered")
        if _NO_ACCESS.search(said) or "not found" in said.lower():
            remedy = (
                "The token given may not read it."
                if self._with_token
                else "If it is private, give a token that may read it as secret GITHUB_TOKEN."
            )
            return MachineError(f"{self.url} can't be read: {said}", code="action.no_access", remedy=remedy)
        final = _FINAL.search(said) is not None
        return MachineError(f"{self.url} can't be read: {said}", code="action.unreachable", retryable=not final)
