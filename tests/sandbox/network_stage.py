"""A small world in network namespaces of its own, where a job's public network is opened and tried.

Run as `unshare --net --mount [--user --map-root-user] python network_stage.py`: the namespace it starts in plays the
host. Behind a link lies a "world" with one public address, a resolver, and machines that a job must never reach. Prints
one JSON document with what each attempt gave. Nothing of it touches the machine's own network.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import anyio

HERE = Path(__file__).resolve()
PUBLIC = "198.51.100.7"
NEIGHBOUR = "192.0.2.2"
HOST = "192.0.2.1"
FORBIDDEN = ("10.9.9.9", "192.168.77.7", "172.20.1.1", "100.64.0.9", "169.254.169.254", "168.63.129.16")
PORTS = (22, 80, 443, 8080)

PROBE = """
import json, socket, sys
results = {}
for name, host, port in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((host, port), 1.2) as made:
            made.settimeout(4)
            results[name] = made.recv(64).decode()
    except OSError as err:
        results[name] = type(err).__name__ + ": " + (err.strerror or str(err))
query = bytes.fromhex("123401000001000000000000") + b"\\x04name\\x04test\\x00\\x00\\x01\\x00\\x01"
resolvers = {"dns of the sandbox": "10.0.2.3", "dns elsewhere": "198.51.100.7", "dns of the host": "192.0.2.2"}
for name, host in resolvers.items() if len(results) > 1 else ():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(0.6)
        try:
            asked.sendto(query, (host, 53))
            results[name] = asked.recv(512)[-4:].hex()
        except OSError as err:
            results[name] = type(err).__name__
with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as six:
    six.settimeout(1.5)
    try:
        six.connect(("2001:db8::7", 80))
        results["ipv6"] = "open"
    except OSError as err:
        results["ipv6"] = type(err).__name__
results["rules"] = open("/proc/self/status").read().split("CapEff:")[1].split()[0]
print(json.dumps(results))
"""


def tell(word: str) -> None:
    print(word, flush=True)


def serve(word: bytes, ports: tuple[int, ...]) -> None:
    """Answer each TCP connection with a word, each datagram on 53 with an address."""
    for port in ports:
        listening = socket.create_server(("0.0.0.0", port), backlog=64)
        threading.Thread(target=_answer_all, args=(listening, word), daemon=True).start()


def _answer_all(listening: socket.socket, word: bytes) -> None:
    while True:
        made, _ = listening.accept()
        with made:
            made.sendall(word)


def _answer_dns() -> None:
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.bind(("0.0.0.0", 53))
    while True:
        query, who = asked.recvfrom(512)
        answer = query[:2] + bytes.fromhex("818000010001000000000000") + query[12:]
        asked.sendto(answer + bytes.fromhex("c00c000100010000003c0004c6336407"), who)


def world() -> None:
    """The other side of the link: waits for its interface, takes all addresses, serves until told to stop."""
    tell("made")
    sys.stdin.readline()
    addresses = [f"{NEIGHBOUR}/24", f"{PUBLIC}/32", *(f"{address}/32" for address in FORBIDDEN)]
    lines = ["link set lo up", "link set w0 up", *(f"addr add {address} dev w0" for address in addresses)]
    lines += [f"route add 172.30.0.0/15 via {HOST}"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=10)
    serve(b"world", PORTS)
    threading.Thread(target=_answer_dns, daemon=True).start()
    tell("up")
    sys.stdin.read()


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_word(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 10)
    assert ready, f"no {word!r} in 10 s"
    assert process.stdout.readline().strip() == word


def host() -> subprocess.Popen[str]:
    """Make the link, the world behind it, the host's own service and its resolver file."""
    made = start("unshare", "--net", sys.executable, str(HERE), "world")
    read_word(made, "made")
    lines = ["link set lo up", "link add h0 type veth peer name w0", f"link set w0 netns {made.pid}"]
    lines += [f"addr add {HOST}/24 dev h0", "link set h0 up", f"route add default via {NEIGHBOUR}"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=10)
    assert made.stdin is not None
    made.stdin.write("go\n")
    made.stdin.flush()
    read_word(made, "up")
    serve(b"host", (80, 443))
    resolv = Path(f"/tmp/resolv-{os.getpid()}")
    resolv.write_text(f"nameserver {NEIGHBOUR}\n")
    try:
        subprocess.run(["mount", "--bind", str(resolv), "/etc/resolv.conf"], check=True, timeout=10)
    finally:
        resolv.unlink()
    return made


def become_ordinary() -> None:
    """Be an ordinary user, where everybody may open the tun device: in mounts of our own, which no other sees."""
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "src")]
    from sandbox import ordinary_user

    home = "/mnt"
    subprocess.run(["mount", "-t", "tmpfs", "home", home], check=True, timeout=10)
    ordinary_user.open_the_way(
        [os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), str(ordinary_user.ROOT)]
    )
    os.mknod(f"{home}/tun", 0o020666, os.makedev(10, 200))
    os.chmod(f"{home}/tun", 0o666)  # noqa: PTH101
    subprocess.run(["mount", "--bind", f"{home}/tun", "/dev/net/tun"], check=True, timeout=10)
    os.chown(home, ordinary_user.UID, ordinary_user.UID)
    ordinary_user.become(home)


def job() -> tuple[subprocess.Popen[str], int]:
    """A namespace as a sandbox has it: owned by a user namespace of its own."""
    made = start("unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo made; exec cat")
    read_word(made, "made")
    return made, made.pid


def probe(pid: int, attempts: list[tuple[str, str, int]]) -> dict[str, str]:
    enter = ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials", "--"]
    done = subprocess.run(
        [*enter, sys.executable, "-c", PROBE, json.dumps(attempts)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def container(bridge: str, number: int) -> subprocess.Popen[str]:
    """A namespace on a bridge, as an engine makes it, with a service of its own on port 80."""
    made = start("unshare", "--net", sys.executable, str(HERE), "container", str(number))
    read_word(made, "made")
    net = f"172.{number}.0"
    lines = [f"link add {bridge} type bridge", f"addr add {net}.1/24 dev {bridge}", f"link set {bridge} up"]
    lines += [f"link add v{number} type veth peer name c{number}", f"link set c{number} netns {made.pid}"]
    lines += [f"link set v{number} master {bridge}", f"link set v{number} up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=10)
    assert made.stdin is not None
    made.stdin.write("go\n")
    made.stdin.flush()
    read_word(made, "up")
    return made


def be_container(number: str) -> None:
    tell("made")
    sys.stdin.readline()
    lines = ["link set lo up", f"link set c{number} up", f"addr add 172.{number}.0.2/24 dev c{number}"]
    lines += [f"route add default via 172.{number}.0.1"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=10)
    serve(b"sibling", (80,))
    tell("up")
    sys.stdin.read()


async def play_bridge() -> dict[str, object]:
    import ipaddress

    from runyard.sandbox.network.bridge import list_tables, open_bridge, remove_table

    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    # Refusals are ICMP errors, which the kernel doles out slowly to one address; the attempts here come at once.
    Path("/proc/sys/net/ipv4/icmp_ratelimit").write_text("0")
    first, sibling = container("ry_one", 30), container("ry_two", 31)
    attempts = [("public 80", PUBLIC, 80), ("public 443", PUBLIC, 443), ("public 22", PUBLIC, 22)]
    attempts += [("host", HOST, 80), ("gateway", "172.30.0.1", 80), ("sibling", "172.31.0.2", 80)]
    attempts += [("neighbour", NEIGHBOUR, 80), *((address, address, 80) for address in FORBIDDEN)]
    told: dict[str, object] = {}
    try:
        told["before"] = await anyio.to_thread.run_sync(probe_net, first.pid, attempts)
        resolvers = (ipaddress.ip_address(NEIGHBOUR),)
        policy = await open_bridge("ry_one", resolvers)
        again = await open_bridge("ry_one", resolvers)
        await open_bridge("ry_two", resolvers)
        told["tables"] = await list_tables()
        told["attempts"] = await anyio.to_thread.run_sync(probe_net, first.pid, attempts)
        told["refused"] = [[each.destination, each.because, each.count > 0] for each in await policy.refused()]
        # With its own rules gone, the rules of the other bridge still keep strangers out of it.
        await again.close()
        await policy.close()
        told["from outside"] = await anyio.to_thread.run_sync(probe_net, first.pid, [("sibling", "172.31.0.2", 80)])
        for table in await list_tables():
            await remove_table(table)
            await remove_table(table)
        told["tables left"] = await list_tables()
    finally:
        for each in (first, sibling):
            each.kill()
            each.wait(10)
    return told


def probe_net(pid: int, attempts: list[tuple[str, str, int]]) -> dict[str, str]:
    enter = ["nsenter", f"--target={pid}", "--net", "--"]
    done = subprocess.run(
        [*enter, sys.executable, "-c", PROBE, json.dumps(attempts)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


async def play() -> dict[str, object]:
    from runyard.sandbox.network.public import open_public

    attempts = [("public 80", PUBLIC, 80), ("public 443", PUBLIC, 443), ("public 22", PUBLIC, 22)]
    attempts += [("public 8080", PUBLIC, 8080), ("host", HOST, 80), ("host through the uplink", "10.0.2.2", 80)]
    attempts += [("neighbour", NEIGHBOUR, 80), *((address, address, 80) for address in FORBIDDEN)]
    first, pid = job()
    sibling, sibling_pid = job()
    told: dict[str, object] = {}
    try:
        before = await anyio.to_thread.run_sync(probe, pid, [("public 80", PUBLIC, 80)])
        told["before"] = before
        net, sibling_net = (os.open(f"/proc/{each}/ns/net", os.O_RDONLY) for each in (pid, sibling_pid))
        uplink = await open_public(net)
        other = await open_public(sibling_net)
        os.close(net)
        attempts.append(("sibling", "10.0.2.100", 80))
        told["attempts"] = await anyio.to_thread.run_sync(probe, pid, attempts)
        told["refused"] = [[each.destination, each.because, each.count > 0] for each in await uplink.refused()]
        told["alive"] = uplink.is_alive()
        helper = uplink.helper_pid
        first.kill()
        first.wait(10)
        uplink.hang_up()
        uplink.hang_up()
        told["refused after the sandbox"] = len(await uplink.refused())
        await uplink.close()
        await uplink.close()
        told["refused after the close"] = len(await uplink.refused())
        told["helper left"] = os.path.exists(f"/proc/{helper}")  # noqa: PTH110
        await other.close()
        told["after"] = await anyio.to_thread.run_sync(probe, sibling_pid, [("public 80", PUBLIC, 80)])
    finally:
        for each in (first, sibling):
            each.kill()
            each.wait(10)
    return told


def main() -> None:
    signal.alarm(60)
    if sys.argv[1:] == ["world"]:
        world()
        return
    if sys.argv[1:2] == ["container"]:
        be_container(sys.argv[2])
        return
    behind = host()
    try:
        if sys.argv[1:] == ["ordinary"]:
            become_ordinary()
        print(json.dumps(anyio.run(play_bridge if sys.argv[1:] == ["bridge"] else play)))
    finally:
        assert behind.stdin is not None
        behind.stdin.close()
        behind.wait(10)


if __name__ == "__main__":
    main()
