"""Partial differential equations assembled from operators into problems; each knows its largest stable step."""

from stepnet.equations.boundary_data import add_boundary_data
from stepnet.equations.catalogue import (
    advection_diffusion,
    burgers,
    diffusion,
    heat,
    poisson,
    transport,
    wave,
)
from stepnet.equations.conservation_systems import acoustics, euler, shallow_water
from stepnet.equations.diffusion_processes import backward_kolmogorov, fokker_planck
from stepnet.equations.diffusion_splitting import split_diffusion
from stepnet.equations.flows import characteristic_flow, heat_flow
from stepnet.equations.reaction_diffusion import allen_cahn, fitzhugh_nagumo, gray_scott
from stepnet.equations.split_step_fourier import schroedinger
from stepnet.equations.step_limits import find_largest_step

__all__ = [
    "acoustics", "add_boundary_data", "advection_diffusion", "allen_cahn", "backward_kolmogorov", "burgers",
    "characteristic_flow", "diffusion", "euler", "find_largest_step", "fitzhugh_nagumo", "fokker_planck", "gray_scott",
    "heat", "heat_flow", "poisson", "schroedinger", "shallow_water", "split_diffusion", "transport", "wave",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
