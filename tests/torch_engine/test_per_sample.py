"""Batches with per-sample step sizes: samples do not influence each other, and failures stay isolated."""

from __future__ import annotations

import pytest
import torch

import stepnet as sn
import stepnet.torch as snt
from stepnet.errors import UnknownName
from stepnet.schemes.capabilities import is_adaptive
from stepnet.solution import Status
from stepnet.torch.methods import find_scheme

torch.set_num_threads(1)

PAIRS = [scheme.name for scheme in sn.schemes.find(pair=True)]
TIGHT = {"rtol": 1e-9, "atol": 1e-11}
REACHED = 1e-7  # some thirty steps, each with an error of 1e-9 relative to states near 3
OPTIMISTIC = {"kencarp5": 3.0}  # its estimate is several times smaller than the error
SAME_STEPS = 1e-9  # relative; errors of steps are differences, so rounding in them is amplified
T = torch.linspace(0.1, 2.0, 7, dtype=torch.float64)


def batch(n: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return 0.5 + torch.rand(n, *shape, dtype=torch.float64, generator=generator)


def decay(t, y):
    return -y * torch.cos(t)


def exact(t, y0):
    """(batch, times, *shape)."""
    factor = torch.exp(torch.sin(t[..., :1]) - torch.sin(t)).expand(len(y0), -1)
    return y0[:, None] * factor.reshape(*factor.shape, *[1] * (y0.ndim - 1))


def lorenz(t, y):
    a, b, c = y.unbind(-1)
    return torch.stack((10.0 * (b - a), a * (28.0 - c) - b, a * b - 8.0 / 3.0 * c), -1)


# ---- right ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PAIRS if is_adaptive(find_scheme(name))])  # by torchdiffeq's names
@pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])
def test_closed_form_with_every_pair(name, t):
    y0 = batch(5, 3)
    solution = snt.solve(decay, y0, t, method=name, **TIGHT)
    assert solution.status == [Status.COMPLETED] * 5
    assert torch.allclose(solution.y, exact(t, y0), rtol=0, atol=REACHED * OPTIMISTIC.get(name, 1.0))
    assert torch.equal(solution.y[:, -1], solution.y_end)
    assert torch.equal(solution.t_end, t[-1].expand(5))


@pytest.mark.parametrize("controller", ["I", "PI", "PID"])
@pytest.mark.parametrize("name", ["dopri5", "dop853", "bosh3", "cash_karp"])
def test_a_sample_makes_the_steps_it_makes_alone_in_odeint(name, controller):
    y0, t = torch.tensor([[1.0, 2.0, 20.0]], dtype=torch.float64), torch.tensor([0.0, 0.3, 0.5], dtype=torch.float64)
    how = {"rtol": 1e-6, "atol": 1e-8, "method": name, "options": {"controller": controller}}
    solution, wanted = snt.solve(lorenz, y0, t, **how), snt.odeint(lorenz, y0, t, **how)
    assert torch.allclose(solution.y[0], wanted[:, 0], rtol=SAME_STEPS)


@pytest.mark.parametrize("shape", [(), (3,), (40,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_shapes_and_dtypes(shape, dtype):
    y0 = batch(4, *shape).to(dtype)
    solution = snt.solve(decay, y0, T, rtol=1e-5, atol=1e-6)
    assert solution.y.dtype == dtype
    assert torch.allclose(
        solution.y, exact(T, y0.to(torch.promote_types(dtype, torch.float64))).to(dtype), rtol=1e-4, atol=1e-4
    )


def test_tuples_of_tensors():
    y0 = (batch(4, 3), batch(4), batch(4, 2, 2))
    column = lambda t, part: t.reshape(-1, *[1] * (part.ndim - 1))
    solution = snt.solve(lambda t, y: tuple(decay(column(t, part), part) for part in y), y0, T, **TIGHT)
    for part, end, start in zip(solution.y, solution.y_end, y0, strict=True):
        assert torch.allclose(part, exact(T, start), rtol=0, atol=REACHED)
        assert torch.equal(end, part[:, -1])


def test_every_sample_has_times_of_its_own():
    y0, t = batch(3, 2), torch.stack((T, 2 * T, T.flip(0).neg()))
    assert torch.allclose(snt.solve(decay, y0, t, **TIGHT).y, exact(t, y0), rtol=0, atol=REACHED)


def test_many_times_inside_one_step():
    y0, t = batch(3, 2), torch.linspace(0.0, 1.0, 300, dtype=torch.float64)
    solution = snt.solve(decay, y0, t, method="dop853", **TIGHT)
    assert int(solution.accepted.max()) < 20
    assert torch.allclose(solution.y, exact(t, y0), rtol=0, atol=REACHED)


@pytest.mark.parametrize("name", ["dopri5", "cash_karp", "dop853"])
@pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])
def test_solutions_at_any_time(name, t):
    y0, other = batch(4, 2).requires_grad_(), torch.linspace(0.1, 2.0, 23, dtype=torch.float64)
    solution = snt.solve(decay, y0, t, method=name, dense=True, **TIGHT)
    wanted = exact(torch.cat((t[:1], other)), y0)[:, 1:]
    assert torch.allclose(solution.at(other), wanted, rtol=0, atol=REACHED)
    slopes = [torch.autograd.grad(y.sum(), y0, retain_graph=True)[0] for y in (solution.at(other), wanted)]
    assert torch.allclose(*slopes, rtol=1e-6)
    with torch.no_grad():
        assert torch.allclose(snt.solve(decay, y0, t, method=name, dense=True, **TIGHT).at(other), wanted, atol=REACHED)
    assert solution.at(torch.tensor([0.05, 2.05], dtype=torch.float64)).isnan().all()


def test_solutions_at_any_time_end_at_events():
    y0 = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    solution = snt.solve(
        ball, y0, torch.tensor([0.0, 2.0]).double(), event_fn=lambda t, y: y[:, 0], dense=True, **TIGHT
    )
    t = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    height, fallen = solution.at(t)[..., 0], y0[:, :1] - 0.5 * 9.81 * t**2
    assert torch.equal(height.isnan(), fallen < 0)
    assert torch.allclose(height[fallen > 0], fallen[fallen > 0])


def test_tolerances_and_norms_of_every_sample():
    y0, rtol = batch(2, 3)[:1].repeat(2, 1), torch.tensor([[1e-3], [1e-9]], dtype=torch.float64)
    solution = snt.solve(decay, y0, T, rtol=rtol, atol=1e-12)
    loose, strict = solution.accepted.tolist()
    assert strict > 3 * loose
    largest = snt.solve(decay, y0, T, options={"norm": lambda x: x.abs().amax(1)}, **TIGHT)
    assert torch.allclose(largest.y, exact(T, y0), rtol=0, atol=REACHED)


def test_tolerances_and_norms_of_tuples():
    """Tolerances of a part that is easy change nothing; a norm sees the tuple."""
    y0, seen = (batch(3, 2), batch(3)), []
    fun = lambda t, y: (decay(t, y[0]), 0 * y[1])
    strict = snt.solve(fun, y0, T, rtol=(1e-9, 1e-1), atol=(1e-11, 1e-1))
    assert torch.allclose(strict.y[0], exact(T, y0[0]), rtol=0, atol=REACHED)
    assert torch.equal(strict.accepted, snt.solve(decay, y0[0], T, **TIGHT).accepted)
    norm = lambda parts: (seen.append([part.shape for part in parts]), parts[0].abs().amax(1))[1]
    snt.solve(fun, y0, T, options={"norm": norm})
    assert seen[0] == [(3, 2), (3,)]


def test_fields_in_half_precision_with_sums_in_single():
    seen = []
    fun = lambda t, y: (seen.append((t.dtype, y.dtype)), -y)[1]
    y0 = batch(3, 2).float()
    y = snt.solve(fun, y0, T.float(), rtol=1e-2, atol=1e-2, options={"field_dtype": torch.bfloat16}).y
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert y.dtype == torch.float32
    assert torch.allclose(y[:, -1], y0 * torch.exp(T[0] - T[-1]).float(), rtol=2 * 2.0**-8, atol=0)


# ---- nobody feels the others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("name", ["dopri5", "dop853", "bosh3"])
def test_a_sample_does_not_depend_on_the_batch_bit_for_bit(name, n):
    y0, t = 5 * batch(257, 3), torch.tensor([0.0, 0.4, 0.9, 1.5], dtype=torch.float64)
    chosen = torch.randperm(257, generator=torch.Generator().manual_seed(n))[:n]
    whole, part = (snt.solve(lorenz, y, t, method=name, rtol=1e-5, atol=1e-6) for y in (y0, y0[chosen]))
    assert torch.equal(part.y, whole.y[chosen])
    assert torch.equal(part.accepted, whole.accepted[chosen])
    assert torch.equal(part.rejected, whole.rejected[chosen])


def test_failures_leave_others_alone():
    """y' = y^2 ends at t = 1 / y0; one sample is not a number from the start."""
    y0, t = (
        torch.tensor([[1.0], [-1.0], [0.5], [torch.nan]], dtype=torch.float64),
        torch.tensor([0.0, 0.5, 1.5]).double(),
    )
    solution = snt.solve(lambda t, y: y * y, y0, t, **TIGHT)
    assert solution.failed.tolist() == [True, False, False, True]
    assert solution.status[1:] == [Status.COMPLETED, Status.COMPLETED, Status.NOT_FINITE]
    assert solution.status[0] in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert abs(float(solution.t_end[0]) - 1.0) < 1e-6
    assert solution.y[0, :2, 0].tolist() == pytest.approx([1.0, 2.0])
    assert bool(solution.y[0, 2].isnan())
    alone = snt.solve(lambda t, y: y * y, y0[1:3], t, **TIGHT)
    assert torch.equal(alone.y, solution.y[1:3])


def test_gradients_beside_a_failure():
    y0 = torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float64, requires_grad=True)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    solution = snt.solve(lambda t, y: weight * y * y, y0, torch.tensor([0.0, 0.5, 1.5]).double(), **TIGHT)
    y = solution.y[~solution.failed][:, -1]
    slope, by_weight = torch.autograd.grad(y.sum(), (y0, weight))
    wanted = 1 / (1 - 1.5 * y0[1:].detach()) ** 2
    assert float(slope[0]) == 0.0
    assert torch.allclose(slope[1:], wanted, rtol=1e-6)
    assert float(by_weight) == pytest.approx(float((1.5 * y0.detach()[1:] ** 2 * wanted).sum()), rel=1e-6)


def test_the_number_of_steps_is_limited():
    y0 = torch.tensor([[0.1], [30.0]], dtype=torch.float64)
    solution = snt.solve(lambda t, y: -y * y * y, y0, T, options={"max_num_steps": 50}, **TIGHT)
    assert solution.status == [Status.COMPLETED, Status.STEP_LIMIT]
    assert int(solution.accepted[1] + solution.rejected[1]) == 50


def test_longest_and_first_steps():
    y0 = batch(2, 2)
    short = snt.solve(decay, y0, T, options={"max_step": 0.01, "first_step": 0.005}, **TIGHT)
    assert int(short.accepted.min()) >= 190
    assert torch.allclose(short.y, exact(T, y0), rtol=0, atol=REACHED)


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dopri5", "dop853", "cash_karp", "bosh3"])
def test_gradcheck(name):
    y0, rate = batch(3, 2).requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    run = lambda y, rate: snt.solve(lambda t, y: -rate * torch.sin(y) * torch.cos(t), y, T[::2], method=name, **TIGHT).y
    assert torch.autograd.gradcheck(run, (y0, rate), fast_mode=True)


def test_values_are_those_without_gradients():
    y0, t = 5 * batch(20, 3), torch.tensor([0.0, 0.4, 0.9, 1.5], dtype=torch.float64)
    plain = snt.solve(lorenz, y0, t, **TIGHT)
    followed = snt.solve(lorenz, y0.clone().requires_grad_(), t, **TIGHT)
    assert torch.allclose(followed.y, plain.y, rtol=SAME_STEPS)
    assert torch.equal(followed.accepted, plain.accepted)


# ---- events ---------------------------------------------------------------------------------------------------------


def ball(t, y):
    return torch.stack((y[:, 1], torch.full_like(y[:, 0], -9.81)), 1)


@pytest.mark.parametrize("name", ["dopri5", "cash_karp"])
def test_every_sample_has_an_event_of_its_own(name):
    y0 = torch.tensor([[1.0, 0.0], [2.0, 0.0], [30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    solution = snt.solve(ball, y0, t, event_fn=lambda t, y: y[:, 0], method=name, **TIGHT)
    assert solution.status == [Status.EVENT, Status.EVENT, Status.COMPLETED]
    impact = torch.sqrt(2 * y0[:2, 0] / 9.81)
    assert torch.allclose(solution.t_end[:2], impact, rtol=1e-9)
    found, wanted = (
        torch.autograd.grad(x.sum(), y0, retain_graph=True)[0][:2, 0] for x in (solution.t_end[:2], impact)
    )
    assert torch.allclose(found, wanted, rtol=1e-7)
    speed = torch.autograd.grad(solution.y_end[:2, 1].sum(), y0)[0][:2, 0]
    assert torch.allclose(speed, -9.81 * wanted, rtol=1e-7)
    assert solution.y[0].isnan().all(1).tolist() == [False, False, True, True, True]
    assert float(solution.y[1, 2, 0].detach()) == pytest.approx(2.0 - 0.5 * 9.81 * 0.25)


def test_the_first_of_several_events_backward():
    y0 = torch.tensor([[1.0, 2.0], [4.0, 8.0]], dtype=torch.float64)
    t = torch.tensor([0.0, -9.0], dtype=torch.float64)
    solution = snt.solve(lambda t, y: y, y0, t, event_fn=lambda t, y: y - 0.5, **TIGHT)
    assert torch.allclose(solution.t_end, -torch.log(2 * y0[:, 0]), rtol=1e-8)


# ---- bad input ------------------------------------------------------------------------------------------------------

WRONG = {
    "no batch": ({"y0": torch.tensor(1.0)}, TypeError, r"`y0` must be a tensor \(batch, \*shape\)"),
    "two batches": ({"y0": (batch(2), batch(3))}, ValueError, "one batch of samples"),
    "times turn": ({"t": torch.tensor([0.0, 1.0, 0.5])}, ValueError, "`t` must be strictly"),
    "one time": ({"t": T[:1]}, ValueError, "two times at least"),
    "times of others": ({"t": T.expand(4, 7)}, ValueError, r"\(2, times\)"),
    "times elsewhere": ({"t": T.to("meta")}, ValueError, "`t` must be on cpu"),
    "times as a list": ({"t": [0.0, 1.0]}, TypeError, "`t` must be a floating-point tensor"),
    "times with gradients": ({"t": T.clone().requires_grad_()}, ValueError, "`t` must not require a gradient"),
    "method": ({"method": "rk4"}, ValueError, "`method` must be a pair"),
    "given steps": ({"options": {"step_size": 0.1}}, ValueError, "`method` must be a pair"),
    "option": ({"options": {"maximum_step": 0.1}}, UnknownName, "'max_step'"),
    "option of all": ({"options": {"jump_t": T[1:2]}}, ValueError, "use `odeint`"),
    "event": ({"event_fn": lambda t, y: y.sum()}, ValueError, "`event_fn` must return"),
    "shape": ({"func": lambda t, y: y[:, 0]}, ValueError, "`func` must return the shape"),
    "field": ({"func": snt.SecondOrder(decay)}, TypeError, "`func` must be a function"),
}


def test_a_module_that_does_not_go_with_the_state_is_named():
    class Field(torch.nn.Linear):
        def forward(self, t, y):
            return super().forward(y)

    with pytest.raises(RuntimeError) as caught:
        snt.solve(Field(2, 2), batch(3, 2), T)
    assert "`func` has parameters of torch.float32 on cpu" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named(name):
    arguments, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        snt.solve(**{"func": decay, "y0": batch(2, 2), "t": T, **arguments})
