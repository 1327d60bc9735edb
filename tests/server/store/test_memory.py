"""The double passes the suite of stores."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from runyard.server.store.memory import MemoryStore
from server.store.conformance import CASES, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from server.store.conformance import Case


@asynccontextmanager
async def opened() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(time.time_ns)
    yield store
    await store.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_double(case: Case) -> None:
    run(case, opened)
