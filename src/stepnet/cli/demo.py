"""`stepnet demo`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from stepnet.cli.demo_page import Chapter, write_page

SECTIONS = {
    "orbit_comparison": "Orbits: symplectic schemes and adaptive pairs",
    "stiff_comparison": "Stiff problems: Robertson and van der Pol, compared with SciPy",
    "path_comparison": "Stochastic equations: paths, densities and strong orders",
    "expectation_comparison": "Expectations: a classifier with noise, multilevel Monte Carlo",
    "equation_comparison": "Partial differential equations: a pattern, a recovered diffusivity, the equation of a net",
    "layer_comparison": "Stability: 20 layers that grow, decay and rotate",
}
"""Modules of this package with a function `run(folder, echo)`, and their titles."""


@click.command(short_help="Solve problems of every kind; tables and figures.")
@click.option(
    "--out", "folder", type=click.Path(path_type=Path), default=Path("demo"), show_default=True,
    help="Folder for the figures and the page index.html.",
)  # fmt: skip
def demo(folder: Path) -> None:
    """Solve problems of every kind: tables of errors, drifts and times, figures, and a page with all of them."""
    click.echo("Integrating (the first time on a machine the kernels are compiled, which takes a minute) ...")
    chapters = []
    for name, title in SECTIONS.items():
        chapter = Chapter(title, folder)
        import_module(f"stepnet.cli.{name}").run(folder, chapter.echo)
        chapters.append(chapter)
    click.echo(f"\nPage: {write_page(chapters, folder)}")
