"""Admission as tables: what is refused, by which rule, in words that name step, chain and what would be accepted."""

from __future__ import annotations

import pytest

from runyard.action.closure import CommittedActions, Use, committed_closure, uses_below
from runyard.action.manifest import parse_reference, read_manifest
from runyard.admission import AdmittedJob, Refusal, admit, judge_use
from runyard.job import (
    ActionStep,
    Checkout,
    ContainerActionStep,
    Entry,
    JobSpec,
    MappingToken,
    Policy,
    RunStep,
    Step,
    Template,
    TextToken,
)
from runyard.sandbox.contract import Capabilities

BUBBLEWRAP = Capabilities(backend="bubblewrap", supervisor="enter")
DOCKER = Capabilities(backend="docker", supervisor="sh", containers=True)
OPEN = Policy(build=True)
COMMIT = "a" * 40


def step(uses: str) -> ActionStep | ContainerActionStep:
    found = parse_reference(uses)
    assert found is not None
    if isinstance(found, str):
        return ContainerActionStep(id="x", number=3, image=found)
    return ActionStep(id="x", number=3, repository=found[0], path=found[1], ref=found[2])


def use(*chain: str, manifest: str | None = None, native: bool = False) -> Use:
    read = None if manifest is None else read_manifest(manifest.encode(), "action.yml")
    return Use(number=3, name="Run it", chain=chain, step=step(chain[-1]), manifest=read, native=native)


def spec(*steps: Step, container: Template | None = None, services: Template | None = None) -> JobSpec:
    return JobSpec(id="1", run_id="1", key="j", job="j", name="j", steps=steps, container=container, services=services)


BUILT = "runs: {using: docker, image: Dockerfile}"
PULLED = "runs: {using: docker, image: 'docker://ghcr.io/acme/x:1'}"
DEEP = tuple(f"o/a{level}@v1" for level in range(11))


@pytest.mark.parametrize(
    ("given", "policy", "capabilities", "rule"),
    [
        (use("o/a@v1"), OPEN, BUBBLEWRAP, None),
        (use("o/a@v1"), Policy(actions=("o/*",)), BUBBLEWRAP, None),
        (use("O/A@v1"), Policy(actions=("o/a",)), BUBBLEWRAP, None),
        (use("o/a@v1"), Policy(actions=("o/ab", "x/*")), BUBBLEWRAP, "action"),
        (use("o/a@v1"), Policy(actions=()), BUBBLEWRAP, "action"),
        (use("o/a@v1"), Policy(pinned_actions=True), BUBBLEWRAP, "pin"),
        (use(f"o/a@{COMMIT}"), Policy(pinned_actions=True), BUBBLEWRAP, None),
        (use(f"o/a@{COMMIT[:39]}"), Policy(pinned_actions=True), BUBBLEWRAP, "pin"),
        (use("actions/checkout@v4", native=True), Policy(actions=(), pinned_actions=True), BUBBLEWRAP, None),
        (use("./a"), Policy(local_actions=False), BUBBLEWRAP, "local"),
        (use("./a"), Policy(actions=()), BUBBLEWRAP, None),
        (use("docker://alpine:3"), Policy(docker_images=("ghcr.io/*",)), DOCKER, "image"),
        (use("docker://ghcr.io/x"), Policy(docker_images=("ghcr.io/*",)), DOCKER, None),
        (use("o/a@v1", manifest=PULLED), Policy(docker_images=("debian*",)), DOCKER, "image"),
        (use("o/a@v1", manifest=PULLED), OPEN, DOCKER, None),
        (use("o/a@v1", manifest=PULLED), OPEN, BUBBLEWRAP, "containers"),
        (use("./a", manifest=PULLED), OPEN, BUBBLEWRAP, None),
        (use("o/a@v1", manifest=BUILT), Policy(build=False), DOCKER, "build"),
        (use("./a", manifest=BUILT), Policy(build=False), DOCKER, "build"),
        (use("o/a@v1", manifest=BUILT), OPEN, DOCKER, None),
        (use("o/a@v1", "o/b@v1", "O/a@v1"), OPEN, BUBBLEWRAP, "nesting"),
        (use(*DEEP), OPEN, BUBBLEWRAP, "nesting"),
        (use(*DEEP[:10]), OPEN, BUBBLEWRAP, None),
    ],
)
def test_one_use(given: Use, policy: Policy, capabilities: Capabilities, rule: str | None) -> None:
    found = judge_use(given, policy, capabilities)
    assert (found.rule if found else None) == rule
    if found is not None:
        assert (found.step, found.name, found.chain) == (3, "Run it", given.chain)
        assert found.accepted


def test_a_refusal_is_one_sentence_with_everything() -> None:
    found = judge_use(use("./x", "o/a@v1"), Policy(actions=("acme/*", "b/c")), None)
    assert str(found) == (
        "step 3 ('Run it'): ./x → o/a@v1: the policy does not allow actions of o/a; accepted: acme/*, b/c"
    )


def test_a_job_is_told_everything_at_once() -> None:
    container = MappingToken((Entry(TextToken("image"), TextToken("evil:1")),))
    services = MappingToken((Entry(TextToken("db"), container),))
    policy = Policy(actions=(), docker_images=(), network=("none",), sandbox_floor="docker")
    found = admit(
        spec(container=container, services=services),
        [use("o/a@v1"), use("./unknown")],
        policy,
        BUBBLEWRAP,
        network="public",
    )
    assert isinstance(found, tuple)
    assert [each.rule for each in found] == ["sandbox", "network", "image", "image", "action"]
    assert all(isinstance(each, Refusal) for each in found)


def test_an_admitted_job_knows_no_backend() -> None:
    found = admit(spec(), [use("o/a@v1")], OPEN, BUBBLEWRAP, network="public")
    assert isinstance(found, AdmittedJob)
    assert [each.uses for each in found.closure] == ["o/a@v1"]
    assert "bubblewrap" not in repr(found)


def test_local_actions_not_in_the_commit_are_left_for_their_step() -> None:
    assert isinstance(admit(spec(), [use("./later")], Policy(local_actions=False), BUBBLEWRAP), AdmittedJob)
    known = use("./a", manifest="runs: {using: node20, main: m.js}")
    assert isinstance(admit(spec(), [known], Policy(local_actions=False), BUBBLEWRAP), tuple)


def test_composites_that_include_each_other_end() -> None:
    texts = {"a": "steps: [{uses: ./b}, {uses: ./b}]", "b": "steps: [{uses: ./a}, {uses: ./a}, {uses: o/x@v1}]"}

    class Files(CommittedActions):
        def manifest(self, path: str):  # type: ignore[no-untyped-def]
            name = path.removeprefix("./")
            return read_manifest(f"runs: {{using: composite, {texts[name]}}}".encode(), name)

    found = committed_closure((RunStep(id="r", number=1, script=TextToken("x")), step("./a")), Files(None))
    assert len(found) < 20
    assert ("./a", "./b", "o/x@v1") in [each.chain for each in found]


def test_no_commit_no_manifest() -> None:
    committed = CommittedActions(Checkout(repository="o/r", commit=COMMIT, git_dir=None))
    assert committed.manifest("./a") is None
    assert CommittedActions(None).manifest("./a") is None
    assert list(uses_below(use("./a"))) == []
