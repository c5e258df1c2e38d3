"""Each linear operator is its matrix, its transpose is the transposed matrix, and tensors give the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from operators.grids import GRIDS, constant_operators, draw_fields

import stepnet as sn
import stepnet.torch as snt
from stepnet import operators as so
from stepnet.operators.reconstruction import LIMITERS

SINGLE = 5e-6  # relative to the sum of the absolute terms; ghost values have larger ones
ROUNDING = 1e-12  # relative to the largest entry of the result: sums of tens of terms


def largest(x) -> float:
    return float(np.max(np.abs(x)))


@pytest.mark.parametrize("name", GRIDS)
def test_operators_are_their_matrices_and_transposes(name):
    grid, rng, seen = GRIDS[name], np.random.default_rng(1), 0
    for operator in constant_operators(grid).values():
        matrix = operator.matrix()
        u, w = draw_fields(rng, operator, grid)
        found, wanted = np.ravel(operator(u)), matrix @ u.ravel()
        assert largest(found - wanted) <= ROUNDING * largest(abs(matrix) @ np.abs(u.ravel()))
        back = np.ravel(operator.transpose(w))
        assert largest(back - matrix.T @ w.ravel()) <= ROUNDING * largest(abs(matrix).T @ np.abs(w.ravel()))
        assert np.vdot(w, found.reshape(w.shape)) == pytest.approx(
            np.vdot(back, u.ravel()), abs=ROUNDING * largest(found) * w.size
        )
        seen += 1
    assert seen >= 8


@pytest.mark.parametrize("name", GRIDS)
def test_variable_coefficients_are_their_matrices_and_transposes(name):
    grid, rng = GRIDS[name], np.random.default_rng(2)
    u, w = rng.normal(size=(2, *grid.shape))
    cases = [(so.VariableDiffusion(grid), rng.uniform(1.0, 2.0, grid.shape))]
    cases += [(so.Upwind(grid, order), rng.normal(size=(grid.ndim, *grid.shape))) for order in (1, 2, 3)]
    for operator, coefficient in cases:
        matrix = operator.matrix(coefficient)
        size = largest(abs(matrix) @ np.abs(u.ravel()))
        assert largest(operator(u, coefficient).ravel() - matrix @ u.ravel()) <= ROUNDING * size
        assert largest(operator.transpose(w, coefficient).ravel() - matrix.T @ w.ravel()) <= ROUNDING * size


@pytest.mark.parametrize("name", GRIDS)
def test_tensors_give_the_same_and_autograd_the_transpose(name):
    grid, rng, seen = GRIDS[name], np.random.default_rng(3), 0
    for operator in constant_operators(grid).values():
        u, w = draw_fields(rng, operator, grid)
        tensor = torch.tensor(u, requires_grad=True)
        result = snt.tensor_operator(operator)(tensor)
        assert largest(result.detach().numpy() - operator(u)) <= ROUNDING * largest(operator(u))
        (back,) = torch.autograd.grad(result, tensor, torch.tensor(w))
        wanted = operator.transpose(w)
        assert largest(back.numpy() - wanted) <= ROUNDING * largest(wanted)
        seen += 1
    assert seen == (10 if grid.is_periodic else 8)


def test_tensors_give_the_same_for_coefficients_and_fluxes():
    grid, rng = GRIDS["plane"], np.random.default_rng(4)
    u, k, a = rng.normal(size=grid.shape), rng.uniform(1, 2, grid.shape), rng.normal(size=(2, *grid.shape))
    tensors = [torch.tensor(each) for each in (u, k, a)]
    for operator, plain, tensor in (
        (so.VariableDiffusion(grid), k, tensors[1]),
        (so.Upwind(grid, 3), a, tensors[2]),
    ):
        wanted = operator(u, plain)
        assert largest(snt.tensor_operator(operator)(tensors[0], tensor).numpy() - wanted) <= ROUNDING * largest(wanted)
    for reconstruction in ("constant", "muscl", "weno5"):
        for flux in ("upwind", "lax_friedrichs", "rusanov", "hll"):
            for limiter in LIMITERS if reconstruction == "muscl" else ("van_leer",):
                bound = 2.0 * largest(u) if flux == "lax_friedrichs" else None
                law = so.ConservationLaw(grid, half_square, both_speeds, reconstruction, flux, limiter, bound)
                wanted = law(u)
                assert largest(snt.tensor_operator(law)(tensors[0]).numpy() - wanted) <= ROUNDING * largest(wanted)


def half_square(u, axis):
    return 0.5 * u * u


def both_speeds(u, axis):
    return u, u


@pytest.mark.parametrize("flux", ["upwind", "lax_friedrichs", "rusanov", "hll"])
@pytest.mark.parametrize("reconstruction", ["constant", "muscl", "weno5"])
def test_the_derivative_of_a_conservation_law_is_that_of_autograd(reconstruction, flux):
    """Our pullback of the traced operator, and autograd's of the same operator on tensors."""
    grid, rng = so.Grid(9, boundary=["dirichlet"]), np.random.default_rng(7)
    u, w = rng.normal(size=(2, *grid.shape))
    bound = 2.0 * largest(u) if flux == "lax_friedrichs" else None
    law = so.ConservationLaw(grid, half_square, both_speeds, reconstruction, flux, largest_speed=bound)
    tensor = torch.tensor(u, requires_grad=True)
    (wanted,) = torch.autograd.grad(snt.tensor_operator(law)(tensor), tensor, torch.tensor(w))
    problem = sn.ODE(lambda t, v: law(v, t), u, (0.0, 1.0))
    found = sn.gradient(problem, "euler", end_gradient=w, steps=1).y0 - w
    assert largest(found - wanted.numpy()) <= ROUNDING * largest(abs(wanted.numpy()) + abs(w))


@pytest.mark.parametrize("name", GRIDS)
def test_operators_have_both_precisions(name):
    grid, rng = GRIDS[name], np.random.default_rng(8)
    for operator in constant_operators(grid).values():
        u, _ = draw_fields(rng, operator, grid)
        found = operator(u.astype(np.float32))
        size = largest(abs(operator.matrix()) @ np.abs(u.ravel()))
        if not isinstance(operator, so.SpectralOperator):  # transforms of NumPy are in double precision
            assert found.dtype == np.float32
        assert largest(found - operator(u)) <= SINGLE * size
        tensor = snt.tensor_operator(operator)(torch.tensor(u, dtype=torch.float32))
        assert tensor.dtype == torch.float32
        assert largest(tensor.numpy() - operator(u)) <= SINGLE * size


@pytest.mark.parametrize("name", GRIDS)
def test_boundary_values_add_an_offset(name):
    """The operator is affine in u; what it adds is its value at u = 0."""
    plain = GRIDS[name]
    sides = [
        None if pair is None else tuple(so.Boundary(b.value_weight, b.slope_weight, np.cos) for b in pair)
        for pair in plain.boundary
    ]
    grid = so.Grid(plain.shape, plain.lower, plain.upper, sides, plain.centring)
    operator, u = so.laplacian(grid, 4), np.random.default_rng(5).normal(size=grid.shape)
    wanted = (operator.matrix() @ u.ravel()).reshape(grid.shape) + operator.find_offset(0.3)
    assert largest(operator(u, 0.3) - wanted) <= ROUNDING * largest(abs(operator.matrix()) @ np.abs(u.ravel()))
    assert np.any(operator.find_offset(0.3)) == (not grid.is_periodic)


def test_leading_axes_are_components():
    grid = GRIDS["plane"]
    u = np.random.default_rng(6).normal(size=(3, *grid.shape))
    operator = so.laplacian(grid)
    assert np.array_equal(operator(u), np.stack([operator(each) for each in u]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_of_numbers_is_kept(dtype):
    grid = GRIDS["plane"]
    assert so.laplacian(grid, 4)(np.ones(grid.shape, dtype)).dtype == dtype
