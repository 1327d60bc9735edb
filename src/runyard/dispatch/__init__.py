"""The life of a job: who takes it, or why nobody does. Pure: no clock, no I/O, no randomness.

Read `records.py` first (what is known), then `life.py` (the transition table and `advance`), then `choose.py` (which
job a worker gets) and `explain.py` (why a job waits: the same predicate in explaining mode).
"""
