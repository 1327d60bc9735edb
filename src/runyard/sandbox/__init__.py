"""The disposable place where one job's processes run, one module a backend.

In goes a Shape and, per step, a StepCommand; out come bytes and an Exit. `contract.py` is the file to read first.
"""
