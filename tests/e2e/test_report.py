"""What a real run reports for programs: the document, the usage of steps, workflows with the same job side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from e2e.command_line import repository, run_events, runyard
from runyard.report.document import RunDocument

if TYPE_CHECKING:
    from pathlib import Path

BUBBLEWRAP = ("--sandbox", "bubblewrap", "--network", "none")
ACTION = "runs:\n  using: composite\n  steps: [{run: 'head -c 3000000 /dev/urandom > x', shell: bash}]\n"


def workflow(*steps: str) -> str:
    return "on: push\njobs:\n  j:\n    runs-on: ubuntu-latest\n    steps:\n" + "".join(f"      - {s}\n" for s in steps)


def test_the_document_of_two_workflows_with_the_same_job(tmp_path: Path) -> None:
    files = {
        ".github/workflows/a.yml": workflow("{name: Break, run: 'echo \"last words\"; exit 3'}"),
        ".github/workflows/b.yml": workflow("run: 'true'"),
    }
    told = runyard(repository(tmp_path / "repo", files), "run", *BUBBLEWRAP, "--json")
    assert told.code == 1
    document = msgspec.json.decode(told.out, type=RunDocument)
    assert document.conclusion == "failure"
    first, second = document.runs
    assert (first.conclusion, second.conclusion) == ("failure", "success")
    (job,) = first.jobs
    assert job.failure is not None
    assert (job.failure.name, job.failure.command) == ("Break", 'echo "last words"; exit 3')
    assert job.failure.last_lines == ["last words"]
    assert job.rerun == "runyard run .github/workflows/a.yml --job j"
    assert [each.conclusion for each in second.jobs] == ["success"]


def test_the_schema_of_the_document_is_published(tmp_path: Path) -> None:
    told = runyard(tmp_path, "schema", "run-report")
    assert told.code == 0
    assert set(json.loads(told.out)["$defs"]["RunDocument"]["required"]) == {"conclusion", "runs", "notes"}


def test_the_usage_of_a_composite_is_that_of_its_steps_and_the_jobs_is_the_sum(tmp_path: Path) -> None:
    files = {
        ".github/workflows/a.yml": workflow("uses: actions/checkout@v4", "uses: ./act", "run: 'true'"),
        "act/action.yml": ACTION,
    }
    told = run_events(repository(tmp_path / "repo", files), *BUBBLEWRAP)
    assert told.code == 0, told.out
    used = {each["step"]["number"]: each["usage"] for each in told.of_type("step_finished")}
    assert used[2]["written_bytes"] >= 3_000_000
    assert used[2]["peak_memory"] > 1 << 20
    assert used[3]["written_bytes"] < 1_000_000
    (job,) = told.of_type("job_finished")
    assert job["usage"]["written_bytes"] >= used[2]["written_bytes"]
    assert job["usage"]["cpu_s"] > 0


CLIENT = """
import json, os, urllib.request
url, token = os.environ["ACTIONS_ID_TOKEN_REQUEST_URL"], os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]
base = "/".join(url.split("/")[:3])
def ask(to, data=None, **headers):
    headers |= {"Authorization": "Bearer " + token}
    return urllib.request.urlopen(urllib.request.Request(to, data, headers), timeout=10).read()
ids = json.loads(ask(base + "/"))
ids = {"workflow_run_backend_id": ids["plan"], "workflow_job_run_backend_id": ids["job"]}
def call(method, **more):
    path = base + "/twirp/github.actions.results.api.v1.ArtifactService/" + method
    return json.loads(ask(path, json.dumps({**ids, **more}).encode(), **{"Content-Type": "application/json"}))
made = call("CreateArtifact", name="dist", version=7, mime_type="text/plain")
put = urllib.request.Request(made["signed_upload_url"], b"hello", {"x-ms-blob-type": "BlockBlob"}, method="PUT")
urllib.request.urlopen(put, timeout=10)
call("FinalizeArtifact", name="dist", size="5")
"""


def test_an_artifact_that_a_client_uploads_is_an_event(tmp_path: Path) -> None:
    files = {
        ".github/workflows/a.yml": "permissions: {id-token: write}\n"
        + workflow("uses: actions/checkout@v4", "run: python3 client.py"),
        "client.py": CLIENT,
    }
    told = run_events(repository(tmp_path / "repo", files), *BUBBLEWRAP)
    assert told.code == 0, told.out
    (event,) = told.of_type("artifact")
    assert (event["name"], event["size"], event["step"]["number"]) == ("dist", 5, 2)
    assert len(event["digest"]) == 64
