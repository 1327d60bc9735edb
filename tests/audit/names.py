"""The ids that tests carry in their names and parameter ids, read from their source without running anything."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from corpus_path import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_ID = re.compile(r"(?<![A-Za-z0-9])([A-Z]{1,2}\d+)[a-z]?(?![A-Za-z0-9])")


@functools.cache
def ids_of_tests() -> dict[str, set[str]]:
    """Every id and the rooms (folders of tests/) in which a test carries it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        tree = ast.parse(path.read_text())
        for text in _names(tree):
            for each in _ID.findall(text):
                found.setdefault(each, set()).add(path.parent.name)
    return found


def _names(tree: ast.Module) -> Iterator[str]:
    """Names of test functions, ids of parameters, and keys of tables whose keys are ids of parameters."""
    tables: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg in ("id", "ids"):
            yield from _texts(node.value)
            tables |= {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is not None and tables & {each.id for each in targets if isinstance(each, ast.Name)}:
            yield from _texts(node.value)


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
