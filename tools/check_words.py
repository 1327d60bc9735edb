"""Keeps out of the repository what is not about the product: a builder's machine, a registry's address, open marks.

The patterns are put together here, so that this file does not find itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

REGISTRIES = (
    "pypi" + r"\.org",
    "python" + "hosted",
    "npmjs" + r"\.",
    "debian" + r"\.org",
    "golang" + r"\.org",
    "crates" + r"\.io",
)
PLACES = (r"(?<!runner)/work" + r"/(main|shared|steering)", "/root" + r"/\.(pyenv|cargo|rustup)", "/tmp" + "/brief")
MARKS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")

RULES = (
    ("a registry's address", re.compile("|".join(REGISTRIES))),
    ("a path of one machine", re.compile("|".join(PLACES))),
    ("an open mark", re.compile(r"\b(" + "|".join(MARKS) + r")\b")),
    (
        "a possessive or atomic group, broken in Python 3.11.0 to 3.11.4",
        re.compile(r"re\.compile\(.*(\)[*+?]\+|\(\?>)"),
    ),
)


def tracked() -> list[Path]:
    """Every text file that git knows, new ones included."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=30,
    )
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def main() -> int:
    """Print each place; 1 when there is one."""
    found = 0
    for path in tracked():
        if not path.is_file() or path.stat().st_size > 2_000_000:
            continue
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            for what, pattern in RULES:
                if pattern.search(line):
                    found += 1
                    print(f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
