"""Possessive and atomic groups are broken in the regex engine of Python 3.11.0 to 3.11.4, which we support."""

from __future__ import annotations

import ast
import re

from corpus_path import ROOT

BROKEN = re.compile(r"(?<!\\)\(\?>|(?<!\\)[)\]}.\w](?<!\\[\])}.])[*+?}]\+")


def _regexes(source: str) -> list[tuple[int, str]]:
    """Texts given to `re`, by line; also the parts of f-strings."""
    calls = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"re", "regex"}
    )
    return [
        (part.lineno, part.value)
        for call in calls
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def test_the_search_finds_what_it_should() -> None:
    assert BROKEN.search(r"(?:a|b)*+c")
    assert BROKEN.search(r"[ab]++")
    assert BROKEN.search(r"a{2,3}+")
    assert BROKEN.search(r".*+")
    assert BROKEN.search(r"(?>a)")
    assert not BROKEN.search(r"(?:a\*+b)+")
    assert not BROKEN.search(r"[^a]*?")


def test_no_possessive_or_atomic_group_in_the_source() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in _regexes(path.read_text(encoding="utf-8"))
        if BROKEN.search(text)
    ]
    assert not found
