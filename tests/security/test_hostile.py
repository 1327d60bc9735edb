"""Hostile work through the command line: each gets a result and a message, and harms nothing beside itself."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from e2e.command_line import Told, repository, run_events

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
SECRET = "hush-4f1d-hush"
LARGE = 200_000_000

BOMB = """
import zipfile
with zipfile.ZipFile("bomb.zip", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("zeros", bytes(100 << 20))
"""
SLOW = [{"regexp": "^(a|aa)+$", "message": 1}]
MATCHER = {"problemMatcher": [{"owner": "slow", "pattern": SLOW}]}
TWIST = "head -c 4000 /dev/zero | tr '\\0' a; echo '!'"


JOBS: dict[str, list[dict[str, Any]]] = {
    "env": [
        {"run": f"head -c {LARGE} /dev/zero | tr '\\0' x > \"$GITHUB_ENV\""},
        {"if": "always()", "run": "echo lives on"},
    ],
    "link": [
        {"run": 'ln -sf /etc/passwd "$GITHUB_ENV"; ln -sf /etc/passwd "$GITHUB_OUTPUT"'},
        {"run": "env | grep -c root: || true"},
    ],
    "summary": [{"run": "head -c 5000000 /dev/zero | tr '\\0' s > \"$GITHUB_STEP_SUMMARY\""}],
    "matcher": [
        {"run": f"echo '{json.dumps(MATCHER)}' > m.json; echo ::add-matcher::m.json"},
        {"run": f"{TWIST}; {TWIST}; {TWIST}; {TWIST}"},
        {"run": "echo went on"},
    ],
    "output": [
        {
            "id": "s",
            "env": {"S": "${{ secrets.S }}"},
            "run": 'echo "plain=1" >> $GITHUB_OUTPUT; echo "hid=$S" >> $GITHUB_OUTPUT',
        },
    ],
    "composite": [{"uses": "actions/checkout@v4"}, {"uses": "./round"}],
    "bomb": [
        {"run": f"python3 -c '{BOMB}'"},
        {"uses": "actions/upload-artifact@v7", "with": {"name": "bomb.zip", "path": "bomb.zip", "archive": "false"}},
        {"uses": "actions/download-artifact@v7", "with": {"path": "got"}},
    ],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    place = tmp_path_factory.mktemp("hostile")
    jobs: dict[str, Any] = {name: {"runs-on": "ubuntu-latest", "steps": steps} for name, steps in JOBS.items()}
    jobs["output"]["outputs"] = {"plain": "${{ steps.s.outputs.plain }}", "hid": "${{ steps.s.outputs.hid }}"}
    files = {
        WORKFLOW: json.dumps({"on": "push", "jobs": jobs}),
        "round/action.yml": "runs: {using: composite, steps: [{uses: ./round}]}\n",
    }
    (place / "s.env").write_text(f"S={SECRET}\n")
    folder = repository(place / "repo", files)
    flags = ("--sandbox", "bubblewrap", "--network", "none", "--parallel", "2")
    limit = "GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT=0:00:00.05"
    return run_events(folder, *flags, "--secret-file", str(place / "s.env"), "--env", limit)


def errors(told: Told, job: str) -> str:
    return "\n".join(each["message"] for each in told.of_type("annotation", job=job, level="error"))


def test_D21_a_command_file_of_200_mb_fails_its_step_with_both_numbers(told: Told) -> None:
    assert told.conclusion("env") == "failure"
    said = errors(told, "env")
    assert f"{LARGE:,}" in said
    assert f"{16 << 20:,}" in said
    assert told.log("env", "output") == ["lives on"]


def test_D21_a_command_file_that_is_a_link_is_nothing_written(told: Told) -> None:
    assert told.conclusion("link") == "success"
    assert told.log("link", "output") == ["0"]


def test_D1_a_summary_of_5_mb_is_shown_up_to_the_limit_and_kept_whole(told: Told) -> None:
    assert told.conclusion("summary") == "success"
    (summary,) = told.of_type("summary", job="summary")
    assert summary["truncated_from"] == len(summary["whole"]) == 5_000_000
    assert len(summary["text"]) < 1_100_000


def test_a_catastrophic_matcher_is_taken_out_by_name(told: Told) -> None:
    assert told.conclusion("matcher") == "success"
    assert told.log("matcher", "output")[-1] == "went on"
    (warning,) = told.of_type("annotation", job="matcher", level="warning")
    assert "slow" in warning["message"]
    assert "took too long" in warning["message"]


def test_M11_an_output_with_a_secret_is_dropped_by_name(told: Told) -> None:
    (finished,) = told.of_type("job_finished", job="output")
    assert finished["outputs"] == {"plain": "1"}
    assert finished["dropped_outputs"] == ["hid"]
    assert SECRET not in told.out
    warnings = told.of_type("annotation", job="output", level="warning")
    assert [each["message"] for each in warnings] == ["Skip output 'hid' since it may contain secret."]


def test_a_composite_that_includes_itself_ends(told: Told) -> None:
    assert told.conclusion("composite") == "failure"
    assert "./round" in errors(told, "composite")


def test_a_zip_bomb_is_stored_and_not_unpacked(told: Told) -> None:
    assert told.conclusion("bomb") == "failure"
    assert "artifact 'bomb.zip' was not unpacked" in errors(told, "bomb")
    assert "zip bomb" in errors(told, "bomb")
    (artifact,) = told.of_type("artifact", job="bomb")
    assert artifact["name"] == "bomb.zip"


PROBE = r"""
import base64, errno, json, os, socket, sys, urllib.error, urllib.request
url, token = os.environ["ACTIONS_ID_TOKEN_REQUEST_URL"], os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]
gateway = int(url.split(":")[2].split("/")[0])
def code(bearer):
    asked = urllib.request.Request(url, headers={"Authorization": "Bearer " + bearer} if bearer else {})
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=10).status
    except urllib.error.HTTPError as refused:
        return refused.code
def reached(family, address, port, seconds):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(seconds)
        try:
            s.connect((address, port))
        except OSError:
            return False
        return s.getsockname() != s.getpeername()  # one may meet itself there
print("interfaces", sorted(name for _, name in socket.if_nameindex()))
print("loopback", [p for p in range(1, 65536) if reached(socket.AF_INET, "127.0.0.1", p, 1)] == [gateway])
outside = [a for a in sys.argv[1].split(",") if a]
ports = (22, 53, 80, 443, 2375, 8080, gateway)
found = [(a, p) for a in outside for p in ports if reached(socket.AF_INET6 if ":" in a else socket.AF_INET, a, p, 0.5)]
print("outside", found)
other = base64.b64decode(open(sys.argv[2]).read()).decode() if len(sys.argv) > 2 else ""
print("answers", code(token), code(""), code(other) if other else "-")
open("token", "w").write(base64.b64encode(token.encode()).decode())
"""


def addresses_of_this_machine() -> list[str]:
    told = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, timeout=10, check=True).stdout
    found = [each["local"] for link in json.loads(told) for each in link["addr_info"]]
    return [each for each in found if not each.startswith("127.") and each != "::1"]


def test_under_none_the_gateway_is_the_only_peer_and_takes_no_other_jobs_token(tmp_path: Path) -> None:
    well_known = ["10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "198.51.100.1", "fd00::1"]
    outside = ",".join([*well_known, *addresses_of_this_machine()])
    keep = {"uses": "actions/upload-artifact@v4", "with": {"name": "token", "path": "token"}}
    get = {"uses": "actions/download-artifact@v4", "with": {"name": "token", "path": "other"}}
    first = [{"uses": "actions/checkout@v4"}, {"run": f"python3 probe.py '{outside}'"}, keep]
    second = [{"uses": "actions/checkout@v4"}, get, {"run": f"python3 probe.py '{outside}' other/token"}]
    jobs = {
        "one": {"runs-on": "ubuntu-latest", "permissions": {"id-token": "write"}, "steps": first},
        "two": {"runs-on": "ubuntu-latest", "permissions": {"id-token": "write"}, "needs": "one", "steps": second},
    }
    folder = repository(tmp_path / "repo", {WORKFLOW: json.dumps({"on": "push", "jobs": jobs}), "probe.py": PROBE})
    told = run_events(folder, "--sandbox", "bubblewrap", "--network", "none")
    assert told.run == "success", told.out
    quiet = ["interfaces ['lo']", "loopback True", "outside []"]
    assert told.log("one", "output") == [*quiet, "answers 200 401 -"]
    assert told.log("two", "output") == [*quiet, "answers 200 401 403"]
