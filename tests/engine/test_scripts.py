"""The shell table, the script file and the lines shown before a script (job-semantics 8)."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.engine.scripts import (
    ShellError,
    choose_shell,
    command_arguments,
    first_line,
    prelude,
    script_body,
    split_arguments,
)

PATH = "/t/a.sh"


@pytest.mark.parametrize(
    ("shell", "programs", "arguments", "extension"),
    [
        pytest.param(None, ("bash", "sh"), ("-e", PATH), ".sh", id="O9-unspecified"),
        pytest.param("bash", ("bash",), ("--noprofile", "--norc", "-e", "-o", "pipefail", PATH), ".sh", id="O10-bash"),
        pytest.param("sh", ("sh",), ("-e", PATH), ".sh", id="sh"),
        pytest.param("python", ("python",), (PATH,), ".py", id="python"),
        pytest.param("pwsh", ("pwsh",), ("-command", f". '{PATH}'"), ".ps1", id="O33-pwsh"),
        pytest.param("powershell", ("powershell",), ("-command", f". '{PATH}'"), ".ps1", id="powershell"),
        pytest.param("bash -l {0}", ("bash",), ("-l", PATH), ".sh", id="arguments-replace-the-default"),
        pytest.param("bash ", ("bash",), ("--noprofile", "--norc", "-e", "-o", "pipefail", PATH), ".sh", id="blank"),
        pytest.param("PWSH", ("PWSH",), ("-command", f". '{PATH}'"), ".ps1", id="O34-case-of-defaults"),
        pytest.param("perl -x {0} --y", ("perl",), ("-x", PATH, "--y"), "", id="custom"),
        pytest.param('perl "{0} z" {{1}}', ("perl",), (f"{PATH} z", "{1}"), "", id="quotes-and-doubled-braces"),
    ],
)
def test_shell_table(shell: str | None, programs: tuple[str, ...], arguments: tuple[str, ...], extension: str) -> None:
    chosen = choose_shell(shell)
    assert chosen.programs == programs
    assert command_arguments(chosen.arguments, PATH) == arguments
    assert chosen.extension == extension


def test_O11_no_shell_in_a_container_is_sh() -> None:
    assert choose_shell(None, container=True).programs == ("sh",)


@pytest.mark.parametrize("shell", ["node", "perl -x", "fish {1}"], ids=["O12", "no-place", "other-place"])
def test_O12_a_shell_without_place_for_the_script_is_refused(shell: str) -> None:
    with pytest.raises(ShellError, match=r"^Invalid shell option\."):
        choose_shell(shell)


@pytest.mark.parametrize("shell", ["perl {0} {1}", "perl {0} {", "perl } {0}"])
def test_other_braces_are_refused(shell: str) -> None:
    with pytest.raises(ShellError, match="Invalid shell option"):
        command_arguments(choose_shell(shell).arguments, PATH)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"a\\b", (r"a\\b",)),
        (r"a\"b", ('a"b',)),
        (r'"a\\" b', ("a\\", "b")),
        ('"a""b"', ('a"b',)),
        ('x"y z"w', ("xy zw",)),
        ('""', ("",)),
        ("\t a  b ", ("a", "b")),
        ("a\\", ("a\\",)),
    ],
)
def test_arguments_are_split_as_dotnet_splits_them(text: str, found: tuple[str, ...]) -> None:
    assert split_arguments(text) == found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\"\\'", min_codepoint=33, max_codepoint=126), min_size=1)))
def test_plain_words_split_as_everywhere(words: list[str]) -> None:
    assert split_arguments(" ".join(words)) == tuple(shlex.split(" ".join(words), comments=False))


@pytest.mark.parametrize(
    ("shell", "body"),
    [
        ("bash", "echo é"),
        ("cmd", "@echo off\r\necho é"),
        ("PWSH", "echo é"),
        (
            "pwsh",
            (
                "$ErrorActionPreference = 'stop'\necho é\n"
                "if ((Test-Path -LiteralPath variable:\\LASTEXITCODE)) { exit $LASTEXITCODE }"
            ),
        ),
    ],
    ids=["bash", "cmd", "O34-no-lines-for-other-case", "O33-exit-line"],
)
def test_script_body(shell: str, body: str) -> None:
    assert script_body("echo é", choose_shell(shell)) == body.encode()


@pytest.mark.parametrize(("script", "line"), [("  \n echo a \nb", "echo a "), ("a\r\nb", "a"), ("", ""), ("x", "x")])
def test_first_line(script: str, line: str) -> None:
    assert first_line(script) == line


def test_prelude_shows_script_shell_and_environment_without_trailing_blank_lines() -> None:
    text = prelude("a\n\nb\n\n\n", "/usr/bin/bash -e {0}", {"K": "v"})
    assert text == (
        "##[group]Run a\n\x1b[36;1ma\x1b[0m\n\x1b[36;1m\x1b[0m\n\x1b[36;1mb\x1b[0m\n"
        "shell: /usr/bin/bash -e {0}\nenv:\n  K: v\n##[endgroup]\n"
    )


def test_prelude_has_no_env_block_when_there_is_nothing_in_it() -> None:
    assert "env:" not in prelude("a", "sh -e {0}", {})
