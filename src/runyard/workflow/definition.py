"""The vocabulary of the schema: what may stand at a place, and what its expressions may use.

Data only. `schema.py` and `manifest.py` say it for workflows and actions; `validation.py` holds files against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from runyard.expression.signatures import JOB_CONDITION_FUNCTIONS, STEP_CONDITION_FUNCTIONS, STEP_FUNCTIONS, Arity

if TYPE_CHECKING:
    from collections.abc import Iterable

Functions: TypeAlias = dict[str, Arity]

NO_FUNCTIONS: Final[Functions] = {}


class Text(msgspec.Struct, frozen=True):
    """Text is taken; `allowed` None means any, otherwise exactly these, letters' case included."""

    non_empty: bool = False
    allowed: tuple[str, ...] | None = None


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """One form of a mapping: fixed keys, and perhaps free ones beside them."""

    fixed: dict[str, Shape] = {}
    required: tuple[str, ...] = ()
    free: Shape | None = None
    ignored: bool = False
    """Whether unknown keys are let through (with a warning), as the reader of GitHub does at a few places."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a place takes: any of the kinds given here, the first that fits the node (workflow-language 1.3).

    `contexts` and `functions` add to those of the places around it (section 3). `condition` marks an `if`, whose text
    is an expression with or without braces.
    """

    text: Text | None = None
    boolean: bool = False
    number: bool = False
    null: bool = False
    any: bool = False
    item: Shape | None = None
    mappings: tuple[Keys, ...] = ()
    contexts: frozenset[str] = frozenset()
    functions: Functions = NO_FUNCTIONS
    condition: bool = False


class Scope(msgspec.Struct, frozen=True):
    """What an expression may name at one place."""

    contexts: frozenset[str] = frozenset()
    functions: Functions = NO_FUNCTIONS

    @property
    def empty(self) -> bool:
        """Whether no expression may stand here at all."""
        return not self.contexts and not self.functions

    def within(self, shape: Shape) -> Scope:
        """The scope inside a place, which inherits what is around it."""
        if not shape.contexts and not shape.functions:
            return self
        if shape.contexts <= self.contexts and not shape.functions:
            return self
        return Scope(self.contexts | shape.contexts, {**self.functions, **shape.functions})


def text(*, non_empty: bool = False, contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS) -> Shape:
    """Any text, or text that isn't empty."""
    return Shape(text=Text(non_empty), contexts=frozenset(contexts), functions=functions)


def one_of_texts(*allowed: str) -> Shape:
    """Exactly one of these texts."""
    return Shape(text=Text(True, allowed))


def condition(contexts: Iterable[str], functions: Functions) -> Shape:
    """An `if`."""
    return Shape(text=Text(), contexts=frozenset(contexts), functions=functions, condition=True)


def boolean(contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS) -> Shape:
    """True or false; text that says so is refused."""
    return Shape(boolean=True, contexts=frozenset(contexts), functions=functions)


def number(contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS) -> Shape:
    """A number; text that says one is refused."""
    return Shape(number=True, contexts=frozenset(contexts), functions=functions)


def fixed(needed: Iterable[str] = (), /, *, ignored: bool = False, **keys: Shape) -> Keys:
    """Fixed keys; an underscore in a name given here stands for the hyphen of the file."""
    named = {key.replace("_", "-"): shape for key, shape in keys.items()}
    return Keys(fixed=named, required=tuple(needed), ignored=ignored)


def mapping(
    *forms: Keys, contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS, null: bool = False
) -> Shape:
    """A mapping of one of the forms."""
    return Shape(mappings=forms, contexts=frozenset(contexts), functions=functions, null=null)


def free(value: Shape, *, contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS) -> Shape:
    """A mapping with keys of the author's choice."""
    return Shape(mappings=(Keys(free=value),), contexts=frozenset(contexts), functions=functions)


def sequence(item: Shape) -> Shape:
    """A list of one kind of item."""
    return Shape(item=item)


def either(*shapes: Shape, contexts: Iterable[str] = (), functions: Functions = NO_FUNCTIONS) -> Shape:
    """Any of several kinds."""
    texts = [shape.text for shape in shapes if shape.text is not None]
    if len(texts) > 1:
        allowed = tuple(word for each in texts for word in each.allowed or ())
        merged: Text | None = Text(True, allowed)
    else:
        merged = texts[0] if texts else None
    return Shape(
        text=merged,
        boolean=any(shape.boolean for shape in shapes),
        number=any(shape.number for shape in shapes),
        null=any(shape.null for shape in shapes),
        any=any(shape.any for shape in shapes),
        item=next((shape.item for shape in shapes if shape.item is not None), None),
        mappings=tuple(keys for shape in shapes for keys in shape.mappings),
        contexts=frozenset(contexts).union(*(shape.contexts for shape in shapes)),
        functions={**functions, **{name: arity for shape in shapes for name, arity in shape.functions.items()}},
    )


ANY: Final = Shape(any=True)
NULL: Final = Shape(null=True)
TEXT: Final = text()
NON_EMPTY: Final = text(non_empty=True)
TEXTS: Final = either(NON_EMPTY, sequence(NON_EMPTY))
"""One text or a list of them; scalars are taken wherever a list of texts is."""

__all__ = [
    "ANY",
    "JOB_CONDITION_FUNCTIONS",
    "NON_EMPTY",
    "NO_FUNCTIONS",
    "NULL",
    "STEP_CONDITION_FUNCTIONS",
    "STEP_FUNCTIONS",
    "TEXT",
    "TEXTS",
    "Functions",
    "Keys",
    "Scope",
    "Shape",
    "Text",
    "boolean",
    "condition",
    "either",
    "fixed",
    "free",
    "mapping",
    "number",
    "one_of_texts",
    "sequence",
    "text",
]
