"""`stepnet ...` on the command line."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
@click.version_option(package_name="stepnet")
def main() -> None:
    """Differential equations and networks, numerics first."""


@main.command()
@click.option("--out", "folder", type=click.Path(path_type=Path), default=Path("demo"), help="Where the figures go.")
def demo(folder: Path) -> None:
    """Integrate two orbits with several schemes: a table of errors, drifts and times, and figures."""
    from stepnet import demo as demonstration

    demonstration.run(folder, click.echo)


@main.command()
def info() -> None:
    """Versions, cache, CPU, threads, and how right-hand sides can be called here."""
    from stepnet.engines.numba_engine import report

    for label, value in report.facts().items():
        click.echo(f"{label:<10} {value}")
