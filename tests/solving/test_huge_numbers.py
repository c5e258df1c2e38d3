"""Numbers that no kernel, array or float can hold are refused at once, by the name of the argument."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import checkpoints, fields, nets, training
from stepnet.schemes import stabilised

HUGE = 10**400  # no float
UNWRITABLE = 10**5000  # no text either: Python refuses to write it out
SPAN = (0.0, 1.0)


def decay(t, y):
    return -y


def ode(**changes) -> sn.ODE:
    return sn.ODE(**{"fun": decay, "y0": [1.0], "t_span": SPAN, **changes})


def ensemble(**rows):
    return sn.solve_ensemble(ode(), "dopri5", **{"y0": [[1.0]], **rows})


def first(y):
    return y[0]


INTEGERS = {
    "steps": lambda n: sn.solve(ode(), "rk4", steps=n),
    "steps of start": lambda n: sn.start(ode(), "rk4", steps=n),
    "steps of a gradient": lambda n: sn.gradient(ode(), "rk4", first, steps=n),
    "steps of an ensemble": lambda n: sn.solve_ensemble(ode(), "rk4", y0=[[1.0]], steps=n),
    "steps of a net": lambda n: nets.resnet(2, 1, 4, n),
    "max_steps": lambda n: sn.solve(ode(), max_steps=n),
    "save_every": lambda n: sn.solve(ode(), save_every=n),
    "workers": lambda n: ensemble(workers=n),
    "workers of a net": lambda n: nets.resnet(2, 1, 4, 3, workers=n),
    "workers of a sweep": lambda n: sn.sweep(ode(), "rk4", {"y0[0]": [1.0]}, steps=3, workers=n),
    "chunk": lambda n: sn.sweep(ode(), "rk4", {"y0[0]": [1.0]}, steps=3, chunk=n),
    "slots": sn.Checkpoints,
    "bytes": lambda n: sn.Checkpoints(bytes=n),
    "n_steps": lambda n: checkpoints.binomial(n, 3),
    "n_steps, all stored": checkpoints.store_all,
    "controls": fields.Depth,
    "width": lambda n: fields.dense(n),
    "seed": lambda n: nets.resnet(2, 1, 4, 3, seed=n),
    "seed of a recipe": lambda n: training.Recipe(seed=n),
    "epochs": lambda n: training.Recipe(epochs=n),
    "size": lambda n: sn.reductions.Quantiles(size=n),
    **{f"stages of {make.__name__}": make for make in
       (stabilised.rkc1, stabilised.rkc2, stabilised.rkl1, stabilised.rkl2)},
}  # fmt: skip
NAMES = {"width": "channels_in"}


@pytest.mark.parametrize("number", [2**70, HUGE, UNWRITABLE, -1, -HUGE], ids=["2**70", "huge", "vast", "-1", "-huge"])
@pytest.mark.parametrize("case", INTEGERS)
def test_integers_that_cannot_work_are_refused(case, number):
    name = NAMES.get(case, case.split(",")[0].split()[0])
    with pytest.raises(ValueError, match=rf"`{name}` must be at {'most' if number > 0 else 'least'} [0-9]+, found"):
        INTEGERS[case](number)


TIMES_TOO = ("steps", "steps of start", "steps of a gradient", "steps of an ensemble")  # or the times of given steps


@pytest.mark.parametrize("number", [2.5, True, "3"], ids=repr)
@pytest.mark.parametrize("case", [case for case in INTEGERS if case not in TIMES_TOO])
def test_what_is_no_integer_is_refused(case, number):
    name = NAMES.get(case, case.split(",")[0].split()[0])
    with pytest.raises(TypeError, match=rf"`{name}` must be an integer, found"):
        INTEGERS[case](number)


def test_stages_beyond_rounding_are_refused_before_they_are_counted():
    with pytest.raises(ValueError, match="`stages` must be at most 65536, found 2147483648"):
        stabilised.rkl2(2**31)


FLOATS = {
    "t_span": lambda x: ode(t_span=(0, x)),
    "y0": lambda x: ode(y0=[1.0, x]),
    "y0, one number": lambda x: ode(y0=x),
    "q0": lambda x: sn.SecondOrder(decay, [x], [0.0], SPAN),
    "jac": lambda x: ode(jac=[[x]]),
    "rtol": lambda x: sn.solve(ode(), rtol=x),
    "atol": lambda x: sn.solve(ode(), atol=[x]),
    "first_step": lambda x: sn.solve(ode(), first_step=x),
    "max_step": lambda x: sn.solve(ode(), max_step=x),
    "save_at": lambda x: sn.solve(ode(), save_at=[0.5, x]),
    "steps": lambda x: sn.solve(ode(), "rk4", steps=[0.0, x]),
    "t_span of solve_ivp": lambda x: sn.solve_ivp(decay, (0, x), [1.0]),
    "y0 of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [x]),
    "t_eval of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [1.0], t_eval=[0, x]),
    "rtol of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [1.0], rtol=x),
    "atol of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [1.0], atol=x),
    "first_step of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [1.0], first_step=x),
    "max_step of solve_ivp": lambda x: sn.solve_ivp(decay, SPAN, [1.0], max_step=x),
    "y0 of an ensemble": lambda x: ensemble(y0=[[x]]),
    "t_span of an ensemble": lambda x: ensemble(t_span=[[0, x]]),
    "rtol of an ensemble": lambda x: ensemble(rtol=[[x]]),
    "save_at of an ensemble": lambda x: ensemble(save_at=[x]),
    "terminal": lambda x: sn.Event(decay, terminal=x),
    "touch": lambda x: sn.Event(decay, touch=x),
    "length": lambda x: nets.resnet(2, 1, 4, 3, length=x),
    "x": lambda x: nets.resnet(2, 1, 4, 3)([[x, 1]]),
    "rate": lambda x: training.optimisers.get("adam", rate=x),
    "y": lambda x: sn.derivatives.jacobian(ode()).dense(0.0, [x]),
}


@pytest.mark.parametrize("case", FLOATS)
def test_integers_that_are_no_floats_are_refused(case):
    with pytest.raises(ValueError, match=rf"`{case.split(',')[0].split()[0]}`"):
        FLOATS[case](HUGE)


def test_integers_beyond_64_bits_are_floats_in_states():
    assert np.array_equal(ode(y0=[2**70, 1]).y0, [2.0**70, 1.0])
