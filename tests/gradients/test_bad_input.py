"""Wrong arguments: the right type of error, and a message that names the argument."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import KINDS

import stepnet as sn
from stepnet.errors import NoDerivative, SolveFailed, UnknownName

PROBLEM = KINDS[0].build()
HALVES = KINDS[3].build()


def good(y):
    return np.sin(y[0])


def gradient(loss=good, **how):
    return sn.gradient(PROBLEM, "rk4", loss, **{"steps": 4, **how})


LOSSES = {
    "a vector": (lambda y: 2.0 * y, TypeError, "`loss` must return a number"),
    "a list": (lambda y: [1.0, 2.0], TypeError, "`loss`"),
    "a string": (lambda y: "text", TypeError, "`loss`"),
    "nothing": (lambda y: None, TypeError, "`loss`"),
    "not a number": (lambda y: y[0] * np.nan, ValueError, "`loss` must be finite"),
    "infinite": (lambda y: (np.inf, y), ValueError, "`loss` must be finite"),
    "three things": (lambda y: (1.0, y, y), TypeError, "`loss` must return a number or the pair"),
    "a pair of another shape": (lambda y: (1.0, np.ones(3)), ValueError, "`loss` returned a gradient of shape"),
    "a pair with NaN": (lambda y: (1.0, y * np.nan), ValueError, "`loss` returned a gradient"),
    "a pair of vectors": (lambda y: (y, y), TypeError, "`loss` must return a number"),
    "a pair of texts": (lambda y: (1.0, "text"), TypeError, "`loss`"),
    "a complex number": (lambda y: y[0] * 1j, TypeError, "`loss`"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(2)], ids=str)
def test_losses(name, memory):
    loss, error, message = LOSSES[name]
    with pytest.raises(error, match=message):
        gradient(loss, memory=memory)


def test_a_loss_that_cannot_be_traced():
    with pytest.raises(NoDerivative, match="`loss` could not be traced"):
        gradient(lambda y: float(y[0]) if y[0] > 0.1 else 0.0)
    with pytest.raises(TypeError, match="`loss`"):
        gradient(3.0)


CALLS = {
    "no loss": (lambda: gradient(None), TypeError, "`loss` or `end_gradient`"),
    "two losses": (lambda: gradient(end_gradient=[1.0, 1.0]), TypeError, "`loss` or `end_gradient`"),
    "end_gradient of another shape": (lambda: gradient(None, end_gradient=[1.0]), ValueError, "`end_gradient`"),
    "end_gradient with NaN": (lambda: gradient(None, end_gradient=[1.0, np.nan]), ValueError, "`end_gradient`"),
    "end_gradient of text": (lambda: gradient(None, end_gradient="text"), TypeError, "`end_gradient`"),
    "no slots": (lambda: sn.Checkpoints(0), ValueError, "`slots`"),
    "negative slots": (lambda: sn.Checkpoints(-3), ValueError, "`slots`"),
    "half a slot": (lambda: sn.Checkpoints(1.5), TypeError, "`slots`"),
    "no bytes": (lambda: gradient(memory=0), ValueError, "`memory`"),
    "memory by another name": (lambda: gradient(memory="everything"), ValueError, "`memory`"),
    "memory as truth": (lambda: gradient(memory=True), ValueError, "`memory`"),
    "memory as a list": (lambda: gradient(memory=[1]), ValueError, "`memory`"),
    "reversible Runge-Kutta": (lambda: gradient(memory="reversible"), ValueError, "`memory`.*rk4"),
    "reversible Adams": (
        lambda: sn.gradient(PROBLEM, "ab3", good, steps=5, memory="reversible"), ValueError, "`memory`.*ab3",
    ),
    "save_at off the grid": (lambda: gradient(good, save_at=[0.3]), ValueError, "`save_at`"),
    "save_at off a given grid": (
        lambda: gradient(steps=np.array([0.1, 0.2, 0.7]), save_at=[0.2, 0.3]), ValueError, "`save_at`",
    ),
    "save_at outside": (lambda: gradient(save_at=[5.0]), ValueError, "`save_at`"),
    "save_at turning back": (lambda: gradient(save_at=[0.7, 0.1]), ValueError, "`save_at`"),
    "continuous with save_at": (lambda: gradient(save_at=[0.7], memory="continuous"), ValueError, "`save_at`"),
    "continuous with times": (lambda: gradient(times=True, memory="continuous"), ValueError, "`times`"),
    "continuous in halves": (
        lambda: sn.gradient(HALVES, "rk4", good, steps=4, memory="continuous"), TypeError, "`memory`",
    ),
    "running in halves": (
        lambda: sn.gradient(HALVES, "rk4", good, steps=4, running=lambda t, y: y[0]), TypeError, "`running`",
    ),
    "running of vectors": (
        lambda: gradient(running=lambda t, y, a, b: y), (NoDerivative, TypeError, ValueError), "`running`",
    ),
    "tolerances and steps": (lambda: gradient(rtol=1e-3), ValueError, "`rtol`"),
    "no steps": (lambda: gradient(steps=0), ValueError, "`steps`"),
    "no such scheme": (lambda: sn.gradient(PROBLEM, "rk5", good, steps=4), UnknownName, "rk5"),
    "no direction": (lambda: sn.tangent(PROBLEM, "rk4", steps=4), TypeError, "`y0`, `args`"),
    "a long direction": (lambda: sn.tangent(PROBLEM, "rk4", y0=[1.0, 2.0, 3.0], steps=4), ValueError, "`y0`"),
    "too many arguments": (
        lambda: sn.tangent(PROBLEM, "rk4", args=(1.0, [1.0, 2.0], 3.0), steps=4), ValueError, "`args`",
    ),
    "an argument of another shape": (
        lambda: sn.tangent(PROBLEM, "rk4", args=(1.0, [1.0, 2.0, 3.0]), steps=4), ValueError, "`args`",
    ),
    "a direction with NaN": (lambda: sn.tangent(PROBLEM, "rk4", y0=[1.0, np.nan], steps=4), ValueError, "`y0`"),
    "a long direction of a product": (
        lambda: sn.hvp(PROBLEM, "rk4", good, y0=[1.0, 2.0, 3.0], steps=4), ValueError, "`y0`",
    ),
    "a product without direction": (lambda: sn.hvp(PROBLEM, "rk4", good, steps=4), TypeError, "`y0`, `args`"),
    "a product of a vector": (lambda: sn.hvp(PROBLEM, "rk4", lambda y: y, y0=[1.0, 2.0], steps=4), TypeError, "`loss`"),
    "a product of a pair": (
        lambda: sn.hvp(PROBLEM, "rk4", lambda y: (y[0], y), y0=[1.0, 2.0], steps=4), NoDerivative, "`loss`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        call()


# ---- runs that fail -------------------------------------------------------------------------------------------------


def explosion(t, y):
    return y * y


@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(3), 1000, "auto"], ids=str)
@pytest.mark.parametrize("name", ["rk4", "ab4", "euler"])
def test_a_run_to_infinity_is_a_failed_solve(name, memory):
    problem = sn.ODE(explosion, [1.0, 0.5], (0.0, 3.0))
    with pytest.raises(SolveFailed) as failure:
        sn.gradient(problem, name, good, steps=100, memory=memory)
    assert not failure.value.solution.success
    assert failure.value.solution.failure.t > 0.9


def test_other_derivatives_fail_in_the_same_way():
    problem = sn.ODE(explosion, [1.0, 0.5], (0.0, 3.0))
    for call in (
        lambda: sn.jacobian(problem, "rk4", steps=100),
        lambda: sn.tangent(problem, "rk4", y0=[1.0, 0.0], steps=100),
        lambda: sn.hvp(problem, "rk4", good, y0=[1.0, 0.0], steps=100),
        lambda: sn.gradient(problem, "dopri5", good),
        lambda: sn.gradient(problem, "rk4", good, steps=100, memory="continuous"),
    ):
        with pytest.raises(SolveFailed):
            call()


def test_a_reversible_run_fails_too():
    fall = sn.SecondOrder(lambda t, q: q * q * q, [1.0], [1.0], (0.0, 30.0))
    with pytest.raises(SolveFailed):
        sn.gradient(fall, "verlet", good, steps=1000, memory="reversible")


def test_what_a_right_hand_side_raises_is_told():
    class Fails:
        def __init__(self):
            self.state = {}

        def __call__(self, t, y):
            if t > 0.5:
                raise KeyError("after half the time")
            return np.array([-float(str(x)) for x in y])

    with pytest.raises((SolveFailed, KeyError), match="after half the time"):
        sn.gradient(sn.ODE(Fails(), [1.0], (0.0, 1.0)), "rk4", good, steps=10, differences=True)
