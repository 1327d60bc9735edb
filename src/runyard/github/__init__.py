"""GitHub's wire formats: types, flows, codec. One package for each page of the protocol.

In: bytes from a socket. Out: hub types of `job`, and back. Only these packages know what a message looks like.
Read `runner/job_message.py` first.
"""
