"""`runyard run`: plans and executes the workflows of the current repository for an event.

Thin: the flags are read here, everything else is in the `run_*` modules beside this one. With `--list` and `--plan`
nothing is executed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.cli.run_prepare import Options, Prepared
    from runyard.cli.shapes import Listing, PlanNote
    from runyard.job import Step

_FORMATS = ("tree", "plain", "jsonl", "github", "json")


@click.command(epilog="Example: runyard run --event pull_request --job test")
@click.argument("workflows", nargs=-1, metavar="[WORKFLOW]...")
@click.option("--event", metavar="NAME", help="The event (default: push).")
@click.option("--event-file", metavar="F", help="Its payload, or parts of it, as JSON (- for standard input).")
@click.option("--job", "jobs", multiple=True, metavar="ID", help="Only this job, with what it needs. Repeatable.")
@click.option("--matrix", multiple=True, metavar="K:V", help="Only combinations with this value. Repeatable.")
@click.option("--input", "inputs", multiple=True, metavar="K=V", help="An input of workflow_dispatch. Repeatable.")
@click.option("--var", "variables", multiple=True, metavar="K=V", help="A configuration variable. Repeatable.")
@click.option("--var-file", multiple=True, metavar="F", help="Variables as .env lines, JSON or YAML. Repeatable.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="A secret: the environment variable NAME.")
@click.option("--secret-file", multiple=True, metavar="F", help="Secrets as .env lines, JSON or YAML. Repeatable.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="A variable of the runner's environment. Repeatable.")
@click.option("--env-file", multiple=True, metavar="F", help="The same as .env lines, JSON or YAML. Repeatable.")
@click.option("--environment-file", metavar="F", help="Environments with their own secrets and vars, as JSON.")
@click.option("--sandbox", default="auto", show_default=True, metavar="NAME", help="auto, bubblewrap, docker, podman.")
@click.option("--network", metavar="LEVEL", help="none, proxy or public (default: public where it can be kept).")
@click.option("--image", "images", multiple=True, metavar="LABEL=IMAGE", help="The image behind a label. Repeatable.")
@click.option("--label", "labels", multiple=True, metavar="L", help="A label that this machine answers to. Repeatable.")
@click.option("--changed-file", "changed_files", multiple=True, metavar="PATH", help="What the event changed.")
@click.option("--ref", metavar="REF", help="Run a commit instead of the working tree.")
@click.option("--dirty", is_flag=True, help="Run the working tree as it is (the default).")
@click.option("--policy", metavar="FILE", help="What jobs may use (TOML): actions, pins, images, network and more.")
@click.option("--parallel", type=click.IntRange(1, 256), metavar="N", help="Jobs at a time (default: the cores).")
@click.option("--offline", is_flag=True, help="No network for actions; fails at once, naming what is missing.")
@click.option("--no-native", is_flag=True, help="Run the original actions instead of the built-in ones.")
@click.option("--strict-github", is_flag=True, help="GitHub's behaviour where Runyard deviates on purpose.")
@click.option("--list", "only_list", is_flag=True, help="Print the jobs that would run, and stop.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the whole plan with the reason for each skip, and stop.")
@click.option("--format", "form", type=click.Choice(_FORMATS), help="How to show it (json: one document).")
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--cache-dir", metavar="D", help="Where trees, actions, caches and artifacts are kept between runs.")
@click.option("--artifacts", metavar="D", help="Artifacts appear as files in this folder too, one folder each.")
@click.option("--keep", is_flag=True, help="Keep the sandbox of a failed job, and print how to enter it.")
@click.option("--tool-cache", metavar="D", help="Tools that jobs may use (default: /opt/hostedtoolcache).")
@click.option("--stores", metavar="FILE", help="What is kept between jobs (default: .runyard/stores.toml).")
@click.option("--hook-started", metavar="F", help="A script to run in each job's sandbox before its first step.")
@click.option("--hook-completed", metavar="F", help="The same after its last step.")
@click.option("--host-hook-started", metavar="F", help="A script to run on this machine, OUTSIDE the sandbox, before.")
@click.option("--host-hook-completed", metavar="F", help="The same after its last step.")
@click.option("--pause-on", type=click.Choice(["failure"]), help="Stop at a failing step, with a shell in its place.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Plan and execute the workflows of the current repository for an event.

    Without WORKFLOW, all files in .github/workflows and .runyard/ci.toml are looked at. Ends with 0 when all is well,
    1 when a job failed, 2 when the input is wrong, 3 when this machine can't do it, 130 when it was interrupted.
    """
    del context
    form = "json" if given["as_json"] else given["form"]
    whole = bool(given["only_plan"])
    planned_only = whole or bool(given["only_list"])
    if not planned_only:
        from runyard.engine import early

        early.start()
    from runyard.source.git import FactsUnderWay

    facts = FactsUnderWay(_here())  # git works while the rest is loaded
    try:
        options = _options(given, form)
        _load_what_follows(planned_only=planned_only)
        from runyard.cli.run_prepare import prepare

        prepared = prepare(options, facts)
    finally:
        facts.give_up()
    if planned_only:
        return _print_plan(prepared, options, whole=whole, form=form)
    from runyard.cli.run_execute import execute

    return execute(prepared, options)


def _load_what_follows(*, planned_only: bool) -> None:
    """Everything that is loaded anyhow, before git is waited for."""
    import yaml  # noqa: F401

    if not planned_only:
        import runyard.cli.run_execute
        import runyard.cli.run_jobs  # noqa: F401


def _here() -> str:
    from pathlib import Path

    from runyard.job import InputError

    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise InputError("the current folder was removed", code="source.no_folder") from error


def _options(given: dict[str, Any], form: str | None) -> Options:
    from runyard.cli import run_hooks
    from runyard.cli import run_values as values
    from runyard.cli.run_actions import read_policy_file
    from runyard.cli.run_machine import check_sandbox, parse_images, this_platform
    from runyard.cli.run_prepare import Options
    from runyard.cli.run_tools import tool_cache
    from runyard.job import InputError

    if given["dirty"] and given["ref"]:
        raise InputError("--dirty and --ref exclude each other", key="--ref", code="input.flags")
    strict = bool(given["strict_github"])
    secrets: dict[str, str] = {}
    for path in given["secret_file"]:
        secrets |= values.check_names(values.read_pairs(path, "secret"), "secret")
    secrets |= values.check_names(values.secrets_from_environment(given["secrets"]), "secret")
    variables: dict[str, str] = {}
    for path in given["var_file"]:
        variables |= values.read_pairs(path, "variable")
    variables |= values.parse_pairs(given["variables"], "--var")
    env: dict[str, str] = {}
    for path in given["env_file"]:
        env |= values.read_pairs(path, "variable")
    env |= values.parse_pairs(given["env"], "--env")
    environment_file = given["environment_file"]
    payload = values.read_event_file(given["event_file"]) if given["event_file"] else {}
    return Options(
        workflows=given["workflows"],
        event=given["event"],
        payload=payload,
        payload_given=bool(given["event_file"]),
        jobs=given["jobs"],
        matrix=values.parse_matrix(given["matrix"]),
        inputs=values.parse_pairs(given["inputs"], "--input"),
        vars=values.check_names(variables, "variable"),
        secrets=secrets,
        env=run_hooks.without_hooks(env),
        hooks=run_hooks.read_hooks(given, env),
        tools=tool_cache(given["tool_cache"]),
        stores=given["stores"],
        environments=values.read_environments(environment_file) if environment_file else {},
        sandbox=check_sandbox(given["sandbox"]),
        network=_level(given["network"]),
        images=parse_images(given["images"]),
        labels=given["labels"],
        changed_files=given["changed_files"],
        ref=given["ref"] or ("HEAD" if strict and not given["dirty"] else None),
        parallel=given["parallel"] or 0,
        offline=given["offline"],
        native=not given["no_native"],
        strict_github=strict,
        format=form,
        cache_dir=_folder("--cache-dir", given["cache_dir"]),
        artifacts=_folder("--artifacts", given["artifacts"]),
        keep=given["keep"],
        pause_on_failure=given["pause_on"] == "failure",
        platform=this_platform(),
        policy=read_policy_file(given["policy"]),
    )


def _folder(flag: str, given: str | None) -> str | None:
    """The folder that a flag names, absolute. One that can't be made is told before anything runs."""
    import os
    from pathlib import Path

    from runyard.job import InputError

    if not given:
        return None
    path = Path(given).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"{flag}: {there} is no folder that can be written", key=flag, code=f"input.{flag[2:]}")
    return str(path)


def _level(network: str | None) -> str | None:
    from runyard.job import InputError

    if network not in (None, "none", "proxy", "public"):
        import difflib

        near = difflib.get_close_matches(str(network), ("none", "proxy", "public"), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"--network takes none, proxy or public, not {network!r}{hint}", key="--network", code="input.network"
        )
    return network


def _print_plan(prepared: Prepared, options: Options, *, whole: bool, form: str | None) -> int:
    from runyard.cli.run_actions import of_command
    from runyard.cli.run_offer import Offers
    from runyard.cli.run_show import list_lines, listing, plan_lines
    from runyard.job import InputError

    if form not in (None, "json", "plain", "tree"):
        raise InputError(
            f"--format {form} is for a run; --list and --plan take json or nothing", key="--format", code="input.format"
        )
    shape = listing(
        prepared,
        options,
        whole=whole,
        offer=Offers(options, of_command(prepared, options)).offer if whole else None,
        more_notes=_nodes_for(prepared, options) if whole else None,
    )
    if form == "json":
        import msgspec

        sys.stdout.write(msgspec.json.encode(shape).decode() + "\n")
        return _plan_code(shape)
    for line in (plan_lines if whole else list_lines)(shape, prepared.event):
        click.echo(line)
    return _plan_code(shape)


def _plan_code(shape: Listing) -> int:
    """3 where a job that would run is refused by this machine for lack of a node, else 0."""
    import msgspec

    from runyard.cli.run_actions import NO_NODE

    jobs = [job for workflow in shape.workflows for job in workflow.jobs if job.runs]
    notes = [note for job in jobs if not isinstance(job.notes, msgspec.UnsetType) for note in job.notes]
    return 3 if any(note.code == NO_NODE for note in notes) else 0


def _nodes_for(prepared: Prepared, options: Options) -> Callable[[tuple[Step, ...], str], list[PlanNote]]:
    from runyard.cli.run_actions import node_notes, of_command

    actions = of_command(prepared, options)
    arch = options.platform.rpartition("/")[2]
    return lambda steps, image: node_notes(actions, steps, image, arch)
