"""What the rows of the whole job share: a tree of small files, and what the events of a run say about time."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from typing import Any

FILE_BYTES = 25_000
MAKE_TREE = """\
import os, random, sys
where, files, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(5)
words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(2, 12))) for _ in range(3000)]
text = " ".join(chance.choices(words, k=(1 << 20) // 7)).encode()
noise = chance.randbytes(1 << 20)
for number in range(files):
    folder = f"{where}/{number // 1000}/{number // 50 % 20}"
    if number % 50 == 0:
        os.makedirs(folder, exist_ok=True)
    half = size // 4
    at, there = chance.randrange(len(text) - size), chance.randrange(len(noise) - size)
    with open(f"{folder}/file-{number}.txt", "wb") as file:
        file.write(b"%d\\n" % number + text[at : at + size - half] + noise[there : there + half])
"""
"""`python3 make.py WHERE FILES BYTES`: text that compresses, and a quarter that doesn't."""

TIMED = """\
timed() {
  name=$1; shift
  a=${EPOCHREALTIME/./}; "$@"; b=${EPOCHREALTIME/./}; echo "plain $name $((b - a))"
}
"""
"""For bash: `timed NAME COMMAND…` says what the command took."""


def plain_seconds(output: bytes) -> dict[str, list[float]]:
    """What `timed` said, in seconds, by name."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in _events(output):
        if event["type"] == "log":
            for text in str(event.get("text", "")).splitlines():
                words = text.split()
                if len(words) == 3 and words[0] == "plain" and words[2].isdigit():
                    found[words[1]].append(int(words[2]) / 1e6)
    return found


def step_seconds(output: bytes) -> dict[str, list[float]]:
    """From the start of each step to its end, in seconds, by its name."""
    began: dict[int, float] = {}
    found: dict[str, list[float]] = defaultdict(list)
    for event in _events(output):
        if event["type"] == "step_started":
            began[event["step"]["number"]] = _seconds(event["time"])
        elif event["type"] == "step_finished":
            if event["conclusion"] != "success":
                raise RuntimeError(f"the step {event['step']['name']} ended with {event['conclusion']}")
            found[event["step"]["name"]].append(_seconds(event["time"]) - began[event["step"]["number"]])
    return found


def step_starts(output: bytes) -> list[float]:
    """When each step began, in seconds since the epoch."""
    return [_seconds(event["time"]) for event in _events(output) if event["type"] == "step_started"]


def _events(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def _seconds(time: str) -> float:
    whole, _, rest = time.removesuffix("Z").partition(".")
    moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC)
    return moment.timestamp() + float(f"0.{rest or 0}")
