"""Both engines have every member of the contract, with its parameters, and it runs."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

import stepnet as sn
from stepnet.engines import contract, numba_engine, torch_engine
from stepnet.engines.contract import FixedSteps, Plan, Saving
from stepnet.ensembles.ensemble import build_ensemble_spec
from stepnet.fields import Depth, dense, residual
from stepnet.schemes import get
from stepnet.schemes.step_program import build_scheme_program
from stepnet.solving.planning import AdaptiveOptions
from stepnet.torch.options import build_control_settings

ENGINES = {"numba": numba_engine, "torch": torch_engine}
SPAN, N_STEPS = (0.0, 1.0), 50
RK4, DOPRI5 = get("rk4"), get("dopri5")
STATE = np.array([1.0, 0.5])
ROTATION = np.array([[np.cos(1.0), np.sin(1.0)], [-np.sin(1.0), np.cos(1.0)]])
STEP_ERROR = 1e-7  # of fifty steps of rk4 over one unit of time: h^4 = 1.6e-7, with a small constant
TIGHT = 1e-10
TOLERANCE_ERROR = 1e-8
EQUAL = 1e-13  # engines add in different orders

ODE = sn.ODE(lambda t, y: [y[1], -y[0]], STATE, SPAN)
ENDS_ONLY = Plan(FixedSteps(N_STEPS), Saving(None, 0))
rotate = lambda t, y: torch.stack((y[..., 1], -y[..., 0]), -1)


def list_members(protocol) -> list[str]:
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def list_protocols(name: str) -> tuple:
    return (*contract.COMMON, *(contract.COMPILED_ONLY if name == "numba" else ()))


MEMBERS = [
    pytest.param(name, protocol, member, id=f"{name}-{member}")
    for name in ENGINES
    for protocol in list_protocols(name)
    for member in list_members(protocol)
]


@pytest.mark.parametrize(("name", "protocol", "member"), MEMBERS)
def test_members_have_the_parameters_of_the_contract(name, protocol, member):
    """Names in the same order; what an engine has besides them has defaults."""
    wanted = list(inspect.signature(getattr(protocol, member)).parameters)[1:]
    found = inspect.signature(getattr(ENGINES[name], member)).parameters
    assert list(found)[: len(wanted)] == wanted
    assert all(found[extra].default is not inspect.Parameter.empty for extra in list(found)[len(wanted) :])


@pytest.mark.parametrize("protocol", contract.COMPILED_ONLY)
def test_what_only_compiled_kernels_have_tensors_do_not(protocol):
    assert not any(hasattr(torch_engine, member) for member in list_members(protocol))


def test_every_protocol_of_an_engine_is_listed():
    engines = {value for name, value in vars(contract).items() if name.endswith("Engine")}
    assert engines == {*contract.COMMON, *contract.COMPILED_ONLY}


@pytest.mark.parametrize("name", ENGINES)
def test_facades_name_what_there_is(name):
    assert [each for each in ENGINES[name].__all__ if not hasattr(ENGINES[name], each)] == []
    assert len(set(ENGINES[name].__all__)) == len(ENGINES[name].__all__)


def test_type_checkers_see_what_is_loaded_later():
    tree = ast.parse(Path(numba_engine.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module.removeprefix("stepnet.engines.numba_engine.")
        for block in blocks
        for node in block.body
        for alias in node.names
    }
    assert seen == numba_engine.LATER
    assert set(seen) <= set(numba_engine.__all__)


# ---- one small case for every member --------------------------------------------------------------------------------


def run(name: str) -> np.ndarray:
    """The end of a rotation."""
    if name == "numba":
        return numba_engine.run(ODE, RK4, ENDS_ONLY).y[-1]
    problem = torch_engine.build_tensor_problem(rotate, torch.tensor(STATE))
    return torch_engine.run(problem, RK4, torch_engine.TensorPlan(build_times()))[-1].numpy()


def linearise(name: str) -> np.ndarray:
    """The gradient of the first entry at the end with respect to the initial state."""
    if name == "numba":
        steps = numba_engine.linearise(ODE, RK4, FixedSteps(N_STEPS))
        state, states, sums = steps.open(STATE), np.empty((N_STEPS, steps.width)), steps.new_sums()
        steps.forward(state, 0, N_STEPS, states)
        bar = steps.spread(np.array([1.0, 0.0]))
        steps.backward(states, 0, N_STEPS, bar, sums)
        return steps.close(STATE, bar, sums)
    y0 = torch.tensor(STATE, requires_grad=True)
    problem = torch_engine.build_tensor_problem(rotate, y0)
    steps = torch_engine.linearise(problem, RK4, torch_engine.TensorPlan(build_times()))
    rows = steps.spread(problem.state)
    for unit in range(steps.place_of(N_STEPS)):
        rows = steps.unit(rows, unit)
    return torch.autograd.grad(steps.extract_state(rows)[0][0], y0)[0].numpy()


def run_ensemble(name: str) -> np.ndarray:
    """The ends of three members."""
    starts = np.stack([STATE, 2 * STATE, -STATE])
    if name == "numba":
        options = AdaptiveOptions(rtol=TIGHT, atol=TIGHT)
        spec = build_ensemble_spec(ODE, DOPRI5, starts, None, None, None, options, None)
        plan = Plan(spec.stepping, Saving(None, 0))
        return numba_engine.run_ensemble(spec.problem, spec.scheme, plan, spec.members).y[:, -1]
    problem = torch_engine.build_tensor_batch(rotate, torch.tensor(starts))
    how = build_control_settings(problem, DOPRI5, TIGHT, TIGHT, {})._replace(norm=None)
    members = torch_engine.BatchMembers(problem.state[0], torch.tensor([SPAN] * 3, dtype=torch.float64))
    found = torch_engine.run_ensemble(problem.field.whole, DOPRI5, torch_engine.BatchPlan(how), members)
    return found.found[1].numpy()


def build_stage(name: str) -> np.ndarray:
    """A residual block of three steps on two samples."""
    field, depth, rng = residual(dense(2)), Depth(3), np.random.default_rng(0)
    controls = [rng.standard_normal((3, *shape)) for shape in field.parameters.values()]
    x = rng.standard_normal((2, 2))
    stage = ENGINES[name].build_stage(field, build_scheme_program(RK4, 1, False, False), 3, 1.0, depth)
    if name == "numba":
        tiles = np.zeros((1, 2, numba_engine.TILE))
        tiles[0, :, :2] = x.T
        return stage.forward(np.concatenate([each.ravel() for each in controls]), tiles)[0, :, :2].T
    return stage.forward([each for one in controls for each in torch.tensor(one)], torch.tensor(x)).numpy()


def build_times() -> torch.Tensor:
    return torch.linspace(*SPAN, N_STEPS + 1, dtype=torch.float64)


CASES = {each.__name__: each for each in (run, linearise, run_ensemble, build_stage)}
EXACT = {
    "run": (ROTATION @ STATE, STEP_ERROR),
    "linearise": (ROTATION[0], STEP_ERROR),
    "run_ensemble": (np.outer([1.0, 2.0, -1.0], ROTATION @ STATE), TOLERANCE_ERROR),
}


def test_every_common_member_has_a_case():
    assert set(CASES) == {member for protocol in contract.COMMON for member in list_members(protocol)}


@pytest.mark.parametrize("member", CASES)
def test_common_members_run_and_agree(member):
    found = {name: CASES[member](name) for name in ENGINES}
    exact, error = EXACT.get(member, (found["numba"], EQUAL))
    for name in ENGINES:
        np.testing.assert_allclose(found[name], exact, rtol=error, atol=error)
    if member != "run_ensemble":  # whose engines choose different steps
        np.testing.assert_allclose(found["torch"], found["numba"], rtol=EQUAL, atol=EQUAL)


def test_members_of_compiled_kernels_run():
    stepper = numba_engine.begin(ODE, RK4, ENDS_ONLY)
    stepper.run_to(SPAN[1])
    assert stepper.is_finished
    np.testing.assert_allclose(stepper.y, ROTATION @ STATE, rtol=STEP_ERROR)
    assert numba_engine.identity(ODE, RK4, ENDS_ONLY) == numba_engine.identity(ODE, RK4, ENDS_ONLY)
    assert numba_engine.identity(ODE, RK4, ENDS_ONLY) != numba_engine.identity(ODE, DOPRI5, ENDS_ONLY)
    assert numba_engine.problem_identity(ODE) != numba_engine.problem_identity(sn.ODE(ODE.fun, 2 * STATE, SPAN))
    assert numba_engine.value_identity((1, "a")) != numba_engine.value_identity((1, "b"))
    facts = numba_engine.report()
    assert {"cpu", "cache", "rungs"} <= set(facts)
    assert all(isinstance(value, str) for value in facts.values())
