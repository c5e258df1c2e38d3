"""`import stepnet.torch as torchsde`: the same code runs with both modules and gives the same numbers."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch_engine.sdes import COMPONENTS, TensorSDE, start

import stepnet.torch as snt

torchsde = pytest.importorskip("torchsde")
torch.set_num_threads(1)

AGREE = 1e-6  # torchsde adds up times: theirs differ in the last places, and with them the path by 1e-8
EXACT = 1e-12  # with steps that are powers of two
TIMES = torch.tensor([0.0, 0.3, 0.55, 1.0], dtype=torch.float64)
CASES = [
    *(("ito", noise, name, {}) for noise in COMPONENTS if noise != "commutative" for name in ("euler",)),
    *(("ito", noise, name, {}) for noise in ("diagonal", "additive") for name in ("milstein", "srk")),
    ("ito", "scalar", "srk", {}),
    ("ito", "diagonal", "milstein", {"grad_free": True}),
    ("stratonovich", "diagonal", "milstein", {"grad_free": True}),
    ("stratonovich", "diagonal", "milstein", {}),
    *(
        ("stratonovich", noise, name, {})
        for noise in ("diagonal", "scalar", "additive", "general")
        for name in ("midpoint", "heun", "euler_heun", "log_ode", "reversible_heun")
    ),
]


def build_motion(module: ModuleType, noise: str, **how):
    areas = {"levy_area_approximation": "foster"}
    return module.BrownianInterval(0.0, 1.0, (3, COMPONENTS[noise]), torch.float64, entropy=4, **areas, **how)


QUICK = [case for case in CASES if case[1] == "diagonal" or case[2] == "log_ode"]


@pytest.mark.parametrize(
    ("calculus", "noise", "name", "options"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
)
@pytest.mark.parametrize("owner", [snt, torchsde], ids=["ours", "theirs"])
def test_both_agree_on_one_path(owner, calculus, noise, name, options):
    """Our Brownian motion handed to torchsde, and its `BrownianInterval` handed to us."""
    sde, bm = TensorSDE(noise, calculus), build_motion(owner, noise)
    with torch.no_grad():
        wanted, found = (
            module.sdeint(sde, start(), TIMES, bm=bm, method=name, dt=2**-4, options=dict(options))
            for module in (torchsde, snt)
        )
    torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_that_are_no_powers_of_two(dtype):
    sde, ts = TensorSDE("diagonal", dtype=dtype), TIMES.to(dtype)
    bm = torchsde.BrownianInterval(0.0, 1.0, (3, 2), dtype, entropy=4)
    with torch.no_grad():
        wanted, found = (m.sdeint(sde, start(3, dtype), ts, bm=bm, method="euler", dt=0.07) for m in (torchsde, snt))
    bound = AGREE if dtype == torch.float64 else 1e-3  # their times have an error of 1e-6 then, the path of 1e-3
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


def test_adaptive_steps_are_the_same():
    """Over a few steps: a rounding error of the time changes the path, which changes the next step, by its root."""
    sde = TensorSDE("diagonal")
    bm = build_motion(torchsde, "diagonal")
    how = {"bm": bm, "method": "milstein", "dt": 2**-4, "adaptive": True, "rtol": 1e-2, "atol": 1e-2}
    with torch.no_grad():
        wanted, found = (module.sdeint(sde, start(), [0.0, 0.05, 0.1], **how) for module in (torchsde, snt))
    torch.testing.assert_close(found, wanted, rtol=AGREE, atol=AGREE)


def test_default_methods_are_the_same():
    for noise, calculus in [(noise, "ito") for noise in ("diagonal", "scalar", "additive", "general")] + [
        ("general", "stratonovich")
    ]:
        sde, bm = TensorSDE(noise, calculus), build_motion(snt, noise)
        with torch.no_grad():
            wanted, found = (module.sdeint(sde, start(), TIMES, bm=bm, dt=2**-3) for module in (torchsde, snt))
        torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)


def test_gradients_of_reversible_heun_are_the_same():
    """The only ones of torchsde's adjoints that are exact."""
    sde, found = TensorSDE("diagonal", "stratonovich"), []
    for module in (torchsde, snt):
        bm = build_motion(snt, "diagonal")
        ys = module.sdeint_adjoint(
            sde, start(), TIMES[[0, -1]], bm=bm, dt=2**-4, method="reversible_heun",
            adjoint_method="adjoint_reversible_heun",
        )  # fmt: skip
        found.append(torch.autograd.grad(ys[-1].square().sum(), sde.a)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=0)


# ---- programs -------------------------------------------------------------------------------------------------------


class Drift(torch.nn.Module):
    """The equation of torchsde's README, with the state and the noise of its sizes."""

    noise_type, sde_type = "general", "ito"
    batch, n, m = 32, 3, 2

    def __init__(self):
        super().__init__()
        self.mu, self.sigma = torch.nn.Linear(self.n, self.n), torch.nn.Linear(self.n, self.n * self.m)

    def f(self, t, y):
        return self.mu(y)

    def g(self, t, y):
        return self.sigma(y).view(len(y), self.n, self.m)


def run_first_example(torchsde: ModuleType, bm) -> torch.Tensor:
    torch.manual_seed(0)
    sde = Drift()
    y0, ts = torch.full((sde.batch, sde.n), 0.1), torch.linspace(0, 1, 20)
    ys = torchsde.sdeint(sde, y0, ts, bm=bm, dt=2**-5)
    again = torchsde.sdeint_adjoint(sde, y0, ts, bm=bm, dt=2**-5)
    assert ys.shape == again.shape == (20, sde.batch, sde.n)
    again[-1].sum().backward()
    assert sde.mu.weight.grad is not None
    return ys


def test_the_first_example():
    bm = snt.BrownianInterval(0.0, 1.0, (Drift.batch, Drift.m), entropy=1)
    wanted, found = (run_first_example(module, bm) for module in (torchsde, snt))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)  # float32


def build_latent_sde(torchsde: ModuleType) -> torch.nn.Module:
    """A posterior drift f that is learned, a prior drift h, and a common diffusion."""

    class LatentSDE(torchsde.SDEIto):
        def __init__(self):
            super().__init__(noise_type="diagonal")
            self.theta, self.mu = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(0.2))
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        def f(self, t, y):
            return self.net(torch.cat((torch.sin(t).expand_as(y), y), dim=-1))

        def g(self, t, y):
            return torch.full_like(y, 0.5)

        def h(self, t, y):
            return self.theta * (self.mu - y)

    torch.manual_seed(0)
    return LatentSDE().double()


def train_latent_sde(torchsde: ModuleType, bm) -> tuple[float, torch.Tensor]:
    """A step of training: the bound on the likelihood of data, and samples of the prior."""
    sde = build_latent_sde(torchsde)
    y0, ts = torch.zeros(6, 1, dtype=torch.float64), torch.linspace(0, 1, 5, dtype=torch.float64)
    ys, log_ratio = torchsde.sdeint(sde, y0, ts, bm=bm, dt=2**-4, logqp=True, method="euler")
    assert (ys.shape, log_ratio.shape) == ((5, 6, 1), (4, 6))
    loss = (ys - 1).square().mean() + log_ratio.sum(0).mean()
    gradients = torch.autograd.grad(loss, list(sde.parameters()))
    return loss.item(), torch.cat([each.reshape(-1) for each in gradients])


def test_a_latent_sde():
    bm = snt.BrownianInterval(0.0, 1.0, (6, 2), entropy=1, dtype=torch.float64)
    (wanted, theirs), (found, ours) = (train_latent_sde(module, bm) for module in (torchsde, snt))
    assert found == pytest.approx(wanted, rel=1e-10)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("module", [torchsde, snt], ids=["theirs", "ours"])
def test_the_adjoint_trains_a_latent_sde(module):
    """With the methods and names of torchsde's example; the prior is sampled by `names`."""
    sde = build_latent_sde(module)
    y0, ts = torch.zeros(6, 1, dtype=torch.float64), torch.linspace(0, 1, 5, dtype=torch.float64)
    parameters = (*sde.parameters(),)
    ys, log_ratio = module.sdeint_adjoint(
        sde, y0, ts, dt=2**-4, logqp=True, method="euler", adjoint_method="euler", adjoint_params=parameters
    )
    gradients = torch.autograd.grad(ys.square().mean() + log_ratio.sum(0).mean(), parameters)
    assert all(bool(each.isfinite().all()) for each in gradients)
    bm = module.BrownianInterval(t0=ts[0], t1=ts[-1], size=(6, 1), dtype=torch.float64)
    prior = module.sdeint(sde, y0, ts, bm=bm, dt=2**-4, names={"drift": "h"}, method="euler")
    assert prior.shape == (5, 6, 1)


def test_log_ratios_of_general_noise():
    class Latent(Drift):
        n, m, batch = 3, 3, 4

        def h(self, t, y):
            return -y

    torch.manual_seed(0)
    sde = Latent().double()
    y0, ts = torch.full((4, 3), 0.1, dtype=torch.float64), [0.0, 0.5, 1.0]
    bm = snt.BrownianInterval(0.0, 1.0, (4, 3), entropy=1, dtype=torch.float64)
    with torch.no_grad():
        wanted, found = (module.sdeint(sde, y0, ts, bm=bm, dt=2**-4, logqp=True) for module in (torchsde, snt))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
