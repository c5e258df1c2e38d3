"""`stepnet stability`."""

from __future__ import annotations

from typing import Any

import click

from stepnet.cli.error_messages import show_errors

COLUMNS = (
    ("scheme", "name"), ("order", "order"), ("stages", "stages"), ("real", "real_limit"),
    ("imaginary", "imaginary_limit"), ("SSP", "ssp_coefficient"), ("dispersion", "dispersion_order"),
    ("dissipation", "dissipation_order"),
)  # fmt: skip


@click.command(short_help="Show orders and stability limits of schemes.")
@click.argument("schemes", nargs=-1, required=True)
@click.option("--figure", type=click.Path(dir_okay=False), help="Draw the stability regions into this file.")
@click.option("--json", "is_json", is_flag=True, help="Print all properties as a JSON list.")
def stability(schemes: tuple[str, ...], figure: str | None, is_json: bool) -> None:
    """Show orders and stability limits of SCHEMES, computed from their coefficients.

    A single scheme is shown with all its properties.
    """
    from stepnet.stability import report

    with show_errors():
        found = [report(name) for name in schemes]
        if is_json:
            click.echo("[" + ",\n".join(each.as_json() for each in found) + "]")
        elif len(found) == 1:
            click.echo(str(found[0]))
        else:
            for line in _build_table(found):
                click.echo(line)
        if figure is not None:
            _draw(schemes, figure)
            click.echo(f"wrote {figure}", err=True)


def _build_table(found: list[Any]) -> list[str]:
    rows = [[title for title, _ in COLUMNS]]
    for each in found:
        values = [getattr(each, name) for _, name in COLUMNS]
        rows.append(
            [f"{value:.6g}".replace("nan", "-") if isinstance(value, float) else str(value) for value in values]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]


def _draw(schemes: tuple[str, ...], path: str) -> None:
    from matplotlib.figure import Figure

    from stepnet import plots

    with plots.style():
        figure = Figure(figsize=(5.0, 5.0), layout="constrained")
        plots.stability_region(*schemes, axes=figure.subplots())
        figure.savefig(path)
