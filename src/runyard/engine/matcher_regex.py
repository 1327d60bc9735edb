"""The regular expressions of problem matchers, as .NET reads them with its ECMAScript option.

They are translated for the `regex` module, which can be stopped, and searched for what a line must hold to match at
all. Rule kept: what would mean something else here is translated, and what can't be is refused by name; nothing matches
by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Clause = frozenset[str]
"""Texts of which a matching line holds at least one."""

_QUANTIFIED = "*+?"
_CONTROLS = {"a": "\\x07", "e": "\\x1b", "f": "\\f", "n": "\\n", "r": "\\r", "t": "\\t", "v": "\\x0b"}
_PLAIN_CONTROLS = {"a": "\x07", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SPECIAL = frozenset(".^$*+?{}[]()|\\ #&~-")


class UnsupportedPatternError(ValueError):
    """A pattern that can't be taken; the text says what in it."""


class Translated(NamedTuple):
    """A pattern for the `regex` module, and what a line must hold to match: one text of each clause."""

    text: str
    clauses: tuple[Clause, ...]


class Compiled(NamedTuple):
    """A compiled pattern; `order[n]` is its group for .NET's group number n (unnamed groups come first there).

    A line that matches holds a text of each of `clauses`; `key` is the one that says most, empty where none says
    enough.
    """

    search: Any
    order: tuple[int, ...]
    clauses: tuple[tuple[bytes, ...], ...]
    key: tuple[bytes, ...]


def compile_pattern(pattern: str) -> Compiled:
    """Compile one pattern of a matcher. Raises UnsupportedPatternError."""
    import regex  # type: ignore[import-untyped]  # it has no types of its own

    translated = translate(pattern)
    try:
        compiled = regex.compile(translated.text, regex.ASCII | regex.VERSION0)
    except (regex.error, OverflowError, RecursionError) as error:
        raise UnsupportedPatternError(f"the regular expression can't be read: {error}") from error
    named = set(compiled.groupindex.values())
    unnamed = [number for number in range(1, compiled.groups + 1) if number not in named]
    key = _best(translated.clauses)
    return Compiled(
        compiled.search,
        (0, *unnamed, *sorted(named)),
        tuple(_as_bytes(clause) for clause in sorted(translated.clauses, key=len)),
        _as_bytes(key) if key is not None else (),
    )


def _as_bytes(clause: Clause) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in sorted(clause))


def translate(pattern: str) -> Translated:
    """The pattern in the words of the `regex` module. Raises UnsupportedPatternError."""
    reader = _Reader(pattern)
    text, clauses = reader.alternatives()
    if reader.at < len(pattern):
        raise UnsupportedPatternError("the regular expression has a closing parenthesis too many")
    return Translated(text, () if reader.ignores_case else tuple(dict.fromkeys(clauses)))


def _best(clauses: Iterable[Clause]) -> Clause | None:
    """The clause whose shortest text is longest; one letter alone says too little."""
    best = max(clauses, key=lambda clause: (min(map(len, clause)), -len(clause)), default=None)
    return best if best is not None and min(map(len, best)) > 1 else None


class _Reader:
    """Walks a pattern once; every method returns translated text, and the clauses that the piece asks for."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignores_case = False
        self._depth = 0

    def alternatives(self) -> tuple[str, list[Clause]]:
        self._depth += 1
        if self._depth > 100:
            raise UnsupportedPatternError("the regular expression is nested more than 100 deep")
        texts, all_clauses = [], []
        while True:
            text, clauses = self._sequence()
            texts.append(text)
            all_clauses.append(clauses)
            if not self._take("|"):
                break
        self._depth -= 1
        if len(texts) == 1:
            return texts[0], all_clauses[0]
        united: set[str] = set()
        for clauses in all_clauses:
            best = _best(clauses)
            if best is None:
                return "|".join(texts), []
            united.update(best)
        return "|".join(texts), [frozenset(united)]

    def _sequence(self) -> tuple[str, list[Clause]]:
        out: list[str] = []
        clauses: list[Clause] = []
        run = ""
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            text, literal, inner = self._item()
            quantifier, least = self._quantifier()
            out.append(text + quantifier)
            if literal and least and not quantifier:
                run += literal
                continue
            if literal and least:
                run += literal
            if run:
                clauses.append(frozenset((run,)))
                run = ""
            if least:
                clauses.extend(inner)
        if run:
            clauses.append(frozenset((run,)))
        return "".join(out), clauses

    def _item(self) -> tuple[str, str, list[Clause]]:
        """One piece before its quantifier: text, the character it stands for (or ""), and its clauses."""
        char = self.pattern[self.at]
        self.at += 1
        if char == "\\":
            text, literal = self._escape(in_class=False)
            return text, literal, []
        if char == "[":
            return self._class(), "", []
        if char == "(":
            return self._group()
        if char in "^$.":
            return char, "", []
        if char in _QUANTIFIED:
            raise UnsupportedPatternError(f"the quantifier '{char}' has nothing before it")
        # A brace that is no quantifier is a brace; here it could mean a fuzzy match.
        return ("\\" + char if char in _SPECIAL else char), char, []

    def _quantifier(self) -> tuple[str, int]:
        """The quantifier at this place as text, and the least number of times."""
        text, least = "", 1
        rest = self.pattern[self.at : self.at + 1]
        if rest and rest in _QUANTIFIED:
            text, least = rest, 1 if rest == "+" else 0
            self.at += 1
        elif rest == "{" and (counted := self._counted()):
            text, least = counted
        if text and self._take("?"):
            text += "?"
        following = self.pattern[self.at : self.at + 1]
        if text and following and following in _QUANTIFIED:
            raise UnsupportedPatternError(f"'{text}{following}' repeats a quantifier (possessive ones are not known)")
        return text, least

    def _counted(self) -> tuple[str, int] | None:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        if end < 0 or not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        if len(low) > 6 or len(high) > 6:
            raise UnsupportedPatternError("a counted quantifier is too large")
        self.at = end + 1
        return f"{{{low}{comma}{high}}}", int(low)

    def _escape(self, *, in_class: bool) -> tuple[str, str]:
        """What follows a backslash: text, and the character it stands for where it is one."""
        if self.at >= len(self.pattern):
            raise UnsupportedPatternError("the regular expression ends with a backslash")
        char = self.pattern[self.at]
        self.at += 1
        if char in "dDwWsS" or (char in "bBAG" and not in_class):
            return "\\" + char, ""
        if char == "b":
            return "\\x08", "\b"
        if char in "zZ" and not in_class:
            return "\\Z", ""
        if char in _CONTROLS:
            return _CONTROLS[char], _PLAIN_CONTROLS[char]
        if char in "xu":
            return self._hexadecimal(2 if char == "x" else 4)
        if char == "c":
            letter = self.pattern[self.at : self.at + 1].upper()
            self.at += 1
            if not "@" <= letter <= "_":
                raise UnsupportedPatternError("'\\c' needs a letter")
            return f"\\x{ord(letter) - 64:02x}", ""
        if char in "pP":
            return self._category(char), ""
        if char == "k" and not in_class:
            return self._named_reference(), ""
        if char in "0123456789":
            return "\\" + char, ""
        # With the ECMAScript option an escape that means nothing stands for its character.
        return ("\\" + char if char in _SPECIAL or not char.isalnum() else char), char

    def _hexadecimal(self, size: int) -> tuple[str, str]:
        digits = self.pattern[self.at : self.at + size]
        if len(digits) < size or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise UnsupportedPatternError(f"an escape needs {size} hexadecimal digits")
        self.at += size
        return f"\\u{int(digits, 16):04x}", chr(int(digits, 16)) if not 0xD800 <= int(digits, 16) < 0xE000 else ""

    def _category(self, char: str) -> str:
        end = self.pattern.find("}", self.at)
        if self.pattern[self.at : self.at + 1] != "{" or end < 0:
            raise UnsupportedPatternError(f"'\\{char}' needs the name of a category in braces")
        name = self.pattern[self.at + 1 : end]
        if name.startswith("Is"):
            raise UnsupportedPatternError(f"the named block '{name}' is not known")
        self.at = end + 1
        return f"\\{char}{{{name}}}"

    def _named_reference(self) -> str:
        closing = {"<": ">", "'": "'"}.get(self.pattern[self.at : self.at + 1], "")
        end = self.pattern.find(closing, self.at + 1) if closing else -1
        if end < 0:
            raise UnsupportedPatternError("'\\k' needs the name of a group")
        name = self.pattern[self.at + 1 : end]
        self.at = end + 1
        return f"\\{name}" if name.isdigit() else f"(?P={name})"

    def _class(self) -> str:
        out = ["[^" if self._take("^") else "["]
        first = True
        while True:
            if self.at >= len(self.pattern):
                raise UnsupportedPatternError("the regular expression has a '[' without its ']'")
            char = self.pattern[self.at]
            self.at += 1
            if char == "]" and not first:
                out.append("]")
                return "".join(out)
            first = False
            if char == "\\":
                out.append(self._escape(in_class=True)[0])
            elif char == "-" and self.pattern[self.at : self.at + 1] == "[":
                raise UnsupportedPatternError("a class that subtracts another ('-[') is not known")
            else:
                out.append("\\" + char if char in "[]&~|" else char)

    def _group(self) -> tuple[str, str, list[Clause]]:
        opening, kept = self._opening()
        if not opening or opening.endswith(")"):
            return opening, "", []
        text, clauses = self.alternatives()
        if not self._take(")"):
            raise UnsupportedPatternError("the regular expression has a '(' without its ')'")
        return f"{opening}{text})", "", clauses if kept else []

    def _opening(self) -> tuple[str, bool]:
        """The opening of a group, and whether what stands in it must be in the line."""
        if not self._take("?"):
            return "(", True
        for start, kept in ((":", True), (">", True), ("=", False), ("!", False), ("<=", False), ("<!", False)):
            if self._take(start):
                return f"(?{start}", kept
        if self._take("#"):
            end = self.pattern.find(")", self.at)
            if end < 0:
                raise UnsupportedPatternError("a comment in the regular expression doesn't end")
            self.at = end + 1
            return "", False
        if self.pattern[self.at : self.at + 1] in {"<", "'"}:
            return self._named_opening(), True
        return self._flags()

    def _named_opening(self) -> str:
        closing = ">" if self.pattern[self.at] == "<" else "'"
        end = self.pattern.find(closing, self.at + 1)
        name = self.pattern[self.at + 1 : end]
        if end < 0 or not name.isidentifier():
            raise UnsupportedPatternError(
                f"the group name '{name}' is not known (numbers and balancing groups are not)"
            )
        self.at = end + 1
        return f"(?P<{name}>"

    def _flags(self) -> tuple[str, bool]:
        start = self.at
        while self.pattern[self.at : self.at + 1].isalpha() or self.pattern[self.at : self.at + 1] == "-":
            self.at += 1
        flags = self.pattern[start : self.at]
        unknown = [flag for flag in flags if flag not in "ims-"]
        if unknown or not flags:
            named = self.pattern[start : start + 1]
            raise UnsupportedPatternError(f"the group '(?{named}' is not known")
        self.ignores_case = self.ignores_case or "i" in flags
        if self._take(":"):
            return f"(?{flags}:", True
        if not self._take(")"):
            raise UnsupportedPatternError("flags in the regular expression don't end")
        if start != 2:
            raise UnsupportedPatternError(f"flags are taken at the front only, or for a group: '(?{flags}:…)'")
        return f"(?{flags})", False

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False
