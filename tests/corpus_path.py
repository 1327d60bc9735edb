"""Where the shared corpus is: beside the checkout, or where RUNYARD_SHARED says. Read from there, never copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_root() -> Path:
    """The folder that holds `corpus/` and `protocol/`; it may not exist."""
    return Path(os.environ.get("RUNYARD_SHARED") or ROOT.parent / "shared")


def corpus_or_none(*parts: str) -> Path | None:
    """A folder or file of the corpus, or None where it isn't there; for use while tests are collected."""
    path = shared_root().joinpath("corpus", *parts)
    return path if path.exists() else None


def corpus(*parts: str) -> Path:
    """A folder or file of the corpus; skips the test where it isn't there."""
    path = corpus_or_none(*parts)
    if path is None:
        pytest.skip(f"the corpus is not beside this checkout ({'/'.join(parts)})")
    return path
