"""Compiled layer kernels behind tensors: equal to operations of tensors, differentiable, called once for a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fields.zoo import NORMALISED
from gradients.cases import SCHEMES as CATALOGUE
from gradients.cases import relative
from torch_engine.nets import CASES, LENGTH, STEPS

import stepnet.torch as snt
from stepnet.nets import Block
from stepnet.nets.execution import Execution
from stepnet.schemes.capabilities import is_implicit, needs_linear_part
from stepnet.torch.kernels import flatten, pull_back_layers, run_layers

torch.set_num_threads(1)

EQUAL = 1e-12  # relative; sums in another order
SOLVED = 1e-11  # the same for stages that two iterations have solved


def _suits(scheme, case) -> bool:
    try:
        Block(case.field, scheme, STEPS, LENGTH, case.depth)
    except ValueError:
        return False
    return True


STEEP = 30  # the slope of a normalisation near zero, by which it makes rounding errors larger
NORMALISED_NAMES = {name.replace(" ", "_") for name in NORMALISED}
SCHEMES = [  # fused over depth; layers have no linear part
    scheme for scheme in CATALOGUE if not (is_implicit(scheme) or needs_linear_part(scheme))
]
PRODUCT = [(scheme, case) for scheme in SCHEMES for case in CASES if _suits(scheme, case)]


def _every(share: int):
    for number, (scheme, case) in enumerate(PRODUCT):
        marks = () if number % share == 0 else pytest.mark.slow
        yield pytest.param(scheme, case, id=f"{scheme.name}-{case.name}", marks=marks)


def block(scheme, case, engine, memory="all"):
    """A block with the weights of a case."""
    record = Block(case.field, scheme, STEPS, LENGTH, case.depth)
    module = snt.LayerBlock(record, engine=engine, memory=memory, seed=0, dtype=torch.float64)
    module.load_state_dict({name: torch.tensor(value) for name, value in case.controls.items()})
    return module


def start(case) -> torch.Tensor:
    return torch.tensor(case.y0.T, requires_grad=True)


def gradients(module, y):
    return torch.autograd.grad(module(y).sin().sum(), (y, *module.parameters()))


@pytest.mark.parametrize(("scheme", "case"), list(_every(share=11)))
def test_kernels_and_tensors_agree(scheme, case):
    compiled, plain, y = block(scheme, case, "numba"), block(scheme, case, "torch"), start(case)
    bound = STEEP * EQUAL if case.name.split("-")[1] in NORMALISED_NAMES else EQUAL
    assert relative(compiled(y).detach(), plain(y).detach()) <= bound
    for found, wanted in zip(gradients(compiled, y), gradients(plain, y), strict=True):
        assert relative(found, wanted) <= bound


IMPLICIT = [scheme for scheme in CATALOGUE if is_implicit(scheme) and any(_suits(scheme, case) for case in CASES)]
SOLVABLE = [case for case in CASES if _suits(IMPLICIT[0], case) and case.name.split("-")[1] not in NORMALISED_NAMES]


def _implicit_cases():
    """Every field once, with schemes in turn; a few are quick."""
    for number, case in enumerate(SOLVABLE):
        scheme = IMPLICIT[number % len(IMPLICIT)]
        marks = () if number % 9 == 0 and "conv2d" not in case.name else pytest.mark.slow
        yield pytest.param(scheme, case, id=f"{scheme.name}-{case.name}", marks=marks)


@pytest.mark.parametrize(("scheme", "case"), list(_implicit_cases()))
def test_implicit_layers_on_arrays_and_on_tensors_agree(scheme, case):
    compiled, plain, y = block(scheme, case, "numba"), block(scheme, case, "torch"), start(case)
    assert relative(compiled(y).detach(), plain(y).detach()) <= SOLVED
    for found, wanted in zip(gradients(compiled, y), gradients(plain, y), strict=True):
        assert relative(found, wanted) <= SOLVED


def test_no_combination_is_left_out():
    print(f"{len(PRODUCT)} combinations of {len({s.name for s, _ in PRODUCT})} schemes and {len(CASES)} fields")
    assert {scheme.name for scheme, _ in PRODUCT} == {scheme.name for scheme in SCHEMES}
    assert {case.name for _, case in PRODUCT} == {case.name for case in CASES}


ONE_EACH = [next((s, c) for s, c in PRODUCT if c is case and s.name in ("rk4", "verlet")) for case in CASES]
FEW = ONE_EACH[::7]


@pytest.mark.parametrize(("scheme", "case"), FEW, ids=lambda each: each.name)
def test_derivatives_of_first_and_second_order(scheme, case):
    module, y = block(scheme, case, "numba"), start(case)
    run = lambda y, *_: module(y)
    assert torch.autograd.gradcheck(run, (y, *module.parameters()), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (y, *module.parameters()), fast_mode=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch itself calls it
def test_transformations_of_functions():
    scheme, case = ONE_EACH[0]
    compiled, plain, y = block(scheme, case, "numba"), block(scheme, case, "torch"), start(case).detach()
    v = torch.ones_like(y)
    found, wanted = (torch.func.jvp(module, (y,), (v,))[1].detach() for module in (compiled, plain))
    assert relative(found, wanted) <= EQUAL
    assert relative(torch.func.jacrev(compiled)(y).detach(), torch.func.jacrev(plain)(y).detach()) <= EQUAL
    rows = torch.func.vmap(lambda row: compiled(row[None])[0])(y)
    assert relative(rows.detach(), plain(y).detach()) <= EQUAL
    jacobians = (torch.autograd.functional.jacobian(module, y, vectorize=True) for module in (compiled, plain))
    assert relative(*jacobians) <= EQUAL


def test_a_retained_graph_goes_back_twice():
    scheme, case = ONE_EACH[1]
    module, y = block(scheme, case, "numba"), start(case)
    total = module(y).sin().sum()
    first = torch.autograd.grad(total, (y, *module.parameters()), retain_graph=True)
    again = torch.autograd.grad(total, (y, *module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("operator", [run_layers, pull_back_layers], ids=["there", "back"])
@pytest.mark.parametrize(("scheme", "case"), ONE_EACH[2::12], ids=lambda each: each.name)
def test_operators_keep_the_rules_of_compilers(scheme, case, operator, dtype):
    module, y = block(scheme, case, "numba").to(dtype), start(case).detach().to(dtype).requires_grad_()
    parameters = list(module.parameters())
    given = (y, parameters) if operator is run_layers else (y.detach(), [p.detach() for p in parameters], y.detach())
    checks = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {}
    torch.library.opcheck(operator, (*given, module.kernels.number), **checks)


def test_operators_refuse_what_is_not_theirs():
    scheme, case = ONE_EACH[0]
    module, y = block(scheme, case, "numba"), start(case).detach()
    parameters, number = [p.detach() for p in module.parameters()], module.kernels.number
    for operator, more in ((run_layers, ()), (pull_back_layers, (y,))):
        with pytest.raises(ValueError, match=r"`\w+` must have the shape"):
            operator(y, [p[:1] for p in parameters], *more, number)
        with pytest.raises(RuntimeError, match="no net of this process has the number 123456789"):
            operator(y, parameters, *more, 123456789)


def test_one_call_for_a_run(monkeypatch):
    calls = []
    for name in ("forward", "sweep"):
        run = getattr(Execution, name)
        monkeypatch.setattr(Execution, name, lambda *given, name=name, run=run: (calls.append(name), run(*given))[1])
    scheme, case = ONE_EACH[0]
    module, y = block(scheme, case, "numba"), start(case)
    module(y).sum().backward()
    with torch.no_grad():
        module(y)
    assert calls == ["sweep", "forward"]


def test_parameters_are_one_vector_without_a_copy():
    scheme, case = ONE_EACH[0]
    module = block(scheme, case, "numba")
    parameters, kernels = list(module.parameters()), module.kernels
    whole, wanted = kernels.theta(parameters), torch.cat([p.detach().reshape(-1) for p in parameters])
    assert whole.ctypes.data == parameters[0].data_ptr()
    assert np.array_equal(whole, wanted)
    scattered = [p.detach().clone() for p in parameters]
    assert np.array_equal(kernels.theta(scattered), wanted)
    behind_each_other = wanted.split([p.numel() for p in parameters])
    assert flatten(behind_each_other).data_ptr() == wanted.data_ptr()
    assert torch.equal(flatten(parameters[::-1]), torch.cat([p.detach().reshape(-1) for p in parameters[::-1]]))


def test_which_tensors_go_to_the_kernels():
    scheme, case = ONE_EACH[0]
    module, y = block(scheme, case, "auto"), start(case)
    parameters = tuple(module.parameters())
    assert module.kernels.take(y, parameters)
    assert not module.kernels.take(y.bfloat16(), [p.bfloat16() for p in parameters])
    assert not module.kernels.take(y.to("meta"), parameters)
    assert not block(scheme, case, "torch").kernels.take(y, parameters)
    with torch.autocast("cpu", torch.bfloat16):
        assert not module.kernels.take(y, parameters)


def test_samples_do_not_depend_on_their_company():
    """Bit for bit, as kernels run tiles of samples with zeros behind the last."""
    scheme, case = ONE_EACH[0]
    module = block(scheme, case, "numba")
    y = torch.tensor(np.random.default_rng(1).normal(size=(130, case.field.width)))
    with torch.no_grad():
        whole = module(y)
        assert torch.equal(module(y[67:70]), whole[67:70])
