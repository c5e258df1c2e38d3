"""Large arrays go through compiled kernels, which give what array functions give, in any layout, on any threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from operators.grids import ROBIN, SIDES, constant_operators, draw_fields

import stepnet as sn
from stepnet import operators as so
from stepnet.operators import application

ROUNDING = {"float64": 1e-13, "float32": 1e-5}  # relative to the sum of the absolute terms: fused operations round once
ALONG = so.dirichlet(np.linspace(-1.0, 2.0, 45))
GRIDS = {
    **{f"line, {name}": so.Grid(300, -1.0, 1.0, boundary=side) for name, side in SIDES.items()},
    "values on a line": so.Grid(300, boundary=[(so.dirichlet(1.5), so.robin(1.0, 0.5, -2.0))], centring="node"),
    "ring of two axes": so.Grid((40, 45)),
    "plane": so.Grid((40, 45), 0.0, (1.0, 2.0), boundary=[("dirichlet", ROBIN), "periodic"]),
    "values around a plane": so.Grid((40, 45), boundary=[(ALONG, so.neumann(0.7)), so.dirichlet(-3.0)]),
    "box": so.Grid((33, 30, 35), 0.0, 1.0, boundary=[("neumann", so.dirichlet(2.0)), "periodic", ROBIN]),
}


@pytest.fixture
def counted(monkeypatch):
    """Kernels for grids of all sizes; the number of calls of them."""
    calls = []
    find = application._find_kernel

    def find_and_count(*args):
        kernel = find(*args)
        calls.append(kernel is not None)
        return kernel

    monkeypatch.setattr(application, "_find_kernel", find_and_count)
    monkeypatch.setattr(application, "LEAST_POINTS", 0)
    return calls


def apply_by_arrays(operator, u, method="__call__"):
    """What the array functions give."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "LEAST_POINTS", np.inf)
        return getattr(operator, method)(u)


def is_close(found, wanted, operator, u, matrix) -> bool:
    size = np.max(abs(matrix) @ np.abs(np.ravel(u))) + np.max(np.abs(wanted), initial=0.0)
    return found.dtype == wanted.dtype and np.max(np.abs(found - wanted)) <= ROUNDING[u.dtype.name] * size


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", GRIDS)
def test_kernels_and_array_functions_agree(name, dtype, counted):
    grid, rng = GRIDS[name], np.random.default_rng(21)
    for kind, operator in constant_operators(grid).items():
        if isinstance(operator, so.SpectralOperator):
            continue
        before, matrix = len(counted), operator.matrix()
        u, w = (each.astype(dtype) for each in draw_fields(rng, operator, grid))
        found = operator(u)
        assert is_close(found, apply_by_arrays(operator, u), operator, u, matrix), kind
        for workers in (2, 3):
            assert np.array_equal(operator(u, workers=workers), found), kind
        back = operator.transpose(w)
        assert is_close(back, apply_by_arrays(operator, w, "transpose"), operator, w, matrix.T), kind
        has_arrays = "around" in name and dtype == "float32"  # whose sum with boundary arrays is in double precision
        assert any(counted[before:]), kind
        assert has_arrays or all(counted[before:]), kind


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", GRIDS)
def test_kernels_of_diffusion_agree_at_any_time(name, dtype, monkeypatch):
    """Also with values that depend on time and data, in any layout, for any number of threads."""
    grid, rng = GRIDS[name], np.random.default_rng(23)
    first = grid.boundary[0]
    if first is not None:
        moving = so.Boundary(first[0].value_weight, first[0].slope_weight, lambda t, level=2.0: level * math.sin(t))
        sides = [pair or "periodic" for pair in grid.boundary]
        grid = so.Grid(grid.shape, grid.lower, grid.upper, [(moving, first[1]), *sides[1:]], grid.centring)
    operator = so.VariableDiffusion(grid)
    u, k = rng.normal(size=grid.shape).astype(dtype), rng.uniform(1.0, 2.0, grid.shape).astype(dtype)
    size = np.max(abs(operator.matrix(k)) @ np.abs(u.ravel())) + np.max(np.abs(operator(0 * u, k, (0.3, -1.5))))
    wanted = [operator(u, k, t) for t in (0.7, (0.3, -1.5))]
    monkeypatch.setattr(application, "LEAST_POINTS", 0)
    found = [operator(u, k, t) for t in (0.7, (0.3, -1.5))] if first else [operator(u, k)] * 2
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.max(np.abs(ours - theirs)) <= ROUNDING[dtype] * size
        assert not np.array_equal(ours, theirs) or "around" in name  # another order of summation: a kernel did it
    for workers in (2, 3):
        assert np.array_equal(operator(np.asfortranarray(u), k, 0.7, workers=workers), found[0])


def test_any_layout_and_leading_axes(counted):
    grid, rng = GRIDS["plane"], np.random.default_rng(22)
    operator = so.laplacian(grid, 4)
    fields = rng.normal(size=(2, 3, *grid.shape))
    wanted = operator(fields)
    frozen = fields.copy()
    frozen.flags.writeable = False
    wide = np.zeros((2, 3, 80, 90))
    wide[:, :, ::2, ::2] = fields
    for same in (np.asfortranarray(fields), frozen, wide[:, :, ::2, ::2], fields[:, :, ::-1][:, :, ::-1]):
        assert np.array_equal(operator(same, workers=2), wanted)
    assert operator(fields[:0]).shape == (0, 3, *grid.shape)
    assert np.array_equal(operator(fields[1, 2]), wanted[1, 2])
    assert all(counted)


def test_other_arrays_are_left_to_array_functions(counted):
    grid = GRIDS["plane"]
    operator, u = so.laplacian(grid), np.arange(40 * 45).reshape(grid.shape) % 7
    for dtype in (np.int64, np.complex128, np.float16, ">f8"):
        wanted = apply_by_arrays(operator, u.astype(dtype))
        assert np.array_equal(operator(u.astype(dtype)), wanted)
    assert not counted
    moving = so.laplacian(so.Grid(grid.shape, boundary=so.dirichlet(lambda t: t)))
    assert np.array_equal(moving(u.astype(float), 2.0), apply_by_arrays(lambda v: moving(v, 2.0), u.astype(float)))
    assert not any(counted)


def test_small_arrays_do_not_load_a_compiler(counted, monkeypatch):
    monkeypatch.undo()
    so.laplacian(so.Grid((8, 8)))(np.ones((8, 8)))
    assert not counted


@pytest.mark.parametrize("workers", [0, 1.5, "two", None])
def test_the_number_of_threads_is_checked(workers):
    for operator, u in ((so.laplacian(so.Grid(8)), np.ones(8)), (so.gradient(so.Grid(8)), np.ones(8))):
        with pytest.raises((TypeError, ValueError), match="`workers`"):
            operator(u, workers=workers)


def test_right_hand_sides_that_apply_operators_are_traced_whatever_was_compiled():
    """The values of kernels are not among those that a traced function depends on."""
    grid = so.Grid((256, 256), boundary="dirichlet")
    operator, u = so.laplacian(grid), np.ones(grid.shape)
    operator(u)
    problem = sn.ODE(lambda t, y: operator(y, t), u, (0.0, 1e-6))
    solution = sn.solve(problem, "euler", steps=1, save_every=0)
    assert solution.statistics.rung == "traced"
    assert np.allclose(solution.y[-1], u + 1e-6 * operator(u), rtol=1e-14)
