"""`action.yml` by its own reading rules (job-semantics 9.1, 9.2)."""

from __future__ import annotations

import textwrap

import pytest

from runyard.action.manifest import (
    CompositeRuns,
    DockerRuns,
    JavaScriptRuns,
    Manifest,
    dockerfile_manifest,
    parse_reference,
    read_manifest,
)
from runyard.job import ActionStep, ContainerActionStep, ExpressionToken, InputError, RunStep, TextToken


def read(text: str) -> Manifest:
    return read_manifest(textwrap.dedent(text).encode(), "a/action.yml")


def composite(*steps: str) -> CompositeRuns:
    runs = read("runs:\n  using: composite\n  steps:\n" + "".join(f"    - {step}\n" for step in steps)).runs
    assert isinstance(runs, CompositeRuns)
    return runs


def test_a_javascript_action() -> None:
    found = read(
        """
        name: n
        author: someone
        branding: {icon: x}
        unknown: [1]
        inputs:
          a: {default: 3.10, required: true, deprecationMessage: use b}
          b: {description: no default}
          c: {default: "${{ github.sha }}"}
        outputs: {o: {description: set by itself}}
        runs: {using: NODE20, main: m.js, pre: p.js, post: q.js, post-if: "success()"}
        """
    )
    runs = found.runs
    assert isinstance(runs, JavaScriptRuns)
    assert (runs.using, runs.main, runs.pre, runs.post) == ("node20", "m.js", "p.js", "q.js")
    assert (runs.pre_if, runs.post_if) == ("always()", "success()")
    a, b, c = found.inputs
    assert isinstance(a.default, TextToken)
    assert (a.default.value, a.required, a.deprecation) == ("3.1", True, "use b")
    assert b.default is None
    assert isinstance(c.default, ExpressionToken)
    assert found.outputs == ()


def test_conditions_of_pre_and_post_are_not_wrapped() -> None:
    runs = read(
        "runs: {using: node20, main: m, pre: p, pre-if: runner.os == 'x', post: q, post-if: '${{ failure() }}'}"
    ).runs
    assert isinstance(runs, JavaScriptRuns)
    assert (runs.pre_if, runs.post_if) == ("runner.os == 'x'", "failure()")


def test_a_composite_action() -> None:
    runs = composite(
        "{run: a, shell: bash}",
        "{run: b, shell: sh, id: own, if: false, env: {A: 1}, working-directory: w, continue-on-error: true}",
        "{uses: ./x, with: {k: true}}",
        "{uses: o/r/sub@v1}",
        "{uses: 'docker://alpine:3'}",
        "{run: c, shell: bash}",
    )
    first, second, local, remote, image, last = runs.steps
    assert isinstance(first, RunStep)
    assert (first.id, first.condition) == ("__run", "success()")
    assert isinstance(second, RunStep)
    assert (second.id, second.condition) == ("own", "success() && (false)")
    assert isinstance(local, ActionStep)
    assert (local.id, local.repository, local.path) == ("__self", None, "./x")
    assert isinstance(remote, ActionStep)
    assert (remote.id, remote.repository, remote.path, remote.ref) == ("__o_r", "o/r", "sub", "v1")
    assert isinstance(image, ContainerActionStep)
    assert image.image == "alpine:3"
    assert last.id == "__run_2"


def test_a_docker_action() -> None:
    runs = read(
        """
        runs:
          using: docker
          image: Dockerfile
          args: ['${{ inputs.a }}', b]
          env: {K: '${{ inputs.a }}'}
          entrypoint: /e
        """
    ).runs
    assert isinstance(runs, DockerRuns)
    assert runs.args is not None
    assert len(runs.args.items) == 2
    without = read("runs: {using: docker, image: 'docker://x'}").runs
    assert isinstance(without, DockerRuns)
    assert without.args is None
    assert isinstance(dockerfile_manifest("a/Dockerfile").runs, DockerRuns)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x", "'runs' is missing"),
        ("[]", "mapping"),
        ("", "mapping"),
        ("runs: {using: node10, main: m}", "node10"),
        ("runs: {main: m}", "'using' is missing"),
        ("runs: {using: node20}", "'main' is missing"),
        ("runs: {using: composite}", "'steps' is missing"),
        ("runs: {using: composite, steps: [{run: a}]}", "Required property is missing: shell"),
        ("runs: {using: composite, steps: [{run: a, shell: b, timeout-minutes: 1}]}", "timeout-minutes"),
        ("runs: {using: composite, steps: [{run: a, shell: b, background: true}]}", "background"),
        ("runs: {using: composite, steps: [{id: a}]}", "'run' or 'uses'"),
        ("runs: {using: composite, steps: [{uses: nonsense}]}", "no reference"),
        ("runs: {using: composite, steps: [{run: '${{ secrets.X }}', shell: b}]}", "secrets"),
        ("runs: {using: composite, steps: [{run: '${{ needs.X }}', shell: b}]}", "needs"),
        ("runs: {using: composite, steps: [{run: a, shell: b, if: vars.X}]}", "vars"),
        ("runs: {using: composite, steps: [{run: a, shell: b, id: x}, {run: a, shell: b, id: X}]}", "used twice"),
        ("inputs: {a: {default: '${{ inputs.b }}'}}\nruns: {using: node20, main: m}", "inputs"),
        ("runs: {using: docker, image: x, args: ['${{ github.sha }}']}", "github"),
        ("runs: {using: docker, image: x, args: a}", "'args' is a sequence"),
        ("runs: &a {using: node20, main: m}", "anchor"),
        ("name: a\nNAME: b\nruns: {using: node20, main: m}", "already defined"),
        ("runs: {using: composite, steps: [{run: a, shell: b, if: 'nosuch('}]}", ""),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("a/action.yml")


@pytest.mark.parametrize(
    ("uses", "reference"),
    [
        ("o/r@v1", ("o/r", "", "v1")),
        ("o/r/a/b@main", ("o/r", "a/b", "main")),
        ("./x", (None, "./x", "")),
        ("docker://alpine", "alpine"),
        ("docker://", None),
        ("o/r", None),
        ("o@v1", None),
        ("", None),
    ],
)
def test_references(uses: str, reference: object) -> None:
    assert parse_reference(uses) == reference
