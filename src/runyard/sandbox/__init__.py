"""The disposable place where one job's processes run, one module a backend.

In goes a Shape and, per step, a StepCommand; out come bytes and an Exit. `contract.py` is the file to read first.
`open_sandbox` gives a backend by name, `warm` starts the helper process early, `reap` removes what dead owners left.
Everything is loaded when it is first asked for: the start of the command line pays for none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runyard.sandbox.link import listen_inside, warm
    from runyard.sandbox.records import Reaped
    from runyard.sandbox.registry import BACKENDS, open_sandbox, reap

_WHERE = {
    "BACKENDS": "registry",
    "Reaped": "records",
    "listen_inside": "link",
    "open_sandbox": "registry",
    "reap": "registry",
    "warm": "link",
}

__all__ = ["BACKENDS", "Reaped", "listen_inside", "open_sandbox", "reap", "warm"]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"runyard.sandbox.{_WHERE[name]}"), name)
    raise AttributeError(name)
