"""The gradient does not depend on the memory policy or on the form of the loss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gradients.cases import FUNCTIONS, KINDS, SPAN, A, B, loss, over_the_catalogue, relative

import stepnet as sn
from stepnet.checkpoints import binomial_advances, online
from stepnet.engines.numba_engine.adjoint import step_sweeps
from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
from stepnet.gradients import reversal, state_store

STEPS = 13
SAME = 1e-14  # states that pass through other code on the way
RECONSTRUCTED = 1e-11
CHOSEN = 1e-13  # states of the run that chose the steps, by another kernel and another clock


@pytest.fixture(autouse=True)
def single_steps(monkeypatch):
    """Blocks of one step, so that schedules have something to do."""
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 1)


def gradients(kind, scheme, memory, **how) -> sn.Gradient:
    given = {"loss": loss, "steps": STEPS, "times": True, **how}
    return sn.gradient(kind.build(), scheme, memory=memory, **given)


def require_same(found: sn.Gradient, wanted: sn.Gradient, tolerance: float = 0.0) -> None:
    assert abs(found.value - wanted.value) <= tolerance * abs(wanted.value)
    assert relative(found.flat, wanted.flat) <= tolerance
    assert relative(found.y, wanted.y) <= tolerance
    if found.t_span is not None:
        assert relative(found.t_span, wanted.t_span) <= 10 * tolerance


@over_the_catalogue
def test_any_number_of_slots(scheme, kind):
    wanted = gradients(kind, scheme, "all")
    for slots in range(1, STEPS + 1):
        found = gradients(kind, scheme, sn.Checkpoints(slots))
        require_same(found, wanted)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_advances_are_the_optimal_ones(slots):
    found = gradients(KINDS[0], "rk4", sn.Checkpoints(slots))
    assert found.cost.advances == binomial_advances(STEPS, slots)
    assert found.cost.states == slots + 1


@pytest.mark.parametrize("scheme", ["rk4", "ab3", "kvaerno5", "rodas4"])
def test_slices_between_which_ctrl_c_is_served_do_not_change_bits(scheme, monkeypatch):
    wanted = gradients(KINDS[0], scheme, "all")
    monkeypatch.setattr(step_sweeps, "WORK_AT_FIRST", 1)
    monkeypatch.setattr(step_sweeps, "SLICE_SECONDS", 0.0)
    require_same(gradients(KINDS[0], scheme, "all"), wanted)


@over_the_catalogue
def test_bytes_and_disk(scheme, kind, tmp_path, monkeypatch):
    wanted = gradients(kind, scheme, "all")
    require_same(gradients(kind, scheme, 300), wanted)
    require_same(gradients(kind, scheme, sn.Checkpoints(bytes=1)), wanted)
    monkeypatch.setattr(state_store, "PROGRESS_SECONDS", 0.0)
    require_same(gradients(kind, scheme, sn.Checkpoints(2, disk=tmp_path)), wanted)
    assert list(tmp_path.iterdir()) == []


@over_the_catalogue
def test_reversible(scheme, kind):
    if not DifferentiableRun(kind.build(), scheme, STEPS, None, True, False).is_reversible:
        with pytest.raises(ValueError, match="`memory`"):
            gradients(kind, scheme, "reversible")
        return
    found = gradients(kind, scheme, "reversible")
    assert found.memory == "states reconstructed backward"
    assert found.cost.drift <= RECONSTRUCTED
    require_same(found, gradients(kind, scheme, "all"), RECONSTRUCTED)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_grid_of_given_times(kind):
    grid = np.linspace(*SPAN, STEPS + 1)
    even = gradients(kind, "rk4", "all")
    require_same(gradients(kind, "rk4", "all", steps=grid), even, 1e-13)
    grid = SPAN[0] + (SPAN[1] - SPAN[0]) * np.linspace(0, 1, STEPS + 1) ** 1.5
    wanted = gradients(kind, "rk4", "all", steps=grid)
    for slots in range(1, STEPS):
        require_same(gradients(kind, "rk4", sn.Checkpoints(slots), steps=grid), wanted)


@pytest.mark.parametrize("name", ["bosh3", "dopri5", "dop853"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_adaptive_steps_are_those_that_were_accepted(kind, name, tmp_path):
    times = sn.solve(kind.build(), name, rtol=1e-5).t
    given = gradients(kind, name, "all", steps=times)
    for memory in ("all", sn.Checkpoints(2, disk=tmp_path)):  # the steps are known when the run begins that is reversed
        found = gradients(kind, name, memory, steps=None, rtol=1e-5)
        assert found.cost.steps == len(times) - 1
        require_same(found, given)
    for slots in range(1, len(times) + 1):  # some of its states are kept while they are chosen
        found = gradients(kind, name, sn.Checkpoints(slots), steps=None, rtol=1e-5)
        assert found.cost.steps == len(times) - 1
        assert found.cost.states <= slots + 1
        require_same(found, given, CHOSEN)


@pytest.mark.parametrize("name", ["bosh3", "dopri5"])
@pytest.mark.parametrize("slots", [1, 2, 3, 7, 40])
def test_adaptive_runs_obey_the_schedule_for_unknown_lengths(name, slots):
    """As many advances as `online` counts, and one for the last step, which was taken to find out that it was one."""
    found = gradients(KINDS[0], name, sn.Checkpoints(slots), steps=None, rtol=1e-11, atol=1e-12)
    decisions, n = online(slots), found.cost.steps
    for _ in range(n - 1):
        decisions.step()
    schedule = decisions.finish()
    assert n > 10
    assert found.cost.advances == schedule.advances + 1
    assert found.cost.states == schedule.peak + 1
    require_same(found, gradients(KINDS[0], name, "all", steps=None, rtol=1e-11, atol=1e-12), CHOSEN)


@pytest.mark.parametrize("numbers", [2, 4, 6, 10, 14, 26, 1000])
@pytest.mark.parametrize("span", [SPAN, SPAN[::-1]], ids=["forward", "backward"])
def test_blocks_of_adaptive_steps(numbers, span, monkeypatch):
    """Wherever blocks end, between the times that the loss reads or at them."""
    problem, how = KINDS[0].build(t_span=span), {"rtol": 1e-9, "atol": 1e-10, "times": True}
    how["save_at"] = np.array([0.1, 0.2, 0.2, 0.55, 0.7])[:: 1 if span is SPAN else -1]
    wanted = sn.gradient(problem, "dopri5", several, memory="all", **how)
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", numbers)
    for memory in (sn.Checkpoints(1), sn.Checkpoints(2), sn.Checkpoints(5), 64, 4096, "auto"):
        require_same(sn.gradient(problem, "dopri5", several, memory=memory, **how), wanted, CHOSEN)


def test_a_run_of_unknown_length_in_one_block_keeps_all_states(monkeypatch):
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 2**17)
    found = gradients(KINDS[0], "dopri5", "auto", steps=None)
    assert found.memory == "all states kept"
    assert found.cost.advances == found.cost.states == found.cost.steps
    nothing = KINDS[0].build(t_span=(0.1, 0.1))
    assert np.array_equal(sn.gradient(nothing, "dopri5", end_gradient=[1.0, 2.0]).y0, [1.0, 2.0])


@pytest.mark.parametrize("memory", ["all", "auto", sn.Checkpoints(2), "interpolated"], ids=str)
def test_threads_do_not_disturb_each_other(memory):
    """Many at a time, of every kind and by several schemes: the same bits as one after the other."""
    kinds = KINDS[:1] if memory == "interpolated" else KINDS
    calls = [(kind, name, y) for kind in kinds for name in ("rk4", "dopri5", "bosh3") for y in (0.9, 1.0, 1.1)]

    def call(kind, name, y):
        how = {"steps": 40} if name == "rk4" else {"rtol": 1e-7}
        return sn.gradient(kind.build(y * kind.initial), name, loss, memory=memory, **how).flat

    alone = [call(*each) for each in calls]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: call(*each), 3 * calls))
    for found, wanted in zip(together, 3 * alone, strict=True):
        assert np.array_equal(found, wanted)


# ---- other derivatives ----------------------------------------------------------------------------------------------


@over_the_catalogue
def test_other_derivatives_in_any_memory(scheme, kind, tmp_path):
    problem, how = kind.build(), {"steps": STEPS}
    direction = {"y0": np.cos(np.arange(problem.initial.size)), "args": (0.3, np.array([1.0, -0.5]))}
    is_reversible = DifferentiableRun(problem, scheme, STEPS, None, True, False).is_reversible
    exact = [sn.Checkpoints(1), sn.Checkpoints(3), 200, sn.Checkpoints(2, disk=tmp_path)]
    for derivative in (
        lambda memory: sn.hvp(problem, scheme, loss, memory=memory, **direction, **how).flat,
        lambda memory: sn.hvp(problem, scheme, loss, memory=memory, gauss_newton=True, **direction, **how).flat,
        lambda memory: sn.jacobian(problem, scheme, memory=memory, **how).y0,
        lambda memory: sn.jacobian(problem, scheme, memory=memory, **how).args[1],
    ):
        wanted = derivative("all")
        for memory in exact:
            assert np.array_equal(derivative(memory), wanted)
        if is_reversible:
            assert relative(derivative("reversible"), wanted) <= RECONSTRUCTED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [sn.Checkpoints(2), "auto"], ids=str)
def test_other_derivatives_of_adaptive_runs_in_any_memory(memory):
    problem, how = KINDS[0].build(), {"rtol": 1e-8}
    found, wanted = (sn.jacobian(problem, "dopri5", memory=each, **how) for each in (memory, "all"))
    assert np.array_equal(found.y0, wanted.y0)
    found, wanted = (sn.hvp(problem, "dopri5", loss, y0=[1.0, 2.0], memory=each, **how) for each in (memory, "all"))
    assert np.array_equal(found.flat, wanted.flat)


@pytest.mark.parametrize("memory", ["continuous", "interpolated", 0, "some"])
def test_other_derivatives_are_exact(memory):
    for call in (sn.jacobian, lambda *a, **k: sn.hvp(*a, loss, y0=[1.0, 0.0], **k)):
        with pytest.raises(ValueError, match="`memory`"):
            call(KINDS[0].build(), "rk4", steps=STEPS, memory=memory)


# ---- losses of several states ---------------------------------------------------------------------------------------


def several(ys):
    total = 0.0
    for i in range(ys.shape[0]):
        total = total + (i + 1.0) * np.sin(ys[i, 0]) * ys[i, 1] + 0.1 * ys[i, -1] ** 2
    return total


def one_by_one(kind, scheme, save_at, steps) -> tuple[float, np.ndarray]:
    """The same by the gradients of single end states, one run for every time."""
    ys = np.array([_state(kind, scheme, steps, n) for n in save_at])
    value, total = several(ys), 0.0
    for i, n in enumerate(save_at):
        w = np.zeros_like(ys[i])
        w[0], w[1] = (i + 1.0) * np.cos(ys[i, 0]) * ys[i, 1], (i + 1.0) * np.sin(ys[i, 0])
        w[-1] += 0.2 * ys[i, -1]
        total = total + _pulled_back(kind, scheme, steps, n, w)
    return value, total


def _pulled_back(kind, scheme, steps, n, w):
    if n == 0:
        return np.concatenate((w, np.zeros(3)))
    return sn.gradient(kind.build(t_span=_span(steps, n)), scheme, end_gradient=w, steps=n).flat


def _span(steps, n):
    return SPAN[0], SPAN[0] + (SPAN[1] - SPAN[0]) * n / steps


def _state(kind, scheme, steps, n):
    if n == 0:
        return kind.initial
    return sn.solve(kind.build(t_span=_span(steps, n)), scheme, steps=n, save_every=0).y[-1].ravel()


@over_the_catalogue
def test_states_at_many_times(scheme, kind):
    places = [0, 0, 1, 2, 3, 3, 5, 7, 8]
    h = (SPAN[1] - SPAN[0]) / 8
    save_at = SPAN[0] + h * np.array(places)
    save_at[-2:] = SPAN[1] - h, SPAN[1]
    value, wanted = one_by_one(kind, scheme, places, 8)
    for memory in ("all", sn.Checkpoints(1), sn.Checkpoints(3)):
        found = sn.gradient(kind.build(), scheme, several, steps=8, save_at=save_at, memory=memory)
        assert abs(found.value - value) <= 1e-12 * abs(value)
        assert relative(found.flat, wanted) <= 1e-11
        assert found.y.shape == (9, kind.initial.size)


@pytest.mark.parametrize("memory", ["all", "reversible", sn.Checkpoints(2)], ids=str)
def test_states_at_many_times_are_read_by_reversible_runs_too(memory):
    kind = KINDS[3]
    for name in ("verlet", "leapfrog_two_step", "yoshida4"):
        value, wanted = one_by_one(kind, sn.schemes.get(name), [0, 1, 4, 8], 8)
        save_at = np.linspace(*SPAN, 9)[[0, 1, 4, 8]]
        found = sn.gradient(kind.build(), name, several, steps=8, save_at=save_at, memory=memory)
        assert abs(found.value - value) <= 1e-12
        assert relative(found.flat, wanted) <= 1e-11


@pytest.mark.parametrize("span", [SPAN, SPAN[::-1]], ids=["forward", "backward"])
@pytest.mark.parametrize("wanted", [[0.1, 0.25, 0.25, 0.7], [0.3], [0.1], [0.7, 0.7]], ids=str)
def test_adaptive_steps_end_where_the_loss_reads(span, wanted):
    problem = KINDS[0].build(t_span=span)
    save_at = np.array(wanted if span is SPAN else wanted[::-1])
    how = {"save_at": save_at, "rtol": 1e-7, "atol": 1e-9}
    found = sn.gradient(problem, "dopri5", several, **how)
    for memory in (sn.Checkpoints(1), sn.Checkpoints(4)):
        require_same(sn.gradient(problem, "dopri5", several, memory=memory, **how), found, CHOSEN)
    exact = sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_at=save_at).y
    assert relative(found.y, exact) <= 1e-6
    first, second = (
        sn.gradient(KINDS[0].build(Y, t_span=span), "dop853", several, save_at=save_at, rtol=1e-11, atol=1e-12).value
        for Y in KINDS[0].initial + np.array([[1e-5, 0.0], [-1e-5, 0.0]])
    )
    assert abs(found.y0[0] - (first - second) / 2e-5) <= 1e-5


# ---- losses in both forms, and along the way ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_both_forms_of_a_loss_and_its_gradient_alone(kind):
    traced = gradients(kind, "rk4", "all")
    J = sn.gradient(kind.build(), "rk4", loss, steps=STEPS).y
    g = np.array([(loss(J + 1e-6 * e) - loss(J - 1e-6 * e)) / 2e-6 for e in np.eye(J.size)])
    pair = gradients(kind, "rk4", "all", loss=lambda y: (loss(y), g))
    alone = gradients(kind, "rk4", "all", loss=None, end_gradient=g)
    require_same(pair, traced, 1e-8)
    assert np.array_equal(pair.flat, alone.flat)
    assert alone.value == pytest.approx(g @ J, rel=1e-15)


def cost(t, y, a, b):
    return a * y[0] * y[0] + np.sin(t) * y[1] + b[0]


def with_cost(t, y, a, b):
    first, second = FUNCTIONS["ode"][0](t, y, a, b)
    return [first, second, cost(t, y, a, b)]


@pytest.mark.parametrize("memory", ["all", sn.Checkpoints(3), "auto"], ids=str)
@pytest.mark.parametrize("name", ["rk4", "ab4", "dopri5"])
def test_costs_along_the_way(name, memory):
    """The same as one more entry of the state, written by hand."""
    by_hand = sn.ODE(with_cost, [*KINDS[0].initial, 0.0], SPAN, (A, B))
    wanted = sn.gradient(by_hand, name, lambda z: loss(z[:2]) + z[2], steps=STEPS, times=True)
    found = gradients(KINDS[0], name, memory, running=cost)
    assert found.value == pytest.approx(wanted.value, rel=1e-14)
    assert relative(found.y0, wanted.y0[:2]) <= SAME * 10
    assert relative(found.args[1], wanted.args[1]) <= SAME * 10
    assert relative(found.t_span, wanted.t_span) <= SAME * 100
    assert found.y.shape == (2,)
    alone = gradients(KINDS[0], name, memory, running=cost, loss=None)
    other = sn.gradient(by_hand, name, lambda z: 1.0 * z[2], steps=STEPS)
    assert relative(alone.y0, other.y0[:2]) <= SAME * 10
    given = gradients(KINDS[0], name, memory, running=cost, loss=None, end_gradient=[1.0, 2.0])
    other = sn.gradient(by_hand, name, end_gradient=[1.0, 2.0, 1.0], steps=STEPS)
    assert relative(given.y0, other.y0[:2]) <= SAME * 10
    assert given.value == pytest.approx(other.value, rel=1e-14)


@pytest.mark.parametrize("save_at", [[0, 4], [3, 13], [13, 13], [1]], ids=str)
@pytest.mark.parametrize("name", ["rk4", "ab4"])
def test_costs_along_the_way_and_losses_at_many_times(name, save_at):
    """The cost runs to the end, wherever the loss reads."""
    times = np.linspace(*SPAN, STEPS + 1)[save_at]
    both = gradients(KINDS[0], name, sn.Checkpoints(2), loss=several, save_at=times, running=cost)
    first = gradients(KINDS[0], name, "all", loss=several, save_at=times)
    second = gradients(KINDS[0], name, "all", loss=None, running=cost)
    assert both.value == pytest.approx(first.value + second.value, rel=1e-13)
    assert relative(both.flat, first.flat + second.flat) <= 1e-12
    assert both.y.shape == (len(save_at), 2)
