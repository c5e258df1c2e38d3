"""Noise of many paths side by side, for step kernels: rows are components, columns are paths.

`path0` and the number of columns are multiples of 16; columns beyond the last path are filled and ignored.  A column
depends on its path alone.  Functions allocate nothing and are compiled into the kernels that call them.
"""

from __future__ import annotations

import numpy as np

from stepnet.engines.numba_engine.codegen.intrinsics.cell_draws import write_cells, write_groups
from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact, exact_function
from stepnet.engines.numba_engine.codegen.intrinsics.normals import (
    HALF,
    LOW,
    ZERO,
    U,
    convert_to_normals,
    convert_to_uniform,
    draw_words,
)
from stepnet.engines.numba_engine.codegen.intrinsics.wide_vectors import prefer_wide_vectors
from stepnet.noise import bridge, discrete
from stepnet.noise.counters import (
    CELL_AREA,
    CELL_INCREMENT,
    EXIT,
    GROUP,
    HALF_GROUP,
    NODE,
    THREE_POINT,
    TWO_POINT,
)

PATHS_OF_A_DRAW = discrete.PATHS_OF_A_DRAW
LEAST_UPPER = U(2**32 - discrete.SIXTH)
SIXTH, ROOT_3 = U(discrete.SIXTH), discrete.ROOT_3
FIRST_BIT = U(1 << 31)
COMPONENT_SHIFT, STREAM_SHIFT = U(8), U(24)
LOG_GROUP, LOG_HALF_GROUP, BELOW_HALF_GROUP, HALF_GROUP_BIT = U(4), U(3), U(HALF_GROUP - 1), U(HALF_GROUP)  # GROUP = 16

quantise, halve, divide, join, remove = map(
    exact, (bridge.quantise, bridge.halve, bridge.divide, bridge.join, bridge.remove)
)


@exact
def pack_last_word(stream, component, path):
    """The fourth word of a counter: the high byte of the path, component and stream."""
    return (path >> HALF) | (U(component) << COMPONENT_SHIFT) | (U(stream) << STREAM_SHIFT)


@exact_function
def draw_cells(seed, stream, path0, cell0, stride, n_cells, component, scale, rounder, out, start, step):
    """Numbers of one component of 16 paths in the cells cell0, cell0 + stride, ...: scale times normal, rounded.

    Those of cell k are out.flat[start + k step] and the next.  The rounder 0 leaves numbers as they are.
    """
    prefer_wide_vectors()
    tag = pack_last_word(stream, component, ZERO)
    write_cells(seed, tag, path0, cell0, stride, n_cells, scale, rounder, out, start, step)


@exact_function
def draw_groups(seed, stream, path0, cell, scale, rounder, out):
    """Numbers of a cell for each component and path: scale times normal, rounded."""
    prefer_wide_vectors()
    for i in range(out.shape[0]):
        tag = pack_last_word(stream, i, ZERO)
        write_groups(seed, tag, path0, cell, out.shape[1] // GROUP, scale, rounder, out, i * out.shape[1])


@exact
def draw_increments(seed, path0, cell, scale, rounder, out):
    """Increments of a cell: `scale` is the square root of its length, `rounder` the rounding constant of the grid."""
    draw_groups(seed, CELL_INCREMENT, path0, cell, scale, rounder, out)


@exact_function
def draw_for_paths(seed, paths, cell, component, scale, rounder, is_added, row, words):
    """Increments of a cell for one component and any paths: `row` = or `row` += them.

    Words are drawn first, into `words` (2, paths), and converted in a separate loop, which takes a quarter less time.
    """
    for j in range(row.size):
        path = U(paths[j])
        pair = ((path >> LOG_GROUP) << LOG_HALF_GROUP) | (path & BELOW_HALF_GROUP)
        words[0, j], words[1, j] = draw_words(
            ZERO, U(cell), pair, pack_last_word(CELL_INCREMENT, component, pair), seed
        )
    for j in range(row.size):
        x, y = convert_to_normals(words[0, j], words[1, j])
        increment = quantise(scale * (x if U(paths[j]) & HALF_GROUP_BIT == ZERO else y), rounder)
        row[j] = row[j] + increment if is_added else increment


@exact
def draw_areas(seed, path0, cell, scale, out):
    """Space-time Levy areas of a cell: `scale` is the square root of a twelfth of its length."""
    draw_groups(seed, CELL_AREA, path0, cell, scale, 0.0, out)


@exact
def refine_cell(seed, path0, cell, length, rounder, levels, W, H):
    """Halve a cell `levels` times: W and H, (2^levels, components, paths), hold the cell in their first rows on entry.

    Each level runs from the last interval to the first, so that no interval is overwritten before it is halved.
    """
    for level in range(levels):
        h = length * 2.0**-level
        kick, twist = np.sqrt(h / 16.0), np.sqrt(h / 48.0)
        for place in range((1 << level) - 1, -1, -1):
            node = U((1 << level) + place)
            for i in range(W.shape[1]):
                halve_row(seed, node, cell, i, path0, kick, twist, rounder, W, H, place)


@exact_function
def halve_row(seed, node, cell, component, path0, kick, twist, rounder, W, H, place):
    """Halve one component of one interval, for all paths."""
    prefer_wide_vectors()
    W0, H0 = W[place, component], H[place, component]
    W1, H1 = W[2 * place, component], H[2 * place, component]
    W2, H2 = W[2 * place + 1, component], H[2 * place + 1, component]
    for j in range(W0.size):
        path = U(path0 + j)
        a, b = draw_words(node, U(cell), path, pack_last_word(NODE, component, path), seed)
        Z, N = convert_to_normals(a, b)
        first_W, first_H, second_W, second_H = halve(W0[j], H0[j], kick * Z, twist * N, rounder)
        W1[j], H1[j], W2[j], H2[j] = first_W, first_H, second_W, second_H


@exact
def draw_two_point(seed, path0, step, out):
    """-1 or 1 for each component and path; four paths share a draw."""
    for i in range(out.shape[0]):
        for first in range(0, out.shape[1], PATHS_OF_A_DRAW):
            group = U(path0 + first) >> U(2)
            a, b = draw_words(ZERO, U(step), group, pack_last_word(TWO_POINT, i, group), seed)
            for j, word in enumerate((a >> HALF, a & LOW, b >> HALF, b & LOW)):
                out[i, first + j] = -1.0 if word < FIRST_BIT else 1.0


@exact
def draw_three_point(seed, path0, step, out):
    """-sqrt(3), 0 or sqrt(3) for each component and path; four paths share a draw."""
    for i in range(out.shape[0]):
        for first in range(0, out.shape[1], PATHS_OF_A_DRAW):
            group = U(path0 + first) >> U(2)
            a, b = draw_words(ZERO, U(step), group, pack_last_word(THREE_POINT, i, group), seed)
            for j, word in enumerate((a >> HALF, a & LOW, b >> HALF, b & LOW)):
                out[i, first + j] = -ROOT_3 if word < SIXTH else (ROOT_3 if word >= LEAST_UPPER else 0.0)


@exact
def draw_uniform(seed, path, step, event):
    """A uniform number in (0, 1) for a path, a step and an event."""
    number = U(path)
    a, _ = draw_words(ZERO, U(step), number, pack_last_word(EXIT, event, number), seed)
    return convert_to_uniform(a)
