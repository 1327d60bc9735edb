"""`runyard schema`: the JSON Schema of what travels and of what commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


def _shapes() -> Mapping[str, Any]:
    """Every published shape by name; hub types by their own names, what commands print by `command`."""
    from runyard import job
    from runyard.cli import actions_shapes, doctor_checks, shapes, sim
    from runyard.workflow.plan import RunPlan

    return {
        "claim": job.Claim,
        "doctor": doctor_checks.DoctorReport,
        "doctor-attack": doctor_checks.AttackReport,
        "job-event": job.JobEvent,
        "job-spec": job.JobSpec,
        "order": job.Order,
        "run-context": job.RunContext,
        "run-plan": RunPlan,
        "sim": sim.SimReport,
        "template": job.Template,
        **shapes.PRINTED,
        **actions_shapes.PRINTED,
    }


@click.command(epilog="Example: runyard schema job-spec")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print the JSON Schema of the shape NAME; without a name, the list of shapes."""
    import difflib
    import json

    import msgspec

    from runyard.job.errors import InputError

    shapes = _shapes()
    if name is None:
        for known in sorted(shapes):
            click.echo(known)
        return
    if name not in shapes:
        near = difflib.get_close_matches(name, list(shapes), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "runyard schema lists them"
        raise InputError(f"there is no shape {name!r}; {hint}", code="schema.unknown")
    schema = msgspec.json.schema(shapes[name])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    click.echo(json.dumps(schema, indent=2))
