"""Configuration files: every problem at once, each with its place; units; layers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runyard.config import (
    ConfigError,
    Duration,
    Origin,
    Size,
    decode,
    duration_text,
    layered,
    parse_duration,
    parse_size,
    read,
    size_text,
)
from runyard.config.toml import index
from runyard.job import InputError


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int = 1
    wait: Duration = Duration(5)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    listen: str
    poll: Duration = Duration(55)
    budget: Size | None = None
    labels: tuple[str, ...] = ()
    pool: tuple[Pool, ...] = ()
    limits: dict[str, Pool] = {}
    main: Pool | None = None


FILE = b"""# a server
listen = "127.0.0.1:8080"
poll = "1min30s"   # with a unit
budget = "2GiB"
labels = [
  "one",  # first
  "two",
]

[main]
name = "main"

[[pool]]
name = "a"
size = 2

[[pool]]
name = "b"
wait = "500ms"

[limits.big]
name = "big"
"""


def test_a_whole_file_is_read() -> None:
    server = decode(read(FILE, "s.toml"), Server)
    assert server == Server(
        listen="127.0.0.1:8080",
        poll=Duration(90),
        budget=Size(2 << 30),
        labels=("one", "two"),
        main=Pool(name="main"),
        pool=(Pool(name="a", size=2), Pool(name="b", wait=Duration(0.5))),
        limits={"big": Pool(name="big")},
    )


def test_every_problem_is_said_at_once_with_its_place() -> None:
    wrong = FILE.replace(b'"1min30s"', b"90").replace(b"budget", b"bugdet").replace(b"size = 2", b'size = "two"')
    wrong = wrong.replace(b'name = "b"', b"nam = 3").replace(b'"one"', b"1")
    with pytest.raises(ConfigError) as error:
        decode(read(wrong, "s.toml"), Server)
    assert [str(problem) for problem in error.value.problems] == [
        "s.toml:3:1: poll: expected text with a unit, as in 90s",
        "s.toml:4:1: bugdet: no such key; did you mean budget?",
        "s.toml:5:1: labels: expected text, got a whole number",
        "s.toml:15:1: pool[0].size: expected a whole number, got text",
        "s.toml:17:1: pool[1]: name is missing",
        "s.toml:18:1: pool[1].nam: no such key; did you mean name?",
    ]
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b"a = 1\nb = = 2\n", 2, 5),
        (b"a = 1\na = 2\n", 2, 6),
        (b"[a]\n\xff", 2, None),
        (b'a = "open', 1, None),
        (b"a = " + b"[" * 50000, None, None),
        (b"a" * (5 << 20), None, None),
    ],
)
def test_what_is_no_toml_is_said_with_its_place(data: bytes, line: int | None, column: int | None) -> None:
    with pytest.raises(InputError) as error:
        read(data, "bad.toml")
    assert error.value.path == "bad.toml"
    assert (error.value.line, error.value.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("a.b.c = 1\n", ("a", "b", "c"), (1, 1)),
        ("[x.'y z'.\"q\"]\nk = 1", ("x", "y z", "q", "k"), (2, 1)),
        ("t = { a = 1, b = [ { c = 2 } ] }", ("t", "b", 0, "c"), (1, 22)),
        ('m = """\n[no]\nk = 1\n"""\nz = 2', ("z",), (5, 1)),
        ("m = '''\n# no\n''' # yes\nz = 2", ("z",), (4, 1)),
        ('s = "a \\" # ] b" # c\n[t]\nk = 1', ("t", "k"), (3, 1)),
        ("[[l]]\n[[l]]\n[l.in]\nk = 1", ("l", 1, "in", "k"), (4, 1)),
        ("[[l]]\n[[l.m]]\nk=1\n[[l]]\n[[l.m]]\n[[l.m]]\n  k = 2", ("l", 1, "m", 1, "k"), (7, 3)),
        ("a = 2030-01-02T03:04:05Z\nb = [1,\n 2, # x\n 3]\r\nc = 1", ("c",), (5, 1)),
    ],
)
def test_where_keys_stand(text: str, path: tuple[str | int, ...], place: tuple[int, int]) -> None:
    read(text.encode(), "x.toml")
    assert index(text)[path] == place


_KEY = st.text(alphabet="abc-_1", min_size=1, max_size=4)
_TEXT = st.text(alphabet="ab\"'\\#[]{}=,. ", max_size=8)


@given(st.dictionaries(_KEY, st.one_of(st.integers(0, 9), _TEXT, st.lists(_TEXT, max_size=3)), max_size=6))
def test_every_key_of_a_generated_table_has_its_line(table: dict[str, object]) -> None:
    def written(value: object) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(map(written, value)) + "]"
        return msgspec.json.encode(value).decode()

    text = "".join(f"{key} = {written(value)}\n" for key, value in table.items())
    assert read(text.encode(), "x").value == table
    places = index(text)
    for number, key in enumerate(table, 1):
        assert places[key,] == (number, 1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("2d", 172800), ("0", 0), ("500ms", 0.5), ("1.5 min", 90)]
)
def test_durations(text: str, seconds: float) -> None:
    assert float(parse_duration(text)) == seconds


@pytest.mark.parametrize("text", ["", "90", "s", "1 hour ago", "-5s", "5s5", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "size"), [("512MiB", 512 << 20), ("20GB", 20 * 10**9), ("4g", 4 << 30), ("0", 0)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "10", "GB", "-1k", "1XB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


@given(st.integers(0, 10**7))
def test_what_is_written_reads_back(number: int) -> None:
    assert int(parse_duration(duration_text(number))) == number
    assert int(parse_size(size_text(number))) == number


def test_flags_come_before_variables_before_the_file() -> None:
    document = read(b'listen = "file"\npoll = "3s"\nbudget = "1k"\n', "s.toml")
    server, origins = layered(
        Server,
        flags={"listen": "flag", "poll": None},
        environ={"RUNYARD_LISTEN": "variable", "RUNYARD_POLL": "2s", "RUNYARD_LABELS": "a, b"},
        document=document,
        prefix="RUNYARD_",
    )
    assert (server.listen, server.poll, server.budget, server.labels) == ("flag", 2.0, 1024, ("a", "b"))
    assert origins["listen"] == Origin("flag", "--listen")
    assert origins["poll"] == Origin("variable", "RUNYARD_POLL")
    assert origins["budget"] == Origin("file", "s.toml:3")
    assert origins["main"] == Origin("default", "")


def test_wrong_variables_and_missing_keys_are_said_together() -> None:
    with pytest.raises(ConfigError) as error:
        layered(Server, flags={}, environ={"RUNYARD_POLL": "soon"}, document=None, prefix="RUNYARD_")
    assert [problem.key for problem in error.value.problems] == ["listen", "poll"]
    assert "--listen" in str(error.value)
