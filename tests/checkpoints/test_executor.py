"""One executor for every schedule: a derivative through a recursion of numbers, whatever is stored or recomputed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter

from stepnet.checkpoints import (
    Kind,
    binomial,
    execute,
    mixed,
    multistage,
    online,
    store_all,
    two_level,
    uniform,
)

RATE, START = 3.7, 0.2


def step(k: int, x: float) -> float:
    """Step k of the logistic map, each with a rate of its own."""
    return (RATE - 0.01 * k) * x * (1 - x)


def derivative(k: int, x: float) -> float:
    return (RATE - 0.01 * k) * (1 - 2 * x)


def plain_derivative(n: int) -> float:
    """d x_n / d x_0 with every state kept, multiplied from the end as a reversal does."""
    states = list(itertools.accumulate(range(n - 1), lambda x, k: step(k, x), initial=START))
    bar = 1.0
    for k in reversed(range(n)):
        bar *= derivative(k, states[k])
    return bar


class LogisticRun:
    """States are numbers; the stages of a step are its derivative."""

    def __init__(self, state: float = START):
        self.state, self.bar, self.slots, self.n_runs = state, 1.0, {}, 0

    def advance(self, start, stop):
        for k in range(start, stop):
            self.state = step(k, self.state)
        self.n_runs += stop - start

    def keep(self, start, slot):
        self.slots[slot] = self.state

    def restore(self, start, slot):
        self.state = self.slots[slot]

    def drop(self, start, slot):
        del self.slots[slot]

    def reverse(self, start):
        self.bar *= derivative(start, self.state)


class StageRun(LogisticRun):
    def keep_step(self, start, slot):
        self.slots[slot] = derivative(start, self.state)
        self.advance(start, start + 1)

    def reverse_kept(self, start, slot):
        self.bar *= self.slots[slot]


def pass_by(decisions, n: int):
    """The whole schedule of a run of unknown length."""
    for _ in range(n - 1):
        decisions.step()
    return decisions.finish()


SCHEDULES = {
    "store_all": lambda n, s: store_all(n),
    "uniform": uniform,
    "binomial": binomial,
    "multistage": lambda n, s: multistage(n, s, 2),
    "mixed": mixed,
    "online": lambda n, s: pass_by(online(s), n),
    "two_level": lambda n, s: pass_by(two_level(5, s), n),
}
over_schedules = pytest.mark.parametrize("name", SCHEDULES)


@over_schedules
@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 80), s=st.integers(1, 9))
def test_every_schedule_is_executed(name, n, s):
    schedule, run = SCHEDULES[name](n, s), StageRun()
    execute(schedule, run)
    assert run.bar == plain_derivative(n)
    assert (run.n_runs, run.slots) == (schedule.advances, {})


@over_schedules
def test_actions_may_be_executed_in_parts(name):
    schedule = SCHEDULES[name](40, 3)
    for cut in (1, schedule.turn, len(schedule) - 1):
        run = StageRun()
        execute(schedule, run, end=cut)
        execute(schedule, run, cut)
        assert run.bar == plain_derivative(40)


@over_schedules
def test_a_note_says_where_to_go_on(name):
    schedule, found = SCHEDULES[name](30, 3), []
    execute(schedule, StageRun(), note=found.append)
    kinds = [action.kind for action in schedule]
    silent = (Kind.ADVANCE, Kind.RESTORE, Kind.DROP)
    assert found == [number + 1 for number, kind in enumerate(kinds) if kind not in silent]


@pytest.mark.parametrize("name", ["online", "two_level"])
def test_a_run_that_obeyed_as_it_passed_goes_on_at_the_turn(name):
    n, run = 37, LogisticRun()
    decisions = online(3) if name == "online" else two_level(5, 3)
    for k in range(n - 1):
        for action in decisions.step():
            (run.keep if action.kind == Kind.KEEP else run.drop)(action.start, action.slot)
        run.advance(k, k + 1)
    schedule = decisions.finish()
    execute(schedule, run, schedule.turn)
    assert run.bar == plain_derivative(n)


@over_schedules
def test_calls_are_the_actions_in_order(name):
    """The same as the interpreter of the other tests sees action by action, over more rows than are read at once."""
    schedule, calls = SCHEDULES[name](3000, 4), []

    class Calls:
        def __getattr__(self, called):
            return lambda *numbers: calls.append((called, *numbers))

    execute(schedule, Calls())
    world = Interpreter(schedule.n_steps, schedule.slots, schedule.disk_slots)
    for action, (called, *numbers) in zip(schedule, calls, strict=True):
        world.execute(action)
        assert called == action.kind.name.lower()
        assert numbers == {
            Kind.ADVANCE: [action.start, action.stop],
            Kind.REVERSE: [action.start],
        }.get(action.kind, [action.start, action.slot])
    assert world.reversed_down_to == 0


def test_a_schedule_of_stages_needs_a_run_that_keeps_them():
    with pytest.raises(TypeError, match="`run` needs `keep_step` and `reverse_kept`; LogisticRun has none"):
        execute(mixed(5, 2), LogisticRun())


def test_nothing_to_reverse_is_nothing_to_do():
    run = LogisticRun()
    execute(binomial(0, 1), run)
    assert (run.bar, run.n_runs) == (1.0, 0)


def test_what_is_no_run_or_no_schedule_is_refused():
    with pytest.raises(TypeError, match="`run` must be a run with `advance` and `keep` and"):
        execute(binomial(3, 1), object())
    with pytest.raises(TypeError, match="`schedule`"):
        execute(binomial(3, 1).actions, LogisticRun())
