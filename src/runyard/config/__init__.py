"""Configuration files of ours: TOML with snake_case keys, read strictly.

Every problem of a file is found in one reading, each with line, column, key and the nearest valid name. What a file
may hold is a msgspec struct; `Duration` and `Size` carry a unit. Flags come first, then RUNYARD_* variables, then the
file: `layered` says the result and where each value comes from.

    document = read(data, "server.toml")                  # raises ConfigError for what is no TOML
    settings = decode(document, ServerFile)               # raises ConfigError with every problem
    settings, origins = layered(ServerFile, flags={…}, environ=os.environ, document=document)
"""

from runyard.config.layers import Origin, layered
from runyard.config.reading import ConfigError, Problem, decode
from runyard.config.toml import Document, read
from runyard.config.units import Duration, Size, duration_text, parse_duration, parse_size, size_text

__all__ = [
    "ConfigError",
    "Document",
    "Duration",
    "Origin",
    "Problem",
    "Size",
    "decode",
    "duration_text",
    "layered",
    "parse_duration",
    "parse_size",
    "read",
    "size_text",
]
