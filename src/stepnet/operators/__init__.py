"""Space as numbers: grids with boundary conditions, stencils, and the operators that are built from them."""

from stepnet.operators.boundaries import Boundary, dirichlet, neumann, robin
from stepnet.operators.chunked import map_chunks
from stepnet.operators.coefficient_operators import Upwind, VariableDiffusion
from stepnet.operators.composites import (
    ComposedOperator,
    StackedOperator,
    SummedOperator,
    biharmonic,
    divergence,
    gradient,
)
from stepnet.operators.conservation import ConservationLaw
from stepnet.operators.grid import Grid
from stepnet.operators.linear import AxisStencil, StencilOperator, derivative, laplacian
from stepnet.operators.spectral import SpectralOperator, spectral_derivative, spectral_laplacian
from stepnet.operators.stencils import DifferenceStencil, build_stencil, fit_stencil

__all__ = [
    "AxisStencil", "Boundary", "ComposedOperator", "ConservationLaw", "DifferenceStencil", "VariableDiffusion", "Grid",
    "SpectralOperator", "StackedOperator", "StencilOperator", "SummedOperator", "Upwind", "biharmonic",
    "build_stencil", "derivative", "dirichlet", "divergence", "fit_stencil", "gradient", "laplacian", "map_chunks",
    "neumann", "robin", "spectral_derivative", "spectral_laplacian",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
