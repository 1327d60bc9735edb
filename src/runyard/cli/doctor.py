"""`runyard doctor`: what works on this machine, and with `--attack` whether its sandboxes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from runyard.cli.doctor_checks import DoctorReport, State
    from runyard.sandbox.attack import Finding, Report


@click.command(epilog="Example: runyard doctor --attack --sandbox bubblewrap")
@click.option("--attack", "is_attack", is_flag=True, help="Try to break each promise of each sandbox.")
@click.option("--sandbox", "names", multiple=True, metavar="NAME", help="Only this sandbox; may be repeated.")
@click.option("--image", metavar="IMAGE", help="The image to attack in (default: host, or one the engine has).")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--verbose", "-v", is_flag=True, help="With --attack: every attempt, not only those that matter.")
def command(
    *, is_attack: bool, names: tuple[str, ...], image: str | None, form: str, as_json: bool, verbose: bool
) -> int:
    """What works on this machine: sandboxes and the promises they keep, engines, limits, network, programs, disk.

    Removes what dead runs left. Exits 3 when no job can run here. With --attack exits 1 when a promise gave way.
    """
    from runyard.job import InputError
    from runyard.sandbox.registry import BACKENDS

    for name in names:
        if name not in BACKENDS:
            raise InputError(f"there is no sandbox named {name}: {', '.join(BACKENDS)}", key="sandbox")
    is_json = as_json or form == "json"
    if is_attack:
        return _attack(names or BACKENDS, image, is_json=is_json, verbose=verbose, chosen=bool(names))
    if image is not None:
        raise InputError("--image belongs to --attack", key="image")
    return _examine(names or BACKENDS, is_json=is_json)


def _examine(names: tuple[str, ...], *, is_json: bool) -> int:
    from runyard.cli.doctor_checks import conclude
    from runyard.cli.doctor_facts import observe
    from runyard.sandbox.records import reap

    reaped = reap()
    report = conclude(observe(names), removed=reaped.removed, left=reaped.left)
    if is_json:
        _print_json(report)
    else:
        _print_report(report)
    return 0 if report.works else 3


_MARKS = {"good": ("ok", "green"), "limited": ("!", "yellow"), "missing": ("-", "bright_black"), "bad": ("x", "red")}


def _line(state: State, name: str, says: str, remedy: str = "") -> None:
    mark, colour = _MARKS[state]
    click.echo(f"{click.style(f'{mark:>2}', fg=colour)}  {name:<24} {says}")
    for each in remedy.splitlines() if state != "good" else ():
        click.echo(f"    {'':<24} {click.style('→', fg='bright_black')} {each}")


def _print_report(report: DoctorReport) -> None:
    click.echo("Sandboxes")
    for sandbox in report.sandboxes:
        if not sandbox.works:
            _line("missing", sandbox.backend, sandbox.because, sandbox.remedy)
            continue
        broken = [each for each in sandbox.promises if not each.kept]
        kept = len(sandbox.promises) - len(broken)
        says = f"keeps {kept} of {len(sandbox.promises)} promises, steps by {sandbox.supervisor}"
        _line("limited" if broken else "good", sandbox.backend, says)
        for each in broken:
            _line("limited", f"  {each.promise}", each.because, each.remedy)
    click.echo("Network of a job")
    for level in report.network:
        _line("good" if level.kept else "missing", level.level, level.because or "can be kept", level.remedy)
    click.echo("Machine")
    for check in report.checks:
        _line(check.state, check.name, check.says, check.remedy)
    for name in report.removed:
        click.echo(f"removed what {name} had left: its owner is dead")
    for name in report.left:
        click.echo(f"could not remove {name}", err=True)
    if not report.works:
        click.echo("No job can run here until what is marked x, or one sandbox, is mended.", err=True)


def _attack(names: tuple[str, ...], image: str | None, *, is_json: bool, verbose: bool, chosen: bool) -> int:
    """Attack each backend that is here; one that isn't is said, and an error only when it was asked for by name."""
    import anyio

    from runyard.job import MachineError
    from runyard.sandbox.attack import attack
    from runyard.sandbox.attack.images import image_for
    from runyard.sandbox.records import reap
    from runyard.sandbox.registry import open_sandbox

    reap()
    reports: list[Report] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            sandbox = open_sandbox(name)
            chosen_image = image or image_for(name)
            if not is_json:
                click.echo(f"{name}, image {chosen_image}")
            hear = None if is_json else _Teller(verbose=verbose)
            reports.append(anyio.run(attack, sandbox, chosen_image, hear))
            if hear is not None:
                hear.summary()
        except MachineError as err:
            if chosen:
                raise
            absent[name] = err.message.split("\n", maxsplit=1)[0]
            if not is_json:
                click.echo(f"{name} is not here: {absent[name]}")
    return _verdict(reports, absent, is_json=is_json)


def _verdict(reports: list[Report], absent: dict[str, str], *, is_json: bool) -> int:
    """1 when something gave way, 3 when nothing could be attacked at all, else 0."""
    gave_way = [(report.backend, each) for report in reports for each in report.gave_way()]
    attacked = [report for report in reports if any(each.verdict == "held" for each in report.findings)]
    if is_json:
        from runyard.cli.doctor_checks import AttackedSandbox, AttackReport

        told = tuple(AttackedSandbox(backend=report.backend, findings=report.findings) for report in reports)
        _print_json(AttackReport(held=not gave_way and bool(attacked), sandboxes=told, absent=absent))
    for backend, each in gave_way:
        click.echo(f"{backend}: {each.promise} gave way: {each.attempt} ({each.seen})", err=True)
    if gave_way:
        return 1
    if not attacked:
        click.echo("No sandbox could be attacked here; `runyard doctor` says why.", err=True)
        return 3
    if not is_json:
        click.echo("Every promise that could be tried held.")
    return 0


class _Teller:
    """Prints findings as they come: what gave way and what could not be tried; with `verbose` all of them."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._counts: dict[str, dict[str, int]] = {}

    def __call__(self, finding: Finding) -> None:
        counts = self._counts.setdefault(finding.promise, {"held": 0, "gave_way": 0, "not_tried": 0})
        counts[finding.verdict] += 1
        if self._verbose or finding.verdict != "held":
            states: dict[str, State] = {"held": "good", "gave_way": "bad", "not_tried": "missing"}
            state = states[finding.verdict]
            _line(state, finding.promise, f"{finding.attempt}: {finding.seen or finding.verdict.replace('_', ' ')}")

    def summary(self) -> None:
        """One line a promise."""
        for promise, counts in self._counts.items():
            state: State = "bad" if counts["gave_way"] else "good" if counts["held"] else "missing"
            parts = [f"{counts['held']} held", f"{counts['gave_way']} gave way", f"{counts['not_tried']} not tried"]
            _line(state, promise, ", ".join(part for part in parts if not part.startswith("0 ")))


def _print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.encode(value).decode())
