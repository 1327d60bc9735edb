"""Runyard: self-hosted CI that nobody has to babysit."""

__version__ = "0.1.0"
