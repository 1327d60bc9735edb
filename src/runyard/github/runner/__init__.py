"""The runner protocol, V2 (runner-v2): the job message and what becomes of it.

In: the body that `acquirejob` answers, or a Claim to hand out. Out: a Claim, or that body. Read `job_message.py` for
the shape, `reading.py` and `writing.py` for the two ways, `normal_form.py` for what a round trip keeps.
"""

from runyard.github.runner.job_message import JobMessage, UnreadableMessageError, encode_message, read_message
from runyard.github.runner.normal_form import normal_form
from runyard.github.runner.reading import UnsupportedMessageError, claim_of, unsupported
from runyard.github.runner.writing import message_of

__all__ = [
    "JobMessage",
    "UnreadableMessageError",
    "UnsupportedMessageError",
    "claim_of",
    "encode_message",
    "message_of",
    "normal_form",
    "read_message",
    "unsupported",
]
