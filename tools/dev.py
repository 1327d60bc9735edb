"""What `./dev` does: sets up the checkout's environment and runs everything that CI runs.

Needs only git and Python. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
LOCK = ROOT / "requirements-dev.txt"
STAMP = VENV / "stamp"
SOURCES = ("src", "tests", "tools", "bench")

SYSTEM_PACKAGES = {
    "slirp4netns": "slirp4netns",
    "nft": "nftables",
    "dockerd": "docker.io",
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "newuidmap": "uidmap",
    "zstd": "zstd",
    "busybox": "busybox-static",
    "ps": "procps",
}


def say(text: str) -> None:
    """One line of ours on standard error."""
    print(f"dev: {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], *, timeout: float = 1800, quiet: bool = False) -> int:
    """Run to its end in the checkout; the exit code, or 124 after `timeout` seconds (its whole group is ended)."""
    out = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        say(f"{Path(str(command[0])).name} did not end in {timeout:.0f} s and is ended")
        end_group(process)
        return 124
    except KeyboardInterrupt:
        end_group(process)
        raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session's group, politely first."""
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# --- set-up -----------------------------------------------------------------------------------------------------------


def wanted_stamp() -> str:
    """What the environment was made from; a change makes it anew."""
    return hashlib.sha256(LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()


def setup() -> int:
    """Make `.venv` from the hashed lock. Quiet when nothing changed."""
    if STAMP.is_file() and STAMP.read_text() == wanted_stamp() and (BIN / "runyard").exists():
        return 0
    began = time.monotonic()
    say("making .venv from requirements-dev.txt (Python packages, hashes checked)")
    if not (BIN / "python").exists() and (code := _make_venv()):
        return code
    code = _install()
    if code:
        return code
    STAMP.write_text(wanted_stamp())
    say(f"the environment is ready after {time.monotonic() - began:.0f} s: .venv/bin/runyard")
    return 0


def _make_venv() -> int:
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = str(base) if base.exists() else sys.executable
    if run([python, "-m", "venv", VENV], quiet=True) == 0:
        return 0
    shutil.rmtree(VENV, ignore_errors=True)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("this Python has no ensurepip: installing the Debian package python3-venv")
        run(["apt-get", "update"], quiet=True)
        run(["apt-get", "install", "-y", "--no-install-recommends", "python3-venv"], quiet=True)
        if run([python, "-m", "venv", VENV]) == 0:
            return 0
    say("python -m venv failed; on Debian: apt-get install python3-venv")
    return 3


def _install() -> int:
    python = BIN / "python"
    with tempfile.TemporaryDirectory() as folder:
        only_uv = Path(folder) / "uv.txt"
        only_uv.write_text(_lock_entry("uv"))
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "-q",
            "--require-hashes",
            "-r",
        ]
        if (
            run([*pip, only_uv]) == 0
            and run([BIN / "uv", "pip", "sync", "--python", python, "--require-hashes", "-q", LOCK]) == 0
        ):
            return run([BIN / "uv", "pip", "install", "--python", python, "-q", "--no-deps", "-e", ROOT])
        say("uv is of no use here; going on with pip")
        if run([*pip, LOCK]) or run([python, "-m", "pip", "install", "-q", "--no-deps", "-e", ROOT]):
            say("the packages could not be installed; is a Python package index reachable?")
            return 3
        return 0


def _lock_entry(name: str) -> str:
    lines = LOCK.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"{name}=="))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return "\n".join(lines[start:end]) + "\n"


def system() -> int:
    """Install the Debian packages that the whole suite uses, where that can be done; say what is missing elsewhere."""
    missing = {tool: package for tool, package in SYSTEM_PACKAGES.items() if not _which(tool)}
    if not missing:
        return 0
    packages = sorted(set(missing.values()))
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        say(f"not here: {', '.join(missing)}; tests that need them are skipped (Debian packages: {' '.join(packages)})")
        return 0
    say(f"installing Debian packages: {' '.join(packages)}")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run(["apt-get", "update"], timeout=300, quiet=True)
    code = run(["apt-get", "install", "-y", "--no-install-recommends", *packages], timeout=900, quiet=True)
    if code:
        say(f"apt-get answered {code}; tests that need what is missing are skipped")
    return 0


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def engine() -> None:
    """Start a container engine where one can be had; tests that need it say why they are skipped."""
    script = ROOT / ".ci" / "engine"
    if os.geteuid() != 0 or not _which("dockerd"):
        say("no container engine is started: that takes root and dockerd")
        return
    if run([script], timeout=180) != 0:
        say("the container engine did not start; its tests are skipped with that reason")


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Tests that share a time budget in seconds."""

    name: str
    budget_s: int
    what: str
    workers: int = 2
    dist: str = "loadfile"


GROUPS = (
    Group("unit", 180, "pure cores and thin shells"),
    Group("corpus", 180, "cases of the shared corpus", dist="worksteal"),
    Group("sandbox", 180, "real sandboxes, networks, attacks"),
    Group("engines", 180, "the same promises on real container engines"),
    Group("e2e", 180, "whole commands, faults, security"),
    Group("server", 180, "servers on loopback"),
    Group("web", 60, "pages in a real browser"),
    Group("seeds", 120, "seeded histories of the control plane"),
)

NOT_YET = ("web",)
"""Groups that stand in the table of budgets before their rooms are built."""

KILL_AFTER = 2.5
"""A group that takes longer than this many budgets is ended, so that a hang never eats the run."""


@dataclass
class Result:
    """How a group ended."""

    group: Group
    code: int
    took_s: float
    counts: dict[str, int] = field(default_factory=dict)
    second_try: list[str] = field(default_factory=list)


def test(arguments: Sequence[str]) -> int:
    """Run the groups one after another, print the table of budgets; 1 when a test failed or a budget was over-run."""
    parser = argparse.ArgumentParser(prog="./dev test", description="Runs the tests, group by group.")
    parser.add_argument("--group", action="append", choices=[group.name for group in GROUPS], help="only this group")
    parser.add_argument("--no-system", action="store_true", help="install no Debian packages and start no engine")
    parser.add_argument("rest", nargs="*", help="given to pytest after --")
    given = parser.parse_args(arguments)
    if code := setup():
        return code
    if not given.no_system:
        system()
        engine()
    wanted = [group for group in GROUPS if not given.group or group.name in given.group]
    for group in [group for group in wanted if group.name in NOT_YET and not (ROOT / "tests" / group.name).is_dir()]:
        say(f"group {group.name}: has no tests yet ({group.what})")
        wanted.remove(group)
    results = [_run_group(group, given.rest) for group in wanted]
    return _table(results)


def _run_group(group: Group, rest: Sequence[str]) -> Result:
    say(f"group {group.name}: {group.what}")
    with tempfile.TemporaryDirectory(prefix="runyard-results-") as folder:
        began = time.monotonic()
        pytest: list[str | Path] = [BIN / "python", "-m", "pytest", "-q", f"--group={group.name}"]
        first = [*pytest, f"--results={folder}", f"--numprocesses={group.workers}", f"--dist={group.dist}", *rest]
        code = run(first, timeout=group.budget_s * KILL_AFTER)
        took = time.monotonic() - began
        counts, failed = _read_results(Path(folder))
        result = Result(group, 0 if code == 5 else code, took, counts)
        if code == 1 and 0 < len(failed) <= 5:
            say(f"group {group.name}: {len(failed)} failed; trying them once more, alone")
            again = run([*pytest, "--numprocesses=0", *failed], timeout=300)
            if again == 0:
                result.second_try = failed
                result.code = 0
        return result


def _read_results(folder: Path) -> tuple[dict[str, int], list[str]]:
    counts: dict[str, int] = {}
    failed: list[str] = []
    for file in sorted(folder.glob("*.json")):
        told = json.loads(file.read_text())
        for name, count in told["counts"].items():
            counts[name] = counts.get(name, 0) + count
        failed += told["failed"]
    return counts, failed


def _table(results: Sequence[Result]) -> int:
    print("\ngroup     budget    took   passed  failed  skipped")
    bad = 0
    for result in results:
        over = result.took_s > result.group.budget_s
        verdict = "ok"
        if result.code == 124:
            verdict = "ENDED: it did not end by itself"
        elif result.code:
            verdict = "FAILED"
        elif over:
            verdict = "OVER ITS BUDGET"
        elif result.second_try:
            verdict = f"ok, but {len(result.second_try)} passed only when tried alone: {', '.join(result.second_try)}"
        bad += verdict.split(":")[0] in {"ENDED", "FAILED", "OVER ITS BUDGET"}
        counts = result.counts
        print(
            f"{result.group.name:<8} {result.group.budget_s:>5} s {result.took_s:>6.0f} s {counts.get('passed', 0):>8}"
            f" {counts.get('failed', 0):>7} {counts.get('skipped', 0):>8}   {verdict}"
        )
    total = {name: sum(r.counts.get(name, 0) for r in results) for name in ("passed", "failed", "skipped")}
    recovered = sum(len(r.second_try) for r in results)
    print(
        f"\n{total['passed'] + recovered} passed, {total['failed'] - recovered} failed, {total['skipped']} skipped",
        flush=True,
    )
    return 1 if bad else 0


# --- the rest ---------------------------------------------------------------------------------------------------------


def check(_: Sequence[str] = ()) -> int:
    """Everything that CI checks besides the tests: format, lint, types, import rules, words, generated pages."""
    if code := setup():
        return code
    steps: list[tuple[str, list[str | Path]]] = [
        ("format", [BIN / "ruff", "format", "--check", "-q", *SOURCES]),
        ("lint", [BIN / "ruff", "check", "-q", *SOURCES]),
        ("types", [BIN / "mypy"]),
        ("import rules", [BIN / "lint-imports", "--no-cache"]),
        ("words", [BIN / "python", ROOT / "tools" / "check_words.py"]),
        ("generated pages", [BIN / "python", ROOT / "tools" / "make_docs.py", "--check"]),
    ]
    failed = []
    for name, command in steps:
        code = run(command)
        say(f"{name}: {'ok' if code == 0 else 'FAILED'}")
        if code:
            failed.append(name)
    return 1 if failed else 0


def fix(_: Sequence[str] = ()) -> int:
    """Format, and mend what the linter can mend."""
    return (
        setup()
        or run([BIN / "ruff", "check", "-q", "--fix", *SOURCES])
        or run([BIN / "ruff", "format", "-q", *SOURCES])
    )


def demo(arguments: Sequence[str]) -> int:
    """Run the example repository's workflow, each job in a sandbox."""
    return setup() or subprocess.call([BIN / "runyard", "demo", *arguments], cwd=ROOT)


def bench(arguments: Sequence[str]) -> int:
    """Measure rows of the table of numbers."""
    return setup() or subprocess.call([BIN / "python", "-m", "bench.run", *arguments], cwd=ROOT)


def docs(_: Sequence[str] = ()) -> int:
    """Write the generated pages anew."""
    return setup() or run([BIN / "python", ROOT / "tools" / "make_docs.py"])


def lock(_: Sequence[str] = ()) -> int:
    """Resolve the dependencies anew into the two lock files."""
    if code := setup():
        return code
    base: list[str | Path] = [BIN / "uv", "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes", "-q"]
    base += ["--no-header", "--no-annotate", "--upgrade", "--python-version", "3.11"]
    return run([*base, "-o", "requirements.txt"]) or run(
        [*base, "--group", "dev", "--extra", "node", "-o", "requirements-dev.txt"]
    )


def wheel(_: Sequence[str] = ()) -> int:
    """Build the wheel into `dist/`."""
    return setup() or run([BIN / "uv", "build", "--wheel", "--python", BIN / "python", "-q", "--out-dir", "dist"])


def runyard(arguments: Sequence[str]) -> int:
    """The command line of this checkout, in the working directory."""
    return setup() or subprocess.call([BIN / "runyard", *arguments])


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "setup": lambda _: setup(),
    "demo": demo,
    "test": test,
    "check": check,
    "fix": fix,
    "bench": bench,
    "docs": docs,
    "lock": lock,
    "wheel": wheel,
    "system": lambda _: system(),
    "runyard": runyard,
}


def main() -> int:
    """Dispatch; without a command, list them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    name, rest = (sys.argv[1] if len(sys.argv) > 1 else "help"), sys.argv[2:]
    if name not in COMMANDS:
        print("usage: ./dev COMMAND …")
        for command, does in COMMANDS.items():
            first = (
                does.__doc__ or {"setup": setup.__doc__, "system": system.__doc__}.get(command) or ""
            ).splitlines()[0]
            print(f"  {command:<9} {first}")
        return 0 if name in {"help", "--help", "-h"} else 2
    try:
        return COMMANDS[name](rest)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
