"""`stepnet ...` on the command line."""

from __future__ import annotations

from pathlib import Path

import click

PROBLEMS = ("lorenz", "vanderpol", "relu", "kepler", "pleiades")


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


@main.command()
@click.option("--problem", type=click.Choice(PROBLEMS), default="lorenz", show_default=True, help="What to solve.")
@click.option("--scheme", help="Any scheme with given steps; each problem has its own default.")
@click.option("--steps", type=click.IntRange(min=1), help="Even steps; each problem has its own default.")
def gradients(problem: str, scheme: str | None, steps: int | None) -> None:
    """Find one gradient in every way: exact ones, and those of the continuous adjoint, which may be wrong."""
    from stepnet import gradient_table
    from stepnet.errors import SolveFailed, UnknownName

    try:
        gradient_table.run(problem, scheme, steps, click.echo)
    except (UnknownName, ValueError, TypeError, SolveFailed) as error:
        raise click.ClickException(str(error)) from None
