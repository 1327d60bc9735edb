"""`runyard expr`: what it prints, what it refuses, and batches in order."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from runyard.cli.expr import command
from runyard.job.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


class _Input:
    """Standard input made of bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    command.main(list(arguments), standalone_mode=False)
    return capsys.readouterr().out


def batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], requests: list[Any], *arguments: str
) -> list[Any]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    monkeypatch.setattr(sys, "stdin", _Input(lines.encode()))
    return [json.loads(line) for line in run(capsys, "--batch", *arguments).splitlines()]


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("1 == 1", True),
        ("'é'", "é"),
        ("0.1", 0.1),
        ("fromJSON('{\"a\":[1,null]}')", {"a": [1, None]}),
        ("", None),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("${{ 1 }}", 1),
        ("${{ 'a' }}-${{ 2 }}", "a-2"),
        ("${{ 'lone' }}", "lone"),
    ],
)
def test_value_is_printed_as_json(expression: str, printed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, expression)) == printed


def test_contexts_come_from_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts = {"github": {"ref": "refs/heads/main"}, "env": {"Path": "x"}}
    file = tmp_path / "contexts.json"
    file.write_text(json.dumps(contexts))
    assert json.loads(run(capsys, "github.REF", "--context", str(file))) == "refs/heads/main"
    monkeypatch.setattr(sys, "stdin", _Input(json.dumps(contexts).encode()))
    assert json.loads(run(capsys, "env.path", "--context", "-")) is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("github.ref", "Unrecognized named-value: 'github'. Located at position 1"),
        ("1 = 2", "Located at position 3"),
        ("true && fromJSON('')", "Located at position 9"),
        ("${{ 1 +1 }}", "Located at position 3"),
    ],
)
def test_an_error_is_exit_2_with_the_position(
    expression: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError) as caught:
        run(capsys, expression)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", ["[]", "{", '{"a": NaN}', "[" * 100_000, "\xff"])
def test_contexts_that_are_wrong_name_the_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "contexts.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        run(capsys, "1", "--context", str(file))
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        run(capsys, "1", "--context", str(tmp_path / "none.json"))


def test_hash_files_reads_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    hashed = "ecb65bb98f9d905b70458986c39fcbad7715e5f2fcc3b1f07767d7c83e2438cc"
    assert json.loads(run(capsys, "hashFiles('f')")) == hashed
    assert json.loads(run(capsys, "${{ hashFiles('*') }}")) == hashed
    assert json.loads(run(capsys, "hashFiles('none')")) == ""
    with pytest.raises(InputError, match="Located at position 1"):
        run(capsys, "hashFiles('../f')")


def test_batch_answers_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = batch(
        monkeypatch,
        capsys,
        [
            {"expression": "github.ref", "contexts": {"github": {"ref": "x"}}},
            {"expression": "1 +", "contexts": {}},
            {"expression": "a b", "contexts": {"a": 1}},
            {"expression": "fromJSON('')"},
            {"expression": "fromJSON('[]')"},
            {"condition": None, "scope": "step", "status": "failure", "contexts": {}},
            {"condition": "always()", "scope": "step", "status": "cancelled"},
            {
                "condition": "failure()",
                "scope": "job",
                "status": None,
                "contexts": {"needs": {"a": {"result": "failure"}}},
            },
            {"condition": "secrets.A", "scope": "step", "status": "success", "contexts": {"secrets": {"A": "x"}}},
        ],
    )
    assert answers[0] == {"value": "x", "kind": "String"}
    assert [answer["error"]["kind"] for answer in answers[1:4]] == ["lexing", "parsing", "evaluation"]
    assert [answer["error"]["position"] for answer in answers[1:4]] == [3, 3, 1]
    assert answers[4:8] == [{"value": [], "kind": "Array"}, {"runs": False}, {"runs": True}, {"runs": True}]
    assert answers[8]["error"]["message"].startswith("Unrecognized named-value: 'secrets'")


def test_D8_both_modes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    request = {"expression": "fromJSON('[1,] x')"}
    assert batch(monkeypatch, capsys, [request])[0]["error"]["kind"] == "evaluation"
    assert batch(monkeypatch, capsys, [request], "--strict-github") == [{"value": [1], "kind": "Array"}]


@pytest.mark.parametrize(
    "line",
    [
        b"nope",
        b"[]",
        b"{}",
        b'{"expression": 1}',
        b'{"expression": "1", "condition": "1"}',
        b'{"expression": "1", "contexts": []}',
        b'{"condition": 1}',
        b'{"condition": "1", "scope": "run"}',
        b'{"condition": "1", "status": "maybe"}',
    ],
)
def test_a_line_that_is_no_request_ends_the_batch_and_is_named(
    line: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(b'{"expression": "1"}\n\n' + line + b"\n"))
    with pytest.raises(InputError) as caught:
        command.main(["--batch"], standalone_mode=False)
    assert caught.value.line == 3
    assert capsys.readouterr().out == '{"value": 1, "kind": "Number"}\n'


def test_closed_standard_input_reads_as_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(capsys, "--batch") == ""
    with pytest.raises(InputError, match="no JSON"):
        run(capsys, "1", "--context", "-")


@pytest.mark.parametrize("arguments", [[], ["1", "--batch"], ["--batch", "--context", "-"]])
def test_usage(arguments: list[str]) -> None:
    import click

    with pytest.raises(click.UsageError):
        command.main(arguments, standalone_mode=False)
