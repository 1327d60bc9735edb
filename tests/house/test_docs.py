"""The map is true: the reading path exists, links lead somewhere, generated pages are up to date."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from runyard.cli.main import group
from runyard.cli.table import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


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


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    # A path below `src/runyard/` is written whole, or in a page that says so from there.
    text = page.read_text("utf-8")
    named = re.findall(r"`((?:src|tests|docs|tools|bench)/[\w./-]*\w)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    if "Paths are below\n`src/runyard/`" in text:
        short = re.findall(r"`([a-z_]+/[\w/]+\.py)`", text)
        assert short
        assert [name for name in short if not (ROOT / "src" / "runyard" / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_a_name_beside_its_file_is_defined_there(page: Path) -> None:
    """In tables of `name`, `file.py` the names are functions, methods or classes of one of the files in the cell."""
    wrong = []
    for names, files in cells(page.read_text("utf-8")):
        sources = [(ROOT / "src" / "runyard" / file).read_text("utf-8") for file in files]
        for name in names:
            last = name.split(".")[-1]
            if not any(re.search(rf"\b(def|class) {re.escape(last)}\b", source) for source in sources):
                wrong.append(f"{name}: {', '.join(files)}")
    assert wrong == []


def cells(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The last cells of table rows that name files below src/runyard: names and files of each part."""
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        for part in row.strip("|").split("|")[-1].split(";"):
            words = re.findall(r"`([^`]+)`", part)
            files = [word for word in words if re.fullmatch(r"[a-z_]+/[\w/]+\.py", word) and "test_" not in word]
            names = [word for word in words if re.fullmatch(r"[A-Za-z_][\w.]*", word)]
            if files and names:
                yield names, files


def commands_in(text: str) -> Iterator[str]:
    """Command lines that a page shows: in backticks and in blocks of shell, without what stands behind a `#`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    shown += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in shown:
        bare = re.sub(r"^path/to/runyard/", "./", line.strip())
        if bare.startswith(("runyard ", "./dev ")):
            yield bare


def what_is_wrong(line: str) -> str | None:
    """None for a command line whose command, sub-command and options exist; placeholders in capitals and … are free."""
    words = [word for word in shlex.split(line) if "…" not in word]
    if words[0] == "./dev":
        if words[1:2] != ["runyard"]:
            return what_is_wrong_of_dev(words[1:])
        words = words[1:]
    name, rest = (words[1], words[2:]) if len(words) > 1 else ("", [])
    if not name or name.isupper():
        return None
    if name.startswith("-"):
        return None if name in {"--version", "--help"} else f"no option {name}"
    if name not in BY_NAME:
        return f"no command {name}"
    if BY_NAME[name].module is None:
        return "not in this build"
    command = group().get_command(click.Context(group()), name)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and not rest[0].isupper():
        command = command.get_command(click.Context(command), rest.pop(0))
    if command is None:
        return "no such sub-command"
    return wrong_options(command, rest)


def wrong_options(command: click.Command, words: list[str]) -> str | None:
    """The first option that a command doesn't have, or a value that it would not take."""
    options = {flag: option for option in command.params for flag in option.opts if isinstance(option, click.Option)}
    for index, word in enumerate(words):
        flag, _, value = word.partition("=")
        if not flag.startswith("-"):
            continue
        if flag not in options and flag != "--help":
            return f"no option {flag}"
        option = options.get(flag)
        given = value or (words[index + 1] if index + 1 < len(words) else "")
        if option is not None and isinstance(option.type, click.Choice) and given not in option.type.choices:
            return f"{flag} takes no {given!r}"
    return None


def what_is_wrong_of_dev(words: list[str]) -> str | None:
    """The same for `./dev`, by the table in tools/dev.py."""
    source = (ROOT / "tools" / "dev.py").read_text("utf-8")
    for word in words:
        if re.fullmatch(r"(--)?[a-z-]+", word) and f'"{word}"' not in source:
            return f"tools/dev.py has no {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_that_a_page_shows_exist(page: Path) -> None:
    shown = commands_in(page.read_text("utf-8"))
    assert {line: wrong for line in shown if (wrong := what_is_wrong(line)) is not None} == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("runyard run --plan", None),
        ("./dev runyard run --pause-on failure", None),
        ("./dev test --group unit", None),
        ("./dev tset", "tools/dev.py has no tset"),
        ("runyard run --plann", "no option --plann"),
        ("runyard run --pause-on success", "--pause-on takes no 'success'"),
        ("runyard rnu", "no command rnu"),
        ("runyard failover", "not in this build"),
        ("runyard COMMAND --help", None),
    ],
)
def test_command_lines_are_judged(line: str, wrong: str | None) -> None:
    assert what_is_wrong(line) == wrong


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
