"""What setup-python and setup-node ask of the tool cache, as tables; and what is left to the originals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.scripted import uses
from runyard.action import setup_node, setup_python
from runyard.action.tool_steps import tool_adapter
from runyard.action.toolcache import FoundTool, Original, architecture, find_tool, manifest_of
from runyard.job import ActionStep

if TYPE_CHECKING:
    from pathlib import Path


def tool(store: Path, name: str, version: str, arch: str = "x64", *, complete: bool = True) -> None:
    (store / name / version / arch / "bin").mkdir(parents=True)
    if complete:
        (store / name / version / f"{arch}.complete").touch()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for version in ("3.9.18", "3.11.4", "3.12.1", "3.12.10", "3.13.0-rc.2"):
        tool(tmp_path, "Python", version)
    tool(tmp_path, "Python", "3.12.11", complete=False)
    tool(tmp_path, "Python", "3.13.1", "x64-freethreaded")
    for version in ("18.20.4", "20.19.5"):
        tool(tmp_path, "node", version)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("3.x", "3.12.10"),
        ("3", "3.12.10"),
        ("3.11", "3.11.4"),
        ("3.12.1", "3.12.1"),
        (">=3.9 <3.12", "3.11.4"),
        ("3.9 - 3.11", "3.11.4"),
        ("3.13-dev", "3.13.0-rc.2"),
        ("3.13.0-rc.2", "3.13.0-rc.2"),
        ("3.13t", "3.13.1"),
        ("3.10", None),
        ("4.x", None),
        ("none", None),
    ],
)
def test_python_versions_are_found_as_the_original_finds_cached_ones(
    store: Path, written: str, found: str | None
) -> None:
    plan = setup_python.plan_python({"python-version": written}, "x64")
    wanted = setup_python.wanted_python(written, plan)
    got = find_tool(str(store), "Python", wanted.range, wanted.arch)
    assert (got.version if got else None) == found


def test_an_incomplete_version_and_another_architecture_are_not_there(store: Path) -> None:
    assert find_tool(str(store), "Python", "3.12.11", "x64") is None
    assert find_tool(str(store), "Python", "3.12", "arm64") is None
    assert find_tool(str(store), "Python", "=3.12.1", "x64") == FoundTool(name="Python", version="3.12.1", arch="x64")
    assert architecture("linux/arm64/v8") == "arm64"


@pytest.mark.parametrize(
    ("given", "pre"), [({"allow-prereleases": "true"}, "3.13.0-rc.2"), ({"allow-prereleases": "false"}, None)]
)
def test_prereleases_of_a_minor_version_when_they_are_allowed(
    store: Path, given: dict[str, str], pre: str | None
) -> None:
    plan = setup_python.plan_python({"python-version": "3.13", **given}, "x64")
    got = find_tool(str(store), "Python", setup_python.wanted_python("3.13", plan).range, "x64")
    assert (got.version if got else None) == pre


@pytest.mark.parametrize(
    ("name", "text", "versions"),
    [
        (".python-version", "3.13/envs/virtualenv\r# 3.12\n3.11\r\n3.10\r\n 3.9 \r\n", ("3.13", "3.11", "3.10", "3.9")),
        ("pyproject.toml", '[project]\nrequires-python = ">=3.9,<3.12"\n', (">=3.9 <3.12",)),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.10"\n', ("^3.10",)),
        (".tool-versions", "# python 3.9\nnodejs 16\n  python   v3.13.2  \n", ("3.13.2",)),
        ("Pipfile", '[requires]\npython_version = "3.13"\npython_full_version = "3.13.0"\n', ("3.13.0",)),
        ("sub/Pipfile", '[requires]\npython_version = "3.13"\n', ("3.13",)),
    ],
)
def test_files_of_python_versions(name: str, text: str, versions: tuple[str, ...]) -> None:
    assert setup_python.versions_in(name, text.encode()) == versions


@pytest.mark.parametrize(
    ("name", "text"),
    [("pyproject.toml", ""), ("pyproject.toml", "no toml ="), (".python-version", "# none\n"), ("Pipfile", "[a]")],
)
def test_a_file_without_a_version_is_left_to_the_original(name: str, text: str) -> None:
    with pytest.raises(Original):
        setup_python.versions_in(name, text.encode())


@pytest.mark.parametrize(
    "given",
    [
        {"cache": "pip"},
        {"check-latest": "true"},
        {"pip-install": "tox"},
        {"pip-version": "25.0"},
        {"update-environment": "perhaps"},
        {"an-input-of-tomorrow": "1"},
    ],
)
def test_what_python_steps_the_original_does(given: dict[str, str]) -> None:
    with pytest.raises(Original):
        setup_python.plan_python({"python-version": "3.12", **given}, "x64")


def test_other_pythons_are_left_to_the_original() -> None:
    plan = setup_python.plan_python({"python-version": "pypy3.10"}, "x64")
    with pytest.raises(Original, match="pypy"):
        setup_python.wanted_python("pypy3.10", plan)


def test_the_variables_of_a_python() -> None:
    found = setup_python.variables("/t/Python/3.12.1/x64", "/lib/mine")
    assert found["pythonLocation"] == found["Python3_ROOT_DIR"] == "/t/Python/3.12.1/x64"
    assert found["PKG_CONFIG_PATH"] == "/t/Python/3.12.1/x64/lib/pkgconfig"
    assert found["LD_LIBRARY_PATH"] == "/t/Python/3.12.1/x64/lib:/lib/mine"
    assert "LD_LIBRARY_PATH" not in setup_python.variables("/t", "/t/lib")


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        (".nvmrc", "v20\n", "20"),
        (".nvmrc", "lts/iron\n", "lts/iron"),
        (".node-version", "20.19.5", "20.19.5"),
        (".tool-versions", "python 3.12\nnodejs 20.1.0\n", "20.1.0"),
        ("package.json", '{"engines": {"node": ">=18"}}', ">=18"),
        ("package.json", '{"engines": {"node": ">=18"}, "volta": {"node": "20.0.0"}}', "20.0.0"),
        ("package.json", '{"devEngines": {"runtime": [{"name": "Node", "version": "^20"}]}}', "^20"),
        ("action.yml", "runs:\n  using: 'node20'\n", "20"),
    ],
)
def test_files_of_node_versions(name: str, text: str, version: str) -> None:
    assert setup_node.version_in(name, text.encode()) == version


def test_a_package_that_points_elsewhere_is_left_to_the_original() -> None:
    with pytest.raises(Original):
        setup_node.version_in("package.json", b'{"volta": {"extends": "../package.json"}}')


RELEASES = [
    {"version": "22.3.0", "stable": True},
    {"version": "20.19.5", "stable": True, "lts": "Iron"},
    {"version": "20.1.0", "stable": True, "lts": "Iron"},
    {"version": "18.20.4", "stable": True, "lts": "Hydrogen"},
]


@pytest.mark.parametrize(
    ("written", "releases", "wanted"),
    [
        ("20", None, "20"),
        ("lts/iron", None, "20"),
        ("lts/Hydrogen", RELEASES, "18"),
        ("lts/*", RELEASES, "20"),
        ("lts/-1", RELEASES, "18"),
    ],
)
def test_aliases_of_node_where_the_data_answers_them(
    written: str, releases: list[dict[str, object]] | None, wanted: str
) -> None:
    assert setup_node.range_of(written, releases) == wanted


@pytest.mark.parametrize(
    ("written", "releases"),
    [
        ("lts/*", None),
        ("lts/-9", RELEASES),
        ("lts/unknown", RELEASES),
        ("latest", RELEASES),
        ("23-nightly", None),
        ("20.0.0-rc.1", None),
    ],
)
def test_aliases_that_are_left_to_the_original(written: str, releases: list[dict[str, object]] | None) -> None:
    with pytest.raises(Original):
        setup_node.range_of(written, releases)


def test_a_list_of_releases_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node/versions-manifest.json").write_text("{")
    assert manifest_of(str(tmp_path), "node") is None


@pytest.mark.parametrize(
    "given",
    [
        {"cache": "npm"},
        {"registry-url": "https://r.example"},
        {"check-latest": "TRUE"},
        {"mirror": "https://m.example"},
        {},
    ],
)
def test_what_node_steps_the_original_does(given: dict[str, str]) -> None:
    with pytest.raises(Original):
        setup_node.plan_node({"node-version": "20", **given} if given else {}, "v4", "x64")


def test_newer_versions_look_for_a_package_manager() -> None:
    assert setup_node.plan_node({"node-version": "20"}, "v5", "x64").looks_at_package
    assert not setup_node.plan_node({"node-version": "20"}, "v4.1.0", "x64").looks_at_package
    assert not setup_node.plan_node(
        {"node-version": "20", "package-manager-cache": "false"}, "v6", "x64"
    ).looks_at_package
    assert setup_node.asks_for_cache(b'{"packageManager": "npm@10"}')
    assert not setup_node.asks_for_cache(b'{"name": "x"}')
    assert not setup_node.asks_for_cache(b"[]")


@pytest.mark.parametrize(
    ("reference", "given", "adapter"),
    [
        ("actions/setup-python@v5", {"python-version": "3.12"}, "setup_python"),
        ("actions/setup-python@v6.1.0", {"python-version": "${{ matrix.v }}"}, "setup_python"),
        ("actions/setup-python@v5", {"python-version-file": "pyproject.toml"}, "setup_python"),
        ("actions/setup-python@v5", {"python-version": "3.10"}, None),
        ("actions/setup-python@v5", {"python-version": "3.12", "cache": "pip"}, None),
        ("actions/setup-python@v3", {"python-version": "3.12"}, None),
        ("actions/setup-python@some-branch", {"python-version": "3.12"}, None),
        ("actions/setup-node@v4", {"node-version": 20}, "setup_node"),
        ("actions/setup-node@v4", {"node-version": "lts/*"}, None),
        ("actions/setup-node/sub@v4", {"node-version": 20}, None),
        ("other/setup-node@v4", {"node-version": 20}, None),
    ],
)
def test_which_references_an_adapter_may_serve(
    store: Path, reference: str, given: dict[str, object], adapter: str | None
) -> None:
    step = uses(1, reference, with_=given)
    assert isinstance(step, ActionStep)
    assert tool_adapter(step, str(store), "linux/amd64") == adapter
    assert tool_adapter(step, str(store / "empty"), "linux/amd64") is None
