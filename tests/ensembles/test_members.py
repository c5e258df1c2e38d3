"""An ensemble equals a loop of single solves, and a member depends only on its own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from ensembles.cases import DUFFING, EVEN, LORENZ, PAIRS, duffing, is_second_order, lorenz_args, of_lorenz

import stepnet as sn
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK

GENERATOR = np.random.default_rng(1)


@pytest.mark.parametrize("scheme", EVEN, ids=lambda scheme: scheme.name)
def test_even_steps_are_those_of_single_solves(scheme):
    """Bit for bit, where the kernels for one trajectory run the same generated steps; else to two units a step."""
    if is_second_order(scheme):
        problem, n, steps = DUFFING, 4, 200
        y0 = np.concatenate([DUFFING.q0, DUFFING.v0]) + 0.1 * GENERATOR.standard_normal((19, n))
        alone = [sn.SecondOrder(duffing, y[:2], y[2:], (0.0, 5.0), args=(0.5,)) for y in y0]
    else:
        problem, n, steps = LORENZ, 3, 200
        y0 = 1 + 0.1 * GENERATOR.standard_normal((19, n))
        alone = [of_lorenz(LORENZ.args, y0=y, t_span=(0.0, 0.5)) for y in y0]
    found = sn.solve_ensemble(problem, scheme, y0=y0, t_span=alone[0].t_span, steps=steps)
    assert found.rung == "lanes"
    wanted = np.array([sn.solve(one, scheme, steps=steps, save_every=0).y[-1] for one in alone])
    assert np.all(found.accepted == steps)
    assert np.array_equal(found.t_end, np.full(19, alone[0].t_span[1]))
    if isinstance(scheme, (ExplicitRK, Splitting)):
        assert np.array_equal(found.y_end, wanted)
    else:
        growth = 1e4 if problem is LORENZ else 10.0  # of a perturbation over the interval
        np.testing.assert_allclose(found.y_end, wanted, rtol=2 * steps * growth * np.finfo(float).eps)


@pytest.mark.parametrize("scheme", PAIRS, ids=lambda scheme: scheme.name)
def test_adaptive_steps_are_those_of_single_solves(scheme):
    args = lorenz_args(21)
    found = sn.solve_ensemble(LORENZ, scheme, args=args, rtol=1e-7, atol=1e-7)
    assert found.rung == "lanes"
    for i, values in enumerate(args):
        alone = sn.solve(of_lorenz(values), scheme, rtol=1e-7, atol=1e-7, save_every=0)
        s = alone.statistics
        counts = (found.accepted[i], found.rejected[i], found.evaluations[i])
        assert counts == (s.accepted, s.rejected, s.evaluations - s.probes)
        np.testing.assert_allclose(found.y_end[i], alone.y[-1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scheme", PAIRS, ids=lambda scheme: scheme.name)
def test_one_step_is_the_same_to_the_last_bit(scheme):
    y0 = 1 + GENERATOR.standard_normal((33, 3))
    found = sn.solve_ensemble(LORENZ, scheme, y0=y0, t_span=(0.0, 1e-3), first_step=1e-3, rtol=1e-3, atol=1e-3)
    for y, end in zip(y0, found.y_end, strict=True):
        problem = of_lorenz(LORENZ.args, y0=y, t_span=(0.0, 1e-3))
        alone = sn.solve(problem, scheme, first_step=1e-3, rtol=1e-3, atol=1e-3)
        assert alone.statistics.accepted == 1
        assert np.array_equal(alone.y[-1], end)


@pytest.mark.parametrize("controller", ["I", "PI", "PID"])
@pytest.mark.parametrize("norm", ["rms", "max"])
def test_controllers_and_norms(controller, norm):
    args = lorenz_args(17)
    choices = {"rtol": 1e-6, "atol": 1e-8, "controller": controller, "norm": norm, "max_step": 0.05}
    found = sn.solve_ensemble(LORENZ, "dopri5", args=args, **choices)
    for i, values in enumerate(args):
        s = sn.solve(of_lorenz(values), "dopri5", **choices).statistics
        assert (found.accepted[i], found.rejected[i]) == (s.accepted, s.rejected)


CASES = [case for case in zoo.TRACED if np.asarray(case.y0).dtype.kind in "fi" and np.size(case.y0) <= 30]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_traced_right_hand_side(every):
    """The zoo of right-hand sides in lanes, against single solves by four steps of rk4; first each fourth of them."""
    ran = 0
    for case in CASES[::every]:
        span = (case.t_span[0], case.t_span[0] + 1e-3 * (case.t_span[1] - case.t_span[0]))
        problem = sn.ODE(case.fun, case.y0, span, args=case.args)
        y0 = problem.y0 * (1 + 1e-3 * GENERATOR.standard_normal((5, *problem.y0.shape)))
        found = sn.solve_ensemble(problem, "rk4", y0=y0, steps=4)
        assert found.rung == "lanes", (case.name, found.reason)
        for y, end in zip(y0, found.y_end, strict=True):
            alone = sn.solve(sn.ODE(case.fun, y, span, args=case.args), "rk4", steps=4).y[-1]
            np.testing.assert_allclose(end, alone, rtol=1e-13, atol=1e-15 * np.abs(alone).max(), err_msg=case.name)
        ran += 1
    print(f"{ran} right-hand sides in lanes")
    assert ran >= 40 // every


def results(args, order, **choices):
    found = sn.solve_ensemble(LORENZ, "dopri5", args=args[order], save_at=np.linspace(0.0, 2.0, 5), **choices)
    back = np.argsort(order)
    return found.y[back], found.accepted[back], found.evaluations[back]


def test_order_company_and_threads_change_nothing():
    args = lorenz_args(301)
    base = results(args, np.arange(301), workers=1)
    for seed, workers in ((0, 1), (1, 2), (2, 3)):
        order = np.random.default_rng(seed).permutation(301)
        for a, b in zip(base, results(args, order, workers=workers), strict=True):
            assert np.array_equal(a, b)
    alone = sn.solve_ensemble(LORENZ, "dopri5", args=args[77:78], save_at=np.linspace(0.0, 2.0, 5))
    assert np.array_equal(alone.y[0], base[0][77])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("choices", [{}, {"steps": 50}], ids=["adaptive", "even"])
def test_any_number_of_members(count, choices):
    args = lorenz_args(count)
    found = sn.solve_ensemble(LORENZ, "dopri5", args=args, **choices)
    assert found.y.shape == (count, 1, 3)
    assert len(found) == len(found.table()) == count
    assert found.success.all()
    for values, end in zip(args, found.y_end, strict=True):
        alone = sn.solve(of_lorenz(values), "dopri5", save_every=0, **choices).y[-1]
        np.testing.assert_allclose(end, alone, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("scheme", ["dopri5", "tsit5", "dop853", "bosh3", "verner65"])
@pytest.mark.parametrize("span", [(0.0, 2.0), (1.0, 0.8)], ids=["forward", "backward"])
def test_wanted_times_are_those_of_single_solves(scheme, span):
    args, times = lorenz_args(18), np.linspace(*span, 23)
    found = sn.solve_ensemble(LORENZ, scheme, args=args, t_span=span, save_at=times)
    assert found.rung == "lanes"
    assert np.array_equal(found.t[3], times)
    for values, y in zip(args, found.y, strict=True):
        alone = sn.solve(of_lorenz(values, t_span=span), scheme, save_at=times)
        np.testing.assert_allclose(y, alone.y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scheme", ["rk4", "dopri5", "verlet", "yoshida4"])
def test_wanted_times_between_even_steps(scheme):
    times = np.array([0.0, 0.1, 0.125, 3.3, 5.0])
    y0 = np.concatenate([DUFFING.q0, DUFFING.v0]) + 0.1 * GENERATOR.standard_normal((5, 4))
    found = sn.solve_ensemble(DUFFING, scheme, y0=y0, steps=40, save_at=times)
    assert found.rung == "lanes"
    for y, states in zip(y0, found.y, strict=True):
        problem = sn.SecondOrder(duffing, y[:2], y[2:], (0.0, 5.0), args=(0.5,))
        np.testing.assert_allclose(states, sn.solve(problem, scheme, steps=40, save_at=times).y, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("choices", [{"rtol": 1e-8, "atol": 1e-10}, {"steps": 100}], ids=["adaptive", "even"])
def test_own_spans_times_and_tolerances(choices):
    spans = np.stack([np.linspace(-1.0, 0.0, 12), np.linspace(0.5, 2.0, 12)], axis=1)
    times = spans[:, :1] + (spans[:, 1:] - spans[:, :1]) * np.sort(GENERATOR.uniform(size=(12, 6)), axis=1)
    found = sn.solve_ensemble(LORENZ, "dopri5", t_span=spans, save_at=times, **choices)
    for span, wanted, y in zip(spans, times, found.y, strict=True):
        alone = sn.solve(of_lorenz(LORENZ.args, t_span=tuple(span)), "dopri5", save_at=wanted, **choices)
        np.testing.assert_allclose(y, alone.y, rtol=1e-9, atol=1e-10)


def test_tolerances_of_their_own():
    rtol = 10.0 ** np.linspace(-10, -3, 16)[:, None]
    found = sn.solve_ensemble(LORENZ, "dopri5", rtol=rtol, atol=1e-9)
    wanted = [sn.solve(LORENZ, "dopri5", rtol=float(r[0]), atol=1e-9).statistics.accepted for r in rtol]
    assert found.accepted.tolist() == wanted
    assert len(set(wanted)) > 10


def test_shapes_of_states():
    problem = sn.ODE(lambda t, y: -y, np.ones((2, 3)), (0.0, 1.0))
    y0 = GENERATOR.standard_normal((4, 2, 3))
    found = sn.solve_ensemble(problem, "dopri5", y0=y0, rtol=1e-10, atol=1e-12)
    assert found.y.shape == (4, 1, 2, 3)
    np.testing.assert_allclose(found.y_end, y0 * np.exp(-1.0), rtol=1e-9)
    flat = sn.solve_ensemble(problem, "dopri5", y0=y0.reshape(4, 6), rtol=1e-10, atol=1e-12)
    assert np.array_equal(flat.y, found.y)


def test_arrays_among_the_arguments():
    problem = sn.ODE(lambda t, y, a, b: b * (a @ y), [1.0, 0.0], (0.0, 1.0), args=(np.eye(2), 1.0))
    args = GENERATOR.standard_normal((3, 5))
    found = sn.solve_ensemble(problem, "dopri5", args=args, rtol=1e-10, atol=1e-12)
    for values, end in zip(args, found.y_end, strict=True):
        own = (values[:4].reshape(2, 2), float(values[4]))
        alone = sn.solve(sn.ODE(problem.fun, [1.0, 0.0], (0.0, 1.0), args=own), "dopri5", rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(end, alone.y[-1], rtol=1e-12)
