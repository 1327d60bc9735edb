"""No hole in what is tested: each pair of the protocol pages and each row of the deviations has a test with its id.

The pages are read from beside the checkout. What belongs to a later part stands in LATER with the reason, so that a
hole is seen here and not found by a user.
"""

from __future__ import annotations

import re

import pytest

from audit.names import ids_of_tests
from corpus_path import ROOT, shared_root

ROW = re.compile(r"^\| ([A-Z]+\d+) \|", re.MULTILINE)

LATER = {
    "D9": "handing a lost job out again is the server's",
    "D14": "job hooks are a setting of a worker",
    "D19": "trust of triggers is the server's; `runyard run` follows GitHub",
}
"""Ids without a test of their own yet, each with the part it belongs to."""

ROOMS = {
    # Two pages number their M pairs from 1: masks here, matrices there; so do command files and field cases with F.
    ("job-semantics", "M"): {"report", "engine", "e2e", "security", "audit"},
    ("job-semantics", "F"): {"engine", "audit"},
    ("workflow-language", "M"): {"workflow", "run", "cli"},
}

FIELD_CASES = (
    "F04",
    "F10",
    "F12",
    "F20",
    "F24",
    "F28",
    "F32",
    "F34",
    "F42",
    "F44",
    "F46",
    "F48",
    "F54",
    "F58",
    "F60",
    "X2",
)


def text_of(*parts: str) -> str:
    path = shared_root().joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not beside this checkout")
    return path.read_text()


@pytest.mark.parametrize(("page", "least"), [("job-semantics", 147), ("workflow-language", 93)])
def test_each_pair_of_a_page_has_a_test(page: str, least: int) -> None:
    pairs = list(dict.fromkeys(ROW.findall(text_of("protocol", f"{page}.md"))))
    assert len(pairs) >= least, "the page is not read as it is written"
    known = ids_of_tests()
    missing = []
    for pair in pairs:
        rooms = ROOMS.get((page, pair[0]))
        found = known.get(pair, set())
        if pair not in LATER and not (found & rooms if rooms else found):
            missing.append(pair)
    assert missing == []


def test_each_deviation_has_a_test_and_stands_in_the_list() -> None:
    rows = re.findall(r"^\| (D\d+) \|", text_of("design", "deviations.md"), re.MULTILINE)
    assert len(rows) == 21
    known = ids_of_tests()
    assert [row for row in rows if row not in known and row not in LATER] == []
    ours = (ROOT / "docs" / "deviations.md").read_text()
    assert [row for row in rows if not re.search(rf"\b{row}\b", ours)] == []


def test_each_field_case_has_a_test_through_the_command_line_or_the_core() -> None:
    known = ids_of_tests()
    outside = {"e2e", "cli", "workflow", "run", "audit", "faults"}
    assert [case for case in FIELD_CASES if not known.get(case, set()) & outside] == []


def test_what_is_left_for_later_is_a_row_of_a_page() -> None:
    rows = set(ROW.findall(text_of("protocol", "job-semantics.md")))
    rows |= set(ROW.findall(text_of("protocol", "workflow-language.md")))
    rows |= set(ROW.findall(text_of("design", "deviations.md")))
    assert set(LATER) <= rows
