"""`stepnet compare`."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import click

from stepnet.cli.error_messages import show_errors


@click.command(short_help="Compare schemes on a problem.")
@click.argument("problem")
@click.argument("schemes", nargs=-1, required=True)
@click.option("--steps", help="Increasing numbers of equal steps a,b,c: observed orders instead of tolerances.")
@click.option("--tolerances", help="Tolerances a,b,c of pairs.")
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the table to this CSV file."
)
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw a figure into this file.")
@click.option("--json", "is_json", is_flag=True, help="Print the table as a JSON list.")
def compare(
    problem: str, schemes: tuple[str, ...], steps: str | None, tolerances: str | None, csv_file: Path | None,
    figure: Path | None, is_json: bool,
) -> None:  # fmt: skip
    """Compare SCHEMES on PROBLEM, given as file.py:name: errors, evaluations and times, or observed orders.

    For example: stepnet compare lorenz.py:problem dopri5 tsit5 dop853 --figure work.png
    """
    from stepnet.cli.problem_files import load_problem
    from stepnet.stability import convergence_study, work_precision

    with show_errors():
        _, posed = load_problem(problem)
        found: Any
        if steps is not None and tolerances is None:
            found = convergence_study(posed, schemes, steps=_parse("--steps", steps, int))
            names: tuple[str, ...] = ("scheme", "steps", "h", "error", "order")
        else:
            options: dict[str, Any] = {} if steps is None else {"steps": _parse("--steps", steps, int)}
            if tolerances is not None:
                options["tolerances"] = _parse("--tolerances", tolerances, float)
            found = work_precision(posed, schemes, **options)
            names = ("scheme", "setting", "error", "evaluations", "seconds")
        lines = [dict(zip(names, map(_as_json_value, line), strict=True)) for line in found.table()]
        click.echo(json.dumps(lines, indent=2) if is_json else str(found))
        if csv_file is not None:
            csv_file.write_text(found.as_csv())
        if figure is not None:
            _draw(found, figure)
            click.echo(f"wrote {figure}", err=True)


def _parse(name: str, text: str, kind: Any) -> list[Any]:
    """Numbers separated by commas."""
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"`{name}` must be numbers a,b,c, found {text!r}") from None


def _as_json_value(value: Any) -> Any:
    return value if not isinstance(value, float) or isfinite(value) else None


def _draw(found: Any, path: Path) -> None:
    from matplotlib.figure import Figure

    from stepnet import plots
    from stepnet.stability import ConvergenceStudy

    with plots.style():
        figure = Figure(figsize=(5.0, 4.0), layout="constrained")
        draw = plots.convergence if isinstance(found, ConvergenceStudy) else plots.work_precision
        draw(found, figure.subplots())
        figure.savefig(path)
