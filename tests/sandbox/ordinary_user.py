"""A process of an ordinary user that runs conformance cases by name, for machines where the tests run as root.

The interpreter and the checkout may lie where that user may not look (below /root): in a mount namespace of its own the
folders on the way are replaced by open ones, with nothing in them but what is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
UID = 64_099
"""A made-up user without a name, a home, or anything else on this machine."""


def open_the_way(paths: list[str]) -> None:
    """In a new mount namespace, make these folders reachable for everybody."""
    from runyard.sandbox.enter import system

    system.unshare(system.CLONE_NEWNS)
    system.mount("none", "/", None, system.MS_REC | system.MS_PRIVATE)
    closed: dict[str, list[str]] = {}
    for path in paths:
        for folder in reversed(Path(path).parents):
            if not folder.stat().st_mode & 0o001:
                closed.setdefault(str(folder), []).append(path)
                break
    for shut, wanted in closed.items():
        trees = [(path, system.clone_tree(path, None, recursive=True)) for path in wanted]
        system.mount("tmpfs", shut, "tmpfs", 0, "mode=755,size=1m")
        for path, tree in trees:
            Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
            system.attach_tree(tree, path)


def become(home: str) -> None:
    """Be that user, with a home of its own."""
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.umask(0o022)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "RUNYARD_STATE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(HOME=home, USER="ordinary", LOGNAME="ordinary")
    os.chdir(home)


class Ordinary:
    """The user's process, seen from the tests."""

    def __init__(self, home: Path) -> None:
        os.chown(home, UID, UID)
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"},
        )

    def run(self, module: str, case: str, seconds: float) -> str | None:
        """Run one case; None when it passed, else what went wrong."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([module, case]).encode() + b"\n")
        self.process.stdin.flush()
        line = b""
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.process.kill()
                return f"no answer in {seconds:g} s"
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                return "the user's process ended"
            line += part
        told: str | None = json.loads(line)
        return told

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def _run_case(module: Any, case: str) -> str | None:
    from runyard.sandbox.registry import open_sandbox

    try:
        module.run_case(case, lambda: open_sandbox("bubblewrap"))
    except BaseException:  # noqa: BLE001 - told to the test, whatever it is
        return traceback.format_exc()
    return None


def main() -> None:
    """Answer each line (module, case) with a line (null, or what went wrong)."""
    home = sys.argv[1]
    prefix = os.path.realpath(sys.base_prefix)
    open_the_way([prefix, str(ROOT), home, os.path.realpath(sys.prefix)])
    become(home)
    from importlib import import_module

    for line in sys.stdin:
        module, case = json.loads(line)
        print(json.dumps(_run_case(import_module(f"sandbox.{module}"), case)), flush=True)


if __name__ == "__main__":
    main()
