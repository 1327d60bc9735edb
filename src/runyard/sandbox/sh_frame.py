"""The words between us and a POSIX shell that supervises steps: pure, text in and text out.

`LOOP` is the shell's program. It waits on a pipe for the number of a frame, reads the frame (shell text made here from
a StepCommand) and answers on a pipe of that step's own. One frame writes the files in, runs the command with exactly
the environment it was given, and returns the exit and the files out: one round trip, and no process beside the
command's unless a file is to be read back. Everything outside the quotes is a builtin of every POSIX shell, except
`mkdir`, `chmod`, `rm` and `head`; a busybox is enough.

The shell runs as the job's own user, so nothing it is made to do reaches further than the job itself. What comes back
is the job's word and is parsed as such: bounded, and refused where it isn't what a supervisor says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.sandbox.contract import FileBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.sandbox.contract import FileOut, SignalKind, StepCommand

RENDEZVOUS: Final = "/run/runyard-frames"
"""Where the folder with our pipes and frames is seen inside, read-only."""

SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SIGNALS: Final[Mapping[SignalKind, str]] = {"interrupt": "INT", "terminate": "TERM", "kill": "KILL"}

_EXPORTABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_THE_SHELLS_OWN: Final = frozenset(
    (
        "_",
        "BASHOPTS",
        "BASHPID",
        "BASH_ARGC",
        "BASH_ARGV",
        "BASH_LINENO",
        "BASH_SOURCE",
        "BASH_VERSINFO",
        "COMP_WORDBREAKS",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "LINENO",
        "OPTERR",
        "OPTIND",
        "POSIXLY_CORRECT",
        "PPID",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "UID",
    )
)
"""Variables that some shell keeps for itself: read-only, or changed by being set."""

LOOP: Final = r"""
exec 7>&-
ry_way() {
  ry_w=${1%/*}
  while [ -n "$ry_w" ]; do [ -L "$ry_w" ] && return 1; ry_w=${ry_w%/*}; done
  return 0
}
ry_room() {
  ry_way "$1" || { ry_p="126 $1: a link on the way"; return 1; }
  [ -e "$1" ] || [ -L "$1" ] && rm -f "$1"
  ry_w=${1%/*}
  [ -z "$ry_w" ] || [ -d "$ry_w" ] || mkdir -p "$ry_w" 2>/dev/null
}
ry_lost() {
  [ -n "$ry_p" ] || ry_p="126 $1: can't be written"
}
ry_find() {
  [ -d "$3" ] || { ry_p="127 $3: no such folder"; return; }
  case $1 in
  */*) ry_w=$1; case $1 in /*) ;; *) ry_w=$3/$1 ;; esac ;;
  *)
    ry_w=; ry_r=$2:
    while [ -n "$ry_r" ]; do
      ry_d=${ry_r%%:*}; ry_r=${ry_r#*:}
      [ -f "${ry_d:-.}/$1" ] && [ -x "${ry_d:-.}/$1" ] && { ry_w=${ry_d:-.}/$1; break; }
    done
    [ -n "$ry_w" ] || { ry_p="127 $1: not found in PATH"; return; } ;;
  esac
  if [ ! -e "$ry_w" ]; then ry_p="127 $1: no such file"
  elif [ -d "$ry_w" ]; then ry_p="126 $1: is a folder"
  elif [ ! -x "$ry_w" ]; then ry_p="126 $1: may not be executed"; fi
}
ry_get() {
  if [ -L "$2" ] || ! ry_way "$2"; then printf 'file %s link\n' "$1"
  elif [ ! -e "$2" ]; then printf 'file %s missing\n' "$1"
  elif [ ! -f "$2" ]; then printf 'file %s not_a_file\n' "$1"
  elif [ ! -s "$2" ]; then printf 'file %s empty\n' "$1"
  elif [ ! -r "$2" ]; then printf 'file %s missing\n' "$1"
  else printf 'file %s data\n' "$1"; head -c "$3" <"$2"; printf '\n%s\n' "$E"; fi >&7
}
ry_scan() {
  ry_all=
  # By length, then by digits: in the order of numbers a parent hears before its children, and reports none of them.
  for ry_f in /proc/[0-9]/stat /proc/[0-9][0-9]/stat /proc/[0-9][0-9][0-9]/stat /proc/[0-9][0-9][0-9][0-9]/stat \
    /proc/[0-9][0-9][0-9][0-9][0-9]/stat /proc/[0-9][0-9][0-9][0-9][0-9][0-9]*/stat; do
    ry_x=; { read -r ry_x <"$ry_f"; } 2>/dev/null
    case $ry_x in *') '*) ;; *) continue ;; esac
    ry_i=${ry_x%% *}
    set -- ${ry_x##*) }
    case $1 in Z|X) continue ;; esac
    ry_all="$ry_all $ry_i"; eval "ry_P_$ry_i=$2 ry_S_$ry_i=${20}"
  done
}
ry_ours() {
  ry_t=$1
  while :; do
    [ "$ry_t" = "$ry_root" ] && return 0
    eval "ry_q=\${ry_P_$ry_t:-0}"
    case $ry_lanes in *" $ry_t "*) return 1 ;; esac
    [ "$ry_q" = 0 ] && return 1
    [ "$ry_q" = 1 ] && break
    [ "$ry_q" = "$ry_lane" ] && return 0
    ry_t=$ry_q
  done
  eval "ry_s=\${ry_S_$ry_t:-0}"
  [ "$ry_s" -gt "$ry_from" ] || { [ "$ry_s" -eq "$ry_from" ] && [ "$ry_t" -gt "$ry_root" ]; } || return 1
  [ -z "$ry_next" ] || [ "$ry_s" -lt "$ry_until" ] || { [ "$ry_s" -eq "$ry_until" ] && [ "$ry_t" -lt "$ry_next" ]; } ||
    return 1
  [ -z "$ry_mixed" ] || [ "/proc/$ry_t/fd/1" -ef "/proc/$ry_root/fd/1" ]
}
ry_signal() {
  ry_n=0
  while [ "$ry_n" -lt 40 ]; do
    ry_n=$((ry_n + 1)); ry_hit=
    ry_scan
    for ry_i in $ry_all; do
      ry_ours "$ry_i" && kill -s "$1" "$ry_i" 2>/dev/null && ry_hit=1
    done
    [ -n "$ry_hit" ] && [ "$1" = KILL ] || break
  done
}
exec 8<"$R/ask.$L" 9>"$R/told.$L"
read -r ry_x </proc/self/stat
printf 'hello %s\n' "$ry_x" >&9
while read -r ry_f <&8; do . "$R/$ry_f"; done
trap - EXIT
"""


class Wire(msgspec.Struct):
    """What a step's answer has told so far."""

    pid: int | None = None
    start: int = 0
    code: int | None = None
    problem: str | None = None
    cpu_s: float | None = None
    files: dict[int, FileBack] = msgspec.field(default_factory=dict)
    done: bool = False


class GarbledError(Exception):
    """What came back isn't what a supervisor says: the job wrote into its pipe, or the shell is broken."""


def loop_program(shell: str, lane: int, ending: str, names: Iterable[str], search_path: str) -> bytes:
    """The program of a lane's shell; `names` are the variables it is started with, which no step may see.

    A shell that can't fork ends. This one then begins again in its own place, so that a job that filled the process
    table loses its step and not its sandbox.
    """
    unwanted = {"PATH", "HOME", "HOSTNAME", "TERM", "PWD", "OLDPWD", "SHLVL", "container", *names}
    cleared = " ".join(sorted(name for name in unwanted if _EXPORTABLE.fullmatch(name) and name not in _THE_SHELLS_OWN))
    text = (
        f"unset {cleared}\nPATH={quote(search_path)}\ncd /\numask 022\n"
        f"R={quote(RENDEZVOUS)} L={lane} E={quote(ending)}\n"
        f"trap 'exec {shell} \"$R/loop.$L\"' EXIT\n"
    )
    return (text + LOOP).encode()


def quote(text: str) -> str:
    """One word of shell text. Raises ValueError for a NUL, which no argument can hold."""
    if "\0" in text:
        raise ValueError("a NUL byte can't stand in an argument, a variable or a path")
    return "'" + text.replace("'", "'\\''") + "'"


def is_exportable(env: Mapping[str, str]) -> bool:
    """Whether a shell can pass these variables on; else the engine has to start the command itself."""
    return all(_EXPORTABLE.fullmatch(name) and name not in _THE_SHELLS_OWN for name in env)


def write_step(number: int, command: StepCommand, *, run: bool = True, has_input: bool = False) -> bytes:
    """The frame of a command; without `run` only its files travel. Raises ValueError for a NUL."""
    answer = quote(f"{RENDEZVOUS}/{number}.back")
    lines = [f"exec 7>{answer}", "ry_p= ry_c=0"]
    for file in command.files_in:
        lines += _write_file(file.path, file.data, file.mode)
    if run:
        search = command.env.get("PATH", SEARCH_PATH)
        lines.append(f'[ -n "$ry_p" ] || ry_find {quote(command.argv[0])} {quote(search)} {quote(command.cwd)}')
        lines += ['if [ -z "$ry_p" ]; then', *_run(number, command, has_input=has_input), "fi"]
    lines += [
        '[ -z "$ry_p" ] || printf \'problem %s\\n\' "$ry_p" >&7',
        "printf 'exit %s\\n' \"$ry_c\" >&7",
        "times >&7",
    ]
    lines += [f"ry_get {at} {quote(out.path)} {out.limit + 1}" for at, out in enumerate(command.files_out)]
    lines += ["printf 'done\\n' >&7", "exec 7>&-", ""]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _write_file(path: str, data: bytes, mode: int) -> list[str]:
    name = quote(path)
    lines = [
        f"if ry_room {name}; then umask {0o777 & ~mode & 0o666:03o}",
        f"{{ {_print(data)} >{name}; }} 2>/dev/null || ry_lost {name}",
    ]
    if mode & 0o111 or mode & 0o7000:
        lines.append(f"chmod {mode & 0o7777:o} {name} 2>/dev/null || ry_lost {name}")
    return [*lines, f"umask 022; else ry_lost {name}; fi"]


def _print(data: bytes) -> str:
    return f"printf '{_octal(data)}'" if data else ":"


_PLAIN: Final = frozenset(range(32, 127)) - frozenset(b"%\\'") | {10, 9}
_CODES: Final = tuple(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in range(256))


def _octal(data: bytes) -> str:
    text = "".join([_CODES[byte] for byte in data])
    return "\\055" + text[1:] if text.startswith("-") else text


def _run(number: int, command: StepCommand, *, has_input: bool) -> list[str]:
    out = quote(f"{RENDEZVOUS}/{number}.out")
    stdin = quote(f"{RENDEZVOUS}/{number}.in") if has_input else "/dev/null"
    exports = [f"export {name}={quote(value)}" for name, value in command.env.items()]
    words = " ".join(quote(word) for word in command.argv)
    if "PATH" not in command.env:
        # Without a PATH some shells find nothing at all; a C library has a search path of its own then.
        exports.append("unset PATH")
        words = " ".join(['"$ry_w"', *(quote(word) for word in command.argv[1:])])
    return [
        "(",
        "read -r ry_x </proc/self/stat; printf 'run %s\\n' \"$ry_x\" >&7; exec 7>&- 8<&- 9>&-",
        f"cd {quote(command.cwd)} || exit 126",
        "unset PWD OLDPWD SHLVL",
        *exports,
        f"exec {words}",
        f") <{stdin} >{out} 2>&1",
        "ry_c=$?",
    ]


def write_signal(
    number: int,
    kind: SignalKind | None,
    target: Wire,
    *,
    lane: int,
    lanes: Iterable[int],
    before: Wire | None,
    mixed: bool,
    everyone: bool = True,
) -> bytes:
    """The frame that signals a step's processes; with `kind` None it only asks whether one is left, by `exit 1`.

    They are the step's first process with its descendants, and the orphans that began after it and before the next
    step (`before`), since everything older is a daemon of an earlier one. Where several steps ran at a time (`mixed`),
    an orphan belongs to the step whose output it holds.
    """
    name = SIGNALS[kind] if kind is not None else "0"
    act = f"ry_signal {name}" if everyone else f"kill -s {name} {target.pid} 2>/dev/null"
    following = f"ry_next={before.pid} ry_until={before.start}" if before is not None else "ry_next= ry_until="
    lines = [
        f"exec 7>{quote(f'{RENDEZVOUS}/{number}.back')}",
        f"ry_root={target.pid} ry_from={target.start} ry_lane={lane} ry_lanes=' {' '.join(map(str, lanes))} '",
        f"{following} ry_mixed={'1' if mixed else ''}",
        act,
        "printf 'exit %s\\ndone\\n' \"${ry_hit:-0}\" >&7",
        "exec 7>&-",
        "",
    ]
    return "\n".join(lines).encode()


class Answer:
    """Reads a step's answer as it comes. `feed` raises GarbledError; `told` is what is known so far."""

    def __init__(self, files: tuple[FileOut, ...], ending: str) -> None:
        self.told = Wire()
        self.files = files
        self._ending = f"\n{ending}\n".encode()
        self._held = bytearray()
        self._file: int | None = None
        self._bound = sum(file.limit + 1 for file in files) + 65536

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._held += data
        if len(self._held) > self._bound:
            raise GarbledError("the answer is longer than what was asked for")
        while not self.told.done:
            if self._file is not None:
                if not self._take_file(self._file):
                    return
                continue
            end = self._held.find(b"\n")
            if end < 0:
                return
            line = bytes(self._held[:end]).decode("utf-8", "replace")
            del self._held[: end + 1]
            self._take_line(line)

    def _take_file(self, at: int) -> bool:
        end = self._held.find(self._ending)
        if end < 0:
            return False
        data = bytes(self._held[:end])
        del self._held[: end + len(self._ending)]
        limit = self.files[at].limit
        # `head` was asked for one byte more than the limit; how many more there are, a second look would tell.
        too_large = len(data) > limit
        self.told.files[at] = (
            FileBack(problem="too_large", size=len(data)) if too_large else FileBack(data=data, size=len(data))
        )
        self._file = None
        return True

    def _take_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        try:
            if word == "run":
                self.told.pid, self.told.start = parse_stat(rest)
            elif word == "problem":
                code, _, self.told.problem = rest.partition(" ")
                self.told.code = int(code)
            elif word == "exit":
                self.told.code = int(rest) if self.told.code is None else self.told.code
            elif word == "file":
                self._begin_file(rest)
            elif word == "done":
                self.told.done = True
            elif (times := _TIMES.fullmatch(line)) is not None:
                # The second line is the children's; it grows as long as the shell lives.
                self.told.cpu_s = sum(int(times[at]) * 60 + float(times[at + 1]) for at in (1, 3))
            else:
                raise GarbledError(f"a supervisor doesn't say {line[:80]!r}")
        except (ValueError, IndexError) as bad:
            raise GarbledError(f"a supervisor doesn't say {line[:80]!r}") from bad

    def _begin_file(self, rest: str) -> None:
        number, _, what = rest.partition(" ")
        at = int(number)
        if not 0 <= at < len(self.files):
            raise GarbledError(f"no file {at} was asked for")
        if what == "data":
            self._file = at
        elif what == "empty":
            self.told.files[at] = FileBack()
        elif what in _PROBLEMS:
            self.told.files[at] = _PROBLEMS[what]
        else:
            raise GarbledError(f"a file is not {what[:40]!r}")


_PROBLEMS: Final = {
    "missing": FileBack(problem="missing"),
    "link": FileBack(problem="link"),
    "not_a_file": FileBack(problem="not_a_file"),
}

_TIMES: Final = re.compile(r"(\d{1,9})m(\d{1,9}(?:\.\d{1,9})?)s (\d{1,9})m(\d{1,9}(?:\.\d{1,9})?)s")


def parse_stat(line: str) -> tuple[int, int]:
    """Pid and start (in clock ticks since boot) from a line of `/proc/PID/stat`. Raises ValueError, IndexError."""
    fields = line.rpartition(") ")[2].split()
    return int(line.partition(" ")[0]), int(fields[19])
