"""The `repr` of a result fits on a screen, for any number of entries."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet.records import shorten
from stepnet.training import Adam, Data, GaussNewton, Objective, Recipe, minimise, train

N = 400  # entries of a state: NumPy prints arrays in full up to 1000
MOST_LINES, MOST_CHARACTERS = 15, 2000


def decay(t, y, k):
    return -k * y


def problem(n: int = N) -> sn.ODE:
    return sn.ODE(decay, np.linspace(1.0, 2.0, n), (0.0, 1.0), (np.linspace(0.5, 1.5, n),))


def loss(y):
    return (y**2).sum()


def ivp_result():
    events = [lambda t, y, k: y[0] - 0.9, lambda t, y, k: y[1] - 0.8]
    return sn.solve_ivp(
        decay, (0.0, 1.0), problem().y0, args=problem().args, events=events, dense_output=True, max_step=0.001
    )


def trained():
    net = sn.nets.resnet(2, 2, width=32, steps=4)
    x = np.random.default_rng(0).standard_normal((60, 2))
    return Objective(net, sn.nets.losses.get("cross_entropy")), Data(x, (x[:, 0] > 0).astype(int))


RESULTS = {
    "solve_ivp": ivp_result,
    "dense output": lambda: ivp_result().sol,
    "Solution": lambda: sn.solve(problem(), "dopri5", max_step=0.001, dense=True),
    "Pieces": lambda: sn.solve(problem(), "dopri5", dense=True).pieces,
    "Solution of a failure": lambda: sn.solve(sn.ODE(lambda t, y: y**2, np.ones(N), (0, 2)), "dopri5", check=False),
    "EnsembleSolution": lambda: sn.solve_ensemble(problem(3), "dopri5", y0=np.ones((N, 3))),
    "Gradient": lambda: sn.gradient(problem(), "dopri5", loss),
    "EnsembleGradient": lambda: sn.gradient_ensemble(problem(3), "rk4", loss, y0=np.ones((N, 3)), steps=9),
    "Tangent": lambda: sn.tangent(problem(), "rk4", y0=np.ones(N), steps=9),
    "Jacobian": lambda: sn.jacobian(problem(30), "rk4", steps=9),
    "HessianProduct": lambda: sn.hvp(problem(), "rk4", loss, y0=np.ones(N), steps=9),
    "ODE": problem,
    "Partitioned": lambda: sn.Partitioned(decay, decay, np.ones(N), np.ones(N), (0, 1), (np.ones(N),)),
    "SecondOrder": lambda: sn.SecondOrder(decay, np.ones(N), np.ones(N), (0, 1), (np.ones(N),)),
    "Split": lambda: sn.Split((decay, decay), np.ones(N), (0, 1), (np.ones(N),)),
    "Integrator": lambda: sn.start(problem(), "dopri5"),
    "Run of training": lambda: train(*trained(), Recipe(Adam(1e-2), epochs=30)),
    "Minimum": lambda: minimise(*trained(), GaussNewton(iterations=3)),
    "Data": lambda: trained()[1],
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_print_on_one_screen(what):
    text = repr(RESULTS[what]())
    assert len(text.splitlines()) <= MOST_LINES, text[:MOST_CHARACTERS]
    assert len(text) <= MOST_CHARACTERS
    assert max(map(len, text.splitlines())) < 400


def test_what_is_shown_of_a_result():
    text = repr(ivp_result())
    for name in ("t", "y", "sol", "t_events", "nfev", "status", "message", "success", "solver"):
        assert f"{name}: " in text
    assert f"of shape ({N}, " in text
    assert "value" in repr(sn.gradient(problem(), "dopri5", loss))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([1.0, 2.0]), "[1, 2] of shape (2,), float64"),
        (np.arange(9), "[0, 1, ..., 8] of shape (9,), int64"),
        (np.zeros((2, 0)), "[] of shape (2, 0), float64"),
        (np.array(2.5), "[2.5] of shape (), float64"),
        (np.array([1j]), "[0+1j] of shape (1,), complex128"),
        ([np.ones(1)] * 6, "[" + "[1] of shape (1,), float64, " * 4 + "... 6 in all]"),
        ({"a": 1}, "{'a': 1}"),
        ((1, None), "(1, None)"),
        ("x" * 1000, "'" + "x" * 296 + "..."),
    ],
    ids=str,
)
def test_values_are_shortened(value, text):
    assert shorten(value) == text
