"""Every command once: name, help line, module. Help, completion, man page and tests are made from this table.

A command whose module is None is part of the contract and not in this build: it is refused by name, and not listed.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command: its name, what it does in one line, and the module below `runyard.cli` that has its `command`."""

    name: str
    does: str
    module: str | None


TABLE = (
    Entry("run", "Plan and execute the workflows of the current repository for an event.", "run"),
    Entry("check", "Validate workflows, actions and pipelines.", "check"),
    Entry("expr", "Evaluate one GitHub expression, or a batch of them.", "expr"),
    Entry("actions", "Fill a mirror with actions, list, verify and lock them.", "actions"),
    Entry("capabilities", "Audit a job message or workflows; print what this build takes.", "capabilities"),
    Entry("demo", "Run an example repository's workflow, each job in a sandbox.", "demo"),
    Entry("serve", "The control plane.", "serve"),
    Entry("user", "People of a server.", None),
    Entry("db", "The schema and its copies.", "db"),
    Entry("worker", "Dial out to a server and execute its jobs.", "worker"),
    Entry("workers", "Who is connected, and what they hold.", "workers"),
    Entry("project", "Repositories that a server builds.", "project"),
    Entry("trigger", "Start a run by hand.", "trigger"),
    Entry("runs", "What ran and runs.", "runs"),
    Entry("artifacts", "What jobs left.", "artifacts"),
    Entry("secret", "The vault.", "secret"),
    Entry("token", "API and worker tokens.", "token"),
    Entry("runner", "A native runner for GitHub.", None),
    Entry("host", "Keep a machine's runners at the size that demand and resources allow.", None),
    Entry("failover", "Move to hosted runners and back.", None),
    Entry("doctor", "What works on this machine, and whether its sandboxes hold.", "doctor"),
    Entry("config", "Validate and show configuration.", None),
    Entry("schema", "Print the JSON Schema of a shape.", "schema"),
    Entry("sim", "Replay a seeded history.", "sim"),
    Entry("version", "Versions and the build.", "version"),
)

BY_NAME = {entry.name: entry for entry in TABLE}
