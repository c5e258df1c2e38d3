"""Gradients along a path are those of finite differences with the same noise, over all schemes and types of noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn

STEPS, EPS = 8, 1e-6
UNTRACED = [case for case in problems.list_cases() if case[0] in ("tamed_euler", "dri1", "reversible_heun")]


def loss(y):
    return y[0] ** 2 * y[1] + np.sin(y[1])


def evaluate(problem: sn.SDE, name: str) -> float:
    return loss(sn.solve(problem, name, steps=STEPS, save_every=0).y[-1])


def difference(problem: sn.SDE, name: str, change) -> float:
    up, down = (evaluate(replace(problem, **change(sign * EPS)), name) for sign in (1, -1))
    return (up - down) / (2 * EPS)


def check_gradient(problem: sn.SDE, name: str, found) -> None:
    for i, e in enumerate(np.eye(2)):
        slope = difference(problem, name, lambda eps, e=e: {"y0": problem.y0 + eps * e})
        assert found.y0[i] == pytest.approx(slope, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_gradients_are_those_of_finite_differences(name, noise, counted):
    problem = problems.build(noise, sn.schemes.get(name).calculus, cells=STEPS, seed=3, path=2)
    found = sn.gradient(problem, name, loss, steps=STEPS)
    check_gradient(problem, name, found)
    slope = difference(problem, name, lambda eps: {"args": (0.9 + eps,)})
    assert found.args[0] == pytest.approx(slope, rel=1e-7, abs=1e-8)
    counted("gradients of schemes and types of noise", f"{name} {noise}", len(problems.list_cases()))


@pytest.mark.parametrize(("name", "noise"), UNTRACED)
@pytest.mark.filterwarnings("ignore:derivatives with respect to `args`")
def test_the_interpreter_of_step_programs_transposes_every_operation(name, noise):
    """Functions that are not traced run by the interpreter of step programs instead of generated code."""
    problem = problems.build(noise, sn.schemes.get(name).calculus, cells=STEPS, seed=3, path=2, trace=False)
    check_gradient(problem, name, sn.gradient(problem, name, loss, steps=STEPS, differences=True))


def test_taming_a_zero_drift_has_the_gradient_of_no_taming():
    problem = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 0.1 * y, [1.0, 2.0], (0.0, 1.0), seed=1)
    found, plain = (sn.gradient(problem, name, loss, steps=4) for name in ("tamed_euler", "euler_maruyama"))
    np.testing.assert_allclose(found.y0, plain.y0, rtol=1e-14)
