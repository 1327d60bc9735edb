"""What built-in adapters declare: the references they stand for, the inputs they take, what they give. Data.

A published manifest is made from it, and tests hold it against the adapters themselves.
"""

from __future__ import annotations

from typing import Final

import msgspec

YES_NO: Final = ("true", "false")


class DeclaredInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input. `values` None: any text; `effect` False: it is taken, and nothing follows from it."""

    name: str
    default: str = ""
    values: tuple[str, ...] | None = None
    effect: bool = True


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter. It stands for tags of these majors (`v4`, `v4.1`, `v4.1.2`), for `main` and for whole commits."""

    repository: str
    majors: tuple[int, ...]
    inputs: tuple[DeclaredInput, ...]
    outputs: tuple[str, ...]
    effects: tuple[str, ...]
    paths: tuple[str, ...] = ("",)
    forbidden: tuple[tuple[str, ...], ...] = ()
    """Inputs that exclude each other."""


def _texts(*names: str, effect: bool = True) -> tuple[DeclaredInput, ...]:
    return tuple(DeclaredInput(name=name, effect=effect) for name in names)


CHECKOUT: Final = Declaration(
    repository="actions/checkout",
    majors=(2, 3, 4, 5, 6, 7),
    inputs=(
        *_texts("ref", "path", "token", "filter", "sparse-checkout", "github-server-url"),
        DeclaredInput(name="repository", default="${{ github.repository }}"),
        DeclaredInput(name="fetch-depth", default="1"),
        *(
            DeclaredInput(name=name, values=YES_NO, default="true")
            for name in ("clean", "persist-credentials", "sparse-checkout-cone-mode")
        ),
        *(
            DeclaredInput(name=name, values=YES_NO, default="false")
            for name in ("fetch-tags", "allow-unsafe-pr-checkout")
        ),
        DeclaredInput(name="submodules", values=("true", "false", "recursive"), default="false"),
        DeclaredInput(name="ssh-key", values=("",)),
        DeclaredInput(name="lfs", values=("false",), default="false"),
        *_texts("set-safe-directory", "show-progress", "ssh-user", "ssh-strict", "ssh-known-hosts", effect=False),
    ),
    outputs=("ref", "commit"),
    effects=(
        "the folder holds the commit, with its history as far as it was asked for",
        "a token that was given stays in git's configuration until the end of the job",
    ),
)

_CACHE_INPUTS: Final = (
    *_texts("key", "path", "restore-keys"),
    DeclaredInput(name="enableCrossOsArchive", values=YES_NO, default="false"),
    DeclaredInput(name="upload-chunk-size", effect=False),
)
_ON_MISS: Final = tuple(
    DeclaredInput(name=name, values=YES_NO, default="false") for name in ("fail-on-cache-miss", "lookup-only")
)

CACHE: Final = Declaration(
    repository="actions/cache",
    majors=(3, 4, 5),
    paths=("", "restore"),
    inputs=(*_CACHE_INPUTS, *_ON_MISS, DeclaredInput(name="save-always", values=YES_NO, default="false")),
    outputs=("cache-hit", "cache-primary-key", "cache-matched-key"),
    effects=(
        "files of the matching entry are restored",
        "at the end of the job the paths are saved, if the key is new",
    ),
)

CACHE_SAVE: Final = Declaration(
    repository="actions/cache",
    majors=(3, 4, 5),
    paths=("save",),
    inputs=_CACHE_INPUTS,
    outputs=(),
    effects=("the paths are saved, if the key is new",),
)

UPLOAD_ARTIFACT: Final = Declaration(
    repository="actions/upload-artifact",
    majors=(4, 5, 6, 7),
    inputs=(
        DeclaredInput(name="name", default="artifact"),
        DeclaredInput(name="path"),
        DeclaredInput(name="if-no-files-found", values=("warn", "error", "ignore"), default="warn"),
        DeclaredInput(name="retention-days", default="0"),
        DeclaredInput(name="compression-level", values=tuple("0123456789"), default="6"),
        DeclaredInput(name="overwrite", values=YES_NO, default="false"),
        DeclaredInput(name="include-hidden-files", values=YES_NO, default="false"),
        DeclaredInput(name="archive", values=YES_NO, default="true"),
    ),
    outputs=("artifact-id", "artifact-digest", "artifact-url"),
    effects=("an artifact of the run",),
)

DOWNLOAD_ARTIFACT: Final = Declaration(
    repository="actions/download-artifact",
    majors=(4, 5, 6, 7, 8),
    inputs=(
        *_texts("path", "name", "artifact-ids", "pattern"),
        DeclaredInput(name="merge-multiple", values=YES_NO, default="false"),
    ),
    outputs=("download-path",),
    effects=("files of artifacts of the run are in the workspace",),
    forbidden=(("name", "artifact-ids"),),
)

DECLARATIONS: Final = (CHECKOUT, CACHE, CACHE_SAVE, UPLOAD_ARTIFACT, DOWNLOAD_ARTIFACT)
"""Every adapter whose inputs are declared; `action.native` says which references they stand for."""
