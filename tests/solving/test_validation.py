"""Wrong arguments are refused by the public functions: the argument in backticks, what was found, what is required."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stepnet as sn

SPAN = (0.0, 1.0)


def decay(t, y):
    return -y


def force(t, q):
    return -q


def general(t, q, p):
    return -q + p


def ode(**changes) -> sn.ODE:
    return sn.ODE(**{"fun": decay, "y0": [1.0, 2.0], "t_span": SPAN, **changes})


def solve(scheme="dopri5", problem=None, **how) -> sn.Solution:
    return sn.solve(ode() if problem is None else problem, scheme, **how)


def second_order() -> sn.SecondOrder:
    return sn.SecondOrder(force, [1.0, 2.0], [0.0, 0.0], SPAN)


def partitioned(**changes) -> sn.Partitioned:
    return sn.Partitioned(
        **{"dq": force, "dp": force, "q0": [1.0], "p0": [0.0], "t_span": SPAN, **changes},
    )


nan, inf = math.nan, math.inf

# what is wrong: (what to do, the error, words of its message)
PROBLEMS = {
    "y0 is text": (lambda: ode(y0="one"), TypeError, ["`y0`", "numbers", "<U3"]),
    "y0 holds text": (lambda: ode(y0=["a", "b"]), TypeError, ["`y0`", "<U1"]),
    "y0 is ragged": (lambda: ode(y0=[[1.0], [1.0, 2.0]]), ValueError, ["`y0`", "ragged"]),
    "y0 is None": (lambda: ode(y0=None), TypeError, ["`y0`", "object"]),
    "y0 holds objects": (lambda: ode(y0=[1.0, None]), TypeError, ["`y0`", "object"]),
    "y0 is a dict": (lambda: ode(y0={"x": 1.0}), TypeError, ["`y0`", "object"]),
    "y0 holds NaN": (lambda: ode(y0=[1.0, nan]), ValueError, ["`y0`", "finite", "entry 1 is nan"]),
    "y0 holds infinity": (lambda: ode(y0=[[1.0, 2.0], [-inf, 0.0]]), ValueError, ["`y0`", "entry 2 is -inf"]),
    "y0 is NaN": (lambda: ode(y0=nan), ValueError, ["`y0`", "entry 0 is nan"]),
    "y0 holds complex NaN": (lambda: ode(y0=[1j, complex(0, nan)]), ValueError, ["`y0`", "entry 1"]),
    "y0 holds dates": (lambda: ode(y0=np.array(["2020"], "M8[Y]")), TypeError, ["`y0`", "datetime64"]),
    "q0 is text": (lambda: partitioned(q0="x"), TypeError, ["`q0`"]),
    "p0 holds NaN": (lambda: partitioned(p0=[nan]), ValueError, ["`p0`", "entry 0 is nan"]),
    "q0 and p0 differ": (
        lambda: partitioned(q0=[1.0, 2.0]), ValueError, ["`q0`", "`p0`", "equal shapes", "(2,)", "(1,)"]
    ),
    "q0 and v0 differ": (
        lambda: sn.SecondOrder(force, [1.0], [[1.0]], SPAN), ValueError, ["`q0`", "`v0`", "(1,)", "(1, 1)"]
    ),
    "v0 holds infinity": (lambda: sn.SecondOrder(force, [1.0], [inf], SPAN), ValueError, ["`v0`", "inf"]),
    "t_span is a number": (lambda: ode(t_span=1.0), ValueError, ["`t_span`", "two numbers", "1.0"]),
    "t_span has three": (lambda: ode(t_span=(0, 1, 2)), ValueError, ["`t_span`", "two numbers", "(0, 1, 2)"]),
    "t_span has one": (lambda: ode(t_span=[1.0]), ValueError, ["`t_span`", "two numbers", "[1.0]"]),
    "t_span is None": (lambda: ode(t_span=None), ValueError, ["`t_span`", "two numbers", "None"]),
    "t_span is text": (lambda: ode(t_span="01"), (TypeError, ValueError), ["`t_span`", "two numbers", "'01'"]),
    "t_span holds text": (lambda: ode(t_span=("0", "1")), (TypeError, ValueError), ["`t_span`", "'1'"]),
    "t_span holds complex": (lambda: ode(t_span=(0, 1j)), ValueError, ["`t_span`", "1j"]),
    "t_span is huge": (lambda: ode(t_span=(0, 10**400)), ValueError, ["`t_span`"]),
    "t_span holds NaN": (lambda: ode(t_span=(0, nan)), ValueError, ["`t_span`", "finite", "nan"]),
    "t_span is endless": (lambda: solve(problem=ode(t_span=(0, inf))), ValueError, ["`t_span`", "finite", "inf"]),
    "t_span begins nowhere": (lambda: ode(t_span=(-inf, 0)), ValueError, ["`t_span`", "finite", "-inf"]),
    "args is a number": (lambda: ode(args=1.0), TypeError, ["`args`", "tuple", "float", "`args=(value,)`"]),
    "args is an array": (lambda: ode(args=np.ones(2)), TypeError, ["`args`", "tuple", "ndarray"]),
    "args is text": (lambda: ode(args="ab"), TypeError, ["`args`", "tuple", "str"]),
    "args is a dict": (lambda: ode(args={"k": 1}), TypeError, ["`args`", "tuple", "dict"]),
    "one part": (lambda: sn.Split((decay,), [1.0], SPAN), ValueError, ["`parts`", "at least two", "found 1", "`ODE`"]),
    "no part": (lambda: sn.Split((), [1.0], SPAN), ValueError, ["`parts`", "found 0"]),
    "parts is a function": (lambda: sn.Split(decay, [1.0], SPAN), TypeError, ["`parts`", "sequence", "function"]),
}  # fmt: skip

FUNCTIONS = {
    "fun is None": (lambda: solve(problem=ode(fun=None)), TypeError, ["`fun`", "function", "NoneType"]),
    "fun is text": (lambda: solve(problem=ode(fun="sin")), TypeError, ["`fun`", "function", "str"]),
    "fun is an array": (lambda: solve(problem=ode(fun=np.ones(2))), TypeError, ["`fun`", "ndarray"]),
    "fun is a number": (lambda: solve(problem=ode(fun=1.5)), TypeError, ["`fun`", "float"]),
    "fun is an int": (lambda: solve(problem=ode(fun=3)), TypeError, ["`fun`", "number 3", "`stepnet.address(...)`"]),
    "fun is a flag": (lambda: solve(problem=ode(fun=True)), TypeError, ["`fun`", "bool"]),
    "dq is None": (lambda: solve("verlet", partitioned(dq=None), steps=3), TypeError, ["`dq`", "NoneType"]),
    "dp is None": (lambda: solve("verlet", partitioned(dp=None), steps=3), TypeError, ["`dp`", "NoneType"]),
    "acceleration is None": (
        lambda: solve("verlet", sn.SecondOrder(None, [1.0], [0.0], SPAN), steps=3), TypeError, ["`acceleration`"]
    ),
    "second part is None": (
        lambda: solve("strang", sn.Split((decay, None), [1.0], SPAN), steps=3), TypeError, ["`parts[1]`", "NoneType"]
    ),
    "fun returns too few": (
        lambda: solve(problem=ode(fun=lambda t, y: y[:1])), ValueError, ["`fun`", "shape (1,)", "shape (2,)"]
    ),
    "fun returns too many": (
        lambda: solve(problem=ode(fun=lambda t, y: [1.0, 2.0, 3.0])), ValueError, ["`fun`", "(3,)", "(2,)"]
    ),
    "fun returns a number": (lambda: solve(problem=ode(fun=lambda t, y: 1.0)), ValueError, ["`fun`", "()", "(2,)"]),
    "fun returns a column": (
        lambda: solve(problem=ode(fun=lambda t, y: y.reshape(2, 1))), ValueError, ["`fun`", "(2, 1)", "(2,)"]
    ),
    "fun returns None": (
        lambda: solve(problem=ode(fun=lambda t, y: None)), TypeError, ["`fun`", "returned None", "`dy`"]
    ),
    "fun returns complex": (
        lambda: solve(problem=ode(fun=lambda t, y: 1j * y)), TypeError, ["`fun`", "complex", "`y0`"]
    ),
    "fun returns text": (lambda: solve(problem=ode(fun=lambda t, y: "ab")), TypeError, ["`fun`", "numbers", "'ab'"]),
    "fun returns ragged lists": (
        lambda: solve(problem=ode(fun=lambda t, y: [[1.0], [1.0, 2.0]])), TypeError, ["`fun`", "numbers", "list"]
    ),
    "fun returns a dict": (lambda: solve(problem=ode(fun=lambda t, y: {})), TypeError, ["`fun`", "numbers", "dict"]),
    "fun returns objects": (
        lambda: solve(problem=ode(fun=lambda t, y: [None, 1.0])), TypeError, ["`fun`", "numbers", "None"]
    ),
    "fun does not fill dy": (
        lambda: solve(problem=ode(fun=fills_first)), ValueError, ["`fun`", "did not set `dy[1]`", "t = 0"]
    ),
    "dp does not fill dy": (
        lambda: solve("verlet", sn.Partitioned(force, fills_first, [1.0, 2.0], [0.0, 0.0], SPAN), steps=3),
        ValueError, ["`dp`", "`dy[1]`"]
    ),
    "an event returns two numbers": (
        lambda: solve(events=lambda t, y: y), ValueError, ["`events[0]`", "one number", "shape (2,)"]
    ),
    "an event returns None": (
        lambda: solve(events=lambda t, y: None), TypeError, ["`events[0]`", "returned None", "one number"]
    ),
    "a projection loses an entry": (
        lambda: solve(project=lambda t, y: y[:1]), ValueError, ["`project`", "shape (2,)", "shape (1,)"]
    ),
    "trace is no flag": (lambda: ode(trace="no"), TypeError, ["`trace`", "True or False", "'no'"]),
    "separable is no flag": (lambda: partitioned(separable=2), TypeError, ["`separable`", "True or False", "2"]),
    "fun writes into y": (lambda: solve(problem=ode(fun=writes)), ValueError, ["read-only"]),
    "in-place fun writes into y": (lambda: solve(problem=ode(fun=writes_in_place)), ValueError, ["read-only"]),
    "fun changes y in place": (lambda: solve(problem=ode(fun=negates)), ValueError, ["read-only"]),
    "in-place fun with other arguments": (
        lambda: solve(problem=ode(fun=fills, args=("text",))), TypeError, ["`args`", "`fun`", "'text'"]
    ),
}  # fmt: skip


def fills_first(t, y, dy):
    dy[0] = y[0]


def fills(t, y, dy, p):
    dy[:] = -y


def writes(t, y):
    y[0] = 1.0
    return -y


def negates(t, y):
    y *= -1.0
    return y


def writes_in_place(t, y, dy):
    y[0] = 1.0
    dy[:] = y


STEPS = {
    "no such scheme": (lambda: solve("dorpi5"), LookupError, ["'dorpi5'", "did you mean", "'dopri5'"]),
    "nothing like a scheme": (lambda: solve("zzzz"), LookupError, ["'zzzz'", "known", "rk4"]),
    "scheme is a number": (lambda: solve(5), LookupError, ["scheme 5", "did you mean"]),
    "problem and scheme swapped": (
        lambda: sn.solve("rk4", ode(), steps=3), TypeError, ["`problem`", "ODE", "found str"]
    ),
    "no such norm": (lambda: solve(norm="rmx"), LookupError, ["norm", "'rmx'", "'rms'"]),
    "norm is an array": (lambda: solve(norm=np.ones(2)), (LookupError, TypeError), ["norm"]),
    "no such controller": (lambda: solve(controller="PIX"), LookupError, ["controller", "'PIX'", "PID"]),
    "controller is a list": (lambda: solve(controller=[1.0]), (LookupError, TypeError), ["controller"]),
    "rtol is zero": (lambda: solve(rtol=0.0), ValueError, ["`rtol`", "positive", "found 0.0"]),
    "rtol is negative": (lambda: solve(rtol=-1e-6), ValueError, ["`rtol`", "positive", "-1e-06"]),
    "rtol is NaN": (lambda: solve(rtol=nan), ValueError, ["`rtol`", "finite", "nan"]),
    "rtol is infinite": (lambda: solve(rtol=inf), ValueError, ["`rtol`", "finite", "inf"]),
    "rtol is text": (lambda: solve(rtol="small"), TypeError, ["`rtol`", "number", "'small'"]),
    "rtol is complex": (lambda: solve(rtol=1j), TypeError, ["`rtol`", "1j"]),
    "rtol is ragged": (lambda: solve(rtol=[[1e-6], [1e-6, 1e-6]]), (TypeError, ValueError), ["`rtol`"]),
    "atol is zero": (lambda: solve(atol=0.0), ValueError, ["`atol`", "positive"]),
    "atol has a zero": (lambda: solve(atol=[1e-6, 0.0]), ValueError, ["`atol`", "positive"]),
    "atol is too long": (
        lambda: solve(atol=[1e-6] * 3), ValueError, ["`atol`", "shape (2,)", "found (3,)"]
    ),
    "atol for half of a state": (
        lambda: solve("dopri5", second_order(), atol=np.full(3, 1e-6)), ValueError, ["`atol`", "(4,)", "(3,)"]
    ),
    "first_step is zero": (lambda: solve(first_step=0.0), ValueError, ["`first_step`", "positive", "0.0"]),
    "first_step is NaN": (lambda: solve(first_step=nan), ValueError, ["`first_step`", "nan"]),
    "first_step is text": (lambda: solve(first_step="a"), ValueError, ["`first_step`", "'a'"]),
    "max_step is negative": (lambda: solve(max_step=-1.0), ValueError, ["`max_step`", "positive", "-1.0"]),
    "max_step is a flag": (lambda: solve(max_step=True), ValueError, ["`max_step`", "True"]),
    "max_steps is zero": (lambda: solve(max_steps=0), ValueError, ["`max_steps`", "at least 1", "found 0"]),
    "max_steps is a float": (lambda: solve(max_steps=1e3), TypeError, ["`max_steps`", "integer", "1000.0"]),
    "steps is a float": (lambda: solve("rk4", steps=10.0), TypeError, ["`steps`", "whole number", "10.0"]),
    "steps is a step size": (lambda: solve("rk4", steps=0.1), TypeError, ["`steps`", "0.1", "round((t1 - t0) / h)"]),
    "steps is zero": (lambda: solve("rk4", steps=0), ValueError, ["`steps`", "at least 1", "found 0"]),
    "steps is negative": (lambda: solve("rk4", steps=-5), ValueError, ["`steps`", "at least 1", "found -5"]),
    "steps is a flag": (lambda: solve("rk4", steps=True), TypeError, ["`steps`", "True"]),
    "steps is huge": (lambda: solve("rk4", steps=2**63, save_every=0), ValueError, ["`steps`"]),
    "max_steps is huge": (lambda: solve(max_steps=10**30), ValueError, ["`max_steps`"]),
    "first_step is huge": (lambda: solve(first_step=10**400), ValueError, ["`first_step`"]),
    "steps is text": (lambda: solve("rk4", steps="ten"), TypeError, ["`steps`", "'ten'"]),
    "steps begin late": (lambda: solve("rk4", steps=[0.1, 1.0]), ValueError, ["`steps`", "begin at 0.0", "`t_span`"]),
    "steps end early": (lambda: solve("rk4", steps=[0.0, 0.9]), ValueError, ["`steps`", "end at 1.0"]),
    "steps leave the span": (lambda: solve("rk4", steps=[0.0, 2.0, 1.0]), ValueError, ["`steps`", "`t_span`", "2.0"]),
    "steps turn back": (
        lambda: solve("rk4", steps=[0.0, 0.6, 0.4, 1.0]), ValueError, ["`steps`", "turning back", "0.4 after 0.6"]
    ),
    "steps repeat": (lambda: solve("rk4", steps=[0.0, 0.5, 0.5, 1.0]), ValueError, ["`steps`", "repeat"]),
    "steps hold NaN": (lambda: solve("rk4", steps=[0.0, nan, 1.0]), ValueError, ["`steps`", "finite", "nan"]),
    "steps are a table": (lambda: solve("rk4", steps=[[0.0, 1.0]]), TypeError, ["`steps`", "array of times"]),
    "steps are one time": (lambda: solve("rk4", steps=[0.0]), ValueError, ["`steps`", "end at 1.0"]),
    "no steps at all": (lambda: solve("rk4", steps=[]), (TypeError, ValueError), ["`steps`"]),
    "rtol with steps": (lambda: solve("rk4", steps=3, rtol=1e-3), ValueError, ["`rtol`", "adaptive", "`steps`"]),
    "max_step with steps": (lambda: solve(steps=3, max_step=0.1), ValueError, ["`max_step`", "adaptive", "`steps`"]),
    "norm with steps": (lambda: solve(steps=3, norm="max"), ValueError, ["`norm`", "adaptive", "`steps`"]),
    "symplectic without steps": (
        lambda: solve("verlet", second_order(), rtol=1e-6),
        ValueError, ["symplectic", "equal steps", "`rtol`", "`steps`"]
    ),
    "no pair and no steps": (
        lambda: solve("rk4"), ValueError, ["rk4", "no error estimate", "`steps`", "dopri5"]
    ),
    "multistep without steps": (lambda: solve("ab4"), ValueError, ["ab4", "no error estimate", "`steps`"]),
    "stabilised without steps": (lambda: solve("rkl2"), ValueError, ["rkl2", "no error estimate", "`steps`"]),
    "splitting on an ODE": (
        lambda: solve("verlet", steps=3), TypeError, ["verlet", "`ODE` has no parts", "`Partitioned`", "`SecondOrder`"]
    ),
    "splitting of what cannot be split": (
        lambda: solve("verlet", partitioned(dq=general, dp=general, separable=False), steps=3),
        TypeError, ["verlet", "separable=False", "dq(t, p)"]
    ),
    "Nystrom scheme on Partitioned": (
        lambda: solve("blanes_moan_nystrom6", partitioned(), steps=3), TypeError, ["q'' = a(t, q)", "`SecondOrder`"]
    ),
    "Nystrom scheme on Split": (
        lambda: solve("blanes_moan_nystrom6", sn.Split((decay, decay), [1.0], SPAN), steps=3),
        TypeError, ["`SecondOrder`"]
    ),
    "leapfrog on an ODE": (lambda: solve("leapfrog_two_step", steps=3), TypeError, ["q'' = a(t, q)", "`SecondOrder`"]),
    "leapfrog on Partitioned": (
        lambda: solve("leapfrog_two_step", partitioned(), steps=3), TypeError, ["`SecondOrder`"]
    ),
    "multistep with given times": (
        lambda: solve("ab4", steps=[0.0, 0.3, 1.0]), ValueError, ["ab4", "equal steps", "`steps`"]
    ),
}  # fmt: skip

SAVING = {
    "save_at before the span": (lambda: solve(save_at=[-0.1, 0.5]), ValueError, ["`save_at`", "`t_span`", "-0.1"]),
    "save_at after the span": (lambda: solve(save_at=[0.5, 1.1]), ValueError, ["`save_at`", "(0.0, 1.0)", "1.1"]),
    "save_at outside a span backward": (
        lambda: solve(problem=ode(t_span=(1.0, 0.0)), save_at=[1.1]), ValueError, ["`save_at`", "(1.0, 0.0)", "1.1"]
    ),
    "save_at against a span backward": (
        lambda: solve(problem=ode(t_span=(1.0, 0.0)), save_at=[0.2, 0.8]), ValueError, ["`save_at`", "0.8 after 0.2"]
    ),
    "save_at turns back": (lambda: solve(save_at=[0.5, 0.2]), ValueError, ["`save_at`", "0.2 after 0.5"]),
    "save_at is a number": (lambda: solve(save_at=0.5), TypeError, ["`save_at`", "one-dimensional", "0.5"]),
    "save_at is a table": (lambda: solve(save_at=[[0.5]]), TypeError, ["`save_at`", "one-dimensional"]),
    "save_at is text": (lambda: solve(save_at="all"), TypeError, ["`save_at`", "'all'"]),
    "save_at holds NaN": (lambda: solve(save_at=[0.1, nan]), ValueError, ["`save_at`", "finite", "nan"]),
    "save_at is ragged": (lambda: solve(save_at=[[0.1], [0.2, 0.3]]), TypeError, ["`save_at`", "ragged"]),
    "save_at holds complex": (lambda: solve(save_at=[0.1j]), TypeError, ["`save_at`"]),
    "save_every is negative": (lambda: solve(save_every=-1), ValueError, ["`save_every`", "at least 0", "-1"]),
    "save_every is a float": (lambda: solve(save_every=2.0), TypeError, ["`save_every`", "2.0"]),
    "save_every is a flag": (lambda: solve(save_every=True), TypeError, ["`save_every`", "True"]),
    "save_every is huge": (lambda: solve(save_every=2**63), ValueError, ["`save_every`"]),
    "save_every is None": (lambda: solve(save_every=None), TypeError, ["`save_every`", "None"]),
}  # fmt: skip

CASES = {**PROBLEMS, **FUNCTIONS, **STEPS, **SAVING}


@pytest.mark.parametrize("wrong", CASES)
def test_wrong_arguments_are_refused_with_their_name(wrong):
    do, error, words = CASES[wrong]
    with pytest.raises(error) as caught:
        do()
    message = str(caught.value)
    for word in words:
        assert word in message
    assert not message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("wrong", [*PROBLEMS, *STEPS, *SAVING])
def test_wrong_arguments_are_refused_before_the_right_hand_side_runs(wrong, monkeypatch):
    called = []
    monkeypatch.setitem(globals(), "decay", lambda t, y: called.append(t) or -y)
    with pytest.raises(CASES[wrong][1]):
        CASES[wrong][0]()
    assert not called


def test_misspelt_arguments_are_refused():
    with pytest.raises(TypeError, match="rtoll"):
        solve(rtoll=1e-3)


def test_problems_are_checked_when_they_are_built():
    """The traceback points at the line that is wrong, not at a later `solve`."""
    with pytest.raises(ValueError, match="`t_span`"):
        sn.ODE(decay, [1.0], (0.0, nan))


@pytest.mark.parametrize(
    "problem",
    [
        lambda: ode(args=[1.0]),
        lambda: ode(t_span=np.array([0, 1])),
        lambda: ode(t_span=[np.float32(0), np.int8(1)]),
        lambda: ode(y0=(1, True)),
        lambda: sn.Split([decay, decay], [1.0], SPAN),
    ],
)
def test_lists_and_arrays_of_numpy_are_welcome(problem):
    problem()


@pytest.mark.parametrize(
    "how",
    [
        {"steps": np.int32(4)},
        {"steps": (0, 0.5, 1)},
        {"steps": [0, 1]},
        {"steps": range(2)},
        {"steps": 4, "save_at": range(2)},
        {"steps": 4, "save_every": np.int64(2)},
        {"steps": 4, "save_at": np.float32([0.5])},
    ],
)
def test_numbers_of_any_kind_are_welcome(how):
    assert solve("rk4", **how).success


def test_scheme_names_ignore_case():
    assert solve("DoPri5").scheme.name == "dopri5"


def test_scheme_records_are_welcome():
    assert np.array_equal(solve(sn.schemes.get("dopri5")).y, solve("dopri5").y)


# ---- whatever the numbers: a refusal that names its argument, or a solution ------------------------------------------

odd_floats = st.floats(allow_nan=True, allow_infinity=True)
times = st.floats(-1e3, 1e3)
tolerances = st.one_of(odd_floats, st.floats(1e-10, 1.0), st.lists(odd_floats, max_size=3))
names = re.compile(r"`(t_span|y0|rtol|atol|save_at|steps|first_step|max_step|max_steps|save_every)`")

patient = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def attempt(problem_of, **how):
    """The solution, or None if an argument was refused by name."""
    try:
        return sn.solve(problem_of(), check=False, **how)
    except (ValueError, TypeError) as error:
        message = str(error)
    assert names.search(message), message
    return None


def assert_sound(solution, t_span):
    t0, t1 = t_span
    assert solution.t.shape[0] == solution.y.shape[0]
    assert np.all(np.isfinite(solution.y))
    assert np.all((solution.t >= min(t0, t1)) & (solution.t <= max(t0, t1)))
    assert np.all(np.diff(solution.t) * np.sign(t1 - t0) >= 0)
    assert solution.success or solution.failure is not None


@patient
@given(rtol=tolerances, atol=tolerances)
def test_any_tolerances_are_refused_or_kept(rtol, atol):
    solution = attempt(ode, scheme="dopri5", rtol=rtol, atol=atol, max_steps=2000)
    if solution is not None:
        assert_sound(solution, SPAN)
        assert np.all(np.array(rtol) > 0)
        assert np.all(np.array(atol) > 0)
        assert np.max(np.diff(solution.t), initial=0.0) <= 1.0


@patient
@given(t_span=st.tuples(odd_floats, odd_floats))
def test_any_span_is_refused_or_integrated(t_span):
    solution = attempt(lambda: ode(t_span=t_span), scheme="dopri5", max_steps=500)
    if solution is None:
        assert not all(map(math.isfinite, t_span))
    else:
        assert_sound(solution, t_span)
        if solution.success:
            assert solution.t[-1] == t_span[1]


@patient
@given(
    t_span=st.tuples(times, times),
    save_at=hnp.arrays(float, st.integers(0, 6), elements=st.one_of(times, odd_floats)),
    ordered=st.booleans(),
    scheme=st.sampled_from(["dopri5", "rk4", "ab4", "carpenter_kennedy54", "rkl2"]),
)
def test_any_wanted_times_are_refused_or_answered(t_span, save_at, ordered, scheme):
    t0, t1 = t_span
    if ordered:
        save_at = np.sort(np.clip(np.nan_to_num(save_at), min(t0, t1), max(t0, t1)))[:: 1 if t1 >= t0 else -1]
    how = {"max_steps": 2000} if scheme == "dopri5" else {"steps": 1 + int(50 * min(abs(t1 - t0), 20))}
    solution = attempt(lambda: ode(fun=swing, t_span=t_span), scheme=scheme, save_at=save_at, **how)
    assert (solution is not None) or not ordered
    if solution is not None:
        assert_sound(solution, t_span)
        assert np.array_equal(solution.t, save_at[: len(solution.t)])
        if solution.success:
            assert len(solution.t) == len(save_at)


def swing(t, y):
    return np.array([y[1], -np.sin(y[0])])


@patient
@given(
    grid=hnp.arrays(float, st.integers(0, 6), elements=st.floats(0.0, 1.0)),
    ordered=st.booleans(),
    scheme=st.sampled_from(["rk4", "rkl2", "williamson3"]),
)
def test_any_grid_is_refused_or_followed(grid, ordered, scheme):
    if ordered:
        grid = np.unique([0.0, *grid, 1.0])
    solution = attempt(ode, scheme=scheme, steps=grid)
    assert (solution is not None) or not ordered
    if solution is not None:
        assert np.array_equal(solution.t, grid)


@patient
@given(first_step=odd_floats, max_step=odd_floats, max_steps=st.integers(-5, 500))
def test_any_step_lengths_are_refused_or_respected(first_step, max_step, max_steps):
    how = {"first_step": first_step, "max_step": max_step, "max_steps": max_steps}
    solution = attempt(ode, scheme="dopri5", **how)
    if solution is not None:
        assert_sound(solution, SPAN)
        assert np.max(np.diff(solution.t), initial=0.0) <= max_step * (1 + 1e-8)
        assert solution.statistics.steps <= max_steps


@patient
@given(y0=hnp.arrays(float, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), elements=odd_floats))
def test_any_state_is_refused_or_integrated(y0):
    solution = attempt(lambda: sn.ODE(copies, y0, SPAN), scheme="rk4", steps=3)
    if solution is None:
        assert not np.all(np.isfinite(y0))
    else:
        assert solution.y.shape == (len(solution.t), *y0.shape)
        assert np.array_equal(solution.y[0], y0)


class Copies:
    """y' = 0, run in Python so that no shape is compiled."""

    def __call__(self, t, y):
        return 0.0 * y


copies = Copies()
