"""The pairs M1 to M20: what a matrix expands to, and what its jobs are called."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from run.drive import Drive
from runyard.expression import equals
from runyard.run.matrix import IdBuilder, MatrixError, display_name, expand

BASE = {"os": ["a", "b"], "v": [1, 2]}


def values(matrix: Any) -> list[dict[str, Any]]:
    return [each.values for each in expand(matrix, equals)]


PAIRS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "M1": (BASE, [{"os": "a", "v": 1}, {"os": "a", "v": 2}, {"os": "b", "v": 1}, {"os": "b", "v": 2}]),
    "M2": (
        {**BASE, "include": [{"os": "a", "x": 9}]},
        [{"os": "a", "v": 1, "x": 9}, {"os": "a", "v": 2, "x": 9}, {"os": "b", "v": 1}, {"os": "b", "v": 2}],
    ),
    "M3": (
        {**BASE, "include": [{"x": 1}, {"os": "a", "x": 2}]},
        [
            {"os": "a", "v": 1, "x": 2},
            {"os": "a", "v": 2, "x": 2},
            {"os": "b", "v": 1, "x": 1},
            {"os": "b", "v": 2, "x": 1},
        ],
    ),
    "M4": (
        {**BASE, "include": [{"os": "c"}]},
        [{"os": "a", "v": 1}, {"os": "a", "v": 2}, {"os": "b", "v": 1}, {"os": "b", "v": 2}, {"os": "c"}],
    ),
    "M5": (
        {**BASE, "include": [{"os": "a", "v": 1}]},
        [{"os": "a", "v": 1}, {"os": "a", "v": 2}, {"os": "b", "v": 1}, {"os": "b", "v": 2}],
    ),
    "M6": ({**BASE, "exclude": [{"os": "a"}]}, [{"os": "b", "v": 1}, {"os": "b", "v": 2}]),
    "M7": (
        {**BASE, "exclude": [{"os": "a", "v": 1}], "include": [{"os": "a", "v": 1, "y": 1}]},
        [{"os": "a", "v": 2}, {"os": "b", "v": 1}, {"os": "b", "v": 2}, {"os": "a", "v": 1, "y": 1}],
    ),
    "M8": ({**BASE, "exclude": [{"v": "1"}]}, [{"os": "a", "v": 2}, {"os": "b", "v": 2}]),
    "M9": ({**BASE, "exclude": [{"os": "A"}]}, [{"os": "b", "v": 1}, {"os": "b", "v": 2}]),
    "M11": ({"include": [{"a": 1}, {"b": 2}]}, [{"a": 1}, {"b": 2}]),
    "M19": (
        {"n": [{"v": 1, "e": "x"}, {"v": 2, "e": "y"}], "exclude": [{"n": {"v": 1}}]},
        [{"n": {"v": 2, "e": "y"}}],
    ),
    "M20": ({"os": ["a"], "exclude": [{"os": "a"}]}, []),
    "keys ignore case": ({"OS": ["a", "b"], "exclude": [{"os": "a"}]}, [{"OS": "b"}]),
    "an include can't change a vector": (
        {"os": ["a"], "include": [{"os": "z", "x": 1}]},
        [{"os": "a"}, {"os": "z", "x": 1}],
    ),
    "vector keys of an own combination come first": (
        {"a": [1], "b": [2], "include": [{"x": 0, "b": 3, "a": 4}]},
        [{"a": 1, "b": 2}, {"a": 4, "b": 3, "x": 0}],
    ),
    "values stay as they are": (
        {"v": [True, None, 1.5, {"k": [1]}]},
        [{"v": True}, {"v": None}, {"v": 1.5}, {"v": {"k": [1]}}],
    ),
}


@pytest.mark.parametrize(("matrix", "expected"), list(PAIRS.values()), ids=list(PAIRS))
def test_combinations(matrix: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert values(matrix) == expected
    assert [list(each) for each in values(matrix)] == [list(each) for each in expected], "the order of keys counts"


WRONG: dict[str, tuple[Any, str]] = {
    "M10": ({**BASE, "exclude": [{"nope": 1}]}, "Matrix exclude key 'nope' does not match any key within the matrix"),
    "M12": ({"os": []}, "Matrix vector 'os' does not contain any values"),
    "M13": ({"include": []}, "Matrix must define at least one vector"),
    "M17": ({"n": list(range(257))}, "more than 256 jobs"),
    "includes count too": ({"n": list(range(256)), "include": [{"n": "x"}]}, "more than 256 jobs"),
    "no walk through a billion": ({key: list(range(100)) for key in "abcde"}, "10000000000 combinations"),
    "an empty include item": ({"os": ["a"], "include": [{}]}, "must not be empty"),
    "an empty exclude item": ({"os": ["a"], "exclude": [{}]}, "must not be empty"),
    "text": ("os", "a matrix must be a mapping"),
    "null": (None, "a matrix must be a mapping"),
    "a scalar vector": ({"os": "a"}, "Matrix vector 'os' must be a sequence"),
    "include of text": ({"include": ["a"]}, "must be a mapping, not text"),
    "empty": ({}, "Matrix must define at least one vector"),
}


@pytest.mark.parametrize(("matrix", "message"), list(WRONG.values()), ids=list(WRONG))
def test_a_matrix_that_is_none(matrix: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=re.escape(message)):
        values(matrix)
    drive = Drive({"t": {"strategy": {"matrix": matrix}}, "after": {"needs": "t"}})
    assert drive.ended == {"t": "failure", "after": "skipped"}
    assert message in drive.end("t").reason
    assert drive.end("t").reason_code == "evaluation_error"
    assert drive.conclusion == "failure"


@pytest.mark.parametrize(
    ("job", "names"),
    [
        pytest.param({"strategy": {"matrix": {"n": [{"v": 1, "e": "x"}]}}}, ["t (1, x)"], id="M14"),
        pytest.param({"strategy": {"matrix": {"v": [1.10]}}}, ["t (1.1)"], id="M15"),
        pytest.param({"strategy": {"matrix": {"v": [1], "include": [{"v": 1, "x": 9}]}}}, ["t (1)"], id="M16"),
        pytest.param({"strategy": {"matrix": {"include": [{"v": 1, "x": 9}]}}}, ["t (1, 9)"], id="own shows all"),
        pytest.param({"strategy": {"matrix": {"v": ["", None, True]}}}, ["t", "t", "t (true)"], id="nothing to show"),
        pytest.param({"name": "N", "strategy": {"matrix": {"v": [1]}}}, ["N (1)"], id="literal name"),
        pytest.param({"name": "${{ 'N' }}", "strategy": {"matrix": {"v": [1]}}}, ["N (1)"], id="literal in braces"),
        pytest.param({"name": "N ${{ matrix.v }}", "strategy": {"matrix": {"v": [1]}}}, ["N 1"], id="expression"),
        pytest.param(
            {"name": "${{ matrix.no }}", "strategy": {"matrix": {"v": [1]}}}, ["t (1)"], id="empty expression"
        ),
        pytest.param({"strategy": {"matrix": {"v": ["x" * 200]}}}, ["t (" + "x" * 94 + "..."], id="cut at 100"),
    ],
)
def test_names(job: dict[str, Any], names: list[str]) -> None:
    assert Drive({"t": job}).names == names


def test_M18_max_parallel_is_the_number_of_jobs() -> None:
    drive = Drive({"t": {"strategy": {"matrix": {"v": list(range(10))}}}})
    assert [spec.strategy.max_parallel for spec in drive.specs] == [10] * 10
    assert [spec.strategy.job_index for spec in drive.specs] == list(range(10))
    assert {spec.strategy.job_total for spec in drive.specs} == {10}


def test_M20_all_excluded_is_one_plain_job() -> None:
    drive = Drive({"t": {"strategy": {"matrix": {"os": ["a"], "exclude": [{"os": "a"}]}}}})
    (spec,) = drive.specs
    assert (spec.key, spec.name, spec.matrix, spec.strategy.job_total) == ("t", "t", None, 1)


def test_F12_a_matrix_from_an_earlier_job() -> None:
    drive = Drive(
        {
            "plan": {},
            "build": {"needs": "plan", "strategy": {"matrix": "${{ fromJSON(needs.plan.outputs.m) }}"}},
        }
    )
    drive.finish("plan", m='{"include":[{"p":"x","n":1},{"p":"y","n":2}]}')
    assert [spec.matrix for spec in drive.specs[1:]] == [{"p": "x", "n": 1}, {"p": "y", "n": 2}]
    assert drive.names[1:] == ["build (x, 1)", "build (y, 2)"]


def test_the_same_values_twice_are_two_jobs_with_two_keys() -> None:
    drive = Drive({"t": {"strategy": {"matrix": {"v": [1, 1, "1"]}}}})
    assert drive.created == ["t._1", "t._1_2", "t._1_3"]
    assert drive.names == ["t (1)"] * 3


def test_ids_are_safe_and_unique() -> None:
    builder = IdBuilder()
    assert builder.build(["ubuntu-latest", "3.10"]) == "ubuntu-latest_3_10"
    assert builder.build(["UBUNTU-latest", "3/10"]) == "UBUNTU-latest_3_10_2"
    assert builder.build(["-x"]) == "_-x"
    assert len(builder.build(["y" * 300])) == 100
    assert len(builder.build(["y" * 300])) == 100
    assert display_name("j", []) == "j"


_leaf = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["a", "A", "1", ""]))
_item = st.dictionaries(st.sampled_from(["os", "v", "x", "y"]), _leaf, min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["os", "v"]), st.lists(_leaf, min_size=1, max_size=3), min_size=1),
    st.lists(_item, max_size=3),
)
def test_every_combination_holds_the_vectors_or_is_an_include(
    vectors: dict[str, list[Any]], include: list[dict[str, Any]]
) -> None:
    product = 1
    for vector in vectors.values():
        product *= len(vector)
    found = expand({**vectors, "include": include}, equals)
    assert product <= len(found) <= product + len(include)
    for each in found[:product]:
        assert all(each.values[key] in vectors[key] for key in vectors)
        assert list(each.shown) == list(vectors)
    for each in found[product:]:
        assert each.values in include
