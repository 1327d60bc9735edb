"""What a machine declares to be kept between jobs, as data; `engine.stores` carries it out."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

StoreKind: TypeAlias = Literal["cache", "build", "compiler"]
StoreScope: TypeAlias = Literal["job", "workflow", "repository"]

COMPILERS: Final = {"ccache": "CCACHE_DIR", "sccache": "SCCACHE_DIR"}
"""Compiler caches, and the variable that names the folder of each."""


class DeclaredStore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A store for a job. `path` is relative to the workspace, or begins with `~/`; `extra` makes it another store."""

    name: str
    path: str
    kind: StoreKind = "cache"
    scope: StoreScope = "job"
    tool: str = ""
    extra: str = ""
    max_bytes: int = 5 << 30


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stores of one job, where they are kept, and the repository they belong to ("": not known, so none are)."""

    folder: str = ""
    repository: str = ""
    declared: tuple[DeclaredStore, ...] = ()
