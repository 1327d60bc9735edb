"""From a step's pipe to its log: cut, obey commands, look for matches, mask, tell. In chunks, never line by line.

A plain chunk costs one pass of the command reader, one of the matchers (when there are any) and one of the masks.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from runyard.engine.commands import (
    BLOCKED_ENV,
    ECHOED,
    UNSECURE,
    Command,
    CommandReader,
    CommandRefused,
    annotation,
    unsecure_allowed,
)
from runyard.engine.matchers import Issue, MatcherError, Removed, annotation_of
from runyard.engine.programs import ask, exchange
from runyard.sandbox.contract import FileOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.engine.commands import Segment
    from runyard.engine.state import Frame
    from runyard.sandbox.contract import Running

QUIET_S = 0.05
"""A step that printed nothing for so long may be waiting behind a prompt: its unfinished line is shown."""

CHUNK_BYTES = 128 << 10
MATCHER_FILE_LIMIT = 4 << 20
_REPLACED_BY = {"set-env": "GITHUB_ENV", "add-path": "GITHUB_PATH"}
_DEPRECATED = {"set-output": "GITHUB_OUTPUT", "save-state": "GITHUB_STATE"}

# Prints the folder of the repository that holds file $1, and its origin; nothing where there is no such file.
_OWNER = """[ -f "$1" ] || exit 0
at=$(dirname -- "$1")
while [ ! -f "$at/.git/config" ] && [ ! -f "$at/.git" ]; do
  [ "$at" = / ] && exit 0
  at=$(dirname -- "$at")
done
printf '%s\\n' "$at"
"""


class StepOutput:
    """The output of one handler invocation: stop-commands and echo live as long as it does (10.3, 10.4)."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        job = frame.job
        runner_env = job.settings.runner_env
        tokens = "ACTIONS_ALLOW_UNSECURE_STOPCOMMAND_TOKENS"
        self._reader = CommandReader(
            echo=job.debug,
            allow_any_token=_truthy(runner_env.get(tokens)) or _truthy(frame.env.get(tokens)),
            add_mask=job.masker.add_value,
        )
        self._unmatched = b""

    async def pump(self, running: Running) -> None:
        """Everything the command prints, until its output ends or the caller stops waiting."""
        while data := await self._next(running):
            await self._take(self._reader.feed(data))
            await self._frame.log.drain()
            # A pipe that is always full would keep orders and heartbeats from their turn.
            await asyncio.sleep(0)

    async def _next(self, running: Running) -> bytes:
        """More output; after a moment of silence, what is held of an unfinished line is shown first."""
        if self._reader.pending:
            try:
                async with asyncio.timeout(QUIET_S):
                    return await running.read(CHUNK_BYTES)
            except TimeoutError:
                self._let_go()
        return await running.read(CHUNK_BYTES)

    async def finish(self) -> None:
        """The end of the output: the last line counts though its end is missing (F46)."""
        await self._take(self._reader.flush())
        await self._match(b"", last=True)
        self._frame.log.settle()

    def _let_go(self) -> None:
        """Show the unfinished line of a step that has gone quiet. A match in it is still found at its end."""
        if not self._frame.job.matchers.owners:
            self._frame.log.output(self._reader.release())

    async def _take(self, segments: Iterable[Segment | CommandRefused]) -> None:
        for segment in segments:
            if isinstance(segment, bytes):
                if self._frame.job.matchers.owners or self._unmatched:
                    await self._match(segment)
                else:
                    self._frame.log.output(segment)
            elif isinstance(segment, CommandRefused):
                self._refuse(segment)
            else:
                await self._match(b"", last=True)
                await self._obey(segment)

    async def _match(self, data: bytes, *, last: bool = False) -> None:
        """Whole lines through the matchers; the piece behind the last line end waits for its rest."""
        data = self._unmatched + data
        cut = len(data) if last else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._unmatched = data[cut:]
        if not cut:
            return
        log = self._frame.log
        for found in self._frame.job.matchers.scan(data[:cut]):
            if isinstance(found, bytes):
                log.output(found)
            elif isinstance(found, Removed):
                log.issue("warning", found.warning)
            else:
                await self._report(found)

    async def _report(self, issue: Issue) -> None:
        place = await self._repository_path(issue)
        found = annotation_of(
            issue, step=self._frame.log.step, time_ns=time.time_ns(), localise=lambda _file, _base: place
        )
        self._frame.log.annotate(found, issue.line_text)

    async def _repository_path(self, issue: Issue) -> str | None:
        """The file relative to the checkout that holds it, None where it is in none (section 12)."""
        if not issue.file:
            return None
        job = self._frame.job
        base = job.layout.workspace
        if issue.from_path:
            base = job.layout.in_workspace(issue.from_path.replace("\\", "/")).rpartition("/")[0]
        path = issue.file.replace("\\", "/")
        path = path if path.startswith("/") else f"{base}/{path}"
        owner = job.file_owners.get(path)
        if owner is None:
            answer = await ask(job.session, ("/bin/sh", "-c", _OWNER, "sh", path), dict(job.session.environment))
            owner = job.file_owners[path] = answer.decode("utf-8", "replace").rstrip("\n")
        if not owner:
            return None
        return _relative(path, owner)

    def _refuse(self, refused: CommandRefused) -> None:
        for message in refused.errors:
            self._frame.log.issue("error", message)
        self._frame.command_failed = True
        self._frame.explain("command_error", refused.because)

    async def _obey(self, command: Command) -> None:
        """One command; its line, where echo is on, came before it from the reader."""
        try:
            await self._carry_out(command)
        except CommandError as error:
            shown = command.line if command.name in ECHOED else command.name
            self._refuse(CommandRefused(str(error), shown))

    async def _carry_out(self, command: Command) -> None:
        frame, log, data = self._frame, self._frame.log, command.data
        job = frame.job
        match command.name:
            case "set-output":
                self._deprecated(command.name)
                frame.outputs[_named(command)] = data
            case "save-state":
                self._deprecated(command.name)
                frame.set_state(_named(command), data)
            case "set-env" | "add-path":
                self._change_environment(command)
            case "add-mask":
                self._add_mask(data)
            case "debug":
                if job.debug:
                    for line in data.splitlines() or [""]:
                        log.say(f"##[debug]{line}", "output")
            case "notice" | "warning" | "error":
                found = annotation(command, step=log.step, time_ns=time.time_ns(), localise=self._localise)
                log.annotate(found)
            case "group":
                log.output(f"##[group]{data}\n".encode("utf-8", "surrogateescape"))
            case "endgroup":
                log.output(b"##[endgroup]\n")
            case "add-matcher":
                await self._add_matcher(data)
            case "remove-matcher":
                await self._remove_matcher(command)
            case _:
                return

    def _deprecated(self, name: str) -> None:
        if name not in self._frame.said_deprecated:
            self._frame.said_deprecated.add(name)
            self._frame.log.issue(
                "warning",
                f"The `{name}` command is deprecated. Write to the file that `{_DEPRECATED[name]}` names instead.",
            )

    def _change_environment(self, command: Command) -> None:
        job = self._frame.job
        assert command.name in UNSECURE
        allowed = unsecure_allowed(
            runner_env=job.settings.runner_env,
            env_context=self._frame.env,
            policy=job.claim.policy.unsecure_commands,
            own_machine=job.settings.own_machine,
            strict=job.strict,
        )
        if not allowed:
            raise CommandError(
                f"The `{command.name}` command is disabled. Write to the file that "
                f"`{_REPLACED_BY[command.name]}` names instead"
                + _how_to_allow(job.settings.own_machine, job.claim.policy.unsecure_commands)
            )
        if command.name == "add-path":
            if command.data:
                job.add_path((command.data,))
            return
        name = _named(command)
        if name.upper() in BLOCKED_ENV:
            self._frame.log.issue("error", f"Can't update {name} environment variable using ::set-env:: command.")
            return
        job.set_env(name, command.data)

    def _add_mask(self, data: str) -> None:
        if not self._frame.job.masker.add_mask(data):
            self._frame.log.issue("warning", "Can't add secret mask for empty string in ##[add-mask] command.")
        elif self._reader.echo:
            self._frame.log.output(b"::add-mask::***\n")

    def _localise(self, path: str) -> str | None:
        workspace = self._frame.job.layout.workspace
        path = path.replace("\\", "/")
        return _relative(path, workspace) if path.startswith(f"{workspace}/") else path

    async def _add_matcher(self, data: str) -> None:
        if not data.strip():
            self._frame.log.issue("warning", "File path must be specified.")
            return
        try:
            for owner in self._frame.job.matchers.add(await self._matcher_file(data)):
                self._frame.log.say(f"Added matchers: '{owner}'", "output")
        except MatcherError as error:
            raise CommandError(str(error)) from error

    async def _remove_matcher(self, command: Command) -> None:
        owner, data = command.properties.get("owner", ""), command.data
        if bool(owner) == bool(data):
            both = "Both values cannot be set." if owner else "One of them must be set."
            self._frame.log.issue(
                "warning", f"Either specify an owner name or a file path in ##[remove-matcher] command. {both}"
            )
            return
        matchers = self._frame.job.matchers
        try:
            removed = (owner,) if owner else matchers.remove_all_of(await self._matcher_file(data))
        except MatcherError as error:
            raise CommandError(str(error)) from error
        for each in removed:
            matchers.remove(each)
            self._frame.log.say(f"Removed matchers: '{each}'", "output")

    async def _matcher_file(self, path: str) -> bytes:
        job = self._frame.job
        path = job.layout.in_workspace(path)
        back = (await exchange(job.session, files_out=(FileOut(path, MATCHER_FILE_LIMIT),)))[path]
        if back.problem is not None:
            raise CommandError(f"The problem matcher file '{path}' can't be read: {back.problem.replace('_', ' ')}.")
        return back.data


class CommandError(ValueError):
    """A command that can't be carried out; the step fails at its end (10.2)."""


def _named(command: Command) -> str:
    name = command.properties.get("name", "")
    if not name:
        raise CommandError(f"Required field 'name' is missing in ##[{command.name}] command.")
    return name


def _how_to_allow(own_machine: bool, policy: bool | None) -> str:
    if policy is False:
        return "; the policy of this pool forbids it."
    if own_machine:
        return ", or set ACTIONS_ALLOW_UNSECURE_COMMANDS to true."
    return "; it would take ACTIONS_ALLOW_UNSECURE_COMMANDS and a pool whose policy allows unsecure commands."


def _relative(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder.rstrip('/')}/")


def _truthy(text: str | None) -> bool:
    return (text or "").strip().lower() in {"1", "true", "$true"}
