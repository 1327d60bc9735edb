"""What the built-in cache and artifact actions do outside a sandbox: stopping, packing, choosing."""

from __future__ import annotations

import asyncio
import io
import tarfile
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from runyard.engine.native_artifacts import zip_of
from runyard.engine.sandbox_streams import StoppedError, stream, unless_stopped
from runyard.engine.state import Control
from runyard.job import WorkError
from runyard.sandbox.contract import Exit, FileBack

if TYPE_CHECKING:
    from pathlib import Path


class Session:
    """Prints some parts, then ends with a code, or never."""

    def __init__(self, *parts: bytes, code: int = 0, said: bytes = b"", hangs: bool = False) -> None:
        self.parts = [*parts, b""]
        self.code = code
        self.said = said
        self.hangs = hangs
        self.signals: list[str] = []
        self.argv: tuple[str, ...] = ()

    async def start(self, command: Any) -> Session:
        self.argv = command.argv
        return self

    async def read(self, limit: int) -> bytes:
        if self.hangs and len(self.parts) == 1:
            await asyncio.sleep(20)
        return self.parts.pop(0)

    async def wait(self) -> Exit:
        return Exit(code=self.code, files={"/log": FileBack(self.said)})

    async def signal(self, kind: str) -> None:
        self.signals.append(kind)


async def read(session: Session, **more: Any) -> bytes:
    found: Any = session
    return b"".join([part async for part in stream(found, ("tar", "x"), env={}, cwd="/", scratch="/log", **more)])


def test_a_program_is_read_to_its_end() -> None:
    session = Session(b"a", b"b")
    assert asyncio.run(read(session)) == b"ab"
    assert session.argv[-2:] == ("tar", "x")
    assert not session.signals


def test_a_program_that_fails_is_told_with_its_own_words() -> None:
    with pytest.raises(WorkError, match="tar failed with exit code 2: no space"):
        asyncio.run(read(Session(b"a", code=2, said=b"no space\n")))
    assert asyncio.run(read(Session(b"a", code=1), good=(0, 1))) == b"a"


def test_a_step_that_is_to_end_kills_what_it_reads() -> None:
    async def work() -> None:
        session = Session(b"a", hangs=True)
        frame: Any = SimpleNamespace(control=Control())
        asyncio.get_running_loop().call_later(0.02, frame.control.stop, "cancelled")

        async def reads() -> None:
            await read(session)

        with pytest.raises(StoppedError):
            async with asyncio.timeout(10):
                await unless_stopped(frame, reads())
        assert session.signals == ["kill"]

    asyncio.run(work())


def tarred(folder: Path, *members: tuple[str, bytes, bytes]) -> str:
    path = str(folder / "it.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.mode, info.mtime = kind, len(data), 0o4777, 5
            info.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            out.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("level", [0, 6, 9])
def test_a_zip_has_the_files_of_a_tar_as_plain_files(tmp_path: Path, level: int) -> None:
    tar = tarred(
        tmp_path,
        ("./a", tarfile.REGTYPE, b"first" * 1000),
        ("sub/ü", tarfile.REGTYPE, b""),
        ("link", tarfile.SYMTYPE, b""),
        ("pipe", tarfile.FIFOTYPE, b""),
        ("folder", tarfile.DIRTYPE, b""),
    )
    made = tmp_path / "it.zip"
    zip_of(tar, str(made), level)
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a", "sub/ü"]
        assert archive.read("a") == b"first" * 1000
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
        assert archive.infolist()[0].date_time[0] == 1980
    assert (made.stat().st_size < 5000) == bool(level)


def test_a_tar_that_breaks_off_is_no_artifact(tmp_path: Path) -> None:
    tar = tarred(tmp_path, ("a", tarfile.REGTYPE, b"x" * 5000))
    short = tmp_path / "short.tar"
    short.write_bytes((tmp_path / "it.tar").read_bytes()[:2000])
    assert tar
    with pytest.raises(WorkError, match="could not be packed"):
        zip_of(str(short), str(tmp_path / "x.zip"), 6)
