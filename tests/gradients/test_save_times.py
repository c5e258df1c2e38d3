"""Gradients of losses at many save times: one compiled run, however many times there are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import stepnet as sn
from stepnet.engines import numba_engine
from stepnet.engines.numba_engine.adjoint.step_sweeps import ProgramRunner
from stepnet.gradients import reversal

STEPS = 120
SAME = 1e-12  # relative: the same sums in another order
FEW, MANY = 3, STEPS


def lorenz(t, y, sigma, rest):
    return [sigma * (y[1] - y[0]), y[0] * (rest[0] - y[2]) - y[1], y[0] * y[1] - rest[1] * y[2]]


def lorenz_vjp(t, y, w, sigma, rest):
    jacobian = np.array(
        [[-sigma, sigma, 0.0], [rest[0] - y[2], -1.0, -y[0]], [y[1], y[0], -rest[1]]],
    )
    return w @ jacobian


ARGS = (10.0, np.array([28.0, 8.0 / 3.0]))
ODE = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.0, 0.6), args=ARGS)
CALLED = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.0, 0.6), args=ARGS, vjp=lorenz_vjp)  # no generated code
BACKWARD = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.2, 0.0), args=ARGS)
SECOND = sn.SecondOrder(lambda t, q, k: -k * np.sin(q), [1.0, 0.5], [0.0, 0.3], (0.0, 3.0), args=(1.3,))
CASES = {
    "generated": (ODE, "rk4", {"steps": STEPS}),
    "called": (CALLED, "rk4", {"steps": STEPS}),
    "given": (ODE, "rk4", {"steps": 0.6 * np.linspace(0.0, 1.0, STEPS + 1)}),
    "multistep": (ODE, "ab4", {"steps": STEPS}),
    "splitting": (SECOND, "verlet", {"steps": STEPS}),
    "reversible": (SECOND, "verlet", {"steps": STEPS, "memory": "reversible"}),
    "checkpoints": (ODE, "rk4", {"steps": STEPS, "memory": sn.Checkpoints(2)}),
    "adaptive": (ODE, "dopri5", {}),
    "adaptive, all kept": (ODE, "dopri5", {"memory": "all"}),
    "adaptive, checkpoints": (ODE, "dopri5", {"memory": sn.Checkpoints(2)}),
    "adaptive, backward": (BACKWARD, "tsit5", {}),
}
ALL = pytest.mark.parametrize("case", CASES)


def times_of(problem, number):
    """Among the times of even steps; the last is the end."""
    t0, t1 = problem.t_span
    return np.append(t0 + (t1 - t0) * np.arange(1, number) / number, t1)


def loss(ys):
    return np.sum(np.sin(ys) * ys)


def loss_and_gradient(ys):
    return np.sum(np.sin(ys) * ys), np.cos(ys) * ys + np.sin(ys)


def without_warning(call):
    """Pullbacks written in Python know nothing of the arguments, which is told."""
    with pytest.warns(sn.AdjointWarning):
        return call()


def found(case, times):
    problem, scheme, how = CASES[case]
    call = lambda: sn.gradient(problem, scheme, loss_and_gradient, save_at=times, **how)
    return without_warning(call) if case == "called" else call()


@pytest.fixture
def counts(monkeypatch):
    """How often the engine is asked to run anything."""
    counter = Counter()

    def count(owner, name):
        original = getattr(owner, name)

        def counted(*arguments, **options):
            counter[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count(numba_engine, "run")
    count(ProgramRunner, "forward")
    count(ProgramRunner, "backward")
    return counter


@ALL
def test_the_engine_is_called_as_often_for_many_times_as_for_few(case, counts):
    problem = CASES[case][0]
    found(case, times_of(problem, FEW))
    few = counts.copy()
    counts.clear()
    found(case, times_of(problem, MANY)[3:])  # the first three belong to the start of multistep schemes
    assert counts == few
    assert counts["run"] == ("adaptive" in case)


@ALL
def test_gradients_are_sums_over_the_times(case):
    """Even where adaptive steps end at all of them: these are found once and then given."""
    problem, scheme, how = CASES[case]
    times = np.repeat(times_of(problem, 6), [1, 2, 1, 1, 3, 1])
    times = np.concatenate(([problem.t_span[0]], times))
    together, flat = found(case, times), 0.0
    assert together.value == pytest.approx(loss(together.y), rel=SAME)
    for i in range(len(times)):
        seed = np.zeros_like(together.y)
        seed[i] = loss_and_gradient(together.y[i])[1]
        call = lambda seed=seed: sn.gradient(problem, scheme, end_gradient=seed, save_at=times, **how)
        flat = flat + (without_warning(call) if case == "called" else call()).flat
    assert np.max(np.abs(together.flat - flat)) <= SAME * np.max(np.abs(flat))


@ALL
def test_blocks_of_steps_do_not_matter(case, monkeypatch):
    times = times_of(CASES[case][0], 20)
    whole = found(case, times)
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 60)
    cut = found(case, times)
    assert np.max(np.abs(cut.flat - whole.flat)) <= SAME * np.max(np.abs(whole.flat))
    assert np.max(np.abs(cut.y - whole.y)) <= SAME * np.max(np.abs(whole.y))


@pytest.mark.parametrize("problem", [ODE, BACKWARD], ids=["forward", "backward"])
def test_adaptive_steps_end_at_the_save_times(problem):
    """So what the loss reads are states of the run itself; in between steps are as long as the error allows."""
    times = times_of(problem, 50)
    gradient = sn.gradient(problem, "dopri5", loss_and_gradient, save_at=times, rtol=1e-10, atol=1e-12)
    solution = sn.solve(problem, "dop853", save_at=times, rtol=1e-12, atol=1e-13)
    assert np.max(np.abs(gradient.y - solution.y)) < 1e-7
    free = sn.solve(problem, "dopri5", rtol=1e-10, atol=1e-12)
    assert gradient.cost.steps <= free.statistics.accepted + len(times)


def test_a_save_time_does_not_shorten_the_steps_after_it():
    """A step that is cut says nothing about the next one."""
    slow = sn.ODE(lambda t, y: -0.01 * y, [1.0], (0.0, 10.0))
    free = sn.gradient(slow, "dopri5", loss_and_gradient).cost.steps
    assert sn.gradient(slow, "dopri5", loss_and_gradient, save_at=[9.0, 9.0 + 1e-9, 10.0]).cost.steps <= free + 2


def test_a_failure_before_a_save_time_is_that_of_a_solve():
    with pytest.raises(sn.SolveFailed) as failed:
        sn.gradient(sn.ODE(lambda t, y: y**2, [1.0], (0.0, 2.0)), "dopri5", loss, save_at=[0.5, 1.5])
    part = failed.value.solution
    assert part.status is sn.Status.STEP_TOO_SMALL
    assert part.failure.t == pytest.approx(1.0, abs=1e-6)  # rtol = 1e-6 moves the pole a little


LOSSES = {
    "squares": lambda ys: 0.5 * np.sum((ys - 0.3) ** 2),
    "one column": lambda ys: np.mean(np.sin(ys[:, 0])),
    "differences": lambda ys: np.sum(np.diff(ys, axis=0) ** 2) + ys[-1, 1],
    "a norm": lambda ys: np.sqrt(np.sum(ys * ys)),
    "the largest": lambda ys: np.max(ys),
    "no loops": lambda ys: sum(float(1 + i % 7) * ys[(7 * i) % len(ys), i % 3] ** 2 for i in range(40)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_many_numbers_have_the_gradients_of_few(name):
    """Those of more than 400 become loops, where that can be done; the numbers stay the same."""
    many = np.random.default_rng(0).standard_normal((200, 3))
    expected, h = np.zeros_like(many), 1e-30
    found = numba_engine.trace_loss(LOSSES[name], many)
    value, gradient = found.value_and_gradient(many)
    assert value == LOSSES[name](many)
    if name == "the largest":
        expected.flat[np.argmax(many)] = 1.0
    else:
        for i in range(many.size):
            moved = many.astype(complex)
            moved.flat[i] += 1j * h
            expected.flat[i] = np.imag(LOSSES[name](moved)) / h
    assert np.max(np.abs(gradient - expected)) <= SAME * np.max(np.abs(expected))


def test_a_loss_of_many_numbers_is_not_straight_line_code(monkeypatch):
    """Which takes minutes to compile."""
    from stepnet.engines.numba_engine.derivatives import scalar_loss

    monkeypatch.setattr(scalar_loss, "compile_traced", lambda traced: pytest.fail("straight-line code"))
    times = np.linspace(0.0, 0.6, 1001)
    data = np.zeros((1001, 3))
    found = sn.gradient(ODE, "rk4", lambda ys: 0.5 * np.sum((ys - data) ** 2), steps=1000, save_at=times)
    pair = sn.gradient(ODE, "rk4", lambda ys: (0.5 * np.sum(ys**2), ys), steps=1000, save_at=times)
    assert np.max(np.abs(found.flat - pair.flat)) <= SAME * np.max(np.abs(pair.flat))


def test_second_derivatives_of_a_loss_of_many_numbers():
    many, v = np.random.default_rng(0).standard_normal((2, 410))
    found = numba_engine.trace_loss(lambda y: np.sum(y**3), many)
    assert np.max(np.abs(found.hessian_product(many, v) - 6 * many * v)) <= SAME * np.max(np.abs(many * v))
