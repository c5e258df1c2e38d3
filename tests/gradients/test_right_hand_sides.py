"""Where derivatives of right-hand sides come from, and every shape in which problems are given."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import relative
from numba import carray, cfunc, types

import stepnet as sn
from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
from stepnet.errors import AdjointWarning, NoDerivative

STEPS = 7


def pendulum(t, y, a):
    return np.array([y[1], -a * np.sin(y[0])])


def pendulum_vjp(t, y, w, a):
    return np.array([-a * np.cos(y[0]) * w[1], w[0]])


def problem(**derivatives) -> sn.ODE:
    return sn.ODE(pendulum, [0.6, 0.2], (0.0, 1.0), (1.3,), **derivatives)


def first(y):
    return np.sin(y[0]) + y[1] * y[1]


WANTED = sn.gradient(problem(), "rk4", first, steps=STEPS)

ADDRESS = types.CPointer(types.float64)
SIGNATURE = types.int32(types.float64, *[ADDRESS] * 6, types.int64)


@cfunc(SIGNATURE)
def c_vjp(t, y_at, p_at, w_at, t_bar, y_bar_at, p_bar_at, n):
    y, p, w, y_bar, p_bar = carray(y_at, 2), carray(p_at, 1), carray(w_at, 2), carray(y_bar_at, 2), carray(p_bar_at, 1)
    y_bar[0] += -p[0] * np.cos(y[0]) * w[1]
    y_bar[1] += w[0]
    p_bar[0] += -np.sin(y[0]) * w[1]
    return 0


def test_traces_by_themselves():
    assert WANTED.rung == "traced"


@pytest.mark.parametrize("name", ["rk4", "dopri5", "ab4"])
def test_the_users_pullback_wins(name):
    calls = []

    def vjp(t, y, w, a):
        calls.append(t)
        return pendulum_vjp(t, y, w, a)

    with pytest.warns(AdjointWarning, match="`args`"):
        found = sn.gradient(problem(vjp=vjp), name, first, steps=STEPS)
    assert found.rung == "user"
    assert found.args == (None,)  # not zeros, which would be wrong in silence
    assert calls
    assert relative(found.y0, sn.gradient(problem(), name, first, steps=STEPS).y0) <= 1e-13


def test_the_users_pullback_in_c_knows_arguments_too(recwarn):
    found = sn.gradient(problem(vjp=sn.address(c_vjp.address)), "rk4", first, steps=STEPS)
    assert found.rung == "user"
    assert relative(found.y0, WANTED.y0) <= 1e-13
    assert relative(found.args[0], WANTED.args[0]) <= 1e-13
    assert not recwarn.list


def test_what_the_users_pullback_raises_comes_through():
    def vjp(t, y, w, a):
        raise KeyError("mine")

    with pytest.warns(AdjointWarning), pytest.raises(KeyError, match="mine"):
        sn.gradient(problem(vjp=vjp), "rk4", first, steps=STEPS)


def test_a_pullback_in_python_does_not_know_times():
    with pytest.warns(AdjointWarning), pytest.raises(NoDerivative, match="`times`"):
        sn.gradient(problem(vjp=pendulum_vjp), "rk4", first, steps=STEPS, times=True)


def branching(t, y):
    if y[0] > 0.3:
        return np.array([y[1], -np.sin(y[0])])
    return np.array([y[1], -y[0] * y[0]])


def driven(t, y, a, b, k):
    if y[0] > 0.3:
        return np.array([b[0] * y[1] + np.sin(a * t), -a * np.sin(y[0])])
    return np.array([b[1] ** k * y[1], -y[0] * y[0]])


def driven_smoothly(t, y, a, b, k):
    return [b[0] * y[1] + np.sin(a * t), -a * np.sin(y[0])]


class Driven:
    """The same, and only Python can run it."""

    def __call__(self, t, y, a, b, k):
        return driven(t, np.array([float(str(x)) for x in y]), a, b, k)


def in_place(t, y, dy, p):
    if y[0] > 0.3:
        dy[0], dy[1] = p[1] * y[1] + np.sin(p[0] * t), -p[0] * np.sin(y[0])
    else:
        dy[0], dy[1] = p[2] * y[1], -y[0] * y[0]


def driven_by(function, **derivatives) -> sn.ODE:
    return sn.ODE(function, [0.6, 0.2], (0.0, 1.0), (1.3, np.array([0.5, 0.2]), 2), **derivatives)


@pytest.mark.parametrize(
    ("function", "rung", "tolerance"),
    [(driven, "dual", 1e-13), (in_place, "dual", 1e-13), (Driven(), "differences", 1e-7)],
    ids=["dual", "dual in place", "differences"],
)
@pytest.mark.parametrize("name", ["rk4", "ab3", "dopri5"])
def test_dual_numbers_and_differences_know_arguments_and_times(function, rung, tolerance, name, recwarn):
    how = {"steps": STEPS, "times": True, "memory": sn.Checkpoints(2)}
    wanted = sn.gradient(driven_by(driven_smoothly), name, first, **how)
    found = sn.gradient(driven_by(function), name, first, differences=rung == "differences", **how)
    assert found.rung == rung
    assert relative(found.y0, wanted.y0) <= tolerance
    assert relative(found.args[0], wanted.args[0]) <= tolerance
    assert relative(found.args[1], wanted.args[1]) <= tolerance
    assert found.args[2] == wanted.args[2] == 0.0  # a whole number counts as a real one
    assert relative(found.t_span, wanted.t_span) <= tolerance
    assert not recwarn.list


def test_dual_numbers_go_through_events():
    how = {"event": lambda t, y, a, b, k: y[1] + 0.1, "steps": 50}
    found, wanted = (sn.gradient(driven_by(f), "rk4", **how) for f in (driven, driven_smoothly))
    assert found.rung == "dual"
    assert relative(found.flat, wanted.flat) <= 1e-12


def test_an_event_needs_derivatives_by_time():
    def vjp(t, y, w, a):
        return pendulum_vjp(t, y, w, a)

    with pytest.warns(AdjointWarning), pytest.raises(NoDerivative, match="`event`"):
        sn.gradient(problem(vjp=vjp), "rk4", event=lambda t, y, a: y[1], steps=50)


KNOTS = np.array([0.0, 1.0])


def by_table(t, y, table):
    """Numba's `np.interp` takes no dual numbers."""
    a = np.interp(t, KNOTS, table)
    return np.array([y[1], -a * np.sin(y[0]) if y[0] > -9.0 else 0.0])


def test_what_takes_only_a_dual_state_has_no_gradients_of_arguments():
    tabled = sn.ODE(by_table, [0.6, 0.2], (0.0, 0.9), (np.array([1.3, 1.3]),))
    with pytest.warns(AdjointWarning, match="None"):
        found = sn.gradient(tabled, "rk4", first, steps=STEPS)
    assert found.rung == "dual"
    assert found.args == (None,)
    smooth = sn.ODE(pendulum, [0.6, 0.2], (0.0, 0.9), (1.3,))
    assert relative(found.y0, sn.gradient(smooth, "rk4", first, steps=STEPS).y0) <= 1e-13
    with pytest.warns(AdjointWarning, match="None"):
        assert sn.jacobian(tabled, "rk4", steps=STEPS).args == (None,)


def pendulum_jvp(t, y, v, a):
    return np.array([v[1], -a * np.cos(y[0]) * v[0]])


class OpaquePendulum:
    """Something that only Python can run."""

    def __call__(self, t, y, a):
        return pendulum(t, np.array([float(str(x)) for x in y]), a)


@pytest.mark.parametrize("name", ["rk4", "ab4", "dopri5"])
def test_the_users_jvp_serves_both_ways(name):
    opaque = sn.ODE(OpaquePendulum(), [0.6, 0.2], (0.0, 1.0), (1.3,), jvp=pendulum_jvp)
    v, w = np.array([0.3, -0.7]), np.array([1.1, 0.4])
    moved = sn.tangent(opaque, name, y0=v, steps=STEPS)
    wanted = sn.tangent(problem(), name, y0=v, steps=STEPS)
    assert relative(moved.dy, wanted.dy) <= 1e-13
    assert relative(moved.y, wanted.y) <= 1e-14
    with pytest.warns(AdjointWarning, match="None"):
        found = sn.gradient(opaque, name, end_gradient=w, steps=STEPS)
    assert found.rung == "user"
    assert found.y0 @ v == pytest.approx(moved.dy @ w, rel=1e-12)
    with pytest.raises(NoDerivative, match="`args`"):
        sn.tangent(opaque, name, args=(1.0,), steps=STEPS)
    with pytest.raises(NoDerivative, match="trace"):
        sn.hvp(opaque, name, first, y0=v, steps=STEPS)


@pytest.mark.parametrize("name", ["rk4", "ab4", "dopri5"])
def test_tangents_by_dual_numbers(name):
    direction = {"y0": [0.3, -0.7], "args": (0.2, np.array([1.0, 0.5]), None)}
    moved = sn.tangent(driven_by(driven), name, steps=STEPS, **direction)
    wanted = sn.tangent(driven_by(driven_smoothly), name, steps=STEPS, **direction)
    assert relative(moved.dy, wanted.dy) <= 1e-13
    product, other = (
        sn.hvp(driven_by(f), name, first, steps=STEPS, gauss_newton=True, **direction).flat
        for f in (driven, driven_smoothly)
    )
    assert relative(product, other) <= 1e-12


# ---- along the kept solution ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rk4", "dopri5", "dop853", "bosh3", "ab4", "ssprk3"])
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_the_adjoint_along_the_kept_solution_is_that_of_python(name, span):
    """The same equation with the dense solution called in Python, and a pullback written by hand."""
    moving = sn.ODE(pendulum, [0.6, 0.2], span, (1.3,))
    kept = sn.solve(moving, name, steps=40, dense=True)

    def slopes(t, z):
        y = kept(np.clip(t, 0.0, 1.0))
        return np.array([*(-pendulum_vjp(t, y, z[:2], 1.3)), np.sin(y[0]) * z[1]])

    back = sn.ODE(slopes, [1.0, -0.5, 0.0], span[::-1], trace=False)
    wanted = sn.solve(back, name, steps=40).y[-1]
    found = sn.gradient(moving, name, end_gradient=[1.0, -0.5], steps=40, memory="interpolated")
    assert relative(found.flat, wanted) <= 1e-13
    assert found.cost.states == 40
    assert found.cost.bytes > 40 * 4 * 2 * 8


def test_the_adjoint_along_the_kept_solution_by_other_pullbacks():
    wanted = sn.gradient(problem(), "dopri5", first, steps=STEPS, memory="interpolated")
    found = sn.gradient(problem(vjp=pendulum_vjp), "dopri5", first, steps=STEPS, memory="interpolated")
    assert (found.rung, wanted.rung) == ("user", "traced")
    assert relative(found.y0, wanted.y0) <= 1e-13
    assert found.args == (None,)

    def vjp(t, y, w, a):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sn.gradient(problem(vjp=vjp), "dopri5", first, steps=STEPS, memory="interpolated")


def test_branches_on_data_go_by_dual_numbers():
    found = sn.gradient(sn.ODE(branching, [0.6, 0.2], (0.0, 1.0)), "rk4", first, steps=STEPS)
    assert found.rung == "dual"
    smooth = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [0.6, 0.2], (0.0, 1.0))
    assert relative(found.y0, sn.gradient(smooth, "rk4", first, steps=STEPS).y0) <= 1e-13


class Opaque:
    """Something that only Python can run."""

    def __init__(self):
        self.names = {"sin": np.sin}

    def __call__(self, t, y):
        y = np.array([float(str(x)) for x in y])
        return np.array([y[1], -1.3 * self.names["sin"](y[0])])


def test_a_callback_has_no_derivative():
    with pytest.raises(NoDerivative, match="`differences=True`") as refusal:
        sn.gradient(sn.ODE(Opaque(), [0.6, 0.2], (0.0, 1.0)), "rk4", first, steps=STEPS)
    assert "`fun`" in str(refusal.value)
    assert "`vjp`" in str(refusal.value)


def test_finite_differences_on_request():
    callback = sn.ODE(Opaque(), [0.6, 0.2], (0.0, 1.0))
    found = sn.gradient(callback, "rk4", first, steps=STEPS, differences=True)
    assert found.rung == "differences"
    assert relative(found.y0, WANTED.y0) <= 1e-6
    assert relative(sn.jacobian(callback, "rk4", steps=STEPS, differences=True).y0, _jacobian()) <= 1e-6


def _jacobian():
    return sn.jacobian(problem(), "rk4", steps=STEPS).y0


def test_the_users_jacobian_serves_where_nothing_can_be_traced():
    def jac(t, y):
        return np.array([[0.0, 1.0], [-1.3 * np.cos(y[0]), 0.0]])

    found = sn.gradient(sn.ODE(Opaque(), [0.6, 0.2], (0.0, 1.0), jac=jac), "rk4", first, steps=STEPS)
    assert found.rung == "user"
    assert relative(found.y0, WANTED.y0) <= 1e-13
    traced = problem(jac=lambda t, y, a: jac(t, y))
    assert sn.gradient(traced, "rk4", first, steps=STEPS).rung == "traced"


@cfunc(types.int32(types.float64, ADDRESS, ADDRESS, ADDRESS, types.int64))
def c_pendulum(t, y_at, dy_at, p_at, n):
    y, dy = carray(y_at, 2), carray(dy_at, 2)
    dy[0], dy[1] = y[1], -1.3 * np.sin(y[0])
    return 0


def test_c_functions_want_a_pullback():
    with pytest.raises(NoDerivative, match="`vjp`"):
        sn.gradient(sn.ODE(sn.address(c_pendulum.address), [0.6, 0.2], (0.0, 1.0)), "rk4", first, steps=STEPS)
    with_c = sn.ODE(sn.address(c_pendulum.address), [0.6, 0.2], (0.0, 1.0), (1.3,), vjp=sn.address(c_vjp.address))
    assert relative(sn.gradient(with_c, "rk4", first, steps=STEPS).y0, WANTED.y0) <= 1e-13
    in_python = sn.ODE(
        sn.address(c_pendulum.address), [0.6, 0.2], (0.0, 1.0), vjp=lambda t, y, w: pendulum_vjp(t, y, w, 1.3)
    )
    assert relative(sn.gradient(in_python, "rk4", first, steps=STEPS).y0, WANTED.y0) <= 1e-13


def in_place(t, y, dy, p):
    dy[0] = y[1]
    dy[1] = -p[0] * np.sin(y[0])


def test_in_place():
    found = sn.gradient(sn.ODE(in_place, [0.6, 0.2], (0.0, 1.0), (1.3,)), "rk4", first, steps=STEPS)
    assert relative(found.y0, WANTED.y0) <= 1e-14
    assert relative(found.args[0], WANTED.args[0]) <= 1e-14


# ---- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"steps": 9}, {"rtol": 1e-8}], ids=str)
def test_a_single_number(how):
    found = sn.gradient(sn.ODE(lambda t, y, a: -a * y, 2.0, (0.0, 1.0), (0.5,)), "dopri5", lambda y: y * y, **how)
    assert np.shape(found.y0) == ()
    assert np.shape(found.y) == ()
    assert found.y0 == pytest.approx(4.0 * np.exp(-1.0), rel=1e-6)
    assert found.args[0] == pytest.approx(-8.0 * np.exp(-1.0), rel=1e-6)
    costly = sn.gradient(
        sn.ODE(lambda t, y, a: -a * y, 2.0, (0.0, 1.0), (0.5,)), "dopri5", running=lambda t, y, a: y * y, steps=9
    )
    assert costly.value == pytest.approx(4.0 * (1 - np.exp(-1.0)), rel=1e-6)
    assert np.shape(costly.y0) == np.shape(costly.y) == ()


def test_a_matrix():
    M = np.array([[0.1, -0.4], [0.3, 0.2]])
    matrix = sn.ODE(lambda t, Y, M: M @ Y - 0.1 * Y * Y, np.eye(2) + 0.3, (0.0, 1.0), (M,))
    found = sn.gradient(matrix, "rk4", lambda Y: np.sum(Y * Y), steps=STEPS)
    assert found.y0.shape == found.y.shape == found.args[0].shape == (2, 2)
    line = lambda s: np.sum(
        sn.solve(sn.ODE(matrix.fun, matrix.y0 + s, (0.0, 1.0), (M,)), "rk4", steps=STEPS).y[-1] ** 2
    )
    assert np.sum(found.y0) == pytest.approx((line(1e-5) - line(-1e-5)) / 2e-5, rel=1e-8)
    several = sn.gradient(matrix, "rk4", lambda Ys: np.sum(Ys[1]), steps=4, save_at=[0.0, 0.5])
    assert several.y.shape == (2, 2, 2)
    assert sn.hvp(matrix, "rk4", lambda Y: np.sum(Y * Y * Y), y0=np.ones((2, 2)), steps=4).y0.shape == (2, 2)


def test_halves():
    halves = sn.SecondOrder(lambda t, q: -np.sin(q), np.full((2, 3), 0.4), np.full((2, 3), 0.1), (0.0, 1.0))
    found = sn.gradient(halves, "verlet", lambda y: np.sum(y * y), steps=STEPS)
    assert found.q0.shape == found.v0.shape == (2, 3)
    assert np.array_equal(np.concatenate((found.q0.ravel(), found.p0.ravel())), found.y0)
    with pytest.raises(AttributeError, match="`y0`"):
        _ = WANTED.q0


def test_arguments_of_many_kinds():
    def f(t, y, n, a, M, name):
        return [a * y[0] * n, M[0, 1] * y[1] + M[1, 0] * y[0]]

    mixed = sn.ODE(f, [1.0, 2.0], (0.0, 1.0), (2, 0.3, np.array([[0.0, 0.2], [0.1, 0.0]]), "name"))
    found = sn.gradient(mixed, "rk4", first, steps=STEPS)
    assert found.args[0] == pytest.approx(found.args[1] * 0.3 / 2, rel=1e-12)  # both stand in one product
    assert found.args[3] is None
    assert found.args[2].shape == (2, 2)
    assert found.args[2][0, 0] == 0.0 != found.args[2][1, 0]


# ---- spans and steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"steps": 3}, {"rtol": 1e-6}], ids=str)
@pytest.mark.parametrize("memory", ["auto", "all", sn.Checkpoints(2), 100], ids=str)
def test_no_time_at_all(how, memory):
    still = sn.ODE(pendulum, [0.6, 0.2], (0.5, 0.5), (1.3,))
    found = sn.gradient(still, "dopri5", end_gradient=[1.0, 2.0], memory=memory, **how)
    assert np.array_equal(found.y0, [1.0, 2.0])
    assert found.args == (0.0,)
    found = sn.gradient(still, "dopri5", lambda ys: np.sum(ys), save_at=[0.5, 0.5], memory=memory, **how)
    assert np.array_equal(found.y0, [2.0, 2.0])
    with pytest.raises(ValueError, match="`times`"):
        sn.gradient(still, "dopri5", first, times=True, **how)


def test_no_time_at_all_reversibly():
    still = sn.SecondOrder(lambda t, q: -np.sin(q), [0.6], [0.2], (0.5, 0.5))
    for memory in ("all", "reversible"):
        found = sn.gradient(still, "verlet", end_gradient=[1.0, 2.0], memory=memory, steps=2)
        assert np.array_equal(found.y0, [1.0, 2.0])


@pytest.mark.parametrize("name", ["ab2", "ab3", "ab4", "ab5", "midpoint_two_step"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_fewer_steps_than_a_multistep_scheme_looks_back(name, steps):
    found = sn.gradient(problem(), name, first, steps=steps)
    assert relative(found.y, sn.solve(problem(), name, steps=steps).y[-1]) <= 1e-14
    w = np.array([np.cos(found.y[0]), 2 * found.y[1]])
    columns = [sn.tangent(problem(), name, y0=v, steps=steps).dy @ w for v in np.eye(2)]
    assert relative(found.y0, columns) <= 1e-13
    assert relative(sn.gradient(problem(), name, first, steps=steps, memory=sn.Checkpoints(1)).y0, found.y0) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_other_numbers_are_refused(dtype):
    other = sn.ODE(lambda t, y: -y, np.ones(2, dtype), (0.0, 1.0))
    with pytest.raises(NoDerivative, match="float64"):
        sn.gradient(other, "rk4", end_gradient=np.ones(2), steps=4)


def test_large_problems_run_in_kernels():
    n = 300
    ring = sn.ODE(lambda t, y: 0.3 * (np.roll(y, 1) - y) - 0.1 * y * y, np.linspace(0, 1, n), (0.0, 1.0))
    assert not DifferentiableRun(ring, sn.schemes.get("rk4"), STEPS, None, False, False).is_generated
    random = np.random.default_rng(1)
    v, w = random.standard_normal((2, n))
    dy = sn.tangent(ring, "rk4", y0=v, steps=STEPS).dy
    assert dy @ w == pytest.approx(sn.gradient(ring, "rk4", end_gradient=w, steps=STEPS).y0 @ v, rel=1e-12)
