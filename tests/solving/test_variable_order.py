"""Runs of variable order and runs that switch by stiffness: errors, choices, output inside steps, stored runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import stepnet as sn
from stepnet.solution import Status

NAMES = ("adams", "auto", "bdf", "lsoda", "ndf")
RTOL = 1e-8
MOST = 50.0  # errors at the end in units of the tolerance: they add up over the steps of one period
SMOOTH = 1e-3  # jumps of the slope, which are errors of a step divided by its length; the slopes are 1
OUTPUT = 1e3  # errors inside steps, of interpolation too, in units of the tolerance


def kepler(t, y):
    r = (y[0] * y[0] + y[1] * y[1]) ** 1.5
    return [y[2], y[3], -y[0] / r, -y[1] / r]


def van_der_pol(t, y):
    return [y[1], 1e3 * (1.0 - y[0] * y[0]) * y[1] - y[0]]


def oscillator(t, y):
    return [y[1], -y[0]]


ORBIT = sn.ODE(kepler, [0.5, 0.0, 0.0, math.sqrt(3.0)], (0.0, 2 * math.pi))
WAVE = sn.ODE(oscillator, [0.0, 1.0], (0.0, 10.0))
STIFF = sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 2000.0))


@pytest.mark.parametrize("name", NAMES)
def test_errors_decrease_with_the_tolerance(name):
    rtols = np.array([1e-5, 1e-7, 1e-9])
    errors = []
    for rtol in rtols:
        end = sn.solve(ORBIT, name, rtol=rtol, atol=rtol, save_every=0).y[-1]
        errors.append(np.max(np.abs(end - ORBIT.y0)))
    print(name, errors)
    slope = np.polyfit(np.log(rtols), np.log(errors), 1)[0]
    assert 0.7 < slope < 1.3


@pytest.mark.parametrize("name", ["adams", "lsoda"])
def test_adams_is_as_accurate_and_as_cheap_as_lsoda_of_scipy(name):
    found = sn.solve(ORBIT, name, rtol=1e-9, atol=1e-9, save_every=0)
    wanted = solve_ivp(kepler, ORBIT.t_span, ORBIT.y0, "LSODA", rtol=1e-9, atol=1e-9)
    error, beside = np.max(np.abs(found.y[-1] - ORBIT.y0)), np.max(np.abs(wanted.y[:, -1] - ORBIT.y0))
    print(f"{name}: {error:.1e} with {found.statistics.evaluations} evaluations, SciPy {beside:.1e}, {wanted.nfev}")
    assert error <= 2 * beside
    assert found.statistics.evaluations <= 1.5 * wanted.nfev


@pytest.mark.parametrize(("name", "highest"), [("adams", 12), ("bdf", 5), ("ndf", 5), ("lsoda", 12)])
def test_the_order_is_chosen_and_reported(name, highest):
    statistics = sn.solve(ORBIT, name, rtol=1e-10, atol=1e-10).statistics
    orders = statistics.orders
    assert len(orders) == highest
    assert sum(orders) == statistics.accepted
    assert np.argmax(orders) + 1 >= 5  # a smooth solution at a tight tolerance
    assert orders[0] > 0  # it begins with order 1


@pytest.mark.parametrize(("name", "explicit", "implicit"), [("auto", "tsit5", "rodas5p"), ("lsoda", "adams", "ndf")])
def test_a_run_switches_where_it_becomes_stiff_and_back_and_says_so(name, explicit, implicit):
    solution = sn.solve(STIFF, name, rtol=1e-6, atol=1e-9)
    statistics = solution.statistics
    steps, switches = dict(statistics.steps_by_scheme), statistics.switches
    assert steps.keys() == {explicit, implicit}
    assert sum(steps.values()) == statistics.accepted < 3000
    assert min(steps.values()) > 50
    assert [who for _, who in switches] == [implicit, explicit, implicit, explicit, implicit]
    jumps = [t for t, who in switches if who == explicit]
    np.testing.assert_allclose(jumps, [807.0, 1614.2], rtol=1e-3)  # where the solution jumps, it is not stiff
    assert "switch" in repr(solution)


@pytest.mark.parametrize("name", ["auto", "lsoda"])
def test_a_problem_that_is_not_stiff_is_left_to_the_explicit_scheme(name):
    statistics = sn.solve(ORBIT, name, rtol=1e-7, atol=1e-9).statistics
    assert statistics.switches == ()
    assert dict(statistics.steps_by_scheme)[sn.schemes.get(name).explicit.name] == statistics.accepted
    assert statistics.jacobians == 0


@pytest.mark.parametrize("name", NAMES)
def test_output_inside_steps(name):
    times, fine = np.linspace(0.0, 10.0, 57), np.linspace(0.0, 10.0, 501)
    saved = sn.solve(WAVE, name, rtol=RTOL, atol=RTOL, save_at=times)
    found = sn.solve(WAVE, name, rtol=RTOL, atol=RTOL, dense=True, events=[sn.Event(lambda t, y: y[0])])
    np.testing.assert_allclose(saved.y[:, 0], np.sin(times), rtol=0, atol=OUTPUT * RTOL)
    np.testing.assert_allclose(found(fine)[:, 0], np.sin(fine), rtol=0, atol=OUTPUT * RTOL)
    np.testing.assert_allclose(found(found.t), found.y, rtol=0, atol=1e-14)  # it joins the states of the steps
    np.testing.assert_allclose(found.t_events[0], np.pi * np.arange(1, 4), rtol=0, atol=OUTPUT * RTOL)


@pytest.mark.parametrize("name", NAMES)
def test_the_extension_is_as_smooth_as_the_steps_are_accurate(name):
    """Slopes of the polynomials of neighbouring steps agree to the tolerance over the length of a step."""
    found = sn.solve(WAVE, name, rtol=RTOL, atol=RTOL, dense=True)
    inner = found.t[1:-1]
    small = 1e-6
    jump = (found(inner + small) - 2 * found(inner) + found(inner - small)) / small
    assert np.max(np.abs(jump)) < SMOOTH


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_begins_a_new_history(name):
    ball = sn.ODE(lambda t, y: [y[1], -9.81], [1.0, 0.0], (0.0, 1.5))
    bounce = sn.Event(lambda t, y: y[0], direction=-1, reset=lambda t, y: [0.0, -0.9 * y[1]])
    found = sn.solve(ball, name, rtol=1e-8, atol=1e-10, events=[bounce])
    fall = math.sqrt(2 / 9.81)
    np.testing.assert_allclose(found.t_events[0], [fall, fall * (1 + 2 * 0.9)], rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_event_and_an_infinite_end(name):
    problem = sn.ODE(oscillator, [0.0, 1.0], (0.0, math.inf))
    found = sn.solve(problem, name, rtol=RTOL, atol=RTOL, events=[sn.Event(lambda t, y: y[0] - 0.5, terminal=True)])
    assert found.status is Status.EVENT
    assert found.t[-1] == pytest.approx(math.pi / 6, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_run_continues_bit_for_bit(name, tmp_path):
    problem = STIFF if name != "adams" else ORBIT
    end = 1000.0 if name != "adams" else 6.0
    run = sn.start(problem, name, rtol=1e-6, atol=1e-9)
    for _ in range(100):
        run.step()
    run.save(tmp_path / "run.npz")
    other = sn.start(problem, name, rtol=1e-6, atol=1e-9, restore=tmp_path / "run.npz")
    run.run_to(end)
    other.run_to(end)
    assert (run.t, run.steps) == (other.t, other.steps)
    np.testing.assert_array_equal(run.y, other.y)
    run.y = run.y  # begins a new history
    run.run_to(end + 0.1)
    assert run.t == end + 0.1
    assert np.isfinite(run.y).all()


@pytest.mark.parametrize(("field", "value"), [("order", 9), ("method", 0), ("h_history", 0.0), ("equal_steps", -1)])
def test_a_stored_run_that_cannot_be_one_is_refused(field, value, tmp_path):
    run = sn.start(WAVE, "ndf", rtol=1e-6, atol=1e-9)
    for _ in range(10):
        run.step()
    run.save(tmp_path / "run.npz")
    stored = dict(np.load(tmp_path / "run.npz"))
    stored["run"][field] = value
    np.savez(tmp_path / "run.npz", **stored)
    with pytest.raises(ValueError, match=field):
        sn.start(WAVE, "ndf", rtol=1e-6, atol=1e-9, restore=tmp_path / "run.npz")


@pytest.mark.parametrize("name", NAMES)
def test_runs_backward_and_over_all_kinds_of_problems(name):
    back = sn.solve(sn.ODE(lambda t, y: -y, [1.0], (1.0, 0.0)), name, rtol=RTOL, atol=RTOL)
    assert back.y[-1, 0] == pytest.approx(math.e, abs=1e-6)
    halves = sn.Partitioned(lambda t, p: p, lambda t, q: -q, [0.0], [1.0], (0.0, 3.0))
    assert sn.solve(halves, name, rtol=RTOL, atol=RTOL).q[-1, 0] == pytest.approx(math.sin(3.0), abs=1e-6)
    ends = sn.solve_ensemble(WAVE, name, y0=[[0.0, 1.0], [1.0, 0.0]], rtol=RTOL, atol=RTOL).y_end
    np.testing.assert_allclose(ends[:, 0], [math.sin(10.0), math.cos(10.0)], rtol=0, atol=1e-6)


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_singularity_ends_the_run_and_keeps_the_valid_part(name):
    found = sn.solve(sn.ODE(lambda t, y: y**2, [1.0], (0.0, 2.0)), name, check=False)
    assert found.status in (Status.STEP_TOO_SMALL, Status.NOT_FINITE, Status.NOT_SOLVED)
    assert 0.99 < found.t[-1] < 1.01
    assert np.isfinite(found.y).all()


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_is_the_users_own(name):
    def fun(t, y):
        if t > 0.5:
            raise KeyError("mine")
        return [-y[0]]

    with pytest.raises(sn.SolveFailed, match="mine"):
        sn.solve(sn.ODE(fun, [1.0], (0.0, 1.0)), name)


def test_a_stiff_run_of_adams_says_what_to_take():
    problem = sn.ODE(lambda t, y: -1e4 * (y - np.cos(t)), [1.0], (0.0, 1.0))
    with pytest.warns(sn.StiffnessWarning, match="rodas5p"):
        sn.solve(problem, "adams", rtol=1e-5, atol=1e-8)
    with pytest.raises(sn.SolveFailed, match="the problem is stiff: use an implicit scheme such as rodas5p"):
        sn.solve(STIFF, "adams", rtol=1e-6, atol=1e-9, max_steps=100_000)


def test_a_jacobian_that_is_wrong_is_refused_where_rosenbrock_steps_need_it():
    with pytest.raises(ValueError, match="`jac` differs from differences"):
        sn.solve(sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 10.0), jac=np.zeros((2, 2))), "auto")


@pytest.mark.parametrize("name", ["bdf", "lsoda", "ndf"])
def test_a_useless_jacobian_ends_the_run_with_a_status_and_finite_states(name):
    useless = sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 10.0), jac=np.zeros((2, 2)))
    found = sn.solve(useless, name, rtol=1e-4, atol=1e-6, check=False, max_steps=20_000)
    assert found.status in (Status.COMPLETED, Status.STEP_LIMIT, Status.NOT_SOLVED, Status.STEP_TOO_SMALL)
    assert np.isfinite(found.y).all()
