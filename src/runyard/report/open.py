"""Which display a format and a stream get."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from runyard.report.output import is_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from runyard.report.run_report import RunReport

Format: TypeAlias = Literal["tree", "plain", "jsonl", "json", "github"]


def open_sink(
    format: Format | None,  # noqa: A002 - the flag's name
    stream: IO[bytes],
    *,
    color: bool | None = None,
    environ: Mapping[str, str] | None = None,
    strict: bool = False,
    verbose: bool = False,
) -> RunReport:
    """The display for `--format`; None chooses `tree` on a terminal, else `plain`.

    `stream` takes bytes (`sys.stdout.buffer`). `color` None: on a terminal without `NO_COLOR`. `strict` shows summaries
    and annotations as GitHub limits them (D1, D2). `verbose` shows every line in the tree as well.
    """
    words = os.environ if environ is None else environ
    terminal = is_terminal(stream) and words.get("TERM") != "dumb"
    if color is None:
        color = terminal and not words.get("NO_COLOR")
    chosen = format or ("tree" if terminal else "plain")
    if chosen == "jsonl":
        from runyard.report.jsonl import JsonLines

        return JsonLines(stream, strict=strict)
    if chosen == "json":
        from runyard.report.document import Document

        return Document(stream, strict=strict)
    if chosen == "github":
        from runyard.report.github_log import GitHubLog

        return GitHubLog(stream, strict=strict)
    if chosen == "plain":
        from runyard.report.plain import PlainLines

        return PlainLines(stream, color=color, strict=strict)
    from runyard.report.tree import Tree

    return Tree(stream, color=color, strict=strict, verbose=verbose)
