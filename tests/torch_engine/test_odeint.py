"""`odeint` has torchdiffeq's semantics, runs without reading tensors, compiles whole, and names bad input."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import stepnet as sn
import stepnet.torch as snt
from stepnet.errors import UnknownName

torch.set_num_threads(1)

SAME = 1e-12  # the same formula in another order
BFLOAT16 = 2.0**-8  # its unit round-off
T = torch.linspace(0.0, 1.5, 7, dtype=torch.float64)
Y0 = torch.tensor([[0.8, -0.4], [0.3, 1.1]], dtype=torch.float64)


def spiral(t, y):
    return torch.stack((-0.1 * y[..., 0] ** 3 + 2.0 * y[..., 1], -2.0 * y[..., 0] - 0.1 * torch.cos(t) * y[..., 1]), -1)


def exact(t, y0):
    """y' = -y cos t."""
    return y0 * torch.exp(torch.sin(t[0]) - torch.sin(t)).reshape(-1, *[1] * y0.ndim)


def decay(t, y):
    return -y * torch.cos(t)


# ---- torchdiffeq ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "heun3", "rk4"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step_size": 0.07},
        {"step_size": 0.07, "interp": "cubic"},
        {"grid_constructor": lambda f, y, t: torch.linspace(float(t[0]), float(t[-1]), 40, dtype=t.dtype)},
    ],
    ids=["from time to time", "step size", "cubic", "grid"],
)
@pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])
def test_fixed_steps_are_those_of_torchdiffeq(method, options, t):
    theirs = pytest.importorskip("torchdiffeq")
    wanted = theirs.odeint(spiral, Y0, t, method=method, options=dict(options))
    found = snt.odeint(spiral, Y0, t, method=method, options=options)
    assert torch.allclose(found, wanted, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("method", [None, "dopri5", "bosh3", "adaptive_heun", "fehlberg2", "dopri8"])
@pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])
def test_adaptive_steps_agree_with_torchdiffeq_to_tolerance(method, t):
    theirs = pytest.importorskip("torchdiffeq")
    how = {"rtol": 1e-6, "atol": 1e-8, "method": method}
    reference = snt.odeint(spiral, Y0, t, rtol=1e-12, atol=1e-12, method="dop853")
    mistake = lambda y: float((y - reference).abs().max())
    assert mistake(snt.odeint(spiral, Y0, t, **how)) <= max(2 * mistake(theirs.odeint(spiral, Y0, t, **how)), 3e-6)


# ---- meaning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dop853", "bosh3", "verner76"])
@pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])
def test_closed_form(method, t):
    found = snt.odeint(decay, Y0, t, method=method, rtol=1e-9, atol=1e-11)
    assert torch.allclose(found, exact(t, Y0), rtol=1e-7, atol=1e-8)


def test_rk4_is_the_three_eighths_rule_and_a_scheme_is_itself():
    by_name = snt.odeint(spiral, Y0, T, method="rk4")
    assert torch.equal(by_name, snt.odeint(spiral, Y0, T, method=sn.schemes.get("rk38")))
    assert not torch.equal(by_name, snt.odeint(spiral, Y0, T, method=sn.schemes.get("rk4")))


@pytest.mark.parametrize("how", [{"method": "rk4"}, {"rtol": 1e-9, "atol": 1e-9}, {"rtol": (1e-9, 1e-7, 1e-9)}])
def test_tuples_of_tensors_of_any_shapes(how):
    y0 = (Y0, torch.tensor(2.0, dtype=torch.float64), torch.ones(3, 1, 2, dtype=torch.float64))
    found = snt.odeint(lambda t, y: tuple(decay(t, part) for part in y), y0, T, **how)
    assert [part.shape for part in found] == [(7, *part.shape) for part in y0]
    for part, start in zip(found, y0, strict=True):
        assert torch.allclose(part, exact(T, start), rtol=2e-4)


def test_a_norm_of_ones_own():
    seen = []
    norm = lambda x: (seen.append(x.shape), x.abs().max())[1]
    strict = snt.odeint(decay, Y0, T, options={"norm": norm})
    assert set(seen) == {Y0.shape}
    assert torch.allclose(strict, exact(T, Y0), rtol=1e-5)


def test_first_step_and_the_number_of_steps():
    calls = []
    fun = lambda t, y: (calls.append(float(t)), decay(t, y))[1]
    snt.odeint(fun, Y0, T, options={"first_step": 0.01})
    assert 0.01 / 5 in [pytest.approx(t) for t in calls]
    with pytest.raises(RuntimeError, match="`max_num_steps` exceeded"):
        snt.odeint(decay, Y0, T, options={"max_num_steps": 2})


def test_a_state_that_is_not_finite_is_told():
    with pytest.raises(RuntimeError, match=r"not finite|too short"):
        snt.odeint(lambda t, y: y**2, 1.0 + 0 * Y0, torch.tensor([0.0, 2.0], dtype=torch.float64))


FAMILIES = ["rk4", "dopri5", "carpenter_kennedy54", "rkl2", "ab4", "midpoint_two_step", "verlet", "strang"]
FINE = torch.linspace(0.0, 1.0, 65, dtype=torch.float64)


def oscillation(method, dtype, t=FINE, options=None):
    """q'' = -q from (1, 0), by any family; the path of q."""
    one = torch.ones(3, dtype=dtype)
    if method == "verlet":
        return snt.odeint(snt.SecondOrder(lambda t, q: -q), (one, 0 * one), t, method=method, options=options)[0]
    turn = lambda t, y: torch.stack((y[1], -y[0]))
    if method == "strang":
        first = lambda t, y: torch.stack((y[1], torch.zeros_like(y[0])))
        parts = snt.Split((first, lambda t, y: turn(t, y) - first(t, y)))
        return snt.odeint(parts, torch.stack((one, 0 * one)), t, method=method, options=options)[:, 0]
    return snt.odeint(turn, torch.stack((one, 0 * one)), t, method=method, options=options)[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("method", FAMILIES)
def test_the_dtype_is_that_of_the_state_in_every_family(method, dtype):
    found = oscillation(method, dtype)
    assert found.dtype == dtype
    largest = 0.84 / 6 / 64**2  # c h^2 t sin t with the error constant c = 1/6 of midpoint_two_step
    assert torch.allclose(found.real.double(), torch.cos(FINE)[:, None].expand(-1, 3), rtol=0, atol=1.5 * largest)
    wanted, is_single = oscillation(method, torch.float64), found.real.dtype == torch.float32
    assert torch.allclose(found.real.double(), wanted, rtol=0, atol=64 * 2.0**-24 if is_single else 1e-14)


@pytest.mark.parametrize("method", FAMILIES)
def test_bfloat16_fields_with_sums_in_single_in_every_family(method):
    """Sums in bfloat16 would lose a step of 1/64 times a slope below 1/4."""
    options = {"field_dtype": torch.bfloat16} | ({"step_size": 1 / 64} if method == "dopri5" else {})
    found = oscillation(method, torch.float32, options=options)
    assert found.dtype == torch.float32
    at_random = BFLOAT16 / 64**0.5  # 64 slopes of size one, each rounded by itself
    assert torch.allclose(found.double(), torch.cos(FINE)[:, None].expand(-1, 3), rtol=0, atol=2 * at_random)


def test_states_in_bfloat16():
    found = snt.odeint(decay, Y0.bfloat16(), T, method="rk4")
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), exact(T, Y0), rtol=4 * BFLOAT16, atol=0)  # the start and six steps


def test_fields_in_half_precision_with_sums_in_single():
    """10^3 steps of a slope near 1e-3 y: sums in bfloat16 would lose every one of them."""
    t = torch.linspace(0.0, 1.0, 1001)
    seen = []
    fun = lambda t, y: (seen.append((t.dtype, y.dtype)), -y)[1]
    y0 = torch.ones(4)
    found = snt.odeint(fun, y0, t, method="euler", options={"field_dtype": torch.bfloat16})[-1]
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert found.dtype == torch.float32
    at_random = BFLOAT16 / 1000**0.5  # 1000 slopes, each rounded by itself
    assert torch.allclose(found.double(), torch.full((4,), 0.999**1000).double(), rtol=at_random, atol=0)
    assert torch.equal(snt.odeint(lambda t, y: -y, y0.bfloat16(), t, method="euler")[-1], y0.bfloat16())


@pytest.mark.parametrize(("name", "order"), [("verlet", 2), ("yoshida4", 4), ("leapfrog_two_step", 2)])
def test_problems_in_halves(name, order):
    """A pendulum, whose energy a symplectic scheme keeps."""
    q0, p0 = torch.linspace(0.2, 1.0, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    field = snt.SecondOrder(lambda t, q: -torch.sin(q))
    q, p = snt.odeint(field, (q0, p0), torch.linspace(0.0, 50.0, 2001, dtype=torch.float64), method=name)
    energy = 0.5 * p**2 - torch.cos(q)
    assert 0.01 < float((energy - energy[0]).abs().max()) / 0.025**order < 0.2


# ---- no values are read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rk4", "carpenter_kennedy54", "rkl2", "ab4", "midpoint_two_step"])
def test_states_without_values(name):
    """On the meta device `.item()`, `.cpu()` and `bool()` of a tensor raise."""
    y0, t = torch.empty(16, 2, device="meta"), torch.empty(7, device="meta")
    assert snt.odeint(spiral, y0, t, method=name).shape == (7, 16, 2)


@pytest.mark.parametrize("name", ["verlet", "yoshida4", "strang", "leapfrog_two_step"])
def test_halves_without_values(name):
    force = lambda t, q: -torch.sin(q) * torch.cos(t)
    y0, t = torch.empty(16, device="meta"), torch.empty(7, device="meta")
    q, p = snt.odeint(snt.SecondOrder(force), (y0, y0), t, method=name)
    assert (q.shape, p.shape) == ((7, 16), (7, 16))


def test_fake_tensors():
    with FakeTensorMode():
        found = snt.odeint(spiral, torch.empty(4, 2), torch.linspace(0, 1, 5), method="rk4")
    assert found.shape == (5, 4, 2)


@pytest.mark.parametrize(
    "name", ["rk4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rkl2", "ab4", "carpenter_kennedy54"))]
)
def test_a_solve_compiles_whole(name):
    net = torch.nn.Linear(2, 2, dtype=torch.float64)
    solve = lambda y, t: snt.odeint(lambda t, y: torch.tanh(net(y)) * torch.cos(t), y, t, method=name)
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")
    y0 = Y0.clone().requires_grad_()
    found, wanted = compiled(y0, T), solve(y0, T)
    assert torch.allclose(found, wanted, rtol=SAME)
    slopes = [torch.autograd.grad(y[-1].sum(), (y0, net.weight)) for y in (found, wanted)]
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(*slopes, strict=True))


def test_two_schemes_in_one_compiled_function():
    field = snt.Partitioned(lambda t, p: p, lambda t, q: -torch.sin(q) * torch.cos(t))

    def solve(y, t):
        q, p = snt.odeint(field, (y, y), t, method="yoshida4")
        return snt.odeint(spiral, q[-1], t, method="ab3") + snt.odeint(field, (q[-1], p[-1]), t, method="verlet")[1]

    assert torch.allclose(torch.compile(solve, fullgraph=True, backend="eager")(Y0, T), solve(Y0, T), rtol=SAME)


# ---- bad input ------------------------------------------------------------------------------------------------------

META = torch.empty(2, 2, device="meta", dtype=torch.float64)
WRONG = {
    "times that turn": ({"t": torch.tensor([0.0, 1.0, 0.5])}, ValueError, "`t` must be strictly"),
    "times that stand still": ({"t": torch.tensor([0.0, 0.0])}, ValueError, "`t` must be strictly"),
    "times as a list": ({"t": [0.0, 1.0]}, TypeError, "`t` must be a tensor"),
    "whole times": ({"t": torch.arange(3)}, ValueError, "`t` must be floating-point"),
    "times elsewhere": ({"t": T.to("meta")}, ValueError, "`t` must be on cpu"),
    "whole state": ({"y0": torch.arange(3)}, TypeError, "`y0` must hold floating-point"),
    "state as a list": ({"y0": [1.0]}, TypeError, "`y0` must be a tensor or a tuple"),
    "state that is not finite": ({"y0": Y0 / 0.0}, ValueError, "`y0` must be finite"),
    "two devices": ({"y0": (Y0, META)}, ValueError, "tensors on one device, found cpu and meta"),
    "not finite": ({"func": lambda t, y: y / 0.0}, RuntimeError, "`func` gives values that are not finite"),
    "not finite later": ({"func": lambda t, y: y * torch.sqrt(1 - t)}, RuntimeError, "`func` gives values"),
    "times that are not numbers": ({"t": T / 0.0}, ValueError, "`t` must be finite"),
    "shapes": ({"y0": (Y0, Y0), "func": lambda t, y: (y[0], y[0][0])}, ValueError, "`func` must return tensors of the"),
    "no function": ({"func": 3}, TypeError, "`func` must be a function"),
    "shape": ({"func": lambda t, y: y[0]}, ValueError, r"shape \(2, 2\) of the state, found \(2,\)"),
    "dtype": ({"func": lambda t, y: y.float()}, TypeError, "torch.float64 as the state is, found torch.float32"),
    "device": ({"func": lambda t, y: META}, ValueError, "on cpu, where the state is, found meta"),
    "nothing": ({"func": lambda t, y: None}, TypeError, "must return a tensor, found NoneType"),
    "method": ({"method": "dopri4"}, UnknownName, "no method 'dopri4'; did you mean .*'dopri5'"),
    "option": ({"options": {"step_sizes": 0.1}}, UnknownName, "no option .* 'step_sizes'"),
    "option of others": ({"method": "rk4", "options": {"first_step": 0.1}}, UnknownName, "fixed steps of rk38"),
    "options": ({"options": [1]}, TypeError, "`options` must be a dictionary"),
    "step size": ({"method": "rk4", "options": {"step_size": -0.1}}, ValueError, "`step_size` must be positive"),
    "both": ({"method": "rk4", "options": {"step_size": 1, "grid_constructor": 1}}, ValueError, "exclude each other"),
    "interp": ({"method": "rk4", "options": {"step_size": 1, "interp": "spline"}}, UnknownName, "no interpolation"),
    "rtol": ({"rtol": -1e-3}, ValueError, "`rtol` must not be negative"),
    "splitting": ({"method": "verlet"}, TypeError, "use `Partitioned`"),
    "second order": ({"method": "leapfrog_two_step"}, TypeError, "use `SecondOrder`"),
    "halves": ({"func": snt.Partitioned(decay, decay), "method": "verlet"}, TypeError, r"two tensors \(q, p\)"),
    "uneven": ({"method": "ab4", "t": T**2}, ValueError, "equal steps"),
    "event": ({"method": "rk4", "t": T[:2], "event_fn": lambda t, y: y}, ValueError, "`event_fn` .* needs `step_size`"),
    "stops": ({"options": {"step_t": T[1:3], "jump_t": T[2:4]}}, ValueError, "`step_t` and `jump_t` must not share"),
    "times of an event": ({"event_fn": lambda t, y: y}, ValueError, "the first time and one that shows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named(name):
    arguments, kind, message = WRONG[name]
    arguments = {"func": decay, "y0": Y0, "t": T, **arguments}
    with pytest.raises(kind, match=message):
        snt.odeint(**arguments)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
@pytest.mark.parametrize("net", [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, dtype=torch.float64, device="meta")])
def test_a_module_that_does_not_go_with_the_state_is_named(method, net):
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, t, y):
            return self.net(y)

    with pytest.raises(RuntimeError) as caught:
        snt.odeint(Field(), Y0, T, method=method)
    where = f"{net.weight.dtype} on {net.weight.device}"
    assert caught.value.__notes__ == [f"`func` has parameters of {where}, `y0` is torch.float64 on cpu"]


def test_neither_package_loads_what_it_does_not_need():
    code = (
        "import sys, stepnet; assert 'torch' not in sys.modules;import stepnet.torch; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
