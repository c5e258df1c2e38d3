"""Sweeps over a stage of a net: forward, and back in a chosen memory.

A sweep is a generator: it yields the end state, is sent the gradient there and where those of the weights are added up,
and yields the gradient at the beginning with the drift of reconstructed states, 0 if none were.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.stage_runs import NetStage

BLOCK_BYTES = 2**21  # of the records of a segment that is run again: it stays in the cache
LEAST_BLOCK = 16  # steps of a segment at least, so that its bookkeeping does not matter

RING = 3  # records that undoing a step touches: its own, the one before and the one behind
STATES_AT_HAND = 4  # the first one, that of now, its gradient, and one on its way

Memory = str | Checkpoints
Sweep = Generator[Any, tuple[np.ndarray, np.ndarray], None]


class BlockGradient(NamedTuple):
    """The gradient at the beginning of a stage, and how far its reconstructed state missed the given one."""

    bar: np.ndarray
    drift: float = 0.0


def sweep(stage: NetStage, theta, theta_bar, x: np.ndarray, memory: Memory) -> Generator[np.ndarray, np.ndarray, None]:
    """Forward, and back once the gradient of the end state is sent; weights' gradients are added to `theta_bar`."""
    run = sweep_and_turn(stage, theta, x, memory)
    y_bar = yield next(run)
    yield run.send((y_bar, theta_bar)).bar


def sweep_and_turn(stage: NetStage, theta, x: np.ndarray, memory: Memory) -> Sweep:
    """As `sweep`, sent the gradient of the end state together with `theta_bar`, which nobody needs before."""
    stage = stage.fitted(len(x))
    if is_kept(stage, memory):
        return _sweep_kept(stage, theta, x)
    if memory == "reversible":
        return _sweep_reversible(stage, theta, x)
    return _sweep_scheduled(stage, theta, x, memory)


def is_kept(stage: NetStage, memory: Memory) -> bool:
    """Whether all records of a stage are kept."""
    return stage.is_single or memory == "all" or stage.count == 0


def _sweep_kept(stage: NetStage, theta, x: np.ndarray) -> Sweep:
    """With everything kept."""
    tape = stage.tape(len(x))
    y_bar, theta_bar = yield tape.run(theta, x).copy()
    found = tape.pull(theta, theta_bar, y_bar).copy()
    stage.put_by(tape)
    yield BlockGradient(found)


def _sweep_scheduled(stage: NetStage, theta, x: np.ndarray, memory: Memory) -> Sweep:
    begun = stage.carried(x)
    state, bar, kept, theta_bar = stage.opened(theta, begun), None, {}, None
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
                y_bar, theta_bar = yield stage.own(records[count, :, :width], len(x))
                bar = stage.carried(y_bar)
            stage.bars(room, count)[:] = bar
            stage.pull(room, stage.stored, theta, theta_bar, first, count)
            bar = stage.bars(room, 0).copy()
    stage.give_back(room)
    yield BlockGradient(stage.own(stage.closed(theta, theta_bar, begun, bar), len(x)))


def _sweep_reversible(stage: NetStage, theta, x: np.ndarray) -> Sweep:
    """Nothing is kept but both ends; on the way back each step is undone and pulled back at once.

    The last step leaves a record, for the tapes of slopes that it hands on.  The state before the first step tells how
    far its reconstruction missed it.
    """
    begun = stage.carried(x)
    opened = stage.opened(theta, begun)
    first, last, width = stage.n_opening, stage.n_steps - 1, begun.shape[1]
    room = stage.room(stage.stored, len(begun), RING)
    records = stage.records(room)
    records[last % RING, :, :width] = stage.advanced(theta, opened, first, stage.count - 1)
    stage.run(room, stage.stored, theta, last, 1, last)
    y_bar, theta_bar = yield stage.own(records[(last + 1) % RING, :, :width], len(x))
    stage.bars(room, last + 1)[:] = stage.carried(y_bar)
    stage.pull(room, stage.stored, theta, theta_bar, first, stage.count, first, is_undone=True)
    bar, drift = stage.bars(room, first).copy(), _measure_drift(stage, records[first % RING, :, :width], opened)
    stage.give_back(room)
    yield BlockGradient(stage.own(stage.closed(theta, theta_bar, begun, bar), len(x)), drift)


def _measure_drift(stage: NetStage, found: np.ndarray, wanted: np.ndarray) -> float:
    """How far rows `(groups, numbers)` miss others, as in `stepnet.engines.reconstruction`; infinite if they are no
    numbers."""
    by_sample = lambda rows: np.abs(rows.reshape(len(rows), -1, stage.group * TILE)).max(axis=1)
    with np.errstate(all="ignore"):
        size, error = by_sample(wanted), by_sample(found - wanted)
        known = size[size > 0]
        middle = len(known) // 2
        least = np.partition(known, middle)[middle] if len(known) else np.finfo(size.dtype).tiny
        drift = float(np.max(error / np.maximum(size, least)))
        return drift if drift == drift else np.inf


# ---- memory ---------------------------------------------------------------------------------------------------------


def block(stage: NetStage, groups: int) -> int:
    """Steps whose records stay in the cache."""
    return max(LEAST_BLOCK, BLOCK_BYTES // (stage.stored.record * stage.dtype.itemsize * groups))


def plan(stage: NetStage, memory: Memory, groups: int):
    """Steps in a segment, and the schedule over segments."""
    if isinstance(memory, Checkpoints) and memory.bytes is not None:
        size, slots = _choose_within(stage, memory.bytes, groups)
        return size, checkpoints.binomial(-(-stage.count // size), slots)
    size = min(block(stage, groups), stage.count)
    n_blocks = -(-stage.count // size)
    return size, checkpoints.binomial(n_blocks, n_blocks if isinstance(memory, str) else memory.slots)


def count_least_bytes(stage: NetStage, tiles: int) -> int:
    """What a sweep takes at least: all records of a chain by itself; else one step at a time and a kept state."""
    stage = stage.fitted(tiles)
    groups = stage.groups(tiles)
    if is_kept(stage, ""):
        return stage.dtype.itemsize * stage.room_size(stage.stored, groups, 2)
    return _count_bytes(stage, groups, 1, 1)


def count_repeated_steps(stage: NetStage, tiles: int, limit: int) -> int:
    """Steps that a sweep within some bytes advances over after it has come to the end."""
    stage = stage.fitted(tiles)
    if is_kept(stage, ""):
        return 0
    size, slots = _choose_within(stage, limit, stage.groups(tiles))
    return _count_advances(stage, size, slots) - (stage.count - size)


def _choose_within(stage: NetStage, limit: int, groups: int) -> tuple[int, int]:
    """Steps in a segment, and kept states: what costs least among those that fit into some bytes."""
    whole = min(block(stage, groups), stage.count)
    sizes = [whole]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    a_state = _count_bytes(stage, groups, 1, 1) - _count_bytes(stage, groups, 1, 0)
    choices = [(size, (limit - _count_bytes(stage, groups, size, 0)) // a_state) for size in sizes]
    fitting = [(size, slots) for size, slots in choices if slots >= 1]
    return min(fitting or [(1, 1)], key=lambda choice: _count_advances(stage, *choice))


def _count_advances(stage: NetStage, size: int, slots: int) -> int:
    return size * checkpoints.binomial_advances(-(-stage.count // size), slots)


def _count_bytes(stage: NetStage, groups: int, size: int, slots: int) -> int:
    """Kept states with those at hand, the records of a segment, and the room to advance in."""
    states = (slots + STATES_AT_HAND) * groups * stage.plain.bar_size
    rooms = stage.room_size(stage.stored, groups, size + 1) + stage.room_size(stage.plain, groups, 2)
    if stage.has_opening:
        rooms += stage.room_size(stage.opening, groups, 2)
    return stage.dtype.itemsize * (states + rooms)
