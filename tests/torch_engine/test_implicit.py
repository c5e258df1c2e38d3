"""Implicit steps on tensors: solved stages, exact gradients of any order, adaptive and per-sample steps, layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines.torch_engine.integrators.implicit_stages import NewtonError
from stepnet.engines.torch_engine.integrators.krylov import solve_by_gmres
from stepnet.engines.torch_engine.integrators.linear_systems import SampleLayout, choose_layout
from stepnet.schemes import get, implicit, rosenbrock

torch.set_num_threads(1)

EXACT = 1e-11  # relative; both engines solve stages to rounding, which the Jacobian amplifies
SCHEMES = ["implicit_midpoint", "trapezoid", "sdirk2", "kvaerno3", "gauss4", "radau5", "lobatto_iiic4", "rodas4"]
PAIRS = [implicit.TRBDF2, *map(get, ["kvaerno4", "radau5", "rodas5p"])]
STATE = torch.tensor([[2.0, 0.0], [1.5, 0.3], [0.3, -1.0]], dtype=torch.float64)
TOLERANCES = {"rtol": 1e-5, "atol": 1e-7}
ADAPTIVE_ERROR = 1e-3  # a hundred times the tolerance
FIRST_TIMES = torch.tensor([0.0, 0.5], dtype=torch.float64)


def van_der_pol(mu):
    def f(t, y):
        q, p = y.unbind(-1)
        time = t.reshape(t.shape[:-1]) if t.ndim else t
        return torch.stack((p, mu * (1 - q**2) * p - q + 0.1 * torch.sin(time)), -1)

    return f


def reference(mu, y0, t_end):
    f = lambda t, y, mu: [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0] + 0.1 * np.sin(t)]
    problems = [sn.ODE(f, y.numpy(), (0.0, t_end), args=(mu,)) for y in y0]
    return np.stack([sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_every=0).y[-1] for problem in problems])


# ---- steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_states_and_gradients_are_those_of_the_compiled_engine(name):
    """One sample, fixed steps; the loss is the sum of squares of the end state."""
    f = lambda t, y, mu: [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0] + 0.1 * np.sin(t)]
    problem = sn.ODE(f, [2.0, 0.0], (0.0, 1.0), args=(5.0,))
    wanted = sn.gradient(problem, name, lambda y: y @ y, steps=10)
    mu = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    y0 = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    y = snt.odeint(van_der_pol(mu), y0, t, method=name, options={"grid_constructor": lambda f, y, t: t})[-1]
    value = y @ y
    y_bar, mu_bar = torch.autograd.grad(value, (y0, mu))
    assert value.item() == pytest.approx(wanted.value, rel=EXACT)
    np.testing.assert_allclose(y_bar.numpy(), wanted.y0, rtol=EXACT, atol=EXACT)
    assert float(mu_bar) == pytest.approx(wanted.args[0], rel=EXACT)


@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(slots=2)])
@pytest.mark.parametrize("name", ["implicit_euler", "gauss4", "rodas3"])
def test_gradients_are_derivatives_of_the_steps(name, memory):
    """With respect to states, parameters and times, by differences; no Newton iteration is differentiated."""
    t = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    grid = {"options": {"grid_constructor": lambda f, y, t: t}}

    def end(y0, mu, t):
        return snt.odeint_adjoint(
            van_der_pol(mu), y0, t, method=get(name), memory=memory, adjoint_params=(mu,), **grid
        )[-1]

    assert torch.autograd.gradcheck(end, (STATE.clone().requires_grad_(), mu, t), nondet_tol=EXACT)


def test_second_derivatives_are_refused():
    mu = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    end = snt.odeint(van_der_pol(mu), STATE, FIRST_TIMES, method="implicit_midpoint")[-1]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(end.sum(), mu, create_graph=True)


def test_long_steps_are_solved_where_newton_needs_shorter_changes():
    """y' = -sinh(y) from y = 9 with h = 100: undamped changes overshoot."""
    t = torch.tensor([0.0, 100.0], dtype=torch.float64)
    y = snt.odeint(lambda t, y: -torch.sinh(y), 9 * torch.ones(2, 1, dtype=torch.float64), t, method="implicit_euler")
    np.testing.assert_allclose((y[1] + 100 * torch.sinh(y[1])).numpy(), 9.0, rtol=EXACT)


def test_stages_without_a_solution_are_an_error():
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    with pytest.raises(NewtonError, match="implicit stages of 2 of 2 samples were not solved"):
        snt.odeint(lambda t, y: 1 + y * y, torch.ones(2, 1, dtype=torch.float64), t, method="implicit_euler")


# ---- systems --------------------------------------------------------------------------------------------------------


def test_samples_that_depend_on_each_other_are_solved_together():
    """The mean over the batch couples samples, so their own blocks are not the Jacobian."""
    f = lambda t, y: -5.0 * (y - 0.9 * y.mean(0)) + y**2 * 0.1
    t = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    grid = {"grid_constructor": lambda f, y, t: t}
    y0 = STATE.clone().requires_grad_()
    together = snt.odeint(f, y0, t, method="gauss4", options=grid)
    flat = snt.odeint(lambda t, y: f(t, y.view(3, 2)).view(-1), y0.view(-1), t, method="gauss4", options=grid)
    np.testing.assert_allclose(together.detach().view(5, -1).numpy(), flat.detach().numpy(), rtol=EXACT)
    found, wanted = (torch.autograd.grad(y[-1].square().sum(), y0)[0] for y in (together, flat))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=EXACT)


def test_large_states_are_solved_without_a_matrix():
    """Heat on 400 points by the trapezoidal rule: eigenvectors decay by its stability function."""
    n = 400
    x = torch.arange(1, n + 1, dtype=torch.float64) * np.pi / (n + 1)
    k = torch.tensor(0.004, dtype=torch.float64, requires_grad=True)
    scale = 4 * torch.sin(x[0] / 2) ** 2

    def heat(t, u):
        outer = torch.nn.functional.pad(u, (1, 1))
        return k / scale * (outer[2:] - 2 * u + outer[:-2])

    t = torch.linspace(0.0, 1.0, 3, dtype=torch.float64)
    u = snt.odeint(heat, torch.sin(x), t, method="trapezoid")[-1]
    factor = (1 - 0.001) / (1 + 0.001)
    np.testing.assert_allclose(u.detach().numpy(), factor**2 * torch.sin(x).numpy(), rtol=1e-9, atol=1e-12)
    (k_bar,) = torch.autograd.grad(u.sum(), k)
    slope = 2 * factor * -0.5 / (1 + 0.001) ** 2
    assert float(k_bar) == pytest.approx(float(slope * torch.sin(x).sum()), rel=1e-8)


def test_gmres_solves_nonsymmetric_systems():
    generator = torch.Generator().manual_seed(1)
    A = torch.eye(60, dtype=torch.float64) * 4 + torch.randn(60, 60, generator=generator, dtype=torch.float64) / 4
    b = torch.randn(60, generator=generator, dtype=torch.float64)
    np.testing.assert_allclose((A @ solve_by_gmres(lambda v: A @ v, b)).numpy(), b.numpy(), atol=1e-12)


def test_layouts_divide_states_into_samples():
    assert choose_layout(torch.zeros(7, 2, 3)) == SampleLayout(7, 6)
    assert choose_layout(torch.zeros(7)) == SampleLayout(1, 7)
    assert choose_layout(torch.zeros(2, 5, 3), is_pair=True) == SampleLayout(5, 6, True)
    assert choose_layout(torch.zeros(1000)) is None
    x = torch.arange(24.0).view(1, 2, 4, 3)
    layout = SampleLayout(4, 6, True)
    assert torch.equal(layout.scatter(layout.gather(x), x), x)
    assert layout.gather(x)[1].tolist() == [3, 4, 5, 15, 16, 17]


def test_pairs_of_positions_and_momenta():
    t = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    q, p = snt.odeint(snt.SecondOrder(lambda t, q: -q), (STATE, STATE), t, method="implicit_midpoint")
    h = 0.25
    A = np.array([[0.0, 1.0], [-1.0, 0.0]])
    step = np.linalg.solve(np.eye(2) - h / 2 * A, np.eye(2) + h / 2 * A)
    wanted = np.linalg.matrix_power(step, 4) @ np.stack((STATE.numpy().ravel(), STATE.numpy().ravel()))
    np.testing.assert_allclose(np.stack((q[-1].numpy().ravel(), p[-1].numpy().ravel())), wanted, rtol=EXACT)


# ---- adaptive steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS, ids=lambda scheme: scheme.name)
def test_adaptive_steps_reach_the_tolerance(name):
    exact = reference(20.0, STATE, 0.5)
    with torch.no_grad():
        shared = snt.odeint(van_der_pol(20.0), STATE, FIRST_TIMES, method=name, **TOLERANCES)[-1]
        own = snt.solve(van_der_pol(20.0), STATE, FIRST_TIMES, method=name, **TOLERANCES)
    assert np.abs(shared.numpy() - exact).max() < ADAPTIVE_ERROR
    assert np.abs(own.y[:, -1].numpy() - exact).max() < ADAPTIVE_ERROR
    assert not own.failed.any()
    assert len(set(own.accepted.tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kvaerno4", "rodas4"])
def test_gradients_of_adaptive_steps_are_those_of_the_solution(name):
    mu, slope = torch.tensor(4.0, dtype=torch.float64, requires_grad=True), 1e-4
    change = (reference(4.0 + slope, STATE, 0.5) - reference(4.0 - slope, STATE, 0.5)).sum() / (2 * slope)
    for end in (
        snt.odeint(van_der_pol(mu), STATE, FIRST_TIMES, method=name, **TOLERANCES)[-1],
        snt.solve(van_der_pol(mu), STATE, FIRST_TIMES, method=name, **TOLERANCES).y[:, -1],
    ):
        (found,) = torch.autograd.grad(end.sum(), mu)
        assert float(found) == pytest.approx(change, rel=ADAPTIVE_ERROR)


def test_samples_do_not_depend_on_their_neighbours():
    alone, among = (
        snt.solve(van_der_pol(20.0), y, FIRST_TIMES, method="rodas4", **TOLERANCES) for y in (STATE[1:2], STATE)
    )
    assert alone.accepted[0] == among.accepted[1]
    np.testing.assert_allclose(alone.y[0].numpy(), among.y[1].numpy(), rtol=EXACT)


def test_stiff_samples_take_few_steps():
    """Van der Pol's equation with mu = 1000 on its slow manifold, where explicit steps are shorter than 1e-3."""
    t = torch.tensor([0.0, 100.0], dtype=torch.float64)
    y0 = torch.tensor([[2.0, 0.0], [1.9, 0.0]], dtype=torch.float64)
    f = lambda t, y: torch.stack((y[:, 1], 1000.0 * (1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]), 1)
    found = snt.solve(f, y0, t, method="rodas5p", rtol=1e-5, atol=1e-8)
    g = lambda t, y: [y[1], 1000.0 * (1 - y[0] ** 2) * y[1] - y[0]]
    wanted = solve_ivp(g, (0.0, 100.0), [2.0, 0.0], method="Radau", rtol=1e-9, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(found.y[0, -1].numpy(), wanted, rtol=1e-4)
    assert int(found.accepted.max()) < 100


# ---- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["implicit_euler", "gauss4"])
def test_parabolic_layers_are_stable_with_any_length(scheme):
    """Differences of outputs do not grow, with h = 100; explicit layers of this length amplify them."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    block = snt.ParabolicBlock(4, 2, scheme=scheme, length=200.0, seed=1, dtype=torch.float64)
    explicit = snt.ParabolicBlock(4, 2, scheme="euler", length=200.0, seed=1, dtype=torch.float64)
    before, after, amplified = torch.pdist(x), torch.pdist(block(x)), torch.pdist(explicit(x))
    assert bool((after <= before).all())
    assert bool((amplified > before).any())


def test_gradients_of_implicit_layers_are_exact():
    block = snt.ParabolicBlock(3, 2, scheme="implicit_euler", length=10.0, seed=1, dtype=torch.float64)
    names = [name for name, _ in block.named_parameters()]
    tensors = [p.detach().requires_grad_() for p in block.parameters()]
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    call = lambda x, *p: torch.func.functional_call(block, dict(zip(names, p, strict=True)), (x,))
    assert torch.autograd.gradcheck(call, (x, *tensors))


@pytest.mark.parametrize("scheme", ["rodas4", "radau5"])
def test_steps_record_a_graph_only_for_what_has_a_gradient(scheme):
    weight = torch.tensor(2.0, dtype=torch.float64)
    solve = lambda w: snt.odeint(
        lambda t, y: torch.cos(t) - w * y, STATE, FIRST_TIMES, method=scheme, options={"step_size": 0.25}
    )
    assert not solve(weight).requires_grad
    assert solve(weight.clone().requires_grad_()).requires_grad


def test_every_implicit_record_has_a_program_with_an_estimate():
    from stepnet.schemes.pair_programs import build_pair_program

    for module in (implicit, rosenbrock):
        for scheme in vars(module).values():
            if isinstance(scheme, (implicit.ImplicitRK, rosenbrock.Rosenbrock)):
                assert build_pair_program(scheme).is_implicit
    assert build_pair_program(get("rk4")) is None
