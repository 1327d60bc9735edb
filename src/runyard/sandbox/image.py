# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH112, PTH114, PTH115, PTH120, PTH211
# On the way of every job, where a path object costs more than the call.

"""What a sandbox's root is made of: the machine's own programs, a folder, a tar file or an OCI layout.

The image `host` shows `/usr`, `/bin`, `/lib*` and a listed part of `/etc` under users of its own. Never shown: `/root`,
`/home`, `/var`, `/run`, `shadow`, keys, and any file that not everybody may read. What is composed or unpacked is kept
below the state folder under a name made from its content, and shared read-only by the sandboxes that use it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.job import Refused
from runyard.sandbox.contract import SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = tuple[str, str, int, Any]
"""Something to make in a folder: `dir`, `file` or `link`, its relative path, its mode, its bytes or target."""

_VERSION: Final = "2"

_ETC: Final = (
    "alternatives",
    "alpine-release",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xml",
)
_SECRETIVE: Final = ("private", "shadow", ".key", "secret", "credential", "password")
_LARGEST: Final = 4 << 20

_PASSWD: Final = """\
runner:x:0:0:runner:/home/runner:/bin/bash
root:x:0:0:root:/root:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP: Final = "runner:x:0:\nroot:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
_HOSTS: Final = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 runyard\n"

SUDO: Final = b"""\
#!/bin/sh
# The job is root in its sandbox: what sudo would grant it has already, so only sudo's own options are taken away.
user=root shell=
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    -u|--user) user=$2; shift; [ $# -eq 0 ] || shift ;;
    --user=*) user=${1#*=}; shift ;;
    -[gpCDhrRtTU]|--group|--prompt|--host|--chdir|--chroot) shift; [ $# -eq 0 ] || shift ;;
    -i|-s|--login|--shell) shell=1; shift ;;
    -v|-k|-K|-l|--validate|--reset-timestamp|--remove-timestamp|--list) [ $# -gt 1 ] || exit 0; shift ;;
    -V|--version) echo 'sudo: the sandbox of this job is its own root'; exit 0 ;;
    -u?*) user=${1#-u}; shift ;;
    -*) shift ;;
    [A-Za-z_]*=*) export "$1"; shift ;;
    *) break ;;
  esac
done
case $user in
  root|runner|'#0') ;;
  *) echo "sudo: this sandbox has one user, root; it can't become $user" >&2; exit 1 ;;
esac
if [ -n "$shell" ]; then
  [ $# -gt 0 ] || exec "${SHELL:-/bin/sh}"
  exec "${SHELL:-/bin/sh}" -c "$*"
fi
[ $# -gt 0 ] || { echo 'usage: sudo [-E] [-u root] [NAME=value] command' >&2; exit 1; }
exec "$@"
"""


class Over(msgspec.Struct, frozen=True):
    """A folder `source` of the machine at `target` under a writable layer `name`, with our own layer `on_top` of it."""

    source: str
    target: str
    name: str
    on_top: str


class Image(msgspec.Struct, frozen=True):
    """Where an image's root lies and what of the machine is laid over it.

    `over` are folders of the machine shown with a writable layer. `lay` is made in the writable layers first: `root/…`
    for the root, `NAME/…` for a folder in `over`. `environment` is what the image itself starts a process with.
    """

    root: str
    over: tuple[Over, ...] = ()
    read_only: tuple[tuple[str, str], ...] = ()
    lay: tuple[Item, ...] = ()
    host: bool = False
    environment: tuple[tuple[str, str], ...] = ()


def resolve(name: str, state: str) -> Image:
    """The image behind a name, composed or unpacked first if need be. Raises SandboxRefused or MachineError."""
    if name == "host":
        return _host(state)
    kind, _, path = name.partition(":")
    if kind == "dir" and path:
        if not os.path.isdir(path):
            raise SandboxRefused(
                Refused("fresh_file_system", f"the image {name} is not a folder", "name a root folder")
            )
        return Image(root=os.path.realpath(path), lay=_layer_of(os.path.realpath(path)))
    if kind in ("tar", "oci") and path:
        from runyard.sandbox import unpack

        root, environment = unpack.unpacked(kind, path, state)
        return Image(root=root, lay=_layer_of(root), environment=environment)
    raise SandboxRefused(
        Refused(
            "fresh_file_system",
            f"bubblewrap can't run the image {name}",
            "use host, dir:PATH, tar:PATH or oci:PATH, or an engine: --sandbox docker",
        )
    )


def _layer_of(root: str) -> tuple[Item, ...]:
    """The stand-in for sudo, where the image has a place and a shell for it."""
    if os.path.isdir(f"{root}/usr/bin") and os.path.lexists(f"{root}/bin/sh"):
        return (("dir", "root/usr", 0o755, None), ("dir", "root/usr/bin", 0o755, None), _sudo("root/usr/bin/sudo"))
    return ()


def _sudo(path: str) -> Item:
    return ("file", path, 0o755, SUDO)


def _host(state: str) -> Image:
    place = f"{state}/images/host-{_fingerprint()}"
    if not os.path.isdir(place):
        _compose(place)
    read_only = tuple((f"/{name}", f"/{name}") for name in _top_folders())
    over = (Over("/usr", "/usr", "usr", on_top=f"{place}/usr"),)
    return Image(root=f"{place}/root", over=over, read_only=read_only, host=True)


def _top_folders() -> list[str]:
    """`bin`, `lib` and their kin where they are folders of their own, not links into `/usr`."""
    return [name for name, is_link in _tops() if not is_link]


def _tops() -> Iterator[tuple[str, bool]]:
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            yield name, True
        elif os.path.isdir(path):
            yield name, False


def _own_usr(made: str) -> None:
    """A layer on the machine's `/usr` whose folders the job owns, so that it can install there, with its sudo."""
    wanted = ["bin", "sbin", "include", "lib", "libexec", "share", "src", "local"]
    local = ["bin", "sbin", "etc", "games", "include", "lib", "libexec", "share", "src"]
    deeper = ["local/lib/node_modules", "local/share/man", "local/share/ca-certificates"]
    for relative in ("", *wanted, *(f"local/{name}" for name in local), *deeper):
        if os.path.isdir(f"/usr/{relative}") and not os.path.islink(f"/usr/{relative}"):
            os.mkdir(f"{made}/usr/{relative}", 0o755)
    with open(f"{made}/usr/bin/sudo", "wb") as file:
        file.write(SUDO)
    os.chmod(f"{made}/usr/bin/sudo", 0o755)


def _fingerprint() -> str:
    """Changes when something listed changes; a stat for each, nothing is read."""
    told = hashlib.blake2s(_VERSION.encode(), digest_size=10)
    told.update(str(os.geteuid()).encode())
    for name in _ETC:
        try:
            facts = os.lstat(f"/etc/{name}")
        except OSError:
            continue
        told.update(f"{name} {facts.st_mtime_ns} {facts.st_size} {facts.st_mode}\n".encode())
    told.update(repr(list(_tops())).encode())
    return told.hexdigest()


def _compose(place: str) -> None:
    """Make the tree beside its place and put it there whole; of two makers one wins."""
    import shutil
    import tempfile

    parent = os.path.dirname(place)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".host-", dir=parent)
    try:
        os.mkdir(f"{made}/root", 0o755)
        _folders(f"{made}/root")
        _users(f"{made}/root")
        for name in _ETC:
            _copy(f"/etc/{name}", f"{made}/root/etc/{name}")
        _own_usr(made)
        try:
            os.rename(made, place)
        except OSError:
            if not os.path.isdir(place):
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _folders(made: str) -> None:
    for name in ("usr", "etc", "home", "home/runner", "dev", "proc", "run", "opt", "srv", "mnt", "media"):
        os.mkdir(f"{made}/{name}", 0o755)
    for name in ("var", "var/lib", "var/cache", "var/log", "var/opt", "var/spool"):
        os.mkdir(f"{made}/{name}", 0o755)
    os.mkdir(f"{made}/root", 0o700)
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"{made}/{name}")
        os.chmod(f"{made}/{name}", 0o1777)
    os.symlink("../run", f"{made}/var/run")
    for name, is_link in _tops():
        if is_link:
            os.symlink(os.readlink(f"/{name}"), f"{made}/{name}")
        else:
            os.mkdir(f"{made}/{name}", 0o755)


def _users(made: str) -> None:
    for name, text in (
        ("passwd", _PASSWD),
        ("group", _GROUP),
        ("hosts", _HOSTS),
        ("hostname", "runyard\n"),
        ("resolv.conf", ""),
    ):
        with open(f"{made}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    os.symlink("/proc/self/mounts", f"{made}/etc/mtab")


def _copy(source: str, target: str) -> None:
    """A file, link or folder that everybody may read and whose name does not speak of keys."""
    try:
        facts = os.lstat(source)
    except OSError:
        return
    if any(word in source.lower() for word in _SECRETIVE):
        return
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o005 == 0o005:
        os.mkdir(target, 0o755)
        for entry in os.scandir(source):
            _copy(entry.path, f"{target}/{entry.name}")
    elif stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o004 and facts.st_size <= _LARGEST:
        with open(source, "rb") as read, open(target, "wb") as write:
            write.write(read.read())
        os.chmod(target, facts.st_mode & 0o755)
