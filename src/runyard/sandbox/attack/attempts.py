"""What is tried against a sandbox, and what each answer means: data and pure functions.

An attempt is one call of the probe inside, or one observation from outside, with the promise it attacks. A verdict has
three values: the promise held, it gave way, or it could not be tried, with the reason. Silence is never success: an
answer that doesn't prove a refusal is "could not be tried".
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from runyard.sandbox.attack.calls import NUMBERS

Verdict: TypeAlias = Literal["held", "gave_way", "not_tried"]

_NO: Final = frozenset((errno.EPERM, errno.EACCES, errno.ENOSYS))
_UNREACHED: Final = frozenset((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM, errno.EACCES))
_NO_FAMILY: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))
_HARMLESS_DEVICES: Final = frozenset(
    (
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "console",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "core",
        "log",
        "fd",
        "stdin",
        "stdout",
        "stderr",
    )
)


class Answer(msgspec.Struct, frozen=True):
    """What the probe printed: it worked, with a detail; or an error number; or nothing it would print (`problem`)."""

    detail: str | None = None
    error: int | None = None
    problem: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """One row of the result: the promise, what was tried, what came of it, and what was seen."""

    promise: str
    attempt: str
    verdict: Verdict
    seen: str = ""


Judge: TypeAlias = Callable[[Answer], tuple[Verdict, str]]


class Attempt(msgspec.Struct, frozen=True):
    """One call of the probe: what it attacks, in words, its arguments, and how to read the answer."""

    promise: str
    name: str
    arguments: tuple[str, ...]
    judge: Judge


def parse_answer(output: bytes, code: int) -> Answer:
    """The probe's line. A program that was killed, or that isn't there, has none."""
    text = output.decode("utf-8", "replace").strip().split("\n")[-1]
    word, _, rest = text.partition(" ")
    if word == "ok":
        return Answer(detail=rest)
    number, _, detail = rest.partition(" ")
    if word == "no" and number.isdigit():
        return Answer(error=int(number), detail=detail or None)
    return Answer(problem=f"exit {code}{': ' + text[:120] if text else ''}")


def finding(attempt: Attempt, answer: Answer) -> Finding:
    """The row for one answer."""
    verdict, seen = attempt.judge(answer)
    return Finding(attempt.promise, attempt.name, verdict, seen)


def _named(error: int | None) -> str:
    return errno.errorcode.get(error or 0, str(error))


def refused_by(answer: Answer) -> tuple[Verdict, str]:
    """A system call or a file: only a refusal for want of permission, or of the call itself, is one."""
    if answer.error in _NO:
        return "held", _named(answer.error)
    if answer.error is not None:
        return "gave_way", f"the kernel looked at it and answered {_named(answer.error)}"
    if answer.problem is not None:
        # The filter may kill instead of answering; 128 + SIGSYS.
        return (
            ("held", "killed by the filter") if answer.problem.startswith("exit 159") else ("not_tried", answer.problem)
        )
    return "gave_way", "it worked"


def not_there(answer: Answer) -> tuple[Verdict, str]:
    """A path or a process of the host: any error is a refusal, because what was asked for exists outside."""
    if answer.error is not None:
        return "held", _named(answer.error)
    if answer.problem is not None:
        return "not_tried", answer.problem
    return "gave_way", f"it worked: {(answer.detail or '')[:60]}".rstrip(": ")


def without(word: str) -> Judge:
    """A file that may exist inside under the same name: what counts is whether the host's own word is in it."""

    def judge(answer: Answer) -> tuple[Verdict, str]:
        if answer.problem is not None:
            return "not_tried", answer.problem
        if answer.error is not None:
            return "held", _named(answer.error)
        found = word in (answer.detail or "")
        return ("gave_way", "the host's own bytes") if found else ("held", "the sandbox's own file")

    return judge


def unreached(answer: Answer) -> tuple[Verdict, str]:
    """A connection that must not leave: an answer of any kind, a refusal of the port included, came from outside."""
    if answer.error in _UNREACHED or answer.error in _NO_FAMILY:
        return "held", _named(answer.error)
    if answer.error == errno.ECONNREFUSED:
        return "gave_way", "the destination answered that the port is closed"
    if answer.error is not None:
        return "not_tried", f"neither refused nor answered: {_named(answer.error)}"
    if answer.problem is not None:
        return "not_tried", answer.problem
    return "gave_way", (answer.detail or "connected")[:60]


def not_connected(answer: Answer) -> tuple[Verdict, str]:
    """A connection to something that listens outside: whatever isn't a connection is a refusal."""
    return ("held", _named(answer.error)) if answer.error is not None else not_there(answer)


def has_route(answer: Answer) -> tuple[Verdict, str]:
    """Without an uplink nothing can be reached, which proves nothing about the filter."""
    lines = (answer.detail or "").split()
    return ("held", "there is one") if "00000000" in lines else ("not_tried", answer.problem or "there is no route out")


def proxied(answer: Answer) -> tuple[Verdict, str]:
    """A request through the proxy: 403 is the refusal, and only that."""
    if answer.detail is None:
        return "not_tried", answer.problem or f"the proxy can't be reached: {_named(answer.error)}"
    words = answer.detail.split()
    status = words[2] if len(words) > 2 else ""
    if status == "403":
        return "held", "403"
    if status.startswith("2"):
        return "gave_way", f"the proxy answered {status}"
    return "not_tried", f"the proxy answered {status or 'nothing'}"


def status_field(field: str, expected: str, promise_kept: str) -> Judge:
    """One line of /proc/self/status, as a process of the job sees itself."""

    def judge(answer: Answer) -> tuple[Verdict, str]:
        words = (answer.detail or "").split()
        if f"{field}:" not in words:
            return "not_tried", f"the kernel doesn't tell {field}"
        value = words[words.index(f"{field}:") + 1]
        return ("held", promise_kept) if value.lstrip("0") == expected.lstrip("0") else ("gave_way", f"{field} {value}")

    return judge


def only_harmless_devices(answer: Answer) -> tuple[Verdict, str]:
    """What is in /dev."""
    if answer.detail is None:
        return not_there(answer)
    strange = set(answer.detail.split()) - _HARMLESS_DEVICES - {".", ".."}
    return ("gave_way", " ".join(sorted(strange))[:80]) if strange else ("held", "none but the harmless ones")


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What stands ready outside for the probe to find; every name carries `word`, which nobody can guess."""

    word: str
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    socket_path: str = ""
    abstract_socket: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    addresses6: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    shadow: str = ""
    engine_sockets: tuple[str, ...] = ()
    sibling_port: int = 0
    sibling_word: str = ""
    sibling_socket: str = ""


def plan_inside(outside: Outside, machine: str, home: str) -> list[Attempt]:
    """What is tried in a session without a network. `machine` is the kernel's name of the architecture."""
    return [
        *_file_attempts(outside),
        *_identity_attempts(),
        *_kernel_attempts(machine),
        *_device_attempts(machine, home),
        *_process_attempts(outside),
        *_loopback_attempts(outside),
    ]


def _file_attempts(outside: Outside) -> list[Attempt]:
    attempts = []
    for path in outside.files:
        for shown, at in ((path, path), (f"{path} by /proc/1/root", f"/proc/1/root{path}")):
            attempts.append(Attempt("no_host_mounts", f"read {shown}", ("read", at), without(outside.word)))
    for folder in outside.folders:
        arguments = ("create", f"{folder}/{outside.word}-planted", "planted")
        # Whether it arrived on the host is looked at from outside; inside the folder may be the sandbox's own.
        attempts.append(Attempt("no_host_mounts", f"write into {folder}", arguments, _written))
    if outside.shadow:
        attempts.append(Attempt("no_host_mounts", "read /etc/shadow", ("read", "/etc/shadow"), without(outside.shadow)))
    attempts += [
        Attempt("no_engine_socket", f"connect to {path}", ("connect", path, "0", "500"), not_connected)
        for path in (*outside.engine_sockets, outside.socket_path)
        if path
    ]
    return attempts


def _written(answer: Answer) -> tuple[Verdict, str]:
    if answer.problem is not None:
        return "not_tried", answer.problem
    return "held", _named(answer.error) if answer.error is not None else "it went to the sandbox's own layer"


def _identity_attempts() -> list[Attempt]:
    status = ("read", "/proc/self/status")
    rows = [
        ("no_capabilities", "CapEff", "0", "none"),
        ("no_capabilities", "CapPrm", "0", "none"),
        ("no_capabilities", "CapBnd", "0", "none"),
        ("no_new_privileges", "NoNewPrivs", "1", "set"),
        ("seccomp", "Seccomp", "2", "a filter"),
    ]
    return [
        Attempt(promise, f"look at {field}", status, status_field(field, expected, kept))
        for promise, field, expected, kept in rows
    ]


_CALLS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("mount a tmpfs", "mount", ("@none", "@/tmp", "@tmpfs", "0", "0")),
    ("unmount /proc", "umount2", ("@/proc", "2")),
    ("open a file system", "fsopen", ("@tmpfs", "0")),
    ("clone a mount", "open_tree", ("-100", "@/", "1")),
    ("move a mount", "move_mount", ("-1", "@", "-100", "@/tmp", "4")),
    ("change a mount", "mount_setattr", ("-100", "@/", "0", "%", "32")),
    ("change the root", "pivot_root", ("@/tmp", "@/tmp")),
    ("unshare a user namespace", "unshare", ("0x10000000",)),
    ("unshare mounts", "unshare", ("0x20000",)),
    ("unshare the network", "unshare", ("0x40000000",)),
    ("clone a user namespace", "clone", ("0x10000011", "0", "0", "0", "0")),
    ("call clone3", "clone3", ("%", "0")),
    ("enter another namespace", "setns", ("-1", "0")),
    ("open a socket to the hypervisor", "socket", ("40", "1", "0")),
    ("read the keyring", "keyctl", ("0", "-4", "0")),
    ("add a key", "add_key", ("@user", "@runyard", "@x", "1", "-4")),
    ("request a key", "request_key", ("@user", "@runyard", "0", "0")),
    ("load a BPF program", "bpf", ("5", "%", "64")),
    ("make an io_uring", "io_uring_setup", ("1", "%")),
    ("catch page faults", "userfaultfd", ("1",)),
    ("open performance counters", "perf_event_open", ("%", "0", "-1", "-1", "0")),
    ("open a file by its handle", "open_by_handle_at", ("-100", "%", "0")),
    ("load a module", "init_module", ("%", "1", "@")),
    ("unload a module", "delete_module", ("@runyard_none", "0")),
    ("load a kernel", "kexec_load", ("0", "0", "%", "0")),
)


_KERNEL_FILES: Final = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/proc/kcore",
)


def _kernel_attempts(machine: str) -> list[Attempt]:
    numbers = NUMBERS.get(machine, {})
    attempts = [
        Attempt("seccomp", name, ("childcall", str(numbers[call]), *arguments), refused_by)
        for name, call, arguments in _CALLS
        if call in numbers
    ]
    if machine == "x86_64":
        x32 = ("childcall", str(0x40000000 + numbers["getpid"]))
        attempts.append(Attempt("seccomp", "call by the x32 numbers", x32, refused_by))
        attempts.append(Attempt("seccomp", "call by the 32-bit entry", ("oldentry",), refused_by))
    attempts += [
        Attempt("no_capabilities", f"open {path} for writing", ("open", path), not_there) for path in _KERNEL_FILES
    ]
    attempts += [
        Attempt("no_host_mounts", f"leave the group by {path}", ("open", f"{path}/cgroup.procs"), not_there)
        for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")
    ]
    return attempts


def _device_attempts(machine: str, home: str) -> list[Attempt]:
    attempts = [
        Attempt("no_devices", "look for devices in /dev", ("list", "/dev"), only_harmless_devices),
        Attempt("no_devices", "read the machine's memory", ("read", "/dev/mem"), not_there),
        Attempt("no_devices", "read the kernel's log", ("read", "/dev/kmsg"), not_there),
    ]
    if "mknodat" in NUMBERS.get(machine, {}):
        for place in (home, "/tmp"):
            arguments = ("call", str(NUMBERS[machine]["mknodat"]), "-100", f"@{place}/disk", "0x6180", str(8 << 8))
            attempts.append(Attempt("no_devices", f"make a block device in {place}", arguments, refused_by))
    return attempts


def _process_attempts(outside: Outside) -> list[Attempt]:
    rows = [
        ("find a process of the host", outside.word, "cmdline"),
        ("find the environment of a process of the host", outside.word, "environ"),
        ("find a process of a sibling job", outside.sibling_word, "cmdline"),
        ("find the environment of a sibling job", outside.sibling_word, "environ"),
    ]
    return [Attempt("no_host_pids", name, ("find", word, file), not_there) for name, word, file in rows if word]


def _loopback_attempts(outside: Outside) -> list[Attempt]:
    rows = []
    if outside.port:
        rows.append(("connect to a port of the host on loopback", "127.0.0.1", outside.port))
        rows += [
            (f"connect to a port of the host at {address}", address, outside.port) for address in outside.addresses
        ]
        rows += [("connect to a port of the host by IPv6", address, outside.port) for address in outside.addresses6]
    if outside.abstract_socket:
        rows.append(("connect to an abstract socket of the host", outside.abstract_socket, 0))
    if outside.sibling_port:
        rows.append(("connect to a port of a sibling job", "127.0.0.1", outside.sibling_port))
    if outside.sibling_socket:
        rows.append(("connect to an abstract socket of a sibling job", outside.sibling_socket, 0))
    return [
        Attempt("egress_none", name, ("connect", address, str(port), "1500"), not_connected)
        for name, address, port in rows
    ] + [
        Attempt("egress_none", f"connect to {address}", ("connect", address, "80", "1500"), unreached)
        for address in ("169.254.169.254", *outside.gateways, "10.0.2.2", "198.51.100.7")
    ]


FORBIDDEN: Final = ("169.254.169.254", "10.255.255.1", "192.168.255.1", "172.31.255.1", "100.64.0.1", "10.0.2.2")


def plan_public(outside: Outside) -> list[Attempt]:
    """What is tried in a session with the public network; none of it would be an outside address."""
    attempts = [Attempt("egress_public", "have an uplink at all", ("read", "/proc/net/route"), has_route)]
    attempts += [
        Attempt("egress_public", f"connect to {address}", ("connect", address, "80", "2000"), unreached)
        for address in (*FORBIDDEN, *outside.gateways)
    ]
    for address in (*outside.addresses, *outside.addresses6, "10.0.2.2"):
        name = f"connect to a port of the host at {address}"
        arguments = ("connect", address, str(outside.port), "2000")
        attempts.append(Attempt("egress_public", name, arguments, unreached))
    return attempts


def plan_proxy(outside: Outside, port: int) -> list[Attempt]:
    """What is asked of the proxy on loopback `port` inside, by both of its forms."""
    hosts = ("127.0.0.1", "[::1]", "localhost", "[::ffff:127.0.0.1]", "2130706433", *outside.addresses)
    targets = [f"{host}:{outside.port}" for host in hosts] + [
        f"{address}:80" for address in (*FORBIDDEN, *outside.gateways)
    ]
    attempts = []
    for target in targets:
        for words in (f"CONNECT {target} HTTP/1.1", f"GET http://{target}/ HTTP/1.1"):
            arguments = ("connect", "127.0.0.1", str(port), "4000", words)
            attempts.append(Attempt("egress_proxy", f"{words.split(' ')[0]} {target} by the proxy", arguments, proxied))
    return attempts
