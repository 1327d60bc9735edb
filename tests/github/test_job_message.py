"""The job message both ways: every example of the protocol page, every job of the corpus, and what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus_path import corpus, corpus_or_none, shared_root
from runyard.github.runner import (
    UnreadableMessageError,
    UnsupportedMessageError,
    claim_of,
    encode_message,
    message_of,
    normal_form,
    read_message,
    unsupported,
)
from runyard.github.runner.context_data import decode_context, encode_context
from runyard.github.runner.tokens import decode_token, encode_token
from runyard.job import (
    ActionStep,
    BooleanToken,
    Claim,
    ContainerActionStep,
    Entry,
    Environment,
    ExpressionToken,
    InsertToken,
    JobSpec,
    MappingToken,
    NeedResult,
    NullToken,
    NumberToken,
    Position,
    RunContext,
    RunStep,
    SequenceToken,
    Strategy,
    Template,
    TextToken,
)
from runyard.run import Begin, CreateJob, Finished, RunState, advance
from runyard.workflow import WorkflowError, compile_workflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.workflow import RunPlan

GITHUB: dict[str, Any] = {
    "repository": "acme/app",
    "event_name": "push",
    "ref": "refs/heads/main",
    "sha": "1" * 40,
    "run_id": "7",
    "workflow_ref": "acme/app/.github/workflows/ci.yml@refs/heads/main",
    "workflow_sha": "1" * 40,
}


def claim(spec: JobSpec, **more: Any) -> Claim:
    context = RunContext(github=GITHUB, event={"ref": "refs/heads/main", "commits": []}, files=("ci.yml",))
    given: dict[str, Any] = {
        "tokens": {"job": "aa.bb.cc"},
        "endpoints": {"run": "https://ci.example.test/run/"},
        **more,
    }
    return Claim(attempt=1, lease_id="1", expires_in_s=600, spec=spec, context=context, **given)


def there_and_back(spec: JobSpec) -> JobSpec:
    return claim_of(read_message(encode_message(message_of(claim(spec), request_id=1)))).spec


def smallest(**changes: Any) -> dict[str, Any]:
    """A message with one step, and members replaced; None takes one out."""
    message: dict[str, Any] = {
        "messageType": "RunnerJobRequest",
        "plan": {"planId": "11111111-1111-1111-1111-111111111111", "planType": "actions", "version": 12},
        "timeline": {"id": "22222222-2222-2222-2222-222222222222"},
        "jobId": "33333333-3333-3333-3333-333333333333",
        "jobDisplayName": "Build it",
        "jobName": "build",
        "requestId": 7,
        "resources": {
            "endpoints": [
                {
                    "name": "systemvssconnection",
                    "url": "https://ci.example.test/run/",
                    "authorization": {"scheme": "OAuth", "parameters": {"accesstoken": "aa.bb.cc", "Other": "hidden"}},
                    "data": {"cacheserverurl": "https://ci.example.test/c/", "GenerateIdTokenUrl": "https://x/?a=1"},
                }
            ]
        },
        "variables": {
            "system.github.token": {"value": "t0ken", "isSecret": True},
            "DEPLOY": {"value": "s3cret", "isSecret": "True"},
            "system.github.job": {"value": "build"},
            "some_flag": {"value": "true"},
            "system.github.token.permissions": {"value": '{"Contents":"read","PullRequests":"write"}'},
            "system.github.results_endpoint": {"value": "https://ci.example.test/r/"},
        },
        "contextData": {"github": encode_context({**GITHUB, "event": {}}), "matrix": None, "inputs": {"t": 2}},
        "steps": [
            {
                "type": "action",
                "id": "44444444-4444-4444-4444-444444444444",
                "name": "__run",
                "contextName": "__run",
                "condition": "success()",
                "reference": {"type": "script"},
                "inputs": {"type": 2, "map": [{"key": "script", "value": "make"}, {"Key": "shell", "Value": "sh"}]},
            }
        ],
        **changes,
    }
    return {name: value for name, value in message.items() if value is not None}


def body(**changes: Any) -> bytes:
    return json.dumps(smallest(**changes)).encode()


def test_a_message_becomes_a_claim() -> None:
    made = claim_of(read_message(body()))
    assert made.spec.steps == (RunStep(id="__run", number=1, script=TextToken("make"), shell=TextToken("sh")),)
    assert (made.spec.key, made.spec.job, made.spec.name, made.lease_id) == ("build", "build", "Build it", "7")
    assert made.spec.permissions == {"contents": "read", "pull-requests": "write"}
    assert made.secrets == {"DEPLOY": "s3cret", "GITHUB_TOKEN": "t0ken"}
    assert set(made.masks) == {"t0ken", "hidden"}
    assert made.tokens == {"job": "aa.bb.cc", "runtime": "aa.bb.cc", "oidc": "aa.bb.cc", "github": "t0ken"}
    assert made.endpoints == {
        "run": "https://ci.example.test/run/",
        "runtime": "https://ci.example.test/run/",
        "cache": "https://ci.example.test/c/",
        "oidc": "https://x/?a=1",
        "receiver": "https://ci.example.test/r/",
    }
    assert made.variables["some_flag"] == "true"
    assert "DEPLOY" not in made.variables
    assert made.context.github == GITHUB
    assert (made.context.event, made.spec.matrix, made.spec.inputs) == ({}, None, None)
    assert not made.debug


def test_names_are_read_in_any_case_and_unknown_members_ignored() -> None:
    message = {name.upper(): value for name, value in smallest().items()}
    message["somethingNew"] = [1, 2]
    message["REQUESTID"] = "7"
    assert claim_of(read_message(json.dumps(message).encode())) == claim_of(read_message(body()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": {"planId": "1", "version": None}}, "version"),
        ({"requestId": [1]}, "requestId"),
        ({"plan": {"planId": "1", "version": 1 << 31}}, "version"),
        ({"enableDebugger": "maybe"}, "enableDebugger"),
        ({"contextData": {"github": {"t": 2, "d": [{"k": "a", "v": []}]}}}, "contextData.github.a"),
        ({"contextData": {"github": {"t": 2}}}, "repository"),
        ({"contextData": {"github": {"t": 2, "d": [{"k": "A", "v": 1}, {"k": "a", "v": 2}]}}}, "twice"),
        ({"contextData": {"github": {"t": 9}}}, "type 9"),
        ({"jobOutputs": []}, "bare array"),
        ({"resources": {"endpoints": []}}, "SystemVssConnection"),
        ({"defaults": [{"type": 3, "expr": "x"}]}, "defaults"),
    ],
)
def test_what_the_official_reader_can_not_read_is_refused_with_its_place(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnreadableMessageError) as caught:
        claim_of(read_message(body(**changes)))
    assert words in f"{caught.value.message} {caught.value.key}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"messageType":1}', b"\xff"])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableMessageError):
        read_message(data)


def test_everything_that_can_not_be_done_is_told_at_once() -> None:
    steps = [
        {"type": "backgroundStepControl", "id": "1", "name": "w", "controlType": "wait"},
        {"type": "action", "background": True, "reference": {"type": "script"}},
        {"type": "action", "reference": {"type": "repository", "name": "a/b", "repositoryType": "selfRepository"}},
        {"type": 9},
        None,
        {"type": 4, "reference": {"type": 3}, "inputs": {"type": 2}},
    ]
    message = read_message(
        body(steps=steps, snapshot="image", mask=[{"type": "variable", "value": "x"}], jobSidecarContainers={"a": "b"})
    )
    wishes = unsupported(message)
    assert len(wishes) == 8
    with pytest.raises(UnsupportedMessageError) as caught:
        claim_of(message)
    assert caught.value.wishes == wishes
    assert "step 3" in str(caught.value)
    assert unsupported(read_message(body())) == ()
    assert unsupported(read_message(body(messageType="PipelineAgentJobRequest")))


def test_masks_and_debug_come_along() -> None:
    made = claim_of(
        read_message(
            body(
                mask=[{"type": "regex", "value": "tok_[0-9]+"}],
                variables={"actions_step_debug": {"value": "true"}},
            )
        )
    )
    assert made.mask_patterns == ("tok_[0-9]+",)
    assert made.debug
    assert made.secrets == {}


FULL = JobSpec(
    id="33333333-3333-3333-3333-333333333333",
    run_id="11111111-1111-1111-1111-111111111111",
    key="build.linux",
    job="build",
    name="build (linux)",
    steps=(
        RunStep(
            id="one",
            number=1,
            name=ExpressionToken("format('{0}', matrix.os)", Position(1, 3, 4)),
            condition="success() && (true)",
            env=MappingToken((Entry(TextToken("A"), TextToken("1", Position(1, 2, 3))),)),
            continue_on_error=BooleanToken(True),
            timeout_minutes=NumberToken(2.5),
            script=TextToken("make\nmake check", Position(1, 5, 6)),
            working_directory=TextToken("sub"),
        ),
        ActionStep(
            id="two",
            number=2,
            repository="actions/cache",
            path="save",
            ref="v4",
            inputs=MappingToken((Entry(TextToken("path"), SequenceToken((NullToken(), NumberToken(3)))),)),
        ),
        ActionStep(id="__three", number=3, repository=None, path="./local", inputs=MappingToken()),
        ContainerActionStep(
            id="four",
            number=4,
            image="alpine:3",
            inputs=MappingToken((Entry(TextToken("entrypoint"), TextToken("/bin/sh")),)),
        ),
    ),
    container=MappingToken((Entry(TextToken("image"), TextToken("debian")),)),
    services=MappingToken((Entry(TextToken("db"), MappingToken()),)),
    env=(MappingToken((Entry(InsertToken(), ExpressionToken("fromJSON('{}')")),)), MappingToken()),
    defaults=(MappingToken((Entry(TextToken("shell"), TextToken("bash")),)), MappingToken()),
    outputs=MappingToken((Entry(TextToken("v"), ExpressionToken("steps.one.outputs.v")),)),
    environment=Environment("prod", ExpressionToken("steps.one.outputs.url")),
    permissions={"contents": "read", "id-token": "write"},
    needs={"first": NeedResult("success", {"k": "v"})},
    matrix={"os": "linux", "deep": {"a": [1, 2.5, None, True]}},
    strategy=Strategy(fail_fast=False, job_index=1, job_total=3, max_parallel=2),
    inputs={"flag": True, "n": 3},
    workflow_path=".github/workflows/ci.yml",
    workflow_ref="acme/app/.github/workflows/ci.yml@refs/heads/main",
    workflow_sha="1" * 40,
)


def test_a_full_job_comes_back_as_it_went() -> None:
    assert normal_form(FULL) == FULL
    assert there_and_back(FULL) == FULL


def test_a_claim_comes_back_as_it_went() -> None:
    made = claim(
        FULL,
        secrets={"KEY": "v", "GITHUB_TOKEN": "ghs_x"},
        mask_patterns=("a+",),
        tokens={"job": "aa.bb.cc", "runtime": "aa.bb.cc", "oidc": "aa.bb.cc", "github": "ghs_x"},
        endpoints={
            "run": "https://s/run/",
            "runtime": "https://s/p/",
            "cache": "https://s/c/",
            "results": "https://s/r/",
            "oidc": "https://s/o?x=1",
            "feed": "wss://s/f",
            "receiver": "https://s/t/",
            "launch": "https://s/",
        },
        debug=True,
    )
    back = claim_of(read_message(encode_message(message_of(made, request_id=1))))
    again = claim_of(read_message(encode_message(message_of(back, request_id=1))))
    assert again == back
    for name in ("spec", "secrets", "mask_patterns", "tokens", "endpoints", "debug", "attempt", "lease_id"):
        assert getattr(back, name) == getattr(made, name)
    assert back.masks == ("ghs_x",)
    assert back.context == msgspec.structs.replace(made.context, event_digest=back.context.event_digest)


def test_what_is_written_never_has_a_null_where_a_number_belongs() -> None:
    written = json.loads(
        encode_message(
            message_of(claim(JobSpec(id="1", run_id="2", key="k", job="a/b", name="n", steps=FULL.steps)), request_id=0)
        )
    )
    assert None not in [*written.values(), *[value for step in written["steps"] for value in step.values()]]
    assert written["requestId"] == 0
    assert written["plan"].items() >= {"planType": "actions", "version": 12}.items()
    assert written["plan"]["scopeIdentifier"] == "00000000-0000-0000-0000-000000000000"
    assert all(step["condition"] for step in written["steps"])
    assert re.fullmatch(r"[0-9a-f-]{36}", written["jobId"])
    assert written["variables"]["system.github.job"] == {"value": "b"}
    assert written["contextData"]["matrix"] is None
    assert written["steps"][3]["reference"] == {"type": "containerRegistry", "image": "alpine:3"}
    assert written["steps"][3]["inputs"]["map"][0]["key"] == "entryPoint"


def test_what_the_message_has_no_place_for_is_the_normal_form() -> None:
    spec = msgspec.structs.replace(FULL, id="job-1", run_id="7", labels=("linux",), job="caller/build", inputs={})
    back = there_and_back(spec)
    assert back == normal_form(spec)
    assert (back.labels, back.job, back.inputs) == ((), "build", None)
    assert back.id != spec.id
    assert there_and_back(spec).id == back.id


def _page_messages() -> list[Any]:
    page = shared_root() / "protocol" / "runner-v2.md"
    if not page.exists():
        return []
    blocks = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    found = [block for block in blocks if block.lstrip().startswith('{"messageType":"RunnerJobRequest",\n "plan"')]
    return [pytest.param(block, id=f"example-{number}") for number, block in enumerate(found)]


@pytest.mark.corpus
@pytest.mark.parametrize("text", _page_messages() or [pytest.param("", id="none")])
def test_the_examples_of_the_protocol_are_read_and_written_again(text: str) -> None:
    if not text:
        pytest.skip("the protocol page is not beside this checkout")
    made = claim_of(read_message(text.encode()))
    back = claim_of(read_message(encode_message(message_of(made, request_id=int(made.lease_id)))))
    assert back.spec == made.spec
    assert back.secrets == made.secrets
    assert back.context == made.context
    assert made.variables.items() <= back.variables.items()
    assert made.spec.steps[0].id in {"__run", "v"}
    assert made.tokens["github"] == "t0ken"


def test_the_examples_are_there_where_the_page_is() -> None:
    if not (shared_root() / "protocol" / "runner-v2.md").exists():
        pytest.skip("the protocol page is not beside this checkout")
    assert len(_page_messages()) == 2


def _cases() -> list[Any]:
    places: list[tuple[str, str]] = []
    for folder, name in (
        ("workflows-valid", "*/workflow.yml"),
        ("run", "*/repo/.github/workflows/*.yml"),
        ("real-workflows", "*.yml"),
    ):
        root = corpus_or_none(folder)
        if root is not None:
            places.extend((folder, str(path.relative_to(root))) for path in sorted(root.glob(name)))
    return [pytest.param(folder, path, id=f"{folder}/{path}") for folder, path in places]


def _plan(folder: str, path: str) -> RunPlan | None:
    place = corpus(folder) / path
    expected_file = place.parent / "expected.json"
    expected = json.loads(expected_file.read_text()) if expected_file.exists() else {}
    called = expected.get("called_workflows") or {}
    repository = place.parents[2]

    def load(uses: str) -> bytes | None:
        file = place.parent / called[uses] if uses in called else repository / uses.removeprefix("./")
        return file.read_bytes() if file.is_file() else None

    try:
        return compile_workflow(place.read_bytes(), path=path, loader=load)
    except WorkflowError:
        return None


def _specs(plan: RunPlan) -> Iterator[JobSpec]:
    context = RunContext(github=GITHUB, event={}, files=plan.files)
    state, decisions = advance(plan, RunState(run_id="7", context=context), Begin(), 1)
    waiting = [decision.spec for decision in decisions if isinstance(decision, CreateJob)]
    for _ in range(300):
        if not waiting:
            return
        spec = waiting.pop(0)
        yield spec
        state, decisions = advance(plan, state, Finished(spec.key, "success", {"o": "1"}), 1)
        waiting.extend(decision.spec for decision in decisions if isinstance(decision, CreateJob))


@pytest.mark.corpus
@pytest.mark.parametrize(("folder", "path"), _cases() or [pytest.param("", "", id="none")])
def test_every_job_of_the_corpus_comes_back_in_its_normal_form(folder: str, path: str) -> None:
    if not folder:
        pytest.skip("the corpus is not beside this checkout")
    plan = _plan(folder, path)
    if plan is None:
        # Files this build refuses to plan are the workflow room's to test; no job comes of them.
        return
    for spec in _specs(plan):
        assert there_and_back(spec) == normal_form(spec)
        assert normal_form(normal_form(spec)) == normal_form(spec)


@pytest.mark.corpus
def test_the_corpus_makes_many_jobs() -> None:
    if corpus_or_none("run") is None:
        pytest.skip("the corpus is not beside this checkout")
    plans = [plan for case in _cases() if (plan := _plan(*case.values)) is not None]
    assert sum(1 for plan in plans for _ in _specs(plan)) > 150


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{0,4}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(_JSON)
def test_any_value_of_a_context_comes_back(value: Any) -> None:
    wire = json.loads(json.dumps(encode_context(value)))
    assert decode_context(wire) == value


def _templates() -> st.SearchStrategy[Template]:
    at = st.none() | st.builds(Position, st.integers(1, 9), st.integers(1, 99), st.integers(1, 99))
    text = st.builds(TextToken, st.text(max_size=4), at)
    key = text | st.builds(InsertToken, at) | st.builds(ExpressionToken, st.text(max_size=4), at)
    leaves: st.SearchStrategy[Template] = (
        key
        | st.builds(NumberToken, st.floats(allow_nan=False, allow_infinity=False), at)
        | st.builds(BooleanToken, st.booleans(), at)
        | st.builds(NullToken, at)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(SequenceToken, st.lists(inner, max_size=3).map(tuple), at)
            | st.builds(MappingToken, st.lists(st.builds(Entry, key, inner), max_size=3).map(tuple), at)
        ),
        max_leaves=10,
    )


@settings(max_examples=100, deadline=None)
@given(_templates())
def test_any_template_comes_back(template: Template) -> None:
    wire = json.loads(json.dumps(encode_token(template)))
    assert decode_token(wire, "x") == template


def test_the_long_forms_are_read_too() -> None:
    assert decode_context({"t": 3}) is False
    assert decode_context({"t": 4, "n": 2.5}) == 2.5
    assert decode_context({"s": "x"}) == "x"
    assert decode_context({"t": 5, "d": [{"k": "a", "v": 1}, {"K": "A", "V": 2}]}) == {"a": 1, "A": 2}
    assert decode_context({"nested": 1}) == ""
    assert decode_token({"type": 5}, "x") == BooleanToken(False)
    assert decode_token({"lit": "a", "line": 2}, "x") == TextToken("a", Position(0, 2, 0))
    assert encode_token(NumberToken(float("inf"))) == "Infinity"
    for bad in (
        {"type": 8},
        {"type": 1, "seq": 3},
        {"type": 6, "num": "x"},
        {"type": 2, "map": [{"key": True}]},
        {"lit": 3},
    ):
        with pytest.raises(UnreadableMessageError):
            decode_token(bad, "x")
    deep: Any = "x"
    for _ in range(150):
        deep = {"type": 1, "seq": [deep]}
    with pytest.raises(UnreadableMessageError, match="deeply"):
        decode_token(deep, "x")
