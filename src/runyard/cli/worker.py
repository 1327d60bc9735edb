"""`runyard worker`: dials out to a server and executes its jobs.

Thin: flags are read here and checked in `worker_config.py`; `worker_loop.py` is the worker's life, `worker_job.py` one
job in its hands.
"""

from __future__ import annotations

from typing import Any

import click


@click.command(epilog="Example: runyard worker --url https://ci.example.org --token-file worker.token --slots 2")
@click.argument("action", required=False, metavar="")
@click.option("--url", metavar="URL", help="The server's address.")
@click.option("--token-file", metavar="F", help="The worker's token (or RUNYARD_WORKER_TOKEN).")
@click.option("--name", metavar="NAME", help="What people see (default: this machine's name).")
@click.option("--label", "labels", multiple=True, metavar="L", help="A label this worker answers to. Repeatable.")
@click.option("--platform", metavar="OS/ARCH", help="os/arch or os/arch/variant (default: this machine's).")
@click.option("--slots", type=int, metavar="N", help="Jobs at a time (default: 1).")
@click.option("--sandbox", metavar="NAME", help="auto (the default), bubblewrap, docker, podman.")
@click.option("--network", metavar="LEVEL", help="none, proxy or public (default: public where it can be kept).")
@click.option("--image", "images", multiple=True, metavar="LABEL=IMAGE", help="The image behind a label. Repeatable.")
@click.option("--deadline", metavar="T", help="Hand jobs back before this time, or after a duration (2h).")
@click.option("--drain-timeout", metavar="D", help="After SIGTERM, cancel what still runs then (default: never).")
@click.option("--policy", metavar="FILE", help="What jobs may use (TOML): actions, pins, images, network and more.")
@click.option("--cache-dir", metavar="D", help="Where trees, actions and caches are kept between jobs.")
@click.option("--tool-cache", metavar="D", help="Tools that jobs may use (default: /opt/hostedtoolcache).")
@click.option("--publish", metavar="REPOSITORY", help="Take that repository's publish jobs (not in this build yet).")
@click.option("--config", metavar="FILE", help="A file with these settings (TOML).")
def command(action: str | None, **given: Any) -> int:
    """Dial out to a server and execute its jobs, each in a sandbox.

    Every flag is also a key of the file and a variable RUNYARD_WORKER_*. SIGTERM drains: no new jobs, busy ones go on
    to the end; a second one ends at once and hands them back. Ends with 0 when it was told to stop, 2 when the input is
    wrong, 3 when this machine or the server can't do it.
    """
    import os

    from runyard.cli.worker_config import TOKEN, read_options
    from runyard.job import InputError, MachineError

    if action == "install":
        raise MachineError(
            "'runyard worker install' is not part of this build yet",
            code="cli.not_yet",
            remedy="Write a unit that runs `runyard worker` and stops it with SIGTERM.",
        )
    if action is not None:
        raise InputError(f"worker takes no argument {action!r}", code="input.argument")
    options = read_options(given, os.environ)
    os.environ.pop(TOKEN, None)  # nothing that is started from here has any use for it
    from runyard.engine.launch import Launcher

    launcher = Launcher()
    launcher.start_early()
    from runyard.cli.worker_loop import work

    click.echo(f"runyard worker {options.name} ({options.platform}) → {options.url}")
    return work(options, launcher)
