"""Gradients of runs that end at an event, by the implicit function theorem."""

from __future__ import annotations

import numpy as np
import pytest
from scheme_names import FIXED_STEPS

import stepnet as sn

HEIGHT, SPEED, GRAVITY = 10.0, 2.0, 9.81
ONE_STEP = [name for name in FIXED_STEPS if isinstance(sn.schemes.get(name), sn.schemes.ExplicitRK)]


def falling(t, y, g):
    return [y[1], -g]


def height(t, y, g):
    return y[0]


def ball(y0=(HEIGHT, SPEED), g=GRAVITY):
    return sn.ODE(falling, y0, (0.0, 10.0), (g,))


def landing(h, v, g):
    """When it reaches the ground."""
    return (v + np.sqrt(v * v + 2 * g * h)) / g


def closed_form() -> tuple[float, np.ndarray]:
    """The time and its gradient with respect to height, speed and gravity."""
    h, v, g = HEIGHT, SPEED, GRAVITY
    root = np.sqrt(v * v + 2 * g * h)
    time = landing(h, v, g)
    return time, np.array([1 / root, (1 + v / root) / g, h / (g * root) - time / g])


@pytest.mark.parametrize("scheme", [name for name in ONE_STEP if sn.schemes.get(name).order >= 2])
def test_the_time_of_a_landing_and_its_gradient_are_those_of_the_formula(scheme):
    """Parabolas are integrated exactly by every scheme of order two."""
    found = sn.gradient(ball(), scheme, event=height, steps=45)
    time, slopes = closed_form()
    assert found.value == pytest.approx(time, rel=1e-13)
    assert [*found.y0, *found.args] == pytest.approx(slopes, rel=1e-12)


def drag(t, y, g, k):
    return [y[1], -g - k * y[1] * abs(y[1])]


def sloped_ground(t, y, g, k):
    return y[0] - 0.1 * g + 0.05 * t


def impact(y):
    return y[1] ** 2 + np.sin(y[0])


@pytest.mark.parametrize("loss", [None, impact], ids=["time", "loss"])
@pytest.mark.parametrize("scheme", ["euler", "rk4", "dopri5", "dop853"])
def test_taylor(scheme, loss):
    """The remainder of a step along the gradient is of second order, the steps being given."""
    x, v = np.array([HEIGHT, SPEED, GRAVITY, 0.05]), np.array([0.3, -0.5, 0.2, 0.4])

    def at(x):
        problem = sn.ODE(drag, x[:2], (0.0, 10.0), tuple(x[2:]))
        return sn.gradient(problem, scheme, loss, event=sloped_ground, steps=60)

    start = at(x)
    slope = np.array([*start.y0, *start.args]) @ v
    rests = [abs(at(x + e * v).value - start.value - e * slope) for e in (1e-3, 5e-4)]
    assert np.log2(rests[0] / rests[1]) == pytest.approx(2.0, abs=0.1)


def test_adaptive_steps_and_checkpoints(monkeypatch):
    monkeypatch.setattr("stepnet.gradients.reversal.BLOCK_NUMBERS", 2)
    how = {"event": height, "rtol": 1e-8, "atol": 1e-10}
    everything = sn.gradient(ball(), "dopri5", **how)
    few = sn.gradient(ball(), "dopri5", **how, memory=sn.Checkpoints(2))
    assert [*everything.y0, *everything.args] == pytest.approx(closed_form()[1], rel=1e-9)
    assert np.array_equal(few.y0, everything.y0)


@pytest.mark.parametrize("numbers", [2, 4, 6, 10, 44, 46, 48, 90])
@pytest.mark.parametrize("scheme", ["rk4", "ssprk3", "verlet", "dopri5"])
def test_wherever_blocks_end(scheme, numbers, monkeypatch):
    """States pass by in blocks on the way to the event, which may lie in the first step of one."""
    problem, how = ball(), {"rtol": 1e-8} if scheme == "dopri5" else {"steps": 45}
    event = height
    if scheme == "verlet":
        problem = sn.SecondOrder(lambda t, q, g: -g + 0.0 * q, [HEIGHT], [SPEED], (0.0, 10.0), (GRAVITY,))
        event = lambda t, q, v, g: q[0]
    wanted = sn.gradient(problem, scheme, event=event, memory="all", **how)
    monkeypatch.setattr("stepnet.gradients.reversal.BLOCK_NUMBERS", numbers)
    found = sn.gradient(problem, scheme, event=event, memory=sn.Checkpoints(2), **how)
    assert np.array_equal(found.flat, wanted.flat)
    assert found.value == wanted.value


def test_problems_in_halves():
    problem = sn.SecondOrder(lambda t, q, g: -g + 0.0 * q, [HEIGHT], [SPEED], (0.0, 10.0), (GRAVITY,))
    found = sn.gradient(problem, "verlet", event=lambda t, q, v, g: q[0], steps=45)
    assert [*found.q0, *found.v0, *found.args] == pytest.approx(closed_form()[1], rel=1e-12)


def test_an_event_that_never_comes():
    with pytest.raises(ValueError, match="`event` has no zero before the end"):
        sn.gradient(ball(), "rk4", event=lambda t, y, g: y[0] + 1e6, steps=45)


def test_a_multistep_scheme_cannot_end_at_an_event():
    with pytest.raises(TypeError, match="equal steps"):
        sn.gradient(ball(), "ab4", event=height, steps=45)


@pytest.mark.parametrize("other", [{"save_at": [1.0]}, {"times": True}, {"running": lambda t, y, g: y[0]}], ids=list)
def test_what_does_not_go_together(other):
    with pytest.raises(ValueError, match="`event` is for losses of the end state"):
        sn.gradient(ball(), "rk4", lambda y: y[0], event=height, steps=45, **other)
