"""Every schedule is valid, stays within its memory, and has the cost given by theory."""

from __future__ import annotations

import itertools
import time
from functools import cache
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter, interpret

from stepnet.checkpoints import (
    Kind,
    Schedule,
    binomial,
    binomial_advances,
    longest,
    mixed,
    mixed_evaluations,
    multistage,
    online,
    repetitions,
    store_all,
    two_level,
    two_level_advances,
    uniform,
)

LONGEST, MOST = 60, 8  # small enough for dynamic programmes
MILLION = 10**6


def ended(run, n_steps: int) -> Schedule:
    """A run of unknown length that ends after `n_steps`."""
    for _ in range(n_steps - 1):
        run.step()
    return run.finish()


GENERATORS = {
    "store_all": lambda n, s: store_all(n),
    "uniform": uniform,
    "binomial": binomial,
    "mixed": mixed,
    "multistage": lambda n, s: multistage(n, (s + 1) // 2, s // 2),
    "online": lambda n, s: ended(online(s), n),
    "two_level": lambda n, s: ended(two_level(s + 2, s), n),
}
OFFLINE = {name: GENERATORS[name] for name in ("store_all", "uniform", "binomial", "mixed", "multistage")}


# ---- independent optima ---------------------------------------------------------------------------------------------


@cache
def fewest_advances(n: int, s: int) -> int:
    """Keep the first state, advance m, reverse the right part with one slot less and the left part with all."""
    if n <= 1:
        return 0
    if s == 1:
        return n * (n - 1) // 2
    return min(m + fewest_advances(m, s) + fewest_advances(n - m, s - 1) for m in range(1, n))


@cache
def fewest_evaluations(n: int, s: int) -> float:
    """As above from a state that is current and not kept; or keep the stages of the first step and go on."""
    if n <= 1:
        return n
    if s == 0:
        return float("inf")
    keep_state = min(m + fewest_evaluations(m, s) + fewest_evaluations(n - m, s - 1) for m in range(1, n))
    return min(keep_state, 1 + fewest_evaluations(n - 1, s - 1))


SMALL = list(itertools.product(range(1, LONGEST + 1), range(1, MOST + 1)))


# ---- every schedule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 150), s=st.integers(1, 20))
def test_schedules_are_legal_and_keep_to_their_memory(name, n, s):
    interpret(GENERATORS[name](n, s))


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("n", "s"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (2, 50), (7, 6), (8, 6), (9, 50)])
def test_shortest_schedules(name, n, s):
    interpret(GENERATORS[name](n, s))


@pytest.mark.parametrize("generate", [binomial, mixed])
def test_no_action_can_be_left_out(generate):
    """The interpreter would notice."""
    schedule = generate(10, 3)
    for i in range(len(schedule)):
        shorter = Schedule("shorter", 10, 3, np.delete(schedule.actions, i, axis=0))
        with pytest.raises((AssertionError, KeyError)):
            interpret(shorter)


@pytest.mark.parametrize("name", OFFLINE)
def test_no_steps_need_no_actions(name):
    schedule = OFFLINE[name](0, 3)
    assert interpret(schedule).runs.total() == len(schedule) == schedule.peak == schedule.turn == 0


@pytest.mark.parametrize("name", GENERATORS)
def test_one_step_needs_no_slot(name):
    (action,) = GENERATORS[name](1, 3)
    assert action == (Kind.REVERSE, 0, 1, -1)


@pytest.mark.parametrize("name", GENERATORS)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 100), s=st.integers(1, 12))
def test_the_first_reversal_is_the_turn(name, n, s):
    schedule = GENERATORS[name](n, s)
    assert set(schedule.actions[: schedule.turn, 0]) <= {Kind.ADVANCE, Kind.KEEP, Kind.DROP, Kind.KEEP_STEP}
    assert tuple(schedule.actions[schedule.turn]) == (Kind.REVERSE, n - 1, n, -1)


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize("s", [1, 2, 7, 40])
def test_longer_schedules(name, s):
    interpret(OFFLINE[name](3001, s))


# ---- binomial -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "advances"),
    [
        (100, (490, 316, 222, 178, 148)),
        (1000, (12155, 6284, 3636, 2747, 1948)),
        (1202, (15651, 7900, 4645, 3353, 2352)),
        (10000, (278730, 112868, 57624, 37976, 28622)),
    ],
)
def test_published_counts(n, advances):
    slots = (3, 5, 10, 20, 50)
    assert tuple(binomial_advances(n, s) for s in slots) == advances
    assert tuple(binomial(n, s).advances for s in slots) == advances


def test_longest_chains():
    assert [longest(3, 3), longest(5, 5), longest(10, 5)] == [20, 252, 3003]
    assert repetitions(1202, 10) == 5


def test_closed_form_is_the_optimum():
    for n, s in SMALL:
        assert binomial_advances(n, s) == fewest_advances(n, s)


def test_binomial_schedules_reach_the_optimum():
    for n, s in SMALL:
        schedule = binomial(n, s)
        run = interpret(schedule)
        assert schedule.advances == fewest_advances(n, s)
        assert schedule.evaluations == schedule.advances + n
        assert schedule.peak == min(s, n - 1)
        assert max(run.runs.values(), default=0) == repetitions(n, s)


@given(n=st.integers(0, 10**12), s=st.integers(1, 10**4))
def test_repetitions_are_the_smallest_that_suffice(n, s):
    r = repetitions(n, s)
    assert longest(s, r) >= n
    assert r == 0 or longest(s, r - 1) < n


def test_enough_slots_run_every_step_once():
    for n in range(2, 30):
        assert binomial(n, n - 1).advances == store_all(n).advances == mixed(n, n - 1).advances == n - 1
        assert binomial(n, 10 * n).peak == store_all(n).peak == n - 1


# ---- mixed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "evaluations", "of_states"), [(3, 12986, 13155), (5, 6828, 7284), (10, 3921, 4636), (30, 2522, 3472)]
)
def test_published_counts_of_mixed_schedules(s, evaluations, of_states):
    assert mixed_evaluations(1000, s) == mixed(1000, s).evaluations == evaluations
    assert binomial_advances(1000, s) + 1000 == binomial(1000, s).evaluations == of_states


def test_closed_form_of_mixed_schedules_is_the_optimum():
    for n, s in SMALL:
        assert mixed_evaluations(n, s) == fewest_evaluations(n, s)


def test_mixed_schedules_reach_the_optimum():
    for n, s in SMALL:
        schedule = mixed(n, s)
        interpret(schedule)
        assert schedule.evaluations == fewest_evaluations(n, s) <= binomial(n, s).evaluations


@given(n=st.integers(0, 10**9), s=st.integers(1, 300))
def test_stages_save_something_but_not_the_advances(n, s):
    """Between t(n, s) + 1 and t(n, s) + n evaluations."""
    assert min(n, 1) <= mixed_evaluations(n, s) - binomial_advances(n, s) <= n


# ---- uniform and multistage -----------------------------------------------------------------------------------------


def test_uniform_places_are_even_and_cost_more_than_the_optimum():
    for n, s in SMALL:
        schedule = uniform(n, s)
        assert schedule.advances >= binomial_advances(n, s)
        forward, kept = schedule.actions[: schedule.turn], min(s, n - 1)
        places = forward[forward[:, 0] == Kind.KEEP, 1]
        assert places[: kept - 1].tolist() == [i * n // kept for i in range(kept - 1)]


@settings(deadline=None)
@given(n=st.integers(0, 300), memory=st.integers(1, 8), disk=st.integers(0, 8))
def test_multistage_needs_no_more_advances_than_memory_alone(n, memory, disk):
    schedule = multistage(n, memory, disk)
    assert schedule.advances == binomial_advances(n, memory + disk)
    assert (schedule.slots, schedule.disk_slots) == (memory, disk)
    assert schedule.peak <= memory
    assert schedule.disk_peak <= disk


@pytest.mark.parametrize(("n", "memory", "disk"), [(30, 2, 3), (50, 3, 2), (25, 1, 5), (60, 4, 4), (5, 3, 9)])
def test_disk_traffic_is_the_least_of_all_assignments(n, memory, disk):
    rows = binomial(n, memory + disk).actions
    slots = rows[np.isin(rows[:, 0], (Kind.KEEP, Kind.RESTORE)), 3]
    choices = itertools.combinations(range(memory + disk), disk)
    assert multistage(n, memory, disk).disk_traffic == min(np.isin(slots, choice).sum() for choice in choices)


def test_without_disk_multistage_is_binomial_with_slots_renamed():
    assert np.array_equal(multistage(100, 4, 0).actions[:, :3], binomial(100, 4).actions[:, :3])


# ---- unknown length -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", range(1, 7))
def test_online_costs_at_least_the_optimum_and_reaches_it_when_slots_are_used_up(s):
    run, full = online(s), {longest(s, r) for r in range(8)}
    for n in range(1, 250):
        schedule = run.finish()
        assert schedule.n_steps == n
        assert schedule.advances >= binomial_advances(n, s)
        assert schedule.advances == binomial_advances(n, s) or n not in full
        run.step()


@pytest.mark.parametrize("s", range(1, 13))
def test_online_is_optimal_up_to_two_repetitions_and_misses_by_one_up_to_three(s):
    run = online(s)
    for n in range(1, longest(s, 3) + 1):
        excess = run.finish().advances - binomial_advances(n, s)
        assert excess <= (n > longest(s, 2))
        run.step()


@pytest.mark.parametrize(("s", "excess"), [(1, 0), (2, 0.13), (3, 0.07), (4, 0.04), (5, 0.03), (8, 0.015)])
def test_online_stays_near_the_optimum(s, excess):
    """Up to 8 repetitions; the worst lengths are a few steps beyond beta(s, r)."""
    run = online(s)
    for n in range(1, min(longest(s, 8), 400)):
        assert run.finish().advances <= (1 + excess) * binomial_advances(n, s)
        run.step()


def test_no_run_of_unknown_length_is_optimal_throughout():
    """All sets of kept states that two slots can reach: none is optimal for all lengths from 7 to 10 = beta(2, 3)."""
    reachable = {(0,): 0}
    for n in range(3, 11):
        found: dict = {}
        for places, worst in reachable.items():
            for chosen in itertools.combinations(sorted({*places, n - 2}), min(2, n - 1)):
                if chosen[0] == 0:
                    cost = (
                        n
                        - 1
                        + sum(
                            fewest_advances(stop - start, 2 - i)
                            for i, (start, stop) in enumerate(itertools.pairwise((*chosen, n - 1)))
                        )
                    )
                    found[chosen] = min(found.get(chosen, 99), max(worst, cost - fewest_advances(n, 2)))
        reachable = found
    assert min(reachable.values()) == 1


@pytest.mark.parametrize("name", ["online", "two_level"])
@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 150), s=st.integers(1, 12))
def test_told_actions_lead_to_the_turn_of_the_schedule(name, n, s):
    """An adaptive run obeys each answer as it comes, and knows nothing of the end."""
    run = online(s) if name == "online" else two_level(s + 2, s)
    world = Interpreter(n, s, n)
    for k in range(n - 1):
        for action in run.step():
            world.execute(action)
        world.advance(k, k + 1, -1)
    schedule = run.finish()
    for action in itertools.islice(schedule, schedule.turn, None):
        world.execute(action)
    assert (world.reversed_down_to, world.held) == (0, {})
    assert world.peak <= s
    assert world.runs.total() == schedule.advances


def test_a_run_may_go_on_after_its_schedule_was_asked_for():
    asked, silent = online(3), online(3)
    for _ in range(50):
        asked.finish()
        asked.step(), silent.step()
    assert np.array_equal(asked.finish().actions, silent.finish().actions)


@settings(deadline=None)
@given(n=st.integers(1, 300), period=st.integers(1, 40), s=st.integers(1, 6))
def test_two_levels_cost_the_closed_form(n, period, s):
    schedule = ended(two_level(period, s), n)
    assert schedule.advances == two_level_advances(n, period, s)
    assert schedule.disk_peak == schedule.disk_slots == -(-(n - 1) // period)
    interpret(schedule)


# ---- length ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [3, 10, 100])
@pytest.mark.parametrize("generate", [binomial, mixed])
def test_a_million_steps(generate, s):
    start = time.perf_counter()
    schedule = generate(MILLION, s)
    print(f"{schedule} in {time.perf_counter() - start:.2f} s")
    if generate is binomial:
        assert schedule.advances == binomial_advances(MILLION, s)
    if generate is mixed:
        assert schedule.evaluations == mixed_evaluations(MILLION, s)
    reversals = np.isin(schedule.actions[:, 0], (Kind.REVERSE, Kind.REVERSE_KEPT))
    assert np.array_equal(schedule.actions[reversals, 1], np.arange(MILLION)[::-1])
    assert schedule.peak == s


@pytest.mark.parametrize("s", [1, 2, 10, 1000, MILLION])
def test_counts_of_a_million_steps(s):
    for count in (repetitions, binomial_advances, mixed_evaluations):
        start = time.perf_counter()
        count(MILLION, s)
        print(f"{count.__name__}({MILLION}, {s}) in {1e6 * (time.perf_counter() - start):.0f} us")
    assert binomial_advances(MILLION, 1) == comb(MILLION, 2)
