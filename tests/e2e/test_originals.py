"""What the original actions need (D10, D18), with stand-ins written here; and the script that tries the originals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from action.origins import make_origin
from e2e.test_run_corpus import has_node
from trials import originals
from trials.scenarios import DONE, Scenario

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not has_node(), reason="JavaScript actions need a node (pip install 'runyard[node]')"),
]

MANIFEST = """
name: c
inputs:
  repository: {default: "${{ github.repository }}"}
  ref: {default: ""}
  token: {default: "${{ github.token }}"}
outputs: {commit: {}}
runs: {using: node20, main: main.js, post: post.js}
"""
MAIN = """
const {execFileSync: run} = require('child_process'), fs = require('fs'), env = process.env;
if (!env.INPUT_TOKEN) throw new Error('Input required and not supplied: token');
const git = (...words) => run('git', words, {stdio: ['ignore', 'pipe', 'inherit']}).toString().trim();
const wanted = env.INPUT_REF || env.GITHUB_SHA;
git('init', '-q', '.');
git("config", "remote.origin.url", `${env.GITHUB_SERVER_URL}/${env.INPUT_REPOSITORY}`);
console.log('listed ' + git('ls-remote', 'origin').split('\\n').map((line) => line.split('\\t')[1]).join(' '));
git('fetch', '-q', '--depth=1', '--filter=blob:none', 'origin', wanted);
git('checkout', '-q', 'FETCH_HEAD');
fs.appendFileSync(env.GITHUB_OUTPUT, 'commit=' + git('rev-parse', 'HEAD') + '\\n');
console.log('the token is ' + env.INPUT_TOKEN);
"""
STEPS = f"""
      - {{id: c, uses: "actions/checkout@V"}}
      - run: |
          test "$(cat src/code.txt)" = edited
          test "${{{{ steps.c.outputs.commit }}}}" != "${{{{ github.sha }}}}"
          test -z "${{{{ github.token }}}}${{{{ secrets.GITHUB_TOKEN }}}}"
          echo "{DONE}"
      - {{uses: "actions/checkout@V", with: {{ref: "refs/heads/other"}}}}
      - run: test "$(cat src/code.txt)" = other
"""


def test_the_trial_tells_what_works_and_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"action.yml": MANIFEST, "main.js": MAIN, "post.js": "console.log('cleaned')"}
    for tag, script in (("v4", MAIN), ("v5", "process.exit(3)")):
        make_origin(tmp_path / "made", "actions/checkout", {**files, "main.js": script}, tag=tag)
    mirror = tmp_path / "mirror" / "actions"
    mirror.mkdir(parents=True)
    (mirror / "checkout.git").symlink_to(tmp_path / "made" / "actions" / "checkout" / ".git")
    monkeypatch.setattr(originals, "SCENARIOS", (Scenario("actions/checkout", (4, 5), STEPS),))
    work = tmp_path / "work"
    code = originals.main(["--mirror", str(tmp_path / "mirror"), "--network", "none", "--keep", str(work)])
    told = capsys.readouterr().out
    works, fails, count = told.splitlines()
    assert works.startswith("actions/checkout           v4 "), told
    assert works.endswith("works")
    assert "FAILS: step Run actions/checkout@v5: exit code 3" in fails
    assert (count, code) == ("1 of 2 work", 1)
    log = (work / "actions-checkout-none" / "events.jsonl").read_text()
    assert "the token is ***" in log, "nothing shows the token of the services"
    assert "listed HEAD refs/heads/main refs/heads/other refs/tags/v1.0" in log
    assert "a token that only this job's own services take (D18)" in log


def test_an_empty_mirror_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert originals.main(["--mirror", str(tmp_path)]) == 2
    assert "actions/checkout           not in the mirror" in capsys.readouterr().out
