"""Stores: whole generations, one writer at a time, readers that never see a part, and nothing for who isn't known."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.job import MachineError
from runyard.sandbox import reflink, stores
from runyard.sandbox.stores import Identity, Store, mark_of

if TYPE_CHECKING:
    from runyard.sandbox.stores import Generation, Mark

MINE = Identity(repository="octo/demo", workflow="ci.yml", name="target", place="linux host", trust="trusted", job="j")
LARGE = 1 << 30


def tar_of(files: dict[str, bytes | str | None]) -> bytes:
    """A tar: bytes are files, text is where a link leads, None is a device."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o6755
            info.mtime = 1_700_000_000
            if content is None:
                info.type = tarfile.CHRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def closed_tar(content: bytes) -> bytes:
    """A folder that nobody may write, with a file in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folder = tarfile.TarInfo("mod")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o555
        tar.addfile(folder)
        file = tarfile.TarInfo("mod/a")
        file.size = len(content)
        tar.addfile(file, io.BytesIO(content))
    return out.getvalue()


def publish(store: Store, tar: bytes, before: Generation | None = None, limit: int = LARGE) -> Mark:
    with store.staging() as staging:
        Path(staging.tar).write_bytes(tar)
        mark = staging.unpack(limit=limit, before=before)
        staging.publish()
    return mark


def read(store: Store) -> dict[str, str] | None:
    generation = store.open()
    if generation is None:
        return None
    with generation:
        root = Path(generation.tree)
        return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def folders(root: Path) -> list[str]:
    (key,) = root.iterdir()
    return sorted(each.name.split("-")[0] for each in key.iterdir() if each.is_dir() and not each.is_symlink())


def test_what_was_published_is_found_whole(tmp_path: Path) -> None:
    store = Store(str(tmp_path), MINE)
    assert store.open() is None
    publish(store, tar_of({"a": b"one", "b/c": b"two"}))
    assert read(store) == {"a": "one", "b/c": "two"}
    publish(store, tar_of({"a": b"new"}))
    assert read(store) == {"a": "new"}
    assert folders(tmp_path) == ["gen"]


@pytest.mark.parametrize("part", ["repository", "workflow", "name", "place", "trust"])
def test_S4_138_nothing_is_kept_for_who_is_not_known(tmp_path: Path, part: str) -> None:
    identity = msgspec.structs.replace(MINE, **{part: " "})
    assert identity.unknown == part
    with pytest.raises(ValueError, match=f"without a {part}"):
        Store(str(tmp_path), identity)


@pytest.mark.parametrize("part", ["repository", "workflow", "name", "place", "trust", "job", "extra"])
def test_another_identity_is_another_store(tmp_path: Path, part: str) -> None:
    publish(Store(str(tmp_path), MINE), tar_of({"a": b"mine"}))
    assert Store(str(tmp_path), msgspec.structs.replace(MINE, **{part: "other"})).open() is None


def test_a_writer_that_gives_up_or_fails_leaves_the_old_generation(tmp_path: Path) -> None:
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"a": b"old"}))
    with store.staging() as staging:
        Path(staging.tar).write_bytes(tar_of({"a": b"never"}))
        staging.unpack(limit=LARGE, before=None)
    with pytest.raises(MachineError, match="more than 3 bytes"):
        publish(store, tar_of({"a": b"large"}), limit=3)
    with pytest.raises(MachineError, match="the tar ends within a file"):
        publish(store, tar_of({"a": b"x" * 5000})[:1024])
    assert read(store) == {"a": "old"}
    assert folders(tmp_path) == ["gen"]


def test_a_killed_writer_publishes_nothing_and_the_next_removes_what_it_left(tmp_path: Path) -> None:
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"a": b"old"}))
    code = (
        "import sys, time\nfrom sandbox.test_stores import *\n"
        "with Store(sys.argv[1], MINE).staging() as staging:\n"
        "    Path(staging.tar).write_bytes(tar_of({'a': b'half'}))\n"
        "    staging.unpack(limit=LARGE, before=None)\n    print('made', flush=True)\n    time.sleep(600)\n"
    )
    here = str(Path(__file__).parent.parent)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=here, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"made\n"
        assert folders(tmp_path) == ["gen", "new"]
        writer.kill()
    assert read(store) == {"a": "old"}
    publish(store, tar_of({"a": b"next"}))
    assert folders(tmp_path) == ["gen"]


def test_two_writers_of_one_key_end_with_one_whole_entry(tmp_path: Path) -> None:
    names = ["a", "b"]
    both = threading.Barrier(2, timeout=15)

    def write(text: bytes) -> None:
        store = Store(str(tmp_path), MINE)
        for _ in range(5):
            with store.staging() as staging:
                Path(staging.tar).write_bytes(tar_of({f"{n}": text for n in range(50)}))
                staging.unpack(limit=LARGE, before=None)
                both.wait()
                staging.publish()
            found = read(store)
            assert found is not None
            assert len(found) == 50
            assert len(set(found.values())) == 1

    threads = [threading.Thread(target=write, args=(name.encode(),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    found = read(Store(str(tmp_path), MINE))
    assert found is not None
    assert (len(found), len(set(found.values()))) == (50, 1)
    publish(Store(str(tmp_path), MINE), tar_of({"last": b"1"}))
    assert folders(tmp_path) == ["gen"]


def test_a_generation_in_use_stays_until_it_is_let_go(tmp_path: Path) -> None:
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"a": b"old"}))
    generation = store.open()
    assert generation is not None
    publish(store, tar_of({"a": b"new"}))
    assert Path(generation.tree, "a").read_text() == "old"
    generation.close()
    generation.close()
    publish(store, tar_of({"a": b"newest"}))
    assert folders(tmp_path) == ["gen"]


@pytest.mark.parametrize("harm", ["content", "missing", "more", "mark", "no mark"])
def test_a_tree_that_is_not_what_was_marked_is_not_used(tmp_path: Path, harm: str) -> None:
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"a": b"one", "b": b"two"}))
    (key,) = tmp_path.iterdir()
    folder = key / (key / "current").readlink()
    match harm:
        case "content":
            (folder / "tree/a").write_bytes(b"longer")
        case "missing":
            (folder / "tree/a").unlink()
        case "more":
            (folder / "tree/c").touch()
        case "mark":
            (folder / "complete").write_bytes(b"{")
        case _:
            (folder / "complete").unlink()
    assert store.open() is None
    publish(store, tar_of({"a": b"again"}))
    assert read(store) == {"a": "again"}


def test_S4_76_links_are_text_and_lead_nowhere_on_the_host(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    store = Store(str(tmp_path / "stores"), MINE)
    publish(store, tar_of({"up": "../../../../outside", "root": "/etc/passwd", "dev": None, "plain": b"x"}))
    generation = store.open()
    assert generation is not None
    with generation:
        tree = Path(generation.tree)
        assert sorted(each.name for each in tree.iterdir()) == ["plain", "root", "up"]
        assert (tree / "root").readlink() == Path("/etc/passwd")
        assert (tree / "plain").stat().st_mode & 0o7777 == 0o755
    with pytest.raises(MachineError, match="can't be kept"):
        publish(store, tar_of({"up": str(outside), "up/harm": b"x"}))
    assert list(outside.iterdir()) == []
    with pytest.raises(MachineError, match="can't be kept"):
        publish(store, tar_of({"../harm": b"x"}))
    assert not (tmp_path / "harm").exists()


def test_a_lock_that_is_not_free_in_time_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"a": b"old"}))
    (key,) = tmp_path.iterdir()
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.05)
    with (key / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="was locked for"):
            publish(store, tar_of({"a": b"new"}))
    assert read(store) == {"a": "old"}


def test_S4_75_files_that_did_not_change_share_their_bytes_where_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned: list[int] = []

    def clone(source: int, target: int) -> bool:
        cloned.append(os.fstat(target).st_ino)
        return True

    monkeypatch.setattr(reflink, "clone", clone)
    store = Store(str(tmp_path), MINE)
    publish(store, tar_of({"same": b"1" * 100, "other": b"2", "empty": b""}))
    generation = store.open()
    assert generation is not None
    with generation:
        publish(store, tar_of({"same": b"1" * 100, "other": b"3", "empty": b""}), generation)
    (key,) = tmp_path.iterdir()
    now = key / (key / "current").readlink() / "tree"
    assert cloned == [(now / "same").stat().st_ino]


def test_where_the_file_system_cannot_share_every_file_keeps_its_own(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("same")
    shared = reflink.share(str(tmp_path / "before"), str(tmp_path / "after"))
    assert shared in (0, 1)
    assert (tmp_path / "after/a").read_text() == "same"


def test_a_tree_of_folders_that_nobody_may_write_is_replaced_and_removed(tmp_path: Path) -> None:
    """As an ordinary user, whom modes stop."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chown(tmp_path, 64_099, 64_099) if os.geteuid() == 0 else None
            os.chdir(tmp_path)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(64_099, 64_099, 64_099)
                os.setresuid(64_099, 64_099, 64_099)
            store = Store("stores", MINE)
            publish(store, closed_tar(b"1"))
            publish(store, closed_tar(b"2"))
            found = read(store)
            code = 0 if found == {"mod/a": "2"} and folders(Path("stores")) == ["gen"] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    for each in sorted(tmp_path.rglob("mod")):
        each.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_mark_counts_and_sees_every_change(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("12345")
    (tmp_path / "l").symlink_to("d/f")
    first = mark_of(str(tmp_path))
    assert (first.members, first.size) == (3, 5)
    os.utime(tmp_path / "d/f", (time.time() - 10, time.time() - 10))
    assert mark_of(str(tmp_path)) != first
