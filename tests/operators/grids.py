"""The grids and operators that the tests of operators run over."""

from __future__ import annotations

import numpy as np

from stepnet import operators as so

ROBIN = so.robin(1.0, 0.5)
SIDES = {"periodic": "periodic", "dirichlet": "dirichlet", "neumann": "neumann", "robin": ROBIN}
MIXED = [("dirichlet", "neumann"), "periodic", (ROBIN, "dirichlet")]
GRIDS = {
    **{f"line, {name}": so.Grid(17, -1.0, 1.0, boundary=side) for name, side in SIDES.items()},
    **{f"nodes, {name}": so.Grid(17, -1.0, 1.0, boundary=side, centring="node") for name, side in SIDES.items()},
    "plane": so.Grid((11, 12), 0.0, (1.0, 2.0), boundary=MIXED[:2]),
    "box": so.Grid((9, 8, 10), 0.0, 1.0, boundary=MIXED, centring="node"),
}


def constant_operators(grid: so.Grid) -> dict:
    """Operators with constant coefficients."""
    found = {f"laplacian of order {order}": so.laplacian(grid, order) for order in (2, 4, 6, 8)}
    found["third derivative"] = so.derivative(grid, grid.ndim - 1, 3)
    found["gradient"], found["divergence"] = so.gradient(grid, 4), so.divergence(grid, 4)
    found["biharmonic"] = so.biharmonic(grid)
    if grid.is_periodic:
        found["spectral derivative"], found["spectral laplacian"] = (
            so.spectral_derivative(grid, 0), so.spectral_laplacian(grid),
        )  # fmt: skip
    return found


def draw_fields(rng: np.random.Generator, operator, grid: so.Grid) -> tuple[np.ndarray, np.ndarray]:
    """A random input of an operator, and a random field of the shape of its output."""
    vector = (grid.ndim, *grid.shape)
    takes = vector if isinstance(operator, so.SummedOperator) else grid.shape
    gives = vector if isinstance(operator, so.StackedOperator) else grid.shape
    return rng.normal(size=takes), rng.normal(size=gives)
