"""`stepnet predict`."""

from __future__ import annotations

from pathlib import Path

import click

from stepnet.cli.error_messages import show_errors


@click.command(short_help="Predict with a trained net.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="CSV file for the samples and their predictions.")
def predict(folder: Path, file: Path, out: Path | None) -> None:
    """Predict the targets of the samples in FILE, a CSV file, with the net that `stepnet train` stored in FOLDER."""
    try:
        from stepnet.cli import training_summary
    except ImportError as error:
        raise click.ClickException(f"prediction needs scikit-learn, the extra `sklearn`: {error}") from None
    with show_errors():
        training_summary.predict(folder, file, out, click.echo)
