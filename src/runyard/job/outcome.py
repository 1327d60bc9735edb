"""How a step, a job or a run ended, and the word for why."""

from __future__ import annotations

from typing import Literal, TypeAlias

Conclusion: TypeAlias = Literal["success", "failure", "cancelled", "skipped"]
"""The four results GitHub has. What happened stands beside it, as a reason."""

ReasonCode: TypeAlias = Literal[
    "lost",
    "timed_out",
    "out_of_memory",
    "disk_full",
    "too_many_processes",
    "preempted",
    "evicted",
    "runner_shutdown",
    "refused",
    "unavailable",
    "sandbox_lost",
    "job_process_lost",
    "job_process_stuck",
    "lease_lost",
    "cancelled_by_user",
    "fail_fast",
    "needs_failed",
    "condition_false",
    "condition_error",
    "evaluation_error",
    "exit_code",
    "command_error",
    "startup_error",
    "invalid_job",
    "concurrency",
    "internal_error",
]
"""A word for programs; the sentence beside it is for people and may change."""
