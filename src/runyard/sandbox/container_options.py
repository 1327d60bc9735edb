"""What a workflow may ask of a container, and what it is refused: `options`, `volumes` and `ports`, judged as data.

GitHub hands the text of `container.options` to the engine. Here each option either has a meaning inside the sandbox or
breaks a promise (deviation D16), and all offenders are told in one message before anything is pulled. An option that
would have no effect is not taken in silence: it is refused too, by name (job-semantics 17.2 for the grammar).
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from runyard.job import InputError
from runyard.sandbox.container_wishes import ContainerWishes
from runyard.sandbox.contract import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Where: TypeAlias = Literal["options", "volumes", "ports"]


class Offence(msgspec.Struct, frozen=True):
    """One thing that is refused: where it stands, its words, the promise it would break (None: none, it is unknown)."""

    where: Where
    words: str
    promise: Promise | None
    because: str

    def __str__(self) -> str:
        return f"{self.words}: {self.because}" + (f" ({self.promise})" if self.promise else "")


class _BadValueError(Exception):
    """The value of an option can't be read."""


class _Draft:
    """The wishes while they are read."""

    def __init__(self) -> None:
        self.one: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.tmpfs: dict[str, str] = {}
        self.health: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = {
            name: [] for name in ("extra_hosts", "dns_search", "aliases", "volumes", "ports", "ulimits")
        }
        self.offences: list[Offence] = []

    def refuse(self, where: Where, words: str, promise: Promise | None, because: str) -> None:
        self.offences.append(Offence(where, words, promise, because))

    def done(self) -> ContainerWishes:
        lists = {name: tuple(values) for name, values in self.lists.items()}
        maps = {"env": self.env, "labels": self.labels, "tmpfs": self.tmpfs, "health": self.health or None}
        return msgspec.convert({**self.one, **lists, **maps}, ContainerWishes)


def judge(
    *,
    options: str = "",
    volumes: Sequence[str] = (),
    ports: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    is_job: bool = False,
) -> tuple[ContainerWishes, tuple[Offence, ...]]:
    """What a container may have, and everything that it is refused. Never raises: a bad value is an offence too.

    The job's own container (`is_job`) is kept open by us, so what speaks of its main process has no meaning there.
    """
    draft = _Draft()
    _read_options(draft, options)
    for text in volumes:
        _volume(draft, "volumes", text)
    for text in ports:
        _port(draft, "ports", str(text))
    if is_job:
        _judge_job(draft)
    wishes = draft.done()
    if env:
        wishes = msgspec.structs.replace(wishes, env={**wishes.env, **env})
    return wishes, tuple(draft.offences)


def _judge_job(draft: _Draft) -> None:
    for field, option in (("entrypoint", "--entrypoint"), ("workdir", "--workdir"), ("stop_signal", "--stop-signal")):
        if field in draft.one:
            draft.refuse("options", option, None, "the job's container has no process but the steps'")
    if draft.health:
        draft.refuse("options", "--health-*", None, "nothing waits for the job's own container")
    for outside, inside, _ in draft.lists["ports"]:
        if outside not in (0, inside):
            words = f"{outside}:{inside}"
            draft.refuse(
                "ports", words, None, "steps share the loopback of the job's container, so a port has one number"
            )


def refuse(
    name: str, offences: Sequence[Offence], places: Mapping[str, tuple[str | None, int | None, int | None]]
) -> None:
    """Raise InputError with all offences, at the place of the first; quiet without any.

    `name` is the container as people know it; `places` gives (path, line, column) of `options`, `volumes` and `ports`.
    """
    if not offences:
        return
    path, line, column = places.get(offences[0].where, (None, None, None))
    told = []
    for offence in offences:
        at = places.get(offence.where, (None, None, None))
        position = f" at {at[1]}:{at[2]}" if at[1] is not None else ""
        told.append(f"  {offence.where}{position}: {offence}")
    raise InputError(
        f"{name} asks for what a sandbox does not give:\n" + "\n".join(told),
        path=path,
        line=line,
        column=column,
        key=offences[0].where,
        code="sandbox.container_options",
        remedy="leave these out; a job's containers reach each other by name, and files by named volumes",
    )


# -- options --

_Take: TypeAlias = "Callable[[_Draft, str], None]"

_SHORT: Final = {
    "-a": "--attach",
    "-c": "--cpu-shares",
    "-d": "--detach",
    "-e": "--env",
    "-h": "--hostname",
    "-i": "--interactive",
    "-l": "--label",
    "-m": "--memory",
    "-p": "--publish",
    "-P": "--publish-all",
    "-t": "--tty",
    "-u": "--user",
    "-v": "--volume",
    "-w": "--workdir",
}
_SAME_AS: Final = {"--net": "--network", "--net-alias": "--network-alias", "--dns-opt": "--dns-option"}

_ALREADY_SO: Final = {"--rm", "--detach", "--interactive"}
"""Flags that say what is true of every container here."""

_REFUSED_FLAGS: Final[dict[str, tuple[Promise | None, str]]] = {
    "--privileged": ("no_capabilities", "a privileged container is the host"),
    "--publish-all": ("egress_none", "ports are published one by one, on the job's own loopback"),
    "--oom-kill-disable": ("memory_limit", "a container without an end to its memory stops the machine"),
    "--tty": (None, "steps get a terminal where they ask for one"),
    "--no-healthcheck": (None, ""),
}

_HOST: Final = "it reaches into the host"
_REFUSED: Final[dict[str, tuple[Promise | None, str]]] = {
    "--cap-add": ("no_capabilities", "a job has no capabilities"),
    "--security-opt": ("seccomp", "the filter and no-new-privileges stay as they are"),
    "--sysctl": ("no_capabilities", "kernel settings are the host's"),
    "--device": ("no_devices", _HOST),
    "--device-cgroup-rule": ("no_devices", _HOST),
    "--device-read-bps": ("no_devices", _HOST),
    "--device-read-iops": ("no_devices", _HOST),
    "--device-write-bps": ("no_devices", _HOST),
    "--device-write-iops": ("no_devices", _HOST),
    "--gpus": ("no_devices", _HOST),
    "--pid": ("no_host_pids", "each container has processes of its own"),
    "--ipc": ("no_host_pids", "each container has memory of its own to share"),
    "--uts": ("no_host_pids", "each container has a host name of its own"),
    "--userns": ("not_host_root", "the engine's users are not the job's to choose"),
    "--cgroupns": ("memory_limit", "groups are the sandbox's"),
    "--cgroup-parent": ("memory_limit", "groups are the sandbox's"),
    "--oom-score-adj": ("memory_limit", "the job's processes go first"),
    "--memory-swap": ("memory_limit", "swap is no way around the memory limit"),
    "--memory-swappiness": ("memory_limit", "swap is no way around the memory limit"),
    "--network": ("egress_none", "the network is the job's, at the level it was given"),
    "--ip": ("egress_none", "addresses are the network's to give"),
    "--ip6": ("egress_none", "addresses are the network's to give"),
    "--link": ("egress_none", "containers of a job reach each other by name"),
    "--link-local-ip": ("egress_none", "addresses are the network's to give"),
    "--mac-address": ("egress_none", "addresses are the network's to give"),
    "--dns": ("egress_none", "names are resolved by the job's network"),
    "--dns-option": ("egress_none", "names are resolved by the job's network"),
    "--volumes-from": ("no_host_mounts", "another container's volumes may be another job's"),
    "--volume-driver": ("no_host_mounts", "a driver can mount anything"),
    "--env-file": ("no_host_mounts", "it reads a file of the host"),
    "--label-file": ("no_host_mounts", "it reads a file of the host"),
    "--cidfile": ("no_host_mounts", "it writes a file of the host"),
    "--storage-opt": ("disk_limit", "storage is the sandbox's"),
    "--runtime": ("seccomp", "the engine's runtime is not the job's to choose"),
    "--isolation": ("seccomp", "isolation is not the job's to choose"),
    "--log-driver": (None, "output is the job's log"),
    "--log-opt": (None, "output is the job's log"),
    "--attach": (None, "output is the job's log"),
    "--detach-keys": (None, "nobody is attached"),
    "--restart": (None, "a container that ends has ended"),
    "--group-add": (None, "the groups are those of the image's user"),
    "--domainname": (None, "it has no effect here"),
    "--kernel-memory": (None, "kernels have dropped it"),
    "--memory-reservation": (None, "it has no effect here"),
    "--cpu-shares": (None, "use --cpus"),
    "--cpu-period": (None, "use --cpus"),
    "--cpu-quota": (None, "use --cpus"),
    "--cpu-rt-period": (None, "use --cpus"),
    "--cpu-rt-runtime": (None, "use --cpus"),
    "--cpuset-cpus": (None, "use --cpus"),
    "--cpuset-mems": (None, "use --cpus"),
    "--blkio-weight": (None, "it has no effect here"),
    "--blkio-weight-device": (None, "it has no effect here"),
    "--disable-content-trust": (None, "it has no effect here"),
    "--stop-timeout": (None, "containers are ended with the job"),
}


def _keep(name: str, read: Callable[[str], Any] = str) -> _Take:
    def take(draft: _Draft, value: str) -> None:
        draft.one[name] = read(value)

    return take


def _append(name: str, read: Callable[[str], Any] = str) -> _Take:
    def take(draft: _Draft, value: str) -> None:
        draft.lists[name].append(read(value))

    return take


def _pair(name: Literal["env", "labels"]) -> _Take:
    def take(draft: _Draft, value: str) -> None:
        key, _, text = value.partition("=")
        if not key:
            raise _BadValueError("it has no name")
        if name == "labels" and key.startswith("runyard."):
            raise _BadValueError("labels that begin with runyard. are ours")
        (draft.env if name == "env" else draft.labels)[key] = text

    return take


def _healthy(name: str, read: Callable[[str], Any]) -> _Take:
    def take(draft: _Draft, value: str) -> None:
        draft.health[name] = read(value)

    return take


def _mount_tmpfs(draft: _Draft, value: str) -> None:
    path, _, settings = value.partition(":")
    if not path.startswith("/"):
        raise _BadValueError("it is not an absolute path")
    wanted = [word for word in settings.split(",") if word]
    known = re.compile(r"(rw|ro|exec|noexec|nosuid|nodev|noatime|size=\d+[kmg]?|mode=[0-7]{3,4}|nr_inodes=\d+[kmg]?)")
    for word in wanted:
        if not known.fullmatch(word):
            raise _BadValueError(f"{word} is no setting of a tmpfs here")
    draft.tmpfs[path] = ",".join(wanted)


def _mount(draft: _Draft, value: str) -> None:
    """`--mount type=volume|tmpfs|bind,…`; a bind is refused by its words."""
    fields = dict(part.partition("=")[::2] for part in value.split(","))
    kind = fields.get("type", "volume")
    source = fields.get("source", fields.get("src", ""))
    target = fields.get("target", fields.get("destination", fields.get("dst", "")))
    if kind == "bind":
        _host_path(draft, "options", f"--mount {value}", source)
    elif kind == "tmpfs":
        _mount_tmpfs(draft, target)
    elif kind == "volume" and not any(key.startswith("volume-") for key in fields):
        read_only = "readonly" in fields or fields.get("ro") == "true"
        _add_volume(draft, source, target, read_only=read_only)
    else:
        raise _BadValueError("only named volumes and tmpfs are mounted")


def _ulimit(value: str) -> tuple[str, int, int]:
    found = re.fullmatch(r"([a-z]+)=(\d+)(?::(\d+))?", value)
    if not found:
        raise _BadValueError("it is not NAME=SOFT[:HARD]")
    return found[1], int(found[2]), int(found[3] or found[2])


def _extra_host(value: str) -> str:
    name, _, address = value.partition(":")
    if not name or not address:
        raise _BadValueError("it is not NAME:ADDRESS")
    if address == "host-gateway":
        raise _BadValueError("the host is not reachable")
    return value


def read_size(text: str) -> int:
    """Bytes of an engine's size: digits and b, k, m, g or t, powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not found:
        raise _BadValueError("it is not a size")
    return int(float(found[1]) * 1024 ** " kmgt".find(found[2].replace("b", "") or " "))


def read_duration(text: str) -> int:
    """Nanoseconds of a duration as the engine writes it: `1m30s`, `500ms`."""
    units = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise _BadValueError("it is not a duration")
    return int(sum(float(number) * units[unit] for number, unit in parts))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise _BadValueError("it is not a positive number")
    return int(text)


def _fraction(text: str) -> float:
    if not re.fullmatch(r"\d+(?:\.\d+)?", text) or float(text) <= 0:
        raise _BadValueError("it is not a positive number")
    return float(text)


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise _BadValueError(f"it is not one of {', '.join(known)}")
        return text

    return read


def _command(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _check(text: str) -> list[str]:
    return ["CMD-SHELL", text]


def _option_volume(draft: _Draft, value: str) -> None:
    _volume(draft, "options", value)


def _option_port(draft: _Draft, value: str) -> None:
    _port(draft, "options", value)


_TAKEN: Final[dict[str, _Take]] = {
    "--add-host": _append("extra_hosts", _extra_host),
    "--cpus": _keep("cpus", _fraction),
    "--dns-search": _append("dns_search"),
    "--entrypoint": _keep("entrypoint", _command),
    "--env": _pair("env"),
    "--health-cmd": _healthy("Test", _check),
    "--health-interval": _healthy("Interval", read_duration),
    "--health-retries": _healthy("Retries", _positive),
    "--health-start-period": _healthy("StartPeriod", read_duration),
    "--health-timeout": _healthy("Timeout", read_duration),
    "--hostname": _keep("hostname"),
    "--label": _pair("labels"),
    "--memory": _keep("memory", read_size),
    "--mount": _mount,
    "--name": _append("aliases"),
    "--network-alias": _append("aliases"),
    "--pids-limit": _keep("pids", _positive),
    "--platform": _keep("platform"),
    "--publish": _option_port,
    "--pull": _keep("pull", _one_of("missing", "always", "never")),
    "--shm-size": _keep("shm_size", read_size),
    "--stop-signal": _keep("stop_signal"),
    "--tmpfs": _mount_tmpfs,
    "--ulimit": _append("ulimits", _ulimit),
    "--user": _keep("user"),
    "--volume": _option_volume,
    "--workdir": _keep("workdir"),
}
"""Options with a meaning here. `--name` is the name by which the job's other containers reach it."""

_FLAGS: Final = {"--init": "init", "--read-only": "read_only"}
_HARMLESS_SECURITY: Final = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}


def _read_options(draft: _Draft, text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError as bad:
        draft.refuse("options", text.strip(), None, f"it can't be split into words: {bad}")
        return
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        named, has_value, value = _option(word)
        name = named or ""
        if not name:
            draft.refuse("options", word, None, "it is not an option")
            continue
        if name in _ALREADY_SO or name in _FLAGS or name in _REFUSED_FLAGS:
            _flag(draft, name, value if has_value else "true")
            continue
        if name not in _TAKEN and name not in _REFUSED and name != "--cap-drop":
            draft.refuse("options", word, None, "it is not known")
            continue
        if not has_value:
            if at >= len(words):
                draft.refuse("options", word, None, "it needs a value")
                return
            value = words[at]
            at += 1
        _valued(draft, name, value)


def _option(word: str) -> tuple[str | None, bool, str]:
    """An option's long name, and the value that stands in the same word."""
    if word.startswith("--"):
        name, has_value, value = word.partition("=")
        return _SAME_AS.get(name, name), bool(has_value), value
    if len(word) < 2 or word[0] != "-":
        return None, False, ""
    short = _SHORT.get(word[:2])
    rest = word[2:].removeprefix("=")
    if short is not None and rest and short in (*_ALREADY_SO, "--tty"):
        return (short, False, "") if set(rest) <= set("dit") else (None, False, "")
    return short, bool(word[2:]), rest


def _flag(draft: _Draft, name: str, value: str) -> None:
    if value not in ("true", "1", "false", "0"):
        draft.refuse("options", f"{name}={value}", None, "it is true or false")
        return
    is_on = value in ("true", "1")
    if name in _FLAGS:
        draft.one[_FLAGS[name]] = is_on
    elif name == "--no-healthcheck" and is_on:
        draft.health["Test"] = ["NONE"]
    elif name in _REFUSED_FLAGS and is_on:
        promise, because = _REFUSED_FLAGS[name]
        draft.refuse("options", name, promise, because)


def _valued(draft: _Draft, name: str, value: str) -> None:
    if name == "--cap-drop" or (name == "--security-opt" and value in _HARMLESS_SECURITY):
        return  # all of them are dropped, and privileges never grow
    if name == "--restart" and value == "no":
        return
    if name in _REFUSED:
        promise, because = _REFUSED[name]
        if name == "--network" and value == "host":
            because = "the host's network reaches the host, the LAN and other jobs"
        draft.refuse("options", f"{name} {value}", promise, because)
        return
    try:
        _TAKEN[name](draft, value)
    except _BadValueError as bad:
        draft.refuse("options", f"{name} {value}", None, str(bad))


# -- volumes and ports --


def _volume(draft: _Draft, where: Where, text: str) -> None:
    """`source:target:ro`, `source:target`, `target:ro` or `target`; `ro` is the only mode (job-semantics 17.2)."""
    words = f"--volume {text}" if where == "options" else text
    parts = text.split(":")
    if where == "options" and len(parts) == 3 and parts[2] in ("rw", "z", "Z", "rw,z", "rw,Z"):
        parts = parts[:2]
    read_only = len(parts) > 1 and parts[-1] == "ro"
    if read_only:
        parts.pop()
    if not 1 <= len(parts) <= 2 or not parts[-1].startswith("/"):
        draft.refuse(where, words, None, "it is not source:target:ro")
        return
    source, target = parts if len(parts) == 2 else ("", parts[0])
    if source and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", source):
        _host_path(draft, where, words, source)
        return
    try:
        _add_volume(draft, source, target, read_only=read_only)
    except _BadValueError as bad:
        draft.refuse(where, words, None, str(bad))


def _host_path(draft: _Draft, where: Where, words: str, source: str) -> None:
    if source.endswith((".sock", "docker.sock")):
        draft.refuse(where, words, "no_engine_socket", "whoever has the engine's socket has the host")
    else:
        draft.refuse(where, words, "no_host_mounts", "a path of the host is never shown to a job")


def _add_volume(draft: _Draft, source: str, target: str, *, read_only: bool) -> None:
    if not target.startswith("/") or target == "/" or ":" in target:
        raise _BadValueError("its target is not an absolute path below /")
    draft.lists["volumes"].append((source, target, read_only))


def _port(draft: _Draft, where: Where, text: str) -> None:
    """`[address:][outside:]inside[/tcp]`; published on the job's own loopback, so the address says nothing."""
    words = f"--publish {text}" if where == "options" else text
    found = re.fullmatch(
        r"(?:(?P<ip>\d+(?:\.\d+){3}|\[[0-9a-f:]+\]):)?(?:(?P<out>\d*):)?(?P<in>\d+)(?:/(?P<kind>\w+))?", text
    )
    if not found:
        draft.refuse(where, words, None, "it is not a port, outside:inside or address:outside:inside")
        return
    if (found["kind"] or "tcp") != "tcp":
        draft.refuse(where, words, None, f"only TCP ports are published, not {found['kind']}")
        return
    if found["ip"] not in (None, "127.0.0.1", "0.0.0.0", "[::]", "[::1]"):
        draft.refuse(where, words, "egress_none", "ports are published on the job's own loopback")
        return
    outside, inside = int(found["out"] or 0), int(found["in"])
    if not (0 <= outside < 65536 and 0 < inside < 65536):
        draft.refuse(where, words, None, "a port is a number below 65536")
        return
    draft.lists["ports"].append((outside, inside, "tcp"))
