"""`jacobian` and `tangent` at save times: the sensitivities of a whole trajectory, from one run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.linalg import expm

import stepnet as sn
from stepnet.engines import numba_engine
from stepnet.engines.numba_engine.adjoint.step_sweeps import ProgramRunner
from stepnet.gradients import reversal

SAME = 1e-11  # relative to the largest entry: the same products in another order
CLOSED = 1e-9  # of tight tolerances
DIFFERENCES = 2e-8

A = np.array([[-0.3, 2.0, 0.1], [-2.0, -0.2, 0.4], [0.0, 0.3, -0.5]])
STEPS = 60


def lorenz(t, y, sigma, rest):
    return [sigma * (y[1] - y[0]) + 0.1 * t, y[0] * (rest[0] - y[2]) - y[1], y[0] * y[1] - rest[1] * y[2]]


ODE = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.0, 0.3), args=(10.0, np.array([28.0, 8.0 / 3.0])))
BACKWARD = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.15, 0.0), args=(10.0, np.array([28.0, 8.0 / 3.0])))
SECOND = sn.SecondOrder(lambda t, q, k: -k * np.sin(q), [1.0, 0.5], [0.0, 0.3], (0.0, 3.0), args=(1.3,))
PARTITIONED = sn.Partitioned(
    lambda t, p, m: p / m, lambda t, q, m: -(q**3), [1.0, 0.5], [0.0, 0.3], (0.0, 3.0), args=(1.3,)
)
SPLIT = sn.Split((lambda t, y, a: a * y[::-1], lambda t, y, a: -np.sin(y)), [1.0, 0.5], (0.0, 3.0), args=(0.7,))
CASES = {
    "rk4": (ODE, "rk4", {"steps": STEPS}),
    "given steps": (ODE, "dopri5", {"steps": 0.3 * np.linspace(0.0, 1.0, STEPS + 1)}),
    "adaptive": (ODE, "dopri5", {}),
    "backward": (BACKWARD, "tsit5", {}),
    "low storage": (ODE, "carpenter_kennedy54", {"steps": STEPS}),
    "stabilised": (ODE, "rkc2", {"steps": STEPS}),
    "multistep": (ODE, "ab4", {"steps": STEPS}),
    "two-step leapfrog": (SECOND, "leapfrog_two_step", {"steps": STEPS}),
    "verlet": (SECOND, "verlet", {"steps": STEPS}),
    "joined": (SECOND, "tsit5", {}),
    "partitioned": (PARTITIONED, "yoshida4", {"steps": STEPS}),
    "split": (SPLIT, "strang", {"steps": STEPS}),
}
ALL = pytest.mark.parametrize("case", CASES)


def times_of(problem):
    """The beginning, inside the start of a multistep scheme, twice the same, inside and the end."""
    t0, t1 = problem.t_span
    return t0 + (t1 - t0) * np.array([0, 1, 2, 2, 17, 30, 45, 60]) / STEPS


def is_near(x, y, tolerance):
    return np.max(np.abs(np.asarray(x) - y)) <= tolerance * np.max(np.abs(y))


@ALL
def test_rows_are_gradients(case):
    problem, scheme, how = CASES[case]
    times, n = times_of(problem), problem.initial.size
    found = sn.jacobian(problem, scheme, save_at=times, **how)
    assert found.y0.shape == (len(times), n, n)
    assert [each.shape for each in found.args] == [(len(times), n, *np.shape(each)) for each in problem.args]
    y0, args = np.zeros_like(found.y0), [np.zeros_like(each) for each in found.args]
    for i in range(len(times)):
        for k in range(n):
            seed = np.zeros((len(times), n))
            seed[i, k] = 1.0
            row = sn.gradient(problem, scheme, end_gradient=seed, save_at=times, **how)
            y0[i, k] = row.y0.ravel()
            for all_of_them, own in zip(args, row.args, strict=True):
                all_of_them[i, k] = own
    assert is_near(found.y0, y0, SAME)
    assert all(is_near(a, b, SAME) for a, b in zip(found.args, args, strict=True))


@ALL
def test_tangents_are_products_with_a_direction(case):
    problem, scheme, how = CASES[case]
    times, n = times_of(problem), problem.initial.size
    random = np.random.default_rng(0)
    y0, args = random.standard_normal(n), [random.standard_normal(np.shape(each)) for each in problem.args]
    matrix = sn.jacobian(problem, scheme, save_at=times, **how)
    found = sn.tangent(problem, scheme, y0=y0, args=args, save_at=times, **how)
    expected = matrix.y0 @ y0
    for each, direction in zip(matrix.args, args, strict=True):
        expected = expected + each.reshape(len(times), n, -1) @ np.ravel(direction)
    assert is_near(found.dy.reshape(len(times), n), expected, SAME)
    states = sn.gradient(problem, scheme, lambda ys: np.sum(ys), save_at=times, **how).y
    assert is_near(found.y, states, SAME)


@ALL
def test_the_last_time_alone_is_the_jacobian_of_the_end(case):
    problem, scheme, how = CASES[case]
    end, at_end = sn.jacobian(problem, scheme, **how), sn.jacobian(problem, scheme, save_at=problem.t_span[1:], **how)
    assert is_near(at_end.y0[0], end.y0, SAME)
    assert all(is_near(a[0], b, SAME) for a, b in zip(at_end.args, end.args, strict=True))


def test_linear_problems_have_the_matrix_exponential():
    problem = sn.ODE(lambda t, y, a: a * (A @ y), [1.0, -2.0, 0.5], (0.0, 2.0), args=(0.9,))
    times = np.linspace(0.0, 2.0, 9)
    found = sn.jacobian(problem, "dop853", save_at=times, rtol=1e-12, atol=1e-13)
    exact = np.array([expm(0.9 * t * A) for t in times])
    assert is_near(found.y0, exact, CLOSED)
    by_a = np.array([t * A @ matrix @ problem.initial for t, matrix in zip(times, exact, strict=True)])
    assert is_near(found.args[0], by_a, CLOSED)


def test_they_are_those_of_finite_differences():
    times, h = times_of(ODE), 1e-5

    def states(sigma, y):
        problem = sn.ODE(lorenz, y, ODE.t_span, args=(sigma, ODE.args[1]))
        return sn.gradient(problem, "rk4", lambda ys: np.sum(ys), save_at=times, steps=STEPS).y

    found = sn.jacobian(ODE, "rk4", save_at=times, steps=STEPS)
    by_sigma = (states(10.0 + h, ODE.y0) - states(10.0 - h, ODE.y0)) / (2 * h)
    assert is_near(found.args[0], by_sigma, DIFFERENCES)
    for k in range(3):
        e = h * np.eye(3)[k]
        assert is_near(found.y0[:, :, k], (states(10.0, ODE.y0 + e) - states(10.0, ODE.y0 - e)) / (2 * h), DIFFERENCES)


@ALL
def test_blocks_of_steps_do_not_matter(case, monkeypatch):
    problem, scheme, how = CASES[case]
    times = times_of(problem)
    whole = sn.jacobian(problem, scheme, save_at=times, **how)
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 40)
    cut = sn.jacobian(problem, scheme, save_at=times, **how)
    assert is_near(cut.y0, whole.y0, SAME)
    assert all(is_near(a, b, SAME) for a, b in zip(cut.args, whole.args, strict=True))


@pytest.mark.parametrize("case", ["rk4", "adaptive", "verlet"])
def test_one_run_gives_all_of_them(case, monkeypatch):
    problem, scheme, how = CASES[case]
    calls = Counter()

    def count(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (calls.update([name]), original(*given))[1])

    count(numba_engine, "run")
    count(ProgramRunner, "forward")
    count(ProgramRunner, "backward")
    t0, t1 = problem.t_span
    sn.jacobian(problem, scheme, save_at=t0 + (t1 - t0) * np.arange(1, 4) / 3, **how)
    few = calls.copy()
    calls.clear()
    sn.jacobian(problem, scheme, save_at=t0 + (t1 - t0) * np.arange(1, STEPS + 1) / STEPS, **how)
    assert calls == few
    assert calls["run"] == (case == "adaptive")


def test_derivatives_by_arguments_that_are_not_known_are_none():
    problem = sn.ODE(lambda t, y, a: -a * y, [1.0, 2.0], (0.0, 1.0), args=(2.0,), vjp=lambda t, y, w, a: -a * w)
    with pytest.warns(sn.AdjointWarning, match="`args` are not known"):
        found = sn.jacobian(problem, "rk4", steps=10, save_at=[0.5, 1.0])
    assert found.args == (None,)
    assert found.y0.shape == (2, 2, 2)


def test_a_run_that_fails_is_told_as_by_solve():
    problem = sn.ODE(lambda t, y: y**2, [1.0], (0.0, 20.0))
    with pytest.raises(sn.SolveFailed):
        sn.jacobian(problem, "rk4", steps=20, save_at=[10.0, 20.0])


def test_save_times_must_be_among_given_steps():
    with pytest.raises(ValueError, match="`save_at` must be among the times of the fixed steps"):
        sn.jacobian(ODE, "rk4", steps=10, save_at=[0.01])
