"""The capabilities page is true: rows that work name tests that exist and are not skipped without condition.

A name is `file::test`, `file::Class::test` or `file::Class`, and a test may have `[case]`: one case of a parametrized
test, or the beginning of its id. Nothing is collected or run here, so cases are looked for among the texts of the file,
and a case of the conformance suite among the functions that `@case` and `@needs` put into its table.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tools.make_docs import capability_rows

from corpus_path import shared_root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

ROWS = capability_rows()
NAMED = sorted({test for row in ROWS.values() for test in row.get("tests", ())})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, read once."""
    return ast.parse(path.read_text("utf-8"))


def definitions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Functions and classes of a body with their names as node ids have them, also those in branches of an `if`.

    `TestName = Machine.TestCase`, which is how a state machine becomes a test, counts as a class.
    """
    for node in body:
        if isinstance(node, ast.If):
            yield from definitions([*node.body, *node.orelse], owner)
        elif isinstance(node, Function):
            yield owner + node.name, node
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".TestCase"):
            yield owner + ast.unparse(node.targets[0]), ast.ClassDef("", [], [], [], [])
        elif isinstance(node, ast.ClassDef):
            yield owner + node.name, node
            yield from definitions(node.body, f"{owner}{node.name}::")


def is_skip(mark: ast.expr) -> bool:
    """Whether a mark skips in any case: `mark.skip`, not `mark.skipif`."""
    return re.search(r"\bmark\.skip\b", ast.unparse(mark)) is not None


def begins_with_skip(node: Function) -> bool:
    """Whether the first thing a test does is to skip itself."""
    statements = [
        each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    return bool(statements) and ast.unparse(statements[0]).startswith("pytest.skip(")


def always_skipped(module: ast.Module, name: str) -> bool:
    """Whether the test `name` (with its class) is skipped whatever the machine is."""
    for node in module.body:
        named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        if named and isinstance(node, ast.Assign) and is_skip(node.value):
            return True
    parts = name.split("::")
    owners = {"::".join(parts[: count + 1]) for count in range(len(parts))}
    for found, node in definitions(module.body):
        if found in owners and any(is_skip(mark) for mark in node.decorator_list):
            return True
        if found == name and isinstance(node, Function) and begins_with_skip(node):
            return True
    return False


@functools.cache
def texts(path: Path) -> frozenset[str]:
    """Texts of a file that may be ids of cases, and the cases of the conformance suite where the file runs that."""
    module = parsed(path)
    found = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1].startswith("conformance"):
            found |= cases(path.parent / f"{(node.module or '').split('.')[-1]}.py")
    return frozenset(found)


@functools.cache
def cases(path: Path) -> frozenset[str]:
    """The names of a conformance suite's cases."""
    return frozenset(
        node.name
        for node in ast.walk(parsed(path))
        if isinstance(node, Function)
        and any(re.match(r"(case$|needs\()", ast.unparse(mark)) for mark in node.decorator_list)
    )


def what_is_wrong(named: str) -> str | None:
    """None for a node id below tests/ that exists and is not always skipped."""
    file, _, rest = named.partition("::")
    test, _, case = rest.partition("[")
    path = ROOT / "tests" / file
    if not path.is_file():
        return "no such file"
    last = test.split("::")[-1]
    if not last.startswith(("test_", "Test")):
        return "names no test"
    found = dict(definitions(parsed(path).body)).get(test)
    if not isinstance(found, Function if last.startswith("test_") else ast.ClassDef):
        return "no such test"
    if always_skipped(parsed(path), test):
        return "is always skipped"
    if case:
        wanted = case.removesuffix("]")
        parametrized = any("parametrize" in ast.unparse(mark) for mark in found.decorator_list)
        if not parametrized:
            return "has no cases"
        if not any(text == wanted if case.endswith("]") else text.startswith(wanted) for text in texts(path)):
            return "no such case"
    return None


def test_every_row_of_the_reference_table_has_a_state() -> None:
    table = shared_root() / "design" / "capabilities.md"
    if not table.is_file():
        pytest.skip("the reference table is not beside this checkout")
    wanted = re.findall(r"^\| (S\d-\d+[a-z]?)", table.read_text("utf-8"), re.MULTILINE)
    assert len(wanted) == 590
    assert sorted(set(wanted) - set(ROWS)) == []
    assert [name for name in ROWS if name not in set(wanted) and not name.startswith("R-")] == []


def test_named_tests_exist_and_are_not_skipped() -> None:
    assert {name: wrong for name in NAMED if (wrong := what_is_wrong(name)) is not None} == {}


def test_a_row_of_our_own_is_numbered_and_says_what_it_is() -> None:
    own = [name for name in ROWS if name.startswith("R-")]
    assert [name[:5] for name in own] == [f"R-{number:02d} " for number in range(1, len(own) + 1)]
    assert [name for name in own if len(name) < 12] == []


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("sandbox/test_conformance.py::test_bubblewrap_as_root[a_second_close_is_quiet]", None),
        ("sandbox/test_conformance.py::test_bubblewrap_as_root[a_second_close", None),
        ("sandbox/test_conformance.py::test_bubblewrap_as_root[a_third_close_is_quiet]", "no such case"),
        ("sandbox/test_conformance.py::test_bubblewrap_as_nobody", "no such test"),
        ("run/test_machine.py::TestRuns", None),
        ("run/test_machine.py::TestWalks", "no such test"),
        ("sandbox/test_conformance.py::test_bubblewrap_as_root[cpu_time_is_limited]", None),
        ("sandbox/test_nothing.py::test_bubblewrap_as_root", "no such file"),
        ("sandbox/conformance.py::a_second_close_is_quiet", "names no test"),
        ("house/test_capabilities.py::test_named_tests_exist_and_are_not_skipped[x]", "has no cases"),
    ],
)
def test_names_are_judged(named: str, wrong: str | None) -> None:
    assert what_is_wrong(named) == wrong


@pytest.mark.parametrize(
    ("source", "skipped"),
    [
        ("def test_a(): pass", False),
        ("@pytest.mark.skip\ndef test_a(): pass", True),
        ("@pytest.mark.skip(reason='never')\ndef test_a(): pass", True),
        ("@pytest.mark.skipif(True, reason='sometimes')\ndef test_a(): pass", False),
        ("pytestmark = [pytest.mark.timeout(3), pytest.mark.skip('all')]\ndef test_a(): pass", True),
        ("def test_a():\n    '''Why.'''\n    pytest.skip('never')", True),
        ("def test_a():\n    if x:\n        pytest.skip('sometimes')", False),
        ("if x:\n    @pytest.mark.skip\n    def test_a(): pass", True),
    ],
)
def test_what_is_always_skipped(source: str, skipped: bool) -> None:
    assert always_skipped(ast.parse(source), "test_a") is skipped


def test_a_class_that_is_skipped_skips_its_tests() -> None:
    module = ast.parse("@pytest.mark.skip('all')\nclass TestMore:\n    def test_a(self): pass")
    assert always_skipped(module, "TestMore::test_a")
