"""<J v, w> = <v, J'w>: tangents and gradients of every scheme are transposes of each other."""

from __future__ import annotations

import pytest
from gradients.cases import CASES, STEPS, B, generator, over_the_catalogue

import stepnet as sn
from stepnet.engines.numba_engine.adjoint import step_sweeps
from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
from stepnet.schemes.capabilities import is_implicit

EXACT = 1e-12  # relative; a few hundred roundings


def products(kind, scheme) -> tuple[float, float]:
    """<J v, w> and <v, J'w>, v a direction in the states and the arguments."""
    random, problem = generator(scheme, kind), kind.build()
    v, w = random.standard_normal((2, problem.initial.size))
    da, db = random.standard_normal(), random.standard_normal(B.shape)
    dy = sn.tangent(problem, scheme, y0=v, args=(da, db), steps=STEPS).dy
    found = sn.gradient(problem, scheme, end_gradient=w, steps=STEPS, memory="all")
    assert found.rung == "traced"
    return dy.ravel() @ w, found.y0.ravel() @ v + found.args[0] * da + found.args[1] @ db


@over_the_catalogue
def test_in_generated_code(scheme, kind):
    forward, back = products(kind, scheme)
    assert abs(forward - back) <= EXACT * max(1.0, abs(forward))


@over_the_catalogue
def test_in_kernels(scheme, kind, monkeypatch):
    monkeypatch.setattr(step_sweeps, "find_fused_address", lambda *_: 0)
    linear = DifferentiableRun(kind.build(), scheme, STEPS, None, False, False)
    assert not linear.is_generated
    forward, back = products(kind, scheme)
    assert abs(forward - back) <= EXACT * max(1.0, abs(forward))


@pytest.mark.slow
def test_short_steps_run_in_generated_code():
    """All explicit steps but the longest do, so that both ways are really tested."""
    explicit = [(scheme, kind) for scheme, kind in CASES if not is_implicit(scheme)]
    generated = [
        DifferentiableRun(kind.build(), scheme, STEPS, None, False, False).is_generated for scheme, kind in explicit
    ]
    print(f"{sum(generated)} of {len(explicit)} cases of explicit schemes in generated code, of {len(CASES)} in all")
    assert sum(generated) > 0.9 * len(explicit)
