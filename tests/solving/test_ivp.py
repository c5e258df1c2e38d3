"""`solve_ivp` is SciPy's: the same steps, numbers, fields and errors."""

from __future__ import annotations

import copy
import inspect
import math
import subprocess
import sys
import textwrap
import warnings
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse
from zoo import CASES, TRACED, Case, parameters

import stepnet as sn

METHODS = ("RK23", "RK45", "DOP853")
# Relative.  Both take the same steps, which round-off in a small error estimate moves a little: much less than the
# tolerances of 1e-3, and least where the estimate is large.  SciPy's own times for the Brusselator by RK45 move by
# up to 4e-9 if the last bit of its slopes is changed at random; ours, by whatever rung, are 2e-9 away.
SAME_STEPS = {"RK23": 1e-9, "RK45": 1e-8, "DOP853": 1e-6}
FEWER_EVALUATIONS = 0.9  # DOP853 need not evaluate the slope at the end of a rejected step, and SciPy does
EVERY_STEP_LOOKED_INTO = 15 / 12  # its polynomial takes 3 more stages; SciPy spends them where the sign has changed
EVENT_TIME = 1e-7  # relative: the zero on a polynomial of the same step

PATIENCE = 60  # seconds for one small solve in a process of its own, kernels being compiled already

every_method = pytest.mark.parametrize("method", METHODS)


def is_for_scipy(case: Case) -> bool:
    """A flat state, and slopes that are returned."""
    try:
        names = list(inspect.signature(case.fun).parameters)
    except ValueError:
        names = []
    return np.ndim(case.y0) == 1 and names[2:3] != ["dy"]


def both(fun, t_span, y0, method="RK45", **options):
    """Our result and SciPy's."""
    return sn.solve_ivp(fun, t_span, y0, method, **options), scipy.integrate.solve_ivp(
        fun, t_span, y0, method, **options
    )


def assert_same(ours, theirs, method, slack: float = 1.0):
    tolerance = slack * SAME_STEPS[method]
    assert (ours.status, ours.message, ours.success) == (theirs.status, theirs.message, theirs.success)
    assert ours.y.shape == theirs.y.shape
    assert ours.y.dtype == theirs.y.dtype
    span = np.max(np.abs(theirs.t - theirs.t[0]))
    np.testing.assert_allclose(ours.t, theirs.t, rtol=0, atol=tolerance * span)
    np.testing.assert_allclose(ours.y, theirs.y, rtol=0, atol=tolerance * max(np.max(np.abs(theirs.y)), 1e-12))
    assert (ours.njev, ours.nlu) == (theirs.njev, theirs.nlu)
    if method != "DOP853":
        assert ours.nfev == theirs.nfev
    else:
        looks_inside = EVERY_STEP_LOOKED_INTO if ours.t_events else 1.0
        assert FEWER_EVALUATIONS * theirs.nfev <= ours.nfev <= looks_inside * theirs.nfev


# ---- the whole zoo ---------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("case", parameters(case for case in CASES if is_for_scipy(case)))
def test_default_options_give_scipys_steps(case, method):
    assert_same(*both(case.fun, case.t_span, case.y0, method, args=case.args or None), method)


def options_for(case: Case) -> dict[str, dict]:
    t0, t1 = case.t_span
    span, size = t1 - t0, np.abs(case.start) + 1.0
    return {
        "tight": {"rtol": 1e-7, "atol": 1e-9},
        "arrays": {"rtol": 1e-5 * (1 + np.arange(case.start.size)), "atol": 1e-8 * size},
        "rtol only": {"rtol": 1e-5},
        "max_step": {"max_step": span / 39.3},
        "first_step": {"first_step": span / 100},
        "t_eval": {"t_eval": t0 + span * np.array([0.0, 0.123, 0.5, 0.50001, 0.98, 1.0])},
        "t_eval inside": {"t_eval": t0 + span * np.array([0.3, 0.31, 0.7]), "max_step": span / 9.7},
        "dense": {"dense_output": True},
    }


LABELS = ("tight", "arrays", "rtol only", "max_step", "first_step", "t_eval", "t_eval inside", "dense")
FEW = ("lorenz", "van_der_pol", "sir", "kepler", "forced_oscillator", "heat_by_slices", "neural_field")


def assert_options_are_scipys(case, method, label):
    options = options_for(case)[label]
    ours, theirs = both(case.fun, case.t_span, case.y0, method, args=case.args or None, **options)
    assert_same(ours, theirs, method, slack=1000 if label == "tight" else 10)  # the smaller, the more is round-off
    if "dense_output" in options:
        times = np.random.default_rng(0).uniform(*case.t_span, 20)
        atol = 10 * SAME_STEPS[method] * np.max(np.abs(theirs.y))
        np.testing.assert_allclose(ours.sol(times), theirs.sol(times), rtol=0, atol=atol)


@every_method
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("case", parameters(case for case in CASES if case.name in FEW))
def test_options_mean_what_they_mean_in_scipy(case, method, label):
    assert_options_are_scipys(case, method, label)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("case", parameters(c for c in TRACED if is_for_scipy(c) and c.name not in FEW))
def test_options_mean_what_they_mean_in_scipy_for_the_rest(case, method, label):
    """Of the smooth ones: at a jump of the right-hand side the last bit decides how a step is cut."""
    assert_options_are_scipys(case, method, label)


# ---- kinds of input --------------------------------------------------------------------------------------------------


def oscillator(t, y):
    return [y[1], -y[0]]


def driven(t, y):
    return np.array([y[1], -y[0] + np.cos(1.3 * t)])


@every_method
@pytest.mark.parametrize("span", [(3.0, -2.0), (-1.0, 1.0), (5.0, 4.5)])
def test_backward_spans(method, span):
    t_eval = np.linspace(*span, 7)
    assert_same(*both(driven, span, [1.0, 0.5], method), method)
    assert_same(*both(driven, span, [1.0, 0.5], method, t_eval=t_eval, dense_output=True), method)


@every_method
def test_complex_states(method):
    spiral = lambda t, y: [(1j - 0.1) * y[0], 0.5j * y[1] * y[0]]
    ours, theirs = both(spiral, (0.0, 5.0), [1.0 + 0.5j, 0.3j], method, dense_output=True)
    assert_same(ours, theirs, method)
    np.testing.assert_allclose(ours.sol([0.7, 2.2]), theirs.sol([0.7, 2.2]), rtol=10 * SAME_STEPS[method])


@pytest.mark.parametrize(
    "y0",
    [[1, 0], (1.0, 0.0), np.array([1, 0], np.int32), np.array([1, 0], np.float32), np.array([1, 0], np.complex64)],
    ids=["list of whole numbers", "tuple", "int32", "float32", "complex64"],
)
def test_states_get_scipys_type(y0):
    assert_same(*both(oscillator, (0.0, 1.0), y0), "RK45", slack=10)


VECTORIZED = {
    "array": lambda t, y: np.array([y[1], -y[0]]),
    "list": lambda t, y: [y[1], -y[0]],
    "matrix": lambda t, y: np.array([[0.0, 1.0], [-1.0, 0.0]]) @ y,
    "stack": lambda t, y: np.vstack((y[1], -y[0])),
    "columns": lambda t, y: y[::-1] * np.array([[1.0], [-1.0]]),
}


@pytest.mark.parametrize("style", VECTORIZED)
def test_vectorized_functions_get_columns(style):
    assert_same(*both(VECTORIZED[style], (0.0, 2.0), [1.0, 0.2], vectorized=True), "RK45")


@pytest.mark.parametrize("args", [(2.0, 0.1), [2.0, 0.1], iter((2.0, 0.1))], ids=["tuple", "list", "iterator"])
def test_arguments_reach_the_function_and_the_events(args):
    fun, event = lambda t, y, k, c: [y[1], -k * y[0] - c * y[1]], lambda t, y, k, c: y[0] - c
    ours = sn.solve_ivp(fun, (0.0, 5.0), [1.0, 0.0], args=args, events=event)
    theirs = scipy.integrate.solve_ivp(fun, (0.0, 5.0), [1.0, 0.0], args=(2.0, 0.1), events=event)
    assert_same(ours, theirs, "RK45")
    np.testing.assert_allclose(ours.t_events[0], theirs.t_events[0], rtol=EVENT_TIME)


def test_a_first_step_longer_than_the_longest_is_cut():
    ours, theirs = both(oscillator, (0.0, 1.0), [1.0, 0.0], first_step=0.5, max_step=0.11)
    assert np.max(np.diff(ours.t)) <= 0.11 * (1 + 1e-12)
    assert_same(ours, theirs, "RK45")


def test_shortest_states():
    assert_same(*both(lambda t, y: -y, (0.0, 1.0), [1.0]), "RK45")
    nothing = sn.solve_ivp(lambda t, y: -y, (0.0, 1.0), [])
    assert nothing.success
    assert nothing.y.shape == (0, len(nothing.t))


def test_interval_of_no_length():
    ours, theirs = both(oscillator, (1.0, 1.0), [1.0, 0.5], dense_output=True)
    np.testing.assert_array_equal(ours.t, theirs.t)
    np.testing.assert_array_equal(ours.y, theirs.y)
    np.testing.assert_array_equal(ours.sol(1.0), theirs.sol(1.0))


def test_no_times_wanted():
    ours = sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], t_eval=[], dense_output=True)
    assert ours.success
    assert (len(ours.t), np.size(ours.y)) == (0, 0)
    theirs = scipy.integrate.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], t_eval=[], dense_output=True)
    np.testing.assert_allclose(ours.sol(0.5), theirs.sol(0.5), rtol=SAME_STEPS["RK45"])


# ---- dense output ----------------------------------------------------------------------------------------------------


@every_method
def test_dense_output_has_scipys_shapes_and_ends(method):
    ours, theirs = both(driven, (0.0, 3.0), [1.0, 0.0], method, dense_output=True, t_eval=[0.5, 1.0])
    assert ours.sol(0.7).shape == (2,)
    assert ours.sol([0.7, 0.8, 0.9]).shape == (2, 3)
    assert ours.sol(np.array([])).shape == (2, 0)
    assert (ours.sol.t_min, ours.sol.t_max) == (theirs.sol.t_min, theirs.sol.t_max)
    np.testing.assert_allclose(ours.sol.ts, theirs.sol.ts, rtol=SAME_STEPS[method])


@every_method
@pytest.mark.parametrize("span", [(0.0, 3.0), (3.0, 0.0)])
def test_dense_output_extrapolates_as_scipys_does(method, span):
    ours, theirs = both(driven, span, [1.0, 0.0], method, dense_output=True)
    for t in (-0.01, 3.01):
        np.testing.assert_allclose(ours.sol(t), theirs.sol(t), rtol=100 * SAME_STEPS[method])


@every_method
def test_dense_output_is_the_same_between_steps(method):
    ours, theirs = both(driven, (0.0, 6.0), [1.0, 0.0], method, dense_output=True, rtol=1e-5)
    times = np.random.default_rng(1).uniform(0.0, 6.0, 200)
    np.testing.assert_allclose(ours.sol(times), theirs.sol(times), rtol=0, atol=10 * SAME_STEPS[method])


def test_dense_output_ends_at_a_terminal_event():
    ours, theirs = both(oscillator, (0.0, 9.0), [1.0, 0.0], dense_output=True, events=falling, t_eval=[0.1, 0.2])
    assert ours.sol.t_max == pytest.approx(theirs.sol.t_max, rel=EVENT_TIME)
    np.testing.assert_allclose(ours.sol(1.5), theirs.sol(1.5), rtol=SAME_STEPS["RK45"])


# ---- events ----------------------------------------------------------------------------------------------------------


def falling(t, y):
    return y[0]


falling.terminal, falling.direction = True, -1


def marked(terminal=None, direction=None):
    def crossing(t, y):
        return y[0] - 0.1

    if terminal is not None:
        crossing.terminal = terminal
    if direction is not None:
        crossing.direction = direction
    return crossing


def assert_same_events(ours, theirs):
    assert isinstance(ours.t_events, list)
    assert isinstance(ours.y_events, list)
    assert [len(t) for t in ours.t_events] == [len(t) for t in theirs.t_events]
    for mine, t, y, expected in zip(ours.t_events, theirs.t_events, theirs.y_events, ours.y_events, strict=True):
        np.testing.assert_allclose(mine, t, rtol=EVENT_TIME)
        if len(t):
            assert expected.shape == y.shape
            np.testing.assert_allclose(expected, y, rtol=0, atol=10 * EVENT_TIME)


@every_method
@pytest.mark.parametrize("direction", [None, 0, 1, -1, 0.5, -3.0])
@pytest.mark.parametrize("terminal", [None, False, True, 1, 2, 3, 100])
def test_attributes_of_events(method, terminal, direction):
    ours, theirs = both(oscillator, (0.0, 20.0), [1.0, 0.0], method, events=marked(terminal, direction))
    assert_same(ours, theirs, method)
    assert_same_events(ours, theirs)


@pytest.mark.parametrize("span", [(0.0, 12.0), (12.0, 0.0)])
def test_several_events_with_everything_else(span):
    events = [marked(), marked(direction=1), lambda t, y: t - 6.1, lambda t, y: y[0] - 10.0]
    times = np.linspace(*span, 9)
    ours, theirs = both(driven, span, [1.0, 0.0], events=events, t_eval=times, dense_output=True, rtol=1e-6)
    assert_same(ours, theirs, "RK45", slack=10)
    assert_same_events(ours, theirs)


def test_terminal_event_ends_the_times_wanted():
    ours, theirs = both(oscillator, (0.0, 9.0), [1.0, 0.0], events=falling, t_eval=np.linspace(0.0, 9.0, 91))
    assert_same(ours, theirs, "RK45")
    assert ours.status == 1
    assert ours.t[-1] < math.pi / 2


def test_complex_state_events():
    event = lambda t, y: y[0].real
    ours, theirs = both(lambda t, y: 1j * y, (0.0, 9.0), [1.0 + 0.0j], events=event)
    assert_same_events(ours, theirs)


@pytest.mark.parametrize("y0", [[0.0, 1.0], [0.0, -1.0]])
def test_a_zero_at_the_beginning_is_found_as_scipy_does(y0):
    assert_same_events(*both(oscillator, (0.0, 4.0), y0, events=lambda t, y: y[0]))


def test_an_event_that_is_not_a_number_is_no_event():
    with np.errstate(invalid="ignore"):
        ours, theirs = both(oscillator, (0.0, 4.0), [1.0, 0.0], events=lambda t, y: np.log(1.0 - t) - 10.0)
    assert (ours.status, len(ours.t_events[0])) == (theirs.status, len(theirs.t_events[0]))


def test_fields_without_and_with_no_events():
    ours, theirs = both(oscillator, (0.0, 1.0), [1.0, 0.0])
    assert ours.t_events is theirs.t_events is None
    assert ours.y_events is theirs.y_events is None
    ours, theirs = both(oscillator, (0.0, 1.0), [1.0, 0.0], events=[])
    assert ours.t_events == theirs.t_events == []
    assert ours.y_events == theirs.y_events == []


# ---- the result ------------------------------------------------------------------------------------------------------


def test_result_has_scipys_fields_and_manners():
    ours, theirs = both(oscillator, (0.0, 1.0), [1.0, 0.0])
    assert set(theirs) <= set(ours)
    assert set(ours) - set(theirs) == {"solver", "solution"}
    for name in theirs:
        assert type(ours[name]) is type(theirs[name]), name
        assert getattr(ours, name) is ours[name]
        assert name in dir(ours)
        assert f"{name}: " in repr(ours)
    assert ours.sol is None
    assert ours.solver == "stepnet:dopri5"
    assert isinstance(ours.solution, sn.Solution)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ours.nothing


def test_result_can_be_copied_and_changed():
    found = sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0])
    other = copy.copy(found)
    other.t = other.t + 1.0
    del other.y
    assert found.t[0] == 0.0
    assert "y" in found
    assert "y" not in other


def test_blow_up_is_reported_as_scipy_does():
    """y' = y^2 is 1 / (1 - t)."""
    ours, theirs = both(lambda t, y: y * y, (0.0, 2.0), [1.0], rtol=1e-8, atol=1e-10)
    assert (ours.status, ours.success, ours.message) == (theirs.status, theirs.success, theirs.message)
    assert ours.status == -1
    assert ours.t[-1] == pytest.approx(1.0, rel=1e-6)
    assert np.all(np.isfinite(ours.y))


def test_slopes_that_are_not_numbers_at_the_beginning_end_the_run():
    """SciPy never returns from this, so there is nothing to compare with; in a process of its own, lest we do not."""
    program = """
        import numpy as np, stepnet as sn
        np.seterr(all="ignore")
        found = sn.solve_ivp(lambda t, y: [np.sqrt(y[0] - 2.0)], (0.0, 1.0), [1.0])
        print(found.status, found.success, found.solution.status.name)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["-1", "False", "NOT_FINITE"]


@every_method
def test_slopes_that_become_nan_later_are_reported_as_scipy_does(method):
    def fun(t, y):
        return [-1.0 - 0.0 * np.sqrt(0.5 - t)]

    with np.errstate(invalid="ignore"):
        ours, theirs = both(fun, (0.0, 1.0), [1.0], method)
    assert (ours.status, ours.message) == (theirs.status, theirs.message)
    assert ours.t[-1] == pytest.approx(theirs.t[-1], rel=1e-6)


# ---- who solves ------------------------------------------------------------------------------------------------------


IMPLICIT = {"Radau": "radau5", "BDF": "ndf", "LSODA": "lsoda"}
BESIDE_SCIPY = 1e-6  # both are within a hundred tolerances of 1e-9 of the solution
WIDTH = 40


def rod(t, y):
    slope = -2000.0 * y
    slope[1:] += 1000.0 * y[:-1]
    slope[:-1] += 1000.0 * y[1:]
    return slope


def rod_diagonals(t, y):
    packed = np.zeros((3, WIDTH))
    packed[0, 1:], packed[1], packed[2, :-1] = 1000.0, -2000.0, 1000.0
    return packed


ROD_MATRIX = np.diag(np.full(WIDTH, -2000.0)) + np.diag(np.full(WIDTH - 1, 1000.0), 1)
ROD_MATRIX += np.diag(np.full(WIDTH - 1, 1000.0), -1)
ROD_CASES = {
    "Radau, function": ("Radau", {"jac": lambda t, y: ROD_MATRIX}),
    "Radau, matrix": ("Radau", {"jac": ROD_MATRIX}),
    "Radau, sparse": ("Radau", {"jac": scipy.sparse.csc_matrix(ROD_MATRIX)}),
    "Radau, pattern": ("Radau", {"jac_sparsity": ROD_MATRIX != 0}),
    "BDF": ("BDF", {}),
    "BDF, function": ("BDF", {"jac": lambda t, y: scipy.sparse.csc_matrix(ROD_MATRIX)}),
    "BDF, pattern": ("BDF", {"jac_sparsity": scipy.sparse.csc_matrix(ROD_MATRIX)}),
    "LSODA": ("LSODA", {}),
    "LSODA, function": ("LSODA", {"jac": lambda t, y: ROD_MATRIX}),
    "LSODA, band": ("LSODA", {"lband": 1, "uband": 1}),
    "LSODA, packed": ("LSODA", {"lband": 1, "uband": 1, "jac": rod_diagonals}),
    "LSODA, one side": ("LSODA", {"lband": 1, "uband": 1, "min_step": 0.0}),
}


@pytest.mark.parametrize("method", IMPLICIT)
def test_implicit_methods_are_our_own(method):
    jac = lambda t, y: np.array([[0.0, 1.0], [-1.0, 0.0]])
    choices = {"events": marked(), "dense_output": True, "jac": jac, "rtol": 1e-9, "atol": 1e-11}
    ours, theirs = both(oscillator, (0.0, 3.0), [1.0, 0.0], method, **choices)
    assert ours.solver == f"stepnet:{IMPLICIT[method]}"
    np.testing.assert_allclose(ours.y[:, -1], theirs.y[:, -1], rtol=0, atol=BESIDE_SCIPY)
    np.testing.assert_allclose(ours.t_events[0], theirs.t_events[0], rtol=0, atol=BESIDE_SCIPY)
    np.testing.assert_allclose(ours.sol([0.5, 2.5]), theirs.sol([0.5, 2.5]), rtol=0, atol=BESIDE_SCIPY)
    assert (ours.status, ours.message, ours.success) == (theirs.status, theirs.message, theirs.success)
    assert ours.keys() - {"solver", "solution"} == set(theirs)
    assert (ours.njev > 0) == (method != "LSODA")
    assert (ours.nlu > 0) == (method != "LSODA")  # which does not switch here


@pytest.mark.parametrize("name", ROD_CASES)
def test_jacobians_have_the_meaning_of_scipy(name):
    method, options = ROD_CASES[name]
    y0 = np.sin(np.linspace(0.1, 3.0, WIDTH))
    ours, theirs = both(rod, (0.0, 0.1), y0, method, rtol=1e-8, atol=1e-10, **options)
    np.testing.assert_allclose(ours.y[:, -1], theirs.y[:, -1], rtol=0, atol=BESIDE_SCIPY)
    assert ours.njev > 0


def test_the_first_and_the_longest_step_have_the_meaning_of_scipy():
    for method in IMPLICIT:
        found = sn.solve_ivp(oscillator, (0.0, 3.0), [1.0, 0.0], method, first_step=1e-3, max_step=0.05)
        steps = np.diff(found.t)
        assert steps[0] == pytest.approx(1e-3)
        assert steps.max() <= 0.05 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("LSODA", {"lband": 1, "uband": 1, "jac": lambda t, y: np.eye(2)}, "`jac` must have shape"),
        ("LSODA", {"lband": -1}, "`lband` must be"),
        ("LSODA", {"min_step": 0.1}, "`min_step` must be 0"),
        ("Radau", {"jac": np.eye(3)}, "`jac` must have"),
        ("BDF", {"jac": lambda t, y: np.eye(3)}, "`jac` must have shape"),
    ],
)
def test_wrong_jacobians_are_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], method, **options)


@pytest.mark.parametrize(("method", "name"), [("Radau", "lband"), ("BDF", "uband"), ("LSODA", "jac_sparsity")])
def test_options_of_another_method_have_no_effect(method, name):
    with pytest.warns(UserWarning, match=f"no effect for a chosen solver: `{name}`"):
        sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], method, **{name: None})


@pytest.mark.parametrize("options", [{}, {"jac": lambda t, y, k: np.array([[0, 1j * k], [1j, -20]])}], ids=["", "jac"])
def test_bdf_takes_complex_states(options):
    def forced(t, y, k):
        return np.array([1j * y[1] * k, 1j * y[0] - 20 * (y[1] - np.exp(1j * t))])

    choices = {"args": (1.5,), "rtol": 1e-9, "atol": 1e-11, "dense_output": True, **options}
    choices["events"] = lambda t, y, k: y[0].real - 0.5
    ours, theirs = both(forced, (0.0, 2.0), [1.0 + 0j, 0.5j], "BDF", **choices)
    assert ours.y.dtype == complex
    np.testing.assert_allclose(ours.y[:, -1], theirs.y[:, -1], rtol=0, atol=BESIDE_SCIPY)
    np.testing.assert_allclose(ours.sol(1.1), theirs.sol(1.1), rtol=0, atol=BESIDE_SCIPY)
    np.testing.assert_allclose(ours.y_events[0], theirs.y_events[0], rtol=0, atol=BESIDE_SCIPY)


@pytest.mark.parametrize("method", ["Radau", "LSODA"])
def test_complex_states_are_refused_where_scipy_refuses_them(method):
    with pytest.raises(ValueError, match="complex"):
        sn.solve_ivp(lambda t, y: 1j * y, (0.0, 1.0), [1.0 + 0j], method)


def test_a_class_of_scipys_means_its_name_and_one_of_the_user_is_run_by_scipy():
    class Mine(scipy.integrate.RK45):
        pass

    assert sn.solve_ivp(oscillator, (0.0, 3.0), [1.0, 0.0], scipy.integrate.BDF).solver == "stepnet:ndf"
    ours, theirs = both(oscillator, (0.0, 3.0), [1.0, 0.0], Mine)
    assert ours.solver == "scipy:Mine"
    assert ours.solution is None
    np.testing.assert_array_equal(ours.y, theirs.y)


@pytest.mark.parametrize("name", ["bdf", "adams", "auto", "rodas5p"])
def test_schemes_of_variable_order_and_implicit_ones_work_by_name(name):
    found = sn.solve_ivp(oscillator, (0.0, 3.0), [1.0, 0.0], name, rtol=1e-8, atol=1e-10)
    assert found.solver == f"stepnet:{name}"
    np.testing.assert_allclose(found.y[:, -1], [math.cos(3.0), -math.sin(3.0)], rtol=0, atol=BESIDE_SCIPY)


PAIRS = [scheme.name for scheme in sn.schemes.find(family="ExplicitRK", pair=True)]


@pytest.mark.parametrize("name", PAIRS)
def test_our_own_pairs_work_by_name_and_by_record(name):
    found = sn.solve_ivp(oscillator, (0.0, 3.0), [1.0, 0.0], name, rtol=1e-8, atol=1e-10)
    assert found.solver == f"stepnet:{name}"
    assert found.nfev > 0
    np.testing.assert_allclose(found.y[:, -1], [math.cos(3.0), -math.sin(3.0)], rtol=0, atol=1e-6)
    by_record = sn.solve_ivp(oscillator, (0.0, 3.0), [1.0, 0.0], sn.schemes.get(name), rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(by_record.y, found.y)


@pytest.mark.parametrize("method", ["RK46", "radau", "", "dopri6"])
def test_unknown_methods_are_refused(method):
    with pytest.raises(ValueError, match="method"):
        sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], method)
    with pytest.raises(ValueError, match="method"):
        scipy.integrate.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], method)


@pytest.mark.parametrize("method", ["rk4", "ab4", "rkl2", "verlet"])
def test_schemes_without_an_error_estimate_are_refused(method):
    with pytest.raises(ValueError, match=f"{method}.*no error estimate"):
        sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], method)


def test_stiffness_is_told_and_the_answer_is_scipys():
    stiff = lambda t, y: [-2000.0 * (y[0] - np.cos(t))]
    with pytest.warns(sn.StiffnessWarning, match="stability"):
        ours = sn.solve_ivp(stiff, (0.0, 2.0), [0.0])
    theirs = scipy.integrate.solve_ivp(stiff, (0.0, 2.0), [0.0])
    assert_same(ours, theirs, "RK45", slack=1e4)  # at the limit of stability round-off grows before it is damped


# ---- what is refused, and what is warned of --------------------------------------------------------------------------

BAD = {
    "state of two dimensions": {"y0": [[1.0, 0.0]]},
    "state is a number": {"y0": 1.0},
    "state is text": {"y0": ["a", "b"]},
    "state is ragged": {"y0": [[1.0], [1.0, 2.0]]},
    "state is NaN": {"y0": [1.0, math.nan]},
    "state is infinite": {"y0": [1.0, math.inf]},
    "three ends": {"t_span": (0.0, 1.0, 2.0)},
    "one end": {"t_span": (0.0,)},
    "ends are a number": {"t_span": 1.0},
    "ends are text": {"t_span": ("a", "b")},
    "times outside": {"t_eval": [0.5, 2.0]},
    "times before": {"t_eval": [-0.5, 0.5]},
    "times unsorted": {"t_eval": [0.5, 0.2]},
    "times repeated": {"t_eval": [0.5, 0.5]},
    "times of two dimensions": {"t_eval": [[0.1, 0.2]]},
    "times against the direction": {"t_span": (1.0, 0.0), "t_eval": [0.2, 0.4]},
    "rtol of another shape": {"rtol": [1e-3, 1e-3, 1e-3]},
    "atol of another shape": {"atol": [1e-6, 1e-6, 1e-6]},
    "negative atol": {"atol": -1e-6},
    "one negative atol": {"atol": [1e-6, -1e-6]},
    "no longest step": {"max_step": 0.0},
    "negative longest step": {"max_step": -0.1},
    "no first step": {"first_step": 0.0},
    "negative first step": {"first_step": -0.1},
    "first step too long": {"first_step": 1.5},
    "arguments are a number": {"args": 1.0, "fun": lambda t, y, k: -y},
    "too few arguments": {"args": (), "fun": lambda t, y, k: -y},
    "too many arguments": {"args": (1.0, 2.0), "fun": lambda t, y, k: -y},
    "function of another shape": {"fun": lambda t, y: [1.0, 2.0, 3.0]},
    "function is text": {"fun": "f"},
    "negative count of events": {"events": marked(terminal=-1)},
    "broken count of events": {"events": marked(terminal=1.5)},
    "event is a number": {"events": [1.0]},
    "events are a number": {"events": 1.0},
    "unknown method": {"method": "RK5"},
}  # fmt: skip
OWN_WORDS = {  # where NumPy or Python complains behind SciPy, ours says more
    "state is text", "state is ragged", "three ends", "one end", "ends are a number", "ends are text",
    "rtol of another shape", "too few arguments", "too many arguments", "function of another shape", "function is text",
    "event is a number", "events are a number", "unknown method",
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_raises_what_scipy_raises(what):
    call = {"fun": oscillator, "t_span": (0.0, 1.0), "y0": [1.0, 0.0], **BAD[what]}
    with pytest.raises(Exception) as theirs:
        scipy.integrate.solve_ivp(**call)
    with pytest.raises(theirs.type) as ours:
        sn.solve_ivp(**call)
    if what not in OWN_WORDS:
        assert str(ours.value) == str(theirs.value)


def warned(solver, **options):
    """The result and the one warning of a solve."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = solver(oscillator, (0.0, 0.1), [1.0, 0.0], **options)
    assert len(caught) == 1, [str(warning.message) for warning in caught]
    return found, caught[0]


@pytest.mark.parametrize("rtol", [1e-15, np.array([1e-3, 1e-20])], ids=["all", "one"])
def test_rtol_below_rounding_is_raised_with_scipys_warning(rtol):
    ours, mine = warned(sn.solve_ivp, rtol=rtol, atol=1e-8)
    theirs, other = warned(scipy.integrate.solve_ivp, rtol=rtol, atol=1e-8)
    assert mine.category is other.category is UserWarning
    assert str(mine.message) == str(other.message)
    assert mine.filename == __file__
    assert_same(ours, theirs, "RK45", slack=10)


@pytest.mark.parametrize("options", [{"jac": None}, {"lband": 1, "uband": 2}, {"min_step": 0.1}], ids=str)
def test_options_without_effect_are_told_in_scipys_words(options):
    ours, mine = warned(sn.solve_ivp, **options)
    theirs, other = warned(scipy.integrate.solve_ivp, **options)
    assert mine.category is other.category is UserWarning
    assert mine.filename == __file__
    assert_same(ours, theirs, "RK45")
    assert str(mine.message) == str(other.message)


# ---- functions as SciPy takes them -----------------------------------------------------------------------------------


def clips_its_state(t, y):
    y[0] = max(y[0], 0.0)
    return [-y[0]]


def doubles_its_state(t, y):
    y *= 2
    return -y


def clears_its_state_later(t, y):
    if t > 1.0:
        y[:] = 0.0
    return -y


FUNCTIONS = {
    "dy is a number": (lambda t, y, dy: -dy * y, {"args": (2.0,)}),
    "out and another": (lambda t, y, out, k: -out * k * y, {"args": (2.0, 3.0)}),
    "dy comes last": (lambda t, y, a, dy: -a * dy * y, {"args": (2.0, 3.0)}),
    "dy has a default": (lambda t, y, dy=2.0: -dy * y, {}),
    "an event with out": (lambda t, y, out: -out * y, {"args": (2.0,), "events": lambda t, y, out: y[0] - 0.1 * out}),
    "clips": (clips_its_state, {}),
    "doubles": (doubles_its_state, {}),
    "clears": (clears_its_state_later, {}),
    "vectorized and doubles": (doubles_its_state, {"vectorized": True}),
}


@pytest.mark.parametrize("rung", ["traced", "compiled", "python"])
@pytest.mark.parametrize("what", FUNCTIONS)
def test_parameters_have_any_name_and_the_state_is_a_copy(what, rung, monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", rung)
    fun, options = FUNCTIONS[what]
    ours = sn.solve_ivp(fun, (0.0, 2.0), [1.0], **options)
    with_copy = lambda t, y, *args: fun(t, y.copy(), *args)  # SciPy hands out its own state where a step begins
    theirs = scipy.integrate.solve_ivp(with_copy, (0.0, 2.0), [1.0], **options)
    assert_same(ours, theirs, "RK45")
    if "events" in options:
        np.testing.assert_allclose(ours.t_events[0], theirs.t_events[0], rtol=EVENT_TIME)


ENDLESS = {
    "plain": {},
    "dense": {"dense_output": True},
    "times": {"t_eval": [0, 1, 2, 10]},
    "none of the times": {"t_eval": [10.0, 20.0]},
}


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "backward"])
@pytest.mark.parametrize("what", ENDLESS)
def test_a_terminal_event_ends_an_endless_interval(what, sign):
    fun, level, options = lambda t, y: -0.5 * sign * y, marked(terminal=True), dict(ENDLESS[what])
    if "t_eval" in options:
        options["t_eval"] = sign * np.array(options["t_eval"])
    ours, theirs = both(fun, (0.0, sign * math.inf), [1.0], events=level, **options)
    assert (ours.status, ours.message) == (theirs.status, theirs.message)
    np.testing.assert_allclose(ours.t, theirs.t, rtol=1e-8)
    np.testing.assert_allclose(ours.y, theirs.y, rtol=1e-8)
    np.testing.assert_allclose(ours.t_events[0], theirs.t_events[0], rtol=EVENT_TIME)
    if "dense_output" in options:
        times = np.linspace(*ours.t[[0, -1]], 20)
        np.testing.assert_allclose(ours.sol(times), theirs.sol(times), rtol=1e-7)
    solution = sn.solve(sn.ODE(fun, [1.0], (0.0, sign * math.inf)), "dop853", events=level, dense=True)
    assert solution.t[-1] == pytest.approx(sign * 2 * math.log(10), rel=1e-6)
    assert solution(solution.t[-1] / 2)[0] == pytest.approx(math.sqrt(0.1), rel=1e-5)


def test_an_endless_interval_needs_an_end():
    problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, math.inf))
    wanted = "`t_span` must be finite.*`terminal`"
    for call in (
        lambda: sn.solve(problem, "dopri5"),
        lambda: sn.solve(problem, "rk4", steps=10, events=marked(terminal=True)),
        lambda: sn.solve_ivp(problem.fun, problem.t_span, [1.0]),
        lambda: sn.gradient(problem, "dopri5", lambda y: y[0]),
        lambda: sn.solve_ensemble(problem, "dopri5", y0=[[1.0], [2.0]]),
    ):
        with pytest.raises(ValueError, match=wanted):
            call()
    integrator = sn.start(problem, "dopri5", rtol=1e-9, atol=1e-12)
    assert integrator.run_to(2.0).y[0] == pytest.approx(math.exp(-2.0), rel=1e-7)


ends_at_zero = lambda t, y: y[0]
ends_at_zero.terminal = True
EMPTY = {
    "no times": {"t_eval": []},
    "times after the event": {"t_eval": [5, 6], "events": ends_at_zero},
    "the same, dense": {"t_eval": [5.0, 6.0], "events": ends_at_zero, "dense_output": True},
    "some times before the event": {"t_eval": [0, 1, 5, 6], "events": ends_at_zero},
    "an event that never is": {"events": [lambda t, y: y[0], lambda t, y: y[0] - 7.0]},
    "no events": {"events": []},
    "no length": {"t_span": (1.0, 1.0)},
    "no length, times": {"t_span": (1.0, 1.0), "t_eval": [1.0]},
    "no length, event": {"t_span": (1.0, 1.0), "events": [lambda t, y: y[1], lambda t, y: y[0]]},
    "no length, dense": {"t_span": (1.0, 1.0), "dense_output": True},
    "no length, terminal event": {"t_span": (1.0, 1.0), "y0": [0.0, 1.0], "events": ends_at_zero},
    "whole numbers": {"t_eval": [0, 1, 2]},
}


@pytest.mark.parametrize("what", EMPTY)
def test_fields_are_scipys_where_there_is_little_to_tell(what):
    call = {"fun": oscillator, "t_span": (0.0, 10.0), "y0": [1.0, 0.0], **EMPTY[what]}
    ours, theirs = sn.solve_ivp(**call), scipy.integrate.solve_ivp(**call)
    assert (ours.status, ours.message, ours.success) == (theirs.status, theirs.message, theirs.success)
    for name in ("t", "y"):
        assert type(ours[name]) is type(theirs[name])
        assert np.asarray(ours[name]).dtype == np.asarray(theirs[name]).dtype
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-9)
    for name in ("t_events", "y_events"):
        assert (ours[name] is None) == (theirs[name] is None)
        for mine, other in zip(ours[name] or [], theirs[name] or [], strict=True):
            assert mine.shape == other.shape
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-9)
    assert (ours.sol is None) == (theirs.sol is None)


# ---- steps that get nowhere ------------------------------------------------------------------------------------------

NOWHERE = {
    "a root that ends": (lambda t, y: -np.sqrt(y) - 0.1, [0.0]),
    "a root that ends at 1": (lambda t, y: np.sqrt(1.0 - y) + 0.1, [1.0]),
    "an arc that ends": (lambda t, y: -np.arccos(y) - 0.1, [-1.0]),
    "an arc that ends above": (lambda t, y: np.arccos(y) + 0.1, [1.0]),
    "a tiny logarithm": (lambda t, y: np.log(y) - 1.0, [1e-300]),
    "an arc of time": (lambda t, y: 1.0 + np.arcsin(t + y), [1.0]),
    "an end in time": (lambda t, y: np.sqrt(1.0 - t) * y, [1.0]),
    "a pole": (lambda t, y: y**2, [1.0]),
}
WITHOUT_END = {"a root that ends at 1", "an arc that ends", "an arc that ends above"}  # in SciPy
FEW = 5000  # attempts; without a shortest step there are as many as fit into the patience of the user


@every_method
@pytest.mark.parametrize("what", NOWHERE)
def test_steps_that_get_nowhere_end_soon(what, method):
    fun, y0 = NOWHERE[what]
    ours = sn.solve_ivp(fun, (0.0, 1.5), y0, method)
    assert ours.solution.statistics.steps < FEW
    assert ours.status == -1
    assert ours.message == "Required step size is less than spacing between numbers."
    if what not in WITHOUT_END:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = scipy.integrate.solve_ivp(fun, (0.0, 1.5), y0, method)
        assert (ours.status, ours.message, ours.success) == (theirs.status, theirs.message, theirs.success)
        assert ours.t[-1] == pytest.approx(theirs.t[-1], rel=1e-2, abs=1e-15)


def test_members_of_an_ensemble_that_get_nowhere_end_soon():
    problem = sn.ODE(lambda t, y: -np.sqrt(y) - 0.1, [0.0], (0.0, 1.5))
    found = sn.solve_ensemble(problem, "dopri5", y0=np.zeros((9, 1)))
    assert found.rung == "lanes"
    assert set(found.status) == {sn.Status.NOT_FINITE}
    assert found.rejected.max() < FEW


def test_fast_beginnings_are_not_refused():
    """A layer of 1e-30 of the interval at its beginning, where SciPy's shortest step is 5e-323."""
    ours, theirs = both(lambda t, y: -y / (t + 1e-30), (0.0, 1.0), [1.0], rtol=1e-6)
    assert_same(ours, theirs, "RK45", slack=1e3)


# ---- exceptions where machine code has none --------------------------------------------------------------------------

RAISES = {
    "math.sqrt": lambda t, y: [-math.sqrt(y[0]) - 0.1],
    "math.log": lambda t, y: [math.log(y[0]) - 1.0],
    "math.exp": lambda t, y: [1e-200 * math.exp(50.0 * t)],
    "math.acos": lambda t, y: [math.acos(y[0] - 0.5) + 0.1],
    "math.pow": lambda t, y: [math.pow(y[0], 0.5) - 2.0],
    "whole number": lambda t, y: [1.0 / (5 - int(y[0]))],
}


@every_method
@pytest.mark.parametrize("rung", ["traced", "compiled", "python"])
@pytest.mark.parametrize("what", RAISES)
def test_exceptions_of_math_come_through(what, rung, method, monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", rung)
    call = (RAISES[what], (0.0, 100.0), [1.0], method)
    with pytest.raises((ValueError, OverflowError, ZeroDivisionError)) as theirs:
        scipy.integrate.solve_ivp(*call)
    with pytest.raises(theirs.type) as ours:
        sn.solve_ivp(*call)
    assert str(ours.value) == str(theirs.value)


def test_exceptions_of_math_in_steps_that_would_be_taken_again():
    """The attempt with too long a step leaves the domain, and a shorter one would not: SciPy raises at once."""
    fun = lambda t, y: [-0.5 * math.sqrt(y[0])]
    for solver in (scipy.integrate.solve_ivp, sn.solve_ivp):
        with pytest.raises(ValueError, match="math domain error"):
            solver(fun, (0.0, 3.9), [1.0], first_step=3.9)


@pytest.mark.parametrize("rung", ["traced", "compiled", "python"])
def test_exceptions_of_math_in_events_come_through(rung, monkeypatch):
    monkeypatch.setenv("STEPNET_RUNG", rung)
    for solver in (scipy.integrate.solve_ivp, sn.solve_ivp):
        with pytest.raises(ValueError, match="math domain error"):
            solver(oscillator, (0.0, 5.0), [1.0, 0.0], events=lambda t, y: math.sqrt(y[0]))


class Mine(Exception):
    """An exception that compiled code knows nothing of."""


def raises_in_python(t, y):
    if t > 0.5:
        raise Mine("half way", t)
    return [-y[0]]


def raises_in_compiled_code(t, y):
    if t > 0.5:
        raise ValueError("half way")
    return [-y[0]]


@pytest.mark.parametrize(
    ("fun", "kind"), [(raises_in_python, Mine), (raises_in_compiled_code, ValueError)], ids=["python", "compiled"]
)
def test_exceptions_of_the_function_come_through(fun, kind):
    with pytest.raises(kind, match="half way") as caught:
        sn.solve_ivp(fun, (0.0, 1.0), [1.0], max_step=0.1)
    assert caught.traceback[-1].name == fun.__name__


def test_exceptions_of_an_event_come_through():
    def event(t, y):
        if t > 0.5:
            raise Mine("half way")
        return y[0] - 10.0

    with pytest.raises(Mine, match="half way"):
        sn.solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], events=event, max_step=0.1)


def test_first_call_of_the_function_raises_as_it_is():
    with pytest.raises(ZeroDivisionError):
        sn.solve_ivp(lambda t, y: [1 / 0], (0.0, 1.0), [1.0])


def test_steps_end_where_scipys_do():
    """The grids agree step by step, and the last step ends exactly at the end."""
    ours, theirs = both(driven, (0.0, 10.0), [1.0, 0.0], rtol=1e-6)
    assert ours.t[-1] == theirs.t[-1] == 10.0
    assert all(before < after for before, after in pairwise(ours.t))
