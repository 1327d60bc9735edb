"""Compiles the attack probe for each architecture whose compiler is here, beside its source.

`python tools/build_probe.py` rewrites the shipped binaries. Users need no compiler: `runyard doctor --attack` carries
the result into a sandbox as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src" / "runyard" / "sandbox" / "attack"
COMPILERS = {"x86_64": ("x86_64-linux-gnu-gcc", "gcc"), "aarch64": ("aarch64-linux-gnu-gcc",)}
FLAGS = (
    *("-Os", "-static", "-nostdlib", "-nostartfiles", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-Wall", "-Wextra", "-Werror"),
    "-Wl,--build-id=none,-z,norelro,-z,noseparate-code,-s",
)


def build(architecture: str, destination: Path) -> bool:
    """Compile for one architecture; False where there is no compiler for it."""
    compiler = next((found for name in COMPILERS[architecture] if (found := shutil.which(name))), None)
    if compiler is None:
        return False
    subprocess.run([compiler, *FLAGS, "-o", str(destination), str(FOLDER / "probe.c")], check=True, timeout=60)
    destination.chmod(0o755)
    return True


def main() -> int:
    """Build what can be built; 1 when nothing could."""
    built = [name for name in COMPILERS if build(name, FOLDER / f"probe.{name}")]
    print(f"built for {', '.join(built) or 'nothing: there is no compiler'}")
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main())
