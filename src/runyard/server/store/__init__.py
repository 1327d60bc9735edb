"""The store: rows, the named statements over them, and the one door to them, `await store.transact(fn, …)`.

Read `rows.py` (what is kept), then `port.py` (what can be said about it). `memory.py` is the double that simulation and
tests use; it passes the suite that every database passes.
"""
