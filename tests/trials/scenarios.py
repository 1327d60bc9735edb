"""What each original is asked to do: a job a version, `@V` in the place of the version, and a last line that it prints.

The repository of the trial has a branch `other`, a tag `v1.0`, folders `docs` and `src`, three commits, and one file
that was edited after the last of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

DONE: Final = "trial: all as expected"


class Scenario(msgspec.Struct, frozen=True):
    """One action's trial. `majors` are the versions that it is written for; `tool` is a tool-cache entry it needs."""

    action: str
    majors: tuple[int, ...]
    steps: str
    tool: str = ""


CHECKOUT: Final = """
      - {id: own, uses: "actions/checkout@V"}
      - name: the run's own commit, with what was edited since
        env: {SAID: "${{ steps.own.outputs.commit }}", SHA: "${{ github.sha }}"}
        run: |
          set -eux
          test "$(git rev-parse HEAD)" = "$SAID"
          test "$(git rev-parse --abbrev-ref HEAD)" = main
          test "$(cat src/code.txt)" = edited
          test -z "$(git status --porcelain)"
          test "$(git rev-list --count HEAD)" = 1
          test "$(git config remote.origin.url)" = https://github.com/octo/trial
      - {uses: "actions/checkout@V", with: {ref: v1.0, path: tag, persist-credentials: false}}
      - {uses: "actions/checkout@V", with: {ref: other, path: branch}}
      - {uses: "actions/checkout@V", with: {ref: "${{ github.sha }}", path: sha, fetch-depth: 2, clean: false}}
      - {uses: "actions/checkout@V", with: {path: whole, fetch-depth: 0}}
      - {uses: "actions/checkout@V", with: {path: tags, ref: main, fetch-tags: true}}
      - {uses: "actions/checkout@V", with: {path: partial, filter: "blob:none", fetch-depth: 0}}
      - {uses: "actions/checkout@V", with: {path: sparse, sparse-checkout: docs}}
      - name: other commits, depths, filters
        run: |
          set -eux
          test "$(cat tag/src/code.txt)" = one
          ! git -C tag config --get-regexp '[Ee]xtra[Hh]eader|includeIf'
          test "$(git -C branch symbolic-ref --short HEAD)" = other
          test "$(cat branch/src/code.txt)" = other
          test "$(git -C sha rev-list --count HEAD)" = 2
          test "$(cat sha/src/code.txt)" = two
          test "$(git -C whole rev-list --count HEAD)" = 4
          git -C whole rev-parse --verify origin/other
          git -C whole rev-parse --verify v1.0
          case "@V" in @v4 | @v5) ;; *) git -C tags rev-parse --verify v1.0 ;; esac
          test "$(git -C partial config remote.origin.promisor)" = true
          test "$(cat partial/src/code.txt)" = edited
          test -f sparse/docs/page.md -a ! -e sparse/src
          echo "trial: all as expected"
"""

CACHE: Final = """
      - {id: first, uses: "actions/cache@V", with: {key: "trial-V", path: "deps\\n~/kept"}}
      - run: |
          test "${{ steps.first.outputs.cache-hit }}" != true
          mkdir -p deps ~/kept; echo one > deps/a; ln -s a deps/link; echo two > ~/kept/b
      - {uses: "actions/cache/save@V", with: {key: "saved-V-1", path: deps}}
      - run: rm -r deps
      - {id: back, uses: "actions/cache/restore@V", with: {key: none, restore-keys: "saved-V", path: deps}}
      - run: |
          set -eux
          test "${{ steps.back.outputs.cache-matched-key }}" = "saved-V-1"
          test "${{ steps.back.outputs.cache-hit }}" = false
          test "$(cat deps/link)" = one
          echo "trial: all as expected"
"""

UPLOAD: Final = """
      - run: mkdir -p out/sub; echo A > out/a.txt; echo B > out/sub/b.txt; echo C > out/c.log
      - {id: up, uses: "actions/upload-artifact@V", with: {name: "up-V", path: "out\\n!out/*.log"}}
      - {uses: "actions/upload-artifact@V", with: {name: "up-V", path: out/a.txt, overwrite: true}}
      - {uses: "actions/upload-artifact@V", with: {name: nothing, path: not-there, if-no-files-found: ignore}}
      - {id: twice, continue-on-error: true, uses: "actions/upload-artifact@V", with: {name: "up-V", path: out}}
      - {uses: actions/download-artifact@DOWN, with: {name: "up-V", path: got}}
      - run: |
          set -eux
          test -n "${{ steps.up.outputs.artifact-id }}" -a -n "${{ steps.up.outputs.artifact-digest }}"
          test "${{ steps.twice.outcome }}" = failure
          test "$(cd got && find . -type f)" = ./a.txt
          echo "trial: all as expected"
"""

DOWNLOAD: Final = """
      - run: mkdir -p out/sub; echo A > out/a.txt; echo B > out/sub/b.txt
      - {id: up, uses: actions/upload-artifact@UP, with: {name: "one-V", path: out}}
      - {uses: actions/upload-artifact@UP, with: {name: "two-V", path: out/a.txt}}
      - {id: got, uses: "actions/download-artifact@V", with: {name: "one-V", path: one}}
      - {uses: "actions/download-artifact@V", with: {pattern: "*-V", path: both}}
      - {uses: "actions/download-artifact@V", with: {pattern: "*-V", path: merged, merge-multiple: true}}
      - {id: none, continue-on-error: true, uses: "actions/download-artifact@V", with: {name: missing}}
      - run: |
          set -eux
          test "$(cat one/a.txt one/sub/b.txt | tr -d '\\n')" = AB
          test -d "${{ steps.got.outputs.download-path }}"
          test -f both/one-V/sub/b.txt -a -f both/two-V/a.txt
          test -f merged/a.txt -a -f merged/sub/b.txt
          test "${{ steps.none.outcome }}" = failure
          echo "trial: all as expected"
"""

SCRIPT: Final = """
      - id: s
        uses: "actions/github-script@V"
        with:
          script: |
            core.exportVariable('FROM_SCRIPT', context.repo.owner + '/' + context.repo.repo)
            await exec.exec('true')
            await core.summary.addRaw('a summary').write()
            return {event: context.eventName, ref: context.ref, files: (await glob.create('*')).getSearchPaths().length}
      - id: fails
        continue-on-error: true
        uses: "actions/github-script@V"
        with: {script: throw new Error('on purpose')}
      - env: {RESULT: "${{ steps.s.outputs.result }}"}
        run: |
          set -eux
          test "$FROM_SCRIPT" = octo/trial
          test "$RESULT" = '{"event":"push","ref":"refs/heads/main","files":1}'
          test "${{ steps.fails.outcome }}" = failure
          echo "trial: all as expected"
"""

NODE: Final = """
      - {id: n, uses: "actions/setup-node@V", with: {node-version: "@TOOL"}}
      - run: |
          set -eux
          test "${{ steps.n.outputs.node-version }}" = v@TOOL
          test "$(node --version)" = v@TOOL
          case "$(command -v node)" in "$RUNNER_TOOL_CACHE"/*) ;; *) exit 1 ;; esac
          echo "trial: all as expected"
"""

PYTHON: Final = """
      - {id: p, uses: "actions/setup-python@V", with: {python-version: "@TOOL"}}
      - run: |
          set -eux
          test "${{ steps.p.outputs.python-version }}" = @TOOL
          test "${{ steps.p.outputs.python-path }}" = "$pythonLocation/bin/python"
          test "$(command -v python)" = "$pythonLocation/bin/python"
          test "$(python -c 'print(6 * 7)')" = 42
          echo "trial: all as expected"
"""

SCENARIOS: Final = (
    Scenario("actions/checkout", (4, 5, 6, 7), CHECKOUT),
    Scenario("actions/cache", (4, 5), CACHE),
    Scenario("actions/upload-artifact", (4, 5, 6, 7), UPLOAD),
    Scenario("actions/download-artifact", (4, 5, 6, 7, 8), DOWNLOAD),
    Scenario("actions/github-script", (7, 8), SCRIPT),
    Scenario("actions/setup-node", (4, 5, 6, 7), NODE, tool="node"),
    Scenario("actions/setup-python", (5, 6, 7), PYTHON, tool="python"),
)
