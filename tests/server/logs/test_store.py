"""One suite for every log store: what comes back is the mask of what was sent, whatever happened on the way."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runyard.report.masks import Masker
from runyard.server.logs import AttemptKey, FileLogs, GapError, NoLogError, SealedError

if TYPE_CHECKING:
    from runyard.job import LogKind

KEY = bytes(range(32))
JOB = AttemptKey("job1", 1)
SECRET = "s3cr3t-and-longer"


def masker(*secrets: str) -> Masker:
    made = Masker()
    for secret in secrets:
        made.add_secret(secret)
    return made


def text_of(store: FileLogs, attempt: AttemptKey = JOB, step: int = 1) -> bytes:
    found = b""
    while chunks := store.read(attempt, step, len(found), 7000):
        assert chunks[0].offset == len(found)
        found += b"".join(chunk.data for chunk in chunks)
    return found


def send(store: FileLogs, offset: int, data: bytes, mask: Masker, **more: object) -> int:
    kind: LogKind = more.get("kind", "output")  # type: ignore[assignment]  # a test's shorthand
    time_ns = more.get("time_ns", 5)
    assert isinstance(time_ns, int)
    return store.append(JOB, 1, offset, data, kind=kind, time_ns=time_ns, masker=mask)


@pytest.fixture
def store(tmp_path: Path) -> FileLogs:
    return FileLogs(tmp_path, key=KEY)


def test_a_repeat_changes_nothing_and_a_gap_is_refused_with_the_offset(store: FileLogs) -> None:
    none = masker()
    assert send(store, 0, b"one\ntwo\n", none) == 8
    assert send(store, 0, b"one\ntwo\n", none) == 8
    assert send(store, 4, b"two\nthree\n", none) == 14
    with pytest.raises(GapError) as gap:
        send(store, 20, b"later\n", none)
    assert gap.value.expected == 14
    assert text_of(store) == b"one\ntwo\nthree\n"


def test_a_secret_over_the_border_of_two_appends_is_hidden_and_so_is_its_replay(store: FileLogs) -> None:
    mask = masker(SECRET)
    half = len(SECRET) // 2
    data = f"before {SECRET} after\n".encode()
    cut = len("before ") + half
    send(store, 0, data[:cut], mask)
    assert SECRET[:half].encode() not in text_of(store)
    send(store, 0, data[:cut], mask)
    send(store, cut, data[cut:], mask)
    send(store, 0, data, mask)
    assert text_of(store) == b"before *** after\n"


def test_what_is_held_back_is_on_disk_only_encrypted_and_survives_the_process(tmp_path: Path) -> None:
    mask = masker(SECRET)
    first = FileLogs(tmp_path, key=KEY)
    send(first, 0, b"before s3cr3t-and", mask)
    assert not any(b"s3cr3t" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    again = FileLogs(tmp_path, key=KEY)
    assert send(again, 17, b"-longer after\n", mask) == 31
    assert text_of(again) == b"before *** after\n"
    # A process that knows the step from before does not write over what another acknowledged.
    other = FileLogs(tmp_path, key=KEY)
    send(other, 31, b"s3cr", mask)
    other.finish(JOB, 1, mask)
    assert text_of(other) == b"before *** after\ns3cr"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_crash_in_the_middle_of_an_append_loses_only_what_was_not_acknowledged(tmp_path: Path, cut: int) -> None:
    none = masker()
    store = FileLogs(tmp_path, key=KEY)
    send(store, 0, b"whole line\n", none)
    index = next(tmp_path.rglob("1.idx"))
    size = index.stat().st_size
    send(store, 11, b"half written\n", none)
    os.truncate(index, min(size + cut, index.stat().st_size - 1))
    again = FileLogs(tmp_path, key=KEY)
    assert text_of(again) == b"whole line\n"
    assert send(again, 11, b"half written\n", none) == 24
    assert text_of(again) == b"whole line\nhalf written\n"


def test_log_bytes_that_a_power_cut_took_are_asked_for_again(tmp_path: Path) -> None:
    none = masker()
    store = FileLogs(tmp_path, key=KEY)
    for number in range(5):
        send(store, number * 6, b"line%d\n" % number, none)
    os.truncate(next(tmp_path.rglob("1.log")), 15)
    again = FileLogs(tmp_path, key=KEY)
    with pytest.raises(GapError) as gap:
        send(again, 30, b"more\n", none)
    assert gap.value.expected == 12
    assert text_of(again) == b"line0\nline1\n"


def test_lines_know_their_number_time_and_kind_also_when_an_append_ends_in_the_middle(store: FileLogs) -> None:
    none = masker()
    pieces: list[tuple[bytes, LogKind, int]] = [
        (b"run it\n", "command", 1),
        (b"first ha", "output", 2),
        (b"lf\nsecond\r\nthi", "output", 3),
        (b"rd", "output", 4),
    ]
    offset = 0
    for data, kind, time_ns in pieces:
        offset = send(store, offset, data, none, kind=kind, time_ns=time_ns)
    found = [(line.number, line.text, line.kind, line.time_ns) for line in store.lines(JOB, 1, 1, 10)]
    assert found == [
        (1, b"run it", "command", 1),
        (2, b"first half", "output", 2),
        (3, b"second", "output", 3),
        (4, b"third", "output", 3),
    ]
    assert [line.text for line in store.tail(JOB, 1, 2)] == [b"second", b"third"]
    assert [line.text for line in store.lines(JOB, 1, 3, 1)] == [b"second"]
    assert store.lines(JOB, 1, 9, 3) == []


def test_a_sealed_log_reads_the_same_takes_nothing_more_and_is_one_file(store: FileLogs, tmp_path: Path) -> None:
    mask = masker(SECRET)
    data = b"".join(b"line %d of many\n" % number for number in range(60000)) + b"end s3cr"
    for at in range(0, len(data), 100_000):
        send(store, at, data[at : at + 100_000], mask, time_ns=at)
    store.append(JOB, 7, 0, b"another step\n", kind="runner", time_ns=9, masker=mask)
    live = store.lines(JOB, 1, 40_000, 20), store.tail(JOB, 1, 3)[:2], store.search(JOB, "LINE 59999")
    store.seal(JOB, mask)
    store.seal(JOB, mask)
    assert (store.lines(JOB, 1, 40_000, 20), store.tail(JOB, 1, 3)[:2], store.search(JOB, "LINE 59999")) == live
    assert text_of(store) == data
    assert [(entry.step, entry.received, entry.lines) for entry in store.steps(JOB)] == [
        (1, len(data), 60001),
        (7, 13, 1),
    ]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["1.sealed"]
    with pytest.raises(SealedError):
        send(store, len(data), b"more", mask)
    assert text_of(FileLogs(tmp_path, key=KEY)) == data


def test_sealing_that_was_interrupted_after_the_rename_is_finished_by_the_next(store: FileLogs, tmp_path: Path) -> None:
    none = masker()
    send(store, 0, b"kept\n", none)
    folder = next(tmp_path.rglob("1.log")).parent
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    store.seal(JOB, none)
    shutil.copytree(copy, folder)
    again = FileLogs(tmp_path, key=KEY)
    assert text_of(again) == b"kept\n"
    again.seal(JOB, none)
    assert not folder.exists()
    assert text_of(again) == b"kept\n"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_sealed_log_is_said_not_guessed(store: FileLogs, tmp_path: Path, damage: str) -> None:
    from runyard.server.logs.sealed import DamagedError

    none = masker()
    send(store, 0, os.urandom(5000).hex().encode(), none)
    store.seal(JOB, none)
    path = next(tmp_path.rglob("*.sealed"))
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 0xFF
        raw[-30] ^= 0xFF
    path.write_bytes(b"" if damage == "empty" else raw[:-9] if damage == "cut" else raw)
    with pytest.raises(DamagedError):
        text_of(FileLogs(tmp_path, key=KEY))


def test_an_attempt_that_writes_too_much_is_cut_and_says_so(tmp_path: Path) -> None:
    none = masker()
    store = FileLogs(tmp_path, key=KEY, attempt_limit=1000)
    offset = 0
    for _ in range(50):
        offset = send(store, offset, b"x" * 99 + b"\n", none)
    assert offset == 5000
    kept = text_of(store)
    assert len(kept) < 1200
    assert b"the log of this attempt is full" in kept
    again = FileLogs(tmp_path, key=KEY, attempt_limit=1000)
    assert send(again, offset, b"more\n", none) == 5005
    assert text_of(again) == kept


def test_attempts_are_apart_and_a_lost_one_stays_readable(store: FileLogs) -> None:
    none = masker()
    send(store, 0, b"first attempt\n", none)
    second = AttemptKey("job1", 2)
    store.append(second, 1, 0, b"second\n", kind="output", time_ns=1, masker=none)
    assert text_of(store) == b"first attempt\n"
    assert text_of(store, second) == b"second\n"
    store.remove(second)
    assert store.steps(second) == []
    assert text_of(store) == b"first attempt\n"
    with pytest.raises(NoLogError):
        store.read(JOB, 3, 0)


@pytest.mark.parametrize("job", ["../up", "", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_an_id_that_is_no_folder_name_is_refused(store: FileLogs, job: str) -> None:
    with pytest.raises(ValueError, match="not a job"):
        store.append(AttemptKey(job, 1), 1, 0, b"x", kind="output", time_ns=1, masker=masker())


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.server.logs import files

    none = masker()
    store = FileLogs(tmp_path, key=KEY)
    send(store, 0, b"kept\n", none)
    real = files._write
    with monkeypatch.context() as patched:

        def full(file: int, data: bytes) -> None:
            real(file, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        patched.setattr(files, "_write", full)
        with pytest.raises(OSError, match="No space"):
            send(store, 5, b"does not fit\n", none)
    assert text_of(store) == b"kept\n"
    assert send(store, 5, b"fits now\n", none) == 14
    assert text_of(FileLogs(tmp_path, key=KEY)) == b"kept\nfits now\n"


def test_many_attempts_share_a_bounded_number_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.server.logs import files

    monkeypatch.setattr(files, "_OPEN_ATTEMPTS", 8)
    store = FileLogs(tmp_path, key=KEY)
    none = masker()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for turn in range(3):
        for number in range(40):
            key = AttemptKey(f"job{number}", 1)
            store.append(key, 1, turn * 2, b"%d\n" % turn, kind="output", time_ns=1, masker=none)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2 * 9
    assert text_of(store, AttemptKey("job0", 1)) == b"0\n1\n2\n"
    store.close()


_PIECES = st.lists(
    st.tuples(
        st.sampled_from(
            [b"plain text\n", b"s3cr3t-and-longer", b"s3cr3t-", b"and-longer\n", b"\n", b"x", b"\r\n", b"ab"]
        ),
        st.sampled_from(["go", "go", "go", "repeat", "restart", "overlap"]),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=_PIECES, seal=st.booleans(), number=st.integers(0, 10**9))
def test_however_it_is_cut_what_is_stored_is_the_mask_of_the_whole(
    tmp_path: Path, pieces: list[tuple[bytes, str]], seal: bool, number: int
) -> None:
    root = tmp_path / f"{number}-{next(_COUNT)}"
    mask = masker(SECRET, "ab")
    whole = b"".join(data for data, _ in pieces)
    store = FileLogs(root, key=KEY)
    offset = 0
    for data, how in pieces:
        if how == "restart":
            store.close()
            store = FileLogs(root, key=KEY)
        start = max(0, offset - 5) if how == "overlap" else offset
        offset = send(store, start, whole[start : offset + len(data)], mask)
        if how == "repeat":
            assert send(store, start, whole[start:offset], mask) == offset
    store.finish(JOB, 1, mask)
    if seal:
        store.seal(JOB, mask)
    wanted = mask.mask(whole)
    if whole:
        assert text_of(store) == wanted
        texts = [line.removesuffix(b"\r") for line in wanted.split(b"\n")]
        texts = texts[:-1] if not texts[-1] else texts
        assert [line.text for line in store.lines(JOB, 1, 1, 1000)] == texts
        assert [line.number for line in store.tail(JOB, 1, 3)] == list(range(1, len(texts) + 1))[-3:]
        for first in range(1, len(texts) + 1):
            assert [line.text for line in store.lines(JOB, 1, first, 2)] == texts[first - 1 : first + 1]
        assert [match.line for match in store.search(JOB, "PLAIN")] == [
            at for at, text in enumerate(texts, 1) if b"plain" in text
        ]
    store.close()


_COUNT = itertools.count()
