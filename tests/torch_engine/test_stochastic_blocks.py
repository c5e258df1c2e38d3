"""Layers with noise on tensors: the numbers of `stepnet.nets`, exact gradients, paths of samples, losses of paths."""

from __future__ import annotations

import copy
from math import exp

import numpy as np
import pytest
import torch
from torch import nn

import stepnet as sn
import stepnet.torch as snt
from stepnet import fields, nets
from stepnet.nets import SampleNoise

ROUNDING = 1e-12  # of sums in another order
WIDTH, STEPS, BATCH = 8, 9, 20
PRESETS = {  # with the features that the diffusion reads
    "resnet": (nets.resnet, WIDTH, {}),
    "rk4": (nets.antisymmetric, WIDTH, {"scheme": "rk4", "degree": 1}),
    "hamiltonian": (nets.hamiltonian, WIDTH // 2, {}),
    "hyperbolic": (nets.hyperbolic, WIDTH, {"scheme": "verlet"}),
}
DIFFUSIONS = {
    "constant": lambda n: 0.3,
    "per channel": lambda n: fields.diffusion.per_channel((n,), 0.3),
    "multiplicative": lambda n: fields.diffusion.multiplicative((n,), 0.3),
    "state-dependent": lambda n: fields.diffusion.state_dependent(fields.dense(n), 0.3),
}
X = np.random.default_rng(3).normal(size=(BATCH, 3))
NOISE = SampleNoise(seed=5)


def build(name: str, diffusion: str) -> nets.Net:
    preset, n, options = PRESETS[name]
    return preset(3, 2, WIDTH, STEPS, length=1.5, diffusion=DIFFUSIONS[diffusion](n), **options)


@pytest.mark.parametrize("diffusion", DIFFUSIONS)
@pytest.mark.parametrize("name", PRESETS)
def test_both_engines_have_the_same_outputs_and_gradients(name, diffusion):
    net = build(name, diffusion)
    module = snt.from_net(net)
    ends = module(torch.tensor(X), NOISE)
    ends.sum().backward()
    found = torch.cat([p.grad.flatten() for p in module.parameters()]).numpy()
    wanted = net.gradient(X, end_gradient=np.ones((BATCH, 2)), noise=NOISE)
    np.testing.assert_allclose(ends.detach().numpy(), net(X, noise=NOISE), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(found, wanted.theta, rtol=0, atol=ROUNDING * np.abs(wanted.theta).max())


@pytest.mark.parametrize("memory", ["segments", 3, "reversible"])
def test_gradients_are_the_same_under_every_memory(memory):
    field = fields.hamiltonian(fields.dense(3))
    noise = fields.diffusion.state_dependent(fields.dense(3), 0.4)
    grads = []
    for policy in ("all", memory):
        block = snt.SDEBlock(field, noise, steps=7, memory=policy, seed=1, dtype=torch.float64)
        y = torch.tensor(X.repeat(2, axis=1), requires_grad=True)
        block(y, NOISE).square().sum().backward()
        grads.append(torch.cat([y.grad.flatten(), *(p.grad.flatten() for p in block.parameters())]))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-10, atol=1e-10)


def test_samples_see_their_paths_in_any_batch():
    block = snt.ResidualBlock(3, STEPS, diffusion=0.3, dtype=torch.float64)
    solve = snt.SDEBlock(lambda t, y: -y, lambda t, y: 0.3 * torch.cos(y), "milstein", steps=4)
    x = torch.tensor(X)
    for each in (block, solve):
        whole = each(x, NOISE)
        torch.testing.assert_close(each(x[5:9], NOISE), whole[5:9], rtol=ROUNDING, atol=ROUNDING)
        assert not torch.equal(each(x, SampleNoise(seed=6)), whole)
        keyed = each(x, SampleNoise(seed=5, keys=np.zeros(BATCH, int)))
        assert keyed.shape == whole.shape


def test_no_noise_is_the_layer_block():
    quiet, plain = (snt.AntisymmetricBlock(4, 5, seed=0, diffusion=d, dtype=torch.float64) for d in (0.0, None))
    y = torch.tensor(np.random.default_rng(0).normal(size=(6, 4)))
    torch.testing.assert_close(quiet(y), plain(y), rtol=ROUNDING, atol=ROUNDING)
    assert snt.AntisymmetricBlock(4, 5, diffusion=0.1).way(y.float()) == "tensors"


def test_functions_are_solved_on_the_paths_of_the_samples():
    """Geometric Brownian motion by Milstein's scheme, as `solve` computes it on the path of the sample."""
    block = snt.SDEBlock(lambda t, y: 0.1 * y, lambda t, y: 0.4 * y, "milstein", steps=16, length=2.0)
    y = torch.tensor(X[:4, :1])
    ends, paths = block(y, NOISE), NOISE.find_paths(X[:4, :1])
    for y0, path, end in zip(X[:4, :1], paths, ends, strict=True):
        sde = sn.SDE(
            lambda t, y: 0.1 * y, lambda t, y: 0.4 * y, y0, (0.0, 2.0), seed=NOISE.find_seed(0), path=int(path)
        )
        assert sn.solve(sde, "milstein", steps=16).y[-1] == pytest.approx(end.numpy(), rel=1e-10)


def test_gradients_of_functions_are_those_of_autograd():
    drift, noise = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    g = lambda t, y: nn.functional.softplus(noise(y))

    class Pair(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.drift, self.noise = drift, noise

        def f(self, t, y):
            return torch.tanh(self.drift(y))

        def g(self, t, y):
            return g(t, y)

    x, grads = torch.tensor(X[:, :2]), []
    for memory in ("all", 3):
        block = snt.SDEBlock(Pair(), steps=6, memory=memory)
        block.zero_grad()
        block(x, NOISE).square().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in block.parameters()]))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-10, atol=1e-12)
    assert len(grads[0]) == 12


def test_modules_are_copied_stored_and_moved():
    module = snt.from_net(build("resnet", "per channel"))
    again = copy.deepcopy(module)
    again.load_state_dict(module.state_dict())
    x = torch.tensor(X)
    assert torch.equal(again(x, NOISE), module(x, NOISE))
    assert torch.equal(module.float()(x.float(), NOISE), again.float()(x.float(), NOISE))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: snt.SDEBlock(fields.residual(fields.dense(2))), "`diffusion` must be a number or a record"),
        (lambda: snt.SDEBlock(lambda t, y: y), "`diffusion` must be a function"),
        (lambda: snt.SDEBlock(lambda t, y: y, 0.3), "`diffusion` must be a function"),
        (lambda: snt.ResidualBlock(2, 2, diffusion=-1.0), "`diffusion` must be a number in"),
        (lambda: snt.ResidualBlock(2, 2, diffusion=0.1, engine="numba"), "`engine` = 'numba' has no noise"),
        (lambda: snt.ResidualBlock(2, 2, diffusion=0.1)(torch.ones(1, 2), 3), "`noise` must be a SampleNoise"),
        (lambda: snt.SDEBlock(lambda t, y: y, lambda t, y: y)(torch.ones(2)), "`y` must be a tensor"),
        (lambda: snt.moment_matching(torch.ones(3), torch.ones(3)), "`samples` must be a tensor"),
        (lambda: snt.moment_matching(torch.ones(2, 3, 1), torch.ones(3, 3, 1)), "the same times and entries"),
        (lambda: snt.negative_elbo(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), "one shape"),
        (lambda: snt.negative_elbo(*torch.ones(2, 2, 3, 1), torch.ones(3, 1)), "a batch of 3"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


# ---- losses of paths ------------------------------------------------------------------------------------------------


class Latent(nn.Module):
    """dy = (k - y) dt + s dW as posterior, dy = -y dt + s dW as prior: the divergence is k^2 T / (2 s^2)."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def f(self, t, y):
        return self.k - y

    def h(self, t, y):
        return -y

    def g(self, t, y):
        return 0.5 + 0.0 * y


def test_the_divergence_of_two_drifts_is_exact():
    y0, ts = torch.zeros(32, 1, dtype=torch.float64), [0.0, 0.5, 1.0]
    ys, ratio = snt.sdeint_adjoint(Latent(), y0, ts, dt=0.1, logqp=True)
    loss = snt.negative_elbo(ys, ys, ratio, scale=1.0)
    normal = 3 * 0.5 * np.log(2 * np.pi)
    assert loss.item() == pytest.approx(0.5**2 / (2 * 0.5**2) + normal, rel=1e-12)
    assert snt.negative_elbo(ys, ys, ratio, weight=0.0).item() == pytest.approx(normal, rel=1e-12)


def test_a_latent_sde_moves_towards_the_data():
    torch.manual_seed(0)
    model, target = Latent(), 0.8
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    y0, data = torch.zeros(64, 1, dtype=torch.float64), torch.full((2, 64, 1), target, dtype=torch.float64)
    for _ in range(60):
        optimiser.zero_grad()
        ys, ratio = snt.sdeint_adjoint(model, y0, [0.0, 1.0, 2.0], dt=0.1, logqp=True)
        snt.negative_elbo(ys[1:], data, ratio, scale=0.2).backward()
        optimiser.step()
    means = np.array([1.0 - exp(-1.0), 1.0 - exp(-2.0)])  # of the states in units of k
    best = (means.sum() * target / 0.2**2) / ((means**2).sum() / 0.2**2 + 2.0 / 0.5**2)
    assert model.k.item() == pytest.approx(best, rel=0.1)


def test_moments_are_those_of_numpy():
    random = np.random.default_rng(0)
    a, b = random.normal(size=(3, 50, 2)), random.normal(size=(3, 70, 2))
    wanted = np.mean([
        np.sum((x.mean(0) - y.mean(0)) ** 2) + np.sum((np.cov(x.T) - np.cov(y.T)) ** 2)
        for x, y in zip(a, b, strict=True)
    ])  # fmt: skip
    assert snt.moment_matching(torch.tensor(a), torch.tensor(b)).item() == pytest.approx(wanted, rel=1e-12)


STARTS, SEEN, PATHS, GAP, SIDE = 24, 32_768, 512, 0.25, 1.6
BALANCE = 3.0  # a unit in which errors of variances count about as much as those of means
PROCESSES = {
    "ornstein_uhlenbeck": (lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y),
    "double_well": (lambda t, y: y - y**3, lambda t, y: 0.4 + 0.1 * y**2),
}


def build_perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_a_neural_sde_recovers_drift_and_diffusion_by_moment_matching(name, capsys):
    """From paths of length 1/4 out of 24 points; half of the model's paths have the noise of the others reversed."""
    torch.manual_seed(0)
    f, g = PROCESSES[name]
    x = np.linspace(-SIDE, SIDE, STARTS)
    y0 = np.repeat(x, SEEN)[:, None]
    process = sn.SDE(f, g, [0.0], (0.0, GAP), seed=3)
    seen = sn.solve_ensemble(process, "sriw1", y0=y0, paths=np.arange(len(y0)), steps=32).y_end
    data = BALANCE * torch.tensor(seen.reshape(STARTS, SEEN, 1))
    drift, spread = build_perceptron(), build_perceptron()
    start = torch.tensor(np.repeat(x, PATHS)[:, None])
    signs, noise = torch.tensor([[1.0], [-1.0]]).tile(len(start) // 2, 1), SampleNoise(1, np.arange(len(start)) // 2)
    block = snt.SDEBlock(
        lambda t, y: drift(y), lambda t, y: signs * nn.functional.softplus(spread(y)), "srk", steps=4, length=GAP
    )
    weights = [*drift.parameters(), *spread.parameters()]
    optimiser = torch.optim.LBFGS(weights, max_iter=120, history_size=20, line_search_fn="strong_wolfe")

    def evaluate():
        optimiser.zero_grad()
        ends = block(start, noise=noise).reshape(STARTS, PATHS, 1)
        loss = snt.moment_matching(BALANCE * ends, data)
        loss.backward()
        return loss.detach()

    optimiser.step(evaluate)
    y = torch.linspace(-SIDE, SIDE, 201, dtype=torch.float64)[:, None]
    with torch.no_grad():
        pairs = (drift(y), f(0.0, y)), (nn.functional.softplus(spread(y)), g(0.0, y))
    errors = [float((found - exact).norm() / exact.norm()) for found, exact in pairs]
    with capsys.disabled():
        print(f"\n{name}: drift to {errors[0]:.1%}, diffusion to {errors[1]:.1%}")
    assert max(errors) < 0.05
