"""`hashFiles` for files that are inside a sandbox (job-semantics 14).

Which files match is decided here, over a picture of the tree; looking and hashing is done inside by `find`, `readlink`
and `sha256sum`, so no link of the job's is ever followed by this process. The picture grows by what the last decision
asked for and didn't know, until nothing is missing.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from runyard.engine.hash_files import TIMEOUT_S, Entry, hash_files
from runyard.job import InputError
from runyard.sandbox.contract import StepCommand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.engine.hash_files import Kind
    from runyard.engine.state import Job

MOST_ROUNDS = 64
"""Looks into the sandbox for one call; only links to ever new folders need more than four."""

_ANSWER_LIMIT = 256 << 20

# Everything at and below the paths of standard input, a letter for its kind before each; links are not followed. One
# look a kind, since the find of busybox runs no more than one -exec … + of several.
_LIST = r"""xargs -0 sh -c 'exec 2>/dev/null
  find "$@" -type d -exec printf "d%s\000" {} +
  find "$@" -type f -exec printf "f%s\000" {} +
  find "$@" -type l -exec printf "l%s\000" {} +
  find "$@" ! -type d ! -type f ! -type l -exec printf "o%s\000" {} +' sh
printf e"""

# For each link of standard input: a letter for what it leads to (n: nothing) and where that really is.
_RESOLVE = r"""xargs -0 sh -c 'for each; do
  real=$(readlink -f -- "$each") || real=
  if [ -z "$real" ] || [ ! -e "$real" ]; then kind=n; elif [ -d "$real" ]; then kind=d
  elif [ -f "$real" ]; then kind=f; else kind=o; fi
  printf "%s%s\000" "$kind" "$real"
done' sh
printf e"""

_HASH = "xargs -0 sha256sum 2>&1"
_DIGEST = re.compile(rb"^\\?([0-9a-f]{64})[ *\t]", re.MULTILINE)
_KINDS: dict[str, Kind] = {"d": "directory", "f": "file", "l": "link", "o": "other"}


class SandboxTree:
    """What is known of the tree inside, and what a decision has asked for and not got (see `hash_files.Tree`)."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._children: dict[str, dict[str, Entry]] = {}
        self._listed: list[str] = []
        self._targets: dict[str, tuple[str, Kind] | None] = {}
        self._digests: dict[str, bytes] = {}
        self._folders: dict[str, str | None] = {}
        self.unlisted: set[str] = set()
        self.unresolved: set[str] = set()
        self.unhashed: set[str] = set()

    def begin(self) -> None:
        """Another decision: nothing is asked for yet."""
        self._folders.clear()
        self.unlisted, self.unresolved, self.unhashed = set(), set(), set()

    def kind(self, path: str) -> Kind | None:
        """See Tree; None also where it isn't known yet."""
        place = self._place(path)
        return None if place is None else self._kind_at(place)

    def target(self, path: str) -> tuple[str, Kind] | None:
        """See Tree; a link that isn't resolved yet is taken for a file."""
        place = self._place(path)
        kind = None if place is None else self._kind_at(place)
        if place is None or kind is None:
            return None
        return self._led_to(place) if kind == "link" else (place, kind)

    def entries(self, path: str) -> list[Entry]:
        """See Tree; empty where it isn't known yet."""
        folder = self._folder(path)
        if folder is None or self._kind_at(folder) is None:
            return []
        found = self._children.get(folder, {}).values()
        return sorted(found, key=lambda entry: entry.name.encode("utf-8", "surrogateescape"))

    def digest(self, path: str) -> bytes:
        """See Tree; a stand-in where it isn't known yet."""
        if path not in self._digests:
            self.unhashed.add(path)
        return self._digests.get(path, b"")

    def _place(self, path: str) -> str | None:
        """Where a path really is, links on the way followed, one at its end not."""
        root = next((each for each in self._listed if _at_or_below(path, each)), None)
        if root is None:
            self.unlisted.add(path)
            return None
        if path == root:
            return path
        folder, _, name = path.rpartition("/")
        real = self._folder(folder)
        return None if real is None else f"{real}/{name}"

    def _folder(self, path: str) -> str | None:
        """Where the folder that a path leads to really is."""
        if path not in self._folders:
            place = self._place(path)
            kind = None if place is None else self._kind_at(place)
            if place is not None and kind == "link":
                led = self._led_to(place)
                place, kind = (None, None) if led is None else led
            self._folders[path] = place if kind == "directory" else None
        return self._folders[path]

    def _kind_at(self, place: str) -> Kind | None:
        if not any(_at_or_below(place, root) for root in self._listed):
            self.unlisted.add(place)
        return self._kinds.get(place)

    def _led_to(self, link: str) -> tuple[str, Kind] | None:
        if link not in self._targets:
            self.unresolved.add(link)
            return link, "file"
        return self._targets[link]

    def take_listing(self, roots: Iterable[str], answer: bytes) -> None:
        """The answer of _LIST."""
        self._listed += roots
        for kind, path in _records(answer):
            folder, _, name = path.rpartition("/")
            self._kinds[path] = _KINDS[kind]
            shown = _KINDS[kind] if _is_text(name) else "unnameable"
            self._children.setdefault(folder, {})[name] = Entry(name, shown)

    def take_targets(self, links: list[str], answer: bytes) -> None:
        """The answer of _RESOLVE, in the order of `links`."""
        records = _records(answer)
        if len(records) != len(links):
            raise InputError("hashFiles: the links of the workspace could not be read")
        for link, (kind, real) in zip(links, records, strict=True):
            self._targets[link] = None if kind == "n" else (real, _KINDS[kind])

    def take_digests(self, files: list[str], answer: bytes) -> None:
        """The answer of _HASH, in the order of `files`."""
        digests = _DIGEST.findall(answer)
        if len(digests) != len(files):
            said = answer.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise InputError(f"hashFiles: not every file could be read: {said[:200]}")
        self._digests.update((file, bytes.fromhex(text.decode())) for file, text in zip(files, digests, strict=True))


def _at_or_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def _records(answer: bytes) -> list[tuple[str, str]]:
    if not answer.endswith(b"e"):
        raise InputError("hashFiles: the sandbox did not answer in full")
    texts = answer[:-1].decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [(text[:1], text[1:]) for text in texts]


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


async def hash_in_sandbox(job: Job, arguments: tuple[str, ...]) -> str:
    """The hash of the workspace's files that match, in hex; "" where none does. Raises InputError."""
    deadline = time.monotonic() + TIMEOUT_S
    tree = SandboxTree()

    def check() -> None:
        if time.monotonic() > deadline:
            raise InputError(f"hashFiles took longer than {TIMEOUT_S:g} s")

    for _ in range(MOST_ROUNDS):
        tree.begin()
        found = hash_files(
            tree, arguments, workspace=job.layout.workspace, home=job.base_environment.get("HOME"), check=check
        )
        left = deadline - time.monotonic()
        if tree.unlisted:
            roots = sorted(tree.unlisted)
            tree.take_listing(roots, await _inside(job, _LIST, roots, left))
        elif tree.unresolved:
            links = sorted(tree.unresolved)
            tree.take_targets(links, await _inside(job, _RESOLVE, links, left))
        elif tree.unhashed:
            files = sorted(tree.unhashed)
            tree.take_digests(files, await _inside(job, _HASH, files, left))
        else:
            return found.hash
    raise InputError("hashFiles: links lead to ever new folders")


async def _inside(job: Job, script: str, paths: list[str], seconds: float) -> bytes:
    """What a script of ours says about `paths`, which it gets with a zero byte after each."""
    stdin = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    env = {**job.base_environment, "LC_ALL": "C"}
    running = await job.session.start(StepCommand(argv=("/bin/sh", "-c", script), env=env, stdin=stdin))
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(max(seconds, 0.1)):
            while data := await running.read():
                parts.append(data)
                size += len(data)
                if size > _ANSWER_LIMIT:
                    raise InputError("hashFiles: there are too many files")
            await running.wait()
    except TimeoutError as error:
        raise InputError(f"hashFiles took longer than {TIMEOUT_S:g} s") from error
    finally:
        await running.signal("kill")
    return b"".join(parts)
