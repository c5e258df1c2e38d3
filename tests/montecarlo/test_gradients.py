"""Derivatives of expectations: closed forms, central differences on the same paths, refusals."""

from __future__ import annotations

from math import exp, pi, sqrt

import numpy as np
import pytest
from montecarlo.problems import RATE, VOLATILITY, call, normal, relax, shake

import stepnet as sn
from stepnet.montecarlo import feynman_kac, feynman_kac_gradient

SIGMAS = 4.5  # a right estimate is farther off with probability 7e-6
EULER = 3e-3  # the bias of the derivatives of a call with 64 steps, measured: below 2e-3
ARGS = (RATE, VOLATILITY)


def market(x: float = 1.0) -> sn.SDE:
    return sn.SDE(lambda t, y, r, s: r * y, lambda t, y, r, s: s * y, [x], (0.0, 1.0), ARGS)


def rate(t, y, r, s):
    return r


def income(t, y, r, s):
    return s * y[0] ** 2


def test_delta_rho_and_vega_of_a_call():
    x = np.array([[0.9], [1.0], [1.2]])
    found = feynman_kac_gradient(market(), call, x, potential=rate, steps=64, paths=2**14)
    d = (np.log(x[:, 0]) + RATE + 0.5 * VOLATILITY**2) / VOLATILITY
    delta = np.array([normal(each) for each in d])
    rho = exp(-RATE) * np.array([normal(each - VOLATILITY) for each in d])
    vega = x[:, 0] * np.exp(-0.5 * d * d) / sqrt(2.0 * pi)
    for estimate, exact in ((found.x, delta[:, None]), (found.args, np.stack([rho, vega], axis=1))):
        assert np.all(np.abs(estimate.value - exact) < SIGMAS * estimate.standard_error + EULER)
        assert np.all(estimate.standard_error < 0.02)
    assert found.value.rung == "lanes"
    assert found.value.paths == 2**14


def test_they_are_central_differences_on_the_same_paths():
    how = {"potential": rate, "source": income, "scheme": "milstein", "steps": 8, "paths": 256}
    smooth = lambda y: np.sin(y[0])
    found, eps = feynman_kac_gradient(market(), smooth, [1.1], **how), 1e-6

    def value(x: float, *args: float) -> float:
        sde = sn.SDE(market().drift, market().diffusion, [1.0], (0.0, 1.0), args)
        return feynman_kac(sde, smooth, [x], **how).value

    assert found.value.value == pytest.approx(value(1.1, *ARGS), rel=1e-14)
    slope = (value(1.1 + eps, *ARGS) - value(1.1 - eps, *ARGS)) / (2 * eps)
    assert found.x.value[0] == pytest.approx(slope, rel=1e-7)
    for i in range(2):
        moved = [tuple(a + sign * eps * (i == j) for j, a in enumerate(ARGS)) for sign in (1, -1)]
        slope = (value(1.1, *moved[0]) - value(1.1, *moved[1])) / (2 * eps)
        assert found.args.value[i] == pytest.approx(slope, rel=1e-7)


def test_reflected_paths_are_differentiated():
    sde = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, [0.3], (0.0, 0.2))
    x = np.array([[0.3], [0.8]])
    found = feynman_kac_gradient(sde, lambda y: np.cos(pi * y[0]), x, reflecting=(0.0, 1.0), steps=4, paths=4096)
    exact = -pi * np.sin(pi * x) * exp(-0.1 * pi**2)
    assert np.all(np.abs(found.x.value - exact) < SIGMAS * found.x.standard_error)
    assert found.args.value.shape == (2, 0)


def test_a_state_of_two_axes_and_blocks(monkeypatch):
    from stepnet.montecarlo import gradient_estimate

    sde = sn.SDE(relax, shake, [[1.0, 2.0]], (0.0, 1.0))
    end = lambda y: y[0, 0] * y[0, 1]
    whole = feynman_kac_gradient(sde, end, steps=16, paths=600)
    monkeypatch.setattr(gradient_estimate, "MOST_NUMBERS", 512)
    parts = feynman_kac_gradient(sde, end, steps=16, paths=600, workers=2)
    assert whole.x.value.shape == (1, 2)
    assert isinstance(whole.value.value, float)
    assert np.array_equal(whole.x.value, parts.x.value)
    assert np.array_equal(whole.x.interval, parts.x.interval)
    assert whole.value.value == parts.value.value


def test_ctrl_c_returns_the_estimate_so_far(monkeypatch):
    from stepnet.montecarlo import gradient_estimate

    calls, gradient = [], gradient_estimate.gradient_ensemble

    def interrupted(*args, **named):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return gradient(*args, **named)

    monkeypatch.setattr(gradient_estimate, "gradient_ensemble", interrupted)
    monkeypatch.setattr(gradient_estimate, "MOST_NUMBERS", 512)
    with pytest.raises(sn.Interrupted, match="interrupted after") as stopped:
        feynman_kac_gradient(market(), call, steps=4, paths=10**6, workers=1)
    assert stopped.value.solution.value.paths == 1024


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": 0}, "`paths` must be at least 2"),
        ({"terminal": lambda y: y}, "`terminal` must return a number"),
        ({"sde": sn.ODE(relax, [1.0], (0.0, 1.0))}, "`sde` must be an `SDE`"),
        ({"potential": lambda t, y, r, s: y}, "`potential` must return a number"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        feynman_kac_gradient(**{"sde": market(), "terminal": call, "steps": 2, **changes})


def test_functions_without_a_derivative_are_named_as_they_are_given():
    motion = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y, [0.3], (0.0, 1.0))
    with pytest.raises(sn.NoDerivative, match="`terminal`, `potential`, `source`"):
        sn.montecarlo.feynman_kac_gradient(motion, lambda y: float(y[0] > 0.3), paths=16, steps=4)
