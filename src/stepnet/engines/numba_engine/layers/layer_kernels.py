"""Layers fused over depth: kernels that run the program of a scheme on tiles, forward, along tangents and in reverse.

Steps are outermost, then tiles, then the operations of a step, so that weights stay in the cache while all tiles pass.
All numbers of a run are in one flat array `memory`: a ring of records (what is wanted of a step later on), and scratch.
`tables` says where; here are only offsets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.layers.chains import (
    CHANNELS,
    MIRROR0,
    N_MIRRORED,
    OFFSET,
    SIZE,
    pull_chain,
    push_chain,
    run_chain,
)
from stepnet.engines.numba_engine.layers.node_operators import add_scaled, set_scaled, set_sum, set_zero

SLOPE, SUM, SCALED, ZERO = range(4)
SCRATCH, HERE, NEXT, PREVIOUS = range(4)
AHEAD = 2**18  # bytes that are asked for before they are wanted; the cache holds several times as many


class LayerProgram(NamedTuple):
    """Instructions (kind, row, row, row, number, flag, row) with two weights; rows are found by kind and offset.

    A slope may come with the sum that it goes into, its pullback with what the gradients come from: `instructions`.

    For every step and slope: its time, the first control of the weights there, and the weights of the controls;
    `is_direct` says that weights are used as they are stored.  The reverse run reads of a record what lies
    from `wanted` on.
    """

    forward: np.ndarray
    forward_weights: np.ndarray
    reverse: np.ndarray
    reverse_weights: np.ndarray
    row_kind: np.ndarray
    row_place: np.ndarray
    row_size: np.ndarray
    bar_kind: np.ndarray
    bar_place: np.ndarray
    tape_kind: np.ndarray
    tape_place: np.ndarray
    part: np.ndarray
    times: np.ndarray
    first: np.ndarray
    basis: np.ndarray
    is_direct: int
    wanted: int


class LayerWorkspace(NamedTuple):
    """Where a worker writes, and the sizes of a record, of the state's gradients, of the parts of the scratch."""

    memory: np.ndarray
    mixed: np.ndarray
    mixed_bar: np.ndarray
    base: np.ndarray
    at: np.ndarray
    bar_at: np.ndarray
    dot_at: np.ndarray
    ahead: np.ndarray
    tiles: int
    period: int
    record: int
    scratch: int
    bars: int
    bar_size: int
    work: int
    work_size: int
    dots: int


# ---- weights at a time ----------------------------------------------------------------------------------------------


@inlined
def antisymmetrise(chains, slot, W, w0):
    """W_k - W_mirror(k)', in place, in the slot of a K - K'; pairs are done together."""
    n = chains.slots[slot, CHANNELS]
    square = n * n
    for k in range(chains.slots[slot, N_MIRRORED]):
        m = chains.mirror[chains.slots[slot, MIRROR0] + k]
        if m >= k:
            a, b = w0 + k * square, w0 + m * square
            for i in range(n):
                for j in range(i + 1 if m == k else n):
                    difference = W[a + i * n + j] - W[b + j * n + i]
                    W[a + i * n + j] = difference
                    W[b + j * n + i] = -difference


@inlined
def prepare(chains, program, room, theta, mixed, step):
    """Weights of all slopes of a step: where they are stored, or mixed from their controls."""
    direct = program.is_direct != 0
    for i in range(program.part.shape[0]):
        at = i * (mixed.shape[0] // program.part.shape[0])
        for s in range(chains.slots.shape[0]):
            offset, size = chains.slots[s, OFFSET], chains.slots[s, SIZE]
            start = offset + program.first[step, i] * size
            if direct:
                room.base[i, s] = start
            else:
                room.base[i, s] = at
                for e in range(size):
                    total = program.basis[step, i, 0] * theta[start + e]
                    for d in range(1, program.basis.shape[2]):
                        total += program.basis[step, i, d] * theta[start + d * size + e]
                    mixed[at + e] = total
                antisymmetrise(chains, s, mixed, at)
                at += size


@inlined
def scatter(chains, program, room, theta_bar, step):
    """Gradients of mixed weights go to their controls."""
    for i in range(program.part.shape[0]):
        for s in range(chains.slots.shape[0]):
            size = chains.slots[s, SIZE]
            start = chains.slots[s, OFFSET] + program.first[step, i] * size
            antisymmetrise(chains, s, room.mixed_bar, room.base[i, s])
            for d in range(program.basis.shape[2]):
                weight = program.basis[step, i, d]
                for e in range(size):
                    theta_bar[start + d * size + e] += weight * room.mixed_bar[room.base[i, s] + e]
    room.mixed_bar[:] = 0.0


# ---- programs -------------------------------------------------------------------------------------------------------


@inlined
def locate(program, room, tile, slot):
    """Offsets of all rows of a step, and of the record before."""
    here = (slot % room.period * room.tiles + tile) * room.record
    following = ((slot + 1) % room.period * room.tiles + tile) * room.record
    for r in range(program.row_kind.shape[0]):
        kind = program.row_kind[r]
        start = room.scratch if kind == SCRATCH else here if kind == HERE else following
        room.at[r] = start + program.row_place[r]
    return here, ((slot + room.period - 1) % room.period * room.tiles + tile) * room.record


@inlined
def look_ahead(program, room, tile, slot, following):
    """What comes next is wanted soon: the record of the next tile at this slot, or of the first one at another."""
    place = slot * room.tiles + tile + 1 if tile + 1 < room.tiles else following * room.tiles
    room.ahead[0] = place % (room.period * room.tiles) * room.record + program.wanted
    room.ahead[1] = room.ahead[0] + min(room.record, AHEAD // room.memory.itemsize)


@inlined
def locate_dots(program, room, tile, slot):
    """Offsets of the tangents of all rows; those of two steps take turns."""
    here = room.dots + (slot % 2 * room.tiles + tile) * room.record
    following = room.dots + ((slot + 1) % 2 * room.tiles + tile) * room.record
    scratch = room.dots + 2 * room.tiles * room.record
    for r in range(program.row_kind.shape[0]):
        kind = program.row_kind[r]
        start = scratch if kind == SCRATCH else here if kind == HERE else following
        room.dot_at[r] = start + program.row_place[r]


@inlined
def locate_tape(program, room, i, here, previous):
    """Where the tape of slope i is."""
    kind = program.tape_kind[i]
    return (room.scratch if kind == SCRATCH else here if kind == HERE else previous) + program.tape_place[i]


@inlined
def locate_bars(program, room, tile, slot):
    """Offsets of the gradients of all rows; those of the state before and after a step take turns."""
    here = room.bars + (slot % 2 * room.tiles + tile) * room.bar_size
    following = room.bars + ((slot + 1) % 2 * room.tiles + tile) * room.bar_size
    for r in range(program.bar_kind.shape[0]):
        kind = program.bar_kind[r]
        start = room.scratch if kind == SCRATCH else here if kind == HERE else following
        room.bar_at[r] = start + program.bar_place[r]


@inlined
def run_tiles(machine, chains, program, room, weights, step, slot):
    """A step of all tiles; its records begin at `slot`."""
    for tile in range(room.tiles):
        here, previous = locate(program, room, tile, slot)
        look_ahead(program, room, tile, slot, slot + 1)
        for m in range(program.forward.shape[0]):
            o = program.forward[m]
            kind, out, one, other, i, is_added = o[0], o[1], o[2], o[3], o[4], o[5]
            size, v, w = program.row_size[out], program.forward_weights[m, 0], program.forward_weights[m, 1]
            if kind == SLOPE:
                tape, sum0 = locate_tape(program, room, i, here, previous), room.at[o[6]] if is_added else -1
                run_chain(
                    machine, chains, program.part[i], weights, room.base, i, program.times[step, i], room.memory,
                    room.at[one], room.at[out], tape, room.work, room.work_size, room.at[other], sum0, v, w,
                )  # fmt: skip
            elif kind == SUM:
                set_sum(room.memory, room.at[out], room.at[one], room.at[other], size, v, w)
            elif is_added:
                add_scaled(room.memory, room.at[out], room.at[one], size, v)
            else:
                set_scaled(room.memory, room.at[out], room.at[one], size, v)


@Kernel
def forward(machine, chains, program, room, theta, step, slot, count):
    """`count` steps from step `step` on; their records begin at `slot`."""
    weights = theta if program.is_direct != 0 else room.mixed
    for _ in range(count):
        prepare(chains, program, room, theta, room.mixed, step)
        run_tiles(machine, chains, program, room, weights, step, slot)
        step += 1
        slot += 1
    return 0


@Kernel
def tangent(machine, chains, program, room, theta, theta_dot, mixed_dot, step, slot, count, is_known):
    """As `forward`, with tangents, or tangents alone if the records of the steps are known."""
    direct = program.is_direct != 0
    weights, dots = theta if direct else room.mixed, theta_dot if direct else mixed_dot
    for _ in range(count):
        prepare(chains, program, room, theta, room.mixed, step)
        prepare(chains, program, room, theta_dot, mixed_dot, step)
        for tile in range(room.tiles):
            here, previous = locate(program, room, tile, slot)
            locate_dots(program, room, tile, slot)
            look_ahead(program, room, tile, slot, slot + 1)
            for m in range(program.forward.shape[0]):
                o = program.forward[m]
                kind, out, one, other, i, is_added = o[0], o[1], o[2], o[3], o[4], o[5]
                size, v, w = program.row_size[out], program.forward_weights[m, 0], program.forward_weights[m, 1]
                a, b, c = room.at[out], room.at[one], room.at[other]
                a_dot, b_dot, c_dot = room.dot_at[out], room.dot_at[one], room.dot_at[other]
                if kind == SLOPE:
                    tape = locate_tape(program, room, i, here, previous)
                    t, part = program.times[step, i], program.part[i]
                    if not is_known:
                        sum0 = room.at[o[6]] if is_added else -1
                        run_chain(
                            machine, chains, part, weights, room.base, i, t, room.memory, b, a, tape, room.work,
                            room.work_size, c, sum0, v, w,
                        )  # fmt: skip
                    push_chain(
                        machine, chains, part, weights, dots, room.base, i, t, room.memory, b, b_dot, a, a_dot, tape,
                        room.work, room.work_size,
                    )  # fmt: skip
                    if is_added:
                        set_sum(room.memory, room.dot_at[o[6]], c_dot, a_dot, size, v, w)
                elif kind == SUM:
                    if not is_known:
                        set_sum(room.memory, a, b, c, size, v, w)
                    set_sum(room.memory, a_dot, b_dot, c_dot, size, v, w)
                elif is_added:
                    if not is_known:
                        add_scaled(room.memory, a, b, size, v)
                    add_scaled(room.memory, a_dot, b_dot, size, v)
                else:
                    if not is_known:
                        set_scaled(room.memory, a, b, size, v)
                    set_scaled(room.memory, a_dot, b_dot, size, v)
        step += 1
        slot += 1
    return 0


@Kernel
def pullback(machine, chains, program, undoing, is_undone, room, theta, theta_bar, step, slot, count, is_x_wanted):
    """`count` steps in reverse, the last of them step `step` with its record at `slot`.

    If `is_undone`, the program `undoing` makes the record of each step from the state behind it.  The gradients of what
    slopes begin with may not be wanted, as those of the inputs of a net.
    """
    direct = program.is_direct != 0
    weights, bars = theta if direct else room.mixed, theta_bar if direct else room.mixed_bar
    for _ in range(count):
        if is_undone:
            prepare(chains, undoing, room, theta, room.mixed, step)
            run_tiles(machine, chains, undoing, room, weights, step, slot)
        prepare(chains, program, room, theta, room.mixed, step)
        for tile in range(room.tiles):
            here, previous = locate(program, room, tile, slot)
            locate_bars(program, room, tile, slot)
            look_ahead(program, room, tile, slot, slot - 1 + room.period)
            for m in range(program.reverse.shape[0]):
                o = program.reverse[m]
                kind, out, one, i, is_added = o[0], o[1], o[2], o[4], o[5]
                size, v = program.row_size[out], program.reverse_weights[m, 0]
                if kind == SLOPE:
                    tape = locate_tape(program, room, i, here, previous)
                    begin = room.bar_at[o[3]] if is_added else -1
                    pull_chain(
                        machine, chains, program.part[i], weights, room.base, i, program.times[step, i], room.memory,
                        room.at[out], room.at[one], tape, room.bar_at[o[6]], v, room.bar_at[one], begin,
                        room.bar_at[out], bars, room.work, room.work_size, is_x_wanted,
                    )  # fmt: skip
                elif kind == ZERO:
                    set_zero(room.memory, room.bar_at[out], size)
                elif is_added:
                    add_scaled(room.memory, room.bar_at[out], room.bar_at[one], size, v)
                else:
                    set_scaled(room.memory, room.bar_at[out], room.bar_at[one], size, v)
        if not direct:
            scatter(chains, program, room, theta_bar, step)
        step -= 1
        slot -= 1
    return 0
