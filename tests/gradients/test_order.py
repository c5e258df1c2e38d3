"""Gradients of the steps converge to those of the flow, at the order of the scheme."""

from __future__ import annotations

import numpy as np
import pytest
from gradients.cases import CASES, KINDS, SCHEMES, flat, loss

import stepnet as sn
from stepnet.schemes import Multistep, Splitting

SPAN = (0.0, 4.0)
NEAR = 0.25
ROUNDING = 2e-12  # errors below it say nothing
ONE_STEP = [scheme for scheme in SCHEMES if not isinstance(scheme, Multistep) and scheme.order <= 6]


def gradient(kind, scheme, steps: int) -> np.ndarray:
    return flat(sn.gradient(kind.build(t_span=SPAN), scheme, loss, steps=steps))


@pytest.mark.parametrize("scheme", ONE_STEP, ids=lambda scheme: scheme.name)
def test_gradients_converge_at_the_order_of_the_scheme(scheme):
    kind = KINDS[3] if isinstance(scheme, Splitting) else KINDS[0]
    assert (scheme, kind) in CASES
    exact, errors = gradient(kind, "dop853", 2000), []
    for steps in 8 * 2 ** np.arange(10):
        errors.append(np.linalg.norm(gradient(kind, scheme, int(steps)) - exact))
        if errors[-1] < ROUNDING:
            errors.pop()
            break
    measured = np.log2(errors[-2] / errors[-1])
    print(f"{scheme.name}: order {scheme.order}, measured {measured:.2f}")
    assert abs(measured - scheme.order) <= NEAR
