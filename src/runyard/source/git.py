"""Facts of a local git repository, through the git binary: one parser of hostile data less.

Every call has a deadline, no terminal, no prompt, no pager and no locks it could leave behind. Nothing here writes into
the repository.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError, MachineError, RunyardError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEADLINE_S: Final = 20.0
TREE_DEADLINE_S: Final = 120.0
"""For what reads the whole working tree."""

NO_COMMIT: Final = "0" * 40
_QUIET: Final = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
}
_FROM_OUTSIDE: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_SETTINGS: Final = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "gc.auto=0")
_REMOTE = re.compile(r"(?:[a-z+]+://(?:[^/@]*@)?[^/]+/|[^/:]+:)(?P<path>[^:]+?)(?:\.git)?/?\Z", re.IGNORECASE)
_SERVER = re.compile(r"(?:(?P<scheme>https?)://(?:[^/@]*@)?|[a-z+]+://(?:[^/@]*@)?|(?:[^/@:]*@)?)(?P<host>[^/:@]+)")


class GitFailedError(Exception):
    """git ended with another code than 0; `message` is what it said."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit as payloads show it; times are ISO 8601 with offset."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author_name: str
    author_email: str
    authored: str
    committer_name: str
    committer_email: str
    committed: str
    message: str


class GitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs to know of a repository. `ref` is full (`refs/heads/main`); `commit` None before the first one.

    `git_dir` is absolute and shared by all work trees (`--git-common-dir`). `remote_url` is "" without a remote.
    """

    root: str
    git_dir: str
    ref: str
    commit: Commit | None
    remote_url: str = ""
    default_branch: str = ""
    actor: str = ""

    @property
    def sha(self) -> str:
        """The commit's id; forty zeros before the first commit."""
        return self.commit.sha if self.commit is not None else NO_COMMIT

    @property
    def repository(self) -> str:
        """`owner/name`, from the remote, else `local/` and the folder's name."""
        return repository_of(self.remote_url) or f"local/{_safe_name(Path(self.root).name)}"


class Git:
    """Runs git in one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> bytes:
        """Standard output of one git command.

        Raises GitFailedError for a code other than 0, MachineError where git is missing or takes longer than the
        deadline. Safe to repeat as far as the command is.
        """
        stdin_of = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = self.begin(("git", *_SETTINGS, *arguments), env or {}, stdin_of)
        out, err = self.end(process, f"git {arguments[0]}", stdin, deadline_s)
        if process.returncode:
            said = err.decode(errors="replace").strip()
            raise GitFailedError(said or f"git {arguments[0]} ended with {process.returncode}", process.returncode)
        return out

    def begin(self, program: tuple[str, ...], env: Mapping[str, str], stdin: int) -> subprocess.Popen[bytes]:
        """Start a program whose output `end` takes, in a session of its own; raises as `run`."""
        environment = {name: value for name, value in os.environ.items() if name not in _FROM_OUTSIDE}
        environment |= _QUIET | dict(env)
        try:
            return subprocess.Popen(
                program,
                cwd=self.folder,
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            if not Path(self.folder).is_dir():
                raise InputError(f"there is no folder {self.folder}", code="source.no_folder") from error
            raise _missing() from error

    def end(
        self, process: subprocess.Popen[bytes], name: str, stdin: bytes | None, deadline_s: float
    ) -> tuple[bytes, bytes]:
        """What a program that was begun printed; nothing of it is left. Raises MachineError past the deadline."""
        try:
            return process.communicate(stdin, timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise MachineError(
                f"{name} took longer than {deadline_s:g} s in {self.folder}", code="git.deadline", retryable=True
            ) from error
        finally:
            stop(process)

    def text(self, *arguments: str) -> str:
        """The same as text without the line end."""
        return _as_text(self.run(*arguments))

    def maybe(self, *arguments: str) -> str | None:
        """The same, None where git says no."""
        try:
            return self.text(*arguments)
        except GitFailedError:
            return None


class InARow:
    """Short git commands, one after the other, while something else is done; `answers` or `give_up` ends them.

    One shell starts them all: to start a program takes the caller longer than to read what it said.
    """

    def __init__(self, git: Git, *commands: tuple[str, ...]) -> None:
        self._git = git
        self._count = len(commands)
        self._mark = os.urandom(16).hex()  # nothing that git prints holds it
        script = "".join(
            f"{shlex.join(('git', *_SETTINGS, *each))}\nprintf '{self._mark}%d\\n' $?\n" for each in commands
        )
        self._process = git.begin(("sh", "-c", script), {}, subprocess.DEVNULL)

    def answers(self) -> list[str | GitFailedError]:
        """What each one says, as `text` gives it, or its error with what all of them complained about. Once.

        Raises MachineError where git is missing or takes longer than the deadline.
        """
        out, err = self._git.end(self._process, "git", None, DEADLINE_S)
        complaint = err.decode(errors="replace").strip()
        found: list[str | GitFailedError] = []
        for _ in range(self._count):
            said, _, out = out.partition(self._mark.encode())
            code, _, out = out.partition(b"\n")
            if code == b"127":
                raise _missing()
            found.append(_as_text(said) if code == b"0" else GitFailedError(complaint, int(code or 1)))
        return found

    def give_up(self) -> None:
        """End what still runs. Safe to repeat."""
        stop(self._process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process whose answer isn't wanted, or is here already, with all that it started; leaves no zombie."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _missing() -> MachineError:
    return MachineError("git is not on this machine", code="git.missing", remedy="apt-get install git")


def _as_text(said: bytes) -> str:
    return said.decode(errors="surrogateescape").removesuffix("\n")


_WHERE: Final = ("rev-parse", "--show-toplevel", "--git-common-dir", "HEAD", "--symbolic-full-name", "HEAD")
"""Root, git folder, commit, and where HEAD points: "HEAD" where it is detached, left out where a ref has that name."""

_CONFIGURED: Final = ("config", "-z", "--get-regexp", r"^(remote\..*\.url|github\.user)$")
_MAIN_BRANCHES: Final = (
    "for-each-ref", "--format=%(refname)%00%(symref)",
    "refs/heads/main", "refs/heads/master", "refs/remotes/origin/HEAD",
)  # fmt: skip


def find_repository(folder: str) -> tuple[str, str, bool]:
    """Root and git folder of the repository that `folder` is in, and whether it has a commit.

    Raises InputError where there is none, MachineError where git refuses it (another owner).
    """
    git = Git(folder)
    root, git_dir, head = _place(git, *InARow(git, _WHERE).answers())
    return root, git_dir, head is not None


def _place(git: Git, said: str | GitFailedError) -> tuple[str, str, str | None]:
    """Root, git folder, and the full name that HEAD stands for: "" where it isn't known, None without a commit."""
    folder = git.folder
    if isinstance(said, str):
        lines = said.split("\n")
        head = lines[3] if len(lines) > 3 and lines[3] != "HEAD" else ""
        return lines[0], str(Path(folder, lines[1]).resolve()), head
    if (root := git.maybe("rev-parse", "--show-toplevel")) is not None:
        return root, str(Path(folder, git.text("rev-parse", "--git-common-dir")).resolve()), None
    if "dubious ownership" in said.message:
        remedy = f"git config --global --add safe.directory {folder}"
        raise MachineError(
            f"git does not trust the repository at {folder}: it belongs to another user",
            code="git.ownership",
            remedy=remedy,
        ) from said
    raise InputError(
        f"{folder} is in no git repository",
        code="source.no_repository",
        remedy="Run it inside a repository, or make one: git init",
    ) from said


class FactsUnderWay:
    """The questions that `read_facts` asks git, on their way: begun early, they cost no time of their own.

    A problem with starting them is told by `answers`.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._asked: InARow | RunyardError
        try:
            self._asked = InARow(Git(folder), _WHERE, _CONFIGURED, _MAIN_BRANCHES, _shown("HEAD"))
        except RunyardError as error:
            self._asked = error

    def answers(self) -> list[str | GitFailedError]:
        """See InARow."""
        if isinstance(self._asked, RunyardError):
            raise self._asked
        return self._asked.answers()

    def give_up(self) -> None:
        """See InARow."""
        if isinstance(self._asked, InARow):
            self._asked.give_up()


def read_facts(folder: str, *, ref: str | None = None, under_way: FactsUnderWay | None = None) -> GitFacts:
    """All facts about the repository that `folder` is in, at HEAD or at `ref` (a branch, a tag, what git resolves).

    `under_way` are questions about the same folder that were begun before. Raises InputError for a folder without
    repository or an unknown ref.
    """
    here = Git(folder)
    where, configured, main_branches, last = (under_way or FactsUnderWay(folder)).answers()
    root, git_dir, head = _place(here, where)
    git = Git(root)
    settings = _settings(_said(configured))
    commit = None
    if ref is not None:
        commit, full = _at_ref(git, ref)
    else:
        if head is not None:
            commit = _commit(last) if isinstance(last, str) else _read_head(git)
        full = head or git.maybe("symbolic-ref", "-q", "HEAD") or _name_detached(git)
    remote = settings.get("remote.origin.url") or next(
        (value for key, value in settings.items() if key.startswith("remote.") and key.endswith(".url")), ""
    )
    return GitFacts(
        root=root,
        git_dir=git_dir,
        ref=full,
        commit=commit,
        remote_url=remote,
        default_branch=_default_branch(_said(main_branches), full),
        actor=settings.get("github.user") or _user(),
    )


def _read_head(git: Git) -> Commit:
    try:
        return read_commit(git, "HEAD")
    except GitFailedError as failed:
        raise InputError(f"the commit of this repository can't be read: {failed}", code="input.git") from failed


def _said(answer: str | GitFailedError) -> str:
    return answer if isinstance(answer, str) else ""


def _settings(found: str) -> dict[str, str]:
    pairs = (entry.partition("\n") for entry in found.split("\0") if entry)
    settings: dict[str, str] = {}
    for key, _, value in pairs:
        settings.setdefault(key, value)
    return settings


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return "runyard"


def _at_ref(git: Git, ref: str) -> tuple[Commit, str]:
    sha = git.maybe("rev-parse", "--verify", "-q", "--end-of-options", f"{ref}^{{commit}}")
    if not sha:
        names = (git.maybe("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags") or "").split("\n")
        import difflib

        near = difflib.get_close_matches(ref, [name for name in names if name], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"there is no commit {ref!r} in this repository{hint}", code="source.unknown_ref")
    full = git.maybe("rev-parse", "--symbolic-full-name", "--end-of-options", ref)
    name = (full or "").split("\n")[-1]
    if not name.startswith(("refs/heads/", "refs/tags/")):
        name = git.maybe("symbolic-ref", "-q", "HEAD") or _name_detached(git)
    return read_commit(git, sha), name


def _name_detached(git: Git) -> str:
    """A detached HEAD: a tag at the commit, else a branch at it, else `main`."""
    for kind in ("refs/tags", "refs/heads"):
        found = git.maybe("for-each-ref", "--points-at", "HEAD", "--count=1", "--format=%(refname)", kind)
        if found:
            return found
    return "refs/heads/main"


def _default_branch(main_branches: str, ref: str) -> str:
    found = dict(line.split("\0") for line in main_branches.split("\n") if line)
    if remote_head := found.pop("refs/remotes/origin/HEAD", ""):
        return remote_head.removeprefix("refs/remotes/origin/")
    return next(iter(found), ref).removeprefix("refs/heads/") or "main"


_FIELDS: Final = "%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%B"


def _shown(name: str) -> tuple[str, ...]:
    return ("log", "-1", "--no-show-signature", f"--format={_FIELDS}", "--end-of-options", name, "--")


def read_commit(git: Git, name: str) -> Commit:
    """One commit. Raises GitFailedError where there is none of that name."""
    return _commit(git.text(*_shown(name)))


def _commit(shown: str) -> Commit:
    fields = shown.encode(errors="surrogateescape").decode(errors="replace").split("\0")
    return Commit(
        sha=fields[0],
        tree=fields[1],
        parents=tuple(fields[2].split()),
        author_name=fields[3],
        author_email=fields[4],
        authored=fields[5],
        committer_name=fields[6],
        committer_email=fields[7],
        committed=fields[8],
        message=fields[9].rstrip("\n"),
    )


def repository_of(url: str) -> str:
    """`owner/name` of a remote's address (with or without scheme), "" where it has none."""
    match = _REMOTE.match(url)
    if match is None:
        return ""
    parts = [part for part in match.group("path").split("/") if part]
    return f"{_safe_name(parts[-2])}/{_safe_name(parts[-1])}" if len(parts) > 1 else ""


def server_of(url: str) -> str:
    """The web address of the server a remote's address names; github.com where it names none."""
    match = _SERVER.match(url)
    if match is None or "." not in match.group("host"):
        return "https://github.com"
    return f"{match.group('scheme') or 'https'}://{match.group('host')}"


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name) or "repository"
