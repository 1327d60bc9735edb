"""The map is true: the reading path exists, links lead somewhere, generated pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reading_path_has_ten_links_at_most_and_all_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    path = re.findall(r"^\d+\. `(src/[^`]+)`", text, re.MULTILINE)
    assert 5 <= len(path) <= 10
    assert [name for name in path if not (ROOT / name).is_file()] == []


def test_every_room_opens_with_what_it_is_for() -> None:
    rooms = sorted(path for path in (ROOT / "src" / "runyard").iterdir() if (path / "__init__.py").is_file())
    silent = [room.name for room in rooms if not (room / "__init__.py").read_text("utf-8").startswith('"""')]
    assert silent == []
    mapped = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [room.name for room in rooms if f"`{room.name}`" not in mapped] == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
