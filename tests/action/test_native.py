"""The built-in cache and artifact actions as tables: references, inputs, versions, roots, targets."""

from __future__ import annotations

import hashlib

import pytest

from runyard.action.artifacts import (
    DownloadPlan,
    Known,
    is_hidden,
    plan_download,
    plan_upload,
    root_of,
    target_of,
)
from runyard.action.cache import cache_version, check_keys, plan_cache, same_key
from runyard.action.manifest import parse_reference
from runyard.action.native import built_in
from runyard.job import ActionStep, Entry, InputError, MappingToken, TextToken


def step(uses: str, *inputs: str) -> ActionStep:
    name, _, ref = uses.partition("@")
    owner, repository, *path = name.split("/")
    entries = tuple(Entry(TextToken(each), TextToken("x")) for each in inputs)
    return ActionStep(
        id="s",
        number=1,
        repository=f"{owner}/{repository}",
        path="/".join(path),
        ref=ref,
        inputs=MappingToken(entries) if inputs else None,
    )


@pytest.mark.parametrize(
    ("uses", "inputs", "wanted"),
    [
        ("actions/cache@v4", (), "cache"),
        ("Actions/Cache@v3.3.1", (), "cache"),
        ("actions/cache/restore@v5", (), "cache_restore"),
        ("actions/cache/save@main", (), "cache_save"),
        ("actions/cache/other@v4", (), None),
        ("actions/cache@v2", (), None),
        ("actions/cache@my-branch", (), None),
        ("actions/upload-artifact@v4", (), "upload_artifact"),
        ("actions/upload-artifact@v3", (), None),
        ("actions/upload-artifact/merge@v4", (), None),
        ("actions/download-artifact@v5", (), "download_artifact"),
        ("actions/download-artifact@v3", (), None),
        ("actions/download-artifact@v4", ("GitHub-Token", "run-id"), None),
        ("someone/cache@v4", (), None),
        (f"actions/cache@{'a' * 40}", (), "cache"),
    ],
)
def test_which_references_have_an_adapter(uses: str, inputs: tuple[str, ...], wanted: str | None) -> None:
    assert parse_reference(uses) is not None
    assert built_in(step(uses, *inputs)) == wanted


# --- cache


def test_the_inputs_of_a_cache() -> None:
    plan = plan_cache(
        {
            "Key": " k ",
            "path": "a\n\n  ! b \n~/c",
            "restore-keys": "x-\n y- \n",
            "fail-on-cache-miss": "TRUE",
            "lookup-only": "yes",
        }
    )
    assert (plan.key, plan.paths, plan.restore_keys) == ("k", ("a", "!b", "~/c"), ("x-", "y-"))
    assert plan.fail_on_miss
    assert not plan.lookup_only, "only true counts"
    for missing in ({"key": "k"}, {"path": "p"}, {"key": " ", "path": "p"}):
        with pytest.raises(InputError, match="Input required and not supplied"):
            plan_cache(missing)


def test_the_version_of_an_archive_is_the_hash_of_paths_and_compression() -> None:
    text = "node_modules|~/x|zstd-without-long|1.0"
    assert cache_version(("node_modules", "~/x"), "zstd-without-long") == hashlib.sha256(text.encode()).hexdigest()
    assert cache_version(("a",), "gzip") != cache_version(("a",), "zstd-without-long")


@pytest.mark.parametrize(("one", "other", "same"), [("A-k", "a-K", True), ("k", "k-1", False), ("é", "e", False)])
def test_keys_are_the_same_ignoring_case(one: str, other: str, *, same: bool) -> None:
    assert same_key(one, other) == same


@pytest.mark.parametrize("keys", [[f"k{n}" for n in range(11)], ["k" * 513], ["a,b"]])
def test_keys_that_the_client_refuses(keys: list[str]) -> None:
    with pytest.raises(InputError, match="Key Validation Error"):
        check_keys(keys)


# --- artifacts


def test_the_inputs_of_an_upload() -> None:
    plan = plan_upload({"path": "out"})
    assert (plan.name, plan.when_nothing, plan.compression, plan.archive) == ("artifact", "warn", 6, True)
    given = {"name": "n", "path": "a\n!b", "if-no-files-found": "error", "retention-days": "400"}
    plan = plan_upload({**given, "compression-level": "0", "overwrite": "True", "archive": "FALSE"})
    assert (plan.retention_days, plan.compression, plan.overwrite, plan.archive) == (90, 0, True, False)
    for wrong, said in (
        ({}, "path"),
        ({"path": "x", "if-no-files-found": "maybe"}, "if-no-files-found"),
        ({"path": "x", "compression-level": "12"}, "0-9"),
        ({"path": "x", "retention-days": "soon"}, "retention-days"),
        ({"path": "x", "overwrite": "yes"}, "overwrite"),
    ):
        with pytest.raises(InputError, match=said):
            plan_upload(wrong)


@pytest.mark.parametrize(
    ("searched", "found", "root"),
    [
        (("/w/out",), ("/w/out/a", "/w/out/b/c"), "/w/out"),
        (("/w/out/a",), ("/w/out/a",), "/w/out"),
        (("/w/out/a", "/w/out/b/c"), ("/w/out/a", "/w/out/b/c/d"), "/w/out"),
        (("/w/x", "/tmp/y"), ("/w/x", "/tmp/y"), "/"),
        (("/w",), ("/w/only",), "/w"),
    ],
    ids=["folder", "one-file", "several", "nothing-in-common", "one-below"],
)
def test_what_names_in_an_artifact_are_relative_to(
    searched: tuple[str, ...], found: tuple[str, ...], root: str
) -> None:
    assert root_of(searched, found) == root


@pytest.mark.parametrize(
    ("start", "path", "hidden"),
    [
        ("/w/out", "/w/out/a", False),
        ("/w/out", "/w/out/.a", True),
        ("/w/out", "/w/out/.git/a", True),
        ("/w/.out", "/w/.out/a", True),
        ("/home/.x/w", "/home/.x/w/a", False),
        ("/", "/a", False),
    ],
)
def test_hidden_as_seen_from_the_search_path(start: str, path: str, *, hidden: bool) -> None:
    assert is_hidden(start, path) == hidden


def test_the_inputs_of_a_download() -> None:
    def read(**given: str) -> DownloadPlan:
        return plan_download(
            {name.replace("_", "-"): value for name, value in given.items()}, workspace="/w", home="/h"
        )

    assert read().path == "/w"
    assert read(path="~/x").path == "/h/x"
    assert read(path="a/../b").path == "/w/b"
    assert read(path="/abs").path == "/abs"
    assert read(artifact_ids="1, 2,").ids == (1, 2)
    for wrong in ({"artifact_ids": "1,x"}, {"artifact_ids": ","}, {"name": "n", "artifact_ids": "1"}):
        with pytest.raises(InputError):
            read(**wrong)


@pytest.mark.parametrize(
    ("plan", "count", "ref", "target"),
    [
        (DownloadPlan(path="/w", name="a"), 1, "v4", "/w"),
        (DownloadPlan(path="/w"), 1, "v5", "/w/a"),
        (DownloadPlan(path="/w", pattern="a*", merge=True), 2, "v4", "/w"),
        (DownloadPlan(path="/w", ids=(1,)), 1, "v4.3.0", "/w/a"),
        (DownloadPlan(path="/w", ids=(1,)), 1, "v5", "/w"),
        (DownloadPlan(path="/w", ids=(1, 2)), 2, "v5", "/w/a"),
    ],
)
def test_where_an_artifact_goes(plan: DownloadPlan, count: int, ref: str, target: str) -> None:
    assert target_of(plan, Known(1, "a", 3), count, ref) == target
