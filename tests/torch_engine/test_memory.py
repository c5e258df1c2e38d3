"""Every `memory` of a gradient: right to second order, by times, at events, and bounded."""

from __future__ import annotations

import weakref

import pytest
import torch
from gradients.cases import relative
from torch_engine.networks import BOUNDED, EXACT, HALVES, METHODS, TIMES, N, Net, leaves, loss, problem, solver, start

import stepnet.torch as snt
from stepnet.checkpoints import binomial
from stepnet.engines.torch_engine.adjoint import reversal
from stepnet.errors import AdjointWarning

torch.set_num_threads(1)

REVERSIBLE = sorted(HALVES)
CASES = [(name, memory) for name in METHODS for memory in ("all", *BOUNDED)] + [(n, "reversible") for n in REVERSIBLE]
over_cases = pytest.mark.parametrize(("name", "memory"), CASES)


@over_cases
def test_first_and_second_derivatives(name, memory, short_blocks):
    net, y0, run = solver(name, memory)
    n = len(leaves(y0))

    def end(*tensors):
        return tuple(part[-1] for part in leaves(run(tensors[:n] if n > 1 else tensors[0])))

    inputs = (*leaves(y0), net.W, net.b)
    assert torch.autograd.gradcheck(end, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(end, inputs, fast_mode=True)


@over_cases
def test_gradients_are_those_of_plain_autograd(name, memory, block):
    found, wanted = [
        torch.autograd.grad(loss(run(y0)), (*leaves(y0), net.W, net.b))
        for net, y0, run in (solver(name, memory), solver(name, "all"))
    ]
    assert max(relative(a, b) for a, b in zip(found, wanted, strict=True)) <= EXACT


@pytest.mark.parametrize("memory", ["all", *BOUNDED])
@pytest.mark.parametrize("name", ["rk4", "ab3", "verlet"])
def test_times_of_given_steps_have_gradients(name, memory, short_blocks):
    _, y0, run = solver(name, memory)
    t = (TIMES**2 if name != "ab3" else TIMES).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: run(y0, t), (t,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: run(y0, t), (t,), fast_mode=True)


@pytest.mark.parametrize("memory", ["all", snt.Checkpoints(slots=2), "continuous"])
def test_times_of_adaptive_steps_have_gradients(memory, short_blocks):
    """The first, the last and the ones between, which are read inside of steps."""
    net, y0, t = Net(), start(), TIMES[[0, 2, 5, 7]].clone().requires_grad_()
    run = lambda t, y0: snt.odeint_adjoint(net, y0, t, memory=memory, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(run, (t, y0), fast_mode=True)


@pytest.mark.parametrize("name", ["dopri5", "bosh3", "dop853", "cash_karp"])
def test_adaptive_steps_are_given_ones_on_the_way_back(name, block):
    net, y0 = Net(), start()
    found, wanted = (
        torch.autograd.grad(
            loss(snt.odeint_adjoint(net, y0, TIMES, method=name, memory=memory, rtol=1e-5, atol=1e-7)),
            (y0, net.W, net.b),
        )
        for memory in (snt.Checkpoints(slots=2), "all")
    )
    assert max(relative(a, b) for a, b in zip(found, wanted, strict=True)) <= EXACT


@pytest.mark.parametrize("memory", BOUNDED)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_steps(n, memory, block):
    """One block whose first step is also its last, and the like."""
    net, y0, run = solver("rk4", memory)
    found, wanted = run(y0, TIMES[: n + 1]), snt.odeint(net, y0, TIMES[: n + 1], method="rk4")
    assert found.shape == wanted.shape
    assert relative(*(torch.autograd.grad(loss(y), net.W)[0] for y in (found, wanted))) <= EXACT


# ---- how much is run again, and how much is alive -------------------------------------------------------------------


def test_evaluations_are_those_the_schedule_promises(short_blocks):
    calls, n, slots = [], 40, 3
    fun = lambda t, y: (calls.append(1), -y)[1]
    y0 = torch.ones(2, dtype=torch.float64, requires_grad=True)
    how = {"method": "euler", "options": {"step_size": 1 / n}, "adjoint_params": ()}
    y = snt.odeint_adjoint(fun, y0, TIMES[[0, -1]], memory=snt.Checkpoints(slots=slots), **how)
    assert len(calls) == n
    calls.clear()
    y[-1].sum().backward()
    assert len(calls) == binomial(n, slots).evaluations - n  # the first n are those of the forward run


def test_a_run_that_fits_is_not_run_again():
    calls, y0 = [], start()
    fun = lambda t, y: (calls.append(1), y.sin())[1]
    snt.odeint_adjoint(fun, y0, TIMES, method="rk4", adjoint_params=(), memory="auto").sum().backward()
    assert len(calls) == 4 * N


class Counted(torch.autograd.Function):
    """tanh, whose records in graphs are counted: those that are alive, and the most there ever were."""

    alive = most = 0

    @staticmethod
    def forward(ctx, y):
        k = torch.tanh(y)
        ctx.save_for_backward(k)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        weakref.finalize(ctx, Counted.gone)
        return k

    @staticmethod
    def backward(ctx, bar):
        (k,) = ctx.saved_tensors
        return bar * (1 - k * k)

    @classmethod
    def gone(cls):
        cls.alive -= 1


def most_alive(n: int, memory, **how) -> int:
    """Evaluations whose graph is alive at one time, at most, in a solve with n times and its gradient."""
    y0 = torch.linspace(-1, 1, 64, dtype=torch.float64).requires_grad_()
    fun = lambda t, y: Counted.apply(y)
    is_second = how.get("method") == "verlet"
    field, state = (snt.SecondOrder(fun), (y0, y0)) if is_second else (fun, y0)
    assert Counted.alive == 0
    Counted.most = 0
    t = torch.linspace(0.0, 5.0, n + 1, dtype=torch.float64)
    found = snt.odeint_adjoint(field, state, t, memory=memory, adjoint_params=(), **how)
    loss(found[1] if "event_fn" in how else found).backward()
    del found
    return Counted.most


SOLVES = {
    "given steps": {"method": "rk4"},
    "adaptive steps": {"rtol": 1e-9, "atol": 1e-9, "options": {"max_step": 0.05}},
    "steps undone": {"method": "verlet"},
}


@pytest.mark.parametrize("kind", SOLVES)
def test_memory_does_not_grow_with_steps(kind, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", 2**12)
    how, memory = SOLVES[kind], "reversible" if kind == "steps undone" else snt.Checkpoints(slots=5)
    few, many, plain = most_alive(100, memory, **how), most_alive(400, memory, **how), most_alive(400, "all", **how)
    print(f"{kind}: {few} evaluations of 100 steps, {many} of 400, {plain} with all of them")
    assert many <= 1.5 * few
    assert many <= plain / 10


EVENT = {"rtol": 1e-9, "atol": 1e-9, "options": {"max_step": 0.05}}


def test_events_in_bounded_memory(short_blocks):
    """The time and the state there, with respect to the state, the weights and the first time."""
    net, y0, t0 = Net(), start(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = []
    for memory in ("all", snt.Checkpoints(slots=2)):
        t, y = snt.odeint_event(
            net, y0, t0, event_fn=lambda t, y: t + 0.1 * y[0, 0] - 0.9, odeint_interface=snt.odeint_adjoint,
            memory=memory, **EVENT,
        )  # fmt: skip
        found.append((t.detach(), *torch.autograd.grad(t + loss(y), (y0, net.W, net.b, t0))))
    assert max(relative(a, b) for a, b in zip(*found, strict=True)) <= EXACT


def test_an_event_in_the_first_step_and_one_at_the_beginning():
    net, y0, found = Net(), start(), []
    for when in (0.01, 0.0):
        for memory in ("all", snt.Checkpoints(slots=2)):
            how = {"event_fn": lambda t, y, when=when: t - when + 0.0 * y.sum(), "memory": memory, **EVENT}
            t, y = snt.odeint_event(net, y0, TIMES[0], odeint_interface=snt.odeint_adjoint, **how)
            found.append(torch.autograd.grad(t + loss(y), y0)[0])
    assert relative(found[1], found[0]) <= EXACT
    assert relative(found[3], found[2]) <= EXACT


def test_memory_does_not_grow_with_the_steps_to_an_event(monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", 2**12)
    event = lambda end: {"event_fn": lambda t, y: t - end + 0.0 * y.sum(), **SOLVES["adaptive steps"]}
    few, many, plain = (
        most_alive(1, memory, **event(end))
        for memory, end in ((snt.Checkpoints(slots=5), 2.0), (snt.Checkpoints(slots=5), 4.9), ("all", 4.9))
    )
    print(f"{few} evaluations to t = 2, {many} to 4.9, {plain} with all of them")
    assert many <= 1.5 * few
    assert many <= plain / 10


# ---- undone steps ---------------------------------------------------------------------------------------------------


def test_undone_steps_that_miss_the_beginning_give_way_to_checkpoints(short_blocks):
    """q'' = 100 q: what was forgotten of the decaying part comes back e^20 times larger."""
    q0 = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.0, 2.0, 401, dtype=torch.float64)

    def gradient(memory):
        y = snt.odeint_adjoint(
            snt.SecondOrder(lambda t, q: 100.0 * q), (q0, -9.0 * q0), t, method="verlet", adjoint_params=(),
            memory=memory,
        )  # fmt: skip
        return torch.autograd.grad(loss(y), q0)[0]

    with pytest.warns(AdjointWarning, match="missed the initial state by"):
        found = gradient("reversible")
    assert relative(found, gradient("all")) <= EXACT


def test_steps_that_cannot_be_undone_are_refused():
    with pytest.raises(ValueError, match=r'`memory`="reversible".*rk38'):
        snt.odeint_adjoint(Net(), start(), TIMES, method="rk4", memory="reversible")


# ---- the continuous adjoint -----------------------------------------------------------------------------------------

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
CLOSE = 1e-7  # relative; both equations are solved to 1e-10


@pytest.mark.parametrize("adjoint_options", [None, {"norm": "seminorm"}, {"max_step": 0.1}])
def test_the_adjoint_equation_finds_the_gradient_up_to_its_tolerance(adjoint_options):
    net, y0 = Net(), start()
    inputs, found = (y0, net.W, net.b), {}
    for memory in ("continuous", "all"):
        y = snt.odeint_adjoint(net, y0, TIMES, memory=memory, adjoint_options=adjoint_options, **TIGHT)
        found[memory] = torch.autograd.grad(loss(y), inputs)
    assert max(relative(a, b) for a, b in zip(*found.values(), strict=True)) <= CLOSE


def test_the_adjoint_equation_of_tuples_and_halves():
    net, (q0, p0) = Net(), problem("verlet", Net())[1]
    pair = lambda t, y: (net(t, y[1]), -net(t, y[0]))
    halves = snt.Partitioned(net, lambda t, q: -net(t, q))
    told = {"adjoint_params": (net.W, net.b), **TIGHT}
    found = [
        torch.autograd.grad(loss(snt.odeint_adjoint(field, (q0, p0), TIMES, memory=memory, **told)), (q0, p0, net.W))
        for field, memory in ((pair, "all"), (pair, "continuous"), (halves, "continuous"))
    ]
    for other in found[1:]:
        assert max(relative(a, b) for a, b in zip(other, found[0], strict=True)) <= CLOSE


def test_second_derivatives_of_the_adjoint_equation():
    net, y0 = Net(), start()
    run = lambda y0, *_: snt.odeint_adjoint(net, y0, TIMES[::3], memory="continuous", **TIGHT)
    assert torch.autograd.gradcheck(run, (y0, net.W, net.b), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (y0, net.W, net.b), fast_mode=True)


def test_a_state_that_cannot_be_solved_back_is_told():
    y0 = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.0, 10.0, 2, dtype=torch.float64)
    y = snt.odeint_adjoint(
        lambda t, y: -3.0 * y + 1.0, y0, t, memory="continuous", adjoint_params=(), rtol=1e-5, atol=1e-5
    )
    with pytest.warns(AdjointWarning, match="are unreliable"):
        y[-1].sum().backward()
