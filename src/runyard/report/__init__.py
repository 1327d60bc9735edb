"""Masks, sinks and formats: what leaves a job process, and how people and programs see it."""
