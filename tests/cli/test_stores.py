"""The file of declared stores: what it takes, what it refuses with its place, and which job gets what."""

from __future__ import annotations

import pytest

from runyard.cli.run_stores import read_stores
from runyard.job import InputError

GOOD = b"""
[target]
path = "./target/"
kind = "build"
jobs = ["build", "test-*"]
max_size = "2GiB"
key = "v2"

[downloads]
path = "~/.cache/pip"
scope = "repository"

[cc]
kind = "compiler"
tool = "ccache"
jobs = ["build"]

[sc]
kind = "compiler"
tool = "sccache"
jobs = ["test-*"]
"""


def test_what_is_declared() -> None:
    stores = read_stores(GOOD, "s.toml")
    target, downloads, cc = stores.of_job("build")
    assert (target.path, target.kind, target.scope, target.max_bytes, target.extra) == (
        "target",
        "build",
        "job",
        2 << 30,
        "v2",
    )
    assert (downloads.path, downloads.kind, downloads.scope) == ("~/.cache/pip", "cache", "repository")
    assert (cc.path, cc.tool) == ("~/.cache/ccache", "ccache")
    assert [store.name for store in stores.of_job("test-unit")] == ["target", "downloads", "sc"]
    assert [store.name for store in stores.of_job("lint")] == ["downloads"]


def test_S4_140_at_most_one_compiler_cache_a_job() -> None:
    stores = read_stores(GOOD.replace(b'["test-*"]', b'["*"]'), "s.toml")
    with pytest.raises(InputError, match="the job 'build' has the compiler caches cc and sc: one is the most"):
        stores.of_job("build")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[a]\npath = "../x"', "s.toml:2:1: a.path: '../x' is no folder below the workspace or below ~/"),
        ('[a]\npath = "/etc"', "s.toml:2:1: a.path: '/etc' is no folder"),
        ('[a]\npath = "~/../x"', "s.toml:2:1: a.path: '~/../x' is no folder"),
        ('[a]\npath = "."', "s.toml:2:1: a.path: '.' is no folder"),
        ('[a]\npath = "~"', "s.toml:2:1: a.path: '~' is no folder"),
        ('[a]\npath = "~root/x"', "s.toml:2:1: a.path: '~root/x' is no folder"),
        ('[a]\npath = ".git/x"', "s.toml:2:1: a.path: '.git/x' is not for a store"),
        ('[a]\npath = "~/work/x"', "s.toml:2:1: a.path: '~/work/x' is not for a store"),
        ("[a]\n", "s.toml:1:1: a.path: a store needs a path"),
        ('[a]\npath = "x"\nmax_size = 5', "s.toml:3:1: a.max_size"),
        ('[a]\npath = "x"\nkidn = "build"', "kidn"),
        ('[a]\nkind = "compiler"', "s.toml:1:1: a.tool: a compiler cache needs a tool: ccache or sccache"),
        ('[a]\npath = "x"\ntool = "ccache"', "s.toml:3:1: a.tool: only a store of the kind compiler has a tool"),
        ('[a]\npath = "x"\n[b]\npath = "x/y"', "s.toml:4:1: b.path: it lies in, or around, the path of a"),
        ("a = 1", "s.toml:1:1: a: a store is a table"),
        ("[a", "s.toml"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        read_stores(text.encode(), "s.toml")
    assert message in str(refused.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as refused:
        read_stores(b'[a]\npath = ".."\n[b]\npath = "/x"\nsize = 1\n', "s.toml")
    assert "s.toml:2:1" in str(refused.value)
    assert "s.toml:5:1" in str(refused.value)
