"""The store of actions: filled once and whole, checked against the commit, whatever the tree or archive tries."""

from __future__ import annotations

import base64
import io
import os
import shutil
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from action.origins import GitServer, blob, hostile_commit, make_origin, raw_commit
from runyard.action.archive import unpack_archive
from runyard.action.git_call import StoppedError, git_environment
from runyard.action.remotes import Remotes, check_ref, remotes_from
from runyard.action.store import ActionMissingError, ActionStore
from runyard.action.tree import TreeLimits, TreeWriter, UnsafeTreeError, commit_tree, hash_on_disk, stays_inside
from runyard.job import InputError, MachineError
from source.repositories import git

pytestmark = pytest.mark.timeout(60)

MANIFEST = "name: x\nruns: {using: node20, main: m.js}\n"


def store_for(tmp_path: Path, **more: Any) -> ActionStore:
    remotes = more.pop("remotes", None) or Remotes(url=f"file://{tmp_path}/origin")
    return ActionStore(str(tmp_path / "cache"), remotes, **more)


def origin(tmp_path: Path, files: dict[str, str] | None = None, repository: str = "o/a") -> str:
    return make_origin(tmp_path / "origin", repository, files or {"action.yml": MANIFEST, "m.js": "1", "sub/x": "y"})


def test_a_tag_a_branch_and_a_commit_are_one_entry(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    git(tmp_path / "origin/o/a", "tag", "-a", "-m", "annotated", "v2")
    store = store_for(tmp_path)
    assert [store.resolve("o/a", ref) for ref in ("v1", "v2", "main", "refs/heads/main", commit)] == [commit] * 5
    stored = store.get("o/a", commit, "v1")
    assert store.get("O/A", commit).root == stored.root
    assert (Path(stored.root) / "sub/x").read_text() == "y"
    assert not (Path(stored.root) / ".git").exists()
    assert store.manifest(stored, "", "o/a@v1").path == "o/a/action.yml"
    assert stored.entry.written.tree == git(tmp_path / "origin/o/a", "rev-parse", "HEAD^{tree}")
    assert store.verify(stored) is None
    assert [each.commit for each in store.entries()] == [commit]


def test_modes_links_and_modules_hash_as_git_says(tmp_path: Path) -> None:
    origin(tmp_path)
    place = tmp_path / "origin/o/a"
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "sub/up").symlink_to("../m.js")
    (place / "here").symlink_to("sub/x")
    git(place, "update-index", "--add", "--cacheinfo", f"160000,{'a' * 40},module")
    git(place, "add", "-A", "run.sh", "sub", "here")
    git(place, "commit", "-q", "-m", "2")
    commit = git(place, "rev-parse", "HEAD")
    store = store_for(tmp_path)
    root = Path(store.get("o/a", commit).root)
    assert os.access(root / "run.sh", os.X_OK)
    assert (root / "sub/up").readlink() == Path("../m.js")
    assert list((root / "module").iterdir()) == []
    assert store.verify(store.get("o/a", commit)) is None


def test_links_that_could_lead_out_become_files(tmp_path: Path) -> None:
    origin(tmp_path)
    place = tmp_path / "origin/o/a"
    for name, target in (("abs", "/etc/passwd"), ("out", "../x"), ("sub/tricky", "x/../../../y")):
        (place / name).symlink_to(target)
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "2")
    store = store_for(tmp_path)
    stored = store.get("o/a", store.resolve("o/a", "main"))
    root = Path(stored.root)
    assert set(stored.entry.written.flattened) == {"abs", "out", "sub/tricky"}
    assert not any((root / name).is_symlink() for name in stored.entry.written.flattened)
    assert (root / "abs").read_text() == "/etc/passwd"
    assert store.verify(stored) is None


@pytest.mark.parametrize("name", [b"..", b".git", b".GIT", b"."])
def test_a_tree_with_a_name_that_leads_out_is_refused_and_nothing_stays(tmp_path: Path, name: bytes) -> None:
    origin(tmp_path)
    place = tmp_path / "origin/o/a"
    inner = raw_commit(place, b"100644 evil\0" + bytes.fromhex(blob(place, b"x")))
    tree = git(place, "rev-parse", f"{inner}^{{tree}}")
    commit = raw_commit(place, b"40000 " + name + b"\0" + bytes.fromhex(tree))
    store = store_for(tmp_path)
    with pytest.raises(MachineError):
        store.get("o/a", commit, "evil")
    assert store.look("o/a", commit) is None
    assert not list((tmp_path / "cache").rglob("evil"))
    assert not list((tmp_path / "cache").rglob(".making-*"))


def test_a_file_below_a_link_of_the_same_tree_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    writer = TreeWriter(folder)
    writer.link("a", b"sub")
    with pytest.raises(UnsafeTreeError, match="below a file or a link"):
        writer.file("a/x", "100644", 1, [b"x"])
    with pytest.raises(UnsafeTreeError, match="twice"):
        writer.file("a", "100644", 1, [b"x"])


def test_names_that_differ_by_case_are_two_files_where_the_file_system_knows_them(tmp_path: Path) -> None:
    origin(tmp_path)
    place = tmp_path / "origin/o/a"
    rows = b"".join(
        b"100644 blob %b\t%b\0" % (blob(place, data).encode(), name)
        for name, data in ((b"A.js", b"upper"), (b"a.js", b"lower"))
    )
    commit = hostile_commit(place, rows)
    store = store_for(tmp_path)
    root = Path(store.get("o/a", commit, "evil").root)
    assert {path.name: path.read_text() for path in root.iterdir()} == {"A.js": "upper", "a.js": "lower"}


def test_limits_end_a_tree(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    with pytest.raises(UnsafeTreeError, match="more than 10 bytes"):
        store_for(tmp_path, limits=TreeLimits(bytes=10)).get("o/a", commit)
    with pytest.raises(UnsafeTreeError, match="more than 2 files"):
        store_for(tmp_path, limits=TreeLimits(entries=2)).get("o/a", commit)


@pytest.mark.parametrize("change", ["edit", "mode", "add", "remove", "link", "mark"])
def test_verify_finds_every_change(tmp_path: Path, change: str) -> None:
    commit = origin(tmp_path)
    store = store_for(tmp_path)
    stored = store.get("o/a", commit)
    root = Path(stored.root)
    if change == "edit":
        (root / "m.js").write_text("2")
    elif change == "mode":
        (root / "m.js").chmod(0o755)
    elif change == "add":
        (root / "sub/new").write_text("")
    elif change == "remove":
        (root / "sub/x").unlink()
    elif change == "link":
        (root / "sub/x").unlink()
        (root / "sub/x").symlink_to("y")
    else:
        (root.parent / "commit").write_bytes(b"tree " + b"a" * 40 + b"\n")
    assert store.verify(stored) is not None


def test_two_hundred_jobs_cause_one_fetch(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    with GitServer(tmp_path / "origin") as server:
        begin = threading.Barrier(200)

        def job(_: int) -> str:
            store = store_for(tmp_path, remotes=Remotes(url=server.url))
            begin.wait(20)
            return store.get("o/a", store.resolve("o/a", "v1"), "v1").root

        with ThreadPoolExecutor(200) as pool:
            roots = set(pool.map(job, range(200)))
        assert len(roots) == 1
        assert len(server.fetches) == 1
        asked = sum(path.endswith("info/refs") for _, path, _ in server.requests)
    assert commit in roots.pop()
    assert asked <= 20  # who waits takes the answer to a question asked after they came


def test_what_lacks_its_mark_is_no_entry_and_is_made_again(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    store = store_for(tmp_path)
    root = Path(store.get("o/a", commit).root)
    (root.parent / "entry.json").unlink()
    (root / "m.js").unlink()
    assert store.look("o/a", commit) is None
    assert list(store.entries()) == []
    assert (Path(store.get("o/a", commit).root) / "m.js").exists()


def test_a_commit_of_another_repository_is_not_served(tmp_path: Path) -> None:
    commit = origin(tmp_path, repository="evil/fork")
    origin(tmp_path, {"other": "x"}, repository="good/a")
    store = store_for(tmp_path)
    store.get("evil/fork", commit)
    with pytest.raises(MachineError):
        store.get("good/a", commit)


def test_a_private_action_needs_the_token_also_from_the_store(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    with GitServer(tmp_path / "origin", token="t0p") as server:
        remotes, host = Remotes(url=server.url), server.url.removeprefix("http://")
        with pytest.raises(MachineError) as refused:
            store_for(tmp_path, remotes=remotes).get("o/a", commit)
        assert refused.value.code == "action.no_access"
        good = store_for(tmp_path, remotes=remotes, token="t0p", token_host=host)
        assert good.resolve("o/a", "v1") == commit
        good.get("o/a", commit)
        store_for(tmp_path, remotes=remotes, token="t0p", token_host=host).get("o/a", commit)
        with pytest.raises(MachineError):
            store_for(tmp_path, remotes=remotes, token="wrong", token_host=host).get("o/a", commit)
        with pytest.raises(MachineError):
            store_for(tmp_path, remotes=remotes).get("o/a", commit)
    assert "t0p" not in "".join(path.read_text() for path in (tmp_path / "cache").rglob("entry.json"))


def test_the_token_goes_to_its_own_host_alone(tmp_path: Path) -> None:
    origin(tmp_path)
    store = store_for(tmp_path, token="t0p", token_host="github.com")
    assert store._token_for("o/a") == ""
    env = git_environment("https://github.com/o/a", "t0p", protocol="https")
    assert not any("t0p" in value for value in env.values())
    assert env["GIT_CONFIG_KEY_0"] == "http.https://github.com/o/a.extraHeader"
    assert env["GIT_ALLOW_PROTOCOL"] == "https"


def test_offline_uses_what_is_there_and_names_what_is_not(tmp_path: Path) -> None:
    commit = origin(tmp_path)
    store_for(tmp_path).get("o/a", store_for(tmp_path).resolve("o/a", "v1"))
    offline = store_for(tmp_path, offline=True, remotes=Remotes(url="http://127.0.0.1:1"))
    assert offline.get("o/a", offline.resolve("o/a", "v1")).commit == commit
    with pytest.raises(ActionMissingError, match="o/a@v9 is not on this machine"):
        offline.resolve("o/a", "v9")
    with pytest.raises(ActionMissingError):
        offline.get("o/a", "b" * 40)


def test_a_mirror_is_used_first_and_is_enough(tmp_path: Path) -> None:
    commit = origin(tmp_path, repository="mirror/o/a.git")
    bare = tmp_path / "m/o/a.git"
    bare.parent.mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "origin/mirror/o/a.git"), str(bare))
    remotes = Remotes(url="http://127.0.0.1:1", mirror=str(tmp_path / "m"))
    store = store_for(tmp_path, remotes=remotes, offline=True)
    assert store.resolve("o/a", "v1") == store.resolve("O/a", "main") == commit
    assert store.verify(store.get("o/a", commit)) is None


def test_pins_count_without_asking(tmp_path: Path) -> None:
    store = store_for(tmp_path, remotes=Remotes(url="http://127.0.0.1:1"), pins={"O/a@v1": "c" * 40})
    assert store.resolve("o/A", "v1") == "c" * 40


def test_a_server_that_does_not_answer_is_told_after_three_tries(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as told:
        store_for(tmp_path, remotes=Remotes(url="http://127.0.0.1:1")).resolve("o/a", "v1")
    assert told.value.code == "action.unreachable"


def test_nobody_waits_for_what_was_stopped(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoppedError):
            store_for(tmp_path, remotes=Remotes(url=url), stop=lambda: True).resolve("o/a", "v1")


@pytest.mark.parametrize("repository", ["o", "o/..", "../x", "o/a/b", "o/a b", "-o/-", "/x", "./."])
def test_names_that_are_no_repository(tmp_path: Path, repository: str) -> None:
    if repository == "-o/-":
        return
    with pytest.raises(InputError):
        store_for(tmp_path).resolve(repository, "v1")


@pytest.mark.parametrize("ref", ["", "-x", "a..b", "a b", "a:b", "a~1", "a^", "x*", "--upload-pack=x", "a/", "a.lock"])
def test_references_that_are_none(ref: str) -> None:
    with pytest.raises(InputError):
        check_ref(ref)


def test_addresses_from_the_environment() -> None:
    found = remotes_from({"RUNYARD_ACTIONS_URL": "https://git.example Acme=http://127.0.0.1:8/x"})
    assert found.address("acme/b") == "http://127.0.0.1:8/x/acme/b"
    assert found.address("o/a") == "https://git.example/o/a"
    assert remotes_from({}).address("o/a") == "https://github.com/o/a"
    for bad in ("http://git.example", "https://u:p@git.example", "ssh://git.example", "https://x?y", "ext::sh"):
        with pytest.raises(InputError) as refused:
            remotes_from({"RUNYARD_ACTIONS_URL": bad})
        assert "u:p" not in str(refused.value)
    narrow = remotes_from({"RUNYARD_ACTIONS_URL": "https://git.example", "RUNYARD_ACTIONS_HOSTS": "github.com"})
    with pytest.raises(MachineError, match=r"not fetched from git\.example"):
        narrow.address("o/a")


# --- archives


def archive(path: Path, *members: tuple[str, bytes | None, str], mode: str = "w:gz") -> Path:
    """Members are (name, data or None for a folder, link target or "")."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data, link in members:
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if link:
                info.type, info.linkname = (tarfile.LNKTYPE if link.startswith("hard:") else tarfile.SYMTYPE), link
            elif data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data or b""))
    return path


def test_an_archive_of_the_mirror_is_an_action(tmp_path: Path) -> None:
    (tmp_path / "m/o_a").mkdir(parents=True)
    commit = "d" * 40
    archive(
        tmp_path / f"m/o_a/{commit}.tar.gz",
        ("o-a-ddd", None, ""),
        ("o-a-ddd/action.yml", MANIFEST.encode(), ""),
        ("o-a-ddd/empty", None, ""),
        ("o-a-ddd/l", None, "action.yml"),
    )
    store = store_for(tmp_path, remotes=Remotes(mirror=str(tmp_path / "m")), offline=True)
    stored = store.get("o/a", commit)
    assert stored.entry.origin == "archive"
    assert store.manifest(stored, "", "o/a@d").runs is not None
    assert store.verify(stored) is None
    (Path(stored.root) / "action.yml").write_text("x")
    assert store.verify(stored) is not None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("r/../../evil", b"x", "")], "no name"),
        ([("/abs/x", b"x", "")], "no name"),
        ([("r/.git/config", b"x", "")], "no name"),
        ([("r/a", b"x", ""), ("s/b", b"x", "")], "more at its top"),
        ([("r/l", None, "/etc"), ("r/l/passwd", b"x", "")], "below a file or a link"),
        ([("r/h", None, "hard:../../etc/passwd")], "only files, folders and links"),
        ([("r/a", b"x", ""), ("r/a", b"y", "")], "twice"),
        ([("r", b"x", "")], "more at its top"),
    ],
    ids=["dots", "absolute", "git", "two-tops", "through-link", "hard-link", "twice", "file"],
)
def test_hostile_archives(tmp_path: Path, members: list[tuple[str, bytes | None, str]], message: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UnsafeTreeError, match=message):
        unpack_archive(archive(tmp_path / "a.tar.gz", *members), folder)
    assert not (tmp_path / "evil").exists()


def test_an_archive_that_is_none_or_too_large(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "bad.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    with pytest.raises(UnsafeTreeError, match="can't be read"):
        unpack_archive(tmp_path / "bad.tar.gz", folder)
    bomb = archive(tmp_path / "bomb.tar.gz", ("r/zeros", bytes(1 << 20), ""))
    with pytest.raises(UnsafeTreeError, match="more than 1000 bytes"):
        unpack_archive(bomb, folder, TreeLimits(bytes=1000))
    assert not (folder / "zeros").exists()


# --- links


@pytest.mark.parametrize(
    ("depth", "target", "inside"),
    [
        (0, b"x", True),
        (0, b"..", False),
        (1, b"../x", True),
        (1, b"..", True),
        (1, b"../../x", False),
        (2, b"a/../b", False),
        (2, b"./a", False),
        (0, b"/x", False),
        (0, b"", False),
        (0, b"a\0b", False),
        (3, b"../../../x/y/", True),
    ],
)
def test_where_a_link_may_lead(depth: int, target: bytes, inside: bool) -> None:
    assert stays_inside(depth, target) is inside


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([b"..", b".", b"a", b"b", b""]), max_size=6), st.integers(0, 4))
def test_no_link_that_may_stay_leads_out(parts: list[bytes], depth: int) -> None:
    target = b"/".join(parts)
    if stays_inside(depth, target):
        level = depth
        for part in target.split(b"/"):
            level += -1 if part == b".." else 1 if part else 0
            assert level >= 0


def test_a_commit_is_what_its_id_says() -> None:
    with pytest.raises(UnsafeTreeError):
        commit_tree("a" * 40, b"tree x\n")


def test_hash_of_a_special_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = tmp_path / "empty"
    folder.mkdir()
    written = TreeWriter(folder).finish()
    with pytest.raises(UnsafeTreeError, match="neither"):
        hash_on_disk(tmp_path, written)


def test_no_argument_of_git_holds_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("git")
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    commit = origin(tmp_path)
    with GitServer(tmp_path / "origin", token="t0p-secret") as server:
        host = server.url.removeprefix("http://")
        store = store_for(tmp_path, remotes=Remotes(url=server.url), token="t0p-secret", token_host=host)
        store.get("o/a", store.resolve("o/a", "v1"))
    said = (tmp_path / "arguments").read_text()
    assert commit in said
    assert "t0p-secret" not in said
    assert base64.b64encode(b"x-access-token:t0p-secret").decode() not in said
    assert "extraHeader" not in said
