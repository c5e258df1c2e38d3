"""`stepnet solve`."""

from __future__ import annotations

import csv
import json
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from stepnet.cli.error_messages import show_errors
from stepnet.cli.number_lists import parse_numbers

MOST_LINES, MOST_NAMES = 100, 10  # of entries of the state in a figure, and in its legend

if TYPE_CHECKING:
    from stepnet.solution import Solution


@click.command(short_help="Solve a problem.")
@click.argument("problem")
@click.option("--scheme", help="Name of the scheme. Default: that of `stepnet.solve`.")
@click.option("--steps", type=click.IntRange(min=1), help="Number of equal steps, instead of adaptive steps.")
@click.option("--rtol", type=float, help="Relative tolerance of adaptive steps.")
@click.option("--atol", type=float, help="Absolute tolerance of adaptive steps.")
@click.option("--save-at", help="Save times, first:last:count or a,b,c. Default: every step.")
@click.option("--path", type=click.IntRange(min=0), help="Number of the Brownian path of an SDE.")
@click.option(
    "--out", "file", type=click.Path(dir_okay=False, path_type=Path),
    help="File for times and states: a table if it ends in .csv, else an NPZ file with the arrays t and y.",
)  # fmt: skip
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw the solution into this file.")
@click.option("--json", "is_json", is_flag=True, help="Print the end state and the statistics as JSON.")
def solve(
    problem: str, save_at: str | None, file: Path | None, figure: Path | None, is_json: bool, **options: Any
) -> None:
    """Solve PROBLEM, given as file.py:name.

    For example: stepnet solve lorenz.py:problem --scheme dop853 --rtol 1e-9 --save-at 0:20:201 --out lorenz.csv
    """
    from stepnet.cli.problem_files import load_problem
    from stepnet.solving.integrate import solve

    chosen = {name: value for name, value in options.items() if value is not None}
    with show_errors():
        if save_at is not None:
            chosen["save_at"] = parse_numbers(save_at)
        _, posed = load_problem(problem)
        found = solve(posed, **chosen)
        click.echo(json.dumps(_summarise(found), indent=2) if is_json else repr(found))
        if file is not None:
            _write(found, file)
            click.echo(f"wrote {file}", err=True)
        if figure is not None:
            _draw(found, figure)
            click.echo(f"wrote {figure}", err=True)


def _summarise(found: Solution) -> dict[str, Any]:
    """The end of a solution and its cost."""
    cost, end = found.statistics, np.ravel(found.y[-1])
    if np.iscomplexobj(end):
        end = np.stack((end.real, end.imag), axis=1)  # JSON has no complex numbers
    return {
        "scheme": found.scheme.name, "status": found.status.name.lower(), "t": float(found.t[-1]),
        "y": end.tolist(), "accepted": cost.accepted, "rejected": cost.rejected,
        "evaluations": cost.evaluations, "rung": str(cost.rung), "seconds": cost.run_time,
    }  # fmt: skip


def _write(found: Solution, file: Path) -> None:
    """Times and flat states, one line or row per saved time."""
    from stepnet.storage.atomic_files import write_file

    states = found.y.reshape(len(found.t), -1)
    if file.suffix != ".csv":
        write_file(file, partial(np.savez, t=found.t, y=found.y))
        return
    table = StringIO(newline="")
    lines = csv.writer(table)
    lines.writerow(["t", *(f"y{i}" for i in range(states.shape[1]))])
    lines.writerows([repr(float(t)), *map(_format, state)] for t, state in zip(found.t, states, strict=True))
    write_file(file, lambda stream: stream.write(table.getvalue().encode()))


def _format(value: Any) -> str:
    """All digits of a number."""
    return repr(value.item())


def _draw(found: Solution, file: Path) -> None:
    from matplotlib.figure import Figure

    from stepnet import plots

    with plots.style():
        figure = Figure(figsize=(6.0, 3.5), layout="constrained")
        axes = figure.subplots()
        states = found.y.reshape(len(found.t), -1)
        chosen = np.unique(np.linspace(0, states.shape[1] - 1, MOST_LINES).astype(int))
        for i in chosen:
            axes.plot(found.t, states[:, i].real, label=f"$y_{{{i}}}$")
        part = "" if len(chosen) == states.shape[1] else f", {len(chosen)} of {states.shape[1]} entries"
        axes.set(xlabel="$t$", title=found.scheme.name + part + (", real parts" if np.iscomplexobj(states) else ""))
        if len(chosen) <= MOST_NAMES:
            axes.legend(loc="best")
        figure.savefig(file)
