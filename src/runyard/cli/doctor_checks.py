"""What `runyard doctor` concludes from what it saw: pure, so that every machine can be played in a test.

A check is `good`, `limited` (works, with less than it could), `missing` (optional, and not here) or `bad` (no job can
run until it is mended). Each that can be mended has the command that does it.
"""

from __future__ import annotations

import time
from typing import Final, Literal, TypeAlias

import msgspec

from runyard.job import NetworkLevel, Refused
from runyard.sandbox.attack.attempts import Finding
from runyard.sandbox.network.levels import NetworkFacts, as_root, install_command, judge_levels

State: TypeAlias = Literal["good", "limited", "missing", "bad"]

_LITTLE_DISK: Final = 2 << 30
_NO_DISK: Final = 200 << 20
_SKEW_S: Final = 5.0


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the report."""

    name: str
    state: State
    says: str
    remedy: str = ""


class PromiseCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One promise of one sandbox: kept here, or refused with the reason and the remedy."""

    promise: str
    kept: bool
    because: str = ""
    remedy: str = ""


class SandboxCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sandbox: whether it opened here, and which promises it keeps."""

    backend: str
    works: bool
    because: str = ""
    remedy: str = ""
    supervisor: str = ""
    promises: tuple[PromiseCheck, ...] = ()


class LevelCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network level."""

    level: NetworkLevel
    kept: bool
    because: str = ""
    remedy: str = ""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What works on this machine. `works` is false when no job can run here; `removed` is what dead owners had left."""

    works: bool
    checks: tuple[Check, ...]
    sandboxes: tuple[SandboxCheck, ...]
    network: tuple[LevelCheck, ...]
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class AttackedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """What came of attacking one sandbox."""

    backend: str
    findings: tuple[Finding, ...]


class AttackReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of `doctor --attack`; `absent` are sandboxes that aren't here, with the reason."""

    held: bool
    sandboxes: tuple[AttackedSandbox, ...]
    absent: dict[str, str]


class SandboxFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One backend, opened for real: `problem` and `remedy` when it did not, else its capabilities."""

    backend: str
    problem: str | None = None
    remedy: str = ""
    supervisor: str = ""
    promises: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One container engine's socket: not there, not permitted, silent, or answering with a version."""

    name: str
    socket: str
    state: Literal["absent", "denied", "silent", "answers"]
    says: str = ""


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Free bytes where `what` is kept; `executable` is false on a file system mounted noexec."""

    what: str
    path: str
    free: int
    executable: bool = True


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was observed. Versions are None where the program is missing."""

    network: NetworkFacts
    sandboxes: tuple[SandboxFacts, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    kvm: str = "absent"
    groups: dict[str, int] = {}
    group_refusals: tuple[Refused, ...] = ()
    userns: Refused | None = None
    git: str | None = None
    node: str | None = None
    python: str = ""
    sqlite: str | None = None
    postgresql: str | None = None
    now_s: float = 0.0
    built_s: float = 0.0
    clock_synchronised: bool | None = None
    clock_error_s: float | None = None
    engine_skew_s: float | None = None
    disks: tuple[DiskFacts, ...] = ()


def conclude(facts: MachineFacts, *, removed: tuple[str, ...] = (), left: tuple[str, ...] = ()) -> DoctorReport:
    """The report."""
    sandboxes = tuple(_sandbox(each) for each in facts.sandboxes)
    checks = (
        *_user_namespaces(facts),
        *_groups(facts),
        *(_engine(engine, facts.network) for engine in facts.engines),
        _kvm(facts.kvm),
        *_programs(facts),
        *_database(facts),
        _clock(facts),
        *(_disk(disk) for disk in facts.disks),
    )
    levels = tuple(_level(level, refused) for level, refused in judge_levels(facts.network).items())
    works = any(each.works for each in sandboxes) and not any(check.state == "bad" for check in checks)
    return DoctorReport(works=works, checks=checks, sandboxes=sandboxes, network=levels, removed=removed, left=left)


def _sandbox(facts: SandboxFacts) -> SandboxCheck:
    if facts.problem is not None:
        return SandboxCheck(backend=facts.backend, works=False, because=facts.problem, remedy=facts.remedy)
    refused = {each.promise: each for each in facts.refused}
    promises = []
    for promise in facts.promises:
        no = refused.get(promise)
        if no is None:
            promises.append(PromiseCheck(promise=promise, kept=True))
        else:
            promises.append(PromiseCheck(promise=promise, kept=False, because=no.because, remedy=no.remedy))
    return SandboxCheck(backend=facts.backend, works=True, supervisor=facts.supervisor, promises=tuple(promises))


def _level(level: NetworkLevel, refused: Refused | None) -> LevelCheck:
    if refused is None:
        return LevelCheck(level=level, kept=True)
    return LevelCheck(level=level, kept=False, because=refused.because, remedy=refused.remedy)


def _user_namespaces(facts: MachineFacts) -> list[Check]:
    if facts.userns is None:
        return [Check(name="user namespaces", state="good", says="can be made")]
    return [
        Check(
            name="user namespaces",
            state="limited" if any(each.problem is None for each in facts.sandboxes) else "bad",
            says=facts.userns.because,
            remedy=facts.userns.remedy,
        )
    ]


def _groups(facts: MachineFacts) -> list[Check]:
    found = ", ".join(f"{name} (v{version})" for name, version in sorted(facts.groups.items()))
    if not facts.group_refusals:
        return [Check(name="control groups", state="good", says=found or "limits can be set")]
    return [
        Check(name="control groups", state="limited", says=f"{each.promise}: {each.because}", remedy=each.remedy)
        for each in facts.group_refusals
    ]


def _engine(engine: EngineFacts, network: NetworkFacts) -> Check:
    match engine.state:
        case "answers":
            return Check(name=engine.name, state="good", says=f"{engine.says} at {engine.socket}")
        case "denied":
            remedy = as_root(network, f"usermod -aG {engine.name} $USER") + ", then log in again"
            return Check(name=engine.name, state="limited", says=f"{engine.socket} may not be used", remedy=remedy)
        case "silent":
            says = f"nobody answers at {engine.socket}: {engine.says}"
            return Check(name=engine.name, state="limited", says=says, remedy=f"start the {engine.name} service")
        case "absent":
            package = "docker.io" if engine.name == "docker" and network.installer == "apt-get" else engine.name
            says = "not here; only jobs with containers need an engine"
            return Check(name=engine.name, state="missing", says=says, remedy=install_command(network, (package,)))


def _kvm(word: str) -> Check:
    if word == "ran":
        return Check(name="kvm", state="good", says="a guest of one instruction ran; a whole kernel was not tried")
    if word == "absent":
        return Check(name="kvm", state="missing", says="there is no /dev/kvm; no sandbox of this build needs it")
    if word == "denied":
        remedy = "add this user to the group of /dev/kvm: usermod -aG kvm $USER"
        return Check(name="kvm", state="missing", says="/dev/kvm may not be opened", remedy=remedy)
    return Check(name="kvm", state="missing", says=f"/dev/kvm is there and no guest runs: {word}")


def _programs(facts: MachineFacts) -> list[Check]:
    if facts.git:
        git = Check(name="git", state="good", says=facts.git)
    else:
        remedy = install_command(facts.network, ("git",))
        git = Check(name="git", state="bad", says="not installed; every checkout needs it", remedy=remedy)
    if facts.node:
        node = Check(name="node", state="good", says=facts.node)
    else:
        says = "not here; JavaScript actions need it"
        node = Check(name="node", state="missing", says=says, remedy="pip install 'runyard[node]'")
    return [git, node, Check(name="python", state="good", says=facts.python)]


def _database(facts: MachineFacts) -> list[Check]:
    if facts.sqlite:
        return [Check(name="database", state="good", says=f"SQLite {facts.sqlite}" + _and_postgresql(facts))]
    says = "this Python has no SQLite with write-ahead log" + _and_postgresql(facts)
    return [Check(name="database", state="limited", says=says, remedy="use a Python built with SQLite")]


def _and_postgresql(facts: MachineFacts) -> str:
    return f", PostgreSQL's client {facts.postgresql}" if facts.postgresql else ""


def _clock(facts: MachineFacts) -> Check:
    remedy = as_root(facts.network, "timedatectl set-ntp true")
    if facts.now_s < facts.built_s:
        says = f"it says {time.strftime('%Y-%m-%d', time.gmtime(facts.now_s))}, which is before this build was made"
        return Check(name="clock", state="bad", says=f"{says}; certificates and tokens will be refused", remedy=remedy)
    if facts.engine_skew_s is not None and abs(facts.engine_skew_s) > _SKEW_S:
        says = f"{abs(facts.engine_skew_s):.0f} s apart from the engine's"
        return Check(name="clock", state="limited", says=says, remedy=remedy)
    if facts.clock_synchronised is False:
        return Check(name="clock", state="limited", says="nothing keeps it right (not synchronised)", remedy=remedy)
    if facts.clock_error_s is not None and facts.clock_synchronised:
        return Check(name="clock", state="good", says=f"synchronised, error at most {facts.clock_error_s:.3f} s")
    return Check(name="clock", state="good", says="plausible")


def _disk(disk: DiskFacts) -> Check:
    name, says = f"disk for {disk.what}", f"{_gigabytes(disk.free)} free in {disk.path}"
    if disk.free < _NO_DISK:
        return Check(name=name, state="bad", says=says, remedy=f"make room in {disk.path}")
    if not disk.executable:
        remedy = f"mount -o remount,exec {disk.path}"
        return Check(name=name, state="limited", says=f"{disk.path} is mounted noexec", remedy=remedy)
    if disk.free < _LITTLE_DISK:
        return Check(name=name, state="limited", says=says, remedy=f"make room in {disk.path}")
    return Check(name=name, state="good", says=says)


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GB" if size >= 1 << 30 else f"{size >> 20} MB"
