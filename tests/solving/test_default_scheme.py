"""Without a scheme the problem chooses one: an adaptive pair, or a symplectic one for fixed steps of (q, p)."""

import inspect

import numpy as np
import pytest

import stepnet as sn
from stepnet.solving import planning
from stepnet.stability import adjoint_safety

ODE = sn.ODE(lambda t, y, a: -a * y, [1.0, 2.0], (0.0, 1.0), args=(1.5,))
SECOND = sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 1.0))
SEPARABLE = sn.Partitioned(lambda t, p: p, lambda t, q: -q, [1.0], [0.0], (0.0, 1.0))
COUPLED = sn.Partitioned(lambda t, q, p: p, lambda t, q, p: -q, [1.0], [0.0], (0.0, 1.0), separable=False)
SPLIT = sn.Split((lambda t, y: -y, lambda t, y: 0.5 * y), [1.0], (0.0, 1.0))
KINDS = {"ODE": ODE, "second order": SECOND, "separable": SEPARABLE, "coupled": COUPLED, "split": SPLIT}
SYMPLECTIC = {"second order", "separable"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_problem_has_one(kind):
    problem = KINDS[kind]
    adaptive = sn.solve(problem)
    assert adaptive.scheme.name == "tsit5"
    assert np.array_equal(adaptive.y, sn.solve(problem, "tsit5").y)
    name = "verlet" if kind in SYMPLECTIC else "tsit5"
    fixed = sn.solve(problem, steps=20)
    assert fixed.scheme.name == name
    assert fixed.statistics.accepted == 20
    assert np.array_equal(fixed.y, sn.solve(problem, name, steps=20).y)


@pytest.mark.parametrize("steps", [None, 20])
def test_all_functions_choose_alike(steps):
    for problem, name in ((ODE, "tsit5"), (SECOND, "tsit5" if steps is None else "verlet")):
        how = {"steps": steps}
        loss = lambda y: np.sum(y * y)
        assert sn.start(problem, **how).scheme.name == name
        assert np.array_equal(sn.gradient(problem, loss=loss, **how).y0, sn.gradient(problem, name, loss, **how).y0)
        assert np.array_equal(sn.jacobian(problem, **how).y0, sn.jacobian(problem, name, **how).y0)
        y0 = np.array([problem.initial, 2 * problem.initial])
        assert sn.solve_ensemble(problem, y0=y0, **how).scheme.name == name
        members = sn.gradient_ensemble(problem, loss=loss, y0=y0, **how)
        assert np.array_equal(members.y0, sn.gradient_ensemble(problem, name, loss, y0=y0, **how).y0)
    assert sn.sweep(ODE, grid={"a": [1.0, 2.0]}, steps=steps).scheme.name == "tsit5"


def test_it_may_be_left_out_everywhere():
    public = (sn.solve, sn.start, sn.gradient, sn.tangent, sn.jacobian, sn.hvp, sn.solve_ensemble,
              sn.gradient_ensemble, sn.sweep, adjoint_safety)  # fmt: skip
    for function in public:
        assert inspect.signature(function).parameters["scheme"].default is None


def test_what_comes_after_the_scheme_is_still_asked_for():
    with pytest.raises(TypeError, match="give either `loss` or `end_gradient`"):
        sn.gradient(ODE)
    with pytest.raises(TypeError, match="`loss` must be a function"):
        sn.hvp(ODE, y0=[1.0, 0.0])
    with pytest.raises(TypeError, match="`grid` must map names to values"):
        sn.sweep(ODE)


def test_default_tolerances_are_shared_and_never_written():
    """By solves, ensembles with their own tolerances, gradients and steps by hand."""
    problem = sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 10.0))
    first = sn.solve(problem, "dopri5")
    shared = planning.plan_adaptive_steps(problem, sn.schemes.get("dopri5"), planning.AdaptiveOptions())
    assert shared is planning.plan_adaptive_steps(problem, sn.schemes.get("tsit5"), planning.AdaptiveOptions())
    sn.solve_ensemble(problem, "dopri5", y0=np.ones((5, 2)), rtol=np.logspace(-9, -3, 5)[:, None])
    sn.solve_ensemble(problem, "dopri5", y0=np.ones((5, 2)))
    sn.gradient(problem, "dopri5", loss=lambda y: y[0] ** 2)
    sn.start(problem, "dopri5").run_to(3.0)
    assert (shared.rtol == planning.DEFAULT_RTOL).all()
    assert (shared.atol == planning.DEFAULT_ATOL).all()
    again = sn.solve(problem, "dopri5")
    assert np.array_equal(first.t, again.t)
    assert np.array_equal(first.y, again.y)
