"""The command group `stepnet`."""

from __future__ import annotations

import click

from stepnet.cli.certificate import certificate
from stepnet.cli.compare import compare
from stepnet.cli.demo import demo
from stepnet.cli.gradients import gradients
from stepnet.cli.info import info
from stepnet.cli.predict import predict
from stepnet.cli.solve import solve
from stepnet.cli.stability import stability
from stepnet.cli.sweep import sweep
from stepnet.cli.train import train


@click.group()
@click.version_option(package_name="stepnet")
def main() -> None:
    """Differential equations and networks, numerics first."""


for command in (demo, info, solve, compare, gradients, stability, certificate, sweep, train, predict):
    main.add_command(command)
