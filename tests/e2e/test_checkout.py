"""The built-in checkout through the command line: other repositories, submodules, parts, credentials, its post step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.command_line import Told, repository, run_events
from source.repositories import git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(100)

WORKFLOW = """
on: push
jobs:
  own:
    runs-on: ubuntu-latest
    steps:
      - {id: c, uses: actions/checkout@v4, with: {submodules: recursive}}
      - run: |
          set -eux
          test "$(cat a)" = edited
          test "$(cat mods/one/lib.txt)" = lib
          test "$(git -C mods/one rev-parse HEAD)" = "$(git ls-tree HEAD mods/one | cut -d' ' -f3 | cut -f1)"
          test -z "$(git status --porcelain)"
          git submodule status --recursive
          test "$(git config --file .git/modules/one/config remote.origin.url)" = https://github.com/other/lib.git
          grep -c 'AUTHORIZATION: basic' .git/config .git/modules/one/config
          echo kept > untracked; echo "ref=${{ steps.c.outputs.ref }}"
      - {uses: actions/checkout@v4, with: {ref: v1, clean: false, persist-credentials: false}}
      - run: |
          set -eux
          test "$(cat untracked a)" = "$(printf 'kept\\none')"
          test ! -e later
          test -z "$(git status --porcelain | grep -v -e untracked -e mods/)"
          ! grep AUTHORIZATION .git/config
      - {id: o, uses: actions/checkout@v6, with: {repository: other/lib, path: lib, fetch-depth: 0}}
      - run: |
          set -eux
          test "$(cat lib/lib.txt)" = newer
          test "$(git -C lib rev-list --count HEAD)" = 2
          test "$(git -C lib symbolic-ref --short HEAD)" = trunk
          test "$(git -C lib config remote.origin.url)" = https://github.com/other/lib
          test -n "$(git -C lib config --get-urlmatch http.extraheader https://github.com/other/lib)"
          test "${{ steps.o.outputs.ref }}" = refs/heads/trunk
          test "${{ steps.o.outputs.commit }}" = "$(git -C lib rev-parse HEAD)"
      - {id: t, uses: actions/checkout@v4, with: {repository: other/lib, ref: v1, path: tag, sparse-checkout: docs}}
      - run: |
          set -eux
          test -f tag/docs/page -a ! -e tag/src -a -f tag/lib.txt
          test "$(git -C tag cat-file -t v1)" = tag
          test "${{ steps.t.outputs.ref }}" = v1
          test -z "$(git -C tag status --porcelain)"
      - uses: actions/checkout@v4
        with: {path: flat, filter: "blob:none", sparse-checkout-cone-mode: false, sparse-checkout: "/a"}
      - run: |
          set -eux
          test "$(ls flat)" = a
          test "$(git -C flat config remote.origin.partialclonefilter)" = blob:none
          echo all as expected
      - {name: none, continue-on-error: true, uses: actions/checkout@v4, with: {repository: other/nosuch, path: x}}
      - name: noref
        continue-on-error: true
        uses: actions/checkout@v4
        with: {repository: other/lib, ref: nosuch, path: x}
      - {name: odd, continue-on-error: true, uses: actions/checkout@v4, with: {filter: "; touch /x", path: x}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a submodule, which this machine has only in the mirror."""
    lib = repository(tmp_path / "lib", {"lib.txt": "lib\n", "docs/page": "p\n", "src/code": "c\n"})
    git(lib, "branch", "-m", "trunk")
    git(lib, "tag", "-a", "-m", "one", "v1")
    old = git(lib, "rev-parse", "HEAD")
    (lib / "lib.txt").write_text("newer\n")
    git(lib, "commit", "-q", "-am", "newer")
    mirror = tmp_path / "mirror" / "other"
    mirror.mkdir(parents=True)
    (mirror / "lib.git").symlink_to(lib / ".git")
    folder = repository(tmp_path / "repo", {"a": "one\n", ".github/workflows/w.yml": WORKFLOW})
    git(folder, "tag", "v1")
    git(folder, "remote", "add", "origin", "https://github.com/octo/demo")
    (folder / ".gitmodules").write_text('[submodule "one"]\n\tpath = mods/one\n\turl = ../../other/lib.git\n')
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{old},mods/one")
    (folder / "later").write_text("later\n")
    git(folder, "add", ".gitmodules", "later")
    git(folder, "commit", "-q", "-m", "two")
    (folder / "mods" / "one").mkdir(parents=True)
    (folder / "a").write_text("edited\n")
    return folder


def go(project: Path, *arguments: str) -> Told:
    env = {"RUNYARD_ACTIONS_MIRROR": str(project.parent / "mirror"), "GITHUB_TOKEN": "tok-3n-value"}
    flags = ("--sandbox", "bubblewrap", "--network", "none", "--offline", "--secret", "GITHUB_TOKEN")
    return run_events(project, *flags, *arguments, env=env)


def test_everything_that_a_checkout_may_ask_for(project: Path) -> None:
    seen = go(project)
    log = seen.log("own")
    assert seen.run == "success", "\n".join(log) + seen.err
    assert "all as expected" in log
    assert "ref=refs/heads/main" in log
    outcomes = {event["step"]["name"]: event["outcome"] for event in seen.of_type("step_finished")}
    assert [outcomes[name] for name in ("none", "noref", "odd")] == ["failure"] * 3
    text = "\n".join(log)
    assert "https://github.com/other/nosuch is not on this machine, and --offline asks nobody" in text
    assert "A branch or tag with the name 'nosuch' could not be found in other/lib" in text
    assert "git knows no filter" in text
    assert "tok-3n-value" not in seen.out
    posts = [name for name in outcomes if name.startswith("Post ")]
    assert "Post Run actions/checkout@v4" in posts
    assert "Post Run actions/checkout@v6" in posts
    assert log.count("The token is removed from git's configuration") == 4
