"""YAML as GitHub reads it, with the place of every node.

PyYAML's C scanner delivers events; what a plain scalar means is decided here by the YAML 1.2 core schema, because a
YAML 1.1 library reads `on`, `012` and `12:30` as something nobody wrote (workflow-language 1). Anchors are followed,
merge keys are ordinary keys. Whatever the bytes are, `read_yaml` ends quickly and raises nothing but `YamlError`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from runyard.job.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MANIFEST_LIMITS",
    "WORKFLOW_LIMITS",
    "Mapping",
    "Node",
    "Scalar",
    "Sequence",
    "YamlError",
    "YamlLimits",
    "decode_utf8",
    "duplicate_keys",
    "read_yaml",
]


class YamlError(InputError):
    """The text is no YAML document that GitHub would read; names file, line and column."""


class YamlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one document: characters, nested collections, and nodes once aliases are followed.

    Workflow files use the defaults (workflow-language 16); action manifests refuse anchors and nest up to 100.
    """

    characters: int = 1_048_576
    depth: int = 50
    alias_nodes: int = 50_000
    anchors: bool = True


WORKFLOW_LIMITS: Final = YamlLimits()
MANIFEST_LIMITS: Final = YamlLimits(depth=100, anchors=False)


class Scalar:
    """One scalar. `value` is None, a boolean, a float or text; `text` is what was written, without quotes."""

    __slots__ = ("column", "line", "plain", "text", "value")

    def __init__(self, value: bool | float | str | None, text: str, line: int, column: int, plain: bool) -> None:
        self.value = value
        self.text = text
        self.line = line
        self.column = column
        self.plain = plain

    def __repr__(self) -> str:
        return f"Scalar({self.value!r} at {self.line}:{self.column})"


class Sequence:
    """Nodes in order; the same node may stand in several places, by an alias."""

    __slots__ = ("column", "items", "line")

    def __init__(self, line: int, column: int) -> None:
        self.items: list[Node] = []
        self.line = line
        self.column = column

    def __repr__(self) -> str:
        return f"Sequence({len(self.items)} at {self.line}:{self.column})"


class Mapping:
    """Keys and values as written, duplicates included (see `duplicate_keys`). Keys are always scalars."""

    __slots__ = ("column", "line", "pairs")

    def __init__(self, line: int, column: int) -> None:
        self.pairs: list[tuple[Scalar, Node]] = []
        self.line = line
        self.column = column

    def get(self, key: str) -> Node | None:
        """The value of the first key spelled exactly so."""
        for name, value in self.pairs:
            if name.text == key:
                return value
        return None

    def __repr__(self) -> str:
        return f"Mapping({len(self.pairs)} at {self.line}:{self.column})"


Node: TypeAlias = Scalar | Sequence | Mapping

_TAG = "tag:yaml.org,2002:"
_UNREADABLE_ASCII = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_CONSTANTS: Final[dict[str, bool | float | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    **{sign + name: math.inf for sign in ("", "+") for name in (".inf", ".Inf", ".INF")},
    **{"-" + name: -math.inf for name in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_NUMBER_START = frozenset("+-.0123456789")


def decode_utf8(data: bytes, path: str | None = None) -> str:
    """The text of a file; a byte-order mark is dropped. `YamlError` says where the first bad byte stands."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode("utf-8", "replace"))
        kind = "a binary file" if b"\x00" in data[:8192] else "not UTF-8"
        raise YamlError(
            f"this is {kind}: byte 0x{data[error.start]:02x} has no meaning here",
            path=path,
            line=line,
            column=column,
            code="yaml.encoding",
        ) from error
    return text.removeprefix("\ufeff")


def read_yaml(source: str | bytes, *, path: str | None = None, limits: YamlLimits = WORKFLOW_LIMITS) -> Node | None:
    """The one document of `source`, or None where it holds nothing.

    Raises `YamlError` for what isn't UTF-8, isn't YAML, holds a second document, a complex key, an unknown tag, a
    recursive or unknown alias, or passes one of the limits. Duplicate keys are left in; see `duplicate_keys`.
    """
    if isinstance(source, bytes):
        # A character takes at most four bytes, so this much is too long whatever it says.
        if len(source) > limits.characters * 4:
            raise _too_long(path, limits)
        source = decode_utf8(source, path)
    else:
        source = source.removeprefix("\ufeff")
    if len(source) > limits.characters:
        raise _too_long(path, limits)
    bad = (_UNREADABLE_ASCII if source.isascii() else _unreadable()).search(source)
    if bad is not None:
        line, column = _place(source[: bad.start()])
        what = "this is a binary file" if bad.group() == "\0" else "a character that YAML does not take"
        raise YamlError(f"{what}: U+{ord(bad.group()):04X}", path=path, line=line, column=column, code="yaml.character")
    return _Builder(path, limits).build(source)


@lru_cache(maxsize=1)
def _unreadable() -> re.Pattern[str]:
    """What YAML doesn't take anywhere; made when the first file needs it, as that takes milliseconds."""
    return re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def duplicate_keys(mapping: Mapping) -> Iterator[Scalar]:
    """The keys that an earlier key of the same mapping equals, letters' case ignored (workflow-language 1.1)."""
    seen: set[str] = set()
    for key, _ in mapping.pairs:
        folded = key.text.upper()
        if folded in seen:
            yield key
        seen.add(folded)


def _too_long(path: str | None, limits: YamlLimits) -> YamlError:
    return YamlError(
        f"the maximum file size of {limits.characters:,} characters is exceeded", path=path, code="yaml.size"
    )


def _place(before: str) -> tuple[int, int]:
    """Line and column, from 1, of what follows `before`."""
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return len(lines), len(lines[-1]) + 1


class _Builder:
    """Events to nodes, without recursion, so that depth is ours to limit."""

    def __init__(self, path: str | None, limits: YamlLimits) -> None:
        self.path = path
        self.limits = limits
        self.anchors: dict[str, Node] = {}
        self.open: list[Sequence | Mapping] = []
        self.keys: list[Scalar | None] = []
        self.root: Node | None = None
        self.measures: dict[int, tuple[int, int]] = {}
        self.replayed = 0

    def error(self, message: str, event: Any, code: str = "yaml.syntax") -> YamlError:
        mark = event.start_mark
        return YamlError(message, path=self.path, line=mark.line + 1, column=mark.column + 1, code=code)

    def build(self, source: str) -> Node | None:
        import yaml

        parser = yaml.CLoader(source)
        try:
            self.feed(parser)
        except yaml.MarkedYAMLError as error:
            raise self.syntax(error) from error
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            raise YamlError(f"this is not YAML: {error}", path=self.path, code="yaml.syntax") from error
        finally:
            parser.dispose()
        return self.root

    def syntax(self, error: Any) -> YamlError:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        place = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        return YamlError(f"YAML: {message}", path=self.path, line=place[0], column=place[1], code="yaml.syntax")

    def feed(self, parser: Any) -> None:
        import yaml

        next_event = parser.get_event
        scalar, mapping, sequence = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent
        ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        add = self.add
        documents = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is scalar:
                add(self.scalar(event), event)
            elif kind is mapping:
                self.start(Mapping(event.start_mark.line + 1, event.start_mark.column + 1), event, "map")
            elif kind is sequence:
                self.start(Sequence(event.start_mark.line + 1, event.start_mark.column + 1), event, "seq")
            elif kind in ends:
                self.keys.pop()
                add(self.open.pop(), event)
            elif kind is yaml.AliasEvent:
                self.alias(event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self.error("a second document; a file holds one", event, "yaml.documents")
            elif kind is yaml.StreamEndEvent or event is None:
                return

    def scalar(self, event: Any) -> Scalar:
        text: str = event.value
        tag: str | None = event.tag
        mark = event.start_mark
        value: bool | float | str | None = text
        plain = False
        if tag is not None:
            plain = event.style is None or event.style == ""
            if tag != "!":
                value = self.tagged(text, tag, plain, event)
        elif event.implicit[0]:
            plain = True
            if text in _CONSTANTS:
                value = _CONSTANTS[text]
            elif text[0] in _NUMBER_START:
                value = _number_value(text)
                if type(value) is _OutOfRange:
                    raise self.error(f"'{text}' doesn't fit into 32 bits", event, "yaml.scalar")
        node = Scalar(value, text, mark.line + 1, mark.column + 1, plain)
        if event.anchor is not None:
            self.anchor(event.anchor, node, event)
        return node

    def tagged(self, text: str, tag: str, plain: bool, event: Any) -> bool | float | str | None:
        """The value an explicit tag asks for; only the five scalar tags of the core schema exist."""
        name = tag.removeprefix(_TAG)
        if name == "str" and tag.startswith(_TAG):
            return text
        if name not in {"bool", "float", "int", "null"} or not tag.startswith(_TAG):
            raise self.error(f"unexpected tag '{tag}'", event, "yaml.tag")
        value = _plain_value(text) if plain else text
        fits = {
            "bool": isinstance(value, bool),
            "null": value is None,
            "float": isinstance(value, float),
            "int": isinstance(value, float) and math.isfinite(value) and value == int(value),
        }
        if not fits[name] or isinstance(value, _OutOfRange):
            raise self.error(f"the value '{text}' is invalid for the type '{tag}'", event, "yaml.tag")
        return value

    def anchor(self, name: str, node: Node, event: Any) -> None:
        if not self.limits.anchors:
            raise self.error(f"anchors are not supported here: '&{name}'", event, "yaml.anchor")
        self.anchors[name] = node

    def alias(self, event: Any) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            raise self.error(f"unknown anchor: nothing before this is named '&{event.anchor}'", event, "yaml.alias")
        if any(node is opened for opened in self.open):
            raise self.error(f"'*{event.anchor}' stands inside the node it names", event, "yaml.alias")
        weight, height = self.measure(node)
        if len(self.open) + height > self.limits.depth:
            raise self.too_deep(event)
        self.replayed += weight
        if self.replayed > self.limits.alias_nodes:
            raise self.error(f"aliases grow this document over {self.limits.alias_nodes:,} nodes", event, "yaml.alias")
        self.add(node, event)

    def measure(self, node: Node) -> tuple[int, int]:
        """Nodes that replaying `node` costs, and its nesting; long text counts more, or it could be repeated freely."""
        if isinstance(node, Scalar):
            return 1 + len(node.text) // 256, 0
        known = self.measures.get(id(node))
        if known is None:
            below = node.items if isinstance(node, Sequence) else [part for pair in node.pairs for part in pair]
            measures = [self.measure(each) for each in below]
            known = (1 + sum(weight for weight, _ in measures), 1 + max((height for _, height in measures), default=0))
            self.measures[id(node)] = known
        return known

    def too_deep(self, event: Any) -> YamlError:
        return self.error(f"nested deeper than {self.limits.depth} levels", event, "yaml.depth")

    def start(self, node: Sequence | Mapping, event: Any, kind: str) -> None:
        if len(self.open) >= self.limits.depth:
            raise self.too_deep(event)
        if event.tag is not None and event.tag not in {"!", _TAG + kind}:
            raise self.error(f"unexpected tag '{event.tag}'", event, "yaml.tag")
        if self.open and isinstance(self.open[-1], Mapping) and self.keys[-1] is None:
            raise self.error("a mapping's key must be a scalar", event, "yaml.key")
        if event.anchor is not None:
            self.anchor(event.anchor, node, event)
        self.open.append(node)
        self.keys.append(None)

    def add(self, node: Node, event: Any) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        if type(parent) is Sequence:
            parent.items.append(node)
            return
        assert type(parent) is Mapping
        key = self.keys[-1]
        if key is not None:
            parent.pairs.append((key, node))
            self.keys[-1] = None
        elif type(node) is Scalar:
            self.keys[-1] = node
        else:
            raise self.error("a mapping's key must be a scalar", event, "yaml.key")


class _OutOfRange(float):
    """A hexadecimal or octal number that GitHub's reader can't hold."""


def _plain_value(text: str) -> bool | float | str | None:
    """What an unquoted scalar means in the YAML 1.2 core schema (workflow-language 1.2)."""
    return _CONSTANTS[text] if text in _CONSTANTS else _number_value(text)


def _number_value(text: str) -> float | str:
    """A number, or the text where it is none."""
    if _FLOAT.match(text) is not None:
        return float(text)
    if _HEXADECIMAL.match(text) is not None or _OCTAL.match(text) is not None:
        return _signed(int(text, 0)) if len(text) < 40 else _OutOfRange(0)
    return text


def _signed(number: int) -> float:
    """A 32-bit pattern as a signed number, or the mark of one that doesn't fit."""
    if number >= 1 << 32:
        return _OutOfRange(0)
    return float(number - (1 << 32) if number >= 1 << 31 else number)
