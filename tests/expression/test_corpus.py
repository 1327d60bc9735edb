"""Every case of the shared corpus about expressions and conditions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corpus_path import corpus_or_none
from runyard.expression import (
    ExpressionError,
    evaluate_condition,
    evaluate_text,
    job_status_functions,
    kind_of,
    step_status_functions,
    wrap_condition,
)

FOLDER = corpus_or_none("expressions")


def _cases() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.json")) if FOLDER is not None else ():
        groups = json.loads(path.read_text(encoding="utf-8"))
        cases = [case for group in groups.values() for case in group]
        found += [pytest.param(case, id=f"expressions/{path.stem}/{number}") for number, case in enumerate(cases, 1)]
    return found or [pytest.param(None, id="expressions/none", marks=pytest.mark.skip("the corpus is not here"))]


@pytest.mark.corpus
@pytest.mark.parametrize("case", _cases())
def test_case(case: dict[str, Any]) -> None:
    if "if" in case:
        _check_condition(case)
    elif "err" in case:
        _check_error(case)
    else:
        value = evaluate_text(case["expr"], case.get("contexts", {}))
        assert (kind_of(value), value) == (case["result"]["kind"], case["result"]["value"])


def _check_error(case: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate_text(case["expr"], case.get("contexts", {}))
    assert caught.value.kind == case["err"]["kind"]
    assert caught.value.message.startswith(case["err"]["value"])
    if "at position" in case["err"]["value"]:
        assert f"at position {caught.value.position} within" in caught.value.message


def _check_condition(case: dict[str, Any]) -> None:
    contexts = case.get("contexts", {})
    if case["scope"] == "step":
        functions = step_status_functions(case["status"])
    else:
        functions = job_status_functions({job: need["result"] for job, need in contexts["needs"].items()})
    condition = wrap_condition(case["if"], contexts=contexts)
    assert evaluate_condition(condition, contexts, functions) is case["runs"]


@pytest.mark.skipif(FOLDER is None, reason="the corpus is not here")
def test_all_cases_are_there() -> None:
    assert len(_cases()) == 655
