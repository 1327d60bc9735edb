"""The built wheel works outside the repository, in an environment that has nothing but its requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")


def call(*command: str | Path, cwd: Path, timeout: float = 90) -> str:
    """Run and give its output; fails the test with the error where the command does."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if UV is None:
        pytest.skip("uv, which builds the wheel, is not in this environment")
    out = tmp_path_factory.mktemp("wheel")
    call(UV, "build", "--wheel", "--python", sys.executable, "-q", "--out-dir", out, ROOT, cwd=out)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_wheel_holds_its_data(built: Path) -> None:
    names = zipfile.ZipFile(built).namelist()
    assert any(name.endswith("demo_repository/.github/workflows/demo.yml") for name in names)
    assert any(name.endswith(".bpf") for name in names)
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.timeout(240)
def test_the_wheel_runs_a_workflow_in_an_empty_environment_elsewhere(built: Path, tmp_path: Path) -> None:
    assert UV is not None
    python = tmp_path / "env" / "bin" / "python"
    call(UV, "venv", "-q", "--python", sys.executable, tmp_path / "env", cwd=tmp_path)
    requirements = ROOT / "requirements.txt"
    call(UV, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", requirements, cwd=tmp_path)
    call(UV, "pip", "install", "-q", "--python", python, "--no-deps", built, cwd=tmp_path)
    runyard = tmp_path / "env" / "bin" / "runyard"
    shown = call(runyard, "demo", "--local", "--format", "plain", cwd=tmp_path)
    assert "each job had its own sandbox: 0 files" in shown
    # The same from a server and a worker of the wheel.
    shown = call(runyard, "demo", "--once", cwd=tmp_path)
    assert "each job had its own sandbox: 0 files" in shown
    assert "push on refs/heads/main: success" in shown
