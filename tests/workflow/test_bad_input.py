"""Input that nobody should be able to hurt the reader with: each ends quickly, with a place and a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.expression.positioned_yaml import (
    MANIFEST_LIMITS,
    Mapping,
    Scalar,
    Sequence,
    YamlError,
    YamlLimits,
    duplicate_keys,
    read_yaml,
)
from runyard.workflow import Problem, check_manifest, check_workflow, read_workflow
from runyard.workflow.patterns import BadPatternError, Piece, check_pattern, matches, pattern_pieces
from runyard.workflow.patterns import _matches_in_step as in_step
from runyard.workflow.problems import MOST


def only(source: str | bytes) -> Problem:
    """The one problem of a file."""
    (problem,) = read_workflow(source, path="w.yml").problems
    assert problem.severity == "error"
    return problem


def test_fifty_megabytes() -> None:
    problem = only(b"a: b\n" * 10_000_000)
    assert problem.message == "the maximum file size of 1,048,576 characters is exceeded"


def test_too_many_characters() -> None:
    assert "maximum file size" in only("#" * 1_048_577).message


def test_billion_laughs() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    problem = only("\n".join(lines))
    assert "aliases grow this document over 50,000 nodes" in problem.message
    assert problem.line == 5


def test_one_long_text_repeated() -> None:
    problem = only(f"a: &a '{'x' * 500_000}'\nb: [{', '.join(['*a'] * 100_000)}]")
    assert "aliases grow this document" in problem.message


def test_a_file_full_of_problems_is_not_read_to_its_end() -> None:
    keys = "".join(f"key{number}: 1\n" for number in range(20_000))
    problems = read_workflow(f"on: push\n{keys}", path="w.yml").problems
    assert len(problems) == MOST + 1
    assert problems[0].message == "1000 problems, and the rest of the file was not read"
    assert problems[1].message == "Unexpected value 'key0'"
    assert len(check_manifest(f"runs: {{using: composite, steps: [{'{run: a},' * 2000}]}}", path="a")) == MOST + 1


def test_many_warnings_refuse_nothing() -> None:
    numbers = ", ".join(f"k{number}: 1.{number}0" for number in range(1, 2000))
    reading = read_workflow(
        f"on: push\nenv: {{{numbers}}}\njobs: {{j: {{runs-on: x, steps: [{{run: a}}]}}}}", path="w.yml"
    )
    assert reading.workflow is not None
    assert len(reading.problems) == MOST


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "jobs",
    [
        "".join(f"  j{n}: {{needs: j{(n + 1) % 1500}, runs-on: x, steps: [{{run: a}}]}}\n" for n in range(1500)),
        "".join(f"  j{n}: {{needs: [{', '.join(f'j{m}' for m in range(150))}], runs-on: x}}\n" for n in range(300)),
        "  j: {runs-on: x, steps: [" + "{run: a}, " * 4_000 + "]}",
        "  j: {runs-on: x, steps: [&a {run: '${{ github.ref }}', env: {A: 1}}, " + "*a, " * 2000 + "]}",
        "  j: {runs-on: x, name: '" + "${{a}} " * 25_000 + "', steps: [{run: a}]}",
        "  j: {runs-on: x, name: '" + "${{a}} " * 100_000 + "', steps: [{run: a}]}",
    ],
    ids=["ring", "dense", "steps", "aliases", "expressions", "too-long"],
)
def test_large_files_end(jobs: str, request: pytest.FixtureRequest) -> None:
    good = request.node.callspec.id in {"steps", "aliases"}
    assert (read_workflow(f"on: push\njobs:\n{jobs}", path="w.yml").workflow is not None) is good


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00\xb0", 1, 10, "this is a binary file: byte 0xb0"),
        (b"on: push\nna\x00me: x", 2, 3, "this is a binary file: U+0000"),
        (b"on: push\nname: caf\xe9", 2, 10, "this is not UTF-8: byte 0xe9"),
        ("on: push\n".encode("utf-16"), 1, 1, "this is a binary file"),
        (b"on: push\nname: \x07", 2, 7, "U+0007"),
        ("on: push\nname: \ud800", 2, 7, "U+D800"),
    ],
)
def test_what_is_no_text(source: str | bytes, line: int, column: int, message: str) -> None:
    problem = only(source)
    assert message in problem.message
    assert (problem.line, problem.column) == (line, column)


@pytest.mark.parametrize("source", ["", "   \n# nothing\n", "~", "---\n", b"\xef\xbb\xbf"])
def test_empty(source: str | bytes) -> None:
    assert only(source).message == "the file is empty"


@pytest.mark.parametrize("source", ["a", "[on, jobs]", "3"])
def test_no_mapping(source: str) -> None:
    assert "a workflow is a mapping" in only(source).message


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        ("a: 1\n---\nb: 2", 2, 1, "a second document"),
        ("? [a]\n: b", 1, 3, "a mapping's key must be a scalar"),
        ("? {a: b}\n: c", 1, 3, "a mapping's key must be a scalar"),
        ("a: *b", 1, 4, "unknown anchor"),
        ("a: &a [*a]", 1, 8, "stands inside the node it names"),
        ("&a {x: {y: *a}}", 1, 12, "stands inside the node it names"),
        ("a: !!timestamp 1", 1, 4, "unexpected tag"),
        ("a: !own 1", 1, 4, "unexpected tag '!own'"),
        ("a: !!set {b}", 1, 4, "unexpected tag"),
        ("a: !!int '1'", 1, 4, "is invalid for the type"),
        ("a: !!bool x", 1, 4, "is invalid for the type"),
        ("a: 0x1FFFFFFFF", 1, 4, "doesn't fit into 32 bits"),
        ("a: [", 2, 1, "YAML: "),
        ("a: 'b", 1, 6, "YAML: "),
        ("a: b: c", 1, 5, "YAML: "),
        ("\tb: c", 1, 1, "YAML: "),
        ("[" * 60 + "]" * 60, 1, 51, "nested deeper than 50 levels"),
        ("a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30, 2, 34, "nested deeper than 50 levels"),
        ("[" * 100_000, 1, None, "nest"),
    ],
)
def test_yaml_errors(source: str, line: int, column: int | None, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_yaml(source, path="w.yml")
    assert message in caught.value.message
    assert caught.value.path == "w.yml"
    if column is not None:
        assert (caught.value.line, caught.value.column) == (line, column)


def test_positions_of_every_node() -> None:
    root = read_yaml("a:\n  - b\n  - {c: d}\n# x\ne: |\n  text\nf:\ng: é x\n")
    assert isinstance(root, Mapping)
    places = [(key.text, key.line, key.column, value.line, value.column) for key, value in root.pairs]
    assert places == [("a", 1, 1, 2, 3), ("e", 5, 1, 5, 4), ("f", 7, 1, 7, 3), ("g", 8, 1, 8, 4)]
    items = root.get("a")
    assert isinstance(items, Sequence)
    assert [(item.line, item.column) for item in items.items] == [(2, 5), (3, 5)]


def test_duplicates_and_spelling() -> None:
    root = read_yaml("a: 1\nA: 2\nb: 3")
    assert isinstance(root, Mapping)
    assert [key.line for key in duplicate_keys(root)] == [2]
    assert root.get("A") is root.pairs[1][1]
    assert root.get("c") is None


def test_manifests_take_no_anchors() -> None:
    with pytest.raises(YamlError, match="anchors are not supported here"):
        read_yaml("a: &b c", limits=MANIFEST_LIMITS)


def test_limits_are_settable() -> None:
    with pytest.raises(YamlError, match="maximum file size of 3 characters"):
        read_yaml("abcd", limits=YamlLimits(characters=3))


@pytest.mark.parametrize(
    ("manifest", "place", "message"),
    [
        ("name: x", (1, 1), "Required property is missing: runs"),
        ("runs: {using: composite, steps: [{run: a}]}", (1, 34), "Required property is missing: shell"),
        ("runs: {using: node21, main: x}", (1, 15), "Unexpected value 'node21'; did you mean 'node24'?"),
        ("runs: {using: composite, steps: [{uses: x}]}", (1, 41), "Expected format"),
        ("runs: {using: composite, steps: [{run: a, shell: sh, timeout-minutes: 1}]}", (1, 54), "timeout-minutes"),
        ("runs: {using: composite, steps: [{run: '${{ secrets.A }}', shell: sh}]}", (1, 40), "'secrets'"),
        ("runs: {using: docker, image: a, args: ['${{ github.ref }}']}", (1, 40), "'github'"),
        ("x: &a 1\nruns: {using: node20, main: a}", (1, 4), "anchors"),
        ("runs: {using: composite, steps: [{run: a, shell: s, id: a}, {run: b, shell: s, id: A}]}", (1, 84), "once"),
    ],
)
def test_manifests(manifest: str, place: tuple[int, int], message: str) -> None:
    problems = check_manifest(manifest, path="action.yml")
    assert [(problem.line, problem.column) for problem in problems] == [place]
    assert message in problems[0].message


def test_a_good_manifest() -> None:
    text = """
name: x
branding: {icon: a}
inputs: {a: {required: true, deprecationMessage: old, default: '${{ github.token }}'}, b: }
outputs: {o: {value: '${{ steps.s.outputs.o }}'}}
runs:
  using: composite
  steps:
    - {id: s, run: a, shell: '${{ inputs.a }}', if: "always() && hashFiles('x')", continue-on-error: true}
    - {uses: a/b@c, with: {a: '${{ env.A }}'}}
"""
    assert check_manifest(text, path="action.yml") == ()


# --- patterns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", ["", "!", "?", "+a", "a?+", "*?", "**+", "a[", "[]", "[a-Z]", "[9-0]", "[a--]", "a\\"]
)
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(BadPatternError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("rel/**-lts", ["rel/a-lts", "rel/x/y-lts"], ["rel/a"]),
        ("v[0-9]+.[0-9]+", ["v1.20"], ["v1", "v1x20"]),
        ("*fix", ["hotfix", "fix"], ["a/fix"]),
        ("docs/**/*.md", ["docs/a.md", "docs/x/y.md"], ["docs.md", "docsa.md"]),
        ("*.tsx?", ["a.ts", "a.tsx"], ["b/a.ts", "a.tsxx"]),
        ("src/*", ["src/a"], ["src/a/b"]),
        (r"\*a", ["*a"], ["ba"]),
        ("[a-]b", ["ab", "-b"], ["bb"]),
        ("a.b", ["a.b"], ["axb"]),
        ("A", ["A"], ["a"]),
        ("**/a", ["a", "b/a", "b/c/a"], ["ba"]),
        ("a**/b", ["a/b", "ax/y/b"], ["ab"]),
        ("*/*/*/*x", ["a/b/c/dx"], ["a/b/cx", "a/b/c/d/ex"]),
        ("***", ["a/b"], []),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes if not matches(pattern, name)] == []
    assert [name for name in no if matches(pattern, name)] == []


def test_hostile_pattern_ends() -> None:
    assert not matches("*a" * 40 + "b", "a" * 4000)
    assert matches("*a" * 40 + "b", "a" * 4000 + "b")


@settings(max_examples=100, deadline=None)
@given(st.text("ab/*?+[]!\\-", max_size=12), st.text("ab/", max_size=12))
def test_both_ways_to_match_agree(pattern: str, name: str) -> None:
    try:
        pieces: tuple[Piece, ...] = pattern_pieces(pattern.removeprefix("!"))
    except BadPatternError:
        return
    if sum(piece.repeats for piece in pieces) <= 2:
        assert matches(pattern, name) is in_step(pieces, name)


# --- fuzz ----------------------------------------------------------------------------------------------------------

WORDS = (
    *("on", "push", "jobs", "j", "steps", "run", "uses", "if", "needs", "env", "with", "matrix", "strategy", "include"),
    *("permissions", "read-all", "workflow_call", "inputs", "type", "a/b@c", "./x.yml", "concurrency", "container"),
    *("${{ github.ref }}", "${{ insert }}", "${{", "*a", "&a", "1", "0x1", "~", "true", "''", "schedule", "cron", "<<"),
)
PIECES = st.sampled_from((*WORDS, ": ", "\n", "\n  ", "\n    ", "- ", "{", "}", "[", "]", ", ", "|\n ", "'", '"', "#"))


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join))
def test_reader_never_raises(text: str) -> None:
    for problem in check_workflow(text, path="w.yml", loader=lambda _: text.encode()):
        assert problem.message
    check_manifest(text, path="action.yml")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_reader_takes_any_bytes(data: bytes) -> None:
    assert read_workflow(data, path="w.yml").workflow is None


TREE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(TREE, TREE, TREE)
def test_reader_takes_any_tree(on: object, job: object, step: object) -> None:
    import yaml

    tree = {"on": on, "jobs": {"j": job, "k": {"runs-on": "x", "steps": [step]}}}
    text = yaml.dump(tree, Dumper=yaml.CSafeDumper)
    reading = read_workflow(text, path="w.yml")
    assert (reading.workflow is None) is any(problem.severity == "error" for problem in reading.problems)
    for problem in reading.problems:
        assert problem.line is not None


@given(st.text("0123456789+-.eExXoabf_:~", min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_scalars_have_one_of_five_kinds(text: str) -> None:
    try:
        node = read_yaml(f"[{text}]")
    except YamlError:
        return
    assert isinstance(node, Sequence)
    for item in node.items:
        if isinstance(item, Scalar):
            assert item.value is None or isinstance(item.value, (bool, float, str))
