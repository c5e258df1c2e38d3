"""Gradients in every `memory` under transformations, in graphs of users, and with the same random numbers again."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from gradients.cases import relative
from torch_engine.networks import BOUNDED, EXACT, TIMES, Net, loss, solver, start

import stepnet.torch as snt
from stepnet.errors import AdjointWarning

torch.set_num_threads(1)

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


@pytest.mark.parametrize("memory", [*BOUNDED, "continuous"])
def test_third_derivatives_are_refused(memory):
    """By whomever they are asked for, and only then."""
    net, y0, run = solver("rk4", memory)
    (first,) = torch.autograd.grad(loss(run(y0)), y0, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), (y0, net.W), create_graph=True)
    for each in second:
        for inputs in (y0, net.b):
            with pytest.raises(RuntimeError, match='`memory`="all"'):
                torch.autograd.grad(each.square().sum(), inputs, retain_graph=True)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("memory", BOUNDED)
def test_gradients_that_are_not_finite_pass(memory, number):
    """Those who scale their loss look for them; nobody waits for a device to look at them."""
    net, y0, run = solver("rk4", memory)
    optimiser, scaler = torch.optim.SGD([net.W], 0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    before = net.W.detach().clone()
    scaler.scale(loss(run(y0)) * number).backward()
    scaler.step(optimiser)
    scaler.update()
    assert torch.equal(net.W, before)
    assert scaler.get_scale() == 2.0


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
    plain = lambda y0: loss(snt.odeint_adjoint(net, y0, TIMES, method="rk4", memory="all"))
    whole = torch.autograd.grad(torch.compile(plain, fullgraph=True, backend="aot_eager")(y0), (y0, net.W))
    assert max(relative(a, b) for a, b in zip(whole, wanted, strict=True)) <= EXACT
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
            with pytest.warns(AdjointWarning, match="missed the initial state"):
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
