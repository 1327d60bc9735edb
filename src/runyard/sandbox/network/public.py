"""The network level `public` for a sandbox with its own network namespace: a filtered uplink.

`slirp4netns` gives the namespace an uplink without touching the host's interfaces, and a packet filter in that
namespace judges what leaves it. Both come from outside and belong to the namespace's owner, so no process of the job,
which has no capability there, can change them. Order: open before the job's first process runs; the filter is loaded
before the uplink is up, so there is no moment without it. Both end with the sandbox: the filter with its namespace, the
uplink when the process that opened it closes or dies.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import subprocess
from typing import TYPE_CHECKING, Final

from runyard.job import MachineError
from runyard.sandbox.network import ruleset, surroundings
from runyard.sandbox.network.levels import available_levels, find_program
from runyard.sandbox.network.policy import Egress, for_machine
from runyard.sandbox.network.programs import Namespaces, ended, hold_namespaces, nft, readable

if TYPE_CHECKING:
    from runyard.sandbox.network.refusals import RefusedDestination

RESOLVER: Final = ipaddress.IPv4Address("10.0.2.3")
"""Where slirp4netns answers DNS inside, by asking the machine's own resolver."""

MTU: Final = 1400
_READY_S: Final = 10.0
_SAID_LIMIT: Final = 4096


def resolv_conf() -> bytes:
    """What /etc/resolv.conf has to say inside a sandbox with this network."""
    return f"nameserver {RESOLVER}\noptions timeout:3 attempts:3\n".encode()


class Uplink:
    """An open public network. Close it once or more; it also ends when this process does."""

    def __init__(self, inside: Namespaces, egress: Egress, helper: _Helper) -> None:
        self._inside: Namespaces | None = inside
        self._egress = egress
        self._helper = helper
        self._last: tuple[RefusedDestination, ...] = ()

    async def refused(self) -> tuple[RefusedDestination, ...]:
        """What was refused so far, with packet counts; also when the job has ended. After `close` the last answer."""
        if self._inside is None:
            return self._last
        try:
            listing = await nft(f"list table inet {ruleset.OWN_TABLE}\n", inside=self._inside)
            self._last = ruleset.parse_refused(listing, self._egress)
        except (MachineError, ValueError):
            return self._last
        return self._last

    @property
    def helper_pid(self) -> int:
        """The process that carries the packets, for the record of what a sandbox owns."""
        return self._helper.pid

    def is_alive(self) -> bool:
        """Whether the uplink still runs; a job whose uplink died has no network and no way around the filter."""
        return self._helper.is_alive()

    def hang_up(self) -> None:
        """Begin to end the uplink; `close` waits for it. Returns at once, may be repeated."""
        self._helper.hang_up()

    async def close(self) -> None:
        """End the uplink, bounded. A second close is quiet."""
        if self._inside is None:
            return
        inside, self._inside = self._inside, None
        await self._helper.close()
        inside.close()


async def open_public(net: int, egress: Egress | None = None) -> Uplink:
    """Give a network namespace its filter and its uplink. `net` is a descriptor of it and stays the caller's.

    `egress` is the policy before this machine's own addresses. Call it while no process of the job runs yet: both are
    made at the same time. Raises MachineError, with the remedy, when something is missing or fails; the namespace then
    has no uplink.
    """
    missing = available_levels()["public"]
    if missing is not None:
        raise MachineError(f"no public network: {missing.because}", code="sandbox.promise", remedy=missing.remedy)
    try:
        policy = for_machine(egress or Egress(), surroundings.observe())
    except OSError as err:
        raise MachineError(f"no public network: this machine's addresses are unknown ({err})") from err
    inside = hold_namespaces(net)
    try:
        helper = _Helper.start(inside)
        try:
            await nft(ruleset.render_own_namespace(policy, (RESOLVER,)), inside=inside)
            await helper.until_ready()
        except BaseException:
            await helper.close()
            raise
    except BaseException:
        inside.close()
        raise
    return Uplink(inside, policy, helper)


class _Helper:
    """The slirp4netns of one namespace. It parses what the job sends, so it is confined before it begins.

    It ends when the other end of its exit pipe closes, which is held by this process alone.
    """

    def __init__(self, process: subprocess.Popen[bytes], ready: int, hold: int, said: _Said) -> None:
        self._process = process
        self._ready = ready
        self._hold = hold
        self._said = said

    @classmethod
    def start(cls, inside: Namespaces) -> _Helper:
        """Start it; doesn't wait. Raises MachineError."""
        ready, ready_theirs = os.pipe2(os.O_CLOEXEC)
        hold_theirs, hold = os.pipe2(os.O_CLOEXEC)
        said, said_theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        passed = [ready_theirs, hold_theirs, inside.net]
        command = [find_program("slirp4netns") or "slirp4netns", "--configure", f"--mtu={MTU}"]
        command += ["--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"]
        command += [f"--ready-fd={ready_theirs}", f"--exit-fd={hold_theirs}"]
        command += ["--netns-type=path", f"/proc/self/fd/{inside.net}", "tap0"]
        if inside.owner is not None:
            passed.append(inside.owner)
            owner = f"/proc/self/fd/{inside.owner}"
            if os.geteuid() == 0:
                command[1:1] = [f"--userns-path={owner}"]
            else:
                # Its confinement needs to be the namespace's root, which it becomes by itself only for a given pid.
                enter = [find_program("nsenter") or "nsenter", f"--user={owner}", "--preserve-credentials", "--"]
                command[:0] = enter
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said_theirs, stderr=said_theirs, pass_fds=passed
            )
        except OSError as err:
            for ours in (ready, hold, said):
                os.close(ours)
            raise MachineError(f"slirp4netns can't be started: {err}", code="network.uplink") from err
        finally:
            for theirs in (ready_theirs, hold_theirs, said_theirs):
                os.close(theirs)
        return cls(process, ready, hold, _Said(said))

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def until_ready(self) -> None:
        """Wait until the interface is up. Raises MachineError with what the helper said."""
        if await readable(self._ready, _READY_S) and os.read(self._ready, 1) == b"1":
            return
        raise MachineError(f"slirp4netns did not bring the network up: {self._said.text()}", code="network.uplink")

    def hang_up(self) -> None:
        """Tell it to end. Quiet when it was told."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1

    async def close(self) -> None:
        """End it, bounded. A second close is quiet."""
        if self._ready < 0:
            return
        self.hang_up()
        os.close(self._ready)
        self._ready = -1
        await ended(self._process, 2.0)
        self._said.close()


class _Said:
    """Reads what the helper prints and keeps its end: an unread pipe would stop it, and a job may make it talk."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(file, self._take)

    def _take(self) -> None:
        try:
            piece = os.read(self._file, 65536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._file)
        self._kept += piece
        del self._kept[:-_SAID_LIMIT]

    def text(self) -> str:
        """The last lines, as one."""
        self._take_rest()
        return " · ".join(self._kept.decode("utf-8", "replace").split("\n")[-8:]).strip(" ·") or "it said nothing"

    def _take_rest(self) -> None:
        if self._file >= 0:
            self._take()

    def close(self) -> None:
        """Stop reading; a second close is quiet."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
