"""Layers fused over depth: kernels that run the step program of a scheme on tiles: forward, tangents and reverse.

The outermost loop is over steps, then tiles, then the operations of a step, so that weights stay in the cache for all
tiles.  All numbers of a run are in one flat array `memory`: a ring of records (what later passes need of each step),
and scratch.  `tables` computes the layout; the kernels only see offsets.
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
from stepnet.engines.numba_engine.layers.instructions import NOISE, PRODUCT, SLOPE, SUM, ZERO
from stepnet.engines.numba_engine.layers.node_operators import (
    add_product,
    add_scaled,
    set_product,
    set_scaled,
    set_sum,
    set_zero,
)
from stepnet.engines.numba_engine.layers.paired_noise import COMPONENTS, draw_for_pairs
from stepnet.engines.numba_engine.random.increments import draw_for_paths

SCRATCH, HERE, NEXT, PREVIOUS = range(4)
AHEAD = 2**18  # bytes that are prefetched; the cache holds several times as many


class LayerProgram(NamedTuple):
    """Records of `instructions.Instruction`; rows are located by kind and offset.

    For every step and slope: its time, the first control value of the weights there, and the coefficients of the
    control values; `is_direct` means that weights are used as they are stored.  The reverse run reads the part of a
    record that begins at `wanted`.
    """

    forward: np.ndarray
    reverse: np.ndarray
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
    """Arrays of a thread, and the sizes of a record, of the state's gradients and of the parts of the scratch."""

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


class LayerNoise(NamedTuple):
    """The Brownian paths of the samples of each tile: a step is `joined` cells, whose length has the root `scale`.

    `pairs` (tiles, half the samples of a tile) are the numbers of the draws that neighbouring samples share; they are
    empty if some neighbours share none.  `words` is workspace; runs on other threads have their own.
    """

    seed: np.uint64
    scale: float
    rounder: float
    joined: int
    paths: np.ndarray
    pairs: np.ndarray
    words: np.ndarray


# ---- weights at a time ----------------------------------------------------------------------------------------------


@inlined
def antisymmetrise(chains, slot, W, w0):
    """W_k - W_mirror(k)', in place, in the slot of a K - K'; pairs are processed together."""
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
def prepare(chains, program, workspace, theta, mixed, step):
    """Prepare the weights of all slopes of a step: taken as stored, or combined from their control values."""
    direct = program.is_direct != 0
    for i in range(program.part.shape[0]):
        at = i * (mixed.shape[0] // program.part.shape[0])
        for s in range(chains.slots.shape[0]):
            offset, size = chains.slots[s, OFFSET], chains.slots[s, SIZE]
            start = offset + program.first[step, i] * size
            if direct:
                workspace.base[i, s] = start
            else:
                workspace.base[i, s] = at
                for e in range(size):
                    total = program.basis[step, i, 0] * theta[start + e]
                    for d in range(1, program.basis.shape[2]):
                        total += program.basis[step, i, d] * theta[start + d * size + e]
                    mixed[at + e] = total
                antisymmetrise(chains, s, mixed, at)
                at += size


@inlined
def scatter(chains, program, workspace, theta_bar, step):
    """Add the gradients of combined weights to those of their control values."""
    for i in range(program.part.shape[0]):
        for s in range(chains.slots.shape[0]):
            size = chains.slots[s, SIZE]
            start = chains.slots[s, OFFSET] + program.first[step, i] * size
            antisymmetrise(chains, s, workspace.mixed_bar, workspace.base[i, s])
            for d in range(program.basis.shape[2]):
                weight = program.basis[step, i, d]
                for e in range(size):
                    theta_bar[start + d * size + e] += weight * workspace.mixed_bar[workspace.base[i, s] + e]
    workspace.mixed_bar[:] = 0.0


# ---- programs -------------------------------------------------------------------------------------------------------


@inlined
def locate(program, workspace, tile, slot):
    """Offsets of all rows of a step, and of the previous record."""
    here = (slot % workspace.period * workspace.tiles + tile) * workspace.record
    following = ((slot + 1) % workspace.period * workspace.tiles + tile) * workspace.record
    for r in range(program.row_kind.shape[0]):
        kind = program.row_kind[r]
        start = workspace.scratch if kind == SCRATCH else here if kind == HERE else following
        workspace.at[r] = start + program.row_place[r]
    return here, ((slot + workspace.period - 1) % workspace.period * workspace.tiles + tile) * workspace.record


@inlined
def look_ahead(program, workspace, tile, slot, following):
    """Prefetch the record of the next tile at this slot, or of the first tile at the slot `following`."""
    place = slot * workspace.tiles + tile + 1 if tile + 1 < workspace.tiles else following * workspace.tiles
    workspace.ahead[0] = place % (workspace.period * workspace.tiles) * workspace.record + program.wanted
    workspace.ahead[1] = workspace.ahead[0] + min(workspace.record, AHEAD // workspace.memory.itemsize)


@inlined
def locate_dots(program, workspace, tile, slot):
    """Offsets of the tangents of all rows; two sets alternate from step to step."""
    here = workspace.dots + (slot % 2 * workspace.tiles + tile) * workspace.record
    following = workspace.dots + ((slot + 1) % 2 * workspace.tiles + tile) * workspace.record
    scratch = workspace.dots + 2 * workspace.tiles * workspace.record
    for r in range(program.row_kind.shape[0]):
        kind = program.row_kind[r]
        start = scratch if kind == SCRATCH else here if kind == HERE else following
        workspace.dot_at[r] = start + program.row_place[r]


@inlined
def locate_tape(program, workspace, i, here, previous):
    """Offset of the tape of slope i."""
    kind = program.tape_kind[i]
    return (workspace.scratch if kind == SCRATCH else here if kind == HERE else previous) + program.tape_place[i]


@inlined
def locate_bars(program, workspace, tile, slot):
    """Offsets of the gradients of all rows; those of the state before and after a step alternate."""
    here = workspace.bars + (slot % 2 * workspace.tiles + tile) * workspace.bar_size
    following = workspace.bars + ((slot + 1) % 2 * workspace.tiles + tile) * workspace.bar_size
    for r in range(program.bar_kind.shape[0]):
        kind = program.bar_kind[r]
        start = workspace.scratch if kind == SCRATCH else here if kind == HERE else following
        workspace.bar_at[r] = start + program.bar_place[r]


@inlined
def draw_noise(noise, tile, step, memory, start, size):
    """Brownian increments of a step: features in rows, samples in columns."""
    samples, words, scale, rounder = noise.paths.shape[1], noise.words, noise.scale, noise.rounder
    is_paired, at_once = noise.pairs.shape[1] > 0, COMPONENTS if noise.pairs.shape[1] > 0 else 1
    for component in range(0, size // samples, at_once):
        rows = memory[start + component * samples : start + min(size, (component + at_once) * samples)]
        for k in range(noise.joined):
            cell = step * noise.joined + k
            if is_paired:
                draw_for_pairs(noise.seed, noise.pairs[tile], cell, component, scale, rounder, k > 0, rows, words)
            else:
                draw_for_paths(noise.seed, noise.paths[tile], cell, component, scale, rounder, k > 0, rows, words)


@inlined
def run_tiles(machine, chains, program, workspace, noise, weights, step, slot):
    """Run one step of all tiles; its records begin at `slot`."""
    for tile in range(workspace.tiles):
        here, previous = locate(program, workspace, tile, slot)
        look_ahead(program, workspace, tile, slot, slot + 1)
        for m in range(program.forward.shape[0]):
            o = program.forward[m]
            out, one, other, i, v, w = o.out, o.one, o.other, o.slope, o.v, o.w
            size = program.row_size[out]
            if o.kind == SLOPE:
                tape, sum0 = (
                    locate_tape(program, workspace, i, here, previous),
                    workspace.at[o.total] if o.is_added else -1,
                )
                run_chain(
                    machine, chains, program.part[i], weights, workspace.base, i, program.times[step, i],
                    workspace.memory,
                    workspace.at[one], workspace.at[out], tape, workspace.work, workspace.work_size,
                    workspace.at[other], sum0, v, w,
                )  # fmt: skip
            elif o.kind == SUM:
                set_sum(workspace.memory, workspace.at[out], workspace.at[one], workspace.at[other], size, v, w)
            elif o.kind == NOISE:
                draw_noise(noise, tile, step, workspace.memory, workspace.at[out], size)
            elif o.kind == PRODUCT:
                set_product(workspace.memory, workspace.at[out], workspace.at[one], workspace.at[other], size, v)
            elif o.is_added:
                add_scaled(workspace.memory, workspace.at[out], workspace.at[one], size, v)
            else:
                set_scaled(workspace.memory, workspace.at[out], workspace.at[one], size, v)


@Kernel
def forward(machine, chains, program, workspace, noise, theta, step, slot, count):
    """Run `count` steps from step `step` on; their records begin at `slot`."""
    weights = theta if program.is_direct != 0 else workspace.mixed
    for _ in range(count):
        prepare(chains, program, workspace, theta, workspace.mixed, step)
        run_tiles(machine, chains, program, workspace, noise, weights, step, slot)
        step += 1
        slot += 1
    return 0


@Kernel
def tangent(machine, chains, program, workspace, noise, theta, theta_dot, mixed_dot, step, slot, count, is_known):
    """As `forward`, with tangents, or tangents alone if the records of the steps are known."""
    direct = program.is_direct != 0
    weights, dots = theta if direct else workspace.mixed, theta_dot if direct else mixed_dot
    for _ in range(count):
        prepare(chains, program, workspace, theta, workspace.mixed, step)
        prepare(chains, program, workspace, theta_dot, mixed_dot, step)
        for tile in range(workspace.tiles):
            here, previous = locate(program, workspace, tile, slot)
            locate_dots(program, workspace, tile, slot)
            look_ahead(program, workspace, tile, slot, slot + 1)
            for m in range(program.forward.shape[0]):
                o = program.forward[m]
                out, one, other, i, v, w = o.out, o.one, o.other, o.slope, o.v, o.w
                size = program.row_size[out]
                a, b, c = workspace.at[out], workspace.at[one], workspace.at[other]
                a_dot, b_dot, c_dot = workspace.dot_at[out], workspace.dot_at[one], workspace.dot_at[other]
                if o.kind == SLOPE:
                    tape = locate_tape(program, workspace, i, here, previous)
                    t, part = program.times[step, i], program.part[i]
                    if not is_known:
                        sum0 = workspace.at[o.total] if o.is_added else -1
                        run_chain(
                            machine, chains, part, weights, workspace.base, i, t, workspace.memory, b, a, tape,
                            workspace.work,
                            workspace.work_size, c, sum0, v, w,
                        )  # fmt: skip
                    push_chain(
                        machine, chains, part, weights, dots, workspace.base, i, t, workspace.memory, b, b_dot, a,
                        a_dot, tape,
                        workspace.work, workspace.work_size,
                    )  # fmt: skip
                    if o.is_added:
                        set_sum(workspace.memory, workspace.dot_at[o.total], c_dot, a_dot, size, v, w)
                elif o.kind == SUM:
                    if not is_known:
                        set_sum(workspace.memory, a, b, c, size, v, w)
                    set_sum(workspace.memory, a_dot, b_dot, c_dot, size, v, w)
                elif o.kind == NOISE:  # drawn again even if values are known, because records do not store it
                    draw_noise(noise, tile, step, workspace.memory, a, size)
                    set_zero(workspace.memory, a_dot, size)
                elif o.kind == PRODUCT:
                    if not is_known:
                        set_product(workspace.memory, a, b, c, size, v)
                    set_product(workspace.memory, a_dot, b_dot, c, size, v)
                elif o.is_added:
                    if not is_known:
                        add_scaled(workspace.memory, a, b, size, v)
                    add_scaled(workspace.memory, a_dot, b_dot, size, v)
                else:
                    if not is_known:
                        set_scaled(workspace.memory, a, b, size, v)
                    set_scaled(workspace.memory, a_dot, b_dot, size, v)
        step += 1
        slot += 1
    return 0


@Kernel
def pullback(
    machine, chains, program, undoing, is_undone, workspace, noise, theta, theta_bar, step, slot, count, is_x_wanted
):  # fmt: skip
    """Pull back through `count` steps in reverse; the last of them is step `step` with its record at `slot`.

    If `is_undone`, the program `undoing` reconstructs the record of each step from the state after it.  Without
    `is_x_wanted` the gradients of the arguments of slopes are not computed, as for the inputs of a net.
    """
    direct = program.is_direct != 0
    weights, bars = theta if direct else workspace.mixed, theta_bar if direct else workspace.mixed_bar
    for _ in range(count):
        if is_undone:
            prepare(chains, undoing, workspace, theta, workspace.mixed, step)
            run_tiles(machine, chains, undoing, workspace, noise, weights, step, slot)
        prepare(chains, program, workspace, theta, workspace.mixed, step)
        for tile in range(workspace.tiles):
            here, previous = locate(program, workspace, tile, slot)
            locate_bars(program, workspace, tile, slot)
            look_ahead(program, workspace, tile, slot, slot - 1 + workspace.period)
            for m in range(program.reverse.shape[0]):
                o = program.reverse[m]
                out, one, i, v = o.out, o.one, o.slope, o.v
                size = program.row_size[out]
                if o.kind == SLOPE:
                    tape = locate_tape(program, workspace, i, here, previous)
                    begin = workspace.bar_at[o.other] if o.is_added else -1
                    pull_chain(
                        machine, chains, program.part[i], weights, workspace.base, i, program.times[step, i],
                        workspace.memory,
                        workspace.at[out], workspace.at[one], tape, workspace.bar_at[o.total], v,
                        workspace.bar_at[one], begin,
                        workspace.bar_at[out], bars, workspace.work, workspace.work_size, is_x_wanted,
                    )  # fmt: skip
                elif o.kind == ZERO:
                    set_zero(workspace.memory, workspace.bar_at[out], size)
                elif o.kind == NOISE:
                    draw_noise(noise, tile, step, workspace.memory, workspace.bar_at[out], size)
                elif o.kind == PRODUCT:
                    a, b, c = workspace.bar_at[out], workspace.bar_at[one], workspace.bar_at[o.other]
                    if o.is_added:
                        add_product(workspace.memory, a, b, c, size, v)
                    else:
                        set_product(workspace.memory, a, b, c, size, v)
                elif o.is_added:
                    add_scaled(workspace.memory, workspace.bar_at[out], workspace.bar_at[one], size, v)
                else:
                    set_scaled(workspace.memory, workspace.bar_at[out], workspace.bar_at[one], size, v)
        if not direct:
            scatter(chains, program, workspace, theta_bar, step)
        step -= 1
        slot -= 1
    return 0
