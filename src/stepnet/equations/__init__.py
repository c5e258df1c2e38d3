"""Partial differential equations assembled from operators into problems; each knows its largest stable step."""

from stepnet.equations.catalogue import (
    advection_diffusion,
    allen_cahn,
    burgers,
    diffusion,
    gray_scott,
    heat,
    poisson,
    transport,
    wave,
)
from stepnet.equations.step_limits import find_largest_step

__all__ = [
    "advection_diffusion", "allen_cahn", "burgers", "diffusion", "find_largest_step", "gray_scott", "heat", "poisson",
    "transport", "wave",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
