"""What a job may call at run time: cache, artifacts, OIDC, git; small ASGI applications over ports.

In: HTTP requests of actions, as ASGI; a `Tenant` that says whose job asks; ports for bytes, facts, time and tokens.
Out: answers in the official run-time protocols (runner-v2 15, 16), blobs and rows in one folder, `StepVariables`.
The same applications are mounted by the gateway of a job and by a server. Nothing here starts a loop or listens.
Start with `gateway.py`, which routes; `cache_rules.py` and `artifact_rules.py` decide and touch nothing.
"""

from __future__ import annotations

from runyard.service.tenant import Scope, Tenant
from runyard.service.variables import StepVariables, step_variables

__all__ = ["Scope", "StepVariables", "Tenant", "step_variables"]
