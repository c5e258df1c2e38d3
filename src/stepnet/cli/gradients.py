"""`stepnet gradients`."""

from __future__ import annotations

import click

from stepnet.cli.error_messages import show_errors

PROBLEMS = ("lorenz", "vanderpol", "relu", "kepler", "pleiades")


@click.command(short_help="Compute one gradient by every method.")
@click.option("--problem", type=click.Choice(PROBLEMS), default="lorenz", show_default=True, help="Problem to solve.")
@click.option("--scheme", help="Name of a scheme, run with fixed steps. The default depends on the problem.")
@click.option("--steps", type=click.IntRange(min=1), help="Number of equal steps. The default depends on the problem.")
def gradients(problem: str, scheme: str | None, steps: int | None) -> None:
    """Compute one gradient by every method.

    Shows the exact discrete gradients next to those of the continuous adjoint, which can be wrong.
    """
    from stepnet.cli import gradient_table

    with show_errors():
        gradient_table.run(problem, scheme, steps, click.echo)
