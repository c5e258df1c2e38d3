"""Brownian paths and discrete random variables as functions of (seed, path, interval): nothing is stored."""

from stepnet.noise.brownian_path import BrownianPath, brownian
from stepnet.noise.correlation import correlate
from stepnet.noise.discrete import three_point, two_point
from stepnet.noise.grid import NoiseGrid

__all__ = ["BrownianPath", "NoiseGrid", "brownian", "correlate", "three_point", "two_point"]


def __dir__() -> list[str]:
    return __all__
