"""`stepnet sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stepnet.cli.error_messages import show_errors
from stepnet.cli.number_lists import parse_numbers


@click.command(short_help="Solve a problem over a grid of parameters.")
@click.argument("problem")
@click.option("--scheme", default="dopri5", show_default=True, help="Name of the scheme.")
@click.option(
    "--grid", "axes", multiple=True, required=True,
    help="One axis of the grid: name=first:last:count or name=a,b,c. Repeat for more axes.",
)  # fmt: skip
@click.option(
    "--reduce", "reductions", multiple=True,
    help="What to compute: states, mean, quantiles, lyapunov, or a reduction defined in the file. Repeatable.",
)  # fmt: skip
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), help="Folder for the results. An unfinished sweep is resumed."
)
@click.option("--steps", type=click.IntRange(min=1), help="Number of equal steps, instead of adaptive steps.")
@click.option("--rtol", type=float, help="Relative tolerance of adaptive steps.")
@click.option("--atol", type=float, help="Absolute tolerance of adaptive steps.")
@click.option("--save-at", help="Save times, first:last:count or a,b,c. Default: the final time only.")
@click.option("--chunk", type=click.IntRange(min=1), help="Maximum number of members per chunk.")
@click.option("--workers", type=click.IntRange(min=1), help="Number of threads.")
def sweep(
    problem: str, axes: tuple[str, ...], reductions: tuple[str, ...], folder: Path | None, **options: Any
) -> None:
    """Solve PROBLEM, given as file.py:name, over a grid of parameters and initial values.

    For example: stepnet sweep lorenz.py:problem --grid rho=0:28:1000 --grid "y0[0]=1,2" --reduce mean --out lorenz
    """
    from stepnet.cli import sweep_summary

    chosen = {name: value for name, value in options.items() if value is not None}
    with show_errors():
        if "save_at" in chosen:
            chosen["save_at"] = parse_numbers(chosen["save_at"])
        grid = {name: parse_numbers(text) for name, _, text in (axis.rpartition("=") for axis in axes)}
        sweep_summary.run(problem, grid, reductions, folder, chosen, click.echo)
