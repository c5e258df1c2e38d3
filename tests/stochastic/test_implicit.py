"""Drift-implicit schemes: stiff equations, the stationary law, equations that cannot be solved, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn
from stepnet.schemes import theta_maruyama, theta_milstein
from stepnet.schemes.capabilities import is_implicit

IMPLICIT = [name for name in sn.schemes.names("SDE") if is_implicit(sn.schemes.get(name))]
RATE, SPREAD = 1000.0, 0.4
SLOPE_TOLERANCE = 0.2
STANDARD_ERRORS = 4.0
AGREEMENT = 1e-12  # of the same steps with Jacobians from another source


def build_stiff(**options) -> sn.SDE:
    """A fast relaxation towards cos t; the explicit limit of the step size is 2 / RATE."""
    return sn.SDE(
        lambda t, y: -RATE * (y - np.cos(t)) - y**3, lambda t, y: SPREAD * y, [1.0], (0.0, 1.0), seed=4, **options
    )


def test_the_implicit_schemes_are_in_the_catalogue():
    assert IMPLICIT == ["drift_implicit_euler", "drift_implicit_milstein", "drift_trapezoid_euler"]


@pytest.mark.parametrize("name", IMPLICIT)
def test_steps_beyond_the_explicit_limit_follow_the_solution(name):
    """Where the drift is fast, the path stays within about SPREAD / sqrt(2 RATE) of cos t."""
    found = sn.solve_ensemble(build_stiff(), name, paths=50, steps=20)
    explicit = sn.solve(build_stiff(), "euler_maruyama", steps=20, check=False)
    assert found.success.all()
    assert np.abs(found.y_end - np.cos(1.0)).max() < (1.0 if name == "drift_trapezoid_euler" else 0.1)
    assert not explicit.success or abs(explicit.y[-1, 0]) > 1e6


def test_the_trapezoidal_scheme_has_the_exact_stationary_variance():
    """On dy = -k y dt + s dW for every step size: s^2 / (2 k) (Kloeden & Platen 1992, 12.2)."""
    k, s, paths = 8.0, 0.7, 8192
    ou = sn.SDE(lambda t, y: -k * y, lambda t, y: s + 0.0 * y, [0.0], (0.0, 8.0), seed=3)
    squares = sn.solve_ensemble(ou, "drift_trapezoid_euler", paths=paths, steps=32).y_end ** 2  # h k = 2
    assert abs(squares.mean() - s**2 / (2 * k)) < STANDARD_ERRORS * squares.std() / np.sqrt(paths)


@pytest.mark.parametrize(
    ("scheme", "noise"),
    [(theta_milstein(0.5, "stratonovich"), "commutative"), (theta_milstein(0.75), "diagonal"),
     (theta_maruyama(0.25), "general")],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_families_have_the_declared_strong_order(scheme, noise):
    problem = problems.build(noise, scheme.calculus, cells=32, seed=5)
    finest = {"stratonovich": "stochastic_heun", "ito": "sriw1" if noise == "diagonal" else "euler_maruyama"}
    paths, steps = 200, np.array([32, 64, 128, 256])
    fine = sn.solve_ensemble(problem, finest[scheme.calculus], paths=paths, steps=8192).y
    ends = (sn.solve_ensemble(problem, scheme, paths=paths, steps=int(n)).y for n in steps)
    errors = [np.sqrt(np.mean((end - fine) ** 2)) for end in ends]
    order = next(orders.strong for orders in scheme.orders if orders.noise == noise)
    assert -np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(order, abs=SLOPE_TOLERANCE)


@pytest.mark.parametrize("name", ["drift_implicit_euler", "drift_trapezoid_euler"])
def test_functions_without_a_trace_have_the_same_steps(name):
    problem = problems.build("general", seed=2)
    traced, plain = (sn.solve(each, name, steps=16) for each in (problem, replace(problem, trace=False)))
    assert (traced.statistics.rung, plain.statistics.rung) == ("traced", "compiled")
    np.testing.assert_allclose(plain.y, traced.y, rtol=AGREEMENT)


def test_exceptions_of_the_drift_are_reported():
    seen = []  # a function that changes something outside runs in Python

    def drift(t, y):
        seen.append(t)
        if t > 0.5:
            raise RuntimeError("beyond")
        return -y

    with pytest.raises(sn.SolveFailed) as failed:
        sn.solve(replace(build_stiff(), drift=drift), "drift_implicit_euler", steps=8)
    assert "beyond" in str(failed.value.__cause__)
    assert failed.value.solution.t[-1] <= 0.5


def test_equations_without_a_solution_end_a_path():
    """y = b + h (1 + y^2) has no real solution for long steps; the other paths go on."""
    problem = sn.SDE(lambda t, y: 40.0 * y**2, lambda t, y: 1.0 + 0.0 * y, [-1.0], (0.0, 1.0), seed=1)
    found = sn.solve_ensemble(problem, "drift_implicit_euler", paths=40, steps=16)
    bad = [i for i, status in enumerate(found.status) if status is sn.Status.NOT_SOLVED]
    assert 0 < len(bad) < 40
    assert np.isfinite(found.y).all()
    with pytest.raises(sn.SolveFailed, match=r"implicit step could not be solved(.|\n)*use more `steps`"):
        sn.solve(problem, "drift_implicit_euler", steps=16, path=bad[0])


def test_exits_of_implicit_paths_and_their_evaluations():
    event = sn.Event(lambda t, y: 0.1 - (y[0] - np.cos(t)) ** 2, terminal=True)
    found = sn.solve(replace(build_stiff(), diffusion=lambda t, y: 20.0 * y), "drift_implicit_euler", steps=64,
                     events=event)  # fmt: skip
    assert found.status is sn.Status.EVENT
    assert found.statistics.evaluations >= 3 * found.statistics.accepted


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: theta_maruyama(0.0), r"`theta` must be a number in \(0, 1\], found 0"),
        (lambda: theta_milstein(2.5), r"`theta` must be a number in \(0, 2\], found 2.5"),
        (lambda: theta_milstein("half"), "`theta` must be a number"),
        (lambda: theta_milstein(1.0, "malliavin"), "there is no calculus 'malliavin'"),
        (lambda: sn.solve(build_stiff(), "drift_implicit_euler"), "drift_implicit_euler has no error estimate"),
        (lambda: sn.solve(problems.build("general"), "drift_implicit_milstein", steps=4), "does not admit general"),
    ],
)
def test_bad_input_is_refused(call, match):
    with pytest.raises((ValueError, TypeError, sn.UnknownName), match=match):
        call()
