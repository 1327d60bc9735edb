"""Workflow commands: the pairs C1 to C22, the reader's state, and that no cut of the output changes what is found."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runyard.engine.commands import (
    COMMANDS,
    MAX_PENDING_BYTES,
    Command,
    CommandReader,
    CommandRefused,
    annotation,
    checked_places,
    issue_line,
    log_text,
    parse_command,
    refusal,
    unsecure_allowed,
)


def read(data: bytes | str, reader: CommandReader | None = None, size: int = 1 << 20) -> list[object]:
    raw = data.encode() if isinstance(data, str) else data
    reader = reader or CommandReader()
    found: list[object] = []
    for at in range(0, len(raw), size):
        found.extend(reader.feed(raw[at : at + size]))
    found.extend(reader.flush())
    joined: list[object] = []
    for piece in found:
        if isinstance(piece, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def command(line: str) -> Command:
    parsed = parse_command(line)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("line", "name", "properties", "data"),
    [
        pytest.param("   ::notice::x", "notice", {}, "x", id="C1"),
        pytest.param("::WARNING::x", "warning", {}, "x", id="C2"),
        pytest.param("::set-output name=k::a::b", "set-output", {"name": "k"}, "a::b", id="C3"),
        pytest.param("::set-output name=a=b::v", "set-output", {"name": "a=b"}, "v", id="C4"),
        pytest.param("::warning::a%250Ab", "warning", {}, "a%0Ab", id="C5"),
        pytest.param("::warning::a%0ab", "warning", {}, "a%0ab", id="C6"),
        pytest.param("text ##[warning]w", "warning", {}, "w", id="C7"),
        pytest.param("::error file=a.py, line=3::m", "error", {"file": "a.py", " line": "3"}, "m", id="C9"),
        pytest.param("::error title=,file=a::m", "error", {"file": "a"}, "m", id="no-value"),
        pytest.param("::error file=a,FILE=b::m", "error", {"file": "b"}, "m", id="later-wins"),
        pytest.param("##[error file=a;line=1]x%5D", "error", {"file": "a", "line": "1"}, "x]", id="legacy"),
        pytest.param("##[error file=a%3Bb]x", "error", {"file": "a;b"}, "x", id="legacy-escape"),
        pytest.param("::error   file=a  ::m", "error", {"file": "a"}, "m", id="blanks"),
        pytest.param("\u3000\u00a0::notice::x", "notice", {}, "x", id="wide-blank"),
        pytest.param(
            "::warning file=app.py,line=3,title=A%2CB%3A c::50%25 done%0Anext",
            "warning",
            {"file": "app.py", "line": "3", "title": "A,B: c"},
            "50% done\nnext",
            id="F46",
        ),
    ],
)
def test_a_command_is_parsed(line: str, name: str, properties: dict[str, str], data: str) -> None:
    assert parse_command(line) == (name, properties, data, line)
    found = read(f"a\n{line}\nb\n")
    assert found == [b"a\n", (name, properties, data, line), b"b\n"]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("::nosuch::x", id="C8"),
        pytest.param("log: ::error::not a command", id="F46"),
        "::unknown::kept as text",
        "::error x",
        "##[nosuch]x",
        "##[error x",
        "std::vector<int>::size()",
        ":: error::x",
        "\x1f::error::x",
        "",
    ],
)
def test_what_is_no_command_passes_unchanged(line: str) -> None:
    assert parse_command(line) is None
    assert read(f"{line}\n::\n") == [f"{line}\n::\n".encode()]


def test_C15_commands_between_stop_and_resume_are_text() -> None:
    masks: list[str] = []
    reader = CommandReader(add_mask=masks.append)
    text = "::stop-commands::Tk12345\n::error::x\n##[error]z\n::TK12345::\n::error::y\n"
    found = read(text, reader)
    assert found == [text[: text.index("::error::y")].encode(), ("error", {}, "y", "::error::y")]
    assert masks == ["Tk12345"]


@pytest.mark.parametrize("token", ["error", "ERROR", "", "pause-logging"])
def test_C16_a_bad_resume_token_is_refused(token: str) -> None:
    found = read(f"::stop-commands::{token}\n::error::x\n")
    assert isinstance(found[0], CommandRefused)
    assert found[0].errors[0] == f"Unable to process command '::stop-commands::{token}' successfully."
    assert found[1] == ("error", {}, "x", "::error::x")


def test_C16_the_switch_lets_any_token_through() -> None:
    found = read("::stop-commands::error\n::warning::x\n::error::\n::error::y\n", CommandReader(allow_any_token=True))
    assert found[1:] == [("error", {}, "y", "::error::y")]


def test_short_tokens_are_no_masks() -> None:
    masks: list[str] = []
    read("::stop-commands::abcdef\n", CommandReader(add_mask=masks.append))
    assert masks == []


def test_C20_echo_takes_on_and_off_only() -> None:
    (refused,) = read("::echo::maybe\n")
    assert isinstance(refused, CommandRefused)
    assert "maybe" in refused.because


def test_echo_shows_the_lines_of_commands_until_it_is_off() -> None:
    text = "::echo:: ON \n::group::a\n::error::e\n::add-mask::s\n::echo::off\n::endgroup::\n"
    found = read(text)
    assert found == [
        b"::group::a\n",
        command("::group::a"),
        command("::error::e"),
        command("::add-mask::s"),
        b"::echo::off\n",
        command("::endgroup::"),
    ]


def test_the_log_shows_other_text_for_a_command() -> None:
    assert log_text(command("::group::T")) == "##[group]T"  # C19
    assert log_text(command("::endgroup::")) == "##[endgroup]"
    assert log_text(command("::debug::x")) is None  # C18
    assert log_text(command("::debug::x%0Ay"), debug=True) == "##[debug]x\n##[debug]y"
    assert log_text(command("::warning file=a::w")) == "##[warning]w" == issue_line("warning", "w")
    assert log_text(command("::add-mask::s"), echo=True) == "::add-mask::***"
    assert log_text(command("::set-output name=a::b")) is None
    assert len(log_text(command("::error::" + "m" * 5000)) or "") == len("##[error]") + 4096


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("::set-env name=A::1", "GITHUB_ENV", id="C13"),
        pytest.param("::add-path::/x", "GITHUB_PATH", id="F48"),
        pytest.param("::set-output name=::v", "'name' is missing", id="C14"),
        pytest.param("::save-state::v", "'name' is missing", id="state"),
        pytest.param("::remove-matcher::", "either an owner", id="matcher-none"),
        pytest.param("::remove-matcher owner=a::b", "either an owner", id="matcher-both"),
        pytest.param("::add-matcher::", "value is missing", id="matcher-file"),
    ],
)
def test_a_refusal_says_why(line: str, words: str) -> None:
    assert words in (refusal(command(line)) or "")


def test_F48_what_is_allowed_is_not_refused() -> None:
    assert refusal(command("::set-env name=A::1"), unsecure=True) is None
    assert refusal(command("::set-output name=x::1")) is None
    assert refusal(command("::remove-matcher owner=a::")) is None


@pytest.mark.parametrize(
    ("policy", "own_machine", "strict", "allowed"),
    [
        (None, True, False, True),
        (None, False, False, False),
        (True, False, False, True),
        (False, True, False, False),
        (None, False, True, True),
        (False, False, True, False),
    ],
)
def test_D7_the_word_of_the_job_counts_where_policy_lets_it(
    policy: bool | None, own_machine: bool, strict: bool, allowed: bool
) -> None:
    for word, counts in (("true", True), ("TRUE", True), ("1", True), ("yes", False), ("", False)):
        for runner, job in (
            ({}, {"ACTIONS_ALLOW_UNSECURE_COMMANDS": word}),
            ({"ACTIONS_ALLOW_UNSECURE_COMMANDS": word}, {}),
        ):
            answer = unsecure_allowed(
                runner_env=runner, env_context=job, policy=policy, own_machine=own_machine, strict=strict
            )
            assert answer is (allowed and counts)


def test_secrets_are_not_named_in_the_error_of_a_command() -> None:
    from runyard.engine.commands import refused

    assert refused(command("::add-mask::s3cret"), "why").errors == (
        "Unable to process command 'add-mask' successfully.",
        "why",
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("::error file=a.py, line=3::m", ("a.py", None, None, None, None), id="C9"),
        pytest.param("::error file=a,line=5,endLine=2::m", ("a", None, None, None, None), id="C10"),
        pytest.param("::error file=a,line=5,endLine=6,col=1::m", ("a", 5, 6, None, None), id="C11"),
        pytest.param("::error file=a,endLine=4::m", ("a", 4, 4, None, None), id="C12"),
        pytest.param("::error file=a,line=1,endColumn=4::m", ("a", 1, None, 4, 4), id="end-column"),
        pytest.param("::error file=a,col=4::m", ("a", None, None, None, None), id="column-alone"),
        pytest.param("::error file=a,line=1,col=4,endColumn=2::m", ("a", 1, None, None, None), id="columns"),
        pytest.param("::error file=a,line=x,endLine=9::m", ("a", 9, 9, None, None), id="not-a-number"),
        pytest.param("::error file=a,line=99999999999::m", ("a", None, None, None, None), id="too-large"),
        pytest.param("::error::m", (None, None, None, None, None), id="C22"),
    ],
)
def test_the_place_of_an_annotation(line: str, expected: tuple[object, ...]) -> None:
    made = annotation(command(line), step=2, time_ns=7)
    assert (made.file, made.line, made.end_line, made.col, made.end_column) == expected
    assert (made.step, made.level, made.message, made.time_ns) == (2, "error", "m", 7)


def test_a_path_is_made_local_or_left_out() -> None:
    parsed = command("::warning file=/w/a.py,title=T::m")
    assert annotation(parsed, step=1, time_ns=1, localise=lambda path: path[3:]).file == "a.py"
    without = annotation(parsed, step=1, time_ns=1, localise=lambda _: None)
    assert (without.file, without.title) == (None, "T")


def test_the_checks_go_in_their_order() -> None:
    assert checked_places(5, 2, 1, None) == (None, None, None, None)
    assert checked_places(5, 5, 3, 1) == (5, 5, None, None)


def test_F46_an_unfinished_last_line_counts() -> None:
    assert read("::notice::unterminated") == [command("::notice::unterminated")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_line_end_ends_a_line(end: str) -> None:
    found = read(f"50%{end}::warning::w{end}text{end}")
    assert found == [f"50%{end}".encode(), command("::warning::w"), f"text{end}".encode()]
    assert read(f"50%{end}::warning::w{end}text{end}", size=1) == found


def test_a_quiet_prompt_is_let_go_and_the_rest_of_its_line_is_text() -> None:
    reader = CommandReader()
    assert list(reader.feed(b"Password: ")) == []
    assert reader.release() == b"Password: "
    assert reader.release() == b""
    assert list(reader.feed(b"::error::x\n::error::y\n")) == [b"::error::x\n", command("::error::y")]


@pytest.mark.parametrize("held", [b"  ", b":", b"::err", b"  ::", b"a ##[", b"a #", b"a ##"])
def test_what_may_become_a_command_is_not_let_go(held: bytes) -> None:
    reader = CommandReader()
    assert list(reader.feed(held)) == []
    assert reader.release() == b""


def test_a_line_without_end_goes_on_in_bounded_memory() -> None:
    reader, size, given = CommandReader(), 0, 40
    for _ in range(given):
        size += sum(len(piece) for piece in reader.feed(b"x" * 16384) if isinstance(piece, bytes))
        assert reader._waiting <= MAX_PENDING_BYTES + 16384
    size += sum(len(piece) for piece in reader.flush() if isinstance(piece, bytes))
    assert size == given * 16384


def test_a_long_command_is_held_whole() -> None:
    value = "v" * 1_000_000
    (found,) = read(f"::set-output name=a::{value}\n", size=65536)
    assert isinstance(found, Command)
    assert found.data == value


def test_hostile_bytes_pass_unchanged() -> None:
    data = b"\xff\xfe ::\x00\n\xff::error::x\n##[\xffx]\r\r\n\x85"
    assert b"".join(piece for piece in read(data) if isinstance(piece, bytes)) == data


def test_names_that_are_not_registered_stay_text() -> None:
    reader = CommandReader(names=COMMANDS - {"notice"})
    assert read("::notice::x\n", reader) == [b"::notice::x\n"]


_LINES = st.lists(
    st.sampled_from(
        [
            "::error::a",
            "  ::notice::b",
            "x ##[warning]c",
            "a::b",
            "::x::",
            "##[",
            "",
            "::stop-commands::tok",
            "::tok::",
            "::echo::on",
            "::group::g",
            "plain",
            "ä::",
        ]
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(_LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 11))
@example(["::echo::on", "::group::g"], "\r\n", 1)
def test_any_cut_finds_the_same(lines: list[str], end: str, size: int) -> None:
    text = "".join(line + end for line in lines)
    assert read(text, size=size) == read(text)


@settings(max_examples=60, deadline=None)
@given(_LINES, st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_large_block_is_read_like_small_ones(lines: list[str], end: str) -> None:
    text = "".join(line + end for line in [*lines, *["filler" * 20] * 50, *lines])
    assert len(text) > 4096
    assert read(text) == read(text, size=97)
