"""What `runyard run` is given by hand: pairs on the command line, and files of secrets, variables and environments.

Every problem names the file, line and column. The value of a secret never enters a message.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Final

from runyard.job import InputError, Json
from runyard.source import EnvironmentValues

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE_LIMIT: Final = 16 << 20
SECRET_LIMIT: Final = 48 * 1024
"""Bytes of one secret or variable (workflow-language 14)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def read_input_file(path: str) -> bytes:
    """A file that somebody named, or standard input for `-`. Raises InputError; at most 16 MiB."""
    if path == "-":
        data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
    else:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                    raise InputError("it is a folder", path=path, code="input.unreadable")
                os.set_blocking(file.fileno(), True)
                data = file.read(SIZE_LIMIT + 1)
        except OSError as error:
            raise InputError(f"it can't be read: {error.strerror}", path=path, code="input.unreadable") from error
    if len(data) > SIZE_LIMIT:
        raise InputError("it is larger than 16 MiB", path=path, code="input.too_large")
    return data


def read_event_file(path: str) -> dict[str, Json]:
    """The payload in a JSON file. Raises InputError with the place for what is no JSON object."""
    value = _json(_text(read_input_file(path), path), path)
    if not isinstance(value, dict):
        raise InputError("a payload must be a JSON object", path=path, line=1, column=1, code="input.payload")
    return value


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("it is not UTF-8 text", path=path, line=line, code="input.not_utf8") from error


def _json(text: str, path: str) -> Json:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"no JSON: {error.msg}", path=path, line=error.lineno, column=error.colno, code="input.json"
        ) from error
    except RecursionError as error:
        raise InputError("it is nested too deeply", path=path, code="input.json") from error


def read_pairs(path: str, what: str) -> dict[str, str]:
    """Names and texts from a file of `.env` lines, JSON or YAML. Raises InputError with the place.

    The form follows the name's ending, else the first character: `{` is JSON.
    """
    text = _text(read_input_file(path), path)
    suffix = path.rpartition(".")[2].lower()
    if suffix == "json" or (suffix not in ("env", "yml", "yaml") and text.lstrip().startswith("{")):
        return _flat(_json(text, path), path, what)
    if suffix in ("yml", "yaml"):
        return _flat(read_yaml_value(text, path), path, what)
    return read_env_lines(text, path)


def read_yaml_value(text: str, path: str) -> Json:
    """One YAML document as plain data. Raises InputError with the place."""
    from runyard.expression.positioned_yaml import Mapping, Node, Scalar, read_yaml

    def plain(node: Node) -> Json:
        if isinstance(node, Scalar):
            return node.value
        if isinstance(node, Mapping):
            return {key.text: plain(value) for key, value in node.pairs}
        return [plain(item) for item in node.items]

    root = read_yaml(text, path=path)
    return None if root is None else plain(root)


def _flat(value: Json, path: str, what: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"a file of {what}s must be a mapping of names to text", path=path, code="input.pairs")
    return {name: _scalar(name, item, path) for name, item in value.items()}


def _scalar(name: str, value: Json, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        from runyard.expression import number_text

        return number_text(value)
    if not isinstance(value, str):
        raise InputError(f"{name} must be text", path=path, key=name, code="input.pairs")
    return value


def read_env_lines(text: str, path: str) -> dict[str, str]:
    """`NAME=value` lines: comments, `export`, single quotes as they are, double quotes with escapes and line ends."""
    pairs: dict[str, str] = {}
    at, line = 0, 1
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        written = text[at:end].strip()
        if not written or written.startswith("#"):
            at, line = end + 1, line + 1
            continue
        name, equals, _ = written.partition("=")
        name = name.removeprefix("export ").strip()
        if not equals or not _NAME.match(name):
            raise InputError("a line must be NAME=value", path=path, line=line, column=1, code="input.env")
        start = text.index("=", at) + 1
        while start < end and text[start] in " \t":
            start += 1
        if start < end and text[start] in "'\"":
            value, at = _quoted(text, start, path, line)
        else:
            value, at = re.sub(r"\s#.*\Z", "", text[start:end]).strip(), end
        line += text.count("\n", end, at) + 1 if at > end else 1
        pairs[name] = value
        after = text.find("\n", at)
        at = len(text) if after < 0 else after + 1
    return pairs


def _quoted(text: str, start: int, path: str, line: int) -> tuple[str, int]:
    quote = text[start]
    parts: list[str] = []
    at = start + 1
    while at < len(text):
        char = text[at]
        if char == quote:
            return "".join(parts), at + 1
        if char == "\\" and quote == '"' and at + 1 < len(text):
            following = text[at + 1]
            parts.append(_ESCAPES.get(following, char + following))
            at += 2
            continue
        parts.append(char)
        at += 1
    raise InputError(f"the {quote} is never closed", path=path, line=line, column=1, code="input.env")


def parse_pairs(given: Iterable[str], flag: str) -> dict[str, str]:
    """`K=V` arguments. Raises InputError for one without `=`."""
    pairs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputError(f"{flag} takes NAME=VALUE, not {each!r}", key=flag, code="input.pair")
        pairs[name] = value
    return pairs


def parse_matrix(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`K:V` arguments of --matrix."""
    pairs = []
    for each in given:
        name, colon, value = each.partition(":")
        if not colon or not name:
            raise InputError(f"--matrix takes KEY:VALUE, not {each!r}", key="--matrix", code="input.pair")
        pairs.append((name, value))
    return tuple(pairs)


def secrets_from_environment(names: Iterable[str]) -> dict[str, str]:
    """The values of the variables named by --secret. A value on the command line is refused: others could read it."""
    secrets: dict[str, str] = {}
    for name in names:
        if "=" in name:
            shown = name.partition("=")[0]
            raise InputError(
                f"--secret takes a name; the value of {shown} comes from the environment variable {shown}",
                key="--secret",
                code="input.secret",
                remedy="A value in an argument can be read by every process; use --secret-file, or export it.",
            )
        value = os.environ.get(name)
        if value is None:
            raise InputError(
                f"--secret {name}: there is no environment variable {name}", key="--secret", code="input.secret"
            )
        secrets[name] = value
    return secrets


def check_names(pairs: dict[str, str], what: str) -> dict[str, str]:
    """Names as GitHub takes them (workflow-language 14), by upper-case name for secrets. Raises InputError."""
    checked: dict[str, str] = {}
    for name, value in pairs.items():
        if not _NAME.match(name):
            raise InputError(f"{name!r} can't be the name of a {what}", code="input.name")
        if name.upper().startswith("GITHUB_") and name.upper() != "GITHUB_TOKEN":
            raise InputError(f"the name of a {what} must not begin with GITHUB_: {name}", code="input.name")
        if len(value.encode(errors="surrogatepass")) > SECRET_LIMIT:
            raise InputError(f"the {what} {name} is larger than 48 KB", code="input.too_large")
        checked[name.upper() if what == "secret" else name] = value
    return checked


def read_environments(path: str) -> dict[str, EnvironmentValues]:
    """Environments from JSON or YAML: name → `{"secrets": {…}, "vars": {…}}`. Raises InputError."""
    text = _text(read_input_file(path), path)
    value = read_yaml_value(text, path) if path.lower().endswith((".yml", ".yaml")) else _json(text, path)
    if not isinstance(value, dict):
        raise InputError("environments must be a mapping by name", path=path, code="input.environments")
    environments = {}
    for name, parts in value.items():
        if not isinstance(parts, dict):
            raise InputError(f"environment {name} must be a mapping", path=path, key=name, code="input.environments")
        unknown = sorted(set(parts) - {"secrets", "vars"})
        if unknown:
            raise InputError(
                f"environment {name} has secrets and vars, not {unknown[0]!r}",
                path=path,
                key=f"{name}.{unknown[0]}",
                code="input.environments",
            )
        secrets = check_names(_flat(parts.get("secrets"), path, "secret"), "secret")
        environments[name] = EnvironmentValues(secrets, check_names(_flat(parts.get("vars"), path, "var"), "variable"))
    return environments
