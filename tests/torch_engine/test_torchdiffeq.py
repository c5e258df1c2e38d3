"""Options, callbacks and events have the same meaning as in torchdiffeq."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torchdiffeq

import stepnet.torch as snt

torch.set_num_threads(1)

SAME = 1e-12  # the same formula in another order
CLOSE = 1e-7  # both solve to tighter tolerances
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
T = torch.linspace(0.0, 1.5, 7, dtype=torch.float64)
Y0 = torch.tensor([[0.8, -0.4], [0.3, 1.1]], dtype=torch.float64)
JUMP = 0.625
BOTH = [torchdiffeq, snt]
BY_NAME = {"ids": ["torchdiffeq", "stepnet"]}
DIRECTIONS = pytest.mark.parametrize("t", [T, T.flip(0)], ids=["forward", "backward"])


def spiral(t, y):
    return torch.stack((-0.1 * y[..., 0] ** 3 + 2.0 * y[..., 1], -2.0 * y[..., 0] - 0.1 * torch.cos(t) * y[..., 1]), -1)


def switched(t, y):
    """y' jumps at t = JUMP; its value there is that of neither side."""
    return torch.where(t < JUMP, 1.0, torch.where(t > JUMP, -2.0, 1e3)) * y


def switched_end(t, y0):
    """For t that go beyond JUMP from 0, or from 1.5 on backward."""
    growth = lambda t: torch.where(t < JUMP, t, JUMP - 2.0 * (t - JUMP))
    return y0 * torch.exp(growth(t) - growth(t[0])).reshape(-1, 1, 1)


class Watched(torch.nn.Module):
    """Remembers what its callbacks are told."""

    def __init__(self, fun, names):
        super().__init__()
        self.fun, self.told = fun, []
        for name in names:
            setattr(self, name, lambda t, y, h, name=name: self.told.append((name, float(t), y, float(h))))

    def forward(self, t, y):
        self.told.append(("call", float(t)))
        return self.fun(t, y)

    def times(self, name):
        return [told[1] for told in self.told if told[0] == name]


# ---- options of adaptive steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step_t", "jump_t"])
@DIRECTIONS
def test_steps_end_where_they_are_told_to(name, t):
    stops = torch.tensor([0.2, 0.33, JUMP, 1.1], dtype=torch.float64)
    starts = {}
    for package in BOTH:
        fun = Watched(spiral, ["callback_accept_step"])
        package.odeint(fun, Y0, t, rtol=1e-3, atol=1e-4, options={name: stops}, method="dopri5")
        starts[package] = fun.times("callback_accept_step")
        assert set(stops.tolist()) <= set(starts[package])


@DIRECTIONS
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_jumps_are_taken_on_both_sides(t, interface):
    how = {"adjoint_params": ()} if interface == "odeint_adjoint" else {}
    options = {"jump_t": torch.tensor([JUMP], dtype=torch.float64)}
    for package in BOTH:
        y0 = Y0.clone().requires_grad_()
        found = getattr(package, interface)(switched, y0, t, method="dopri5", options=options, **TIGHT, **how)
        assert torch.allclose(found, switched_end(t, Y0), rtol=CLOSE)
        (slope,) = torch.autograd.grad(found[-1].sum(), y0)
        assert torch.allclose(slope, switched_end(t, Y0)[-1] / Y0, rtol=1e-5)


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dop853", "bosh3", "cash_karp", "verner76"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jumps_with_every_kind_of_pair(method, dtype):
    options = {"jump_t": torch.tensor([JUMP], dtype=torch.float64)}
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    found = snt.odeint(switched, Y0.to(dtype), T, method=method, options=options, rtol=tolerance, atol=tolerance)
    assert torch.allclose(found.double(), switched_end(T, Y0), rtol=100 * tolerance)


def test_older_names_of_stops():
    points = torch.tensor([JUMP], dtype=torch.float64)
    for old, new in (({"grid_points": points, "eps": 1e-6}, "jump_t"), ({"grid_points": points}, "step_t")):
        found, wanted = (snt.odeint(spiral, Y0, T, options=options) for options in (old, {new: points}))
        assert torch.equal(found, wanted)


def test_shortest_steps_are_accepted_whatever_their_error():
    lengths = {}
    for package in BOTH:
        fun = Watched(spiral, ["callback_accept_step", "callback_reject_step"])
        package.odeint(fun, Y0, T, rtol=1e-9, atol=1e-10, options={"min_step": 0.25}, method="dopri5")
        assert not fun.times("callback_reject_step")
        lengths[package] = [told[3] for told in fun.told if told[0] == "callback_accept_step"]
    assert min(lengths[torchdiffeq]) == min(lengths[snt][:-1]) == 0.25  # our last step ends at the last time


def test_longest_steps():
    for package in BOTH:
        fun = Watched(spiral, ["callback_step"])
        package.odeint(fun, Y0, T, rtol=1e-3, atol=1e-3, options={"max_step": 0.05}, method="dopri5")
        assert max(told[3] for told in fun.told if told[0] == "callback_step") <= 0.05
        assert len(fun.times("callback_step")) >= 30


def test_the_number_of_steps_counts_from_time_to_time():
    options = {"max_num_steps": 25, "max_step": 0.011}  # 23 steps between two times, and 137 in all
    for package in BOTH:
        package.odeint(spiral, Y0, T, options=options, method="dopri5")
        with pytest.raises((AssertionError, RuntimeError), match="max_num_steps"):
            package.odeint(spiral, Y0, T, options=options | {"max_num_steps": 20}, method="dopri5")


@pytest.mark.parametrize(
    "options",
    [
        {"first_step": 0.05}, {"safety": 0.5}, {"ifactor": 2.0}, {"dfactor": 0.5}, {"dtype": torch.float64},
        {"norm": lambda y: y.abs().max()}, {"min_step": 1e-5, "max_step": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
@DIRECTIONS
def test_other_options_lead_to_the_same_solution(options, t):
    found, wanted = (
        p.odeint(spiral, Y0, t, method="dopri5", options=dict(options), **TIGHT) for p in (snt, torchdiffeq)
    )
    assert torch.allclose(found, wanted, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("tolerances", [{"rtol": torch.tensor(1e-8)}, {"atol": torch.tensor([1e-9, 1e-3]).double()}])
def test_tolerances_as_tensors(tolerances):
    found, wanted = (p.odeint(spiral, Y0, T, method="dopri5", **tolerances) for p in (snt, torchdiffeq))
    assert torch.allclose(found, wanted, rtol=0, atol=1e-7 if "atol" in tolerances else 1e-8)
    calls = {}
    for name, tolerance in (("loose", torch.tensor([1e-3, 1e-3])), ("mixed", torch.tensor([1e-3, 1e-12]))):
        fun = Watched(spiral, [])
        snt.odeint(fun, Y0, T, rtol=0.0, atol=tolerance.double())
        calls[name] = len(fun.told)
    assert calls["mixed"] > 2 * calls["loose"]


@pytest.mark.parametrize("method", ["dopri5", "dop853", "cash_karp"])
def test_the_solution_as_a_function_of_time(method):
    y0, wanted = Y0.clone().requires_grad_(), Y0.clone().requires_grad_()
    times = torch.linspace(0.0, 1.5, 11, dtype=torch.float64)
    ours = snt.odeint_dense(spiral, y0, T[0], T[-1], method=method, **TIGHT)
    theirs = torchdiffeq.odeint_dense(spiral, wanted, T[0], T[-1], **TIGHT)
    found, other = ours(times), torch.stack([theirs(t) for t in times[1:]])
    assert torch.allclose(found[1:], other, rtol=0, atol=CLOSE)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y, x in ((found[1:], y0), (other, wanted))]
    assert torch.allclose(*slopes, rtol=1e-5)
    assert ours(times[3]).shape == Y0.shape
    with pytest.raises(ValueError, match=r"`t` must be between 0.0 and 1.5, found \[2.0\]"):
        ours(torch.tensor(2.0))


def test_tuples_backward_as_functions_of_time():
    y0 = (Y0, torch.tensor(2.0, dtype=torch.float64))
    at = snt.odeint_dense(lambda t, y: (-y[0], y[1]), y0, T[-1], T[0], **TIGHT)
    first, second = at(T.reshape(1, -1))
    assert first.shape == (1, 7, 2, 2)
    assert torch.allclose(second[0], 2.0 * torch.exp(T - T[-1]))


# ---- given steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "heun3", "rk4"])
@DIRECTIONS
def test_perturbed_ends_of_given_steps(method, t):
    seen = {}
    for package in BOTH:
        fun = Watched(switched, [])
        options = {"perturb": True, "step_size": 0.125}
        seen[package] = package.odeint(fun, Y0, t, method=method, options=options), fun.times("call")
    assert torch.allclose(seen[snt][0], seen[torchdiffeq][0], rtol=SAME)
    assert JUMP not in seen[snt][1]
    assert JUMP in _times_without_perturbation(method, t)


def _times_without_perturbation(method, t):
    fun = Watched(switched, [])
    snt.odeint(fun, Y0, t, method=method, options={"step_size": 0.125})
    return fun.times("call")


@pytest.mark.parametrize("method", ["euler", "rk4", "midpoint"])
@DIRECTIONS
def test_callbacks_of_given_steps(method, t):
    told = {}
    for package in BOTH:
        fun = Watched(spiral, ["callback_step"])
        package.odeint(fun, Y0, t, method=method)
        told[package] = [entry[1:] for entry in fun.told if entry[0] == "callback_step"]
    assert len(told[snt]) == len(told[torchdiffeq]) == len(t) - 1
    for (time, y, h), (their_time, their_y, their_h) in zip(told[snt], told[torchdiffeq], strict=True):
        assert (time, h) == pytest.approx((their_time, their_h))
        assert torch.allclose(y, their_y, rtol=SAME)


# ---- callbacks ------------------------------------------------------------------------------------------------------

CALLBACKS = ["callback_step", "callback_accept_step", "callback_reject_step"]


@DIRECTIONS
def test_callbacks_of_adaptive_steps(t):
    for package in BOTH:
        fun = Watched(spiral, CALLBACKS)
        package.odeint(fun, Y0, t, rtol=1e-5, atol=1e-7, options={"first_step": 1.0}, method="dopri5")
        n, accepted, rejected = (fun.times(name) for name in CALLBACKS)
        assert len(n) == len(accepted) + len(rejected)
        assert rejected[0] == n[0] == accepted[0] == float(t[0])
        assert all(told[3] > 0 for told in fun.told if told[0] != "call")
        direction = float(torch.sign(t[-1] - t[0]))
        assert all(direction * (b - a) > 0 for a, b in pairwise(accepted))


def test_callbacks_of_tuples():
    for package in BOTH:
        fun = Watched(lambda t, y: (y[1], -y[0]), CALLBACKS)
        package.odeint(fun, (Y0, Y0 + 1), T, method="dopri5")
        assert all(
            isinstance(told[2], tuple) and told[2][0].shape == Y0.shape for told in fun.told if told[0] != "call"
        )


def test_steps_that_are_run_again_are_told_once():
    fun = Watched(spiral, ["callback_step"])
    y0 = Y0.clone().requires_grad_()
    y = snt.odeint_adjoint(fun, y0, T, method="rk4", adjoint_params=(), memory=snt.Checkpoints(slots=1))
    y[-1].sum().backward()
    assert fun.times("callback_step") == T[:-1].tolist()


def test_callbacks_that_cannot_be_called_are_named():
    with pytest.warns(UserWarning, match="only `callback_step` is called"):
        snt.odeint(Watched(spiral, CALLBACKS), Y0, T, method="rk4")
    with pytest.warns(UserWarning, match="callback_step_adjoint"):
        snt.odeint_adjoint(Watched(spiral, ["callback_step_adjoint"]), Y0, T, method="rk4")


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dopri5", "rk4", "explicit_adams"])
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_torchdiffeq_itself_by_name(method, interface):
    how = {"adjoint_params": ()} if interface == "odeint_adjoint" else {}
    found, wanted = (
        getattr(package, interface)(spiral, Y0, T, method=name, **how)
        for package, name in ((snt, f"torchdiffeq:{method}"), (torchdiffeq, method))
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("method", ["explicit_adams", "fixed_adams", "implicit_adams", "scipy_solver"])
def test_methods_that_torchdiffeq_runs_itself(method):
    short = {"step_size": 0.01}  # the iteration of implicit Adams methods does not converge for long steps
    chosen = {"scipy_solver": {"solver": "LSODA"}, "fixed_adams": short, "implicit_adams": short}.get(method)
    options = {} if chosen is None else {"options": chosen}
    assert torch.equal(
        snt.odeint(spiral, Y0, T, method=method, **options), torchdiffeq.odeint(spiral, Y0, T, method=method, **options)
    )


THEIR_IMPLICIT = {
    "implicit_euler": 1, "implicit_midpoint": 2, "trapezoid": 2, "sdirk2": 2, "trbdf2": 2, "radauIIA3": 3, "gl4": 4,
    "radauIIA5": 5, "gl6": 6,
}  # fmt: skip


@pytest.mark.parametrize("method", THEIR_IMPLICIT)
def test_implicit_methods_of_torchdiffeq_take_one_step_from_time_to_time(method):
    exact, errors = torch.exp(torch.tensor(-1.0, dtype=torch.float64)), []
    for n in (2, 4):
        t = torch.linspace(0.0, 1.0, n + 1, dtype=torch.float64)
        y = snt.odeint(lambda t, y: -y, torch.ones(2, dtype=torch.float64), t, method=method)[-1]
        errors.append(float((y - exact).abs().max()))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(THEIR_IMPLICIT[method], abs=0.3)


# ---- events ---------------------------------------------------------------------------------------------------------


def ball(t, state):
    height, speed = state
    return speed, -9.81 * torch.ones_like(height)


@pytest.mark.parametrize("reverse_time", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"method": "dopri5", **TIGHT},
        {"method": "rk4", "options": {"step_size": 0.013}, "atol": 1e-12},
        {"method": "rk4", "options": {"step_size": 0.013, "interp": "cubic"}, "atol": 1e-12},
        {"method": "euler", "options": {"step_size": 0.001}, "atol": 1e-12},
    ],
    ids=["adaptive", "given, linear", "given, cubic", "Euler"],
)
def test_events_and_their_gradients(how, reverse_time):
    found = {}
    for package in BOTH:
        y0 = tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1.7, 0.4))
        t0 = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        t, (height, speed) = package.odeint_event(
            ball, y0, t0, event_fn=lambda t, y: y[0], reverse_time=reverse_time, **how
        )
        slopes = [torch.autograd.grad(x, y0, retain_graph=True) for x in (t, speed[-1])]
        found[package] = torch.stack([t, height[-1], speed[-1], *(x for pair in slopes for x in pair)]).detach()
    assert torch.allclose(found[snt], found[torchdiffeq], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["ab3", "rkl2", "carpenter_kennedy54"])
def test_events_of_given_steps_of_every_family(method):
    """y' = -y meets 1/2 at log 2, inside the opening of a multistep scheme too."""
    for step in (0.001, 0.3):
        y0 = torch.ones(1, dtype=torch.float64)
        t, _ = snt.odeint_event(
            lambda t, y: -y, y0, torch.tensor(0.0, dtype=torch.float64), event_fn=lambda t, y: y - 0.5, method=method,
            options={"step_size": step, "interp": "cubic"},
        )  # fmt: skip
        assert float(t) == pytest.approx(0.6931471805599453, rel=1e-6 if step < 0.1 else 0.02)


def test_events_of_problems_in_halves():
    field = snt.SecondOrder(lambda t, q: -q)
    y0 = (torch.tensor([1.0], dtype=torch.float64, requires_grad=True), torch.tensor([0.0], dtype=torch.float64))
    t, (q, _) = snt.odeint_event(
        field, y0, torch.tensor(0.0, dtype=torch.float64), event_fn=lambda t, y: y[0] - 0.5, method="verlet",
        options={"step_size": 1e-3, "interp": "cubic"},
    )  # fmt: skip
    assert float(t.detach()) == pytest.approx(torch.pi / 3, rel=1e-6)
    (slope,) = torch.autograd.grad(t, y0[0])
    assert float(slope) == pytest.approx(0.5 / torch.sin(torch.tensor(torch.pi / 3)).item(), rel=1e-5)
    assert float(q[-1].detach()) == pytest.approx(0.5)
