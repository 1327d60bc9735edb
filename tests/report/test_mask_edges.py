"""A mask is found however short the text around it is, before and after the search has built its automaton."""

from __future__ import annotations

import pytest

from runyard.report.masks import Masker


@pytest.mark.parametrize("before", range(12))
@pytest.mark.parametrize("after", [0, 1, 7, 8, 9])
def test_a_secret_near_the_edges_of_a_short_text(before: int, after: int) -> None:
    masker = Masker()
    masker.add_secret("s3cr3t-value-123")
    text = b"<" * before + b"s3cr3t-value-123" + b">" * after
    for _ in range(60):
        assert masker.mask(text) == b"<" * before + b"***" + b">" * after
