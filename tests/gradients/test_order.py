"""Gradients of the steps converge to those of the flow, at the order of the scheme."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import CASES, KINDS, SCHEMES, loss

import stepnet as sn
from stepnet.schemes import Multistep, Splitting
from stepnet.schemes.capabilities import is_implicit

SPAN = (0.0, 2.0)
NEAR = 0.25
ROUNDING = 1e-13  # relative errors below it say nothing
SOLVED = 2e-12  # the same where linear systems are solved
STEPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # every second one is twice as many
FITTED = 4  # errors that give the slope there
SETTLES = 6  # beyond this order float64 is too short for the slope to come down to it


def gradient(kind, scheme, steps: int) -> np.ndarray:
    return sn.gradient(kind.build(t_span=SPAN), scheme, loss, steps=steps).flat


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_gradients_converge_at_the_order_of_the_scheme(scheme):
    is_for_second_order = isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2)
    kinds = KINDS[3:] if is_for_second_order else KINDS
    kind = next(kind for kind in (*kinds, *KINDS) if (scheme, kind) in CASES)
    exact, errors = gradient(kind, "dop853", 1000), []
    floor = SOLVED if is_implicit(scheme) else ROUNDING
    first = 2 * is_implicit(scheme)  # the stages of two long steps may have no solution
    for steps in STEPS[first:]:
        errors.append(np.linalg.norm(gradient(kind, scheme, steps) - exact) / np.linalg.norm(exact))
        if errors[-1] < floor:
            errors.pop()
            break
    measured = np.log2(errors[-3] / errors[-1])
    if scheme.order > SETTLES:  # too few steps for one quotient: the slope of the last errors
        used = STEPS[first : first + len(errors)]
        measured = -np.polyfit(np.log(used[-FITTED:]), np.log(errors[-FITTED:]), 1)[0]
    print(f"{scheme.name}: order {scheme.order}, measured {measured:.2f}")
    assert measured >= scheme.order - NEAR
    assert measured <= scheme.order + NEAR or scheme.order > SETTLES
