"""Decides whether a job may run here, and whether what turned up later may run in it.

In: a job, what its steps use as far as it is known (`runyard.action.closure`), the policy in force and what the
sandbox can do. Out: an AdmittedJob, or every Refusal at once; nothing here reads a file or asks a server. The policy in
force is the meet of the server's and this machine's, neither widens the other. Read `admit.py` first, then `policy.py`.
"""

from runyard.admission.admit import AdmittedJob, Refusal, Rule, admit, judge_image, judge_use
from runyard.admission.policy import OWN_MACHINE, meet, outranks, read_policy

__all__ = [
    "OWN_MACHINE",
    "AdmittedJob",
    "Refusal",
    "Rule",
    "admit",
    "judge_image",
    "judge_use",
    "meet",
    "outranks",
    "read_policy",
]
