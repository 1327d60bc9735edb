"""The store of remote actions: one folder for each repository and commit, filled once and whole, never changed.

An entry is made beside its place under a lock of its own, checked against the commit's id, and renamed into place, so
that two hundred jobs cause one fetch and none sees half of one. A commit is looked up below its repository: what a
policy admits of one owner is never served from another's fork. Blocking; for use in threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from runyard.action.archive import unpack_archive
from runyard.action.git_call import GitCallError, StoppedError, run_git, stream_objects
from runyard.action.manifest import MANIFEST_LIMIT, MANIFEST_NAMES, Manifest, dockerfile_manifest, read_manifest
from runyard.action.remotes import FETCHED, Remote, Remotes, check_ref, check_repository, host_of, is_commit
from runyard.action.tree import (
    LINK,
    MODULE,
    TreeLimits,
    TreeWriter,
    UnsafeTreeError,
    Written,
    algorithm_of,
    commit_tree,
    hash_on_disk,
)
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LOCK_DEADLINE_S: Final = 900.0
_POLL_S: Final = 0.05
_MARK: Final = "entry.json"
_TREE: Final = "tree"
_COMMIT: Final = "commit"
_MAKING: Final = ".making-"
_ABANDONED_S: Final = 24 * 3600.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the mark of an entry says; without it there is no entry.

    `origin` is `git` or `archive`; `archive` then its SHA-256. `private` says that a token was given to fetch it, so
    that whoever asks for it again has to be able to read the repository.
    """

    repository: str
    commit: str
    written: Written
    origin: str = "git"
    archive: str = ""
    private: bool = False


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An action's repository at one commit, on this machine: `root` is the folder of its files, not to be changed."""

    entry: Entry
    root: str

    @property
    def commit(self) -> str:
        """The commit's id."""
        return self.entry.commit


class ActionMissingError(MachineError):
    """An action that this machine doesn't have and may not fetch."""

    def __init__(self, uses: str, why: str) -> None:
        super().__init__(
            f"{uses} is not on this machine: {why}",
            code="action.missing",
            remedy="runyard actions mirror fetches what workflows need, while there is a network.",
        )
        self.uses = uses


class _Answer(msgspec.Struct, frozen=True):
    """What a reference was found to mean, by a question that was asked at `asked_ns`."""

    commit: str
    asked_ns: int


class ActionStore:
    """Actions below `folder`/actions.

    `pins` maps `owner/repo@ref` in lower case to commits that count without asking. `token` is sent to the host
    `token_host` alone. `stop` is asked while something is waited for; where it says so, StoppedError is raised.
    """

    def __init__(
        self,
        folder: str,
        remotes: Remotes,
        *,
        offline: bool = False,
        token: str = "",
        token_host: str = "github.com",
        pins: Mapping[str, str] | None = None,
        stop: Callable[[], bool] | None = None,
        limits: TreeLimits | None = None,
    ) -> None:
        self.folder = Path(folder) / "actions"
        self.offline = offline
        self._remotes = remotes
        self._token = token
        self._token_host = token_host
        self._pins = {name.lower(): commit for name, commit in (pins or {}).items()}
        self._stop = stop
        self._limits = limits or TreeLimits()
        self._readable: set[str] = set()

    # --- which commit

    def resolve(self, repository: str, ref: str) -> str:
        """The commit that a reference means now. Asks for metadata at most. Raises InputError, MachineError."""
        check_repository(repository)
        if is_commit(ref):
            return ref
        check_ref(ref)
        pinned = self._pins.get(f"{repository}@{ref}".lower())
        if pinned is not None:
            return pinned
        mirrored = self._in_mirror(repository, ref)
        if mirrored is not None:
            return mirrored
        place = self._home(repository) / "refs" / quote(ref, safe="")
        if self.offline:
            known = _read_answer(place)
            if known is None:
                raise ActionMissingError(f"{repository}@{ref}", "nobody asked before what it means")
            return known.commit
        return self._ask(repository, ref, place)

    def _ask(self, repository: str, ref: str, place: Path) -> str:
        """Ask the server once for all who wait: an answer to a question younger than one's own wish counts."""
        wished = time.time_ns()
        remote = self._remote(repository)
        with self._locked(f"ref {repository.lower()}@{ref}"):
            known = _read_answer(place)
            now = time.time_ns()
            if known is not None and wished <= known.asked_ns <= now:
                return known.commit
            commit = remote.find(ref)
            self._readable.add(repository.lower())
            if commit is None:
                raise InputError(f"{repository} has no branch or tag {ref!r}", code="action.no_ref")
            _write_whole(place, msgspec.json.encode(_Answer(commit, now)))
            return commit

    def _in_mirror(self, repository: str, ref: str) -> str | None:
        bare = self._mirror_repository(repository)
        if bare is None:
            return None
        names = [ref] if ref.startswith("refs/") else [f"refs/tags/{ref}", f"refs/heads/{ref}"]
        for name in names:
            with contextlib.suppress(GitCallError):
                found = run_git(["rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}"], git_dir=bare)
                return found.decode().strip()
        return None

    def _mirror_repository(self, repository: str) -> Path | None:
        if not self._remotes.mirror:
            return None
        bare = Path(self._remotes.mirror, f"{repository.lower()}.git")
        return bare if (bare / "HEAD").is_file() else None

    # --- the files

    def look(self, repository: str, commit: str) -> Stored | None:
        """The entry, where there is a whole one."""
        check_repository(repository)
        if not is_commit(commit):
            raise InputError(f"{commit!r} is no commit id", code="action.reference")
        return _read_entry(self._home(repository) / commit)

    def get(self, repository: str, commit: str, ref: str = "") -> Stored:
        """The entry, made if it isn't there. `ref` helps with a server that gives no commit by its id.

        Raises MachineError, InputError, StoppedError. Safe to repeat, and for many at a time.
        """
        found = self.look(repository, commit)
        if found is None:
            with self._locked(f"{repository.lower()}@{commit}"):
                found = self.look(repository, commit) or self._make(repository, commit, ref)
        elif found.entry.private:
            self._may_read(repository)
        return found

    def _may_read(self, repository: str) -> None:
        """What was fetched with a token is for those who can read it. Asked once for each repository."""
        if not self.offline and repository.lower() not in self._readable:
            self._remote(repository).check_readable()
            self._readable.add(repository.lower())

    def _make(self, repository: str, commit: str, ref: str) -> Stored:
        home = self._home(repository)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(home)
        making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=home))
        try:
            tree = making / _TREE
            tree.mkdir(mode=0o755)
            entry = self._fill(repository, commit, ref, making, tree)
            (making / _MARK).write_bytes(msgspec.json.format(msgspec.json.encode(entry), indent=1))
            for name in (_MARK, _COMMIT):
                if (making / name).exists():
                    _sync(making / name)
            making.chmod(0o755)
            place = home / commit
            if place.exists():  # what lacks its mark was never an entry
                shutil.rmtree(place)
            making.rename(place)
            _sync(home)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return Stored(entry=entry, root=str(home / commit / _TREE))

    def _fill(self, repository: str, commit: str, ref: str, making: Path, tree: Path) -> Entry:
        if self._remotes.mirror:
            owner, _, name = repository.lower().partition("/")
            archive = Path(self._remotes.mirror, f"{owner}_{name}", f"{commit}.tar.gz")
            if archive.is_file():
                written, digest = unpack_archive(archive, tree, self._limits)
                return Entry(repository=repository, commit=commit, written=written, origin="archive", archive=digest)
        bare = making / "git"
        format_ = f"--object-format={algorithm_of(commit)}"
        run_git(["init", "--quiet", "--bare", "--template=", format_, str(bare)])
        private = self._fetch(repository, commit, ref, bare)
        written = unpack_commit(bare, commit, tree, self._limits)
        (making / _COMMIT).write_bytes(run_git(["cat-file", "commit", commit], git_dir=bare))
        shutil.rmtree(bare)
        return Entry(repository=repository, commit=commit, written=written, private=private)

    def _fetch(self, repository: str, commit: str, ref: str, bare: Path) -> bool:
        """From the mirror, else from the server; whether a token went with it."""
        mirror = self._mirror_repository(repository)
        if mirror is not None and _has_commit(mirror, commit):
            Remote(f"file://{mirror}", stop=self._stop).fetch(commit, bare, ref=ref)
            return False
        if self.offline:
            raise ActionMissingError(f"{repository}@{ref or commit}", f"commit {commit[:12]} was never fetched")
        private = bool(self._token_for(repository))
        self._fetch_through_pool(self._remote(repository), commit, ref, bare, private=private)
        self._readable.add(repository.lower())
        return private

    def _fetch_through_pool(self, remote: Remote, commit: str, ref: str, bare: Path, *, private: bool) -> None:
        """As a delta to what was fetched of this repository before; past the pool where that can't be used."""
        from runyard.action.pool import RepositoryPool

        if algorithm_of(commit) != "sha1":
            remote.fetch(commit, bare, ref=ref)
            return
        try:
            place = RepositoryPool(self.folder.parent / "repositories").bring(remote, commit, ref=ref, private=private)
            Remote(f"file://{place}", stop=self._stop).fetch(commit, bare)
        except MachineError as error:
            if not error.code.startswith("action.pool"):
                raise
            remote.fetch(commit, bare, ref=ref)

    def _remote(self, repository: str) -> Remote:
        return Remote(self._remotes.address(repository), self._token_for(repository), self._stop)

    def _token_for(self, repository: str) -> str:
        return self._token if host_of(self._remotes.address(repository)) == self._token_host else ""

    def manifest(self, stored: Stored, path: str, uses: str) -> Manifest:
        """The manifest of the action at `path` of a stored repository. Raises InputError where there is none."""
        root = Path(stored.root)
        folder = (root / path).resolve()
        if not folder.is_relative_to(root.resolve()):
            raise InputError(f"{uses}: {path!r} leads out of the repository", code="action.reference")
        for name in MANIFEST_NAMES:
            file = (folder / name).resolve()
            if not file.is_file() or not file.is_relative_to(root.resolve()):
                continue
            shown = f"{stored.entry.repository}/{path + '/' if path else ''}{name}"
            if name.lower() == "dockerfile":
                return dockerfile_manifest(shown)
            if file.stat().st_size > MANIFEST_LIMIT:
                raise InputError(f"it is larger than {MANIFEST_LIMIT} bytes", path=shown, code="action.manifest")
            return read_manifest(file.read_bytes(), shown)
        raise InputError(
            f"Can't find 'action.yml', 'action.yaml' or 'Dockerfile' for action '{uses}'", code="action.no_manifest"
        )

    # --- the whole

    def entries(self) -> Iterator[Stored]:
        """Every whole entry, by repository and commit."""
        for place in sorted(self.folder.glob("[!.]*/*/*")):
            if is_commit(place.name):
                found = _read_entry(place)
                if found is not None:
                    yield found

    def verify(self, stored: Stored) -> str | None:
        """Why an entry isn't what its commit says, None where it is. Reads all of it."""
        entry, root = stored.entry, Path(stored.root)
        try:
            if entry.origin == "git":
                wanted = commit_tree(entry.commit, (root.parent / _COMMIT).read_bytes())
                if wanted != entry.written.tree:
                    return f"its mark names the tree {entry.written.tree}, its commit {wanted}"
            found = hash_on_disk(root, entry.written, algorithm=algorithm_of(entry.written.tree))
        except (UnsafeTreeError, OSError) as error:
            return str(error)
        return None if found == entry.written.tree else f"its files hash to {found}, not to {entry.written.tree}"

    def remove(self, stored: Stored) -> None:
        """Forget an entry; the mark goes first, so that nobody sees half of one."""
        place = Path(stored.root).parent
        (place / _MARK).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def _home(self, repository: str) -> Path:
        return self.folder / repository.lower()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of one key, over threads and processes. Raises MachineError after LOCK_DEADLINE_S."""
        folder = self.folder / ".locks"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (folder / hashlib.sha256(key.encode()).hexdigest()[:32]).open("a+b")
        except OSError as error:
            raise MachineError(
                f"{self.folder} can't be written: {error.strerror}",
                code="action.store",
                remedy="--cache-dir names another folder.",
            ) from error
        with file:
            deadline = time.monotonic() + LOCK_DEADLINE_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._stop is not None and self._stop():
                        raise StoppedError from None
                    if time.monotonic() > deadline:
                        raise MachineError(
                            f"another job has been fetching {key} for {LOCK_DEADLINE_S:g} s",
                            code="action.store_lock",
                            retryable=True,
                        ) from None
                    time.sleep(_POLL_S)
            yield


def unpack_commit(bare: Path, commit: str, folder: Path, limits: TreeLimits | None = None) -> Written:
    """Write a commit's files into the empty `folder`. Raises UnsafeTreeError where they aren't what its id says."""
    try:
        tree = commit_tree(commit, run_git(["cat-file", "commit", commit], git_dir=bare))
    except GitCallError as error:
        raise UnsafeTreeError(f"what came has no commit {commit}: {error.message}") from error
    listed = run_git(["ls-tree", "-r", "-z", "--full-tree", commit], git_dir=bare)
    rows = []
    for row in listed.split(b"\0")[:-1]:
        facts, _, name = row.partition(b"\t")
        mode, kind, object_id = facts.decode().split()
        rows.append((mode, kind, object_id, os.fsdecode(name)))
    writer = TreeWriter(folder, algorithm=algorithm_of(commit), limits=limits)
    blobs = stream_objects(bare, [object_id for mode, _, object_id, _ in rows if mode != MODULE])
    with contextlib.closing(blobs):
        for mode, _, object_id, path in rows:
            if mode == MODULE:
                writer.module(path, object_id)
                continue
            blob = next(blobs)
            if mode == LINK:
                if blob.size > 4096:
                    raise UnsafeTreeError(f"{path}: a link of {blob.size} bytes")
                writer.link(path, b"".join(blob.pieces()))
            else:
                writer.file(path, mode, blob.size, blob.pieces())
    written = writer.finish()
    if written.tree != tree:
        raise UnsafeTreeError(f"the files of commit {commit} hash to {written.tree}, not to {tree}")
    return written


def make_bare(folder: Path) -> None:
    """An empty bare repository. Safe to repeat."""
    if not (folder / "HEAD").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        run_git(["init", "--quiet", "--bare", "--template=", str(folder)])


def _has_commit(bare: Path, commit: str) -> bool:
    try:
        run_git(["cat-file", "-e", f"{commit}^{{commit}}"], git_dir=bare)
    except GitCallError:
        return False
    return True


def _read_entry(place: Path) -> Stored | None:
    try:
        entry = msgspec.json.decode((place / _MARK).read_bytes(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None
    if entry.commit != place.name or not (place / _TREE).is_dir():
        return None
    return Stored(entry=entry, root=str(place / _TREE))


def _read_answer(place: Path) -> _Answer | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=_Answer)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_whole(place: Path, data: bytes) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=place.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        Path(name).rename(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(home: Path) -> None:
    """Remove what makers that were killed left, once no maker can be at it any more."""
    for each in home.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(each, ignore_errors=True)


__all__ = [
    "FETCHED",
    "ActionMissingError",
    "ActionStore",
    "Entry",
    "Stored",
    "make_bare",
    "unpack_commit",
]
