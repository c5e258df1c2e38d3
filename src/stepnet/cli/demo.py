"""`stepnet demo`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), default=Path("demo"), show_default=True,
    help="Folder for the figures.",
)  # fmt: skip
def demo(folder: Path) -> None:
    """Solve two orbit problems, an SDE and PDEs: tables of errors, drifts, times, and figures."""
    from stepnet.cli import equation_comparison, orbit_comparison, path_comparison

    orbit_comparison.run(folder, click.echo)
    path_comparison.run(folder, click.echo)
    equation_comparison.run(folder, click.echo)
