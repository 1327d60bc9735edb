"""The command `runyard`: finds a command in the table, runs it, and turns its end into an exit code.

It imports no more than it needs: `--version` answers before click is loaded, and a command's module is loaded when it
is called. No error reaches a user as a traceback; RUNYARD_DEBUG=1 shows it for those who mend Runyard itself.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    import click

EXAMPLE = "Example: runyard run --event pull_request --job test"

_ONLY_TELLS = {"--list", "--plan", "--help", "-h"}
"""With these, `run` starts no job."""


def _replace_closed_streams() -> None:
    """A standard stream that is closed leads to nowhere, so that nothing opened later takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, descriptor == number)
            mode = "w" if number else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor, for good


def main() -> NoReturn:
    """The entry point. Exits with the codes that the command line documents."""
    _replace_closed_streams()
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        import runyard

        _leave(_print_version(runyard.__version__))
    # What is loaded stays: to look for garbage in it each 700 objects costs a tenth of a start.
    gc.set_threshold(50_000)
    try:
        if arguments[:1] == ["run"] and _ONLY_TELLS.isdisjoint(arguments):
            from runyard.engine import early

            gc.disable()  # until jobs run, nothing is garbage: `run_execute` enables it
            early.fork("runyard.cli.run_services")
        code = run(arguments)
    except KeyboardInterrupt:  # while something was loaded
        code = 130
    _leave(code)


def _print_version(version: str) -> int:
    try:
        print(f"runyard {version}", flush=True)
    except BrokenPipeError:
        return _closed_output()
    except OSError as error:
        return _told(error)
    return 0


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code; prints errors to standard error."""
    import click

    try:
        root = group()
        if "_RUNYARD_COMPLETE" in os.environ:
            root.main(args=arguments, prog_name="runyard")
        with root.make_context("runyard", list(arguments)) as context:
            code = root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _closed_output()
    except Exception as error:  # noqa: BLE001 - the border of the program: every error becomes a message and a code
        return _told(error)
    return code if isinstance(code, int) else 0


def _told(error: Exception) -> int:
    from runyard.job.errors import RunyardError

    if os.environ.get("RUNYARD_DEBUG"):
        import traceback

        traceback.print_exc()
    if isinstance(error, RunyardError):
        _say(f"runyard: {error}")
        return error.exit_code
    if isinstance(error, OSError):
        _say(f"runyard: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return 3
    _say(f"runyard: a defect of Runyard: {type(error).__name__}: {error} (RUNYARD_DEBUG=1 shows where)")
    return 3


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _closed_output() -> int:
    """Nobody reads our output any more: stop quietly, as a program in a pipe does, without a second error at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
    except OSError:
        pass
    return 0


def _leave(code: int) -> NoReturn:
    """End at once: to take a large program apart object by object takes longer than `--version`."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _closed_output()
    os._exit(code)


def group() -> click.Group:
    """The click group of all commands, loaded lazily from the table."""
    import click

    from runyard.cli.table import BY_NAME, TABLE

    class Lazy(click.Group):
        """Knows its commands' help lines without importing them."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return [entry.name for entry in TABLE if entry.module]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            entry = BY_NAME.get(cmd_name)
            if entry is None:
                return None
            if entry.module is None:
                return _not_here(entry.name)
            import importlib

            found = importlib.import_module(f"runyard.cli.{entry.module}").command
            assert isinstance(found, click.Command)
            return found

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            try:
                return super().resolve_command(ctx, args)
            except click.UsageError as error:
                import difflib

                near = difflib.get_close_matches(args[0], list(BY_NAME), n=1)
                if not near or "Did you mean" in error.message:
                    raise
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(entry.name, entry.does) for entry in TABLE if entry.module])

    lazy = Lazy(
        name="runyard",
        help="Self-hosted CI: GitHub Actions workflows on machines you own, each job in a disposable sandbox.",
        epilog=EXAMPLE,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    lazy.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version_option,
            help="Print the version and stop.",
        )
    )
    return lazy


def _version_option(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import runyard

        print(f"runyard {runyard.__version__}")
        ctx.exit()


def _not_here(name: str) -> click.Command:
    import click

    from runyard.job.errors import MachineError

    @click.command(
        name,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        hidden=True,
        add_help_option=False,
    )
    def command() -> None:
        raise MachineError(
            f"'runyard {name}' is not part of this build yet", code="cli.not_yet", remedy="runyard --help lists what is"
        )

    return command


if __name__ == "__main__":
    main()
