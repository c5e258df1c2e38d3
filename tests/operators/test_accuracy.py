"""Stencils and operators have the order they promise, and exact eigenmodes."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import operators as so

ORDER_TOLERANCE = 0.15
EIGENMODES = 1e-13  # relative to the eigenvalue of the highest mode


@pytest.mark.parametrize("order", [2, 4, 6, 8])
@pytest.mark.parametrize("derivative", [1, 2, 3, 4])
def test_central_stencils_have_their_order(derivative, order):
    assert so.build_stencil(derivative, order).order == order
    errors = []
    for n in (24, 36):
        grid = so.Grid(n, 0.0, 2 * np.pi)
        (x,) = grid.coordinates
        wanted = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)][derivative % 4]
        errors.append(np.max(np.abs(so.derivative(grid, 0, derivative, order)(np.sin(x)) - wanted(x))))
    assert np.log(errors[0] / errors[1]) / np.log(36 / 24) == pytest.approx(order, abs=ORDER_TOLERANCE)


def test_known_stencils():
    """Fornberg (1988), table 1."""
    assert so.build_stencil(2, 4).weights == pytest.approx((-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12), abs=0)
    assert so.build_stencil(1, 4).weights == pytest.approx((1 / 12, -2 / 3, 0, 2 / 3, -1 / 12), abs=0)
    assert so.fit_stencil(1, (0, 1, 2)).weights == pytest.approx((-1.5, 2.0, -0.5), abs=0)


@pytest.mark.parametrize("axis_sides", ["periodic", "dirichlet", "neumann"])
def test_the_laplacian_of_order_two_has_exact_eigenmodes(axis_sides):
    n = 24
    grid = so.Grid((n, n), 0.0, 1.0, boundary=axis_sides)
    x, y = grid.coordinates
    h = grid.spacing[0]
    operator = so.laplacian(grid)
    for k, m in ((1, 2), (3, 5), (6, 4)):
        factor = 2 if axis_sides == "periodic" else 1
        wave = np.sin if axis_sides == "dirichlet" else np.cos
        mode = wave(factor * k * np.pi * x) * wave(factor * m * np.pi * y)
        value = -4 / h**2 * sum(np.sin(factor * j * np.pi * h / 2) ** 2 for j in (k, m))
        assert np.max(np.abs(operator(mode) - value * mode)) <= EIGENMODES * 8 / h**2


@pytest.mark.parametrize("centring", ["cell", "node"])
@pytest.mark.parametrize("order", [2, 4, 6, 8])
@pytest.mark.parametrize("side", ["dirichlet", "neumann", "robin"])
def test_closures_add_no_growing_mode(side, order, centring):
    boundary = so.robin(1.0, 0.5) if side == "robin" else side
    grid = so.Grid(40, 0.0, 1.0, boundary=boundary, centring=centring)
    values = np.linalg.eigvals(so.laplacian(grid, order).matrix().toarray())
    assert values.real.max() <= 1e-9 * np.abs(values).max()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_upwind_differences_have_their_order(order):
    errors = []
    for n in (64, 128):
        grid = so.Grid((n, n), 0.0, 2 * np.pi)
        x, y = grid.coordinates
        velocity = np.stack((np.cos(x + 1.0), np.sin(y)))
        wanted = velocity[0] * np.cos(x) * np.cos(y) - velocity[1] * np.sin(x) * np.sin(y)
        errors.append(np.mean(np.abs(so.Upwind(grid, order)(np.sin(x) * np.cos(y), velocity) - wanted)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize(("reconstruction", "least"), [("constant", 0.9), ("muscl", 1.8), ("weno5", 4.4)])
def test_conservation_laws_have_their_order_in_the_mean(reconstruction, least):
    """L1 errors: limiters lose accuracy at extrema.  WENO5 is below 5 at extrema on these grids."""
    errors = []
    for n in (80, 160):
        grid = so.Grid(n, 0.0, 2 * np.pi)
        (x,) = grid.coordinates
        u = 1.5 + np.sin(x)
        law = so.ConservationLaw(grid, lambda u, axis: u * u / 2, lambda u, axis: (u, u), reconstruction)
        wanted = -u * np.cos(x)
        errors.append(np.mean(np.abs(law(u) - wanted)))
    assert np.log2(errors[0] / errors[1]) > least


def test_sums_are_conserved():
    """What leaves one cell enters its neighbour: the sum over a closed domain is rounding."""
    rng = np.random.default_rng(7)
    closed = so.Grid((20, 24), 0.0, 1.0, boundary="neumann")
    u, k = rng.normal(size=closed.shape), rng.uniform(0.5, 2.0, closed.shape)
    slopes = so.VariableDiffusion(closed)(u, k)
    assert abs(slopes.sum()) <= 1e-13 * np.abs(slopes).sum()
    periodic = so.Grid((20, 24))
    for reconstruction in ("constant", "muscl", "weno5"):
        law = so.ConservationLaw(periodic, lambda u, axis: u * u / 2, lambda u, axis: (u, u), reconstruction)
        assert abs(law(u).sum()) <= 1e-13 * np.abs(law(u)).sum()


def test_spectral_derivatives_are_exact_for_resolved_waves():
    grid = so.Grid((16, 18), 0.0, 2 * np.pi)
    x, y = grid.coordinates
    u = np.sin(3 * x) * np.cos(5 * y)
    assert np.allclose(so.spectral_derivative(grid, 0)(u), 3 * np.cos(3 * x) * np.cos(5 * y), rtol=0, atol=1e-12)
    assert np.allclose(so.spectral_laplacian(grid)(u), -34 * u, rtol=0, atol=1e-11)
