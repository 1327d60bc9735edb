"""Writes the generated pages.

docs/capabilities.md from its data, docs/commands.md and docs/runyard.1 from the table of commands,
docs/life-of-a-queued-job.md from the transitions of dispatch.

`--check` writes nothing and ends with 1 when a page is not what it would be.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "capabilities.toml"
NOTE = "<!-- Made by ./dev docs. Edit {source} instead. -->\n\n"
STATUSES = ("works", "partly", "not yet")


def capability_rows() -> dict[str, dict[str, Any]]:
    """The data file, checked: known statuses, tests where it works, what is missing where it works partly."""
    rows = tomllib.loads(DATA.read_text("utf-8"))
    for name, row in rows.items():
        status = row.get("status")
        if status not in STATUSES:
            raise SystemExit(f"docs/capabilities.toml: {name}: status {status!r} is none of {', '.join(STATUSES)}")
        if status == "works" and not row.get("tests"):
            raise SystemExit(f"docs/capabilities.toml: {name}: what works names its tests")
        if status == "partly" and not row.get("missing"):
            raise SystemExit(f"docs/capabilities.toml: {name}: what works partly says what is missing")
    return rows


def capabilities_page() -> str:
    """The page of all rows, by section, with counts."""
    rows = capability_rows()
    counts = Counter(row["status"] for row in rows.values())
    lines = [
        "# Capabilities",
        "",
        "Rows are those of the reference table of four published systems, by id, and rows of our own (R-…).",
        f"Of {len(rows)}: {counts['works']} work, {counts['partly']} work partly, {counts['not yet']} not yet.",
        "A row that works names the tests that show it; a test fails when one of them is missing or skipped.",
        "",
        "| row | state | tests, or what is missing |",
        "|---|---|---|",
    ]
    for name, row in rows.items():
        if row["status"] == "not yet":
            continue
        said = "; ".join(f"`{test}`" for test in row.get("tests", ()))
        if missing := row.get("missing"):
            said = f"missing: {missing}" + (f" ({said})" if said else "")
        lines.append(f"| {name} | {row['status']} | {said} |")
    waiting = [name for name, row in rows.items() if row["status"] == "not yet"]
    lines += ["", "## Not yet", "", ", ".join(waiting) + "." if waiting else "None.", ""]
    return NOTE.format(source="docs/capabilities.toml") + "\n".join(lines)


def _commands() -> Iterator[tuple[str, click.Command]]:
    import click

    from runyard.cli.main import group

    root = group()
    context = click.Context(root, info_name="runyard")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if command is None:
            continue
        yield name, command
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                if found is not None:
                    yield f"{name} {inner}", found


def commands_page() -> str:
    """Every command's own help, as it prints it."""
    import click

    lines = [
        "# Commands",
        "",
        "What `runyard COMMAND --help` prints. Exit codes: 0 good, 1 the answer is bad, 2 the input is",
    ]
    lines += ["wrong, 3 this machine can't do it, 130 interrupted.", ""]
    for name, command in _commands():
        parent = click.Context(click.Group(), info_name="runyard")
        context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
        lines += [f"## runyard {name}", "", "```text", command.get_help(context), "```", ""]
    return NOTE.format(source="the commands in src/runyard/cli") + "\n".join(lines)


def manual_page() -> str:
    """The man page, from the same table."""
    import runyard

    lines = [f'.TH RUNYARD 1 "" "runyard {runyard.__version__}"', ".SH NAME", "runyard \\- self-hosted CI"]
    lines += [".SH SYNOPSIS", ".B runyard", "COMMAND [OPTIONS] [ARGUMENTS]", ".SH COMMANDS"]
    for name, command in _commands():
        does = (command.get_short_help_str(200) or "").replace("-", "\\-")
        lines += [".TP", f".B {name}", does]
    lines += [
        ".SH EXIT STATUS",
        "0 done and good; 1 the answer is bad; 2 the input is wrong; 3 this machine can't do it; 130 interrupted",
    ]
    return "\n".join(lines) + "\n"


def queued_job_page() -> str:
    """The life of a queued job, drawn from the table that the code obeys."""
    from runyard.dispatch.life import TABLE, diagram

    lines = [
        "# Life of a queued job",
        "",
        "What can happen to a job between the run that makes it and its end, on a server. The table is",
        "`TABLE` in `src/runyard/dispatch/life.py`; what isn't in it is refused and changes nothing.",
        "A case says what the happening found: a hold that was the last, a hand-out nobody confirmed, a job that",
        "may be lost once more.",
        "",
        "```mermaid",
        diagram(),
        "```",
        "",
        "| from | happening | case | to |",
        "|---|---|---|---|",
    ]
    for phase, happening, case, to in TABLE:
        name = str(happening.__struct_config__.tag).replace("_", " ")
        lines.append(f"| {phase} | {name} | {case} | {to} |")
    lines += [
        "",
        "Whoever speaks of an attempt (beat, began, handed back, result) names it and its lease, and is refused unless",
        "both are the job's own at that moment. A job that ended hears one thing more: the same result once again.",
        "",
    ]
    return NOTE.format(source="src/runyard/dispatch/life.py") + "\n".join(lines)


PAGES = {
    "docs/capabilities.md": capabilities_page,
    "docs/commands.md": commands_page,
    "docs/runyard.1": manual_page,
    "docs/life-of-a-queued-job.md": queued_job_page,
}


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for name, make in PAGES.items():
        text = re.sub(r"[ \t]+\n", "\n", make())
        path = ROOT / name
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
            print(f"wrote {name}")
    if stale and "--check" in sys.argv:
        print(f"not up to date: {', '.join(stale)} (./dev docs)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
