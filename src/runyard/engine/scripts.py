"""How a `run` step becomes a command: the shell table, the script file, the lines shown before it (job-semantics 8).

Pure. Everything about which programs exist is asked of the caller, who knows the sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARGUMENTS: dict[str, str] = {
    "bash": "--noprofile --norc -e -o pipefail {0}",
    "sh": "-e {0}",
    "python": "{0}",
    "pwsh": "-command \". '{0}'\"",
    "powershell": "-command \". '{0}'\"",
    "cmd": '/D /E:ON /V:OFF /S /C "CALL "{0}""',
}
_EXTENSIONS = {"bash": ".sh", "sh": ".sh", "python": ".py", "pwsh": ".ps1", "powershell": ".ps1", "cmd": ".cmd"}

_UNSPECIFIED = "-e {0}"

_STOP_ON_ERROR = "$ErrorActionPreference = 'stop'"
_EXIT_WITH_LAST = "if ((Test-Path -LiteralPath variable:\\LASTEXITCODE)) { exit $LASTEXITCODE }"


class ShellError(ValueError):
    """The `shell:` of a step can't be used; the step fails before launch with this text."""


class Shell(msgspec.Struct, frozen=True):
    """One way to run a script: the programs to try in order, the argument template, the script's extension.

    `written` is the program as the workflow names it ("" when no shell was given): script fix-ups look at it alone.
    """

    programs: tuple[str, ...]
    arguments: str
    extension: str
    written: str = ""


def choose_shell(shell: str | None, *, container: bool = False) -> Shell:
    """The row of 8.1 for `shell` (None or "": not specified). Raises ShellError."""
    if not shell:
        return Shell(("sh",) if container else ("bash", "sh"), _UNSPECIFIED, ".sh")
    program, _, arguments = shell.partition(" ")
    key = program.lower()
    arguments = arguments or _ARGUMENTS.get(key, "")
    if "{0}" not in arguments:
        raise ShellError(
            "Invalid shell option. Shell must be a built-in one (bash, sh, python, pwsh, powershell, cmd) or a format "
            f"string that contains '{{0}}', not '{shell}'."
        )
    return Shell((program,), arguments, _EXTENSIONS.get(key, ""), program)


def command_arguments(template: str, script_path: str) -> tuple[str, ...]:
    """The arguments for the program: `{0}` becomes the script's path, then the text is split as .NET splits it.

    Raises ShellError for any other brace (literal ones have to be doubled).
    """
    return split_arguments(_filled(template, script_path))


def _filled(template: str, script_path: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(template):
        char = template[at]
        if char in "{}" and template[at : at + 2] == char * 2:
            out.append(char)
            at += 2
        elif template.startswith("{0}", at):
            out.append(script_path)
            at += 3
        elif char in "{}":
            raise ShellError(
                f"Invalid shell option. In '{template}' only {{0}} may stand in braces; double a literal one."
            )
        else:
            out.append(char)
            at += 1
    return "".join(out)


def split_arguments(text: str) -> tuple[str, ...]:
    """A command line cut into arguments by .NET's rules for Unix: blanks, double quotes, backslashes before quotes."""
    if '"' not in text and "\\" not in text:
        return tuple(word for word in text.replace("\t", " ").split(" ") if word)
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        argument, at = _one_argument(text, at)
        found.append(argument)
    return tuple(found)


def _one_argument(text: str, at: int) -> tuple[str, int]:
    out: list[str] = []
    quoted = False
    while at < len(text):
        slashes = len(text) - at - len(text[at:].lstrip("\\"))
        at += slashes
        if slashes and text[at : at + 1] == '"':
            out.append("\\" * (slashes // 2))
            if slashes % 2:
                out.append('"')
                at += 1
            continue
        out.append("\\" * slashes)
        if at >= len(text):
            break
        char = text[at]
        if char == '"':
            if quoted and text[at + 1 : at + 2] == '"':
                out.append('"')
                at += 2
                continue
            quoted = not quoted
        elif char in " \t" and not quoted:
            break
        else:
            out.append(char)
        at += 1
    return "".join(out), at


def script_body(script: str, shell: Shell) -> bytes:
    """The bytes of the script file: the text as it is, with the first and last lines that a shell needs (8.2)."""
    if shell.written == "cmd":
        script = f"@echo off\r\n{script}"
    elif shell.written in {"pwsh", "powershell"}:
        script = f"{_STOP_ON_ERROR}\n{script}\n{_EXIT_WITH_LAST}"
    return script.encode("utf-8", "replace")


def first_line(script: str) -> str:
    """The first line of a script, as names and groups show it."""
    text = script.lstrip(" \t\r\n")
    for end in ("\r", "\n"):
        text = text.partition(end)[0]
    return text


def prelude(script: str, shell_line: str, env: Mapping[str, str]) -> str:
    """What the log shows before a script runs (8.4), with its line ends. `shell_line` has the resolved program."""
    lines = [f"##[group]Run {first_line(script)}"]
    lines += [f"\x1b[36;1m{line}\x1b[0m" for line in script_lines(script)]
    lines.append(f"shell: {shell_line}")
    lines += environment_lines(env)
    lines.append("##[endgroup]")
    return "\n".join(lines) + "\n"


def script_lines(script: str) -> list[str]:
    """The lines of a script without trailing blank ones."""
    return script.replace("\r\n", "\n").rstrip("\n").split("\n")


def environment_lines(env: Mapping[str, str]) -> list[str]:
    """The `env:` block, empty when there is nothing in it."""
    return ["env:", *(f"  {name}: {value}" for name, value in env.items())] if env else []
