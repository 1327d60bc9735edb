"""Jobs that call their services through the gateway, with no network at all: cache, artifacts, git, identity."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from e2e.command_line import repository, run_events

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.command_line import Told

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine for JavaScript actions"),
]

ACTION = "name: call\ninputs: {what: {required: true}}\nruns: {using: node20, main: main.js}\n"
MAIN = r"""
const fs = require('fs'), http = require('http'), net = require('net'), child = require('child_process');
const env = process.env, token = env.ACTIONS_RUNTIME_TOKEN, base = env.ACTIONS_RESULTS_URL;
function ask(method, url, body, given) {
  return new Promise((done, failed) => {
    const headers = {authorization: `Bearer ${given || token}`, 'content-type': 'application/json'};
    const request = http.request(url, {method, headers: given === '' ? {} : headers}, (answer) => {
      const parts = [];
      answer.on('data', (part) => parts.push(part));
      answer.on('end', () => done({status: answer.statusCode, text: Buffer.concat(parts).toString()}));
    });
    request.on('error', failed);
    request.end(body === undefined ? undefined : Buffer.isBuffer(body) ? body : JSON.stringify(body));
  });
}
const twirp = async (service, call, body) => {
  const answer = await ask('POST', new URL(`/twirp/github.actions.results.api.v1.${service}/${call}`, base), body);
  return {status: answer.status, ...JSON.parse(answer.text)};
};
const ids = () => {
  const claims = JSON.parse(Buffer.from(token.split('.')[1], 'base64url'));
  const [, plan, job] = claims.scp.split(':');
  return {workflow_run_backend_id: plan, workflow_job_run_backend_id: job};
};
const reaches = (host, port) => new Promise((done) => {
  const socket = net.connect({host, port, timeout: 1500}, () => { socket.destroy(); done(true); });
  socket.on('error', () => done(false));
  socket.on('timeout', () => { socket.destroy(); done(false); });
});
const what = {
  async save() {
    const made = await twirp('CacheService', 'CreateCacheEntry', {key: 'k', version: 'v'});
    await ask('PUT', made.signed_upload_url, Buffer.from('cached content'), '');
    const done = await twirp('CacheService', 'FinalizeCacheEntryUpload', {key: 'k', version: 'v', size_bytes: '14'});
    console.log('saved', done.ok);
    const notes = {...ids(), name: 'notes'};
    const typed = {...notes, version: 7, mime_type: 'text/plain'};
    const art = await twirp('ArtifactService', 'CreateArtifact', typed);
    await ask('PUT', art.signed_upload_url, Buffer.from('noted'), '');
    console.log('finished', (await twirp('ArtifactService', 'FinalizeArtifact', {...notes, size: '5'})).ok);
  },
  async restore() {
    const wanted = {key: 'x', restore_keys: ['k'], version: 'v'};
    const found = await twirp('CacheService', 'GetCacheEntryDownloadURL', wanted);
    console.log('restored', found.matched_key, (await ask('GET', found.signed_download_url, undefined, '')).text);
    const listed = await twirp('ArtifactService', 'ListArtifacts', ids());
    console.log('listed', listed.artifacts.map((each) => `${each.name}:${each.size}`).join());
    const twice = await twirp('ArtifactService', 'CreateArtifact', {...ids(), name: 'notes', version: 4});
    console.log('conflict', twice.status, twice.msg);
  },
  async probe() {
    console.log('none', (await ask('POST', `${base}twirp/x`, {}, '')).status);
    console.log('other', (await ask('POST', `${base}twirp/x`, {}, env.INPUT_TOKEN || 'a.b.c')).status);
    const url = new URL(base);
    console.log('gateway', await reaches(url.hostname, url.port));
    for (const [host, port] of [['10.0.0.1', 80], ['169.254.169.254', 80], ['127.0.0.1', 22], ['1.1.1.1', 53]])
      console.log(host, await reaches(host, port));
    console.log('the token is', token);
  },
  async clone() {
    const url = `${env.GITHUB_SERVER_URL}/${env.GITHUB_REPOSITORY}`;
    child.execFileSync('git', ['clone', '-q', '--depth=1', url, '/tmp/clone'], {stdio: 'inherit'});
    console.log('cloned', fs.readFileSync('/tmp/clone/hello.txt', 'utf8').trim());
    const pushed = child.spawnSync('git', ['-C', '/tmp/clone', 'push', '-q', 'origin', 'HEAD:refs/heads/evil']);
    console.log('pushed', pushed.status === 0);
  },
};
what[env.INPUT_WHAT]().catch((error) => { console.error(error); process.exit(1); });
"""
FILES = {".github/actions/call/action.yml": ACTION, ".github/actions/call/main.js": MAIN, "hello.txt": "hello\n"}


def told(tmp_path: Path, workflow: str, *arguments: str) -> Told:
    folder = tmp_path / "repo"
    if not folder.exists():
        repository(folder, {**FILES, ".github/workflows/w.yml": workflow})
    return run_events(folder, "--sandbox", "bubblewrap", "--network", "none", *arguments, deadline_s=100)


BOTH = """
on: push
jobs:
  first:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: env | grep -c ^ACTIONS_ || true
      - {uses: ./.github/actions/call, with: {what: save}}
  second:
    needs: first
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - {uses: ./.github/actions/call, with: {what: restore}}
      - {uses: ./.github/actions/call, with: {what: probe}}
      - {uses: ./.github/actions/call, with: {what: clone}}
"""


def test_F56_a_second_job_finds_what_the_first_saved_and_reaches_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen = told(tmp_path, BOTH, "--artifacts", str(out))
    assert seen.run == "success", seen.out[-4000:] + seen.err
    first, second = seen.log("first"), seen.log("second")
    assert "0" in first, "a run step has no ACTIONS_ variable"
    assert {"saved true", "finished true"} <= set(first)
    assert "restored k cached content" in second
    assert "listed notes:5" in second
    (conflict,) = [line for line in second if line.startswith("conflict")]
    assert conflict.startswith("conflict 409")
    assert "'first'" in conflict
    assert {"none 401", "other 403", "gateway true"} <= set(second)
    for host in ("10.0.0.1", "169.254.169.254", "127.0.0.1", "1.1.1.1"):
        assert f"{host} false" in second
    assert "the token is ***" in second
    assert {"cloned hello", "pushed false"} <= set(second)
    assert "Cache: 1 of 1 lookups hit" in second
    assert (out / "notes/notes").read_text() == "noted"
    assert (tmp_path / "cache/runyard/services/index.db").is_file(), "the default is the user's cache folder"


IDENTITY = """
on: push
jobs:
  with:
    runs-on: ubuntu-latest
    permissions: {id-token: write}
    steps:
      - run: |
          exec 3<>/dev/tcp/127.0.0.1/$(echo "$ACTIONS_ID_TOKEN_REQUEST_URL" | sed 's,.*:\\([0-9]*\\)/.*,\\1,')
          printf 'GET /oidc/token?audience=cloud HTTP/1.0\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n' \\
            "$ACTIONS_ID_TOKEN_REQUEST_TOKEN" >&3
          sed -n '$p' <&3 | sed 's/.*"value":"\\([^"]*\\)".*/\\1/' > token
          cut -d. -f2 < token | tr _- /+ | base64 -di 2>/dev/null || true
  without:
    runs-on: ubuntu-latest
    steps:
      - run: env | grep -c ^ACTIONS_ || true
"""


def test_an_identity_is_given_where_the_permission_is(tmp_path: Path) -> None:
    seen = told(tmp_path, IDENTITY)
    assert seen.run == "success", seen.out[-4000:] + seen.err
    (line,) = [line for line in seen.log("with", "output") if "audience" in line or '"aud"' in line]
    claims = json.loads(line)
    assert claims["aud"] == "cloud"
    assert claims["sub"].endswith(":ref:refs/heads/main")
    assert claims["event_name"] == "push"
    assert "0" in seen.log("without", "output")


NATIVE = """
on: push
jobs:
  first:
    runs-on: ubuntu-latest
    outputs: {hit: "${{ steps.c.outputs.cache-hit }}", url: "${{ steps.u.outputs.artifact-url }}"}
    steps:
      - id: c
        uses: actions/cache@v4
        with: {key: deps-1, path: "deps\\n~/tool", restore-keys: deps-}
      - run: |
          mkdir -p deps/sub ~/tool out/.git out/sub
          printf one > deps/sub/a; ln -s a deps/sub/link; printf two > ~/tool/t; chmod 755 ~/tool/t
          printf A > out/a.txt; printf B > out/sub/b.log; printf C > out/.git/c
          printf D > out/sub/d.txt; chmod +x out/a.txt
      - id: u
        uses: actions/upload-artifact@v4
        with: {name: dist, path: "out\\n!out/**/*.log", if-no-files-found: error}
      - {uses: actions/upload-artifact@v4, with: {name: none, path: nothing-here}}
      - {uses: actions/upload-artifact@v7, with: {path: out/sub/b.log, archive: false}}
      - run: test -n "${{ steps.u.outputs.artifact-id }}" && echo "digest ${{ steps.u.outputs.artifact-digest }}"
  second:
    needs: first
    runs-on: ubuntu-latest
    steps:
      - id: c
        uses: actions/cache@v4
        with: {key: deps-1, path: "deps\\n~/tool"}
      - run: |
          echo "hit=${{ steps.c.outputs.cache-hit }} first=${{ needs.first.outputs.hit }}"
          cat deps/sub/link ~/tool/t; echo; test -x ~/tool/t; test -L deps/sub/link && echo linked
      - id: r
        uses: actions/cache/restore@v4
        with: {key: deps-2, path: "deps\\n~/tool", restore-keys: deps-, lookup-only: true}
      - run: echo "partial=${{ steps.r.outputs.cache-hit }} matched=${{ steps.r.outputs.cache-matched-key }}"
      - {uses: actions/cache/save@v4, with: {key: deps-1, path: "deps\\n~/tool"}}
      - {uses: actions/download-artifact@v4, with: {name: dist, path: got}}
      - {uses: actions/download-artifact@v4, with: {pattern: "*.log", path: logs}}
      - run: (cd got && find . -type f | sort | xargs); cat logs/b.log/b.log; echo; stat -c %a got/a.txt
      - id: missing
        continue-on-error: true
        uses: actions/download-artifact@v4
        with: {name: nope}
      - run: echo "missing was ${{ steps.missing.outcome }}"
      - id: dup
        continue-on-error: true
        uses: actions/upload-artifact@v4
        with: {name: dist, path: got}
      - run: echo "dup was ${{ steps.dup.outcome }}"
      - {uses: actions/upload-artifact@v4, with: {name: dist, path: got/sub, overwrite: true}}
      - id: miss
        continue-on-error: true
        uses: actions/cache/restore@v4
        with: {key: other, path: deps, fail-on-cache-miss: true}
      - run: echo "miss was ${{ steps.miss.outcome }}"
"""


def test_the_built_in_cache_and_artifact_actions(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen = told(tmp_path, NATIVE, "--artifacts", str(out))
    everything = "\n".join([*seen.log("first"), "---", *seen.log("second")])
    assert seen.run == "success", everything + seen.err
    first, second = seen.log("first"), seen.log("second")
    assert "Cache not found for input keys: deps-1, deps-" in first
    assert "Cache saved with key: deps-1" in first
    assert "With the provided path, there will be 2 files uploaded" in first
    assert any("No files were found with the provided path: nothing-here" in line for line in first)
    (digest,) = [line for line in first if line.startswith("digest ")]
    assert len(digest) == len("digest ") + 64
    assert "hit=true first=" in second
    assert {"onetwo", "linked"} <= set(second)
    assert "Cache hit occurred on the primary key deps-1, not saving cache." in second
    assert "partial=false matched=deps-1" in second
    assert any(line.startswith("Failed to save: Unable to reserve cache with key deps-1") for line in second)
    assert {"./a.txt ./sub/d.txt", "B", "644"} <= set(second)
    assert {"missing was failure", "dup was failure", "miss was failure"} <= set(second)
    assert any("'first'" in line and "already exists" in line for line in second)
    assert sorted(path.name for path in (out / "dist").iterdir()) == ["d.txt"], "replaced by the second job"
    assert (out / "b.log/b.log").read_text() == "B"


OUTER = """
name: outer
outputs: {hit: {value: "${{ steps.c.outputs.cache-hit }}"}}
runs:
  using: composite
  steps:
    - {id: c, uses: actions/cache@v4, with: {path: kept, key: "${{ github.job }}"}}
    - {run: "mkdir -p kept && echo more >> kept/file", shell: bash}
"""
COMPOSITE = """
on: push
jobs:
  inner:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - {id: o, uses: ./.github/actions/outer}
      - run: echo "hit=[${{ steps.o.outputs.hit }}] $(wc -l < kept/file)"
"""


def test_the_built_in_cache_in_a_composite_saves_in_the_post_phase_of_that(tmp_path: Path) -> None:
    files = {".github/actions/outer/action.yml": OUTER, ".github/workflows/w.yml": COMPOSITE}
    folder = repository(tmp_path / "repo", files)
    for line, said in (("hit=[] 1", "Cache saved with key: inner"), ("hit=[true] 2", "Cache hit occurred on")):
        seen = run_events(folder, "--sandbox", "bubblewrap", "--network", "none", deadline_s=50)
        log = seen.log("inner")
        assert seen.run == "success", "\n".join(log) + seen.err
        assert line in log
        assert any(each.startswith(said) for each in log)
        assert log.index(line) < next(at for at, each in enumerate(log) if each.startswith(said))
        names = [event["step"]["name"] for event in seen.of_type("step_started")]
        assert "Post Run ./.github/actions/outer" in names
