"""A failed run reports where, why and what to do, and returns the valid part."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from numba_engine.runs.families import ADAPTIVE, every_adaptive_family
from problems import arenstorf, brusselator, kepler, lorenz, pleiades

import stepnet as sn

# ---- the step budget ------------------------------------------------------------------------------------------------


@every_adaptive_family
def test_a_used_up_budget_keeps_the_part_that_was_done(family):
    whole = family.solve()
    with pytest.raises(sn.SolveFailed, match="`max_steps`") as caught:
        family.solve(max_steps=7)
    part = caught.value.solution
    assert part.status is sn.Status.STEP_LIMIT
    assert part.statistics.steps == 7
    assert np.array_equal(part.t, whole.t[: len(part.t)])
    assert np.array_equal(part.y, whole.y[: len(part.t)])
    assert part.failure.t == part.t[-1]
    assert "raise `max_steps`" in part.failure.advice
    assert np.isfinite(part.failure.slope_norm)


@pytest.mark.parametrize(("saving", "count"), [({"save_every": 0}, 1), ({"save_every": 1000}, 2)])
def test_the_last_state_is_kept_even_if_few_are_saved(saving, count):
    part = ADAPTIVE[0].solve(max_steps=7, check=False, **saving)
    assert len(part.t) == count
    assert part.t[-1] == ADAPTIVE[0].solve(max_steps=7, check=False).t[-1]


def test_only_wanted_times_are_kept_if_times_are_wanted():
    whole = ADAPTIVE[0].solve()
    part = ADAPTIVE[0].solve(max_steps=7, check=False, save_at=np.linspace(0.0, 2.0, 201))
    assert part.t[-1] <= whole.t[7]
    assert whole.t[7] - part.t[-1] < 0.011
    assert np.array_equal(part.t, np.linspace(0.0, 2.0, 201)[: len(part.t)])


# ---- blow-up: y' = y^2, y = 1 / (1 - t) -----------------------------------------------------------------------------


def square(t, y):
    return y * y


def grow(t, y):
    return 1.0 * y


BLOW_UP = {
    "explicit": (lambda: sn.ODE(square, [1.0, 0.5], (0.0, 3.0)), ["euler", "rk4", "dopri5", "dop853"]),
    "low storage": (lambda: sn.ODE(square, [1.0, 0.5], (0.0, 3.0)), ["williamson3", "carpenter_kennedy54"]),
    "stabilised": (lambda: sn.ODE(square, [1.0, 0.5], (0.0, 3.0)), ["rkl2", "rkc2"]),
    "multistep": (lambda: sn.ODE(square, [1.0, 0.5], (0.0, 3.0)), ["ab2", "ab4", "midpoint_two_step"]),
    "partitioned": (
        lambda: sn.Partitioned(square, square, [1.0, 0.5], [1.0, 0.5], (0.0, 3.0)),
        ["verlet", "ruth3", "yoshida4", "rk4"],
    ),
    "second order": (
        lambda: sn.SecondOrder(square, [2.0, 0.5], [2.0, 1.0], (0.0, 6.0)),
        ["verlet", "leapfrog_two_step", "rk4"],
    ),
    "split": (lambda: sn.Split((square, grow), [2.0, 0.5], (0.0, 3.0)), ["lie", "strang", "rk4"]),
}
CASES = [(family, scheme) for family, (_, schemes) in BLOW_UP.items() for scheme in schemes]
every_blow_up = pytest.mark.parametrize(("family", "scheme"), CASES, ids=[" ".join(case) for case in CASES])


@every_blow_up
def test_even_steps_stop_at_the_last_finite_state(family, scheme):
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(BLOW_UP[family][0](), scheme, steps=300)
    part = caught.value.solution
    assert part.status is sn.Status.NOT_FINITE
    assert len(part.t) > 10
    assert np.all(np.isfinite(part.y))
    assert np.all(np.diff(part.t) > 0)
    assert part.failure.t == part.t[-1]
    assert "NaN or infinite" in part.message
    assert f"t = {part.t[-1]:.6g}" in part.message


@every_blow_up
def test_wanted_times_of_a_blow_up_are_finite(family, scheme):
    problem = BLOW_UP[family][0]()
    part = sn.solve(problem, scheme, steps=300, check=False, save_at=np.linspace(0.0, problem.t_span[1], 3001))
    assert part.status is sn.Status.NOT_FINITE
    assert len(part.t) > 10
    assert np.all(np.isfinite(part.y))


@pytest.mark.parametrize("scheme", ["bosh3", "fehlberg45", "dopri5", "tsit5", "verner76", "dop853"])
def test_adaptive_steps_stop_at_the_singularity(scheme):
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(square, [1.0], (0.0, 2.0)), scheme)
    part = caught.value.solution
    assert part.status in (sn.Status.STEP_TOO_SMALL, sn.Status.NOT_FINITE)
    assert part.t[-1] == pytest.approx(1.0, abs=1e-4)  # rtol = 1e-6 moves the pole a little
    assert np.all(np.isfinite(part.y))
    assert "singular" in part.message
    early = part.t < 0.9
    assert np.allclose(part.y[early, 0], 1 / (1 - part.t[early]), rtol=1e-4)


# ---- NaN from the right-hand side -----------------------------------------------------------------------------------


def nan_after_half(t, y):
    dy = -y
    if t > 0.5:
        dy[1] = np.nan
    return dy


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        ("rk4", {"steps": 20}),
        ("carpenter_kennedy54", {"steps": 20}),
        ("rkl2", {"steps": 20}),
        ("ab4", {"steps": 20}),
        ("dopri5", {}),
        ("dop853", {}),
        ("bosh3", {"rtol": 1e-3}),
    ],
)
def test_a_nan_slope_is_named(scheme, how):
    with pytest.raises(sn.SolveFailed) as caught:
        sn.solve(sn.ODE(nan_after_half, [1.0, 2.0, 3.0], (0.0, 1.0)), scheme, **how)
    part, message = caught.value.solution, str(caught.value)
    assert part.status is sn.Status.NOT_FINITE
    # A multistep scheme evaluates the slope at the end of a step only when it takes the next one.
    end, stages = (0.55, [0]) if scheme == "ab4" else (0.5, [1] if "steps" in how else range(1, 12))
    assert part.t[-1] == pytest.approx(end, rel=1e-13)
    assert np.all(np.isfinite(part.y))
    assert part.failure.component == 1
    assert part.failure.stage in stages
    assert "slope 1 is not finite" in message
    assert f"t = {part.t[-1]:.6g}" in message
    assert "right-hand side" in part.failure.advice


def quiet(t, y):
    return 0.0 * y


@pytest.mark.parametrize(
    ("problem", "scheme", "component"),
    [
        (sn.SecondOrder(nan_after_half, [1.0, 2.0], [0.0, 0.0], (0.0, 1.0)), "verlet", 3),
        (sn.SecondOrder(nan_after_half, [1.0, 2.0], [0.0, 0.0], (0.0, 1.0)), "yoshida4", 3),
        (sn.SecondOrder(nan_after_half, [1.0, 2.0], [0.0, 0.0], (0.0, 1.0)), "leapfrog_two_step", 3),
        (sn.SecondOrder(nan_after_half, [1.0, 2.0], [0.0, 0.0], (0.0, 1.0)), "rk4", 3),
        (sn.Partitioned(nan_after_half, quiet, [1.0, 2.0], [1.0, 2.0], (0.0, 1.0)), "verlet", 1),
        (sn.Split((quiet, nan_after_half), [1.0, 2.0], (0.0, 1.0)), "strang", 1),
        (sn.Split((quiet, nan_after_half), [1.0, 2.0], (0.0, 1.0)), "rk4", 1),
    ],
    ids=["verlet", "yoshida4", "leapfrog", "joined second order", "dq", "split", "joined split"],
)
def test_a_nan_slope_of_a_part_is_named(problem, scheme, component):
    """`component` counts the entries of the flat state, whose slope it is: q, then p or v."""
    part = sn.solve(problem, scheme, steps=20, check=False)
    assert part.status is sn.Status.NOT_FINITE
    assert np.all(np.isfinite(part.y))
    assert part.failure.component == component
    assert f"slope {component} is not finite" in part.message


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("scheme", "how"), [("rk4", {"steps": 20}), ("dopri5", {}), ("ab4", {"steps": 20})])
def test_a_first_slope_that_is_not_finite_ends_the_run_at_once(scheme, how, value):
    def bad(t, y, x):
        return y * x

    part = sn.solve(sn.ODE(bad, [1.0, 2.0], (0.0, 1.0), (value,)), scheme, check=False, **how)
    assert part.status is sn.Status.NOT_FINITE
    assert part.t.tolist() == [0.0]
    assert part.failure.component == 0
    assert part.statistics.steps < 1000  # a step is shortened by 5 until it is 0; not ten million times


def test_an_infinite_initial_slope_that_passes_is_no_failure():
    """A step that overflows is tried again with a shorter one."""

    def steep(t, y):
        return [1e200 * max(0.0, y[0] - 1.0) ** 8 + 1.0]

    assert sn.solve(sn.ODE(steep, [0.0], (0.0, 0.9)), "dopri5", first_step=0.9e9).success


def test_failures_are_reported_without_warnings_of_numpy():
    """Norms of states near overflow are taken with care (warnings are errors in this test run)."""
    part = sn.solve(sn.ODE(square, [1.0, 0.5], (0.0, 3.0)), "ab4", steps=300, check=False)
    assert np.isfinite(part.y).all()


def test_the_diagnosis_in_float32_looks_at_float32():
    def decay(t, y):
        return -y

    part = sn.solve(sn.ODE(decay, np.float32([1.0, 2.0, 3.0]), (0.0, 1.0)), "dopri5", max_steps=2, check=False)
    assert part.status is sn.Status.STEP_LIMIT
    assert part.failure.component is None
    expected = np.linalg.norm(part.y[-1])
    assert part.failure.slope_norm == pytest.approx(expected, rel=1e-5)
    assert part.failure.y_norm == pytest.approx(expected, rel=1e-5)


# ---- stiffness ------------------------------------------------------------------------------------------------------


def relaxing(t, y, k):
    return -k * (y - np.cos(t))


def van_der_pol(t, y):
    return np.array([y[1], 1000.0 * (1.0 - y[0] * y[0]) * y[1] - y[0]])


@pytest.mark.parametrize("scheme", ["bosh3", "dopri5", "tsit5", "dop853", "verner65"])
def test_a_stiff_problem_is_announced(scheme):
    with pytest.warns(sn.StiffnessWarning, match="limited by stability"):
        solution = sn.solve(sn.ODE(relaxing, [1.0], (0.0, 0.5), (1e5,)), scheme, save_every=0)
    assert solution.success
    assert solution.statistics.stiffness > 0.8
    assert "stability limit" in repr(solution)


@pytest.mark.parametrize("scheme", ["bosh3", "dopri5", "tsit5"])
def test_a_stiff_problem_is_announced_wherever_it_ends(scheme):
    """The last step ends at the end of the interval, however short; stiffness is that of the steps before it."""
    for end in np.linspace(0.1, 0.101, 23):
        with pytest.warns(sn.StiffnessWarning):
            sn.solve(sn.ODE(relaxing, [1.0], (0.0, end), (1e5,)), scheme, save_every=0)


def test_a_stiff_problem_is_announced_backward():
    with pytest.warns(sn.StiffnessWarning):
        sn.solve(sn.ODE(relaxing, [1.0], (0.5, 0.0), (-1e5,)), "dopri5", save_every=0)


def test_a_blow_up_backward_is_not_called_stiff():
    """y' = -y grows backward in time: no implicit scheme would help."""

    def decay(t, y):
        return -1000.0 * y

    part = sn.solve(sn.ODE(decay, [1.0], (0.0, -10.0)), "rk4", steps=1000, check=False)
    assert part.status is sn.Status.NOT_FINITE
    assert "stiff" not in part.message


def test_a_stiff_problem_that_uses_up_its_steps_is_told_so():
    part = sn.solve(sn.ODE(van_der_pol, [2.0, 0.0], (0.0, 2000.0)), "dopri5", max_steps=5000, check=False)
    assert part.status is sn.Status.STEP_LIMIT
    assert part.failure.stiffness > 0.8
    assert "stiff" in part.message
    assert "an implicit scheme such as rodas5p, or a stabilised scheme" in part.failure.advice


def test_a_stabilised_scheme_does_what_the_advice_says():
    """rkl2 with 40 stages has a stability limit of about 800 and needs 1 / 40 of the evaluations."""
    problem = sn.ODE(relaxing, [1.0], (0.0, 0.5), (1e5,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sn.StiffnessWarning)
        explicit = sn.solve(problem, "dopri5", save_every=0)
    stabilised = sn.solve(problem, sn.schemes.rkl2(40), steps=100, save_every=0)
    assert stabilised.y[-1, 0] == pytest.approx(np.cos(0.5), abs=1e-3)
    assert stabilised.statistics.evaluations < explicit.statistics.evaluations / 20


SMOOTH = {
    "Lorenz": lorenz,
    "Pleiades": pleiades,
    "Arenstorf": arenstorf,
    "Brusselator": brusselator,
    "Kepler": lambda: kepler(0.6, 100.0),
}


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("scheme", ["bosh3", "dopri5", "tsit5", "dop853"])
@pytest.mark.parametrize("name", SMOOTH)
def test_problems_limited_by_accuracy_are_not_called_stiff(name, scheme, rtol):
    """Warnings are errors in this test run."""
    problem = SMOOTH[name]()
    solution = sn.solve(problem, scheme, rtol=rtol, atol=rtol, save_every=0)
    assert solution.success
    assert not solution.statistics.stiffness > 0.5


# ---- check=False, pickling, printing --------------------------------------------------------------------------------


def test_check_false_never_raises():
    cases = (("dopri5", {}, 1e-6), ("rk4", {"steps": 300}, 0.02), ("ab4", {"steps": 300}, 0.08))
    for scheme, how, beyond in cases:  # steps of 0.01 end a few steps after the pole at t = 1
        solution = sn.solve(sn.ODE(square, [1.0], (0.0, 3.0)), scheme, check=False, **how)
        assert not solution.success
        assert solution.status is (sn.Status.NOT_FINITE if how else sn.Status.STEP_TOO_SMALL)
        assert 1.0 < solution.t[-1] <= 1.0 + beyond * (1 + 1e-12)
        assert solution.failure.t == solution.t[-1]
        assert ("grows without bound" if how else "singular") in solution.failure.advice


def test_failed_solutions_can_be_printed():
    for saving in ({}, {"save_every": 0}, {"save_at": [2.5]}, {"save_at": []}):
        part = sn.solve(sn.ODE(square, [1.0], (0.0, 3.0)), "dopri5", check=False, **saving)
        assert part.status.value in repr(part)


@pytest.mark.parametrize("kind", [sn.SolveFailed, sn.Interrupted])
def test_failures_can_be_sent_to_another_process(kind):
    """concurrent.futures pickles what a worker raises; one that cannot be unpickled breaks the whole pool."""
    part = sn.solve(sn.ODE(square, [1.0], (0.0, 3.0)), "dopri5", check=False)
    copy = pickle.loads(pickle.dumps(kind(part)))
    assert type(copy) is kind
    assert str(copy) == part.message
    assert np.array_equal(copy.solution.y, part.y)
    assert copy.solution.status is part.status


def test_solve_failed_is_not_a_value_error():
    """Wrong arguments and failed runs are told apart by their type."""
    assert not issubclass(sn.SolveFailed, (ValueError, TypeError))
    assert issubclass(sn.Interrupted, KeyboardInterrupt)
