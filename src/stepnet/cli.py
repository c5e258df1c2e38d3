"""`stepnet ...` on the command line."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="stepnet")
def main() -> None:
    """Differential equations and networks, numerics first."""
