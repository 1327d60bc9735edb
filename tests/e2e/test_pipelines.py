"""A pipeline from the command line: jobs, matrix, failure, and the artifacts it declares."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from e2e.command_line import repository, runyard

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = ".runyard/ci.toml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none", "--format", "plain")


def members(path: Path) -> dict[str, bytes]:
    """The regular files of a tar by name."""
    with tarfile.open(path) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        return {member.name: (tar.extractfile(member) or pytest.fail("no file")).read() for member in files}


@pytest.mark.timeout(90)
def test_a_pipeline_runs_and_leaves_what_it_declares(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo",
        {
            "data.txt": "from the repository\n",
            PIPELINE: """
[env]
WHO = "world"
[jobs.build]
run = '''
cat data.txt
echo "hello $WHO, $TOKEN" > made.txt
mkdir -p out/deep
echo page > out/deep/index.html
'''
secrets = ["TOKEN"]
artifacts = [{ name = "docs", path = "out", browse = true }, { name = "one", path = "made.txt" }]
[jobs.empty]
needs = ["build"]
checkout = false
matrix = { n = [1, 2] }
steps = ["test ! -e data.txt", { name = "shown", run = "echo leg ${{ matrix.n }}" }]
""",
        },
    )
    secrets = tmp_path / "secrets.env"
    secrets.write_text("TOKEN=s3cr3t-value\n")
    out = tmp_path / "out"
    told = runyard(folder, "run", *LOCAL, "--secret-file", str(secrets), "--artifacts", str(out), deadline_s=60)
    assert told.code == 0, told.out + told.err
    assert "from the repository" in told.out
    assert "leg 1" in told.out
    assert "leg 2" in told.out
    assert "s3cr3t-value" not in told.out + told.err
    assert members(out / "build" / "docs.tar") == {"./deep/index.html": b"page\n"}
    assert members(out / "build" / "one.tar") == {"made.txt": b"hello world, s3cr3t-value\n"}
    assert sorted(path.name for path in (out / "build").iterdir()) == ["docs.tar", "one.tar"]


@pytest.mark.timeout(90)
def test_an_artifact_that_is_not_there_fails_the_job_and_is_named(tmp_path: Path) -> None:
    folder = repository(
        tmp_path / "repo",
        {
            PIPELINE: """
[jobs.none]
run = "true"
artifacts = [{ name = "docs", path = "target/doc" }, { name = "-n", path = "-weird" }]
[jobs.failed]
run = "echo evidence > log.txt; false"
artifacts = [{ name = "never", path = "log.txt" }, { name = "log", path = "log.txt", when = "always" }]
""",
        },
    )
    out = tmp_path / "out"
    told = runyard(folder, "run", *LOCAL, "--artifacts", str(out), deadline_s=60)
    assert told.code == 1
    assert "Artifact docs could not be collected: there is no target/doc in the workspace" in told.out
    assert "Artifact -n could not be collected: there is no -weird in the workspace" in told.out
    assert "Artifact never is not collected: the job has not succeeded" in told.out
    assert members(out / "failed" / "log.tar") == {"log.txt": b"evidence\n"}
    assert not (out / "failed" / "never.tar").exists()
