"""Which steps the tool cache of this machine may serve. One answer for engine and commands. Blocking: it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.action import setup_node, setup_python
from runyard.action.toolcache import NODE, PYTHON, Original, architecture, find_tool, has_tool, manifest_of
from runyard.expression import to_text
from runyard.job import BooleanToken, MappingToken, NullToken, NumberToken, TextToken

if TYPE_CHECKING:
    from runyard.job import ActionStep, Template


def tool_adapter(step: ActionStep, tools: str, platform: str) -> str | None:
    """`setup_python` or `setup_node` where the reference is declared and `tools` may have what the step asks for.

    None where that is certain to fail: then the original runs, and is fetched ahead like any other action.
    """
    name = (step.repository or "").lower()
    if name == "actions/setup-python" and setup_python.declares(step.path, step.ref):
        may = has_tool(tools, PYTHON) and _may_be_python(step, tools, platform)
        return "setup_python" if may else None
    if name == "actions/setup-node" and setup_node.declares(step.path, step.ref):
        return "setup_node" if has_tool(tools, NODE) and _may_be_node(step, tools, platform) else None
    return None


def _may_be_python(step: ActionStep, tools: str, platform: str) -> bool:
    inputs = _literal(step.inputs)
    if inputs is None:
        return True
    try:
        plan = setup_python.plan_python(inputs, architecture(platform))
        wanted = [setup_python.wanted_python(version, plan) for version in plan.versions]
    except Original:
        return False
    return all(find_tool(tools, PYTHON, each.range, each.arch) is not None for each in wanted)


def _may_be_node(step: ActionStep, tools: str, platform: str) -> bool:
    inputs = _literal(step.inputs)
    if inputs is None:
        return True
    try:
        plan = setup_node.plan_node(inputs, step.ref, architecture(platform))
        if not plan.version:
            return True
        wanted = setup_node.range_of(plan.version, manifest_of(tools, NODE))
    except Original:
        return False
    return find_tool(tools, NODE, wanted, plan.arch) is not None


def _literal(inputs: Template | None) -> dict[str, str] | None:
    """The inputs as they stand there, None where one has to be evaluated first."""
    if inputs is None:
        return {}
    if not isinstance(inputs, MappingToken):
        return None
    found: dict[str, str] = {}
    for entry in inputs.entries:
        if not isinstance(entry.key, TextToken):
            return None
        match entry.value:
            case TextToken(value) | NumberToken(value) | BooleanToken(value):
                found[entry.key.value] = to_text(value)
            case NullToken():
                found[entry.key.value] = ""
            case _:
                return None
    return found
