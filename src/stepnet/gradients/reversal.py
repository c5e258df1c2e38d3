"""The adjoint of a run under a memory policy: schedules of `checkpoints` executed on the steps of an engine.

The unit of a schedule is a block of steps: long enough to make the overhead of Python negligible, short enough for its
states to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Schedule
from stepnet.gradients.state_store import StateStore, StreamedStates

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
    from stepnet.engines.numba_engine.adjoint.step_sweeps import GradientSums, LossReadSteps

BLOCK_NUMBERS = 2**17  # of the states stored in a block: a megabyte
MOST_ON_DISK = 10_000  # states in the directory of a run


@dataclass(frozen=True)
class Cost:
    """What a gradient cost.

    Parameters
    ----------
    steps : int
        Steps of the run.
    advances : int
        Steps run forward in addition to the one inside each reversed step, including those that chose adaptive steps.
    states : int
        Maximum number of states stored at a time, including those inside a block.
    bytes : int
        Memory of these states.
    drift : float
        Distance of the reconstructed initial state from the given one in reversible runs, otherwise 0.
    """

    steps: int
    advances: int
    states: int
    bytes: int
    drift: float = 0.0


class Seeds:
    """Collects the states that enter the loss in the forward run, and returns their gradients in the reverse sweep.

    `places` are step numbers in ascending order, possibly repeated; the loss takes the states at all of them and
    returns an array of their shape, or several (for several losses, which are then pulled back together).
    """

    def __init__(
        self, linear: DifferentiableRun, places: Iterable[int], loss: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._linear, self.places, self.loss = linear, np.array(list(places), np.int64), loss
        self.states = np.zeros((len(self.places), linear.extract_state(linear.spread(linear.initial)).size))
        self.seen = np.zeros(len(self.places), bool)
        self._gradients: np.ndarray | None = None

    def collect(self, state: np.ndarray, step: int) -> None:
        """Record the state at a step, if it is one of the places and not yet collected."""
        here = self._find_step(step)
        if not self.seen[here].all():
            self.states[here], self.seen[here] = self._linear.extract_state(state), True

    def collect_stored(self, states: np.ndarray, first: int) -> None:
        """Record those of the stored states that enter the loss; the first of them is at step `first`."""
        here = self._find_range(first, first + len(states))
        if not self.seen[here].all():
            self.states[here] = self._linear.extract_states(states[self.places[here] - first])
            self.seen[here] = True

    def collect_flat(self, states: np.ndarray, steps: np.ndarray) -> None:
        """Record flat states of the problem at the given steps, in ascending order."""
        here = np.searchsorted(steps, self.places).clip(max=len(steps) - 1)
        is_there = steps[here] == self.places
        self.states[is_there], self.seen[is_there] = states[here[is_there]], True

    def put(self, states: np.ndarray, seen: np.ndarray) -> None:
        """Set the states that an earlier run has collected."""
        self.states[...], self.seen[...] = states, seen

    def forget(self) -> None:
        """Discard all collected states."""
        self.seen[...], self._gradients = False, None

    def list_inside(self, first: int, stop: int) -> list[int]:
        """The places after step `first` up to `stop`, ascending."""
        return np.unique(self.places[self._find_range(first + 1, stop + 1)]).tolist()

    def has_unseen(self, first: int, stop: int) -> bool:
        """Whether a state between two steps is still to be collected."""
        return not self.seen[self._find_range(first + 1, stop)].all()

    @property
    def gradients(self) -> np.ndarray:
        """The gradients of the losses (losses, places, state), once all states have been collected."""
        if self._gradients is None:
            self._gradients = self.loss(self.states).reshape(-1, *self.states.shape)
        return self._gradients

    def gradients_at(self, step: int) -> np.ndarray:
        """The gradient of each loss with respect to the flat state at a step; zeros if it does not enter."""
        return self.gradients[:, self._find_step(step)].sum(axis=1)

    def marks(self, first: int, stop: int) -> list[LossReadSteps]:
        """The gradients of each loss at the steps first <= step < stop, in the form the engine takes."""
        here = self._find_range(first, stop)
        at, starts = np.unique(self.places[here], return_index=True)
        if not at.size:
            return [self._linear.no_marks] * len(self.gradients)
        sums = np.add.reduceat(self.gradients[:, here], starts, axis=1)
        return [self._linear.marks(at, each) for each in sums]

    def _find_step(self, step: int) -> slice:
        return self._find_range(step, step + 1)

    def _find_range(self, first: int, stop: int) -> slice:
        """The places with first <= step < stop."""
        return slice(*np.searchsorted(self.places, (first, stop)))


class Reversal:
    """A forward run and its reverse sweep; at the end `bars` are the gradients with respect to the first state."""

    def __init__(self, linear: DifferentiableRun, seeds: Seeds, block: int) -> None:
        self.linear, self.seeds, self.block = linear, seeds, block
        self.begin, self.end = linear.begin, linear.n_steps
        self.bars: list[np.ndarray] = []  # one for each loss, from the turn on
        self.sums: list[GradientSums] = []
        self.n_blocks = -(-(self.end - self.begin) // block)
        self._states = np.empty((min(block, max(1, self.end - self.begin)), linear.width))
        self.advances = 0

    def open(self) -> np.ndarray:
        """The state at the beginning of the steps, after the starting procedure of a multistep scheme."""
        linear, initial = self.linear, self.linear.initial
        early = self.seeds.list_inside(-1, self.begin - 1)
        if early:
            starting = linear.starting()
            state = starting.open(initial)
            for at, place in pairwise([0, *early]):
                starting.forward(state, at, place - at)
                self.seeds.collect(linear.spread(starting.extract_state(state)), place)
        state = linear.open(initial)
        self.seeds.collect(state, self.begin)
        return state

    def close(self) -> list[np.ndarray]:
        """Finish the sweep; return the gradient of each loss with respect to the flat initial state."""
        self.turn()
        initial = self.linear.initial
        y_bars = [self.linear.close(initial, bar, sums) for bar, sums in zip(self.bars, self.sums, strict=True)]
        early = self.seeds.list_inside(-1, self.begin - 1)
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
        """Whether the loss has been evaluated."""
        return bool(self.bars)

    def turn(self) -> None:
        """Initialise the adjoint with the gradients at the end, once."""
        if not self.is_turned:
            self.bars = [self.linear.spread(gradient) for gradient in self.seeds.gradients_at(self.end)]
            self.sums = [self.linear.new_sums() for _ in self.bars]

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The first step of a range of blocks, and the one after their last."""
        return self.begin + start * self.block, min(self.begin + stop * self.block, self.end)

    def forward(self, state: np.ndarray, start: int, stop: int) -> None:
        """Advance over blocks; the states of blocks that enter the loss are stored and collected."""
        first, last = self.span(start, stop)
        if self.seeds.has_unseen(first, last):
            for block in range(start, stop):
                self._store(state, *self.span(block, block + 1))
        else:
            self.linear.forward(state, first, last - first)
            self.seeds.collect(state, last)
        self.advances += last - first

    def _store(self, state: np.ndarray, first: int, last: int) -> None:
        """Advance over a block and store the state before each step; those that enter the loss are collected."""
        self.linear.forward(state, first, last - first, self._states)
        self.seeds.collect_stored(self._states[: last - first], first)
        self.seeds.collect(state, last)

    def reverse(self, state: np.ndarray, start: int) -> None:
        """Run a block forward, storing the state before each step, then in reverse."""
        first, last = self.span(start, start + 1)
        if self.seeds.seen.all():  # so the state after the last step is not needed
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
    def count_stored_bytes(self) -> int:
        return self._states.nbytes


def count_steps_in_block(width: int, most_bytes: int | None = None) -> int:
    """Steps in a block of states of this width; their states use at most a quarter of a memory budget."""
    numbers = BLOCK_NUMBERS if most_bytes is None else min(BLOCK_NUMBERS, most_bytes // 32)
    return max(1, numbers // max(1, width))


def count_slots_beside_block(choice: Checkpoints, width: int, block: int) -> int:
    """The number of states that may be kept besides those inside a block."""
    size = 8 * max(1, width)
    return choice.slots or max(1, (choice.bytes or 0) // size - block)


def _find_block(linear: DifferentiableRun, most_bytes: int | None = None) -> int:
    return max(1, min(count_steps_in_block(linear.width, most_bytes), linear.n_steps - linear.begin))


def reverse_with_all_stored(linear: DifferentiableRun, seeds: Seeds) -> tuple[Reversal, Cost]:
    """Reverse with every state stored."""
    n = linear.n_steps - linear.begin
    run = Reversal(linear, seeds, max(1, n))
    state = run.open()
    if n:
        run.reverse(state, 0)
    return run, Cost(linear.n_steps, 0, n, run.count_stored_bytes)


class BlockReversal:
    """A reversal executed by a schedule: the unit is a block, the current state is changed in place."""

    def __init__(self, run: Reversal, store: StateStore, state: np.ndarray):
        self.run, self.store, self.state = run, store, state

    def advance(self, start: int, stop: int) -> None:
        self.run.forward(self.state, start, stop)

    def keep(self, start: int, slot: int) -> None:
        self.store.keep(start, slot, self.state)

    def restore(self, start: int, slot: int) -> None:
        self.store.restore(start, slot, self.state)

    def drop(self, start: int, slot: int) -> None:
        self.store.drop(start, slot)

    def reverse(self, start: int) -> None:
        self.run.reverse(self.state, start)

    def note(self, done: int) -> None:
        """Record the number of actions done."""
        self.store.note(self.run, done, self.state)


def _execute(run: Reversal, schedule: Schedule, store: StateStore, state: np.ndarray, done: int) -> None:
    """The actions that are not done yet, from a state."""
    blocks = BlockReversal(run, store, state)
    checkpoints.execute(schedule, blocks, done, note=blocks.note)
    store.finish()


def reverse_with_checkpoints(
    linear: DifferentiableRun, seeds: Seeds, choice: Checkpoints, name: str = ""
) -> tuple[Reversal, Cost]:
    """Reverse by the optimal schedule for a number of states."""
    run = Reversal(linear, seeds, _find_block(linear, choice.bytes))
    slots = count_slots_beside_block(choice, linear.width, run.block)
    if choice.disk is None:
        schedule = checkpoints.binomial(run.n_blocks, slots)
    else:
        schedule = checkpoints.multistage(run.n_blocks, slots, max(0, min(run.n_blocks - 1 - slots, MOST_ON_DISK)))
    store = StateStore(schedule, choice.disk, name)
    with store.lock():
        done, state = store.resume(run, run.open())
        _execute(run, schedule, store, state, done)
    return run, _collect_cost(run, schedule)


def reverse_after_streaming(linear: DifferentiableRun, seeds: Seeds, passed: StreamedStates) -> tuple[Reversal, Cost]:
    """The reverse sweep of a run that has just ended, from the states that were kept of it."""
    run = Reversal(linear, seeds, passed.block)
    run.open()
    schedule = passed.finish()
    store = StateStore(schedule, memory={slot: linear.spread(y) for slot, y in passed.kept.items()})
    _execute(run, schedule, store, linear.spread(passed.before), schedule.turn)
    return run, _collect_cost(run, schedule)


def _collect_cost(run: Reversal, schedule: Schedule) -> Cost:
    states = schedule.peak + len(run._states)
    return Cost(run.linear.n_steps, run.advances, states, states * 8 * max(1, run.linear.width))


def reverse_reversibly(linear: DifferentiableRun, seeds: Seeds) -> tuple[Reversal, Cost]:
    """Reverse without stored states: each is reconstructed from the one after it."""
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
    return run, Cost(linear.n_steps, linear.n_steps, run.block + 1, run.count_stored_bytes, drift)
