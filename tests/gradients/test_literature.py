"""Known pitfalls of the literature: flows unstable backward in time, and gradients that are not those of the steps."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import KINDS, loss, relative

import stepnet as sn
from stepnet.errors import AdjointWarning

K = np.array([[5.0, 1.0, -1.0], [0.5, 4.0, 1.5], [-1.0, 0.5, 3.0]])
WRONG = 0.1


def relu(t, z, rate):
    """Gholami, Keutzer & Biros (2019), ANODE: dz/dt = -max(0, lambda z)."""
    return -np.maximum(rate * z, 0.0)


def parabolic(t, z, K):
    """Ruthotto & Haber (2020): -K' relu(K z), a layer of a dissipative network."""
    return -(K.T @ np.maximum(K @ z, 0.0))


def distance(z):
    return np.sum((z - 0.3) ** 2)


FLOWS = {
    "relu, 20": (sn.ODE(relu, [1.0, 0.5], (0.0, 1.0), (20.0,)), {"rtol": 1e-6, "atol": 1e-9}),
    "relu, 50": (sn.ODE(relu, [1.0, 0.5], (0.0, 1.0), (50.0,)), {"rtol": 1e-6, "atol": 1e-9}),
    "parabolic network": (sn.ODE(parabolic, [1.0, 0.5, -0.7], (0.0, 2.0), (K,)), {"rtol": 1e-6, "atol": 1e-9}),
    "parabolic network, given steps": (sn.ODE(parabolic, [1.0, 0.5, -0.7], (0.0, 2.0), (K,)), {"steps": 400}),
}


@pytest.mark.filterwarnings("ignore::stepnet.StiffnessWarning")
@pytest.mark.parametrize("name", FLOWS)
def test_dissipative_flows_cannot_be_run_back(name):
    problem, how = FLOWS[name]
    end_gradient = np.ones(problem.y0.size)
    exact = sn.gradient(problem, "dopri5", end_gradient=end_gradient, **how)
    with pytest.warns(AdjointWarning, match="solving backward misses"):
        back = sn.gradient(problem, "dopri5", end_gradient=end_gradient, memory="continuous", **how)
    assert np.linalg.norm(back.flat - exact.flat) > WRONG * np.linalg.norm(exact.flat)
    safety = sn.stability.adjoint_safety(problem, "dopri5", end_gradient=end_gradient, **how)
    assert not safety.is_safe
    assert safety.relative_error > WRONG
    assert "unsafe" in safety.verdict
    # ours is the derivative of the steps: differences of the same steps confirm it
    steps = how.get("steps", sn.solve(problem, "dopri5", **how).t)
    difference = [
        (_end_sum(problem, e, steps) - _end_sum(problem, -e, steps)) / 2e-6 for e in 1e-6 * np.eye(problem.y0.size)
    ]
    assert relative(exact.y0, difference) <= 1e-7


def _end_sum(problem, change, steps) -> float:
    moved = sn.ODE(problem.fun, problem.y0 + change, problem.t_span, problem.args)
    return sn.solve(moved, "dopri5", steps=steps, save_every=0).y[-1].sum()


def test_a_tame_flow_is_safe(recwarn):
    safety = sn.stability.adjoint_safety(KINDS[0].build(), "dopri5", loss, rtol=1e-8, atol=1e-10)
    assert safety.is_safe
    assert safety.relative_error < 1e-6
    assert "is safe" in safety.verdict
    assert not recwarn.list


def test_the_growth_of_errors_is_that_of_the_way_back():
    """y' = -5 y grows by e^5 on the way back; run from 1 to 0, the way back is the one that shrinks."""
    problem = sn.ODE(lambda t, y: [-5.0 * y[0]], [1.0], (0.0, 1.0))
    assert sn.stability.adjoint_safety(problem, "rk4", steps=100).growth == pytest.approx(np.exp(5.0), rel=1e-6)
    backward = sn.ODE(lambda t, y: [-5.0 * y[0]], [1.0], (1.0, 0.0))
    assert sn.stability.adjoint_safety(backward, "rk4", steps=100).growth == pytest.approx(np.exp(-5.0), rel=1e-6)


def test_verlet_reconstructs_a_thousand_steps():
    kepler = sn.SecondOrder(lambda t, q: -q / (q[0] * q[0] + q[1] * q[1]) ** 1.5, [0.7, 0.0], [0.0, 1.3], (0.0, 20.0))
    found = sn.gradient(kepler, "verlet", loss, steps=1000, memory="reversible")
    assert found.memory == "states reconstructed backward"
    assert found.cost.drift <= 1e-11
    assert relative(found.y0, sn.gradient(kepler, "verlet", loss, steps=1000, memory="all").y0) <= 1e-9


def test_a_run_that_drifts_goes_over_to_checkpoints_and_says_so():
    """Chaos: the pendulum that is kicked hard forgets where it came from."""
    kicked = sn.SecondOrder(lambda t, q: -40.0 * np.sin(q) * np.cos(3.0 * t), [0.5], [0.1], (0.0, 60.0))
    found = sn.gradient(kicked, "verlet", loss, steps=6000, memory="reversible")
    assert "because reconstruction missed" in found.memory
    assert np.array_equal(found.y0, sn.gradient(kicked, "verlet", loss, steps=6000, memory="all").y0)


def test_at_coarse_steps_only_the_discrete_gradient_is_one():
    """Onken & Ruthotto (2020): with few steps the continuous gradient is not that of any loss."""
    problem, steps = KINDS[0].build(t_span=(0.0, 3.0)), 4
    v, lengths = np.array([0.8, -0.6]), np.array([2e-3, 1e-3])
    values = [_value(problem, problem.y0 + s * v, steps) for s in lengths]
    slopes = {}
    for memory in ("all", "continuous"):
        with pytest.warns(AdjointWarning) if memory == "continuous" else _nothing():
            found = sn.gradient(problem, "midpoint", loss, steps=steps, memory=memory)
        remainder = np.abs(np.array(values) - found.value - lengths * (found.y0 @ v))
        slopes[memory] = np.log2(remainder[0] / remainder[1])
    assert abs(slopes["all"] - 2) <= 0.1
    assert abs(slopes["continuous"] - 1) <= 0.1


def _value(problem, y0, steps) -> float:
    moved = sn.ODE(problem.fun, y0, problem.t_span, problem.args)
    return loss(sn.solve(moved, "midpoint", steps=steps, save_every=0).y[-1])


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


@pytest.mark.filterwarnings("ignore::stepnet.errors.AdjointWarning")
@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("heun2", 2), ("kutta3", 3), ("rk4", 4)])
@pytest.mark.parametrize("memory", ["continuous", "interpolated"])
def test_both_gradients_come_together_at_the_order_of_the_scheme(name, order, memory):
    """Along the kept solution the difference is also that of its cubic pieces, of order 4."""
    problem, gaps = KINDS[0].build(t_span=(0.0, 1.0)), []
    for steps in (32, 64):
        exact = sn.gradient(problem, name, loss, steps=steps)
        other = sn.gradient(problem, name, loss, steps=steps, memory=memory)
        gaps.append(np.linalg.norm(exact.flat - other.flat))
    assert np.log2(gaps[0] / gaps[1]) >= order - 0.25
