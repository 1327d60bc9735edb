"""Artifacts over the protocol: one owner a name (D11, F56), whole or not listed, and as files without surprises."""

from __future__ import annotations

import asyncio
import io
import stat
import zipfile
from typing import TYPE_CHECKING

import pytest

from runyard.service.artifact_folder import UnsafeArchiveError, ZipLimits, unpack
from runyard.service.artifact_rules import check_name, expiry
from runyard.service.asgi import Refusal
from service.clients import run, tenant

if TYPE_CHECKING:
    from pathlib import Path

    from service.clients import House


def zipped(*files: tuple[str, bytes], mode: int = 0o644) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode if mode >> 12 else stat.S_IFREG | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


def test_upload_list_download_delete(house: House) -> None:
    async def work() -> None:
        client, reader = house.client(), house.client(tenant("test"))
        data = zipped(("a.txt", b"hello"))
        done = await client.upload("dist", data)
        assert done.json["ok"]
        (listed,) = (await reader.twirp("ListArtifacts", {})).json["artifacts"]
        assert listed["database_id"] == done.json["artifact_id"]
        assert (listed["name"], listed["size"]) == ("dist", str(len(data)))
        assert listed["workflow_job_run_backend_id"] == "build"
        assert listed["digest"].startswith("sha256:")
        assert (await reader.twirp("ListArtifacts", {"name_filter": "other"})).json["artifacts"] == []
        by_id = await reader.twirp("ListArtifacts", {"id_filter": listed["database_id"]})
        assert len(by_id.json["artifacts"]) == 1
        message = {"name": "dist", "workflow_job_run_backend_id": listed["workflow_job_run_backend_id"]}
        signed = await reader.twirp("GetSignedArtifactURL", message)
        got = await reader.ask("GET", signed.json["signed_url"])
        # The address is served by the gateway that signed it, and by no other job's.
        assert (got.status, got.body) == (200, data)
        assert got.headers["content-type"] == "application/zip"
        assert "dist.zip" in got.headers["content-disposition"]
        assert (await client.ask("GET", signed.json["signed_url"])).status == 403
        assert (await reader.twirp("DeleteArtifact", {"name": "dist"})).json["artifact_id"] == listed["database_id"]
        assert (await reader.twirp("GetSignedArtifactURL", message)).status == 404
        assert not [path for path in (house.folder / "blobs").rglob("*") if path.is_file()]

    run(work)


def test_F56_two_legs_one_name(house: House) -> None:
    async def work() -> None:
        one, two = house.client(tenant("m1", name="test (1)")), house.client(tenant("m2", name="test (2)"))
        answers = await asyncio.gather(one.upload("dist", b"1" * 10), two.upload("dist", b"2" * 10))
        won = [answer.status == 200 for answer in answers]
        assert sorted(won) == [False, True]
        loser, owner = answers[won.index(False)], ("test (1)", "test (2)")[won.index(True)]
        assert (loser.status, loser.json["code"]) == (409, "already_exists")
        assert f"'{owner}'" in loser.json["msg"]
        third = house.client(tenant("m3"))
        (old,) = (await third.twirp("ListArtifacts", {})).json["artifacts"]
        await third.twirp("DeleteArtifact", {"name": "dist"})
        new = await third.upload("dist", b"3" * 10)
        assert int(new.json["artifact_id"]) > int(old["database_id"])
        assert (await third.twirp("ListArtifacts", {"id_filter": old["database_id"]})).json["artifacts"] == []

    run(work)


def test_F56_what_is_not_finished_is_not_listed_and_another_run_sees_nothing(house: House) -> None:
    async def work() -> None:
        client, other = house.client(), house.client(tenant(run="2"))
        made = await client.twirp("CreateArtifact", {"name": "half", "version": 4})
        await client.ask("PUT", made.json["signed_upload_url"], b"half")
        assert (await client.twirp("ListArtifacts", {})).json["artifacts"] == []
        assert (await client.twirp("GetSignedArtifactURL", {"name": "half"})).status == 404
        await client.upload("dist", b"data")
        assert (await other.twirp("ListArtifacts", {})).json["artifacts"] == []
        assert (await other.twirp("GetSignedArtifactURL", {"name": "dist"})).status == 404
        assert (await other.upload("dist", b"its own")).status == 200
        forged = {"name": "x", "workflow_run_backend_id": "plan-2"}
        assert (await client.twirp("CreateArtifact", forged)).status == 403

    run(work)


@pytest.mark.parametrize("strict", [False, True], ids=["D11", "D11-strict"])
def test_D11_a_later_attempt_of_the_same_job_creates_its_names_again(house: House, *, strict: bool) -> None:
    async def work() -> None:
        first = house.client(tenant(strict=strict))
        second = house.client(tenant(attempt=2, strict=strict))
        await first.upload("dist", b"first")
        again = await first.twirp("CreateArtifact", {"name": "dist", "version": 4})
        assert again.status == 409
        assert "this job" in again.json["msg"]
        made = await second.twirp("CreateArtifact", {"name": "dist", "version": 4})
        if strict:
            assert made.status == 409
            return
        (still,) = (await second.twirp("ListArtifacts", {})).json["artifacts"]
        assert still["size"] == "5", "the first stays until the second is whole"
        await second.ask("PUT", made.json["signed_upload_url"], b"second")
        await second.twirp("FinalizeArtifact", {"name": "dist", "size": "6"})
        (now,) = (await second.twirp("ListArtifacts", {})).json["artifacts"]
        assert now["size"] == "6"
        late = house.client(tenant("other", attempt=3))
        assert (await late.twirp("CreateArtifact", {"name": "dist", "version": 4})).status == 409

    run(work)


def test_an_artifact_has_to_be_what_was_announced(house: House) -> None:
    async def work() -> None:
        client = house.client()
        made = await client.twirp("CreateArtifact", {"name": "a", "version": 4})
        empty = await client.twirp("FinalizeArtifact", {"name": "a", "size": "0"})
        assert empty.status == 400
        await client.ask("PUT", made.json["signed_upload_url"], b"data")
        assert (await client.twirp("FinalizeArtifact", {"name": "a", "size": "5"})).status == 400
        wrong = await client.twirp("FinalizeArtifact", {"name": "a", "size": "4", "hash": "sha256:" + "0" * 64})
        assert wrong.status == 400
        assert "sha256:" in wrong.json["msg"]
        assert (await client.twirp("FinalizeArtifact", {"name": "b", "size": "4"})).status == 404
        assert (await client.twirp("FinalizeArtifact", {"name": "a", "size": "4"})).json["ok"]

    run(work)


def test_version_7_uploads_one_file_with_its_type(house: House, tmp_path: Path) -> None:
    async def work() -> None:
        client = house.client(artifacts_to=str(tmp_path / "out"))
        more = {"version": 7, "mime_type": "text/plain", "expires_at": "2030-03-20T00:00:00.123Z"}
        assert (await client.upload("notes.txt", b"hello", **more)).status == 200
        signed = await client.twirp("GetSignedArtifactURL", {"name": "notes.txt"})
        got = await client.ask("GET", signed.json["signed_url"])
        assert (got.body, got.headers["content-type"]) == (b"hello", "text/plain")
        assert (tmp_path / "out/notes.txt/notes.txt").read_bytes() == b"hello"
        assert (await client.upload("x", b"", mime_type="text/plain\r\nx: y")).status == 400

    run(work)


def test_artifacts_expire(house: House) -> None:
    async def work() -> None:
        client = house.client()
        await client.upload("dist", b"data")
        house.clock.now += 8 * 24 * 3600
        client.token = client.services.token(3600)
        assert (await client.twirp("ListArtifacts", {})).json["artifacts"] == []
        assert await client.services.artifacts.forget_expired() == 1
        assert not [path for path in (house.folder / "blobs").rglob("*") if path.is_file()]

    run(work)
    assert expiry(100, None) == 100 + 7 * 24 * 3600
    assert expiry(100, 500) == 500
    assert expiry(100, 1e12) == 100 + 90 * 24 * 3600


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", 'a"b', "a:b", "a*b", "a?b", "a\nb", "..", ".", "x" * 256, "a\x07"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_name(name)
    assert caught.value.status == 400
    check_name("dist-1.2 (linux)")


# --- as files


def test_finished_artifacts_appear_as_files_and_replace_older_ones(house: House, tmp_path: Path) -> None:
    async def work() -> None:
        out = tmp_path / "out"
        for number, data in ((1, zipped(("bin/a", b"1"), ("old", b""), mode=0o755)), (2, zipped(("bin/a", b"2")))):
            client = house.client(tenant(run=str(number)), artifacts_to=str(out))
            assert (await client.upload("dist", data)).status == 200
            assert (out / "dist/bin/a").read_bytes() == str(number).encode()
            assert bool((out / "dist/bin/a").stat().st_mode & 0o100) == (number == 1)
        assert sorted(path.name for path in out.iterdir()) == ["dist"]
        assert [path.name for path in (out / "dist").iterdir()] == ["bin"]

    run(work)


def test_a_hostile_archive_is_stored_and_not_unpacked(house: House, tmp_path: Path) -> None:
    async def work() -> None:
        client = house.client(artifacts_to=str(tmp_path / "out"))
        assert (await client.upload("dist", zipped(("../evil", b"x")))).status == 200
        assert not (tmp_path / "evil").exists()
        assert list((tmp_path / "out").iterdir()) == []
        ((note, is_warning),) = client.services.notes()
        assert is_warning
        assert "leads out of the artifact" in note

    run(work)


LINK = stat.S_IFLNK | 0o777


@pytest.mark.parametrize(
    ("data", "limits", "wanted"),
    [
        pytest.param(zipped(("a/../../b", b"")), ZipLimits(), "leads out", id="dots"),
        pytest.param(zipped(("/etc/x", b"")), ZipLimits(), "not below", id="absolute"),
        pytest.param(zipped(("a\\..\\b", b"")), ZipLimits(), "not below", id="backslashes"),
        pytest.param(zipped(("a", b"/etc/passwd"), mode=LINK), ZipLimits(), "is a link", id="link"),
        pytest.param(zipped(("a", b""), mode=stat.S_IFIFO | 0o644), ZipLimits(), "special", id="pipe"),
        pytest.param(zipped(("a", b"1"), ("./a", b"2")), ZipLimits(), "twice", id="twice"),
        pytest.param(zipped(("a", b""), ("b", b"")), ZipLimits(files=1), "2 files", id="many"),
        pytest.param(zipped(("a", b"x" * 5000)), ZipLimits(size=4000), "zip bomb", id="large"),
        pytest.param(zipped(("a", bytes(80 << 20))), ZipLimits(), "zip bomb", id="dense"),
    ],
)
def test_what_is_not_unpacked(tmp_path: Path, data: bytes, limits: ZipLimits, wanted: str) -> None:
    path = tmp_path / "it.zip"
    path.write_bytes(data)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(UnsafeArchiveError, match=wanted):
        unpack(str(path), into, limits)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["into", "it.zip"]
