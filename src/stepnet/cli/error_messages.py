"""Errors that a user can correct, shown as one line instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def show_errors() -> Iterator[None]:
    """Turn errors caused by the input into click's error messages; other errors keep their traceback."""
    from stepnet.errors import NoDerivative, SolveFailed, TrainingFailed, UnknownName

    try:
        yield
    except (
        UnknownName, NoDerivative, SolveFailed, TrainingFailed, ValueError, TypeError, OSError, ImportError
    ) as error:  # fmt: skip
        raise click.ClickException(str(error)) from None
