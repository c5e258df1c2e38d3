"""Grids, stencils and operators refuse wrong numbers when they are built, and say which."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import operators as so
from stepnet.errors import UnknownName

GRID = so.Grid((8, 8))
REFUSALS = {
    "a wrong weight": (
        lambda: so.DifferenceStencil(2, 2, (-1, 0, 1), (1.0, -2.1, 1.0)), "`weights` must have the moment 0",
    ),
    "a wrong order": (lambda: so.DifferenceStencil(2, 4, (-1, 0, 1), (1.0, -2.0, 1.0)), "moment 0 of degree 4"),
    "repeated offsets": (lambda: so.DifferenceStencil(0, 1, (0, 0), (0.5, 0.5)), "`offsets` must differ"),
    "an odd order": (lambda: so.build_stencil(1, 3), "`order` of a central stencil must be even"),
    "too few offsets": (lambda: so.fit_stencil(2, (0, 1)), "`offsets` must be at least 3"),
    "four axes": (lambda: so.Grid((2, 2, 2, 2)), "`shape` must have one to three axes"),
    "an empty interval": (lambda: so.Grid(4, 1.0, 1.0), "`upper` must be above `lower`"),
    "a length beyond float64": (lambda: so.Grid(4, -1e308, 1e308), "`lower` and `upper` must be apart by a length"),
    "a length of nothing": (lambda: so.Grid(4, 0.0, 1e-310), "`lower` and `upper` must be apart by a length"),
    "half a periodic axis": (
        lambda: so.Grid(4, boundary=[("periodic", "neumann")]), "must be periodic on both sides or on none",
    ),
    "values of a wrong shape": (
        lambda: so.Grid((4, 5), boundary=[so.dirichlet(np.ones(4)), "periodic"]), r"values of the shape \(5,\)",
    ),
    "a small grid": (lambda: so.laplacian(so.Grid(3), 8), "`grid` must have at least 4 points along axis 0"),
    "a small grid with sides": (
        lambda: so.laplacian(so.Grid(5, boundary="dirichlet"), 8), "must have at least 8 points along axis 0",
    ),
    "no condition": (lambda: so.robin(0.0, 0.0), "must not both be zero"),
    "a singular condition": (
        lambda: so.laplacian(so.Grid(4, boundary=so.robin(1.0, -0.125))), "is singular on this grid",
    ),
    "an axis too many": (
        lambda: so.StencilOperator(so.Grid(4), [so.AxisStencil(1, so.build_stencil(2))]), "along one of 1 axes",
    ),
    "a spectral operator with sides": (
        lambda: so.spectral_laplacian(so.Grid(4, boundary="neumann")), "must be periodic along all axes",
    ),
    "a speed without its flux": (
        lambda: so.ConservationLaw(GRID, abs, abs, largest_speed=1.0), "`largest_speed` must be given with",
    ),
    "a field of another shape": (lambda: so.laplacian(GRID)(np.ones((8, 7))), "`u` must have the shape of the grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_wrong_numbers_are_refused(name):
    build, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        build()


WRONG_VALUES = {
    "a text": (lambda t: "a", TypeError, "found str"),
    "nothing": (lambda t: None, TypeError, "found NoneType"),
    "a list": (lambda t: [0.0], TypeError, "found list"),
    "texts": (lambda t: np.array(["a"] * 8), TypeError, "found an array of dtype str"),
    "another length": (lambda t: np.zeros(3), ValueError, "an array of another shape"),
    "too many axes": (lambda t: np.zeros((8, 8)), ValueError, "an array of another shape"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_boundary_functions_that_return_something_else_are_refused(name):
    """By the operator, and by whatever solves an equation with it."""
    value, kind, message = WRONG_VALUES[name]
    grid = so.Grid((8, 8), boundary=[so.dirichlet(value), "periodic"])
    with pytest.raises(kind, match=f"`boundary` functions must return a number.*{message}"):
        so.laplacian(grid)(np.ones((8, 8)))
    with pytest.raises(kind, match=message):
        sn.solve(sn.equations.heat(grid, np.ones((8, 8)), (0.0, 1e-3)), "rk4", steps=2)


def test_boundary_functions_take_the_time():
    with pytest.raises(TypeError, match="must be a function of time"):
        so.neumann(lambda: 0.0)


def test_unknown_boundaries_are_refused():
    with pytest.raises(UnknownName, match="dirichlet"):
        so.Grid(4, boundary="dirichlett")
