"""One file, from bytes to a `Workflow` or to everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runyard.expression.positioned_yaml import WORKFLOW_LIMITS, Mapping, Scalar, YamlError, read_yaml
from runyard.workflow.jobs import concurrency, defaults, jobs, permissions
from runyard.workflow.listening import listening
from runyard.workflow.model import Reading, Workflow
from runyard.workflow.problems import Problems, TooManyProblemsError
from runyard.workflow.schema import WORKFLOW
from runyard.workflow.tokens import fields, present, text_of
from runyard.workflow.validation import Validator

if TYPE_CHECKING:
    from runyard.job import InputError

PIPELINE_SUFFIX: Final = ".toml"


def read_workflow(
    source: str | bytes, *, path: str, file: int = 1, max_characters: int = WORKFLOW_LIMITS.characters
) -> Reading:
    """Reads one file without the workflows it calls. Never raises: what is wrong is in `problems`.

    A path that ends in `.toml` is a pipeline.

    `file` is the index of the file in the run's file table, which all positions carry. `workflow` is None where a
    problem is an error. Safe to repeat.
    """
    problems = Problems(path)
    if path.endswith(PIPELINE_SUFFIX):
        from runyard.workflow.pipeline import read_pipeline  # a reader of TOML, which a run of workflows doesn't load

        return read_pipeline(source, path, file, _convert)
    try:
        root = read_yaml(source, path=path, limits=msgspec.structs.replace(WORKFLOW_LIMITS, characters=max_characters))
    except YamlError as error:
        add_input_error(problems, error)
        return Reading(None, problems.all())
    if root is None or (isinstance(root, Scalar) and root.value is None):
        problems.add("the file is empty", (1, 1), code="workflow.empty")
        return Reading(None, problems.all())
    if not isinstance(root, Mapping):
        problems.add("a workflow is a mapping with the keys 'on' and 'jobs'", (root.line, root.column))
        return Reading(None, problems.all())
    try:
        workflow = _convert(root, problems, file)
    except TooManyProblemsError:
        workflow = None
    found = problems.all()
    if workflow is None or problems.refused:
        return Reading(None, found)
    return Reading(msgspec.structs.replace(workflow, warnings=found), found)


def _convert(root: Mapping, problems: Problems, file: int) -> Workflow:
    """The workflow; only worth something where no problem is an error."""
    parts = fields(Validator(problems, file).read(root, WORKFLOW))
    heard = listening(parts.get("on"), problems)
    plans, calls = jobs(parts.get("jobs"), problems)
    return Workflow(
        path=problems.path,
        name=text_of(parts.get("name")) or problems.path,
        triggers=heard.triggers,
        jobs=plans,
        calls=calls,
        run_name=present(parts.get("run-name")),
        env=present(parts.get("env")),
        defaults=defaults(parts.get("defaults")),
        concurrency=concurrency(parts.get("concurrency"), "concurrency", problems, workflow_level=True),
        permissions=permissions(parts.get("permissions")),
        dispatch=heard.dispatch,
        call=heard.call,
    )


def add_input_error(problems: Problems, error: InputError) -> None:
    """Notes an error of the YAML reader as a problem."""
    problems.add(error.message, (error.line, error.column), code=error.code)
