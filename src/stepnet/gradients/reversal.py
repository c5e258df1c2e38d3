"""The adjoint of a run, in a chosen memory: schedules of `checkpoints` executed on the steps of an engine.

The unit of a schedule is a block of steps: long enough that Python does not matter, short enough to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind, Schedule
from stepnet.gradients.state_store import StateStore, StreamedStates

BLOCK_NUMBERS = 2**17  # of the states stored in a block: a megabyte
MOST_ON_DISK = 10_000  # states in the directory of a run


@dataclass(frozen=True)
class Cost:
    """What a gradient took.

    Parameters
    ----------
    steps : int
        Steps of the run.
    advances : int
        Steps run forward beyond the one inside each reversed step; those that chose adaptive steps are among them.
    states : int
        Most states kept at one time, those inside a block included.
    bytes : int
        Memory of them.
    drift : float
        Distance of the reconstructed initial state from the given one (reversible runs), else 0.
    """

    steps: int
    advances: int
    states: int
    bytes: int
    drift: float = 0.0


class Seeds:
    """Where the loss reads the trajectory: collects those states on the way, and gives their gradients on the way back.

    `places` are step numbers in ascending order, repeated ones too; the loss takes the states at all of them, and gives
    an array of their shape, or several (for several losses, which are then pulled back together).
    """

    def __init__(self, linear, places: Iterable[int], loss: Callable[[np.ndarray], np.ndarray]):
        self._linear, self.places, self.loss = linear, np.array(list(places), np.int64), loss
        self.states = np.zeros((len(self.places), linear.own(linear.spread(linear.problem.initial)).size))
        self.seen = np.zeros(len(self.places), bool)
        self._gradients: np.ndarray | None = None

    def collect(self, state: np.ndarray, step: int) -> None:
        """Note the state at a step, if it is one of the places and not seen before."""
        here = self._at(step)
        if not self.seen[here].all():
            self.states[here], self.seen[here] = self._linear.own(state), True

    def collect_stored(self, states: np.ndarray, first: int) -> None:
        """Note whatever is read of stored states, the first of which is that at step `first`."""
        here = self._between(first, first + len(states))
        if not self.seen[here].all():
            self.states[here] = self._linear.own_states(states[self.places[here] - first])
            self.seen[here] = True

    def collect_flat(self, states: np.ndarray, steps: np.ndarray) -> None:
        """Note flat states of the problem at some steps, ascending."""
        here = np.searchsorted(steps, self.places).clip(max=len(steps) - 1)
        is_there = steps[here] == self.places
        self.states[is_there], self.seen[is_there] = states[here[is_there]], True

    def put(self, states: np.ndarray, seen: np.ndarray) -> None:
        """States that an earlier run has collected."""
        self.states[...], self.seen[...] = states, seen

    def forget(self) -> None:
        """As if nothing had been collected."""
        self.seen[...], self._gradients = False, None

    def inside(self, first: int, stop: int) -> list[int]:
        """The places after step `first` up to `stop`, ascending."""
        return np.unique(self.places[self._between(first + 1, stop + 1)]).tolist()

    def has_unseen(self, first: int, stop: int) -> bool:
        """Whether a state between two steps is still to be collected."""
        return not self.seen[self._between(first + 1, stop)].all()

    @property
    def gradients(self) -> np.ndarray:
        """(losses, places, state): what the loss has for gradients, once all states have been collected."""
        if self._gradients is None:
            self._gradients = self.loss(self.states).reshape(-1, *self.states.shape)
        return self._gradients

    def gradients_at(self, step: int) -> np.ndarray:
        """The gradient of each loss with respect to the flat state at a step; zeros if it is not read."""
        return self.gradients[:, self._at(step)].sum(axis=1)

    def marks(self, first: int, stop: int) -> list:
        """The gradients of each loss at the steps from `first` on and before `stop`, as the engine takes them."""
        here = self._between(first, stop)
        at, starts = np.unique(self.places[here], return_index=True)
        if not at.size:
            return [self._linear.no_marks] * len(self.gradients)
        sums = np.add.reduceat(self.gradients[:, here], starts, axis=1)
        return [self._linear.marks(at, each) for each in sums]

    def _at(self, step: int) -> slice:
        return self._between(step, step + 1)

    def _between(self, first: int, stop: int) -> slice:
        """The places from step `first` on and before `stop`."""
        return slice(*np.searchsorted(self.places, (first, stop)))


class Reversal:
    """One run forward and back; `bars` end as gradients with respect to the state at the beginning of the steps."""

    def __init__(self, linear, seeds: Seeds, block: int):
        self.linear, self.seeds, self.block = linear, seeds, block
        self.begin, self.end = linear.begin, linear.n_steps
        self.bars: list[np.ndarray] = []  # one for each loss, from the turn on
        self.sums: list = []
        self.n_blocks = -(-(self.end - self.begin) // block)
        self._states = np.empty((min(block, max(1, self.end - self.begin)), linear.width))
        self.advances = 0

    def open(self) -> np.ndarray:
        """The state at the beginning of the steps, after the opening of a multistep scheme."""
        linear, initial = self.linear, self.linear.problem.initial
        early = self.seeds.inside(-1, self.begin - 1)
        if early:
            starting = linear.starting()
            state = starting.open(initial)
            for at, place in pairwise([0, *early]):
                starting.forward(state, at, place - at)
                self.seeds.collect(linear.spread(starting.own(state)), place)
        state = linear.open(initial)
        self.seeds.collect(state, self.begin)
        return state

    def close(self) -> list[np.ndarray]:
        """The gradient of each loss with respect to the flat initial state, at the end of all."""
        self.turn()
        initial = self.linear.problem.initial
        y_bars = [self.linear.close(initial, bar, sums) for bar, sums in zip(self.bars, self.sums, strict=True)]
        early = self.seeds.inside(-1, self.begin - 1)
        if not early:
            return y_bars
        starting = self.linear.starting()
        states, state = np.empty((early[-1], starting.width)), starting.open(initial)
        starting.forward(state, 0, early[-1], states)
        for number, sums in enumerate(self.sums):
            bar = starting.spread(np.zeros_like(initial))
            for place, before in pairwise([*reversed(early), 0]):
                bar += starting.spread(self.seeds.gradients_at(place)[number])
                starting.backward(states[before:place], before, place - before, bar, sums)
            y_bars[number] = y_bars[number] + starting.close(initial, bar, sums)
        return y_bars

    @property
    def is_turned(self) -> bool:
        """Whether the loss has been read."""
        return bool(self.bars)

    def turn(self) -> None:
        """Begin with the gradients at the end, once."""
        if not self.is_turned:
            self.bars = [self.linear.spread(gradient) for gradient in self.seeds.gradients_at(self.end)]
            self.sums = [self.linear.new_sums() for _ in self.bars]

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The first step of some blocks, and the one after their last."""
        return self.begin + start * self.block, min(self.begin + stop * self.block, self.end)

    def forward(self, state: np.ndarray, start: int, stop: int) -> None:
        """Advance over blocks; those of which the loss reads states are stored, so that they can be collected."""
        first, last = self.span(start, stop)
        if self.seeds.has_unseen(first, last):
            for block in range(start, stop):
                self._store(state, *self.span(block, block + 1))
        else:
            self.linear.forward(state, first, last - first)
            self.seeds.collect(state, last)
        self.advances += last - first

    def _store(self, state: np.ndarray, first: int, last: int) -> None:
        """Advance over a block with the states before its steps stored; the loss may read them and the last."""
        self.linear.forward(state, first, last - first, self._states)
        self.seeds.collect_stored(self._states[: last - first], first)
        self.seeds.collect(state, last)

    def reverse(self, state: np.ndarray, start: int) -> None:
        """Run a block forward with the states before its steps stored, then back."""
        first, last = self.span(start, start + 1)
        if self.seeds.seen.all():  # so the state after the last step is not wanted
            self.linear.forward(state, first, last - 1 - first, self._states)
            self._states[last - 1 - first] = state.ravel()
        else:
            self._store(state, first, last)
        self.pull_back(first, last)

    def pull_back(self, first: int, last: int) -> None:
        """The adjoint of a block whose states are stored."""
        self.turn()
        for bar, sums, marks in zip(self.bars, self.sums, self.seeds.marks(first, last), strict=True):
            self.linear.backward(self._states[: last - first], first, last - first, bar, sums, marks)

    @property
    def stored_bytes(self) -> int:
        return self._states.nbytes


def count_steps_in_block(width: int, most_bytes: int | None = None) -> int:
    """Steps in a block of states of some width; at most a quarter of a memory budget is for those inside one."""
    numbers = BLOCK_NUMBERS if most_bytes is None else min(BLOCK_NUMBERS, most_bytes // 32)
    return max(1, numbers // max(1, width))


def count_slots_beside_block(choice: Checkpoints, width: int, block: int) -> int:
    """States that may be kept besides those inside a block."""
    size = 8 * max(1, width)
    return choice.slots or max(1, (choice.bytes or 0) // size - block)


def _find_block(linear, most_bytes: int | None = None) -> int:
    return max(1, min(count_steps_in_block(linear.width, most_bytes), linear.n_steps - linear.begin))


def reverse_with_all_stored(linear, seeds: Seeds) -> tuple[Reversal, Cost]:
    """Every state is kept."""
    n = linear.n_steps - linear.begin
    run = Reversal(linear, seeds, max(1, n))
    state = run.open()
    if n:
        run.reverse(state, 0)
    return run, Cost(linear.n_steps, 0, n, run.stored_bytes)


def reverse_with_checkpoints(linear, seeds: Seeds, choice: Checkpoints, name: str = "") -> tuple[Reversal, Cost]:
    """The optimal schedule for a number of states."""
    run = Reversal(linear, seeds, _find_block(linear, choice.bytes))
    slots = count_slots_beside_block(choice, linear.width, run.block)
    if choice.disk is None:
        schedule = checkpoints.binomial(run.n_blocks, slots)
    else:
        schedule = checkpoints.multistage(run.n_blocks, slots, max(0, min(run.n_blocks - 1 - slots, MOST_ON_DISK)))
    store = StateStore(schedule, choice.disk, name)
    with store.opened():
        done, state = store.resume(run, run.open())
        _execute(run, schedule, store, done, state)
    return run, _collect_cost(run, schedule)


def reverse_after_streaming(linear, seeds: Seeds, passed: StreamedStates) -> tuple[Reversal, Cost]:
    """The way back of a run that has just passed, with the states that were kept of it."""
    run = Reversal(linear, seeds, passed.block)
    run.open()
    schedule = passed.finish()
    store = StateStore(schedule, memory={slot: linear.spread(y) for slot, y in passed.kept.items()})
    _execute(run, schedule, store, schedule.turn, linear.spread(passed.before))
    return run, _collect_cost(run, schedule)


def _collect_cost(run: Reversal, schedule: Schedule) -> Cost:
    states = schedule.peak + len(run._states)
    return Cost(run.linear.n_steps, run.advances, states, states * 8 * max(1, run.linear.width))


def reverse_reversibly(linear, seeds: Seeds) -> tuple[Reversal, Cost]:
    """No states are kept: each is reconstructed from the one after it."""
    run = Reversal(linear, seeds, _find_block(linear))
    initial = run.open()
    state = initial.copy()
    run.forward(state, 0, run.n_blocks)
    for start in range(run.n_blocks - 1, -1, -1):
        first, last = run.span(start, start + 1)
        linear.undo(state, first, last - first, run._states)
        run.pull_back(first, last)
    scale = max(np.max(np.abs(initial), initial=0.0), np.finfo(float).tiny)
    is_near = np.all(np.abs(state) < np.inf)
    drift = float(np.max(np.abs(state - initial), initial=0.0) / scale) if is_near else float("inf")
    return run, Cost(linear.n_steps, linear.n_steps, run.block + 1, run.stored_bytes, drift)


def _execute(run: Reversal, schedule: Schedule, store: StateStore, done: int, state: np.ndarray) -> None:
    """Actions in order from a state, without those that are done."""
    for number, action in enumerate(schedule):
        if number < done:
            continue
        if action.kind == Kind.ADVANCE:
            run.forward(state, action.start, action.stop)
        elif action.kind == Kind.KEEP:
            store.keep(action, state)
            store.note(run, number + 1, state)
        elif action.kind == Kind.RESTORE:
            store.restore(action, state)
        elif action.kind == Kind.DROP:
            store.drop(action)
        else:
            run.reverse(state, action.start)
            store.note(run, number + 1, state)
    store.finish()
