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


def _texts(*names: str, effect: bool = True) -> tuple[DeclaredInput, ...]:
    return tuple(DeclaredInput(name=name, effect=effect) for name in names)


CHECKOUT: Final = Declaration(
    repository="actions/checkout",
    majors=(2, 3, 4, 5, 6, 7),
    inputs=(
        *_texts("ref", "path"),
        DeclaredInput(name="repository", values=("${{ github.repository }}",), default="${{ github.repository }}"),
        DeclaredInput(name="clean", values=YES_NO, default="true"),
        DeclaredInput(name="fetch-depth", default="1"),
        DeclaredInput(name="fetch-tags", values=YES_NO, default="false"),
        *(DeclaredInput(name=name, values=("",)) for name in ("ssh-key", "filter", "sparse-checkout")),
        *(DeclaredInput(name=name, values=("false",), default="false") for name in ("lfs", "submodules")),
        *_texts(
            *("token", "persist-credentials", "set-safe-directory", "show-progress", "github-server-url"),
            *("ssh-user", "ssh-strict", "ssh-known-hosts", "sparse-checkout-cone-mode"),
            effect=False,
        ),
    ),
    outputs=("ref", "commit"),
    effects=("the workspace holds the run's commit",),
)

DECLARATIONS: Final = (CHECKOUT,)
"""Every adapter whose inputs are declared; `action.native` says which references they stand for."""
