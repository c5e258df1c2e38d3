"""Fields of networks on tensors agree with their records, for every scheme, connectivity, activation and depth."""

from __future__ import annotations

import executor
import numpy as np
import pytest
import torch
from fields.zoo import NORMALISED
from gradients.cases import SCHEMES as CATALOGUE
from gradients.cases import relative
from torch_engine.nets import BATCH, CASES, STEPS, on_tensors, problem

from stepnet import fields, nets
from stepnet.schemes import ExponentialRK, SemiImplicitBDF
from stepnet.schemes.capabilities import is_implicit, needs_second_derivatives

torch.set_num_threads(1)

EQUAL = 1e-12  # relative; a few hundred roundings
EQUAL_SINGLE = 2e-5  # the same in float32
OF_SUMS = (SemiImplicitBDF, ExponentialRK)  # which take no equation without parts
SCHEMES = [  # Rosenbrock nets are refused
    scheme for scheme in CATALOGUE if not (needs_second_derivatives(scheme) or isinstance(scheme, OF_SUMS))
]
NORMALISED_NAMES = {name.replace(" ", "_") for name in NORMALISED}


def _has_one_solution(scheme, case) -> bool:
    """Normalisations are steep near constant states, so that implicit stages may have several solutions."""
    return not (is_implicit(scheme) and case.name.split("-")[1] in NORMALISED_NAMES)


LARGE = 32  # unknowns of one sample times samples
OF_LARGE_SYSTEMS = ("implicit_euler", "gauss4")
PRODUCT = [
    (scheme, case) for scheme in SCHEMES for case in CASES
    if executor.applies(problem(case), scheme) and _has_one_solution(scheme, case)
]  # fmt: skip


def _count_unknowns(case) -> int:
    return case.y0.size


def _every(share: int):
    """The product; every combination of scheme and dynamics, but a share of connectivities, is quick.

    One executor serves all implicit schemes, so a third of their fields is left out, and large systems, which take a
    second in extended precision, are solved by one scheme with single stages and one with coupled stages.
    """
    for number, (scheme, case) in enumerate(PRODUCT):
        is_large = is_implicit(scheme) and _count_unknowns(case) > LARGE
        if is_large and scheme.name not in OF_LARGE_SYSTEMS:
            continue
        if is_implicit(scheme) and not is_large and number % share and number % 3:
            continue
        marks = () if number % share == 0 and not is_large else pytest.mark.slow
        yield pytest.param(scheme, case, id=f"{scheme.name}-{case.name}", marks=marks)


@pytest.mark.parametrize(("scheme", "case"), list(_every(share=13)))
def test_runs_over_layers_are_those_of_the_plain_problem(scheme, case):
    wanted = executor.trajectory(problem(case), scheme, STEPS)[-3:].reshape(3, -1, BATCH)
    assert relative(on_tensors(case, scheme), wanted) <= EQUAL


@pytest.mark.parametrize("scheme", [scheme.name for scheme in CATALOGUE if needs_second_derivatives(scheme)])
def test_rosenbrock_nets_are_refused(scheme):
    with pytest.raises(ValueError, match="must not be a Rosenbrock scheme"):
        nets.resnet(2, 2, 4, 3, scheme=scheme)


def test_no_combination_is_left_out():
    print(f"{len(PRODUCT)} combinations of {len(SCHEMES)} schemes and {len(CASES)} fields")
    assert {scheme.name for scheme, _ in PRODUCT} == {scheme.name for scheme in SCHEMES}
    assert {case.name for _, case in PRODUCT} == {case.name for case in CASES}
    names = " ".join(case.name for case in CASES)
    assert all(each in names for each in (*fields.ACTIVATIONS, *fields.DYNAMICS))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_single_precision(case):
    scheme = next(scheme for scheme, other in PRODUCT if other is case and scheme.name in ("rk4", "verlet"))
    found = on_tensors(case, scheme, torch.float32)
    assert found.dtype == np.float32
    assert relative(found, on_tensors(case, scheme)) <= EQUAL_SINGLE
