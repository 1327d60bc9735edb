"""Where claims come from: this command line, a server, GitHub.

In: a repository on this machine and the name of an event. Out: its facts (`read_facts`), the payload and the `github`
context that GitHub would give, the working tree as a commit (`snapshot`), and claims (`LocalSource`). Read `git.py`
first, then `payload.py` and `local.py`.
"""

from runyard.source.changes import changed_files, has_commit
from runyard.source.context import EventPlace, github_context, place_of
from runyard.source.git import Commit, Git, GitFacts, GitFailedError, find_repository, read_facts, server_of
from runyard.source.local import EnvironmentValues, LocalSource
from runyard.source.payload import known_events, make_payload, merge
from runyard.source.worktree import Snapshot, committed, snapshot

__all__ = [
    "Commit",
    "EnvironmentValues",
    "EventPlace",
    "Git",
    "GitFacts",
    "GitFailedError",
    "LocalSource",
    "Snapshot",
    "changed_files",
    "committed",
    "find_repository",
    "github_context",
    "has_commit",
    "known_events",
    "make_payload",
    "merge",
    "place_of",
    "read_facts",
    "server_of",
    "snapshot",
]
