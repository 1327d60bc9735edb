"""The words of the `sh` supervisor, and what is made of its answers."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.sandbox import sh_frame
from runyard.sandbox.contract import FileBack, FileIn, FileOut, StepCommand

SHELLS = [
    words for words in (["sh"], ["dash"], ["busybox", "ash"], ["bash", "--posix"]) if shutil.which(words[0]) is not None
]
STAT = "41 (a (b) c) S 1 41 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7777 1 1"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_any_bytes_are_printed_by_every_shell(shell: list[str]) -> None:
    data = bytes(range(256)) * 2 + b"-n 100% \\101 'quoted' $HOME `x`\r\n"
    for part in (data, b"-leading", b"", b"\0", b"%"):
        told = subprocess.run([*shell, "-c", sh_frame._print(part)], capture_output=True, check=True, timeout=10)
        assert told.stdout == part


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), max_size=60))
def test_a_quoted_word_is_one_word(text: str) -> None:
    program = f"printf %s {sh_frame.quote(text)}"
    told = subprocess.run(["/bin/sh", "-c", program], capture_output=True, check=True, timeout=10)
    assert told.stdout.decode() == text


def test_a_nul_is_refused_before_anything_is_sent() -> None:
    for command in (
        StepCommand(argv=("a\0b",)),
        StepCommand(argv=("a",), env={"A": "\0"}),
        StepCommand(argv=("a",), cwd="/\0"),
    ):
        with pytest.raises(ValueError, match="NUL"):
            sh_frame.write_step(1, command)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PATH", True),
        ("_A1", True),
        ("INPUT_A-B", False),
        ("A.B", False),
        ("1A", False),
        ("UID", False),
        ("", False),
        ("Ä", False),
    ],
)
def test_names_that_no_shell_exports(name: str, expected: bool) -> None:
    assert sh_frame.is_exportable({name: "x"}) is expected


def test_a_program_begins_again_in_its_place_and_clears_what_it_was_started_with() -> None:
    program = sh_frame.loop_program("/bin/sh", 3, "END", ("NODE_VERSION", "A-B"), "/bin").decode()
    assert "NODE_VERSION" in program.splitlines()[0]
    assert "A-B" not in program
    assert "trap 'exec /bin/sh \"$R/loop.$L\"' EXIT" in program
    for shell in SHELLS:
        subprocess.run([*shell, "-n"], input=program.encode(), check=True, timeout=10)


def test_a_frame_holds_nothing_but_its_words() -> None:
    command = StepCommand(argv=("env",), env={"A": "it's"}, files_in=(FileIn("/t/x", b"\0", 0o755),))
    frame = sh_frame.write_step(7, command).decode()
    assert "export A='it'\\''s'" in frame
    assert "chmod 755" in frame
    assert "unset PATH" in frame
    assert "(" not in sh_frame.write_step(7, command, run=False).decode().replace("ry_", "")


def answer(*files: FileOut) -> sh_frame.Answer:
    return sh_frame.Answer(tuple(files), "END")


WHOLE = (
    f"run {STAT}\nexit 3\n0m0.010s 0m0.020s\n0m1.500s 0m0.500s\nfile 0 data\n".encode()
    + b"\0raw\nEN\nD\n\nEND\nfile 1 missing\nfile 2 link\nfile 3 empty\ndone\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_answer_may_come_in_any_pieces(size: int) -> None:
    read = answer(FileOut("/a", 100), FileOut("/b", 1), FileOut("/c", 1), FileOut("/d", 1))
    for at in range(0, len(WHOLE), size):
        read.feed(WHOLE[at : at + size])
    told = read.told
    assert (told.pid, told.start, told.code, told.cpu_s, told.done) == (41, 7777, 3, 2.0, True)
    assert told.files == {
        0: FileBack(data=b"\0raw\nEN\nD\n", size=10),
        1: FileBack(problem="missing"),
        2: FileBack(problem="link"),
        3: FileBack(),
    }


def test_one_byte_over_the_limit_is_too_large_and_the_limit_itself_is_not() -> None:
    read = answer(FileOut("/a", 3), FileOut("/b", 3))
    read.feed(b"exit 0\nfile 0 data\nabc\nEND\nfile 1 data\nabcd\nEND\ndone\n")
    assert read.told.files[0].data == b"abc"
    assert read.told.files[1].problem == "too_large"


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n",
        b"exit x\n",
        b"file 9 data\n",
        b"file 0 odd\n",
        b"file\n",
        b"run 1\n",
        b"problem x y\n",
        b"\0\n",
        b"x" * 100_000,
    ],
    ids=["word", "code", "file", "state", "short", "stat", "problem", "nul", "long"],
)
def test_what_no_supervisor_says_is_refused(said: bytes) -> None:
    with pytest.raises(sh_frame.GarbledError):
        answer(FileOut("/a", 10)).feed(said)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_are_refused(said: bytes) -> None:
    read = answer(FileOut("/a", 10))
    try:
        read.feed(said)
    except sh_frame.GarbledError:
        return
    assert all(len(back.data) <= 10 for back in read.told.files.values())
