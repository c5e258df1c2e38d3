"""Sweeps over the rows of a grid: whole steps as passes, plain or as a wavefront over several steps.

A description in two arrays, of integers and of numbers (`sweep_tables`), says what a pass computes; row functions
(`row_code`) are called by address.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray, types

from stepnet.engines.numba_engine.codegen.intrinsics.address_calls import call_row
from stepnet.engines.numba_engine.codegen.kernels import FieldKernel, inlined
from stepnet.engines.numba_engine.stencils.row_code import GROUP

# The integers of a description: sizes, where tables begin, and one block for each axis of rows.
(N_WEIGHTS, N_TERMS, N_0, N_1, ROW_BYTES, N_COLUMNS, COLUMN_WEIGHTS, N_ENDS, N_PATCHES, EDGES, FULL, ORDINALS) = range(
    12
)
(FIRST, BODY, LAST, PASSES, N_COEFFICIENTS, COEFFICIENTS, SWAPS, N_SWAPS, LAST_SWAPS, N_LAST_SWAPS) = range(12, 22)
(BLOCK, BLOCK_ROWS, AHEAD, BEHIND, LEVELS, N_LEVELS, RING_SLOT, BLOCK_SWAPS, N_BLOCK_SWAPS) = range(22, 31)
AXIS, AXIS_SIZE = 31, 13
(AXIS_N, AXIS_LOW, AXIS_HIGH, AXIS_BYTES, N_INTERIOR, N_SPECIAL, INTERIOR_OFFSETS, INTERIOR_WEIGHTS, SPECIAL_OFFSETS,
 SPECIAL_WEIGHTS, DIAGONAL, SPECIAL_DIAGONAL, IS_WRAPPED) = range(13)  # fmt: skip
HEADER = AXIS + 2 * AXIS_SIZE

MOST_INPUTS, MOST_OUTPUTS = 16, 8
PASS_SIZE = 6 + MOST_INPUTS + MOST_OUTPUTS
(ROW, SPECIAL_ROW, GROUP_ROW, SOURCE, N_INPUTS, N_OUTPUTS) = range(6)

# A level of a wavefront: its pass, and where its source, inputs and outputs are: a slot, bytes behind its address, the
# number of rows of a ring less one (0: the rows of a whole plane), and the bytes from row to row.
PLACE_SIZE = 4
LEVEL_SOURCE = 1
LEVEL_INPUTS = LEVEL_SOURCE + PLACE_SIZE
LEVEL_OUTPUTS = LEVEL_INPUTS + PLACE_SIZE * MOST_INPUTS
LEVEL_SIZE = LEVEL_OUTPUTS + PLACE_SIZE * MOST_OUTPUTS

PLAIN, KEEP, REVERSE = range(3)  # what happens to the states of steps
ROWS = 3  # one pass over some rows
MOST_TAPS = 64
FIRST_INPUT = GROUP * MOST_TAPS
FIRST_OUTPUT = FIRST_INPUT + GROUP * MOST_INPUTS
SCRATCH_INTEGERS = FIRST_OUTPUT + GROUP * MOST_OUTPUTS


class SweepArrays(NamedTuple):
    """The arrays of a call: addresses of the slots, the two of the description, rates, combined weights, scratch."""

    slots: object
    table: object
    numbers: object
    rates: object
    weights: object
    coefficients: object
    integers: object
    tap_weights: object
    sums: object


@inlined
def combine_weights(a, h):
    """The weights of all taps for these rates, and those of the sums for this step."""
    d, n = a.table, a.table[N_WEIGHTS]
    for k in range(n):
        total = 0.0
        for m in range(d[N_TERMS]):
            total += a.rates[m] * a.numbers[m * n + k]
        a.weights[k] = total
    for k in range(d[N_COEFFICIENTS]):
        at = d[COEFFICIENTS] + 2 * k
        a.coefficients[k] = a.numbers[at] * h ** a.numbers[at + 1]


@inlined
def find_class(d, axis, i):
    """The special row of index i along an axis of rows, -1 in the middle."""
    low, high, n = d[axis + AXIS_LOW], d[axis + AXIS_HIGH], d[axis + AXIS_N]
    if i < low:
        return i
    if i >= n - high:
        return low + i - (n - high)
    return -1


@inlined
def find_special(d, axis, i):
    """The same, -1 on a wrapped axis, whose rows are all alike but for the places of their neighbours."""
    return -1 if d[axis + IS_WRAPPED] else find_class(d, axis, i)


@inlined
def find_tap_tables(d, axis, i):
    """The number of taps along an axis other than the row itself; their offsets, their weights and its own weight."""
    special = find_class(d, axis, i)
    used = d[axis + N_INTERIOR]
    offsets, places, own = d[axis + INTERIOR_OFFSETS], d[axis + INTERIOR_WEIGHTS], d[axis + DIAGONAL]
    if special >= 0:
        offsets = d[axis + SPECIAL_OFFSETS] + special * d[axis + N_SPECIAL]
        if not d[axis + IS_WRAPPED]:
            used = d[axis + N_SPECIAL]
            places, own = d[axis + SPECIAL_WEIGHTS] + special * used, d[axis + SPECIAL_DIAGONAL] + special
    return used, offsets, places, own


@inlined
def locate_axis_taps(a, axis, i, is_special_row, address, first, count):
    """Append the taps along an axis of rows other than the row itself; returns their number and its own weight."""
    d, taps, weights = a.table, a.integers, a.tap_weights
    used, offsets, places, own = find_tap_tables(d, axis, i)
    for k in range(used):
        taps[first + count + k] = address + d[offsets + k] * d[axis + AXIS_BYTES]
        weights[count + k] = a.weights[places + k]
    if is_special_row:  # its function reads as many taps for every class
        for k in range(used, d[axis + N_SPECIAL]):
            taps[first + count + k] = address
            weights[count + k] = 0.0
        used = d[axis + N_SPECIAL]
    return count + used, a.weights[own]


@inlined
def address_of(array):
    """The address of an array as a signed integer, which sums keep an integer."""
    return np.int64(array.ctypes.data)


@inlined
def call_row_function(a, record, function, row):
    """Call a row function of a pass for the rows from `row` of the grid on; their taps and places are located."""
    d = a.table
    edges = full = address_of(a.numbers)
    if d[N_PATCHES] > 0:
        edges += 8 * (d[EDGES] + row * d[N_PATCHES] * d[N_ENDS])
        if function == SPECIAL_ROW:
            full += 8 * (d[FULL] + d[d[ORDINALS] + row] * d[N_PATCHES] * d[N_COLUMNS])
    integers = address_of(a.integers)
    call_row(
        d[record + function], integers, address_of(a.tap_weights), address_of(a.weights) + 8 * d[COLUMN_WEIGHTS],
        edges, full, address_of(a.rates) + 8 * d[N_TERMS], integers + 8 * FIRST_INPUT, integers + 8 * FIRST_OUTPUT,
        address_of(a.coefficients), address_of(a.sums), d[N_COLUMNS],
    )  # fmt: skip


@inlined
def locate_taps(a, i, j, is_special, source, first):
    """The taps of row (i, j) whose source is at an address, from integer `first` on; returns their number."""
    d = a.table
    a.integers[first] = source
    count, own, own_1 = 1, 0.0, 0.0
    if d[AXIS + AXIS_N] > 1:
        count, own = locate_axis_taps(a, AXIS, i, is_special, source, first, count)
    if d[AXIS + AXIS_SIZE + AXIS_N] > 1:
        count, own_1 = locate_axis_taps(a, AXIS + AXIS_SIZE, j, is_special, source, first, count)
    a.tap_weights[0] = own + own_1
    return count


@inlined
def count_alike(d, axis, i, most):
    """How many rows from i on, up to `most`, one function computes: all those of a group, or one."""
    last = d[axis + AXIS_N] - (0 if d[axis + IS_WRAPPED] else d[axis + AXIS_HIGH])
    return GROUP if most >= GROUP and i + GROUP <= last else 1


@inlined
def run_pass(a, record, begin, end):
    """One pass over the rows begin, ..., end - 1, one by one near boundaries, else in groups."""
    d, n_inputs, n_outputs = a.table, a.table[record + N_INPUTS], a.table[record + N_OUTPUTS]
    i, j, row = begin // d[N_1], begin % d[N_1], begin
    has_slope, is_plane = d[record + SOURCE] >= 0, d[N_1] == 1
    while row < end:
        is_special, n_rows = False, GROUP if row + GROUP <= end and (is_plane or j + GROUP <= d[N_1]) else 1
        if has_slope:
            is_special = find_special(d, AXIS, i) >= 0 or find_special(d, AXIS + AXIS_SIZE, j) >= 0
            if is_special:
                n_rows = 1
            elif is_plane:
                n_rows = count_alike(d, AXIS, i, n_rows)
            else:
                n_rows = count_alike(d, AXIS + AXIS_SIZE, j, n_rows)
        count = 0
        for g in range(n_rows):
            start = (row + g) * d[ROW_BYTES]
            for k in range(n_inputs):
                a.integers[FIRST_INPUT + g * n_inputs + k] = a.slots[d[record + 6 + k]] + start
            for k in range(n_outputs):
                a.integers[FIRST_OUTPUT + g * n_outputs + k] = a.slots[d[record + 6 + MOST_INPUTS + k]] + start
            if has_slope:
                at = a.slots[d[record + SOURCE]] + start
                count = locate_taps(a, i + g if is_plane else i, j if is_plane else j + g, is_special, at, g * count)
        call_row_function(a, record, SPECIAL_ROW if is_special else ROW if n_rows == 1 else GROUP_ROW, row)
        row += n_rows
        if is_plane:
            i += n_rows
        else:
            j += n_rows
            if j == d[N_1]:
                i, j = i + 1, 0


@inlined
def locate_row(a, place, row):
    """The address of a row in a ring or a plane, around which rows wrap."""
    d = a.table
    if d[place + 2] > 0:
        row = row & d[place + 2]
    elif row < 0 or row >= d[N_0]:
        row = row % d[N_0]
    return a.slots[d[place]] + d[place + 1] + row * d[place + 3]


@inlined
def locate_level_taps(a, level, row, here, is_special, first):
    """The taps of a row of a level from integer `first` on; returns their number."""
    d = a.table
    used, offsets, places, own = find_tap_tables(d, AXIS, here)
    if d[AXIS + IS_WRAPPED]:
        offsets = d[AXIS + INTERIOR_OFFSETS]
    a.integers[first] = locate_row(a, level + LEVEL_SOURCE, row)
    a.tap_weights[0] = a.weights[own] + 0.0
    for k in range(used):
        a.integers[first + 1 + k] = locate_row(a, level + LEVEL_SOURCE, row + d[offsets + k])
        a.tap_weights[1 + k] = a.weights[places + k]
    return 1 + used


@inlined
def run_level(a, level, begin, end):
    """The rows begin, ..., end - 1 of one level of a wavefront."""
    d, record, n = a.table, a.table[level], a.table[N_0]
    n_inputs, n_outputs, row = d[record + N_INPUTS], d[record + N_OUTPUTS], begin
    while row < end:
        here = row % n if row < 0 or row >= n else row
        is_special = find_special(d, AXIS, here) >= 0
        n_rows = 1 if is_special else count_alike(d, AXIS, here, end - row)
        count = 0
        for g in range(n_rows):
            count = locate_level_taps(a, level, row + g, here + g, is_special, g * count)
            for k in range(n_inputs):
                at = locate_row(a, level + LEVEL_INPUTS + PLACE_SIZE * k, row + g)
                a.integers[FIRST_INPUT + g * n_inputs + k] = at
            for k in range(n_outputs):
                at = locate_row(a, level + LEVEL_OUTPUTS + PLACE_SIZE * k, row + g)
                a.integers[FIRST_OUTPUT + g * n_outputs + k] = at
        call_row_function(a, record, SPECIAL_ROW if is_special else ROW if n_rows == 1 else GROUP_ROW, here)
        row += n_rows


@inlined
def run_wavefront(a):
    """Several passes at once: each level follows the one before a few rows behind, in rings that stay in cache.

    On a wrapped axis, where all rows are alike, the lower levels begin and end a few rows outside the grid, so that
    rows near its ends are computed twice instead of being kept.
    """
    d = a.table
    n, m, wraps, ahead, behind = d[N_0], d[N_LEVELS], d[AXIS + IS_WRAPPED], d[AHEAD], d[BEHIND]
    for front in range(-wraps * (m - 1) * behind, n + (m - 1) * ahead, d[BLOCK_ROWS]):
        for s in range(m):
            first, inset = front - s * ahead, wraps * (m - 1 - s)
            begin, end = max(first, -inset * behind), min(first + d[BLOCK_ROWS], n + inset * ahead)
            run_level(a, d[LEVELS] + s * LEVEL_SIZE, begin, end)


@inlined
def swap_slots(a, first, count):
    """Exchange the slots of old and new rows."""
    for k in range(count):
        i, j = a.table[first + 2 * k], a.table[first + 2 * k + 1]
        kept = a.slots[i]
        a.slots[i] = a.slots[j]
        a.slots[j] = kept


@inlined
def run_list(a, begin, end):
    """Passes `begin` to `end - 1`."""
    for k in range(begin, end):
        run_pass(a, a.table[PASSES] + k * PASS_SIZE, 0, a.table[N_0] * a.table[N_1])


@inlined
def run_steps(a, count):
    """Steps whose states move between slots, several of them at once where that is faster."""
    d = a.table
    run_list(a, 0, d[FIRST])
    if d[BLOCK] > 0:  # rings begin at a cache line
        a.slots[d[RING_SLOT]] = (a.slots[d[RING_SLOT]] + 63) & ~63
    least = 1 if d[FIRST] > 0 else 0  # the last step leaves out the sums that begin the next one
    while d[BLOCK] > 0 and count - least >= d[BLOCK]:
        run_wavefront(a)
        swap_slots(a, d[BLOCK_SWAPS], d[N_BLOCK_SWAPS])
        count -= d[BLOCK]
    if count > 0:
        for _ in range(count - 1):
            run_list(a, d[FIRST], d[FIRST] + d[BODY])
            swap_slots(a, d[SWAPS], d[N_SWAPS])
        run_list(a, d[FIRST] + d[BODY], d[FIRST] + d[BODY] + d[LAST])
        swap_slots(a, d[LAST_SWAPS], d[N_LAST_SWAPS])


@inlined
def run_kept_steps(a, count):
    """Steps of one pass whose states are kept: slot 0 is the last state, those before it are at slot 2 and after it.

    Slot 3 holds the distance between states in bytes; the first state is already there.
    """
    end, states, stride, rows = a.slots[0], a.slots[2], a.slots[3], a.table[N_0] * a.table[N_1]
    for i in range(count):
        a.slots[0] = states + i * stride
        a.slots[1] = end if i == count - 1 else states + (i + 1) * stride
        run_pass(a, a.table[PASSES], 0, rows)


@inlined
def run_reverse_steps(a, count):
    """The adjoint of such steps: the gradient moves between slots 0 and 1, the states are read from the last one on."""
    states, stride, rows = a.slots[2], a.slots[3], a.table[N_0] * a.table[N_1]
    for j in range(count):
        a.slots[2] = states + (count - 1 - j) * stride
        run_pass(a, a.table[PASSES], 0, rows)
        kept = a.slots[0]
        a.slots[0] = a.slots[1]
        a.slots[1] = kept


@inlined
def run_rows(a):
    """One pass over the rows slots[2], ..., slots[3] - 1."""
    run_pass(a, a.table[PASSES], a.slots[2], a.slots[3])


def run_passes(h, count, mode, slots_, table_, numbers_, rates_, sums_, reals_, integers_):
    """`count` steps of length h on the rows at the addresses `slots_`; their final places are in `slots_`."""
    d = carray(table_, (HEADER,))
    n, m = d[N_WEIGHTS], d[N_COEFFICIENTS]
    reals = carray(reals_, (n + m + MOST_TAPS,))
    a = SweepArrays(
        carray(slots_, (64,)), d, carray(numbers_, (1,)), carray(rates_, (64,)), reals, reals[n:],
        carray(integers_, (SCRATCH_INTEGERS,)), reals[n + m :], carray(sums_, (1,)),
    )  # fmt: skip
    combine_weights(a, h)
    if mode == ROWS:
        run_rows(a)
    elif mode == KEEP:
        run_kept_steps(a, count)
    elif mode == REVERSE:
        run_reverse_steps(a, count)
    else:
        run_steps(a, count)
    return np.int32(0)


_POINTERS = (types.CPointer(types.int64), types.CPointer(types.int64), types.CPointer(types.float64))
SIGNATURE = types.int32(
    types.float64, types.int64, types.int64, *_POINTERS, types.CPointer(types.float64), types.CPointer(types.float64),
    types.CPointer(types.float64), types.CPointer(types.int64),
)  # fmt: skip
sweep_rows = FieldKernel(run_passes, SIGNATURE)
