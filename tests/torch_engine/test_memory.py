"""Every `memory` of a gradient: right to second order, bounded, transformed, with the same random numbers."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
from gradients.cases import relative
from torch_engine.networks import HALVES, METHODS, TIMES, N, Net, leaves, loss, options_of, problem, start

import stepnet.torch as snt
from stepnet.checkpoints import binomial
from stepnet.engines.torch_engine import reversal
from stepnet.errors import AdjointWarning

torch.set_num_threads(1)

EXACT = 1e-12  # relative; sums over steps in another order
ONE_STEP = 1  # bytes of a block: less than any step takes, so that a block is one step
REVERSIBLE = sorted(HALVES)
BOUNDED = {"1 slot": snt.Checkpoints(slots=1), "3 slots": snt.Checkpoints(slots=3), "bytes": 40_000, "auto": "auto"}
CASES = [(name, memory) for name in METHODS for memory in ("all", *BOUNDED)] + [(n, "reversible") for n in REVERSIBLE]
over_cases = pytest.mark.parametrize(("name", "memory"), CASES)


@pytest.fixture(params=[ONE_STEP, 2**24], ids=["steps", "one block"])
def block(request, monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", request.param)
    return request.param


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_BYTES", ONE_STEP)
    monkeypatch.setattr(reversal, "AUTOMATIC_BYTES", 40_000)


def solver(name: str, memory: str):
    """A net, its initial state, and the solution as a function of (state, times)."""
    net = Net()
    field, y0 = problem(name, net)
    how = {"method": name, "memory": BOUNDED.get(memory, memory), "options": options_of(name)}

    def run(y, t=TIMES):
        return snt.odeint_adjoint(field, y, t, adjoint_params=(net.W, net.b), **how)

    return net, y0, run


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
    loss(snt.odeint_adjoint(field, state, t, memory=memory, adjoint_params=(), **how)).backward()
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

    with pytest.warns(AdjointWarning, match="missed the beginning by"):
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
    with pytest.warns(AdjointWarning, match="not to be trusted"):
        y[-1].sum().backward()


# ---- transformations ------------------------------------------------------------------------------------------------

EVERY = {**BOUNDED, "all": "all", "continuous": "continuous"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch itself calls it
@pytest.mark.parametrize("memory", EVERY)
def test_transformations_of_functions(memory):
    net, y = Net(), start().detach()
    plain, end = (
        lambda y, m=m: snt.odeint_adjoint(net, y, TIMES, method="rk4", memory=m)[-1] for m in ("all", EVERY[memory])
    )
    assert torch.allclose(torch.func.vmap(end)(y), end(y), rtol=EXACT)
    J, H = torch.func.jacrev(end)(y[0]), torch.func.hessian(lambda y: loss(end(y)[None]))(y[0])
    v = torch.linspace(-1, 1, 3, dtype=torch.float64)
    assert torch.allclose(J, torch.autograd.functional.jacobian(plain, y[0]), rtol=1e-10)
    assert torch.allclose(torch.func.jvp(end, (y[0],), (v,))[1], J @ v, rtol=1e-10)
    assert torch.allclose(torch.func.vjp(end, y[0])[1](v)[0], v @ J, rtol=1e-10)
    assert torch.allclose(H, torch.autograd.functional.hessian(lambda y: loss(plain(y)[None]), y[0]), rtol=1e-8)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("memory", BOUNDED)
def test_many_gradients_at_once(memory, short_blocks):
    """The way back in a batch of end gradients."""
    _, y0, run = solver("rk4", memory)
    y = run(y0)
    bars = torch.randn(4, *y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad(y, y0, bars, is_grads_batched=True, retain_graph=True)
    for bar, one in zip(bars, found, strict=True):
        assert relative(one, torch.autograd.grad(y, y0, bar, retain_graph=True)[0]) <= EXACT


@pytest.mark.parametrize("memory", EVERY)
def test_vmap_with_inputs_that_have_no_batch(memory):
    """Weights in a batch with one state, and states in a batch with one set of weights."""
    net, ys = Net(), torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = torch.stack([net.W.detach() * s for s in (0.5, 1.0, 2.0)])

    def value(W, y, memory=EVERY[memory]):
        field = lambda t, y: torch.func.functional_call(net, {"W": W}, (t, y))
        return loss(snt.odeint_adjoint(field, y, TIMES, method="rk4", memory=memory, adjoint_params=(W,)))

    gradient = torch.func.grad(value, argnums=(0, 1))
    for in_dims, of in (((0, None), lambda i: (weights[i], ys[0])), ((None, 0), lambda i: (weights[0], ys[i]))):
        given = [x if d == 0 else x[0] for x, d in zip((weights, ys), in_dims, strict=True)]
        found = torch.func.vmap(gradient, in_dims=in_dims)(*given)
        for i in range(3):
            W, y = (x.clone().requires_grad_() for x in of(i))
            wanted = torch.autograd.grad(value(W, y, "all"), (W, y))
            assert max(relative(a[i].detach(), b) for a, b in zip(found, wanted, strict=True)) <= 1e-10


@pytest.mark.parametrize("memory", EVERY)
def test_forward_mode(memory):
    net, y, v = Net(), start().detach(), torch.ones(2, 3, dtype=torch.float64)
    end = lambda y: snt.odeint_adjoint(net, y, TIMES, method="rk4", memory=EVERY[memory])[-1]
    with torch.autograd.forward_ad.dual_level():
        moved = torch.autograd.forward_ad.unpack_dual(end(torch.autograd.forward_ad.make_dual(y, v))).tangent
    assert torch.allclose(moved, torch.func.jvp(end, (y,), (v,))[1], rtol=1e-10)


# ---- graphs of users ------------------------------------------------------------------------------------------------


def test_a_graph_that_is_kept_gives_the_same_gradient_twice(block):
    _, y0, run = solver("rk4", "3 slots")
    value = loss(run(y0))
    first, second = (torch.autograd.grad(value, y0, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_solves_one_after_the_other_with_the_same_weights(block):
    """The state of the second depends on the weights, too, and that part belongs to the first alone."""
    found = []
    for memory in ("3 slots", "all"):
        net, y0, run = solver("rk4", memory)
        (first,) = torch.autograd.grad(loss(run(run(y0)[-1])), net.W, create_graph=True)
        found += [first.detach(), torch.autograd.grad(first.square().sum(), net.W)[0]]
    assert relative(found[0], found[2]) <= EXACT
    assert relative(found[1], found[3]) <= EXACT


def test_third_derivatives_are_refused():
    _, y0, run = solver("rk4", "3 slots")
    (first,) = torch.autograd.grad(loss(run(y0)), y0, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), y0, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


@pytest.mark.parametrize("memory", BOUNDED)
def test_a_loss_that_is_not_a_number(memory):
    _, y0, run = solver("rk4", memory)
    with pytest.raises(ValueError, match=r"gradient of the loss .* NaN"):
        (loss(run(y0)) * torch.nan).backward()


@pytest.mark.parametrize("memory", ["al", 0, True, 1.5, None, snt.Checkpoints(slots=2, disk="somewhere")])
def test_bad_memory(memory):
    with pytest.raises(ValueError, match="`memory` must be one of 'auto', 'all', 'reversible', 'continuous'"):
        snt.odeint_adjoint(Net(), start(), TIMES, memory=memory)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
def test_checkpoints_and_compilers():
    """A compiled field is welcome; around a solve the graph is broken there, and one whole graph is refused."""
    net, y0 = Net(), start()
    solve = lambda field, y0: loss(
        snt.odeint_adjoint(field, y0, TIMES, method="rk4", adjoint_params=(net.W, net.b), memory=snt.Checkpoints(2))
    )
    wanted = torch.autograd.grad(solve(net, y0), (y0, net.W))
    inside = solve(torch.compile(net, backend="aot_eager"), y0)
    around = torch.compile(partial(solve, net), backend="aot_eager")(y0)
    for value in (inside, around):
        found = torch.autograd.grad(value, (y0, net.W))
        assert max(relative(a, b) for a, b in zip(found, wanted, strict=True)) <= EXACT
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(partial(solve, net), fullgraph=True, backend="eager")(y0)


# ---- random numbers and autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", BOUNDED)
def test_dropout_draws_the_same_numbers_again(memory, block):
    y0, found = start(), []
    field = lambda t, y: torch.nn.functional.dropout(y.sin(), 0.5)
    for chosen in ("all", BOUNDED[memory]):
        torch.manual_seed(7)
        y = snt.odeint_adjoint(field, y0, TIMES, method="rk4", adjoint_params=(), memory=chosen)
        before = torch.get_rng_state()
        (first,) = torch.autograd.grad(loss(y), y0, create_graph=True)
        found.append((first.detach(), torch.autograd.grad(first.sum(), y0)[0]))
        assert torch.equal(before, torch.get_rng_state())
    assert max(relative(a, b) for a, b in zip(*found, strict=True)) <= EXACT


def test_dropout_in_steps_that_are_undone(short_blocks):
    """Other numbers would be drawn, which the reconstructed state shows."""
    q0, found = start(), []
    field = snt.SecondOrder(lambda t, q: -torch.nn.functional.dropout(q, 0.5))
    for memory in ("all", "reversible"):
        torch.manual_seed(7)
        y = snt.odeint_adjoint(field, (q0, q0), TIMES, method="verlet", adjoint_params=(), memory=memory)
        if memory == "reversible":
            with pytest.warns(AdjointWarning, match="missed the beginning"):
                found.append(torch.autograd.grad(loss(y), q0)[0])
        else:
            found.append(torch.autograd.grad(loss(y), q0)[0])
    assert relative(*found) <= EXACT


@pytest.mark.parametrize("memory", BOUNDED)
def test_autocast_is_the_same_on_the_way_back(memory, block):
    """The gradient is taken outside of autocast, as users do."""
    net, y0, found = torch.nn.Linear(3, 3), start().detach().float().requires_grad_(), []
    for chosen in ("all", BOUNDED[memory]):
        with torch.autocast("cpu", torch.bfloat16):
            y = snt.odeint_adjoint(
                lambda t, y: net(y).float(), y0, TIMES.float(), method="rk4",
                adjoint_params=tuple(net.parameters()), memory=chosen,
            )  # fmt: skip
        found.append(torch.autograd.grad(loss(y), (y0, net.weight)))
    assert relative(found[1][0], found[0][0]) < 1e-6  # float32
    assert relative(found[1][1], found[0][1]) < 1e-2  # sums of bfloat16 gradients in another order
