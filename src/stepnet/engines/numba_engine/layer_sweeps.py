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

RING = 3  # records that undoing a step touches: its own, the one before and the one behind

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
    y_bar = yield tape.run(theta, x).copy()
    found = tape.pull(theta, theta_bar, y_bar).copy()
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
    """Nothing is kept but the end; on the way back each step is undone and pulled back at once.

    The last step leaves a record, for the tapes of slopes that it hands on.
    """
    begun = stage.carried(x)
    first, last, width = stage.n_opening, stage.n_steps - 1, begun.shape[1]
    room = stage.room(stage.stored, len(begun), RING)
    records = stage.records(room)
    records[last % RING, :, :width] = stage.advanced(theta, stage.opened(theta, begun), first, stage.count - 1)
    stage.run(room, stage.stored, theta, last, 1, last)
    bar = stage.carried((yield stage.own(records[(last + 1) % RING, :, :width], len(x))))
    stage.bars(room, last + 1)[:] = bar
    stage.pull(room, stage.stored, theta, theta_bar, first, stage.count, first, is_undone=True)
    bar = stage.bars(room, first).copy()
    stage.give_back(room)
    yield stage.own(stage.closed(theta, theta_bar, begun, bar), len(x))


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
