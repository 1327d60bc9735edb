"""Decides whether a job may run: admit(spec, closure, policy)."""
