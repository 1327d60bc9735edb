"""A house of services for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from service.clients import House

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "services")
    yield made
    made.close()
