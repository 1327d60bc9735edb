"""`hashFiles` (job-semantics 14): patterns, order, links, and a reader that never leaves its directory.

What a pattern takes was checked name by name against the toolkit's own library; the tables here keep what was seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.engine.glob_patterns import Matcher, read_part, read_patterns, search_paths
from runyard.engine.hash_files import Entry, Found, Kind, hash_files
from runyard.engine.workspace_tree import WorkspaceTree, hash_directory
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKSPACE = "/home/runner/work/r/r"


class Memory:
    """A tree of names to contents: a text is a file, None a broken link, `@path` in a text a link."""

    def __init__(self, files: dict[str, str | None]) -> None:
        self.files = {f"{WORKSPACE}/{name}": content for name, content in files.items()}
        self.folders = {WORKSPACE}
        for path in self.files:
            while (path := path.rpartition("/")[0]) not in {"", "/"}:
                self.folders.add(path)
        self.read: list[str] = []

    def kind(self, path: str) -> Kind | None:
        if path in self.folders:
            return "directory"
        if path not in self.files:
            return None
        return "file" if self.files[path] is not None else "link"

    def target(self, path: str) -> tuple[str, Kind] | None:
        kind = self.kind(path)
        return None if kind in {None, "link"} else (path, kind or "file")

    def entries(self, path: str) -> Sequence[Entry]:
        self.read.append(path.removeprefix(WORKSPACE))
        names = {each[len(path) + 1 :].partition("/")[0] for each in self.files if each.startswith(path + "/")}
        return [Entry(name, self.kind(f"{path}/{name}") or "other") for name in sorted(names, key=os.fsencode)]

    def digest(self, path: str) -> bytes:
        return hashlib.sha256((self.files[path] or "").encode()).digest()


def found(files: str | dict[str, str | None], *arguments: str) -> list[str]:
    tree = Memory(dict.fromkeys(files.split(), "x") if isinstance(files, str) else files)
    answer = hash_files(tree, arguments, workspace=WORKSPACE, home="/home/runner")
    return [path.removeprefix(WORKSPACE + "/") for path in answer.files]


def answer(files: dict[str, str | None], *arguments: str) -> str:
    return hash_files(Memory(files), arguments, workspace=WORKSPACE).hash


def test_O27_nothing_matches() -> None:
    assert answer({"f": "hello\n"}, "none/**") == ""


def test_O28_the_hash_of_one_file_is_hashed_once_more() -> None:
    assert answer({"f": "hello\n"}, "f") == "ecb65bb98f9d905b70458986c39fcbad7715e5f2fcc3b1f07767d7c83e2438cc"


def test_O29_no_brace_expansion() -> None:
    assert found("a.js a.ts", "*.{js,ts}") == []
    assert found("a.js a.{js,ts}", "*.{js,ts}") == ["a.{js,ts}"]


def test_two_files_are_two_digests_in_order_and_names_do_not_count() -> None:
    expected = "b3e00007a221fb65fa01a1d9b968f4b3f290fe1f8a53061187adb40118314e5f"
    assert answer({"1": "one\n", "2": "two\n"}, "*") == expected
    assert answer({"a": "one\n", "b": "two\n"}, "a", "b") == expected
    assert answer({"b": "one\n", "a": "two\n"}, "b", "a") == expected
    assert answer({"a": "one\n", "b": "two\n"}, "b", "a") != expected


ORDER = [
    ("b a c", ["*"], ["a", "b", "c"]),
    ("b a c", ["c", "a"], ["c", "a"]),
    ("b a c", ["c", "*"], ["a", "b", "c"]),
    ("d/x d/y a z", ["**"], ["a", "d/x", "d/y", "z"]),
    ("a/b.txt a.txt ab/c", ["**"], ["a/b.txt", "a.txt", "ab/c"]),
    ("B a é z 😀", ["*"], ["B", "a", "z", "é", "😀"]),
    ("x/1 y/2 x/3", ["y/*", "x/*"], ["y/2", "x/1", "x/3"]),
    ("x/1 y/2 x/3", ["y/*\nx/*"], ["y/2", "x/1", "x/3"]),
]


@pytest.mark.parametrize(("files", "arguments", "expected"), ORDER)
def test_order(files: str, arguments: list[str], expected: list[str]) -> None:
    assert found(files, *arguments) == expected


MATCHES = [
    ("a b/a b/c/a ab", ["**/a"], ["a", "b/a", "b/c/a"]),
    ("d/x/y d/z e", ["d"], ["d/x/y", "d/z"]),
    ("d/x/y d/z e", ["d/"], ["d/x/y", "d/z"]),
    ("d e/x", ["d/"], []),
    ("d/x/y d/z", ["d/*"], ["d/x/y", "d/z"]),
    ("d/x/y d/z", ["d/**/y"], ["d/x/y"]),
    ("a/b a/c/b", ["a/**/b"], ["a/b", "a/c/b"]),
    (".a .b/c d", ["*"], [".a", ".b/c", "d"]),
    (".a d", ["?a"], [".a"]),
    ("a b", ["."], ["a", "b"]),
    ("a d/a", ["./a"], ["a"]),
    ("a b", [f"{WORKSPACE}/a"], ["a"]),
    ("a d/b", ["/home/**"], ["a", "d/b"]),
    ("a d/b", ["/home/*/work/*/r/a"], ["a"]),
    ("a", ["/etc/**"], []),
    ("a", ["/home/runner/work/r/other"], []),
    ("a", ["~/work/**/a"], ["a"]),
    ("a b c", ["*", "!b"], ["a", "c"]),
    ("a b c", ["!b", "*"], ["a", "b", "c"]),
    ("a b c", ["*", "!b", "b"], ["a", "b", "c"]),
    ("a b", ["!!a"], ["a"]),
    ("a b", ["! ! a"], ["a"]),
    ("a b", ["!a"], []),
    ("d/a d/b e", ["**", "!d"], ["e"]),
    ("d/a d/b e", ["**", "!d/"], ["e"]),
    ("d/a d/b", ["**", "!d/a"], ["d/b"]),
    ("a #b", ["#b\n\n  \n a "], ["a"]),
    ("#b x", ["\\#b"], ["#b"]),
    ("a b c", ["[ab]"], ["a", "b"]),
    ("a b c", ["[!a]"], ["b", "c"]),
    ("a b c", ["[^a]"], ["b", "c"]),
    ("a b c", ["[a-b]"], ["a", "b"]),
    ("a b [b-a]", ["[b-a]"], ["[b-a]"]),
    ("a [a", ["[a"], ["[a"]),
    ("] a", ["[]]"], []),
    ("] a", ["[]a]"], []),
    ("] a", ["**/[]a]"], ["]", "a"]),
    ("[ [x", ["[*"], ["[x"]),
    ("*a xa", ["\\*a"], ["*a"]),
    ("*a xa", ["[*]a"], ["*a"]),
    ("a\\b", ["a\\b"], []),
    ("a\\b", ["a\\\\b"], ["a\\b"]),
    ("a\\", ["a\\"], ["a\\"]),
    ("+(a) a", ["+(a)"], ["+(a)"]),
    ("@c c", ["\\@c"], ["@c"]),
    ("A a", ["a"], ["a"]),
    ("😀 ab a", ["??"], ["ab", "😀"]),
    ("a**b axxb", ["a**b"], ["a**b", "axxb"]),
    ("a b", [""], []),
    ("a b", [], []),
]


@pytest.mark.parametrize(("files", "arguments", "expected"), MATCHES)
def test_match(files: str, arguments: list[str], expected: list[str]) -> None:
    assert found(files, *arguments) == expected


@pytest.mark.parametrize("pattern", ["../a", "a/../b", "a/./b", "/./a", "a/[.]", "!", "a/b/.."])
def test_a_pattern_that_is_wrong(pattern: str) -> None:
    with pytest.raises(InputError):
        found("a", pattern)


def test_options_come_first() -> None:
    assert found("a", "--follow-symbolic-links", "a") == ["a"]
    assert found("a", "--FOLLOW-symbolic-links", "a") == ["a"]
    assert found("a", "--follow-symbolic-links") == []
    assert found("a --x", "a", "--x") == ["a", "--x"]
    with pytest.raises(InputError, match="--nope"):
        found("a", "--nope", "a")


def test_a_home_is_needed_for_a_tilde_only() -> None:
    with pytest.raises(InputError, match="home"):
        hash_files(Memory({"a": "x"}), ["~/a"], workspace=WORKSPACE)
    assert hash_files(Memory({"~a": "x"}), ["~a"], workspace=WORKSPACE).hash


def test_only_directories_that_can_match_are_read() -> None:
    tree = Memory(dict.fromkeys(["src/a.lock", "node_modules/x/y", "src/deep/er/b", "docs/c"], "x"))
    hash_files(tree, ["src/*.lock"], workspace=WORKSPACE)
    assert tree.read == ["/src"]
    tree.read.clear()
    hash_files(tree, ["*/*.lock"], workspace=WORKSPACE)
    assert tree.read == ["", "/docs", "/node_modules", "/src"]


def test_a_workspace_with_wildcards_in_its_name() -> None:
    patterns = read_patterns("*.lock", workspace="/w[1]/a*b?", home=None)
    assert patterns[0].search == "/w[1]/a*b?"
    matcher = Matcher(patterns)
    progress = matcher.start()
    for name in ("w[1]", "a*b?", "x.lock"):
        progress = matcher.step(progress, name)
    assert matcher.matches(progress)


def test_search_paths_leave_out_what_is_below_another() -> None:
    patterns = read_patterns("a/b/*\n!c/*\na\nd/e*\nd", workspace="/w", home=None)
    assert search_paths(patterns) == ("/w/a", "/w/d")
    assert search_paths(read_patterns("a/*\n/**", workspace="/w", home=None)) == ("/",)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab*?[]!^-\\.{}()+@|", max_size=12), st.text(alphabet="ab[]-*.", min_size=1, max_size=6))
def test_reading_any_name_of_a_pattern_ends_well(pattern: str, name: str) -> None:
    part = read_part(pattern)
    if not isinstance(part, (str, tuple)):
        part.fullmatch(name)


@pytest.mark.timeout(20)
def test_many_wildcards_take_no_time() -> None:
    part = read_part("*a" * 100 + "b")
    assert not isinstance(part, (str, tuple))
    assert part.fullmatch("a" * 255) is None
    names = dict.fromkeys(["a/" * 40 + "x"], "x")
    assert found(dict(names), "/".join(["**", "a"] * 20 + ["y"])) == []


# --- a real directory ----------------------------------------------------------------------------------------------


def at(folder: Path, *arguments: str, seen_as: str | None = None) -> Found:
    with WorkspaceTree(folder if seen_as != "/" else "/", seen_as=seen_as or str(folder)) as tree:
        return hash_files(tree, arguments, workspace=str(folder))


def names(folder: Path, *arguments: str, seen_as: str | None = None) -> list[str]:
    return [path.removeprefix(f"{folder}/") for path in at(folder, *arguments, seen_as=seen_as).files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with links of every kind, and a secret beside it."""
    workspace = tmp_path / "ws"
    (workspace / "d" / "e").mkdir(parents=True)
    (workspace / "a").write_text("hello\n")
    (workspace / "d" / "b").write_text("b")
    (workspace / "d" / "e" / "c").write_text("c")
    (workspace / "to_file").symlink_to("a")
    (workspace / "to_folder").symlink_to("d")
    (workspace / "d" / "back").symlink_to("..")
    (tmp_path / "secret").write_text("s")
    return workspace


def test_files_of_a_directory(folder: Path) -> None:
    assert names(folder, "**") == ["a", "d/b", "d/e/c", "to_file"]
    assert at(folder, "a").hash == at(folder, "to_file").hash
    assert hash_directory(folder, ["a"], workspace=WORKSPACE) == at(folder, "a").hash


def test_a_link_to_a_directory_is_passed_over_but_not_on_the_way(folder: Path) -> None:
    assert names(folder, "to_folder", "to_folder/**", "to_folder/*") == []
    assert names(folder, "to_folder/b") == ["to_folder/b"]


def test_links_are_followed_where_that_is_asked_for(folder: Path) -> None:
    assert names(folder, "--follow-symbolic-links", "to_folder") == [
        "to_folder/b",
        "to_folder/back/a",
        "to_folder/back/to_file",
        "to_folder/e/c",
    ]
    assert names(folder, "--follow-symbolic-links", "**") == [  # `back` is the workspace again, so it is left out
        "a",
        "d/b",
        "d/e/c",
        "to_file",
        "to_folder/b",
        "to_folder/e/c",
    ]


def test_a_matching_link_to_nothing_is_an_error(folder: Path) -> None:
    (folder / "broken").symlink_to("nowhere")
    with pytest.raises(InputError, match="broken"):
        at(folder, "*")
    assert names(folder, "a") == ["a"]
    assert names(folder, "--follow-symbolic-links", "broken", "a") == ["a"]


@pytest.mark.parametrize("target", ["../secret", "../../../../../../../etc/hostname", "/etc/passwd", "d/../../secret"])
def test_no_link_leads_out_of_the_directory(folder: Path, target: str) -> None:
    (folder / "out").symlink_to(target)
    for arguments in (["out"], ["--follow-symbolic-links", "*"]):
        with pytest.raises(InputError, match="out of the workspace"):
            at(folder, *arguments)


def test_a_directory_link_out_is_not_entered(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    with pytest.raises(InputError, match="out of the workspace"):
        at(folder, "up/secret")
    with pytest.raises(InputError, match="out of the workspace"):
        at(folder, "--follow-symbolic-links", "up/**")


def test_where_the_directory_is_all_there_is_links_lead_anywhere_in_it(folder: Path) -> None:
    (folder / "out").symlink_to("../secret")
    (folder / "absolute").symlink_to(str(folder / "d" / "b"))
    assert names(folder, "out", "absolute", seen_as="/") == ["out", "absolute"]
    assert names(folder, "absolute") == ["absolute"]


def test_absolute_links_mean_what_the_job_sees(folder: Path) -> None:
    (folder / "link").symlink_to(f"{WORKSPACE}/d/b")
    assert hash_directory(folder, ["link"], workspace=WORKSPACE) == at(folder, "d/b").hash


def test_links_in_a_circle_are_an_error(folder: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    with pytest.raises(InputError, match="can't be read"):
        at(folder, "one")


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="no regular file"):
        at(folder, "*")
    with WorkspaceTree(folder, seen_as=WORKSPACE) as tree, pytest.raises(InputError, match="no regular file"):
        tree.digest(f"{WORKSPACE}/pipe")


def test_a_name_that_is_no_text_is_an_error_where_it_may_match(folder: Path) -> None:
    (folder / "d" / os.fsdecode(b"\xff")).write_text("x")
    assert names(folder, "a") == ["a"]
    with pytest.raises(InputError, match="UTF-8"):
        at(folder, "d/*")


def test_below_a_file_is_nothing_and_that_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError, match="Not a directory"):
        at(folder, "a/b")
    assert names(folder, "a/*") == []


def test_time_is_bounded(folder: Path) -> None:
    with pytest.raises(InputError, match="longer than"):
        hash_directory(folder, ["**"], workspace=WORKSPACE, seconds=-1)


def test_a_workspace_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        hash_directory(tmp_path / "none", ["**"], workspace=WORKSPACE)


def test_no_descriptor_is_left_open(folder: Path) -> None:
    (folder / "out").symlink_to("../secret")
    before = _open_descriptors()
    for arguments in (["**"], ["out"], ["a/b"], ["--follow-symbolic-links", "d/**"]):
        with contextlib.suppress(InputError):
            at(folder, *arguments)
    assert _open_descriptors() == before


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
