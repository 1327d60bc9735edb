"""What a checkout leaves for later git commands of the job, and takes away at its end: the token that was given.

As the original's: up to v5 a header in the repository's own configuration, from v6 on a file beside the workspace that
the configuration includes for this repository alone. A job without a token gets neither.
"""

from __future__ import annotations

import asyncio
import base64
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.engine.programs import ask, exchange
from runyard.sandbox.contract import FileIn

if TYPE_CHECKING:
    from runyard.action.checkout_inputs import CheckoutPlan
    from runyard.engine.logbook import StepLog
    from runyard.engine.state import Frame

_OWN_FILE_FROM: Final = 6
"""The first major that keeps credentials in a file of their own."""

_REMOVE: Final = r"""
[ -z "$1" ] || rm -f -- "$1"; shift
for each; do
  [ -f "$each" ] && [ ! -L "$each" ] || continue
  sed -i -e '/^[[:space:]]*extraheader = AUTHORIZATION: basic /d' \
    -e '/^\[includeIf "gitdir:.*"\]$/{' -e '$!N' -e '/git-credentials-[0-9a-f-]*\.config"*$/d' -e '}' "$each" ||
    echo "$each"
done
"""


class Credentials:
    """Those of one checkout step."""

    def __init__(self, frame: Frame, plan: CheckoutPlan, major: int) -> None:
        self._job = frame.job
        self._own_file = major >= _OWN_FILE_FROM
        self.run_server = str(frame.job.scope.github.get("server_url") or "https://github.com").rstrip("/")
        self._server = plan.server or self.run_server
        self._token = (plan.token or frame.job.secrets["GITHUB_TOKEN"]) if plan.persist else ""
        self._file = ""
        self._configs: list[str] = []

    async def persist(self, tree: str, target: str) -> None:
        """Write them into the checkout at `target`, which shows the folder `tree`. Nothing without a token."""
        if not self._token:
            return
        pair = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()
        self._job.masker.add_secret(pair)
        header = f'[http "{self._server}/"]\n\textraheader = AUTHORIZATION: basic {pair}\n'
        self._file = f"{self._job.layout.temp}/git-credentials-{uuid.uuid4()}.config" if self._own_file else ""
        files = [FileIn(self._file, header.encode())] if self._file else []
        for git_dir, before in (await asyncio.to_thread(configurations_in, tree)).items():
            config = f"{target}/{git_dir}/config"
            added = self._includes(f"{target}/{git_dir}", git_dir) if self._file else header
            files.append(FileIn(config, before + added.encode()))
            self._configs.append(config)
        await exchange(self._job.session, files_in=tuple(files))

    def _includes(self, folder: str, git_dir: str) -> str:
        """The same file under the name that docker actions see it by."""
        relative = os.path.relpath(folder, self._job.layout.workspace)
        inside = f"/github/runner_temp/{os.path.basename(self._file)}"  # noqa: PTH119 - a name
        text = ""
        for place, path in ((folder, self._file), (f"/github/workspace/{relative}", inside)):
            ways = (place, f"{place}/worktrees/*") if git_dir == ".git" else (place,)
            text += "".join(f'[includeIf "gitdir:{way}"]\n\tpath = {path}\n' for way in ways)
        return text

    async def remove(self, log: StepLog) -> None:
        """Take them away. Safe to repeat; a checkout that left none costs nothing."""
        if not self._configs:
            return
        words = ("/bin/sh", "-c", _REMOVE, "sh", self._file, *self._configs)
        said = (await ask(self._job.session, words, self._job.base_environment)).decode("utf-8", "replace").strip()
        self._configs, self._file = [], ""
        if said:
            log.issue("warning", f"The token could not be removed from {said}")
        else:
            log.say("The token is removed from git's configuration")


def configurations_in(tree: str) -> dict[str, bytes]:
    """What git's configuration says in a checkout and its submodules, by git folder: `.git`, `.git/modules/name`."""
    found = [Path(tree, ".git"), *sorted(each.parent for each in Path(tree, ".git", "modules").rglob("config"))]
    return {str(each.relative_to(tree)): (each / "config").read_bytes() for each in found}
