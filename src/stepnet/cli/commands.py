"""`stepnet ...` on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

PROBLEMS = ("lorenz", "vanderpol", "relu", "kepler", "pleiades")


@click.group()
@click.version_option(package_name="stepnet")
def main() -> None:
    """Differential equations and networks, numerics first."""


@main.command()
@click.option("--out", "folder", type=click.Path(path_type=Path), default=Path("demo"), help="Where the figures go.")
def demo(folder: Path) -> None:
    """Integrate two orbits with several schemes: a table of errors, drifts and times, and figures."""
    from stepnet.cli import demo as demonstration

    demonstration.run(folder, click.echo)


@main.command()
def info() -> None:
    """Versions, cache, CPU, threads, and how right-hand sides can be called here."""
    from stepnet.engines.numba_engine.runs import machine_report

    for label, value in machine_report.collect_facts().items():
        click.echo(f"{label:<10} {value}")


@main.command()
@click.option("--problem", type=click.Choice(PROBLEMS), default="lorenz", show_default=True, help="What to solve.")
@click.option("--scheme", help="Any scheme with given steps; each problem has its own default.")
@click.option("--steps", type=click.IntRange(min=1), help="Even steps; each problem has its own default.")
def gradients(problem: str, scheme: str | None, steps: int | None) -> None:
    """Find one gradient in every way: exact ones, and those of the continuous adjoint, which may be wrong."""
    from stepnet.cli import gradient_table
    from stepnet.errors import SolveFailed, UnknownName

    try:
        gradient_table.run(problem, scheme, steps, click.echo)
    except (UnknownName, ValueError, TypeError, SolveFailed) as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("problem")
@click.option("--scheme", default="dopri5", show_default=True, help="The scheme, by its name.")
@click.option(
    "--grid", "axes", multiple=True, required=True, help="name=first:last:count or name=a,b,c; once per axis."
)
@click.option(
    "--reduce", "reductions", multiple=True, help="mean, quantiles, lyapunov, or the name of one in the file."
)
@click.option("--out", "folder", type=click.Path(path_type=Path), help="Where results go, and an earlier call goes on.")
@click.option("--steps", type=click.IntRange(min=1), help="Even steps instead of adaptive ones.")
@click.option("--rtol", type=float, help="Relative tolerance of adaptive steps.")
@click.option("--atol", type=float, help="Absolute tolerance of adaptive steps.")
@click.option("--save-at", help="Times first:last:count or a,b,c; the end alone without it.")
@click.option("--chunk", type=click.IntRange(min=1), help="Most members at a time.")
@click.option("--workers", type=click.IntRange(min=1), help="Threads.")
def sweep(problem: str, axes, reductions, folder: Path | None, **options) -> None:
    """Solve PROBLEM, given as file.py:name, for all values of some of its numbers, and show what comes out.

    For example: stepnet sweep lorenz.py:problem --grid rho=0:28:1000 --grid "y0[0]=1,2" --reduce mean --out lorenz
    """
    from stepnet.cli import sweep_summary
    from stepnet.errors import NoDerivative, UnknownName

    chosen = {name: value for name, value in options.items() if value is not None}
    try:
        if "save_at" in chosen:
            chosen["save_at"] = _parse_numbers(chosen["save_at"])
        grid = {name: _parse_numbers(text) for name, _, text in (axis.rpartition("=") for axis in axes)}
        sweep_summary.run(problem, grid, reductions, folder, chosen, click.echo)
    except (UnknownName, NoDerivative, ValueError, TypeError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("source")
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="Where the net goes.")
@click.option("--label", help="The column of a CSV file that is to be found; the last one without it.")
@click.option(
    "--task", type=click.Choice(("classification", "regression")),
    help="What the targets are; without it, numbers that are not all whole, or more than 20 of them, are quantities.",
)  # fmt: skip
@click.option("--net", default="hamiltonian", show_default=True, help="Or resnet, antisymmetric, parabolic, mlp, ...")
@click.option("--width", type=click.IntRange(min=1), default=16, show_default=True, help="Features of a state.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Layers.")
@click.option("--length", type=float, default=2.0, show_default=True, help="The time that all steps take together.")
@click.option("--optimiser", default="adam", show_default=True, help="Or sgd, adamw, ..., lbfgs, gauss_newton.")
@click.option("--rate", type=float, help="Of the optimiser; each has its own default.")
@click.option("--epochs", type=click.IntRange(min=1), default=100, show_default=True, help="Or iterations.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Samples in a step.")
@click.option("--test", type=click.FloatRange(0, 1, True, True), default=0.25, show_default=True, help="Share to test.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is random.")
@click.option("--resume", is_flag=True, help="Go on with the run in the folder, for more epochs, too.")
@click.option("--overwrite", is_flag=True, help="Begin anew in a folder that holds a net or a run.")
def train(source: str, folder: Path, label, task, test, seed, resume: bool, overwrite: bool, **settings) -> None:
    """Train a net on SOURCE, a CSV file or moons, circles, digits, iris, wine or breast_cancer.

    For example: stepnet train iris --net hamiltonian --epochs 50 --out iris
    """
    summary = _import_training()
    choices = summary.TrainingOptions(label, task, test, seed, resume, overwrite)
    _run_and_report(lambda: summary.train(source, folder, choices, settings, click.echo))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="A CSV file for the samples with their predictions.")
def predict(folder: Path, file: Path, out: Path | None) -> None:
    """Find classes or numbers for the samples in FILE, a CSV file, by the net that `stepnet train` put in FOLDER."""
    _run_and_report(lambda: _import_training().predict(folder, file, out, click.echo))


def _import_training():
    try:
        from stepnet.cli import training_summary
    except ImportError as error:
        raise click.ClickException(f"training needs scikit-learn, the extra `sklearn`: {error}") from None
    return training_summary


def _run_and_report(job) -> None:
    """Run a job; errors of a user's making become messages."""
    from stepnet.errors import TrainingFailed, UnknownName

    try:
        job()
    except (UnknownName, ValueError, TypeError, OSError, TrainingFailed) as error:
        raise click.ClickException(str(error)) from None


def _parse_numbers(text: str) -> np.ndarray:
    """The numbers of first:last:count, or of a list with commas."""
    try:
        if ":" in text:
            first, last, count = text.split(":")
            return np.linspace(float(first), float(last), int(count))
        return np.array([float(number) for number in text.split(",")])
    except ValueError:
        raise ValueError(f"numbers must be first:last:count or a,b,c, found {text!r}") from None
