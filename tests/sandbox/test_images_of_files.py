"""Images from folders, tars and OCI layouts; the composed image `host`."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from runyard.job import InputError
from runyard.sandbox import image, unpack
from runyard.sandbox.contract import SandboxRefused, Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

pytestmark = pytest.mark.timeout(60)

PROGRAMS = ("sh", "cat", "ls", "id", "touch", "env", "rm")


def small_root(folder: Path) -> Path:
    """A root with a shell and a few programs of this machine, and the libraries that they name."""
    for name in ("usr/bin", "usr/lib", "etc", "home/runner/old", "tmp"):
        (folder / name).mkdir(parents=True)
    for link, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
        (folder / link).symlink_to(target)
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        shutil.copy(found, folder / "usr/bin" / name)
        for word in subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/"):
                place = folder / (word if word.startswith("/usr") else f"/usr{word}").lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, place)
    (folder / "etc/marker").write_text("from the image\n")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("root"))


def packed(root: Path, members: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if members is None:
            tar.add(root, arcname=".")
        for name, data in (members or {}).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def layout(folder: Path, layers: list[bytes], **config: Any) -> Path:
    """An OCI layout of these layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    described = put(json.dumps({"config": config}).encode(), "application/vnd.oci.image.config.v1+json")
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    manifest = {"schemaVersion": 2, "config": described, "layers": [put(gzip.compress(x, 1), kind) for x in layers]}
    entry = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def run_in(name: str, state: Path, script: str) -> tuple[int, str, dict[str, str]]:
    async def go() -> tuple[int, str, dict[str, str]]:
        async with asyncio.timeout(20):
            session = await open_sandbox("bubblewrap", state=str(state)).prepare(Shape(image=name))
            try:
                argv = ("sh", "-c", script)
                running = await session.start(StepCommand(argv=argv, env=session.environment))
                parts = []
                while part := await running.read():
                    parts.append(part)
                return (await running.wait()).code, b"".join(parts).decode(), dict(session.environment)
            finally:
                assert (await session.close()).items == ()

    return asyncio.run(go())


SCRIPT = "cat /etc/marker; touch /etc/new && rm /etc/marker && ls /home/runner; ls /etc"


def test_a_folder_is_a_root_and_stays_unchanged(root: Path, tmp_path: Path) -> None:
    code, text, _ = run_in(f"dir:{root}", tmp_path, SCRIPT)
    assert (code, text.split("\n")[0]) == (0, "from the image")
    assert "new" in text.split()
    assert "old" not in text.split()  # home is empty, whatever the image has there
    assert (root / "etc/marker").exists()
    assert not (root / "etc/new").exists()


def test_a_tar_is_a_root_and_is_unpacked_once(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(packed(root))
    code, text, _ = run_in(f"tar:{path}", tmp_path / "state", SCRIPT)
    assert (code, text.split("\n")[0]) == (0, "from the image")
    before = [entry.stat().st_ino for entry in (tmp_path / "state" / "images").iterdir()]
    run_in(f"tar:{path}", tmp_path / "state", "ls")
    assert [entry.stat().st_ino for entry in (tmp_path / "state" / "images").iterdir()] == before


def test_layers_of_an_oci_layout_lie_on_each_other(root: Path, tmp_path: Path) -> None:
    over = packed(root, {"etc/added": b"a\n", "etc/.wh.marker": b"", "bin/script": b"#!/bin/sh\n"})
    opaque = packed(root, {"home/runner/new": b"", "home/runner/.wh..wh..opq": b""})
    folder = layout(tmp_path / "oci", [packed(root), over, opaque], Env=["PATH=/usr/bin", "FROM_IMAGE=yes"])
    place, environment = unpack.unpacked("oci", str(folder), str(tmp_path / "state"))
    assert not Path(place, "etc/marker").exists()
    assert Path(place, "etc/added").read_text() == "a\n"
    assert Path(place, "usr/bin/script").exists()  # written through the image's own link, inside the image
    assert [path.name for path in Path(place, "home/runner").iterdir()] == ["new"]
    assert dict(environment) == {"PATH": "/usr/bin", "FROM_IMAGE": "yes"}
    code, text, seen = run_in(f"oci:{folder}", tmp_path / "state", "echo $FROM_IMAGE; cat /etc/added")
    assert (code, text) == (0, "yes\na\n")
    assert seen["PATH"] == "/usr/bin"


def test_a_tar_of_an_oci_layout_is_read_too(root: Path, tmp_path: Path) -> None:
    folder = layout(tmp_path / "oci", [packed(root)])
    path = tmp_path / "oci.tar"
    path.write_bytes(packed(folder))
    place, _ = unpack.unpacked("oci", str(path), str(tmp_path / "state"))
    assert Path(place, "etc/marker").read_text() == "from the image\n"


def test_a_blob_without_its_digest_is_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path / "oci", [packed(tmp_path, {"a": b"x"})])
    for blob in (folder / "blobs" / "sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.write_bytes(gzip.compress(packed(tmp_path, {"a": b"y"})))
    with pytest.raises(InputError, match="does not have its digest"):
        unpack.unpacked("oci", str(folder), str(tmp_path / "state"))
    assert list((tmp_path / "state" / "images").iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out"])
def test_an_image_whose_members_lead_out_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    path.write_bytes(packed(tmp_path, {name: b"x"}))
    with pytest.raises(InputError, match="leads out of the tree"):
        unpack.unpacked("tar", str(path), str(tmp_path / "state"))


def test_links_of_an_image_never_lead_the_unpacker_out(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, target in (("abs", str(victim)), ("rel", "../../../../../../.." + str(victim))):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
            info = tarfile.TarInfo(f"{name}/planted")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    path = tmp_path / "evil.tar"
    path.write_bytes(out.getvalue())
    with contextlib.suppress(InputError):
        unpack.unpacked("tar", str(path), str(tmp_path / "state"))
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"not a tar" * 200, b"\x1f\x8b\x08\x00garbage"])
def test_what_is_no_tar_is_refused_or_empty(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    path.write_bytes(data)
    if data:
        with pytest.raises(InputError):
            unpack.unpacked("tar", str(path), str(tmp_path / "state"))


@pytest.mark.parametrize("name", ["debian:12", "ghcr.io/a/b", "dir:/not/there", "dir:", "nonsense"])
def test_what_bubblewrap_can_not_run_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxRefused) as caught:
        image.resolve(name, str(tmp_path))
    assert caught.value.remedy


def test_the_host_image_has_listed_parts_only_and_no_secret(tmp_path: Path) -> None:
    made = image.resolve("host", str(tmp_path))
    top = {path.name for path in Path(made.root).iterdir()}
    assert {"usr", "etc", "home", "tmp", "var"} <= top
    etc = [str(path.relative_to(made.root)) for path in Path(made.root, "etc").rglob("*")]
    assert not [name for name in etc if "shadow" in name or "private" in name or name.endswith(".key")]
    assert Path(made.root, "etc/passwd").read_text().startswith("runner:x:0:0:")
    assert "root" not in [path.name for path in Path(made.root, "home").iterdir()]
    assert list(Path(made.root, "root").iterdir()) == []
    assert list(Path(made.root, "run").iterdir()) == []


def test_the_job_sees_neither_homes_nor_state_of_the_machine(tmp_path: Path) -> None:
    script = (
        "ls -A /root /run /var/lib /var/log; ls /home; cat /etc/shadow; ls /work /boot 2>/dev/null; ls -d /old_root"
    )
    _, text, _ = run_in("host", tmp_path, script)
    lines = [line for line in text.splitlines() if line and not line.endswith(":") and "No such file" not in line]
    assert lines == ["runner"]


def test_sudo_of_the_image_is_the_jobs_own_root(tmp_path: Path) -> None:
    script = (
        "sudo id -u; sudo -E -H -n id -u; sudo -u root -- id -u; sudo A=1 sh -c 'echo $A'; sudo -n true && echo ok;"
        " sudo -u nobody id; echo code $?; sudo touch /usr/local/bin/tool && echo installed; whoami"
    )
    _, text, _ = run_in("host", tmp_path, script)
    lines = text.splitlines()
    assert lines[:5] == ["0", "0", "0", "1", "ok"]
    assert "can't become nobody" in lines[5]
    assert lines[6:] == ["code 1", "installed", "runner"]
