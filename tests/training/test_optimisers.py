"""Every optimiser and schedule, step by step, against PyTorch's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training.models import TwoLayer, blobs

import stepnet as sn
from stepnet import training
from stepnet.nets import penalties
from stepnet.training import ClipNorm, ClipValue, optimisers, schedules

AGREE = 1e-12
STEPS = 60

PAIRS = [
    (training.SGD(0.02), torch.optim.SGD, {"lr": 0.02}),
    (training.Momentum(0.02, 0.8), torch.optim.SGD, {"lr": 0.02, "momentum": 0.8}),
    (training.Nesterov(0.02, 0.8), torch.optim.SGD, {"lr": 0.02, "momentum": 0.8, "nesterov": True}),
    (training.AdaGrad(0.3), torch.optim.Adagrad, {"lr": 0.3}),
    (training.RMSprop(0.02), torch.optim.RMSprop, {"lr": 0.02}),
    (training.RMSprop(0.02, 0.9, 1e-6), torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.9, "eps": 1e-6}),
    (training.Adam(), torch.optim.Adam, {}),
    (training.Adam(0.05, 0.8, 0.99, 1e-6), torch.optim.Adam, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6}),
    (training.AdamW(), torch.optim.AdamW, {}),
    (training.AdamW(0.05, decay=0.1), torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
]


def valley(x):
    """Rosenbrock's function in any dimension, for arrays and tensors alike."""
    return (3 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def slope(x: np.ndarray) -> np.ndarray:
    w = torch.tensor(x, requires_grad=True)
    return torch.autograd.grad(valley(w), w)[0].numpy()


def run(optimiser, steps: int, theta: np.ndarray, clip=lambda g: g) -> list[np.ndarray]:
    slots, path = optimisers.empty_slots(optimiser, theta), []
    for k in range(steps):
        theta, slots = optimiser.step(theta, clip(slope(theta)), slots, optimiser.rate(k), k + 1)
        path.append(theta)
    return path


def theirs(kind, options, steps: int, theta: np.ndarray, scheduler=None, clip=None) -> list[np.ndarray]:
    w, path = torch.nn.Parameter(torch.tensor(theta)), []
    optimiser = kind([w], **options)
    rates = scheduler(optimiser) if scheduler else None
    for _ in range(steps):
        optimiser.zero_grad()
        valley(w).backward()
        if clip:
            clip(w)
        optimiser.step()
        path.append(w.detach().numpy().copy())
        if rates:
            rates.step()
    return path


START = np.linspace(-0.8, 0.9, 7)


@pytest.mark.parametrize(
    ("ours", "kind", "options"), PAIRS, ids=lambda each: repr(each) if hasattr(each, "rate") else ""
)
def test_steps_are_those_of_torch(ours, kind, options):
    for mine, yours in zip(run(ours, STEPS, START), theirs(kind, options, STEPS, START), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=AGREE, atol=AGREE)


def test_every_optimiser_of_the_catalogue_is_compared():
    assert {type(ours).__name__.lower() for ours, *_ in PAIRS} == set(optimisers.names())


@pytest.mark.parametrize("name", optimisers.names())
def test_updates_change_nothing_that_they_are_given(name):
    optimiser, theta = optimisers.get(name), START.copy()
    slots = {key: np.ones_like(theta) for key in optimiser.slots}
    gradient = np.ones_like(theta)
    new, others = optimiser.step(theta, gradient, slots, 0.1, 3)
    np.testing.assert_array_equal(theta, START)
    assert all((value == 1).all() for value in (gradient, *slots.values()))
    assert set(others) == set(slots)
    assert not np.shares_memory(new, theta)


@pytest.mark.parametrize("name", optimisers.names())
def test_float32_stays_float32(name):
    optimiser, theta = optimisers.get(name), START.astype(np.float32)
    new, slots = optimiser.step(theta, theta, optimisers.empty_slots(optimiser, theta), 0.1, 1)
    assert {array.dtype for array in (new, *slots.values())} == {np.dtype(np.float32)}


LR = torch.optim.lr_scheduler
SCHEDULES = [
    (training.Constant(0.02), lambda o: LR.ConstantLR(o, 1.0)),
    (training.StepDecay(0.02, 7, 0.3), lambda o: LR.StepLR(o, 7, 0.3)),
    (training.Exponential(0.02, 0.9), lambda o: LR.ExponentialLR(o, 0.9)),
    (training.Cosine(0.02, 60, 1e-3), lambda o: LR.CosineAnnealingLR(o, 60, 1e-3)),
    (training.InverseTime(0.02, 4.0), lambda o: LR.LambdaLR(o, lambda t: 1 / (1 + t / 4))),
    (training.WarmUp(0.02, 8, 0.25), lambda o: LR.LinearLR(o, 0.25, 1.0, 8)),
    (training.WarmUp(training.Exponential(0.02, 0.9), 8, 0.25),
     lambda o: LR.ChainedScheduler([LR.LinearLR(o, 0.25, 1.0, 8), LR.ExponentialLR(o, 0.9)])),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "scheduler"), SCHEDULES, ids=lambda each: repr(each) if hasattr(each, "rate") else "")
def test_schedules_are_those_of_torch(ours, scheduler):
    optimiser = replace(PAIRS[1][0], rate=ours)
    found = run(optimiser, STEPS, START)
    for mine, yours in zip(found, theirs(*PAIRS[1][1:], STEPS, START, scheduler), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=AGREE, atol=AGREE)


def test_every_schedule_of_the_catalogue_is_compared():
    assert {type(ours) for ours, _ in SCHEDULES} == set(schedules.SCHEDULES.values())
    assert schedules.names() == sorted(schedules.SCHEDULES)


def test_a_cosine_stays_at_its_end():
    assert training.Cosine(0.1, 10, 0.01)(25.0) == pytest.approx(0.01)


def test_clipped_values_are_those_of_torch():
    ours = run(training.SGD(0.05), STEPS, START, ClipValue(0.3))
    cut = theirs(torch.optim.SGD, {"lr": 0.05}, STEPS, START, clip=lambda w: torch.nn.utils.clip_grad_value_([w], 0.3))
    for mine, yours in zip(ours, cut, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=AGREE, atol=AGREE)


def test_clipped_norms_keep_the_direction_and_leave_short_gradients():
    long, short = np.array([3.0, -4.0]), np.array([0.3, -0.4])
    np.testing.assert_allclose(ClipNorm(2.0)(long), long * 0.4, rtol=1e-15)
    assert ClipNorm(2.0)(short) is short
    for huge in (np.full(4, 1e25, np.float32), np.full(3, 1e200), np.array([3e300, -4e300])):
        for limit in (2.0, 1e-3):
            with np.errstate(over="ignore"):
                clipped = ClipNorm(limit)(huge)
            np.testing.assert_allclose(np.linalg.norm(clipped), limit, rtol=1e-6)
            np.testing.assert_array_equal(np.sign(clipped), np.sign(huge))
    w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    w.grad = torch.tensor(long)
    torch.nn.utils.clip_grad_norm_([w], 2.0)  # adds 1e-6 to the norm
    np.testing.assert_allclose(ClipNorm(2.0)(long), w.grad, rtol=1e-6)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: training.SGD(-1.0), r"`rate` must be a number in \(0, inf\), found -1"),
    (lambda: training.SGD("fast"), "`rate` must be a number, found 'fast'"),
    (lambda: training.Momentum(momentum=1.0), r"`momentum` must be a number in \[0, 1\), found 1"),
    (lambda: training.Adam(beta2=1.0), "`beta2`"),
    (lambda: training.Adam(eps=0), "`eps`"),
    (lambda: training.AdamW(decay=math.nan), "`decay`"),
    (lambda: training.Cosine(0.1, 0), "`epochs`"),
    (lambda: training.StepDecay(0.1, factor=2.0), "`factor`"),
    (lambda: training.WarmUp(0.1, first=0.0), "`first`"),
    (lambda: ClipNorm(0.0), "`limit`"),
    (lambda: optimisers.get("sgd", momentum=0.9), "the optimiser 'sgd' takes no `momentum`; give the optimiser `Mom"),
    (lambda: optimisers.get(3), "`optimiser` must be a name or have a `step`, found 3"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(sn.UnknownName, match=r"no optimiser 'adamm'; did you mean .*'adam'"):
        optimisers.get("adamm")
    with pytest.raises(sn.UnknownName, match="no schedule 'cosin'; did you mean 'cosine'"):
        schedules.get("cosin")
    assert schedules.get("cosine", rate=0.1, epochs=5) == training.Cosine(0.1, 5)


# ---- proximal steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", [training.SGD(0.1), training.Momentum(0.02), "adam"], ids=repr)
def test_a_proximal_step_is_the_step_and_then_the_map(optimiser):
    penalty, inner = penalties.elastic_net(0.3, 0.7), optimisers.get(optimiser)
    both = training.Proximal(optimiser, penalty)
    theta, slots = np.linspace(-1, 1, 7), optimisers.empty_slots(both, np.zeros(7))
    own = optimisers.empty_slots(inner, theta)
    for k in range(3):
        found, slots = both.step(theta, slope(theta), slots, both.rate(0.0), k + 1)
        plain, own = inner.step(theta, slope(theta), own, inner.rate(0.0), k + 1)
        theta = penalty.proximal(plain, inner.rate(0.0))
        np.testing.assert_array_equal(found, theta)


def test_proximal_gradients_end_where_the_conditions_of_the_lasso_hold_with_exact_zeros():
    """|g| <= l1 where a weight is zero, g = -l1 sign(w) elsewhere; subgradients alone leave no weight at zero."""
    random, l1 = np.random.default_rng(0), 0.2
    x = random.normal(size=(80, 12))
    data = training.Data(x, x[:, :3] @ [1.0, -2.0, 0.5] + 0.1 * random.normal(size=80))
    smooth = training.Objective(TwoLayer(12, 0, 1), "mse")
    recipe = training.Recipe(training.Proximal(training.SGD(0.1), penalties.l1(l1)), epochs=400)
    w = training.train(smooth, data, recipe).theta
    g = smooth.gradient(w, data).gradient
    assert np.count_nonzero(w) <= 4
    np.testing.assert_allclose(g[w != 0], -l1 * np.sign(w[w != 0]), atol=1e-10)
    assert np.abs(g[w == 0]).max() < l1
    rough = training.Objective(TwoLayer(12, 0, 1), "mse", penalties.l1(l1))
    assert np.all(training.train(rough, data, training.Recipe(training.SGD(0.1), epochs=400)).theta != 0)


def test_proximal_runs_are_stored_and_resumed(tmp_path):
    data, objective = blobs(), training.Objective(TwoLayer(2, 4, 3), "cross_entropy")
    start, optimiser = np.array(objective.model.theta), training.Proximal("adam", penalties.l1(0.01))
    whole = training.train(objective, data, training.Recipe(optimiser, epochs=6, batch_size=30), theta=start)
    for epochs in (3, 6):
        recipe = training.Recipe(optimiser, epochs=epochs, batch_size=30)
        part = training.train(objective, data, recipe, theta=start, path=tmp_path / "run", resume=epochs == 6)
    np.testing.assert_array_equal(part.theta, whole.theta)


def test_a_proximal_step_needs_an_optimiser_and_a_penalty():
    with pytest.raises(TypeError, match="`optimiser` must be a name or have a `step`, found 3"):
        training.Proximal(3, penalties.l1())
    with pytest.raises(TypeError, match=r"`penalty` must be a name or a Penalty, found 0\.1"):
        training.Proximal("sgd", 0.1)
