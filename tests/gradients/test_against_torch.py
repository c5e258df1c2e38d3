"""Gradients agree with autograd of an independent implementation of the steps: states, arguments and times."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients.cases import KINDS, SPAN, STEPS, A, B, over_the_catalogue, relative
from gradients.independent import Inputs, by_program, by_textbook

import stepnet as sn
from stepnet.schemes.capabilities import has_history

CLOSE = 1e-11


def loss(xp):
    def of(y):
        total = xp.sin(y[0])
        for i in range(1, 2):
            total = total + y[i] * y[i] * y[i - 1] + xp.cos(y[-1])
        return total

    return of


LOSS = loss(np)


def require_equal(found: sn.Gradient, value, wanted) -> None:
    y0, args, t_span = wanted
    assert abs(found.value - float(value)) <= CLOSE
    assert relative(found.y0, y0) <= CLOSE
    for each, other in zip(found.args, args, strict=True):
        assert relative(each, other) <= CLOSE
    assert relative(found.t_span, t_span) <= CLOSE


@over_the_catalogue
def test_states_arguments_and_times(scheme, kind):
    steps = STEPS if has_history(scheme) else 2  # one after another is all that there is to see
    found = sn.gradient(kind.build(), scheme, LOSS, steps=steps, times=True)
    for solve in (by_program, by_textbook):
        inputs = Inputs(kind.initial, (A, B), SPAN)
        value = loss(torch)(solve(kind, scheme, inputs, steps))
        require_equal(found, value.detach(), inputs.gradients(value))


@pytest.mark.parametrize("t_span", [(0.7, 0.1), (-0.3, 0.2)])
@pytest.mark.parametrize("name", ["rk4", "ab3", "ab5"])
def test_time_runs_backward_too(name, t_span):
    scheme, kind = sn.schemes.get(name), KINDS[0]
    found = sn.gradient(kind.build(t_span=t_span), scheme, LOSS, steps=STEPS, times=True)
    inputs = Inputs(kind.initial, (A, B), t_span)
    value = loss(torch)(by_textbook(kind, scheme, inputs, STEPS))
    require_equal(found, value.detach(), inputs.gradients(value))
