"""`stepnet train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stepnet.cli.error_messages import show_errors


@click.command(short_help="Train a net on a table or data set.")
@click.argument("source")
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="Folder for the trained net.")
@click.option("--label", help="Target column of the CSV file. Default: the last column.")
@click.option(
    "--task", type=click.Choice(("classification", "regression")),
    help="Kind of target. Default: regression if the target has fractions or more than 20 different numbers, "
    "else classification.",
)  # fmt: skip
@click.option(
    "--net", default="hamiltonian", show_default=True,
    help="Network type: hamiltonian, resnet, antisymmetric, parabolic, mlp, ...",
)  # fmt: skip
@click.option("--width", type=click.IntRange(min=1), default=16, show_default=True, help="Number of state features.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Number of layers.")
@click.option("--length", type=float, default=2.0, show_default=True, help="Integration time over all layers.")
@click.option(
    "--diffusion", type=click.FloatRange(min=0),
    help="Noise level of the layers; predictions are means over Brownian paths. Default: no noise.",
)  # fmt: skip
@click.option(
    "--optimiser", default="adam", show_default=True,
    help="Optimiser: sgd, adam, adamw, ... (mini-batches); lbfgs, gauss_newton (full batch).",
)  # fmt: skip
@click.option("--rate", type=float, help="Learning rate. The default depends on the optimiser.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=100, show_default=True,
    help="Number of epochs, or of iterations of a full-batch optimiser.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Samples per mini-batch.")
@click.option(
    "--test", type=click.FloatRange(0, 1, True, True), default=0.25, show_default=True,
    help="Fraction of the samples held out for testing.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option("--resume", is_flag=True, help="Continue the run in the folder, also with more epochs.")
@click.option("--overwrite", is_flag=True, help="Replace the net or run in the folder.")
def train(
    source: str, folder: Path, label: str | None, task: str | None, test: float, seed: int, resume: bool,
    overwrite: bool, **settings: Any,
) -> None:  # fmt: skip
    """Train a net on SOURCE, a CSV file or one of moons, circles, digits, iris, wine, breast_cancer.

    For example: stepnet train iris --net hamiltonian --epochs 50 --out iris
    """
    try:
        from stepnet.cli import training_summary
    except ImportError as error:
        raise click.ClickException(f"training needs scikit-learn, the extra `sklearn`: {error}") from None
    choices = training_summary.TrainingOptions(label, task, test, seed, resume, overwrite)
    with show_errors():
        training_summary.train(source, folder, choices, settings, click.echo)
