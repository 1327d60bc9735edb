"""What the doctor concludes on machines that are played, and what the command says on this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.cli import doctor_facts
from runyard.cli.doctor_checks import (
    AttackReport,
    Check,
    DiskFacts,
    DoctorReport,
    EngineFacts,
    MachineFacts,
    SandboxFacts,
    conclude,
)
from runyard.cli.main import run
from runyard.job import MachineError, Refused
from runyard.sandbox import refused
from runyard.sandbox.attack import Finding, Report, drive
from runyard.sandbox.network.levels import NetworkFacts

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(90)

WHOLE = MachineFacts(
    network=NetworkFacts(
        is_root=False,
        slirp4netns="/usr/bin/slirp4netns",
        nft="/usr/sbin/nft",
        nsenter="/usr/bin/nsenter",
        has_tun=True,
        may_open_tun=True,
        installer="apt-get",
    ),
    sandboxes=(SandboxFacts(backend="bubblewrap", supervisor="enter", promises=("seccomp", "disk_limit")),),
    engines=(EngineFacts(name="docker", socket="/var/run/docker.sock", state="answers", says="20.10"),),
    kvm="ran",
    groups={"memory": 1},
    git="git version 2",
    node="v24",
    python="3.11",
    sqlite="3.40",
    now_s=2e9,
    built_s=1e9,
    clock_synchronised=True,
    clock_error_s=0.01,
    disks=(DiskFacts(what="sandboxes", path="/var", free=50 << 30),),
)


def checked(name: str, **change: object) -> Check:
    report = conclude(msgspec.structs.replace(WHOLE, **change))
    return next(check for check in report.checks if check.name == name)


def test_a_machine_that_has_everything_is_good() -> None:
    report = conclude(WHOLE)
    assert report.works
    assert {check.state for check in report.checks} == {"good"}
    assert all(level.kept for level in report.network)


@pytest.mark.parametrize(
    ("name", "change", "state", "says", "remedy"),
    [
        ("git", {"git": None}, "bad", "not installed", "sudo apt-get install -y --no-install-recommends git"),
        ("node", {"node": None}, "missing", "JavaScript actions", "pip install 'runyard[node]'"),
        ("database", {"sqlite": None}, "limited", "no SQLite", "Python built with SQLite"),
        ("kvm", {"kvm": "absent"}, "missing", "no /dev/kvm", ""),
        ("kvm", {"kvm": "denied"}, "missing", "may not be opened", "usermod -aG kvm"),
        ("kvm", {"kvm": "did not end in 3 s"}, "missing", "did not end in 3 s", ""),
        ("clock", {"now_s": 5e8}, "bad", "1985-11-05", "timedatectl set-ntp true"),
        ("clock", {"clock_synchronised": False}, "limited", "not synchronised", "timedatectl"),
        ("clock", {"engine_skew_s": -9.0}, "limited", "9 s apart", "timedatectl"),
        ("clock", {"clock_synchronised": None}, "good", "plausible", ""),
        (
            "disk for caches",
            {"disks": (DiskFacts(what="caches", path="/c", free=1 << 30),)},
            "limited",
            "1.0 GB free in /c",
            "make room",
        ),
        ("disk for caches", {"disks": (DiskFacts(what="caches", path="/c", free=9),)}, "bad", "0 MB free", "make room"),
        (
            "disk for caches",
            {"disks": (DiskFacts(what="caches", path="/c", free=9 << 30, executable=False),)},
            "limited",
            "noexec",
            "remount,exec /c",
        ),
        (
            "docker",
            {"engines": (EngineFacts(name="docker", socket="/s", state="absent"),)},
            "missing",
            "only jobs with containers",
            "sudo apt-get install -y --no-install-recommends docker.io",
        ),
        (
            "docker",
            {"engines": (EngineFacts(name="docker", socket="/s", state="denied"),)},
            "limited",
            "/s may not be used",
            "usermod -aG docker $USER",
        ),
        (
            "podman",
            {"engines": (EngineFacts(name="podman", socket="/s", state="silent", says="gone"),)},
            "limited",
            "nobody answers at /s: gone",
            "start the podman service",
        ),
        (
            "control groups",
            {"group_refusals": (Refused("pids_limit", "no controller", "mount it"),)},
            "limited",
            "pids_limit: no controller",
            "mount it",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_mends_it(
    name: str, change: dict[str, object], state: str, says: str, remedy: str
) -> None:
    check = checked(name, **change)
    assert check.state == state
    assert says in check.says
    assert remedy in check.remedy
    assert conclude(msgspec.structs.replace(WHOLE, **change)).works == (state != "bad")


@pytest.mark.parametrize(
    ("switches", "because", "remedy"),
    [
        (
            refused.Switches(apparmor_restricts=True, unprivileged_clone=True, max_user_namespaces=5),
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "profile runyard-bwrap /opt/bwrap flags=(unconfined)",
        ),
        (
            refused.Switches(apparmor_restricts=True, unprivileged_clone=True, max_user_namespaces=5),
            "AppArmor",
            "apparmor_parser -r /etc/apparmor.d/runyard-bwrap",
        ),
        (
            refused.Switches(unprivileged_clone=False, max_user_namespaces=5),
            "kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            refused.Switches(max_user_namespaces=0),
            "user.max_user_namespaces is 0",
            "sysctl -w user.max_user_namespaces=15000",
        ),
        (refused.Switches(max_user_namespaces=5), "outer container", "allows clone and unshare"),
    ],
)
def test_each_way_of_refusing_user_namespaces_has_its_own_fix(
    switches: refused.Switches, because: str, remedy: str
) -> None:
    cause = refused.userns_refusal(switches, "/opt/bwrap")
    no_sandbox = (SandboxFacts(backend="bubblewrap", problem="no"),)
    report = conclude(msgspec.structs.replace(WHOLE, userns=cause, sandboxes=no_sandbox))
    check = report.checks[0]
    assert (check.name, check.state) == ("user namespaces", "bad")
    assert because in check.says
    assert remedy in check.remedy
    assert not report.works


def test_a_promise_that_is_not_kept_here_is_told_with_its_reason() -> None:
    facts = SandboxFacts(
        backend="bubblewrap",
        supervisor="enter",
        promises=("seccomp", "disk_limit"),
        refused=(Refused("disk_limit", "no loop device", "run as root"),),
    )
    sandbox = conclude(msgspec.structs.replace(WHOLE, sandboxes=(facts,))).sandboxes[0]
    assert [(each.promise, each.kept, each.remedy) for each in sandbox.promises] == [
        ("seccomp", True, ""),
        ("disk_limit", False, "run as root"),
    ]


def test_the_report_of_this_machine_is_one_json_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("RUNYARD_STATE_DIR", str(tmp_path))
    code = run(["doctor", "--json"])
    report = msgspec.json.decode(capsys.readouterr().out, type=DoctorReport)
    assert code == (0 if report.works else 3)
    names = {check.name for check in report.checks}
    assert {"user namespaces", "git", "kvm", "node", "python", "database", "clock", "docker", "podman"} <= names
    assert [level.level for level in report.network] == ["none", "proxy", "public"]
    assert {sandbox.backend for sandbox in report.sandboxes} == {"bubblewrap", "docker", "podman"}


def test_a_machine_without_any_sandbox_is_exit_3_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("RUNYARD_STATE_DIR", str(tmp_path))
    broken = msgspec.structs.replace(
        WHOLE,
        sandboxes=(SandboxFacts(backend="bubblewrap", problem="user namespaces are off", remedy="sysctl -w x=1"),),
    )
    monkeypatch.setattr(doctor_facts, "observe", lambda _names: broken)
    assert run(["doctor"]) == 3
    told = capsys.readouterr()
    assert "user namespaces are off" in told.out
    assert "sysctl -w x=1" in told.out
    assert "No job can run here" in told.err


def test_what_a_dead_owner_left_is_removed_and_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("RUNYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(doctor_facts, "observe", lambda _names: WHOLE)
    (tmp_path / "sandboxes" / "runyard-dead").mkdir(parents=True)
    (tmp_path / "sandboxes" / "runyard-dead.lock").touch()
    assert run(["doctor"]) == 0
    assert "removed what runyard-dead had left" in capsys.readouterr().out
    assert list((tmp_path / "sandboxes").iterdir()) == []


def attacked_with(*findings: Finding) -> Callable[..., Any]:
    async def attack(_sandbox: object, _image: str, hear: Callable[[Finding], None] | None) -> Report:
        for each in findings:
            if hear is not None:
                hear(each)
        return Report("bubblewrap", findings)

    return attack


HELD = Finding("seccomp", "mount a tmpfs", "held", "EPERM")
GAVE = Finding("no_host_mounts", "read /root/x", "gave_way", "the host's own bytes")
NOT = Finding("egress_public", "have an uplink", "not_tried", "no route")


@pytest.mark.parametrize(
    ("findings", "code", "words"),
    [
        ((HELD, NOT), 0, "held"),
        ((HELD, GAVE, NOT), 1, "no_host_mounts gave way: read /root/x (the host's own bytes)"),
        ((NOT,), 3, "No sandbox could be attacked"),
    ],
    ids=["all held", "one gave way", "nothing was tried"],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_exit_code_of_an_attack_names_what_gave_way(
    *,
    findings: tuple[Finding, ...],
    code: int,
    words: str,
    form: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from runyard.sandbox import attack as room

    monkeypatch.setattr(room, "attack", attacked_with(*findings))
    assert drive.attack is not room.attack
    assert run(["doctor", "--attack", "--sandbox", "bubblewrap", "--format", form]) == code
    told = capsys.readouterr()
    assert words in told.out + told.err
    if form == "json":
        report = msgspec.json.decode(told.out, type=AttackReport)
        assert report.held is (code == 0)
        assert report.sandboxes[0].findings == findings


def test_wrong_flags_are_exit_2_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--sandbox", "bare"]) == 2
    assert "bubblewrap, docker, podman" in capsys.readouterr().err
    assert run(["doctor", "--image", "host"]) == 2


def test_an_attack_by_name_on_a_sandbox_that_is_not_here_is_exit_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runyard.sandbox import registry

    def missing(name: str, *, state: str | None = None) -> object:
        del state
        raise MachineError(f"no {name} here", remedy="install it")

    monkeypatch.setattr(registry, "open_sandbox", missing)
    assert run(["doctor", "--attack", "--sandbox", "bubblewrap"]) == 3
    assert "install it" in capsys.readouterr().err
    assert run(["doctor", "--attack"]) == 3
    assert "No sandbox could be attacked" in capsys.readouterr().err
