"""Gradients of stochastic runs on tensors: exact for the discrete solution under every memory policy."""

from __future__ import annotations

import pytest
import torch
from stochastic import problems
from torch_engine.sdes import COMPONENTS, TensorSDE, start

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines.torch_engine.adjoint import reversal
from stepnet.engines.torch_engine.random import step_noise

torch.set_num_threads(1)

EXACT = 1e-11  # relative; sums over steps in another order
RECONSTRUCTED = 1e-9  # relative; states of inverted steps have rounding errors
TIMES = [0.0, 0.3, 0.5, 1.0]
STEPS = 16
POLICIES = ["auto", snt.Checkpoints(slots=2), snt.Checkpoints(bytes=3000), 3000]


@pytest.fixture
def short_blocks(monkeypatch):
    """One step in a block, so that short runs use their checkpoints."""
    monkeypatch.setattr(reversal, "BLOCK_BYTES", 1)


def find_gradients(sde, solve, **how) -> list[torch.Tensor]:
    y0 = start().requires_grad_()
    bm = snt.BrownianInterval(
        size=(3, COMPONENTS[sde.noise_type]),
        entropy=5,
        cells=STEPS,
        dtype=torch.float64,
        levy_area_approximation="foster",
    )
    ys = solve(sde, y0, TIMES, bm=bm, dt=1 / STEPS, **how)
    weights = torch.linspace(0.5, 1.5, ys.numel(), dtype=torch.float64).reshape(ys.shape)
    return list(torch.autograd.grad((weights * ys.square()).sum(), (y0, sde.a)))


def require_equal(found, wanted, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max() / other.abs().max()) <= tolerance


@pytest.mark.parametrize(("name", "noise"), [*problems.list_cases(), ("log_ode", "general")])
def test_checkpointed_gradients_are_those_of_plain_autograd(name, noise, short_blocks):
    """Every scheme with each type of noise it admits."""
    calculus = "stratonovich" if name == "log_ode" else sn.schemes.get(name).calculus
    sde = TensorSDE(noise, calculus)
    wanted = find_gradients(sde, snt.sdeint, method=name)
    found = find_gradients(sde, snt.sdeint_adjoint, method=name, memory=snt.Checkpoints(slots=2))
    require_equal(found, wanted, EXACT)


@pytest.mark.parametrize("memory", POLICIES, ids=str)
@pytest.mark.parametrize(("name", "noise"), [("srid2", "diagonal"), ("milstein", "commutative"), ("euler", "general")])
def test_gradients_are_the_same_in_every_memory(name, noise, memory, short_blocks):
    sde = TensorSDE(noise)
    wanted = find_gradients(sde, snt.sdeint, method=name)
    require_equal(find_gradients(sde, snt.sdeint_adjoint, method=name, memory=memory), wanted, EXACT)
    require_equal(find_gradients(sde, snt.sdeint_adjoint, method=name, memory="all"), wanted, EXACT)


@pytest.mark.parametrize("noise", ["diagonal", "scalar", "additive", "general"])
@pytest.mark.parametrize("how", [{"adjoint_method": "adjoint_reversible_heun"}, {"memory": "reversible"}, {}])
def test_reversible_steps_are_inverted(noise, how, short_blocks):
    sde = TensorSDE(noise, "stratonovich")
    wanted = find_gradients(sde, snt.sdeint, method="reversible_heun")
    found = find_gradients(sde, snt.sdeint_adjoint, method="reversible_heun", **how)
    require_equal(found, wanted, RECONSTRUCTED)


def test_inverted_steps_keep_no_states(short_blocks, monkeypatch):
    """The states of the forward run are not stored: only the last block is recorded."""
    kept = []
    monkeypatch.setattr(reversal.TapedBlocks, "keep", lambda self, *where: kept.append(where))
    find_gradients(TensorSDE("diagonal", "stratonovich"), snt.sdeint_adjoint, method="reversible_heun")
    assert kept == []


def test_schemes_without_an_inverse_are_refused():
    with pytest.raises(ValueError, match="reversible"):
        snt.sdeint_adjoint(TensorSDE("diagonal"), start(), TIMES, method="euler", memory="reversible")
    with pytest.raises(ValueError, match="`adjoint_method` 'adjoint_reversible_heun' needs"):
        snt.sdeint_adjoint(TensorSDE("diagonal"), start(), TIMES, adjoint_method="adjoint_reversible_heun")


def test_noise_is_drawn_again_and_stored_nowhere(short_blocks, monkeypatch):
    """The reverse sweep draws the noise of each step again, one chunk of a single step at a time."""
    monkeypatch.setattr(step_noise, "CHUNK", 1)
    draws = []
    original = step_noise.draw_cell_increments
    monkeypatch.setattr(step_noise, "draw_cell_increments", lambda *what: draws.append(1) or original(*what))
    sde = TensorSDE("diagonal")
    find_gradients(sde, snt.sdeint, method="euler")
    forward = len(draws)
    find_gradients(sde, snt.sdeint_adjoint, method="euler", memory=snt.Checkpoints(slots=2))
    assert forward == STEPS
    assert len(draws) - forward >= 2 * STEPS - 1


def test_gradients_are_difference_quotients():
    """With common noise."""
    bm = snt.BrownianInterval(size=(3, 2), entropy=5, cells=8, dtype=torch.float64)

    def solve(y0, a):
        sde = TensorSDE("general")
        del sde.a
        sde.a = a
        return snt.sdeint(sde, y0, [0.0, 0.4, 1.0], bm=bm, method="euler", dt=0.125)

    a = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (start().requires_grad_(), a), rtol=1e-7, atol=1e-7)


def test_adaptive_steps_have_exact_gradients(short_blocks):
    sde = TensorSDE("diagonal")
    how = {"method": "srk", "adaptive": True, "rtol": 1e-2, "atol": 1e-2}
    wanted = find_gradients(sde, snt.sdeint, **how)
    require_equal(find_gradients(sde, snt.sdeint_adjoint, **how), wanted, EXACT)


def test_tensors_outside_of_modules_get_gradients():
    a = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)

    class Plain:
        sde_type, noise_type = "ito", "diagonal"
        f = staticmethod(lambda t, y: -a * y)
        g = staticmethod(lambda t, y: 0.1 + 0.2 * a * y)

    bm = snt.BrownianInterval(size=(3, 2), entropy=5, cells=8, dtype=torch.float64)
    found = [
        torch.autograd.grad(solve(Plain(), start(), TIMES, bm=bm, dt=0.125).sum(), a)[0]
        for solve in (snt.sdeint, snt.sdeint_adjoint)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=EXACT, atol=0)


def test_the_second_row_of_reversible_heun_has_gradients():
    """A run in two parts has the gradient of the whole."""
    sde = TensorSDE("diagonal", "stratonovich")
    bm = snt.BrownianInterval(size=(3, 2), entropy=5, cells=8, dtype=torch.float64)
    how = {"bm": bm, "method": "reversible_heun", "dt": 0.125}
    gradient = lambda y: torch.autograd.grad(y.square().sum(), sde.a)[0]
    whole = gradient(snt.sdeint(sde, start(), [0.0, 1.0], **how)[-1])
    half, state = snt.sdeint_adjoint(sde, start(), [0.0, 0.5], extra=True, **how)
    rest = snt.sdeint_adjoint(sde, half[-1], [0.5, 1.0], extra_solver_state=state, **how)
    torch.testing.assert_close(gradient(rest[-1]), whole, rtol=RECONSTRUCTED, atol=0)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_gradients_of_autograd_are_those_of_the_other_engine(name, noise):
    """Of the same paths, for every scheme with each type of noise it admits."""
    calculus, paths = sn.schemes.get(name).calculus, [2, 0, 18]
    own = sn.gradient_ensemble(
        problems.build(noise, calculus, seed=11), name, lambda y: y[0] ** 2 * y[1], paths=paths, steps=STEPS
    )
    sde, y0 = TensorSDE(noise, calculus), start(3).requires_grad_()
    bm = snt.BrownianInterval(size=(3, COMPONENTS[noise]), entropy=11, cells=STEPS, paths=paths, dtype=torch.float64)
    y = snt.sdeint(sde, y0, [0.0, 1.0], bm=bm, method=name, dt=1 / STEPS)[-1]
    found = torch.autograd.grad((y[:, 0] ** 2 * y[:, 1]).sum(), (y0, sde.a))
    require_equal(found, [torch.from_numpy(own.y0), torch.tensor(own.args.sum())], EXACT)
