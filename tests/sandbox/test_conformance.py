"""The conformance suite on bubblewrap: as root, and as an ordinary user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from runyard.sandbox.registry import open_sandbox
from sandbox.conformance import CASES, SECONDS, run_case
from sandbox.ordinary_user import Ordinary

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(60)

ROOT = os.geteuid() == 0


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ordinary]:
    user = Ordinary(tmp_path_factory.mktemp("home"))
    yield user
    user.close()


if ROOT:

    @pytest.mark.parametrize("name", CASES)
    def test_bubblewrap_as_root(name: str, state: str) -> None:
        run_case(name, lambda: open_sandbox("bubblewrap", state=state))

    @pytest.mark.parametrize("name", CASES)
    def test_bubblewrap_as_an_ordinary_user(name: str, ordinary: Ordinary) -> None:
        assert ordinary.run("conformance", name, 2 * SECONDS + 5) is None

else:

    @pytest.mark.parametrize("name", CASES)
    def test_bubblewrap_as_who_runs_the_tests(name: str, state: str) -> None:
        run_case(name, lambda: open_sandbox("bubblewrap", state=state))
