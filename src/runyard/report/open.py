"""Which display a format and a stream get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from runyard.report.run_report import RunReport

Format: TypeAlias = Literal["tree", "plain", "jsonl", "github"]


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

    `stream` takes bytes (`sys.stdout.buffer`). `color` None: on a terminal without `NO_COLOR`. `strict` shows
    summaries and annotations as GitHub limits them (D1, D2). `verbose` shows every line in the tree as well.
    """
