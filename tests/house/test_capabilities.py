"""The capabilities page is true: rows that work name tests that exist and are not skipped without condition."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tools.make_docs import capability_rows

from corpus_path import shared_root

ROOT = Path(__file__).resolve().parents[2]

ROWS = capability_rows()
NAMED = sorted({test for row in ROWS.values() for test in row.get("tests", ())})


def _names(path: Path) -> set[str]:
    """Test functions of a file, with their class, except those marked to be skipped always."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        inside = [(node.name, inner) for inner in node.body] if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.Module):
            inside = [("", inner) for inner in node.body]
        for owner, inner in inside:
            if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any("mark.skip(" in ast.unparse(mark) for mark in inner.decorator_list):
                continue
            found.add(f"{owner}::{inner.name}" if owner else inner.name)
    return found


def test_every_row_of_the_reference_table_has_a_state() -> None:
    table = shared_root() / "design" / "capabilities.md"
    if not table.is_file():
        pytest.skip("the reference table is not beside this checkout")
    wanted = re.findall(r"^\| (S\d-\d+[a-z]?)", table.read_text("utf-8"), re.MULTILINE)
    assert len(wanted) == 590
    assert sorted(set(wanted) - set(ROWS)) == []
    assert [name for name in ROWS if name not in set(wanted) and not name.startswith("R-")] == []


def test_named_tests_exist() -> None:
    missing = []
    for name in NAMED:
        file, _, rest = name.partition("::")
        path = ROOT / "tests" / file
        if not path.is_file() or (rest and rest.split("[")[0] not in _names(path)):
            missing.append(name)
    assert missing == []
