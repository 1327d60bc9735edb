"""Executes one admitted job, in its own process."""
