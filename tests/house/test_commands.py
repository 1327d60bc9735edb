"""The command line keeps its contract: one table, help with an example, exit codes, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpus_path import shared_root
from runyard.cli.table import BY_NAME, TABLE

RUNYARD = str(Path(sys.executable).parent / "runyard")


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RUNYARD, *arguments], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
    )


def test_every_command_of_the_contract_is_in_the_table() -> None:
    contract = shared_root() / "design" / "cli.md"
    if not contract.is_file():
        pytest.skip("the contract of the command line is not beside this checkout")
    named = set(re.findall(r"`runyard ([a-z]+)", contract.read_text("utf-8")))
    assert sorted(named - set(BY_NAME)) == []


@pytest.mark.parametrize("name", [entry.name for entry in TABLE if entry.module])
def test_every_command_here_has_help_with_an_example(name: str) -> None:
    done = call(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example:" in done.stdout


@pytest.mark.parametrize("name", [entry.name for entry in TABLE if not entry.module])
def test_what_is_not_here_is_refused_by_name(name: str) -> None:
    done = call(name)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"'runyard {name}' is not part of this build yet" in done.stderr


def test_a_typo_names_the_nearest_command() -> None:
    done = call("chek")
    assert done.returncode == 2
    assert "'check'" in done.stderr


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"runyard \d+\.\d+\.\d+\n", call("--version").stdout)


def test_a_schema_is_printed_and_a_typo_is_exit_2() -> None:
    assert '"$schema"' in call("schema", "job-spec").stdout
    assert call("schema").stdout.split() == sorted(call("schema").stdout.split())
    wrong = call("schema", "job-spek")
    assert wrong.returncode == 2
    assert "'job-spec'" in wrong.stderr


def test_a_closed_output_is_quiet() -> None:
    process = subprocess.Popen(
        [RUNYARD, "schema", "run-plan"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(20) in {0, -13}
    assert b"Traceback" not in error
    assert b"Error" not in error
