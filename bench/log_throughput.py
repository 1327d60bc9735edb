"""Row log-throughput: lines through a pipe, cut, scanned for commands and matches, masked, to a file.

Against `cat` of the same bytes through a pipe. The reader runs in a process of its own, so its peak memory is its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 10
ROUND_MB = 200
ONE_BY_ONE_MB = 40
WHOLE_MB = 1000
CHUNK = 128 << 10
PIPE = 256 << 10
"""Both as a step's output is read."""
ROOT = Path(__file__).resolve().parent.parent

MATCHERS = {
    "problemMatcher": [
        {
            "owner": "stylish",
            "pattern": [
                {"regexp": r"^\s*([^\s].*)$", "file": 1},
                {
                    "regexp": r"^\s+(\d+):(\d+)\s+(error|warning|info)\s+(.*)\s\s+(.*)$",
                    "line": 1,
                    "column": 2,
                    "severity": 3,
                    "message": 4,
                    "code": 5,
                    "loop": True,
                },
            ],
        },
        {
            "owner": "compiler",
            "pattern": [
                {
                    "regexp": r"^(.+):(\d+):(\d+): (error|warning): (.+)$",
                    "file": 1,
                    "line": 2,
                    "column": 3,
                    "severity": 4,
                    "message": 5,
                }
            ],
        },
    ]
}


def measure() -> Iterator[Figure]:
    """Megabytes a second, megabytes of memory, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        lines.write_bytes(_lines(ROUND_MB))
        plain, cats, _ = _rounds(lines, folder, ())
        yield _rate("lines", plain, cats, 150)
        whole = _through(_written(lines, WHOLE_MB // ROUND_MB), folder, ())
        yield Figure("log-throughput", "peak memory, 1 GB", whole["peak_mb"], "MB", 0, "none", 120)
        short = Path(folder, "short")
        short.write_bytes(lines.read_bytes()[: ONE_BY_ONE_MB * 1_000_000])
        one_by_one, one_cats, _ = _rounds(short, folder, (), one_by_one=True)
        yield _rate("one write a line", one_by_one, one_cats, 40)
        single, _, _ = _rounds(short, folder, ("e",))
        yield _rate("a secret of one character", single, cats, 20)
        masks = [_through(_written(_add_masks(folder), 1), folder, ())["seconds"] for _ in range(ROUNDS)]
        yield Figure("log-throughput", "10,000 add-mask", median(masks), "s", 0, "none", 1.0)


def _rate(name: str, rates: list[float], baselines: list[float], target: float) -> Figure:
    return Figure("log-throughput", name, median(rates), "MB/s", median(baselines), "cat", target, at_least=True)


def _rounds(
    lines: Path, folder: str, secrets: tuple[str, ...], *, one_by_one: bool = False
) -> tuple[list[float], list[float], list[float]]:
    """Rates, rates of `cat`, and peaks."""
    size = lines.stat().st_size / 1e6
    rates, cats, peaks = [], [], []
    for _ in range(ROUNDS):
        told = _through(_written(lines, 1, one_by_one=one_by_one), folder, secrets)
        rates.append(size / told["seconds"])
        peaks.append(told["peak_mb"])
        start = time.perf_counter()
        command = _written(lines, 1, one_by_one=one_by_one)
        with (
            Path(folder, "out").open("wb") as out,
            subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer,
        ):
            subprocess.run(["cat"], stdin=writer.stdout, stdout=out, check=True)
        cats.append(size / (time.perf_counter() - start))
    return rates, cats, peaks


def _written(lines: Path, times: int, *, one_by_one: bool = False) -> list[str]:
    """The command that writes the lines."""
    if one_by_one:
        return [sys.executable, "-m", "bench.log_throughput", "write", str(lines)]
    return ["cat", *[str(lines)] * times]


def _through(writer_command: list[str], folder: str, secrets: tuple[str, ...]) -> dict[str, float]:
    with subprocess.Popen(writer_command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        reader = subprocess.run(
            [sys.executable, "-m", "bench.log_throughput", "read", str(Path(folder, "out")), *secrets],
            stdin=writer.stdout,
            capture_output=True,
            cwd=ROOT,
            check=True,
        )
    if writer.returncode:
        raise RuntimeError("the writer failed")
    told: dict[str, float] = json.loads(reader.stdout)
    return told


def _read(out: str, more_secrets: list[str]) -> None:
    """The part that is measured: from the first byte that can be read to the last that was written."""
    from runyard.engine.commands import Command, CommandReader
    from runyard.engine.matchers import Issue, Matchers
    from runyard.report.masks import Masker

    masker = Masker()
    for secret in (*_secrets(), *more_secrets):
        masker.add_secret(secret)
    matchers = Matchers()
    matchers.add(json.dumps(MATCHERS).encode())
    reader, stream = CommandReader(add_mask=masker.add_value), masker.stream()
    acts: dict[str, Callable[[Command], object]] = {"add-mask": lambda command: masker.add_mask(command.data)}
    fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, PIPE)
    data = os.read(0, CHUNK)
    start = time.perf_counter()
    with open(out, "wb", buffering=0) as file:
        while data:
            shown: list[bytes] = []
            for segment in reader.feed(data):
                if isinstance(segment, bytes):
                    for found in matchers.scan(segment):
                        if isinstance(found, bytes):
                            shown.append(stream.feed(found))
                        elif isinstance(found, Issue):
                            shown.append(stream.feed(f"##[{found.level}]{found.line_text}\n".encode()))
                elif isinstance(segment, Command) and segment.name in acts:
                    acts[segment.name](segment)
            file.write(b"".join(shown))
            data = os.read(0, CHUNK)
        file.write(stream.flush())
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """Of this program: `ru_maxrss` would count what the parent used before it started us."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def _write_one_by_one(path: str) -> None:
    for line in Path(path).read_bytes().splitlines(keepends=True):
        os.write(1, line)


def _secrets() -> list[str]:
    """Twenty secrets with what the encodings change in them: more than 200 patterns."""
    chance = random.Random(20)
    letters = string.ascii_letters + string.digits
    text = ["".join(chance.choices(letters, k=20)) for _ in range(40)]
    return [f"{first}'<{second}>\"&{first[::-1]}" for first, second in zip(text[:20], text[20:], strict=True)]


def _lines(megabytes: int) -> bytes:
    """Lines like those of a build, with a secret, a group, a finding and a C++ name here and there."""
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 11))) for _ in range(2000)]
    secrets = _secrets()
    block: list[str] = []
    size = 0
    number = 0
    while size < 4_000_000:
        number += 1
        line = f"[{number:6}] " + " ".join(chance.choices(words, k=12))
        if number % 2000 == 0:
            line += " " + chance.choice(secrets)
        elif number % 500 == 0:
            line = f"##[group]{line}"
        elif number % 300 == 0:
            line = f"src/a.c:{number}:7: warning: {line}"
        elif number % 20 == 0:
            line += " std::vector<int>::push_back"
        block.append(line + "\n")
        size += len(line) + 1
    data = "".join(block).encode()
    return data * max(1, megabytes * 1_000_000 // len(data))


def _add_masks(folder: str) -> Path:
    chance = random.Random(3)
    letters = string.ascii_letters + string.digits
    path = Path(folder, "masks")
    lines = ["::add-mask::" + "".join(chance.choices(letters, k=32)) + "\n" for _ in range(10_000)]
    path.write_text("".join(lines) + "done\n")
    return path


def main(arguments: list[str]) -> None:
    """`write FILE` and `read FILE SECRET…` are the two ends; without arguments, the whole row."""
    ends: dict[str, Callable[[], Any]] = {
        "write": lambda: _write_one_by_one(arguments[1]),
        "read": lambda: _read(arguments[1], arguments[2:]),
    }
    if arguments:
        ends[arguments[0]]()
        return
    for figure in measure():
        print(f"{figure.name}: {figure.value:.1f} {figure.unit} ({figure.baseline_name} {figure.baseline:.1f})")


if __name__ == "__main__":
    main(sys.argv[1:])
