"""`action.yml`: what an action takes, gives and runs, by its own reading rules (job-semantics 9.2).

They are not those of workflows: unknown keys at the top are ignored, anchors refused, nesting goes to 100, and fewer
contexts exist. Rule kept: `read_manifest` touches nothing but the bytes it is given.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from runyard.expression.conditions import unwrapped_condition, wrap_condition
from runyard.expression.errors import ExpressionError
from runyard.expression.positioned_yaml import Mapping, Scalar, Sequence, YamlLimits, read_yaml
from runyard.expression.scanner import parse_text
from runyard.expression.signatures import STEP_CONDITION_FUNCTIONS, STEP_FUNCTIONS
from runyard.expression.values import to_text
from runyard.job import (
    ActionStep,
    BooleanToken,
    ContainerActionStep,
    Entry,
    InputError,
    MappingToken,
    NullToken,
    NumberToken,
    Position,
    RunStep,
    SequenceToken,
    Step,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from runyard.expression.parser import FunctionNames
    from runyard.expression.positioned_yaml import Node

MANIFEST_NAMES: Final = ("action.yml", "action.yaml", "Dockerfile", "dockerfile")
"""In the order they are looked for; the last two are a docker action without metadata (9.1)."""

MANIFEST_LIMIT: Final = 1 << 20
_LIMITS: Final = YamlLimits(anchors=False, depth=100)

_DEFAULT_CONTEXTS: Final = ("github", "strategy", "matrix", "job", "runner")
_STEP_CONTEXTS: Final = ("github", "inputs", "strategy", "matrix", "steps", "job", "runner", "env")
_OUTPUT_CONTEXTS: Final = ("github", "strategy", "matrix", "steps", "inputs", "job", "runner", "env")

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
_NODE: Final = ("node12", "node16", "node20", "node24")
USING: Final = ("composite", "docker", *_NODE)
"""What `runs.using` may be."""


class ActionInput(msgspec.Struct, frozen=True, kw_only=True):
    """One declared input. `default` is None where there is none: the input is empty then, `required` or not (9.3)."""

    name: str
    default: Template | None = None
    required: bool = False
    deprecation: str = ""


class CompositeRuns(msgspec.Struct, frozen=True, kw_only=True, tag="composite"):
    """`using: composite`. Conditions are wrapped as those of workflow steps are."""

    steps: tuple[Step, ...]


class JavaScriptRuns(msgspec.Struct, frozen=True, kw_only=True, tag="javascript"):
    """`using: node…`. The conditions are not wrapped (4.3)."""

    using: str
    main: str
    pre: str = ""
    post: str = ""
    pre_if: str = "always()"
    post_if: str = "always()"


class DockerRuns(msgspec.Struct, frozen=True, kw_only=True, tag="docker"):
    """`using: docker`. `args` is None where the manifest has none: the caller's `with.args` counts then (O16)."""

    image: str
    entrypoint: str = ""
    args: SequenceToken | None = None
    env: MappingToken | None = None
    pre_entrypoint: str = ""
    post_entrypoint: str = ""
    pre_if: str = "always()"
    post_if: str = "always()"


Runs: TypeAlias = CompositeRuns | JavaScriptRuns | DockerRuns


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an action is. `path` is the file it was read from, which positions (file 1) name."""

    name: str
    path: str
    runs: Runs
    inputs: tuple[ActionInput, ...] = ()
    outputs: tuple[tuple[str, Template], ...] = ()


def dockerfile_manifest(path: str) -> Manifest:
    """The action that a bare Dockerfile stands for."""
    return Manifest(name="", path=path, runs=DockerRuns(image=path.rpartition("/")[2]))


def read_manifest(data: bytes, path: str) -> Manifest:
    """An action from the bytes of its `action.yml`. Raises InputError with the place of the first thing wrong."""
    root = read_yaml(data, path=path, limits=_LIMITS)
    if not isinstance(root, Mapping):
        raise InputError("an action's file is a mapping", path=path, line=1, column=1)
    return _Reader(path).manifest(root)


class _Reader:
    """Nodes to a manifest; knows the file for messages and positions."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._ids: set[str] = set()

    def manifest(self, root: Mapping) -> Manifest:
        """The whole file."""
        name, runs = "", None
        inputs: tuple[ActionInput, ...] = ()
        outputs: tuple[tuple[str, Template], ...] = ()
        for key, value in self._unique(root):
            match key.text:
                case "name":
                    name = self._plain(value)
                case "inputs":
                    inputs = tuple(self._input(each, node) for each, node in self._entries(value))
                case "outputs":
                    outputs = tuple(self._output(each, node) for each, node in self._entries(value))
                case "runs":
                    runs = self._runs(value)
                case _:
                    continue
        if runs is None:
            raise self._error(root, "'runs' is missing")
        if not isinstance(runs, CompositeRuns):
            outputs = ()
        return Manifest(name=name, path=self._path, runs=runs, inputs=inputs, outputs=outputs)

    def _input(self, key: Scalar, value: Node) -> ActionInput:
        default: Template | None = None
        required, deprecation = False, ""
        for each, node in self._entries(value):
            match each.text:
                case "default":
                    default = self._string(node, _DEFAULT_CONTEXTS, STEP_FUNCTIONS)
                case "required":
                    required = isinstance(node, Scalar) and node.text.lower() == "true"
                case "deprecationMessage":
                    deprecation = self._plain(node)
                case _:
                    continue
        return ActionInput(name=key.text, default=default, required=required, deprecation=deprecation)

    def _output(self, key: Scalar, value: Node) -> tuple[str, Template]:
        template: Template = TextToken("")
        for each, node in self._entries(value):
            if each.text == "value":
                template = self._string(node, _OUTPUT_CONTEXTS)
        return key.text, template

    def _runs(self, value: Node) -> Runs:
        keys = {key.text: node for key, node in self._entries(value)}
        using = self._plain(keys["using"]).lower() if "using" in keys else ""
        if using == "composite":
            return CompositeRuns(steps=self._steps(value, keys.get("steps")))
        if using == "docker":
            return self._docker(value, keys)
        if using in _NODE:
            main = self._required(value, keys, "main")
            return JavaScriptRuns(
                using=using,
                main=main,
                pre=self._optional(keys, "pre"),
                post=self._optional(keys, "post"),
                pre_if=self._phase_condition(keys, "pre-if"),
                post_if=self._phase_condition(keys, "post-if"),
            )
        at = keys.get("using", value)
        supported = ", ".join(USING)
        said = f"'using: {using}' is not supported, use one of {supported}"
        raise self._error(at, said if using else "'using' is missing")

    def _docker(self, value: Node, keys: dict[str, Node]) -> DockerRuns:
        args, env = keys.get("args"), keys.get("env")
        args_token = None if args is None else self._template(args, ("inputs",))
        env_token = None if env is None else self._template(env, ("inputs",))
        if args is not None and not isinstance(args_token, SequenceToken):
            raise self._error(args, "'args' is a sequence")
        if env is not None and not isinstance(env_token, MappingToken):
            raise self._error(env, "'env' is a mapping")
        return DockerRuns(
            image=self._required(value, keys, "image"),
            entrypoint=self._optional(keys, "entrypoint"),
            args=args_token if isinstance(args_token, SequenceToken) else None,
            env=env_token if isinstance(env_token, MappingToken) else None,
            pre_entrypoint=self._optional(keys, "pre-entrypoint"),
            post_entrypoint=self._optional(keys, "post-entrypoint"),
            pre_if=self._phase_condition(keys, "pre-if"),
            post_if=self._phase_condition(keys, "post-if"),
        )

    def _steps(self, runs: Node, value: Node | None) -> tuple[Step, ...]:
        if not isinstance(value, Sequence):
            raise self._error(value or runs, "'steps' is missing" if value is None else "'steps' is a sequence")
        found: list[Step] = []
        for item in value.items:
            keys = {key.text: node for key, node in self._entries(item)}
            if "id" in keys:
                self._claim(keys["id"])
            found.append(self._step(item, keys))
        return tuple(found)

    def _step(self, item: Node, keys: dict[str, Node]) -> Step:
        known = {"run", "shell", "uses", "id", "name", "if", "env", "working-directory", "with", "continue-on-error"}
        for key, node in keys.items():
            if key not in known:
                raise self._error(node, f"'{key}' is not a key of a step in a composite action")
        rest: dict[str, Any] = {
            "number": 0,
            "name": self._maybe(keys.get("name")),
            "condition": self._condition(keys.get("if")),
            "env": self._maybe(keys.get("env")),
            "continue_on_error": self._maybe(keys.get("continue-on-error"), typed=True),
        }
        written = self._plain(keys["id"]) if "id" in keys else ""
        if "run" in keys:
            if "uses" in keys:
                raise self._error(keys["uses"], "a step has either 'run' or 'uses'")
            if "shell" not in keys:
                raise self._error(item, "Required property is missing: shell")
            return RunStep(
                id=written or self._generate("__run"),
                script=self._maybe(keys["run"]) or TextToken(""),
                shell=self._maybe(keys["shell"]),
                working_directory=self._maybe(keys.get("working-directory")),
                **rest,
            )
        if "uses" not in keys:
            raise self._error(item, "a step needs 'run' or 'uses'")
        return self._uses(keys, written, rest)

    def _uses(self, keys: dict[str, Node], written: str, rest: dict[str, Any]) -> Step:
        uses = self._plain(keys["uses"])
        inputs = self._maybe(keys.get("with"))
        reference = parse_reference(uses)
        if reference is None:
            raise self._error(
                keys["uses"], f"'{uses}' is no reference: owner/repo[/path]@ref, ./path or docker://image"
            )
        if isinstance(reference, str):
            return ContainerActionStep(
                id=written or self._generate("__" + _NOT_ID.sub("_", reference)),
                image=reference,
                inputs=inputs,
                **rest,
            )
        repository, path, ref = reference
        stem = "__self" if repository is None else "__" + _NOT_ID.sub("_", repository)
        return ActionStep(
            id=written or self._generate(stem),
            repository=repository,
            path=path,
            ref=ref,
            inputs=inputs,
            **rest,
        )

    # Pieces -----------------------------------------------------------------------------------------------------

    def _condition(self, node: Node | None) -> str:
        if node is None:
            return wrap_condition(None)
        if not isinstance(node, Scalar):
            raise self._error(node, "a condition is one expression")
        text = node.text if isinstance(node.value, str) or node.plain else to_text(node.value)
        try:
            return wrap_condition(text, contexts=_STEP_CONTEXTS, functions=STEP_CONDITION_FUNCTIONS)
        except ExpressionError as error:
            raise self._error(node, error.message) from error

    def _phase_condition(self, keys: dict[str, Node], name: str) -> str:
        node = keys.get(name)
        if node is None or not self._plain(node).strip():
            return "always()"
        try:
            return unwrapped_condition(self._plain(node))
        except ExpressionError as error:
            raise self._error(node, error.message) from error

    def _maybe(self, node: Node | None, *, typed: bool = False) -> Template | None:
        if node is None:
            return None
        if isinstance(node, Scalar) and not typed:
            return self._string(node, _STEP_CONTEXTS, STEP_FUNCTIONS)
        return self._template(node, _STEP_CONTEXTS, STEP_FUNCTIONS)

    def _string(self, node: Node, contexts: Collection[str], functions: FunctionNames = ()) -> Template:
        """A scalar as text or expression; numbers and booleans become their text (1.15)."""
        if not isinstance(node, Scalar):
            raise self._error(node, "a text was expected")
        token = self._template(node, contexts, functions)
        if isinstance(token, NullToken | BooleanToken | NumberToken):
            return TextToken(to_text(node.value), self._at(node))
        return token

    def _template(self, node: Node, contexts: Collection[str], functions: FunctionNames = ()) -> Template:
        at = self._at(node)
        if isinstance(node, Sequence):
            return SequenceToken(tuple(self._template(each, contexts, functions) for each in node.items), at)
        if isinstance(node, Mapping):
            entries = []
            for key, below in self._unique(node):
                name = self._parsed(key, key.text, contexts, functions, is_key=True)
                entries.append(Entry(name, self._template(below, contexts, functions)))
            return MappingToken(tuple(entries), at)
        value = node.value
        if value is None:
            return NullToken(at)
        if isinstance(value, bool):
            return BooleanToken(value, at)
        if isinstance(value, float):
            return NumberToken(value, at)
        return self._parsed(node, value, contexts, functions)

    def _parsed(
        self, node: Scalar, text: str, contexts: Collection[str], functions: FunctionNames, *, is_key: bool = False
    ) -> Template:
        try:
            return parse_text(text, at=self._at(node), contexts=contexts, functions=functions, is_key=is_key)
        except ExpressionError as error:
            raise self._error(node, error.message) from error

    def _plain(self, node: Node) -> str:
        if not isinstance(node, Scalar):
            raise self._error(node, "a text was expected")
        return node.value if isinstance(node.value, str) else to_text(node.value)

    def _required(self, runs: Node, keys: dict[str, Node], name: str) -> str:
        text = self._optional(keys, name)
        if not text:
            raise self._error(keys.get(name, runs), f"'{name}' is missing")
        return text

    def _optional(self, keys: dict[str, Node], name: str) -> str:
        return self._plain(keys[name]) if name in keys else ""

    def _entries(self, node: Node) -> Iterator[tuple[Scalar, Node]]:
        if isinstance(node, Scalar) and node.value is None:
            return iter(())
        if not isinstance(node, Mapping):
            raise self._error(node, "a mapping was expected")
        return self._unique(node)

    def _unique(self, node: Mapping) -> Iterator[tuple[Scalar, Node]]:
        seen: set[str] = set()
        for key, value in node.pairs:
            if key.text.upper() in seen:
                raise self._error(key, f"'{key.text}' is already defined")
            seen.add(key.text.upper())
            yield key, value

    def _claim(self, node: Node) -> None:
        name = self._plain(node)
        if not _ID.match(name) or name.startswith("__") or name.upper() in self._ids:
            raise self._error(node, f"the id '{name}' is not allowed or used twice")
        self._ids.add(name.upper())

    def _generate(self, stem: str) -> str:
        name, number = stem, 1
        while name.upper() in self._ids:
            number += 1
            name = f"{stem}_{number}"
        self._ids.add(name.upper())
        return name

    def _at(self, node: Node) -> Position:
        return Position(1, node.line, node.column)

    def _error(self, node: Node, message: str) -> InputError:
        return InputError(message, path=self._path, line=node.line, column=node.column, code="action.manifest")


def parse_reference(uses: str) -> tuple[str | None, str, str] | str | None:
    """`uses:` of a step: (repository or None, path, ref), or the image of `docker://`, or None where it is neither."""
    if uses.startswith("docker://"):
        return uses.removeprefix("docker://") or None
    if uses.startswith(("./", "../", ".\\")) or uses in {".", "./"}:
        return None, uses, ""
    location, at, ref = uses.partition("@")
    parts = location.split("/", 2)
    if not at or not ref or len(parts) < 2 or not parts[0] or not parts[1]:
        return None
    return f"{parts[0]}/{parts[1]}", parts[2] if len(parts) > 2 else "", ref
