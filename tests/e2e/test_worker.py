"""The worker command against a scripted server, with real job processes in real sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.worker_process import WorkerProcess, job, with_worker
from runyard.job import StepFinished

if TYPE_CHECKING:
    from pathlib import Path

    from source.dialout_double import Double

pytestmark = pytest.mark.timeout(100)


def test_a_job_is_claimed_executed_and_told(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(
            job(
                "one",
                {
                    "run": "echo hello; echo '::add-mask::hide-me-now'; echo 'it is hide-me-now'\n"
                    "echo o=v >> $GITHUB_OUTPUT",
                    "id": "s",
                },
                outputs={"o": "${{ steps.s.outputs.o }}"},
            )
        )
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert kept.result.conclusion == "success", kept.text()
        assert kept.result.outputs == {"o": "v"}
        assert "hello\n" in kept.text()
        assert "it is ***\n" in kept.text()
        assert "hide-me-now" in kept.masks
        assert kept.history.index("masks") < max(at for at, call in enumerate(kept.history) if call == "log")
        assert {each.step for each in kept.events if isinstance(each, StepFinished)} >= {0, 1}
        assert "Platform: linux/amd64 (native)" in kept.text()
        assert "Image: host" in kept.text()
        assert worker.lines[0].startswith("runyard worker w1 (linux/amd64) → http://127.0.0.1:")

    with_worker(tmp_path, test)
