"""Groups of tests with their budgets, and what the corpus tells at the end.

`--group=NAME` runs one group; `--results=DIR` writes counts and failed ids for `./dev test`.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent

FOLDERS = {
    "sandbox": "sandbox",
    "doctor": "sandbox",
    "e2e": "e2e",
    "faults": "e2e",
    "security": "e2e",
    "audit": "e2e",
    "house": "e2e",
    "service": "server",
    "server": "server",
    "web": "web",
    "seeds": "seeds",
    "simulation": "seeds",
}
"""The group of each folder; a folder that isn't here is unit."""

ENGINES = ("test_docker", "test_podman")
"""Files of the folder `sandbox` that need a container engine; a group of their own, for they take as long again."""

GROUPS = ("unit", "corpus", "sandbox", "engines", "e2e", "server", "web", "seeds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--group", choices=GROUPS, help="only the tests of this group")
    parser.addoption("--results", metavar="DIR", help="write counts and failed ids as JSON into this folder")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "corpus: a case of the shared corpus (group corpus)")
    config.addinivalue_line("markers", "docker: needs a container engine")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Told(config), "runyard-told")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders of other groups are not even imported; corpus cases may stand in any folder."""
    group = config.getoption("--group")
    if group is None or collection_path.parent != HERE or not collection_path.is_dir():
        return None
    of_folder = FOLDERS.get(collection_path.name, "unit")
    wanted = {of_folder, "corpus", *(("engines",) if of_folder == "sandbox" else ())}
    return True if group not in wanted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    group = config.getoption("--group")
    if group is None:
        return
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        (kept if _group_of(item) == group else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def _group_of(item: pytest.Item) -> str:
    if item.get_closest_marker("corpus"):
        return "corpus"
    below = item.path.relative_to(HERE).parts
    if below[0] == "sandbox" and below[-1].startswith(ENGINES):
        return "engines"
    return FOLDERS.get(below[0], "unit") if len(below) > 1 else "unit"


class _Told:
    """Counts in the main process, and prints per corpus folder how many cases pass and why others are skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.failed: dict[str, None] = {}
        self.corpus: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.skipped: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not (report.failed or (report.skipped and report.when == "setup")):
            return
        outcome = report.outcome
        self.counts[outcome] += 1
        if report.failed:
            self.failed[report.nodeid] = None
        facts = dict(report.user_properties)
        if "corpus" in facts:
            folder, case = str(facts["corpus"]).split("/", 1)
            # Several tests may look at one case; it passes when all of them do.
            worse = max(outcome, self.corpus[folder].get(case, outcome), key=("passed", "skipped", "failed").index)
            self.corpus[folder][case] = worse
            if report.skipped:
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                self.skipped[folder][case] = reason.removeprefix("Skipped: ")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.corpus:
            return
        terminalreporter.section("corpus")
        for folder in sorted(self.corpus):
            told = Counter(self.corpus[folder].values())
            line = (
                f"{folder}: {told['passed']} of {told.total()} pass, {told['failed']} fail, {told['skipped']} skipped"
            )
            terminalreporter.write_line(line)
            for case, reason in sorted(self.skipped[folder].items()):
                terminalreporter.write_line(f"  skipped {case}: {reason}")

    def pytest_sessionfinish(self) -> None:
        folder = self.config.getoption("--results")
        if folder:
            told = {"counts": dict(self.counts), "failed": list(self.failed)}
            Path(folder, f"{os.getpid()}.json").write_text(json.dumps(told))


@pytest.fixture(autouse=True)
def _corpus_id(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """A test marked `corpus("folder/case")`, or with such a parameter id, is counted under that folder."""
    marker = request.node.get_closest_marker("corpus")
    if marker is None:
        return
    named = marker.args[0] if marker.args else getattr(getattr(request.node, "callspec", None), "id", "")
    if "/" in str(named):
        record_property("corpus", str(named))


def pytest_report_header() -> str:
    return f"load average {os.getloadavg()[0]:.2f}"
