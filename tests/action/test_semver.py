"""Ranges of versions, as npm's semver documents them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runyard.action.semver import Version, highest, parse_range, parse_version, satisfies

INSIDE = [
    ("1.2.3", "1.2.3"),
    ("v20", "20.19.5"),
    ("3.x", "3.12.1"),
    ("3", "3.0.0"),
    ("3.11", "3.11.9"),
    ("3.11.x", "3.11.0"),
    ("*", "0.0.1"),
    ("", "1.0.0"),
    (">=3.9 <3.12", "3.11.7"),
    (">= 3.9  < 3.12", "3.9.0"),
    ("~3.10", "3.10.14"),
    ("~1.2.3", "1.2.9"),
    ("~1", "1.9.0"),
    ("~>2.1", "2.1.5"),
    ("^1.2.3", "1.9.9"),
    ("^0.2.3", "0.2.9"),
    ("^0.0.3", "0.0.3"),
    ("^0.x", "0.9.1"),
    ("1.2 - 2.3.4", "2.3.4"),
    ("1.2.3 - 2.3", "2.3.9"),
    ("16 || 18", "18.20.0"),
    ("3.10 - 3.12", "3.12.9"),
    ("~3.13.0-0", "3.13.0-rc.1"),
    (">=1.2.3-alpha.2", "1.2.3-alpha.7"),
    (">1.2", "1.3.0"),
    ("<=2", "2.9.9"),
    ("<2", "1.9.9"),
    ("=1.2", "1.2.4"),
]
OUTSIDE = [
    ("1.2.3", "1.2.4"),
    ("3.x", "4.0.0"),
    ("3.1", "3.10.0"),
    (">=3.9 <3.12", "3.12.0"),
    ("~1.2.3", "1.3.0"),
    ("^0.2.3", "0.3.0"),
    ("^0.0.3", "0.0.4"),
    ("1.2.3 - 2.3", "2.4.0"),
    ("16 || 18", "17.0.0"),
    ("3.13", "3.13.0-rc.1"),
    (">=3.12", "3.14.0-alpha.1"),
    ("<2", "2.0.0-rc.1"),
    (">1.2", "1.2.9"),
    ("<1.2", "1.2.0-beta"),
    ("<x", "0.0.1"),
]


@pytest.mark.parametrize(("wanted", "version"), INSIDE)
def test_inside(wanted: str, version: str) -> None:
    range_, parsed = parse_range(wanted), parse_version(version)
    assert range_ is not None
    assert parsed is not None
    assert satisfies(parsed, range_)


@pytest.mark.parametrize(("wanted", "version"), OUTSIDE)
def test_outside(wanted: str, version: str) -> None:
    range_, parsed = parse_range(wanted), parse_version(version)
    assert range_ is not None
    assert parsed is not None
    assert not satisfies(parsed, range_)


@pytest.mark.parametrize("text", ["lts/*", "abc", "1.2.3.4", ">>1", "1..2", "node", "1" * 300])
def test_what_is_no_range(text: str) -> None:
    assert parse_range(text) is None


@pytest.mark.parametrize("text", ["1.2", "1.2.x", "", "a.b.c", "1.2.3 4"])
def test_what_is_no_version(text: str) -> None:
    assert parse_version(text) is None


def test_order() -> None:
    texts = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"]
    versions = [version for text in texts if (version := parse_version(text)) is not None]
    mixed = [versions[at] for at in (3, 0, 6, 2, 5, 1, 4)]
    assert sorted(mixed, key=lambda each: each.order) == versions
    assert len(versions) == len(texts)


def test_the_highest() -> None:
    versions = [Version(3, 9, 18), Version(3, 12, 1), Version(3, 12, 10), Version(4, 0, 0)]
    assert highest(versions, parse_range("3.x") or ()) == Version(3, 12, 10)
    assert highest(versions, parse_range("5") or ()) is None


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = parse_range(text)
    if found is not None:
        satisfies(Version(1, 2, 3), found)
    parse_version(text)


@given(st.tuples(*[st.integers(0, 50)] * 3))
def test_a_version_satisfies_itself(numbers: tuple[int, int, int]) -> None:
    version = Version(*numbers)
    for wanted in (str(version), f"^{version}", f"~{version}", f">={version}", f"{version} - {version}"):
        range_ = parse_range(wanted)
        assert range_ is not None
        assert satisfies(version, range_)
