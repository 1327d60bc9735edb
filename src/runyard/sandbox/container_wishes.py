"""What a workflow asks of a container, after it was judged by `container_options`: nothing in here reaches the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ContainerWishes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes are bytes, times nanoseconds.

    `volumes` are (name or "", target, read-only), the name being one of the job's own; `ports` are (outside or 0,
    inside, protocol) and are published on the job's loopback. `aliases` are names on the job's network. `health` has
    the engine's keys; `pull` is `missing`, `always` or `never`.
    """

    hostname: str | None = None
    user: str | None = None
    workdir: str | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    extra_hosts: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str, bool], ...] = ()
    tmpfs: Mapping[str, str] = {}
    ports: tuple[tuple[int, int, str], ...] = ()
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    shm_size: int | None = None
    init: bool = False
    read_only: bool = False
    stop_signal: str | None = None
    ulimits: tuple[tuple[str, int, int], ...] = ()
    health: Mapping[str, Any] | None = None
    platform: str = ""
    pull: str = "missing"


class RegistryLogin(msgspec.Struct, frozen=True):
    """Who pulls. Travels in a header of the one call that needs it; its text never shows the password."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryLogin(username={self.username!r})"
