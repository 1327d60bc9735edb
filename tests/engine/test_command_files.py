"""Command files: the pairs F1 to F19, deviations D1 and D21, and the files a step may leave behind (F44)."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.engine.command_files import (
    COMMAND_FILES,
    SUMMARY_LIMIT,
    FileIssue,
    FileKind,
    SummaryText,
    decode_file,
    parse_key_values,
    parse_path,
    prepend_path,
    read_command_files,
    read_summary,
)
from runyard.sandbox.contract import FileBack

if TYPE_CHECKING:
    from collections.abc import Mapping


def files(**text: str) -> Mapping[FileKind, FileBack]:
    kinds = {file.kind for file in COMMAND_FILES}
    assert set(text) <= kinds
    return {file.kind: FileBack(text[file.kind].encode()) for file in COMMAND_FILES if file.kind in text}


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        pytest.param("A=b=c", [("A", "b=c")], id="F1"),
        pytest.param("A<<E\n\nx\nE", [("A", "\nx")], id="F2"),
        pytest.param("A<<E\nE", [("A", "")], id="F3"),
        pytest.param("A<<E\nx\r\nE\n", [("A", "x\r")], id="F4"),
        pytest.param("A = b", [("A ", " b")], id="F5"),
        pytest.param("A<<E \nx\nE \n", [("A", "x")], id="F6-closed"),
        pytest.param("X=<<E", [("X", "<<E")], id="F7"),
        pytest.param("\n\nA=1\n\nB=2\n", [("A", "1"), ("B", "2")], id="blank-lines"),
        pytest.param("A<<E\n\nE\n", [("A", "")], id="one-blank-line"),
        pytest.param("A<<E\nx\n\nE\n", [("A", "x\n")], id="blank-kept"),
        pytest.param("A<<E\ne\n E\nEE\nE\nB=1", [("A", "e\n E\nEE"), ("B", "1")], id="whole-line"),
        pytest.param("A<<B=C\nx\nB=C", [("A", "x")], id="equals-in-delimiter"),
        pytest.param("A<<<<\nx\n<<\n", [("A", "x")], id="marker-as-delimiter"),
        pytest.param("A=1\nA=2", [("A", "1"), ("A", "2")], id="duplicates"),
        pytest.param("=v", [("", "v")], id="F19-grammar"),
        pytest.param("A=1\r\n", [("A", "1\r")], id="carriage-return"),
        pytest.param("", [], id="empty"),
    ],
)
def test_the_grammar_takes(text: str, pairs: list[tuple[str, str]]) -> None:
    read = parse_key_values(text)
    assert (list(read.pairs), read.problem) == (pairs, None)


@pytest.mark.parametrize(
    ("text", "pairs", "words"),
    [
        pytest.param("A<<E \nx\nE\n", [], "Matching delimiter not found 'E '", id="F6"),
        pytest.param("K=1\nBAD\nL=2", [("K", "1")], "Invalid format 'BAD'", id="F8"),
        pytest.param("A<<E\nx", [], "EOF marker missing new line", id="F17"),
        pytest.param("A<<E\nx\n", [], "Matching delimiter not found 'E'", id="no-end"),
        pytest.param("A<<E", [], "Matching delimiter not found 'E'", id="header-alone"),
        pytest.param("<<E\nx\nE", [], "Name must not be empty", id="no-name"),
        pytest.param("A<<\nx\n\n", [], "delimiter must not be empty", id="no-delimiter"),
        pytest.param("A=1\n  \n", [("A", "1")], "Invalid format '  '", id="blanks"),
    ],
)
def test_the_grammar_refuses(text: str, pairs: list[tuple[str, str]], words: str) -> None:
    read = parse_key_values(text)
    assert list(read.pairs) == pairs
    assert words in (read.problem or "")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(codecs.BOM_UTF8 + "A=ä".encode(), id="F18"),
        pytest.param("A=ä".encode("utf-16"), id="utf-16"),
        pytest.param(codecs.BOM_UTF16_BE + "A=ä".encode("utf-16-be"), id="utf-16-be"),
        pytest.param("A=ä".encode("utf-32"), id="utf-32"),
        pytest.param("A=ä".encode(), id="plain"),
    ],
)
def test_a_byte_order_mark_decides(data: bytes) -> None:
    assert parse_key_values(decode_file(data)).pairs == (("A", "ä"),)


def test_bad_bytes_become_replacement_characters() -> None:
    assert decode_file(b"A=\xff") == "A=\ufffd"


def test_F8_what_stands_before_a_bad_entry_counts_and_the_step_fails() -> None:
    effects = read_command_files(files(output="K=1\nBAD\nL=2", env="E=1"))
    assert effects.outputs == (("K", "1"),)
    assert effects.env == (("E", "1"),)
    assert effects.failed
    assert [issue.message for issue in effects.issues] == [
        "Unable to process file command 'output' successfully.",
        "Invalid format 'BAD'",
    ]


@pytest.mark.parametrize("name", ["NODE_OPTIONS", "node_options"])
def test_F9_F48_node_options_are_refused_and_the_step_passes(name: str) -> None:
    effects = read_command_files(files(env=f"{name}=--v\nB=2\nLD_PRELOAD=/tmp/x.so"))
    assert effects.env == (("B", "2"), ("LD_PRELOAD", "/tmp/x.so"))
    assert not effects.failed
    (issue,) = effects.issues
    assert name in issue.message
    assert issue.annotation


def test_F10_variables_of_the_runner_may_be_written() -> None:
    assert read_command_files(files(env="GITHUB_SHA=0\nCI=false")).env == (("GITHUB_SHA", "0"), ("CI", "false"))


def test_F12_F13_the_path_grows_at_its_front() -> None:
    assert parse_path("/a\n\n/b\n /c \n") == ("/a", "/b", " /c ")
    assert prepend_path(["/usr/bin", "/bin"], ["/a", "/b"]) == ["/b", "/a", "/usr/bin", "/bin"]
    assert prepend_path(["/a", "/b", "/c"], ["/b"]) == ["/b", "/a", "/c"]
    assert read_command_files(files(path="/a\n/b")).path == ("/a", "/b")


@pytest.mark.parametrize(("kind", "failed"), [("output", True), ("env", True), ("state", False)])
def test_F19_an_empty_name_fails_where_it_is_used(kind: str, failed: bool) -> None:
    effects = read_command_files(files(**{kind: "A=1\n=v\nB=2"}))
    assert effects.failed is failed
    got = {"output": effects.outputs, "env": effects.env, "state": effects.state}[kind]
    assert got == ((("A", "1"),) if failed else (("A", "1"), ("", "v"), ("B", "2")))


def test_F16_D1_a_large_summary_is_cut_with_a_note_and_kept_whole() -> None:
    data = ("ä" * 600_000).encode()
    read = read_summary(data)
    assert isinstance(read, SummaryText)
    assert read.truncated_from == 1_200_000
    assert read.whole == data.decode()
    assert len(read.text.encode()) <= SUMMARY_LIMIT
    assert "1,200,000" in read.text
    effects = read_command_files({"summary": FileBack(data)})
    assert (effects.failed, effects.issues) == (False, ())


def test_F16_D1_under_the_switch_it_is_an_error_annotation() -> None:
    data = b"x" * (SUMMARY_LIMIT + 1)
    effects = read_command_files({"summary": FileBack(data)}, strict=True)
    assert effects.summary is None
    assert not effects.failed
    (issue,) = effects.issues
    assert issue == FileIssue("$GITHUB_STEP_SUMMARY upload aborted, supports content up to 1024k, got 1025k.")


def test_D1_a_summary_of_just_the_limit_is_shown_in_both_modes() -> None:
    for strict in (False, True):
        read = read_summary(b"x" * SUMMARY_LIMIT, strict=strict)
        assert isinstance(read, SummaryText)
        assert (len(read.text), read.truncated_from) == (SUMMARY_LIMIT, None)
    assert read_summary(b"") is None


def test_a_summary_is_masked_before_it_is_cut() -> None:
    data = b"x" * (SUMMARY_LIMIT - 100) + b"secret" * 100
    read = read_summary(data, mask=lambda text: text.replace("secret", "***"))
    assert isinstance(read, SummaryText)
    assert "sec" not in read.text
    assert "sec" not in (read.whole or "")


@pytest.mark.parametrize("strict", [False, True])
def test_D21_a_link_counts_as_nothing_and_a_large_file_fails_the_step(strict: bool) -> None:
    effects = read_command_files(
        {
            "output": FileBack(problem="link"),
            "env": FileBack(problem="too_large", size=2000),
            "state": FileBack(b"s=1"),
            "path": FileBack(problem="not_a_file"),
        },
        strict=strict,
        limit=1000,
    )
    assert effects.failed
    assert (effects.outputs, effects.env, effects.state, effects.path) == ((), (), (("s", "1"),), ())
    assert effects.issues[0].message == "Unable to process file command 'env' successfully."
    assert "2,000" in effects.issues[1].message
    assert "1,000" in effects.issues[1].message


def test_F44_missing_and_empty_files_ask_for_nothing() -> None:
    effects = read_command_files({"output": FileBack(problem="missing"), "env": FileBack(b""), "summary": FileBack()})
    assert effects == read_command_files({})
    assert not effects.failed


def test_each_file_has_its_variable_and_name() -> None:
    assert {file.variable: file.prefix for file in COMMAND_FILES} == {
        "GITHUB_ENV": "set_env_",
        "GITHUB_OUTPUT": "set_output_",
        "GITHUB_STATE": "save_state_",
        "GITHUB_PATH": "add_path_",
        "GITHUB_STEP_SUMMARY": "step_summary_",
    }


_NAME = st.text(alphabet="abAB _.", min_size=1, max_size=4)
_VALUE = st.text(alphabet="ab=<\r\n E", max_size=10)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_NAME, _VALUE), max_size=5))
def test_what_is_written_as_heredocs_is_read_back(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}<<ghadelimiter\n{value}\nghadelimiter\n" for name, value in pairs)
    read = parse_key_values(text)
    assert read.problem is None
    assert list(read.pairs) == pairs


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="A=<E\n\r ", max_size=40))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    read = parse_key_values(text)
    assert read.problem is None or read.problem.startswith("Invalid")
