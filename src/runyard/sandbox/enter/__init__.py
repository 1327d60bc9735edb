"""The supervisor: a tiny process that opens a sandbox, enters it and starts its commands.

In: frames on a socket from the job process (`wire.py`). Out: answers, and descriptors passed along. It runs as
`python -I -S` and imports nothing but the standard library, all of it before it enters: afterwards an import would load
a file of the image. Read `zygote.py` first, then `opening.py`, `supervisor.py` and `stepping.py`.
"""
