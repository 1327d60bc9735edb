"""Where things are inside a sandbox (job-semantics 15). Paths only, nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from runyard.job import Json

HOME = "/home/runner"
WORK = f"{HOME}/work"
TOOLS = "/opt/hostedtoolcache"
"""Where GitHub's hosted images have it, and where actions look that don't ask."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of one job, absolute, as its processes see them.

    `events` and `tools` are given where they don't lie below `work`.
    """

    workspace: str
    pipeline: str
    work: str = WORK
    home: str = HOME
    events: str = ""
    tools: str = ""

    @property
    def temp(self) -> str:
        """`RUNNER_TEMP`."""
        return f"{self.work}/_temp"

    @property
    def command_files(self) -> str:
        """Where the files of 11.1 live; on a memory-backed file system."""
        return f"{self.work}/_temp/_runner_file_commands"

    @property
    def event_folder(self) -> str:
        """Where the event payload lives."""
        return self.events or f"{self.work}/_temp/_github_workflow"

    @property
    def event_path(self) -> str:
        """`GITHUB_EVENT_PATH`."""
        return f"{self.event_folder}/event.json"

    @property
    def actions(self) -> str:
        """Where remote actions are mounted."""
        return f"{self.work}/_actions"

    @property
    def tool_cache(self) -> str:
        """`RUNNER_TOOL_CACHE`."""
        return self.tools or TOOLS

    @property
    def action_home(self) -> str:
        """HOME of docker actions, which is the job container's own where there is one."""
        return self.home if self.home.startswith("/github/") else f"{self.work}/_temp/_github_home"

    @property
    def folders(self) -> tuple[str, ...]:
        """What has to exist, empty and writable, when a job begins."""
        return (self.workspace, self.temp, self.actions, self.tool_cache)

    @property
    def all_folders(self) -> tuple[str, ...]:
        """The same with what docker actions need."""
        return self.folders if self.action_home == self.home else (*self.folders, self.action_home)

    def in_workspace(self, path: str) -> str:
        """`path` as a step means it: absolute as it is, else below the workspace."""
        return path if path.startswith("/") else f"{self.workspace}/{path}".rstrip("/")


def layout_for(repository: Json) -> Layout:
    """The folders for a repository `owner/name`: both levels below work are called after the name alone."""
    name = str(repository or "").rpartition("/")[2] or "repository"
    return Layout(pipeline=f"{WORK}/{name}", workspace=f"{WORK}/{name}/{name}")
