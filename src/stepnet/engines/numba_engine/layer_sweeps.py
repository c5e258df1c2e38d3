"""Sweeps over a stage of a net: forward, and back in a chosen memory.

A sweep is a generator: it yields the end state, is sent the gradient there, and yields the gradient at the beginning.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind
from stepnet.engines.numba_engine.layer_runs import Stage

BLOCK_BYTES = 2**21  # of the records of a segment that is run again: it stays in the cache
LEAST_BLOCK = 16  # steps of a segment at least, so that its bookkeeping does not matter

Memory = str | Checkpoints
Sweep = Generator[np.ndarray, np.ndarray, None]


def sweep(stage: Stage, theta, theta_bar, x: np.ndarray, memory: Memory) -> Sweep:
    """Forward, and back once the gradient of the end state is sent; weights' gradients are added to `theta_bar`."""
    stage = stage.fitted(len(x))
    if stage.is_single or memory == "all" or stage.count == 0:
        return _kept(stage, theta, theta_bar, x)
    if memory == "reversible":
        return _reversible(stage, theta, theta_bar, x)
    return _scheduled(stage, theta, theta_bar, x, memory)


def _kept(stage: Stage, theta, theta_bar, x: np.ndarray) -> Sweep:
    """With everything kept."""
    tape = stage.tape(len(x))
    y_bar = yield tape.run(theta, x)
    found = tape.pull(theta, theta_bar, y_bar)
    stage.put_by(tape)
    yield found


def _scheduled(stage: Stage, theta, theta_bar, x: np.ndarray, memory: Memory) -> Sweep:
    begun = stage.carried(x)
    state, bar, kept = stage.opened(theta, begun), None, {}
    block, schedule = plan(stage, memory, len(begun))
    room = stage.room(stage.stored, len(begun), min(block, max(1, stage.count)) + 1)
    records, width = stage.records(room), begun.shape[1]
    for action in schedule:
        first = stage.n_opening + action.start * block
        if action.kind == Kind.ADVANCE:
            state = stage.advanced(theta, state, first, (action.stop - action.start) * block)
        elif action.kind == Kind.KEEP:
            kept[action.slot] = state
        elif action.kind == Kind.RESTORE:
            state = kept[action.slot]
        elif action.kind == Kind.DROP:
            del kept[action.slot]
        else:
            count = min(block, stage.n_steps - first)
            records[0, :, :width] = state
            stage.run(room, stage.stored, theta, first, count)
            if bar is None:
                bar = stage.carried((yield stage.own(records[count, :, :width], len(x))))
            stage.bars(room, count)[:] = bar
            stage.pull(room, stage.stored, theta, theta_bar, first, count)
            bar = stage.bars(room, 0).copy()
    stage.give_back(room)
    yield stage.own(stage.closed(theta, theta_bar, begun, bar), len(x))


def _reversible(stage: Stage, theta, theta_bar, x: np.ndarray) -> Sweep:
    """Records of a segment are at the slots 1, 2, ...; slot 0 gets what is left for the step before.

    Those of the last segment are kept on the way forward, the others found by undoing their steps.
    """
    begun = stage.carried(x)
    size, stop, width = min(block(stage, len(begun)), stage.count), stage.n_steps, begun.shape[1]
    kept = min(size + 1, stage.count)  # one step more than the segment, for slot 0
    state = stage.advanced(theta, stage.opened(theta, begun), stage.n_opening, stage.count - kept)
    room = stage.room(stage.stored, len(begun), size + 2)
    records = stage.records(room)
    records[size + 1 - kept, :, :width] = state
    stage.run(room, stage.stored, theta, stop - kept, kept, size + 1 - kept)
    bar = stage.carried((yield stage.own(records[size + 1, :, :width], len(x))))
    while stop > stage.n_opening:
        first = max(stage.n_opening, stop - size)
        count = stop - first
        if stop < stage.n_steps:
            records[count + 1, :, :width] = records[1, :, :width]  # before the next line, as count may be 1
            records[count] = records[0]
            _undo(stage, room, theta, first, count)
        stage.bars(room, count + 1)[:] = bar
        stage.pull(room, stage.stored, theta, theta_bar, first, count, 1)
        bar, stop = stage.bars(room, 1).copy(), first
    stage.give_back(room)
    yield stage.own(stage.closed(theta, theta_bar, begun, bar), len(x))


def _undo(stage: Stage, room, theta, first: int, count: int) -> None:
    """Fill the records of a segment from the state behind it."""
    if stage.undoing is not None:
        stage.run(room, stage.undoing, theta, first + count - 1, count, count, (-1, -1))
        return
    records, width = stage.records(room), stage.stored.bar_size
    before = stage.returned(theta, records[count + 1, :, :width], first + count - 1, count)
    records[1, :, :width] = before
    stage.run(room, stage.stored, theta, first, count, 1)


# ---- memory ---------------------------------------------------------------------------------------------------------


def block(stage: Stage, groups: int) -> int:
    """Steps whose records stay in the cache."""
    return max(LEAST_BLOCK, BLOCK_BYTES // (stage.stored.record * stage.dtype.itemsize * groups))


def plan(stage: Stage, memory: Memory, groups: int):
    """Steps in a segment, and the schedule over segments."""
    size = min(block(stage, groups), stage.count)
    n_blocks = -(-stage.count // size)
    if memory == "segments":
        return size, checkpoints.binomial(n_blocks, n_blocks)
    itemsize = stage.dtype.itemsize * groups
    slots = memory.slots or max(1, (memory.bytes // itemsize - stage.stored.record * size) // stage.plain.bar_size)
    return size, checkpoints.binomial(n_blocks, slots)
