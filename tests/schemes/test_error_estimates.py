"""The error estimates of all pairs: of the right order, equal to the error they estimate, and used by the engine."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from executor import end_state, error_estimates, grid, real, stepper, trajectory
from problems import coupled_ode, coupled_second_order
from scheme_names import FIXED_STEPS

import stepnet
from stepnet.schemes import ExplicitRK, ImplicitRK, get
from stepnet.schemes.controllers import CONTROLLERS

PAIRS = [name for name in FIXED_STEPS if stepnet.schemes.conditions.is_pair(get(name))]
ESTIMATES = [(name, i) for name in PAIRS for i in range(len(getattr(get(name), "implicit_scheme", get(name)).embedded))]
NORMS = {"rms": lambda e: np.sqrt(np.mean(e**2)), "max": lambda e: np.max(np.abs(e))}

SOLVED = 0.1  # stages of implicit pairs are solved to this part of the tolerance
ORDER_TOLERANCE = 0.15  # a missed condition costs a whole order
ESTIMATE_FLOOR = 3e-16  # weights rounded to 1e-16 change h (b - b^) k by 1e-17 at the steps used here
LONGEST_STEP, RATIO, SIZES = 0.8, 1.25, 3
STARTS = 8  # estimates are averaged over steps from so many points, as each component vanishes somewhere

TOLERANCES = 10.0 ** -np.arange(4, 11)
UNEVEN = 0.21  # what an exponent p/k may differ from 1 before the ratio of error and tolerance is expected to drift
SANE = (0.002, 200)  # error / tolerance: local extrapolation gains on good pairs, the flow and Fehlberg's h^4 lose
EXPONENT_TOLERANCE = 0.2  # of error ~ tolerance^(p/k); the wrong order in the controller would change it by 1/k or more


def error_power(scheme: ExplicitRK) -> int:
    """k in estimate = O(h^k): one more than the lower order; 2 k_1 - k_2 with the rule of DOP853."""
    powers = [min(scheme.order, hat.order) + 1 for hat in getattr(scheme, "implicit_scheme", scheme).embedded]
    return powers[0] if len(powers) == 1 else 2 * powers[0] - powers[1]


@cache
def starts() -> list[tuple]:
    """Times and states along the coupled problem."""
    problem = coupled_ode()
    states = trajectory(problem, get("dop853"), 8 * STARTS)
    return list(zip(grid(problem, 8 * STARTS), states, strict=True))[:-1:8]


def estimates(name: str, i: int, h: float) -> np.ndarray:
    """The i-th estimate of one step from every start."""
    return np.array([error_estimates(coupled_ode(), get(name), t, np.longdouble(h), y)[i] for t, y in starts()])


def short_steps(name: str, i: int) -> list[float]:
    """The shortest steps, a factor `RATIO` apart, at which the estimate stands out of rounding."""
    steps = [LONGEST_STEP]
    while NORMS["rms"](estimates(name, i, steps[-1] / RATIO)) > ESTIMATE_FLOOR and len(steps) < 20:
        steps.append(steps[-1] / RATIO)
    return steps[-SIZES:]


@pytest.mark.parametrize(("name", "i"), ESTIMATES)
def test_estimate_scales_with_the_power_of_the_lower_order(name, i):
    scheme, steps = get(name), short_steps(name, i)
    sizes = [float(NORMS["rms"](estimates(name, i, h))) for h in steps]
    measured = np.polyfit(np.log(steps), np.log(sizes), 1)[0]
    expected = min(scheme.order, scheme.embedded[i].order) + 1
    print(f"{name}, estimate {i}: h^{measured:.3f} for h^{expected} at h = {steps[-1]:.3f}, size {sizes[-1]:.0e}")
    assert abs(measured - expected) < ORDER_TOLERANCE


@pytest.mark.parametrize(("name", "i"), ESTIMATES)
def test_estimate_is_the_error_of_the_result_of_lower_order(name, i):
    """With its sign: y_b - y_b^ is minus the error of b^ if b is the better one, else the error of b."""
    scheme, h = get(name), np.longdouble(short_steps(name, i)[-1])
    exact, step = stepper(coupled_ode(), get("verner98")), stepper(coupled_ode(), scheme)
    errors = []
    for t, y in starts():
        middle = exact(t, h / 2, y)
        end = exact(t + h / 2, h / 2, middle)
        estimate = error_estimates(coupled_ode(), scheme, t, h, y)[i]
        is_extrapolated = scheme.order > scheme.embedded[i].order
        errors.append(end - step(t, h, y) + estimate if is_extrapolated else step(t, h, y) - end)
    difference = NORMS["rms"](np.array(errors) - estimates(name, i, float(h)))
    assert difference < 0.25 * NORMS["rms"](estimates(name, i, float(h)))  # the better result's error is O(h) smaller


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", PAIRS)
def test_engine_accepts_a_step_exactly_if_its_estimate_is_below_the_tolerance(name, norm):
    h = 0.4
    problem, scheme = coupled_ode(h), get(name)
    found = error_estimates(problem, scheme, real(0), real(h), real(problem.initial))
    size = float(combined([NORMS[norm](e) for e in found]))
    margin = SOLVED if isinstance(scheme, ImplicitRK) else 0.01
    for factor, is_accepted in ((1 + margin, True), (1 - margin, False)):
        solution = stepnet.solve(problem, scheme, rtol=1e-30, atol=size * factor, first_step=h, norm=norm)
        assert (solution.statistics.rejected == 0) == is_accepted


def combined(sizes):
    """One estimate as it is; two by the rule of DOP853."""
    if len(sizes) == 1:
        return sizes[0]
    return sizes[0] ** 2 / np.sqrt(sizes[0] ** 2 + 0.01 * sizes[1] ** 2)


# ---- adaptive runs --------------------------------------------------------------------------------------------------


def find_sane_bounds(name: str, tolerance: float) -> tuple[float, float]:
    """Bounds of error / tolerance ~ tolerance^(p/k - 1), where p and k are far apart."""
    excess = get(name).order / error_power(get(name)) - 1
    low = tolerance**excess if excess > UNEVEN else 1.0
    high = tolerance**excess if excess < -UNEVEN else 1.0
    return SANE[0] * low, SANE[1] * high


@cache
def reference() -> np.ndarray:
    return end_state(coupled_second_order(6.0), get("verner98"), 400)


@cache
def adaptive(name: str, tolerance: float, controller: str = "I", norm: str = "rms"):
    """Global error / tolerance and the statistics of a run over three oscillations."""
    problem = coupled_second_order(6.0)
    solution = stepnet.solve(problem, name, rtol=tolerance, atol=tolerance, controller=controller, norm=norm)
    return float(np.max(np.abs(solution.y[-1] - reference()))) / tolerance, solution.statistics


@pytest.mark.parametrize("name", PAIRS)
def test_global_error_is_proportional_to_the_tolerance(name):
    """Error ~ h^p and tolerance ~ h^k, so error ~ tolerance^(p/k): for all pairs but Fehlberg's, k = p."""
    errors = [adaptive(name, tolerance)[0] * tolerance for tolerance in TOLERANCES]
    exponent = np.polyfit(np.log(TOLERANCES), np.log(errors), 1)[0]
    print(f"{name}: error ~ tolerance^{exponent:.2f}, error / tolerance {errors[2] / 1e-6:.2g}, {errors[5] / 1e-9:.2g}")
    assert abs(exponent - get(name).order / error_power(get(name))) < EXPONENT_TOLERANCE
    for tolerance in TOLERANCES:
        low, high = find_sane_bounds(name, tolerance)
        assert low < adaptive(name, tolerance)[0] < high


@pytest.mark.parametrize("name", PAIRS)
def test_a_looser_tolerance_takes_fewer_steps(name):
    steps = [adaptive(name, tolerance)[1].accepted for tolerance in TOLERANCES]
    assert all(fewer < more for fewer, more in pairwise(steps))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("name", PAIRS)
def test_all_controllers_and_norms_reach_the_tolerance(name, controller, norm):
    """At rest err = safety^(k / sum beta), so PI and PID take steps shorter than I by safety^(1 / sum beta - 1)."""
    error, statistics = adaptive(name, 1e-7, controller, norm)
    c = CONTROLLERS[controller]
    shorter = c.safety ** (1 - 1 / (c.beta1 + c.beta2 + c.beta3))
    low, high = find_sane_bounds(name, 1e-7)
    assert low < error < high
    assert statistics.steps <= 1.15 * shorter * adaptive(name, 1e-7, "I", norm)[1].steps


@pytest.mark.parametrize("name", PAIRS)
def test_the_maximum_norm_is_the_stricter_one(name):
    assert adaptive(name, 1e-8, norm="max")[1].accepted > adaptive(name, 1e-8, norm="rms")[1].accepted


@pytest.mark.parametrize("name", PAIRS)
def test_backward_runs_choose_the_same_kind_of_steps(name):
    problem = coupled_second_order(6.0)
    ends = stepnet.solve(problem, name, rtol=1e-8, atol=1e-8).y[-1]
    back = stepnet.SecondOrder(problem.acceleration, ends[:2], ends[2:], (6.0, 0.0))
    solution = stepnet.solve(back, name, rtol=1e-8, atol=1e-8)
    assert np.all(np.diff(solution.t) < 0)
    assert np.max(np.abs(solution.y[-1] - problem.initial)) < find_sane_bounds(name, 1e-8)[1] * 1e-8


def test_every_pair_is_tested():
    assert {name for name, _ in ESTIMATES} == {name for name in FIXED_STEPS if getattr(get(name), "embedded", ())}
    print(f"{len(ESTIMATES)} estimates of {len(PAIRS)} pairs, {len(CONTROLLERS)} controllers, {len(NORMS)} norms")
