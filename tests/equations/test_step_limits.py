"""The largest stable step of every scheme of the catalogue is that of its own step matrix, within one per cent."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scheme_names import FIXED_STEPS

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so
from stepnet.schemes import FixedBDF
from stepnet.schemes.capabilities import find_refusal, has_history

N, ONE_PER_CENT = 64, 0.01
ROUNDING = 1e-8  # of spectral radii of matrices of 64 or 128 rows whose eigenvectors may be nearly parallel
GROWING_STEPS = 20_000
RING, WALLS = so.Grid(N, 0.0, 1.0), so.Grid(N, 0.0, 1.0, boundary="dirichlet")
ZERO = np.zeros(N)
EQUATIONS = {
    "heat": lambda h: se.heat(WALLS, ZERO, (0.0, h), check_steps=False),
    "transport": lambda h: se.transport(RING, ZERO, (0.0, h), [1.0], order=1, check_steps=False),
    "advection and diffusion": lambda h: se.advection_diffusion(RING, ZERO, (0.0, h), [1.0], 0.02, check_steps=False),
    "wave": lambda h: se.wave(WALLS, ZERO, ZERO, (0.0, h), check_steps=False),
}
NAMES = FIXED_STEPS
SOME = ("euler", "rk4", "verlet", "rkl2", "ab2", "trapezoid", "adi")


def find_growth(problem, scheme) -> float:
    """The spectral radius of one step; of schemes with a history, the growth per step of many steps.

    BDF grows too slowly beyond its limits for that: sum_k (1 - w)^k / k = z has a root w of modulus below one.
    """
    if not has_history(scheme):
        found = sn.jacobian(problem, scheme, steps=1).y0
        return float(np.max(np.abs(np.linalg.eigvals(found.reshape(problem.initial.size, -1)))))
    if isinstance(scheme, FixedBDF) and isinstance(problem, sn.ODE):
        z = problem.t_span[1] * np.linalg.eigvals(sn.derivatives.jacobian(problem).dense(0.0, problem.y0))
        formula = sum(Polynomial([1.0, -1.0]) ** k / k for k in range(1, scheme.n_steps + 1))
        return float(max(1.0 / np.min(np.abs((formula - each).roots())) for each in z))
    rng, span = np.random.default_rng(0), (0.0, GROWING_STEPS * problem.t_span[1])
    if isinstance(problem, sn.SecondOrder):
        moved = replace(problem, q0=rng.normal(size=N), v0=ZERO, t_span=span)
    else:
        moved = replace(problem, y0=rng.normal(size=N), t_span=span)
    end = sn.solve(moved, scheme, steps=GROWING_STEPS, save_every=0, check=False)
    return 2.0 if not end.success or np.max(np.abs(end.y[-1])) > 1e4 else 1.0


def check_limit(name: str, equation: str) -> None:
    scheme, build = sn.schemes.get(name), EQUATIONS[equation]
    problem = build(1.0)
    if find_refusal(scheme, problem.form) is not None:
        with pytest.raises(TypeError, match=re.escape(scheme.name)):
            se.find_largest_step(problem, scheme)
        return
    limit = se.find_largest_step(problem, scheme)
    if limit == np.inf:
        for h in (1e-3, 1.0, 1e3):
            assert find_growth(build(h), scheme) <= 1.0 + ROUNDING
    elif limit == 0.0:  # every step grows, if only slowly
        assert find_growth(build(1.5 / N), scheme) > 1.0
    else:
        assert find_growth(build((1.0 - ONE_PER_CENT) * limit), scheme) <= 1.0 + ROUNDING
        assert find_growth(build((1.0 + ONE_PER_CENT) * limit), scheme) > 1.0


@pytest.mark.parametrize("equation", EQUATIONS)
def test_limits_of_some_schemes(equation):
    for name in SOME:
        check_limit(name, equation)


@pytest.mark.slow
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_limits_of_every_scheme(name, equation):
    check_limit(name, equation)


@pytest.mark.parametrize("n", [64, 512])
def test_the_longest_waves_of_the_grid_count(n):
    """Forward Euler lets long waves grow with third-order upwind differences, at its limit by 1e-9 in a step."""
    problem = se.transport(so.Grid(n, 0.0, 1.0), np.zeros(n), (0.0, 1.0), [1.0], order=3)
    limit, stencil = se.find_largest_step(problem, "euler"), problem.fun.upwind.stencils[0]
    theta = 2 * np.pi * np.arange(n) / n
    z = -np.exp(1j * np.outer(theta, stencil.offsets)) @ np.array(stencil.weights) * n
    low, high = (np.max(np.abs(1 + share * limit * z)) - 1 for share in (1 - ONE_PER_CENT, 1 + ONE_PER_CENT))
    assert low <= 1e-9 <= high
