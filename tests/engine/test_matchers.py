"""Problem matchers: their files, what they find, what they cost, and the pair C24."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.engine.matcher_regex import UnsupportedPatternError, compile_pattern, translate
from runyard.engine.matchers import Issue, MatcherError, Matchers, Removed, annotation_of, parse_timespan

STYLISH = [
    {"regexp": r"^\s*([^\s].*)$", "file": 1},
    {
        "regexp": r"^\s+(\d+):(\d+)\s+(error|warning|info)\s+(.*)\s\s+(.*)$",
        "line": 1,
        "column": 2,
        "severity": 3,
        "message": 4,
        "code": 5,
        "loop": True,
    },
]


def config(*patterns: dict[str, Any], owner: str = "demo", **more: Any) -> bytes:
    return json.dumps({"problemMatcher": [{"owner": owner, "pattern": list(patterns), **more}]}).encode()


def simple(regexp: str, **groups: int) -> dict[str, Any]:
    return {"regexp": regexp, "message": 1, **groups}


def found(matchers: Matchers, text: str | bytes, size: int | None = None) -> list[object]:
    """What comes out, with plain pieces joined; fed in pieces of `size` lines."""
    data = text.encode() if isinstance(text, str) else text
    lines = data.splitlines(keepends=True)
    out: list[Any] = []
    step = size or max(len(lines), 1)
    for at in range(0, len(lines), step):
        for piece in matchers.scan(b"".join(lines[at : at + step])):
            if isinstance(piece, bytes) and out and isinstance(out[-1], bytes):
                out[-1] += piece
            else:
                out.append(piece)
    return out


def test_an_issue_stands_for_its_line() -> None:
    matchers = Matchers()
    pattern = simple(r"^([^:]+):(\d+):(\d+): (\w+) (\w+): (.+)$", file=1, line=2, column=3, severity=4, code=5)
    pattern["message"] = 6
    assert matchers.add(config(pattern)) == ("demo",)
    out = found(matchers, "before\na.py:3:7: Warning W1: bad thing\r\nafter\n")
    assert out == [
        b"before\n",
        Issue(
            owner="demo",
            level="warning",
            message="bad thing",
            line_text="a.py:3:7: Warning W1: bad thing",
            file="a.py",
            line=3,
            column=7,
            code="W1",
        ),
        b"after\n",
    ]


def test_a_loop_keeps_what_the_lines_before_caught() -> None:
    matchers = Matchers()
    matchers.add(config(*STYLISH, owner="eslint-stylish"))
    text = (
        "noise\n/src/a.js\n  1:2  error    No   semi\n  3:4  warning  Other  quotes\n\n"
        "  9:9  error  lost  x\n/src/b.js\n  5:6  error  Third  y\n"
    )
    for size in (None, 1, 2, 3):
        issues = [piece for piece in found(matchers, text, size) if isinstance(piece, Issue)]
        assert [(issue.file, issue.line, issue.level, issue.code) for issue in issues] == [
            ("/src/a.js", 1, "error", "semi"),
            ("/src/a.js", 3, "warning", "quotes"),
            ("/src/b.js", 5, "error", "y"),
        ]


def test_lines_far_from_a_key_are_passed_over() -> None:
    matchers = Matchers()
    matchers.add(config(*STYLISH))
    looked: list[bytes] = []
    look = matchers._look
    matchers._look = lambda line: looked.append(line) or look(line)  # type: ignore[func-returns-value,method-assign]
    found(matchers, "plain\n" * 5000)
    found(matchers, "plain\n" * 50 + "an error here\n" + "plain\n" * 50)
    assert len(looked) <= 5


def test_the_newest_matcher_comes_first_and_resets_the_others() -> None:
    matchers = Matchers()
    matchers.add(config(simple("^err(or .+)$"), owner="old"))
    matchers.add(config({"regexp": "^first$"}, simple("^error (.+)$"), owner="chain"))
    matchers.add(config(simple("^error (.+)$"), owner="new", severity="notice"))
    assert [piece.owner for piece in found(matchers, "first\nerror x\n") if isinstance(piece, Issue)] == ["new"]
    assert matchers.owners == ("new", "chain", "old")
    assert matchers.remove("NEW")
    assert not matchers.remove("new")
    assert [piece.owner for piece in found(matchers, "first\nerror x\n") if isinstance(piece, Issue)] == ["chain"]
    assert [piece.owner for piece in found(matchers, "error x\n") if isinstance(piece, Issue)] == ["old"]


def test_the_same_owner_replaces_whatever_its_case() -> None:
    matchers = Matchers()
    matchers.add(config(simple("^one(.+)$"), owner="Demo"))
    matchers.add(config(simple("^two(.+)$"), owner="dEMO"))
    assert matchers.owners == ("dEMO",)
    assert found(matchers, "one x\n") == [b"one x\n"]


def test_a_severity_nobody_knows_is_not_reported_and_older_matchers_are_tried() -> None:
    matchers = Matchers()
    matchers.add(config(simple("^(.+)$"), owner="all", severity="notice"))
    matchers.add(config({"regexp": "^(fatal|error): (.+)$", "severity": 1, "message": 2}, owner="two"))
    issues = [piece for piece in found(matchers, "fatal: x\nerror: y\n") if isinstance(piece, Issue)]
    assert [(issue.owner, issue.level) for issue in issues] == [("all", "notice"), ("two", "error")]


@pytest.mark.parametrize("line", ["x: \n", "y\n"])
def test_an_empty_message_is_not_reported(line: str) -> None:
    matchers = Matchers()
    matchers.add(config(simple("^x: (.*)$")))
    assert found(matchers, line) == [line.encode()]


def test_lines_of_numbers_only_count_as_places() -> None:
    matchers = Matchers()
    matchers.add(config({"regexp": "^at (.*),(.*): (.*)$", "line": 1, "column": 2, "message": 3}))
    (issue,) = found(matchers, "at 12,x: m\n")
    assert isinstance(issue, Issue)
    assert (issue.line, issue.column) == (12, None)
    made = annotation_of(issue, step=4, time_ns=1)
    assert (made.line, made.col, made.file, made.step, made.level) == (12, None, None, 4, "error")


def test_the_place_of_a_project_travels_with_the_issue() -> None:
    matchers = Matchers()
    matchers.add(
        config({"regexp": r"^(.+) in (.+): (.+)$", "file": 1, "fromPath": 2, "message": 3}, fromPath="top.proj")
    )
    (issue,) = found(matchers, "a.cs in sub/x.csproj: m\n")
    assert isinstance(issue, Issue)
    assert annotation_of(issue, step=1, time_ns=1, localise=lambda file, base: f"{base}|{file}").file == (
        "sub/x.csproj|a.cs"
    )


def test_C24_colour_codes_are_seen_unless_asked_otherwise() -> None:
    line = "\x1b[31mE: bad\x1b[0m\n"
    matchers = Matchers()
    matchers.add(config(simple("^E: (.+)$")))
    assert found(matchers, line) == [line.encode()]
    stripping = Matchers(strip_ansi=True)
    stripping.add(config(simple("^E: (.+)$")))
    (issue,) = found(stripping, line)
    assert isinstance(issue, Issue)
    assert (issue.message, issue.line_text) == ("bad", line.strip("\n"))


def test_a_pattern_that_takes_too_long_is_stopped_and_taken_out() -> None:
    matchers = Matchers(timeout_s=0.01)
    matchers.add(config(simple("^ok (.+)$"), owner="good"))
    matchers.add(config(simple(r"^(?:(\w|\d)+)+: .+$"), owner="hostile"))
    line = "1" * 6000 + " : x\n"
    out = found(matchers, line + "ok fine\n")
    removed = [piece for piece in out if isinstance(piece, Removed)]
    assert [piece.owner for piece in removed] == ["hostile"]
    assert "3 times" in removed[0].warning
    assert matchers.owners == ("good",)
    assert [piece.message for piece in out if isinstance(piece, Issue)] == ["fine"]
    assert b"".join(piece for piece in out if isinstance(piece, bytes)) == line.encode()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(b"{", "can't be read", id="json"),
        pytest.param(b"{}", "problemMatcher", id="empty"),
        pytest.param(config(simple("(.)"), owner=" "), "owner", id="owner"),
        pytest.param(config(simple("(.)"), severity="fatal"), "fatal", id="severity"),
        pytest.param(config(), "no pattern", id="patterns"),
        pytest.param(config({"regexp": "(.)", "file": 1}), "must set 'message'", id="message"),
        pytest.param(config(simple("(.)"), simple("(.)")), "more than one pattern", id="message-twice"),
        pytest.param(config(simple("(.)", loop=True)), "may loop", id="loop-alone"),
        pytest.param(config({"regexp": "a", "loop": True}, simple("(.)")), "may loop", id="loop-first"),
        pytest.param(config(simple("(.)"), {"regexp": "a", "loop": True}), "must set 'message'", id="loop-no-message"),
        pytest.param(config({"regexp": "(.)", "message": 2}), "isn't there", id="group"),
        pytest.param(config(simple("(")), "can't be read|without its", id="regex"),
        pytest.param(config({"regexp": 5, "message": 0}), "can't be read", id="type"),
    ],
)
def test_a_bad_file_is_refused(bad: bytes, words: str) -> None:
    matchers = Matchers()
    with pytest.raises(MatcherError, match=words):
        matchers.add(bad)
    assert matchers.owners == ()


def test_owners_are_unique_in_a_file_and_a_file_can_be_taken_back() -> None:
    one = {"owner": "a", "pattern": [simple("(.)")]}
    with pytest.raises(MatcherError, match="twice"):
        Matchers().add(json.dumps({"problemMatcher": [one, {**one, "owner": "A"}]}).encode())
    matchers = Matchers()
    both = json.dumps({"problemMatcher": [one, {**one, "owner": "b"}]}).encode()
    assert matchers.add(b"\xef\xbb\xbf" + both) == ("a", "b")
    assert matchers.remove_all_of(both) == ("a", "b")
    assert matchers.owners == ()


def test_a_missing_expression_is_the_empty_one() -> None:
    matchers = Matchers()
    matchers.add(config({"file": 0}, simple("^(x)$")))
    assert any(isinstance(piece, Issue) for piece in found(matchers, "any\nx\n"))


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        (r"^a{,3}$", "a{,3}", ()),
        (r"^(?:foo){e<=1}$", "foo{e<=1}", ()),
        (r"^(?<n>x)(y)\k<n>$", "xyx", ("y", "x")),
        (r"^(?'n'x)(y)$", "xy", ("y", "x")),
        (r"^\u001b\[(\d+)m$", "\x1b[31m", ("31",)),
        (r"^\e\cI\x41(.)$", "\x1b\tA!", ("!",)),
        (r"^\_\Q\h(.)$", "_Qhx", ("x",)),
        (r"^[[:x]+$", "[:x", ()),
        (r"^[]a]+$", "]a", ()),
        (r"^[a&&b]+$", "a&b", ()),
        (r"^a(?#note)b\z", "ab", ()),
        (r"^(?=(a))a(?!b)(?:c|d)+?$", "acd", ("a",)),
        (r"^(?i)A(b)$", "aB", ("B",)),
        (r"^(?i:A)(b)$", "ab", ("b",)),
        (r"^x{2}y{1,}z{1,2}$", "xxyz", ()),
        (r"^\d$", "5", ()),
    ],
)
def test_expressions_mean_what_they_mean_there(pattern: str, text: str, groups: tuple[str, ...]) -> None:
    if pattern.startswith("^(?i)"):
        pattern = "(?i)^" + pattern[5:]
    compiled = compile_pattern(pattern)
    match = compiled.search(text)
    assert match
    assert tuple(match[number] for number in compiled.order[1:]) == groups


def test_classes_are_those_of_ascii() -> None:
    assert not compile_pattern(r"^\d$").search("\u0665")
    assert not compile_pattern(r"^\w$").search("ä")


@pytest.mark.parametrize(
    "pattern",
    [
        "a++",
        "a**",
        "(?P<n>a)",
        "(?R)",
        "(?&n)",
        "(?|a|b)",
        "[a-z-[aeiou]]",
        r"\p{IsGreek}",
        "a(?i)b",
        "(?<a-b>c)",
        "(?x)a",
        "*a",
        "a)",
        "[a",
        "(a",
        "\\",
        r"\xZ",
        r"\c!",
        r"\k<",
        "(?#a",
        "a{1234567}",
        "(" * 200,
        "(?<1>a)",
        r"\p{Nothing}",
    ],
)
def test_what_would_mean_something_else_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "clauses"),
    [
        (r"^\s+(\d+):(\d+)\s+(error|warning)\s+x?y+z$", [{":"}, {"error", "warning"}, {"y"}, {"z"}]),
        ("(a|)b", [{"b"}]),
        ("(ab)?c{0,2}", []),
        ("(?i)error", []),
        ("(?!no)yes", [{"yes"}]),
        ("one|two", [{"one", "two"}]),
        ("abc+d", [{"abc"}, {"d"}]),
    ],
)
def test_what_a_line_must_hold(pattern: str, clauses: list[set[str]]) -> None:
    assert [set(clause) for clause in translate(pattern).clauses] == clauses


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:05", 5.0),
        ("1.02:03:04.5", 93784.5),
        ("0:10", 600.0),
        ("2", 172800.0),
        ("", None),
        ("5s", None),
        ("00:61:00", None),
        ("25:00:00", None),
    ],
)
def test_timespans(text: str, seconds: float | None) -> None:
    assert parse_timespan(text) == seconds


def test_a_look_at_one_line_of_a_chain_does_not_count_as_a_look_at_the_chain() -> None:
    matchers = Matchers()
    matchers.add(config({"regexp": "^S$"}, {"regexp": "^MID"}, simple("^END (.+)$"), owner="chain"))
    matchers.add(config(simple("^tool (.+)$"), owner="solo"))
    found(matchers, "x\n" * 4)
    # The second line holds the key of the matcher of one line and is none of its; the block ends there.
    found(matchers, "S\nMID tool \n")
    assert [each.message for each in found(matchers, "END x\n") if isinstance(each, Issue)] == ["x"]


_LINE = st.sampled_from(
    [
        "/a.js",
        "  1:2  error  m  c",
        "  3:4  warning  n  d",
        "",
        "tool error here",
        "HEAD f",
        "START",
        "MID",
        "END x",
        "mid",
        "a\rb",
        "x",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_LINE, max_size=14), st.integers(1, 5), st.integers(0, 14))
def test_passing_lines_over_changes_nothing(lines: list[str], size: int, added_at: int) -> None:
    """Against the same matchers made to look at every line, one by one, with a matcher added on the way."""
    chain = config({"regexp": "^START$"}, {"regexp": "^MID$"}, simple("^END (.+)$"), owner="chain")
    solo = config(simple("^tool (.+)$"), owner="solo")
    keyed_first = config({"regexp": "^HEAD (.+)$", "file": 1}, simple(r"^(\w+)$", loop=True), owner="first")

    def run(step: int, *, every_line: bool) -> list[object]:
        matchers = Matchers()
        matchers.add(config(*STYLISH, owner="stylish"))
        matchers.add(solo)
        matchers.add(keyed_first)
        if every_line:
            matchers.add(config({"regexp": r"^\u0001$", "message": 0}, owner="keyless"))
            assert matchers._look_at_all
        head = found(matchers, "".join(line + "\n" for line in lines[:added_at]), step)
        matchers.add(chain)
        return head + found(matchers, "".join(line + "\n" for line in lines[added_at:]), step)

    def issues(out: list[object]) -> list[object]:
        return [piece for piece in out if isinstance(piece, Issue)]

    assert issues(run(size, every_line=False)) == issues(run(1, every_line=True))
