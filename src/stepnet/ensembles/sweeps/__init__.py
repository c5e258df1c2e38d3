"""Sweeps: a problem over a grid of its numbers, in chunks, to disk, on many machines."""

from stepnet.ensembles.sweeps.sweep_run import SweepResult, sweep

__all__ = ["SweepResult", "sweep"]


def __dir__() -> list[str]:
    return __all__
