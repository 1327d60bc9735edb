"""The official clients of cache and artifacts, unchanged, in jobs without a network, against the services of the job.

They are installed once by npm from a lock file, and bundled into one script, which a local action of the test runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from e2e.command_line import Told, repository, run_events

HERE = Path(__file__).parent / "official"
BUILD = Path(__file__).parents[2] / "build" / "official-clients"
INSTALL_S = 90
BUNDLE_S = 20

pytestmark = [
    pytest.mark.timeout(170),
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None, reason="no node and npm on this machine"
    ),
]

ESBUILD = [
    *("node", "node_modules/esbuild/bin/esbuild", "main.js", "--bundle", "--platform=node", "--target=node20"),
    *("--format=cjs", "--define:import.meta.url=here"),
    "--banner:js=const here = require('node:url').pathToFileURL(__filename).href;",
]
"""One script that needs no folder of modules; the modules' own idea of where they are is replaced by the script's."""

ACTION = "name: clients\ninputs: {what: {required: true}}\nruns: {using: node20, main: main.cjs}\n"
WORKFLOW = """
on: push
permissions: {id-token: write}
jobs:
  first:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - {uses: ./.github/actions/clients, with: {what: save}}
      - {uses: actions/cache/save@v4, with: {path: tree, key: native-1}}
      - {uses: actions/upload-artifact@v4, with: {path: tree, name: native}}
  second:
    needs: first
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - {uses: actions/cache/restore@v4, with: {path: tree, key: tree-1}}
      - {uses: actions/download-artifact@v4, with: {name: dist, path: from-client}}
      - run: echo ">> built-in read $(cat tree/a.txt) $(wc -c < from-client/sub/b.bin)" && rm -r tree
      - {uses: ./.github/actions/clients, with: {what: native}}
      - {uses: ./.github/actions/clients, with: {what: restore}}
      - {uses: ./.github/actions/clients, with: {what: older}}
"""


def installed() -> Path:
    """The bundled script, made once for these sources by whichever test process comes first. Bounded in time."""
    sources = [HERE / name for name in ("package.json", "package-lock.json", "main.js")]
    digest = hashlib.sha256(
        b"\0".join([*(path.read_bytes() for path in sources), *map(os.fsencode, ESBUILD)])
    ).hexdigest()[:16]
    bundle = BUILD / f"main-{digest}.cjs"
    if bundle.exists():
        return bundle
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        hold(lock.fileno())
        if bundle.exists():
            return bundle
        for path in sources:
            shutil.copy(path, BUILD)
        npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        run(npm, INSTALL_S, "the official clients could not be installed")
        making = f"{bundle.name}.part"
        run([*ESBUILD, f"--outfile={making}"], BUNDLE_S, "the official clients could not be bundled")
        (BUILD / making).rename(bundle)
    return bundle


def hold(descriptor: int) -> None:
    deadline = time.monotonic() + INSTALL_S + BUNDLE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                pytest.skip("another process installs the official clients for too long")
            time.sleep(0.2)
        else:
            return


def run(command: list[str], seconds: int, failure: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=BUILD,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "NO_UPDATE_NOTIFIER": "1"},
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{failure} within {seconds} s")
    if done.returncode:
        pytest.skip(f"{failure}: {done.stderr.strip()[-300:]}")


def run_workflow(folder: Path) -> Told:
    """One run of the workflow: it holds all that is looked at below."""
    bundle = installed()
    files = {
        ".github/actions/clients/action.yml": ACTION,
        ".github/actions/clients/main.cjs": bundle.read_text(),
        ".github/workflows/w.yml": WORKFLOW,
    }
    repository(folder / "repo", files)
    out = folder / "out"
    seen = run_events(
        folder / "repo", "--sandbox", "bubblewrap", "--network", "none", "--artifacts", str(out), deadline_s=60
    )
    assert seen.run == "success", "\n".join([*seen.log("first"), *seen.log("second"), seen.err])
    assert (out / "dist/sub/b.bin").stat().st_size == 3_000_000
    return seen


def said(told: Told, job: str) -> list[str]:
    lines = [line.removeprefix(">> ") for line in told.log(job) if line.startswith(">> ")]
    return [line for line in lines if not line.startswith(("native", "built-in"))]


def check_the_cache_client_saves_and_restores(told: Told) -> None:
    first, second = said(told, "first"), said(told, "second")
    assert first[:3] == ["v2 undefined", "saved true", "again -1"]
    assert second[:4] == ["hit tree-1", "content first 3000000", "mode 755", "prefix tree-1"]


def check_the_older_cache_protocol_is_served_to_the_client_too(told: Told) -> None:
    assert said(told, "second")[-4:] == ["miss undefined", "saved true", "hit old-1", "content first"]


def check_the_artifact_client_uploads_lists_downloads_and_deletes(told: Told) -> None:
    first, second = said(told, "first"), said(told, "second")
    assert first[3:5] == ["uploaded true true true", "raw true"]
    assert second[4:8] == ["listed a.txt,dist,native", "downloaded first 3000000", "raw first", "deleted native,a.txt"]


def check_the_built_in_actions_and_the_clients_read_what_the_others_wrote(told: Told) -> None:
    lines = told.log("second")
    assert ">> built-in read first 3000000" in lines
    assert {">> native cache native-1", ">> native content first 3000000", ">> native artifact #!/bin/sh"} <= set(lines)


def check_F56_the_client_shows_who_has_a_name(told: Told) -> None:
    twice, missing = said(told, "first")[5:7]
    assert "already exists" in twice
    assert "nothing" in missing


def check_the_identity_client_gets_a_token(told: Told) -> None:
    assert "identity 3" in said(told, "second")


def test_F56_the_official_clients_in_jobs_without_a_network(tmp_path: Path) -> None:
    """One test, since the run is most of the work and several test processes share it out by the test."""
    told = run_workflow(tmp_path)
    check_the_cache_client_saves_and_restores(told)
    check_the_older_cache_protocol_is_served_to_the_client_too(told)
    check_the_artifact_client_uploads_lists_downloads_and_deletes(told)
    check_the_built_in_actions_and_the_clients_read_what_the_others_wrote(told)
    check_F56_the_client_shows_who_has_a_name(told)
    check_the_identity_client_gets_a_token(told)
