"""How this machine runs a job that it has a place for: what `run` and `worker` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.cli import run_services
from runyard.cli.run_actions import needs_node
from runyard.cli.run_tools import tools_for
from runyard.engine.wire import HookFiles, JobSettings
from runyard.sandbox.contract import Mount

if TYPE_CHECKING:
    from runyard.cli.run_actions import Actions
    from runyard.cli.run_machine import Place
    from runyard.cli.run_offer import Backend
    from runyard.job import JobSpec


def settings_for(
    spec: JobSpec,
    place: Place,
    backend: Backend,
    actions: Actions,
    *,
    tools: str = "",
    hooks: HookFiles | None = None,
    header: tuple[str, ...] = (),
) -> JobSettings:
    """The settings that follow from machine, place and job; the caller replaces what is its own.

    `header` are lines for the top of the log, before the stand-in, the network in use and the tool cache left out.
    Blocking: nodes of this machine may be looked for.
    """
    hooks = hooks or HookFiles()
    tools, left_out = tools_for(tools, backend.name)
    stand_in = (
        f"{place.stand_in} is the image '{place.image}' of this machine here" if place.stand_in is not None else ""
    )
    # What a job container has is asked when it is open; only a node that runs anywhere is brought along.
    image = place.image if spec.container is None else ""
    script = hooks.started.endswith(".js") or hooks.completed.endswith(".js")
    script = script or needs_node(spec.steps, native=actions.native)
    nodes, libc = actions.placed(image, spec.platform) if script else ((), "")
    return JobSettings(
        sandbox=backend.name,
        known=backend.known,
        image=place.image,
        network=backend.network,
        cache_dir=actions.cache,
        header=tuple(line for line in (*header, stand_in, backend.line or "", left_out) if line),
        mounts=tuple(Mount(source=node.source, target=node.target) for node in nodes if node.source),
        nodes=nodes,
        libc=libc,
        remotes=actions.remotes,
        native=actions.native,
        offline=actions.offline,
        services=run_services.NAME,
        hooks=hooks,
        tools=tools,
        owner=spec.run_id,
    )
