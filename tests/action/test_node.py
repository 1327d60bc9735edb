"""Which node runs in which image: architecture, loader and version decide, as synthetic programs and images show."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from runyard.action import node
from runyard.action.node import (
    ImageFacts,
    NodeProgram,
    PlacedNode,
    choose_node,
    facts_of,
    find_nodes,
    libc_of_names,
    look_at_program,
    place_nodes,
)
from runyard.job import InputError, Refused

GLIBC = b"/lib64/ld-linux-x86-64.so.2\0"
MUSL = b"/lib/ld-musl-x86_64.so.1\0"


def elf(path: Path, loader: bytes = GLIBC, machine: int = 0x3E, *, wide: bool = True) -> Path:
    """A program that is no more than its headers."""
    offset, size = (64, 56) if wide else (52, 32)
    head = bytearray(64)
    head[:6] = b"\x7fELF" + bytes([2 if wide else 1, 1])
    struct.pack_into("<H", head, 18, machine)
    struct.pack_into("<Q" if wide else "<I", head, 32 if wide else 28, offset)
    struct.pack_into("<HH", head, 54 if wide else 42, size, 1)
    table = bytearray(size)
    if loader:
        struct.pack_into("<I", table, 0, 3)
        if wide:
            struct.pack_into("<Q", table, 8, offset + size)
            struct.pack_into("<Q", table, 32, len(loader))
        else:
            struct.pack_into("<I8xI", table, 4, offset + size, len(loader))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(head[:offset]) + bytes(table) + loader)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("loader", "machine", "wide", "found"),
    [
        (GLIBC, 0x3E, True, ("amd64", "glibc")),
        (MUSL, 0x3E, True, ("amd64", "musl")),
        (b"/lib/ld-musl-aarch64.so.1\0", 0xB7, True, ("arm64", "musl")),
        (b"/lib/ld-linux-armhf.so.3\0", 0x28, False, ("arm", "glibc")),
        (b"", 0x3E, True, ("amd64", "static")),
        (GLIBC, 0x99, True, ("other", "glibc")),
    ],
)
def test_programs_are_known_by_their_headers(
    tmp_path: Path, loader: bytes, machine: int, wide: bool, found: tuple[str, str]
) -> None:
    assert look_at_program(elf(tmp_path / "node", loader, machine, wide=wide)) == found


def test_what_is_no_program_is_none(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200)):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert look_at_program(path) in {None, ("other", "static")}
    assert look_at_program(tmp_path) is None


def program(major: int, libc: node.Libc = "glibc", arch: str = "amd64") -> NodeProgram:
    return NodeProgram(path=f"/n/{major}-{libc}-{arch}", major=major, arch=arch, libc=libc)


ALL = (program(24), program(20), program(24, "musl"), program(22, "glibc", "arm64"))


@pytest.mark.parametrize(
    ("using", "arch", "libc", "path"),
    [
        ("node20", "amd64", "glibc", "/n/20-glibc-amd64"),
        ("node16", "amd64", "glibc", "/n/20-glibc-amd64"),
        ("node24", "amd64", "glibc", "/n/24-glibc-amd64"),
        ("node20", "amd64", "musl", "/n/24-musl-amd64"),
        ("node20", "arm64", "glibc", "/n/22-glibc-arm64"),
        ("node24", "arm64", "glibc", None),
        ("node20", "arm64", "musl", None),
        ("node20", "amd64", None, "/n/20-glibc-amd64"),
    ],
)
def test_the_nearest_that_fits(using: str, arch: str, libc: node.Libc | None, path: str | None) -> None:
    found = choose_node(ALL, using, arch, libc)
    if path is None:
        assert isinstance(found, Refused)
        assert "node 20 (glibc, amd64)" in found.because
        assert "RUNYARD_NODE" in found.remedy
    else:
        assert isinstance(found, NodeProgram)
        assert found.path == path


def test_a_static_node_runs_everywhere() -> None:
    assert isinstance(choose_node([program(24, "static")], "node24", "amd64", "musl"), NodeProgram)


def test_images_by_their_loaders(tmp_path: Path) -> None:
    assert libc_of_names(["/lib/ld-musl-x86_64.so.1"]) == "musl"
    assert libc_of_names(["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"]) == "glibc"
    assert libc_of_names(["/lib/ld-*", ""]) is None
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/ld-linux-x86-64.so.2").touch()
    (tmp_path / "lib").symlink_to("/")
    assert facts_of(f"dir:{tmp_path}", "amd64") == ImageFacts(arch="amd64", libc="glibc")
    assert facts_of("alpine:3", "amd64").libc is None
    assert facts_of("host", "amd64").host


def test_nodes_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_of_wheel", lambda: None)
    monkeypatch.setattr(node, "_SELF_CONTAINED", 1)
    musl = elf(tmp_path / "musl/bin/node", MUSL)
    told = elf(tmp_path / "told/bin/node")
    header = tmp_path / "told/include/node/node_version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define NODE_MAJOR_VERSION 22\n")
    given = {"RUNYARD_NODE": f"node24={musl}{os.pathsep}{tmp_path / 'told'}", "PATH": ""}
    cache = str(tmp_path / "cache")
    found = find_nodes(given, cache)
    assert [(each.path, each.major, each.libc) for each in found] == [(str(musl), 24, "musl"), (str(told), 22, "glibc")]
    header.unlink()
    assert find_nodes(given, cache) == found  # remembered: nobody is asked again
    with pytest.raises(InputError, match="is no node program"):
        find_nodes({"RUNYARD_NODE": str(tmp_path / "nowhere"), "PATH": ""}, cache)


def test_a_node_on_path_tells_its_version_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_of_wheel", lambda: None)
    monkeypatch.setattr(node, "look_at_program", lambda _: ("amd64", "glibc"))
    script = tmp_path / "bin/node"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho v21.7.3\n")
    script.chmod(0o755)
    for _ in range(2):
        assert [each.major for each in find_nodes({"PATH": str(script.parent)}, str(tmp_path / "cache"))] == [21]
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_node_is_shown_alone_in_a_folder_of_its_own(tmp_path: Path) -> None:
    binary = elf(tmp_path / "install/bin/node")
    (tmp_path / "install/bin/secret").write_text("s")
    own = NodeProgram(path=str(binary), major=24, arch="amd64", libc="glibc")
    image = ImageFacts(arch="amd64", libc="glibc")
    for _ in range(2):
        placed = place_nodes([own, program(24, "musl"), program(20, arch="arm64")], image, str(tmp_path / "cache"))
        assert [(each.major, each.inside, each.target) for each in placed] == [
            (24, "/opt/runyard/node24-glibc/node", "/opt/runyard/node24-glibc")
        ]
        assert [each.name for each in Path(placed[0].source).iterdir()] == ["node"]
    assert place_nodes([program(24, "musl")], image, str(tmp_path / "cache")) == ()


def test_the_systems_node_is_where_the_host_image_has_it(tmp_path: Path) -> None:
    system = NodeProgram(path="/usr/bin/node", major=20, arch="amd64", libc="glibc", portable=False)
    host = ImageFacts(arch="amd64", libc="glibc", host=True)
    assert place_nodes([system], host, str(tmp_path)) == (
        PlacedNode(major=20, arch="amd64", libc="glibc", inside="/usr/bin/node"),
    )
    other = ImageFacts(arch="amd64", libc="glibc")
    assert place_nodes([system], other, str(tmp_path)) == ()  # it needs its distribution's libraries
