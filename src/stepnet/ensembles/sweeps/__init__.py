"""Sweeps: a problem solved over a grid of its numbers, in chunks, optionally stored on disk or distributed."""

from stepnet.ensembles.sweeps.sweep_run import SweepResult, sweep

__all__ = ["SweepResult", "sweep"]


def __dir__() -> list[str]:
    return __all__
