"""`stepnet info`."""

from __future__ import annotations

import click


@click.command(short_help="Show versions, CPU and kernel cache.")
def info() -> None:
    """Show versions, CPU, threads, the kernel cache, and which kinds of right-hand side run here."""
    from stepnet.engines.numba_engine import report

    for label, value in report().items():
        click.echo(f"{label:<10} {value}")
