"""What a workflow listens to: `on`, with its filters, schedules and the inputs of manual and called runs.

The schema has checked kinds and names before; here are the rules between them (workflow-language 4 and 5).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from runyard.job import (
    BooleanToken,
    ExpressionToken,
    MappingToken,
    NullToken,
    NumberToken,
    SequenceToken,
    Template,
    TextToken,
)
from runyard.job import Entry as MappingEntry
from runyard.workflow.events import EXCLUSIVE, PATTERN_FILTERS
from runyard.workflow.model import CallSignature, EventTrigger, Filter, Schedule
from runyard.workflow.patterns import BadPatternError, check_pattern, has_positive
from runyard.workflow.plan import InputDefinition, SecretDefinition
from runyard.workflow.schedule import FINEST_MINUTES, cron_fault, finer_than_five_minutes
from runyard.workflow.tokens import entries, fields, flag_of, place, present, text_of, texts

if TYPE_CHECKING:
    from runyard.job import Position
    from runyard.workflow.problems import Problems

MAX_DISPATCH_INPUTS = 25
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]*\Z")
InputType = Literal["string", "boolean", "number", "choice", "environment"]


class Listening(NamedTuple):
    """`on` as data."""

    triggers: tuple[EventTrigger, ...]
    dispatch: tuple[InputDefinition, ...] | None
    call: CallSignature | None


def listening(token: Template | None, problems: Problems) -> Listening:
    """Converts a checked `on` and notes what contradicts itself."""
    triggers: list[EventTrigger] = []
    dispatch: tuple[InputDefinition, ...] | None = None
    call: CallSignature | None = None
    for name, value in _events(token):
        if name.value == "workflow_dispatch":
            dispatch = _inputs(fields(value).get("inputs"), "on.workflow_dispatch.inputs", problems, dispatch=True)
            if len(dispatch) > MAX_DISPATCH_INPUTS:
                problems.add(
                    f"workflow_dispatch takes at most {MAX_DISPATCH_INPUTS} inputs, this has {len(dispatch)}",
                    name.at,
                    "on.workflow_dispatch.inputs",
                )
        elif name.value == "workflow_call":
            call = _signature(value, name.at, problems)
        triggers.append(_trigger(name, value, problems))
    return Listening(tuple(triggers), dispatch, call)


def _events(token: Template | None) -> list[tuple[TextToken, Template]]:
    """The events in the order written, from any of the three forms."""
    if isinstance(token, TextToken):
        return [(token, NullToken(token.at))]
    if isinstance(token, SequenceToken):
        return [(item, NullToken(item.at)) for item in token.items if isinstance(item, TextToken)]
    return list(entries(token))


def _trigger(name: TextToken, value: Template, problems: Problems) -> EventTrigger:
    event = name.value
    key = f"on.{event}"
    if event == "schedule":
        return EventTrigger(event=event, schedules=_schedules(value, problems), at=name.at)
    if event in {"workflow_dispatch", "workflow_call"}:
        return EventTrigger(event=event, at=name.at)
    types: tuple[str, ...] | None = None
    filters: list[Filter] = []
    for option, written in entries(value):
        words = texts(written)
        if option.value == "types":
            types = tuple(word.value for word in words) or None
            continue
        if option.value in PATTERN_FILTERS:
            _check_patterns(words, option, f"{key}.{option.value}", problems)
        filters.append(Filter(option.value, tuple(word.value for word in words), option.at))
    _check_exclusive(filters, key, problems)
    return EventTrigger(event=event, types=types, filters=tuple(filters), at=name.at)


def _check_patterns(words: list[TextToken], option: TextToken, key: str, problems: Problems) -> None:
    for word in words:
        try:
            check_pattern(word.value)
        except BadPatternError as error:
            problems.add(f"Invalid pattern '{word.value}': {error}", word.at, key, code="workflow.pattern")
    if words and not option.value.endswith("-ignore") and not has_positive(word.value for word in words):
        problems.add(
            f"{option.value} has only negative patterns, so it never matches; a positive pattern (such as '**') must "
            "come first",
            option.at,
            key,
            severity="warning",
            code="lint.negative",
        )


def _check_exclusive(filters: list[Filter], key: str, problems: Problems) -> None:
    """A filter and its -ignore form exclude each other; both places are named."""
    by_name = {each.name: each for each in filters}
    for pair in EXCLUSIVE:
        found = [by_name[name] for name in pair if name in by_name]
        if len(found) < 2:
            continue
        for this, other in (found, found[::-1]):
            where = f" (line {other.at.line}, column {other.at.column})" if other.at else ""
            problems.add(
                f"'{this.name}' and '{other.name}'{where} can't stand together; use '!' patterns in '{pair[0]}'",
                this.at,
                f"{key}.{this.name}",
                code="workflow.filters",
            )


def _schedules(value: Template, problems: Problems) -> tuple[Schedule, ...]:
    schedules: list[Schedule] = []
    items = value.items if isinstance(value, SequenceToken) else ()
    for index, item in enumerate(items):
        parts = fields(item)
        cron, zone = parts.get("cron"), parts.get("timezone")
        key = f"on.schedule[{index}]"
        if isinstance(cron, TextToken):
            fault = cron_fault(cron.value)
            if fault is not None:
                problems.add(f"Invalid cron: {fault}", cron.at, f"{key}.cron", code="workflow.cron")
            elif finer_than_five_minutes(cron.value):
                problems.add(
                    f"runs start at most every {FINEST_MINUTES} minutes",
                    cron.at,
                    f"{key}.cron",
                    severity="warning",
                    code="lint.cron",
                )
        if isinstance(zone, TextToken) and not _is_zone(zone.value):
            problems.add(
                f"'{zone.value}' is no IANA time zone",
                zone.at,
                f"{key}.timezone",
                severity="warning",
                code="lint.timezone",
            )
        schedules.append(Schedule(text_of(cron) or "", text_of(zone) or "UTC", place(item)))
    return tuple(schedules)


def _is_zone(name: str) -> bool:
    """Whether the time zone exists here; a machine without zone data believes every well-formed name."""
    if name == "UTC":
        return True
    if _ZONE.match(name) is None:
        return False
    import zoneinfo

    known = zoneinfo.available_timezones()
    return not known or name in known


def _signature(value: Template, at: Position | None, problems: Problems) -> CallSignature:
    parts = fields(value)
    secrets = tuple(
        SecretDefinition(name=name.value, required=flag_of(fields(each).get("required")), at=name.at)
        for name, each in entries(parts.get("secrets"))
    )
    outputs = tuple(
        MappingEntry(name, each_value)
        for name, each in entries(parts.get("outputs"))
        if (each_value := fields(each).get("value")) is not None
    )
    return CallSignature(
        inputs=_inputs(parts.get("inputs"), "on.workflow_call.inputs", problems, dispatch=False),
        secrets=secrets,
        outputs=MappingToken(outputs, place(parts.get("outputs"))) if outputs else None,
        at=at,
    )


def _inputs(token: Template | None, key: str, problems: Problems, *, dispatch: bool) -> tuple[InputDefinition, ...]:
    definitions: list[InputDefinition] = []
    for name, value in entries(token):
        parts = fields(value)
        kind = cast("InputType", text_of(parts.get("type")) or "string")
        definition = InputDefinition(
            name=name.value,
            type=kind,
            required=flag_of(parts.get("required")),
            default=present(parts.get("default")),
            options=tuple(option.value for option in texts(parts.get("options"))),
            description=text_of(parts.get("description")) or "",
            at=name.at,
        )
        _check_default(definition, f"{key}.{name.value}", problems)
        if dispatch and kind == "choice" and not definition.options:
            _warn(problems, f"input '{name.value}' is a choice without options", name.at, f"{key}.{name.value}")
        definitions.append(definition)
    return tuple(definitions)


def _check_default(definition: InputDefinition, key: str, problems: Problems) -> None:
    """Warns where a plain default isn't a value of the input's type; GitHub lets it pass until the run."""
    default = definition.default
    if default is None or isinstance(default, ExpressionToken):
        return
    written = text_of(default)
    fits = {
        "boolean": isinstance(default, BooleanToken) or (written or "").lower() in {"true", "false"},
        "number": isinstance(default, NumberToken),
        "choice": not definition.options or written in definition.options,
    }.get(definition.type, True)
    if not fits:
        what = "one of the options" if definition.type == "choice" else f"a {definition.type}"
        _warn(problems, f"the default of input '{definition.name}' is not {what}", default.at, f"{key}.default")


def _warn(problems: Problems, message: str, at: Position | None, key: str) -> None:
    problems.add(message, at, key, severity="warning", code="lint.input")
