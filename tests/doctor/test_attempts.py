"""How answers are read: only a proof is "held", and what proves nothing is "could not be tried"."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from runyard.sandbox.attack import attempts
from runyard.sandbox.attack.attempts import Answer, Outside, parse_answer
from runyard.sandbox.attack.calls import NUMBERS
from runyard.sandbox.attack.outside import planted, prepared, probe_bytes, processes_with

if TYPE_CHECKING:
    from pathlib import Path

WORD = "runyard-seeded"


@pytest.mark.parametrize(
    ("output", "code", "answer"),
    [
        (b"ok opened\n", 0, Answer(detail="opened")),
        (b"ok \n", 0, Answer(detail="")),
        (b"no 13\n", 1, Answer(error=13)),
        (b"no 28 after 42\n", 1, Answer(error=28, detail="after 42")),
        (b"noise\nno 1\n", 1, Answer(error=1)),
        (b"", 159, Answer(problem="exit 159")),
        (b"no such program\n", 127, Answer(problem="exit 127: no such program")),
    ],
)
def test_the_probes_line_is_read(output: bytes, code: int, answer: Answer) -> None:
    assert parse_answer(output, code) == answer


@pytest.mark.parametrize(
    ("judge", "answer", "verdict"),
    [
        (attempts.refused_by, Answer(error=errno.EPERM), "held"),
        (attempts.refused_by, Answer(error=errno.ENOSYS), "held"),
        (attempts.refused_by, Answer(error=errno.EINVAL), "gave_way"),
        (attempts.refused_by, Answer(detail="0"), "gave_way"),
        (attempts.refused_by, Answer(problem="exit 159"), "held"),
        (attempts.refused_by, Answer(problem="exit 139"), "not_tried"),
        (attempts.not_there, Answer(error=errno.ENOENT), "held"),
        (attempts.not_there, Answer(detail="opened"), "gave_way"),
        (attempts.not_there, Answer(problem="no answer in 15 s"), "not_tried"),
        (attempts.without(WORD), Answer(detail=f"x {WORD} y"), "gave_way"),
        (attempts.without(WORD), Answer(detail="root:*:1"), "held"),
        (attempts.without(WORD), Answer(error=errno.EACCES), "held"),
        (attempts.without(WORD), Answer(problem="exit 1"), "not_tried"),
        (attempts.unreached, Answer(error=errno.EHOSTUNREACH), "held"),
        (attempts.unreached, Answer(error=errno.ECONNREFUSED), "gave_way"),
        (attempts.unreached, Answer(error=errno.EADDRNOTAVAIL), "held"),
        (attempts.unreached, Answer(error=errno.ETIMEDOUT), "not_tried"),
        (attempts.unreached, Answer(detail="connected"), "gave_way"),
        (attempts.not_connected, Answer(error=errno.ECONNREFUSED), "held"),
        (attempts.not_connected, Answer(detail="connected"), "gave_way"),
        (attempts.proxied, Answer(detail="connected HTTP/1.1 403 Forbidden"), "held"),
        (attempts.proxied, Answer(detail="connected HTTP/1.1 200 Connection established"), "gave_way"),
        (attempts.proxied, Answer(detail="connected HTTP/1.1 502 Bad Gateway"), "not_tried"),
        (attempts.proxied, Answer(detail="connected"), "not_tried"),
        (attempts.proxied, Answer(error=errno.ECONNREFUSED), "not_tried"),
        (attempts.has_route, Answer(detail="Iface Destination tap0 00000000 0202000A"), "held"),
        (attempts.has_route, Answer(detail="Iface Destination"), "not_tried"),
        (attempts.status_field("CapEff", "0", "none"), Answer(detail="CapEff: 0000000000000000 x"), "held"),
        (attempts.status_field("CapEff", "0", "none"), Answer(detail="CapEff: 0000000000000400 x"), "gave_way"),
        (attempts.status_field("CapEff", "0", "none"), Answer(detail="Name: x"), "not_tried"),
        (attempts.status_field("Seccomp", "2", "a filter"), Answer(detail="Seccomp: 0"), "gave_way"),
        (attempts.only_harmless_devices, Answer(detail=". .. null zero pts"), "held"),
        (attempts.only_harmless_devices, Answer(detail="null sda kvm"), "gave_way"),
    ],
)
def test_an_answer_means_what_it_proves(judge: attempts.Judge, answer: Answer, verdict: str) -> None:
    assert judge(answer)[0] == verdict


def test_every_promise_about_reach_is_attacked_and_the_plan_names_each_thing_once() -> None:
    outside = Outside(
        word=WORD,
        files=("/root/x",),
        folders=("/etc",),
        socket_path="/tmp/s",
        abstract_socket="@x",
        port=1,
        addresses=("192.0.2.1",),
        shadow="root:x",
        engine_sockets=("/var/run/docker.sock",),
        sibling_port=2,
        sibling_word="sibling",
        sibling_socket="@y",
    )
    plan = attempts.plan_inside(outside, "x86_64", "/home/runner")
    assert {attempt.promise for attempt in plan} == {
        *("no_host_mounts", "no_engine_socket", "no_capabilities", "no_new_privileges", "seccomp"),
        *("no_devices", "no_host_pids", "egress_none"),
    }
    names = [attempt.name for attempt in plan]
    assert len(names) == len(set(names))
    assert {attempt.promise for attempt in attempts.plan_public(outside)} == {"egress_public"}
    assert {attempt.promise for attempt in attempts.plan_proxy(outside, 3128)} == {"egress_proxy"}


def test_no_attempt_goes_to_an_outside_address() -> None:
    import ipaddress

    outside = Outside(word=WORD, port=1, gateways=("192.0.2.9",))
    for attempt in (*attempts.plan_public(outside), *attempts.plan_inside(outside, "x86_64", "/h")):
        if attempt.arguments[0] == "connect" and attempt.arguments[1][0] not in "@/":
            assert not ipaddress.ip_address(attempt.arguments[1]).is_global


def test_both_architectures_know_the_same_calls() -> None:
    assert set(NUMBERS["x86_64"]) == set(NUMBERS["aarch64"])


def test_the_machine_is_seeded_and_nothing_of_it_stays() -> None:
    with prepared() as outside:
        assert outside.files
        for path in outside.files:
            with open(path) as file:
                assert file.read() == f"{outside.word}\n"
        assert processes_with(outside.word)
        assert planted(outside) == []
    assert not any(os.path.exists(path) for path in (*outside.files, outside.socket_path))  # noqa: PTH110
    assert processes_with(outside.word) == []


def test_the_probe_reports_what_worked_and_what_was_refused(tmp_path: Path) -> None:
    """On the machine itself, where there is no sandbox, its attempts work: so its refusals inside mean something."""
    raw = probe_bytes()
    if raw is None:
        pytest.skip(f"no probe for {os.uname().machine}")
    probe = f"{tmp_path}/probe"
    with open(probe, "wb") as file:
        file.write(raw)
    os.chmod(probe, 0o755)  # noqa: PTH101

    def ask(*arguments: str) -> Answer:
        done = subprocess.run(
            [probe, *arguments], capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
        return parse_answer(done.stdout, done.returncode)

    with prepared() as outside:
        assert ask("hello") == Answer(detail="hello")
        assert outside.word in (ask("read", outside.files[0]).detail or "")
        assert ask("find", outside.word, "cmdline").detail
        assert ask("find", outside.word, "environ").detail
        assert ask("connect", "127.0.0.1", str(outside.port), "1000").detail == "connected"
        assert ask("connect", outside.socket_path, "0", "1000").detail == "connected"
        assert ask("connect", outside.abstract_socket, "0", "1000").detail == "connected"
    assert ask("connect", outside.abstract_socket, "0", "1000").error == errno.ECONNREFUSED
    assert ask("read", f"{tmp_path}/missing").error == errno.ENOENT
    assert ask("create", f"{tmp_path}/made", "text").detail == "4"
    assert ask("link", "made", f"{tmp_path}/link").detail == "0"
    assert ask("fill", f"{tmp_path}/filled", "2").detail == "wrote 2"
    assert ask("eat", "8").detail == "ate 8"
    assert ask("fork", "5").detail == "made 5 then 0"
    assert ask("childcall", str(NUMBERS[os.uname().machine]["getpid"])).detail
    assert ask("call", str(NUMBERS[os.uname().machine]["bpf"]), "99", "%", "4").error in {errno.EINVAL, errno.EPERM}
    assert ask("nonsense").problem == "exit 2"


def test_the_seeds_of_an_attack_that_was_killed_are_swept_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old, other, fresh = (tmp_path / name for name in (f".runyard-{'a' * 24}", ".runyard-mine", f".runyard-{'b' * 24}"))
    for path in (old, other, fresh):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    with prepared():
        assert not old.exists()
    assert other.exists()
    assert fresh.exists()
