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

# The integers of a description: sizes, where tables begin, and one block for each axis of rows.
(N_WEIGHTS, N_TERMS, N_0, N_1, ROW_BYTES, N_COLUMNS, COLUMN_WEIGHTS, N_ENDS, N_PATCHES, EDGES, FULL, ORDINALS) = range(
    12
)
(FIRST, BODY, LAST, PASSES, N_COEFFICIENTS, COEFFICIENTS, SWAPS, N_SWAPS, LAST_SWAPS, N_LAST_SWAPS) = range(12, 22)
(BLOCK, RING, AHEAD, BEHIND, IS_WRAPPED, RING_SLOT) = range(22, 28)
AXIS, AXIS_SIZE = 28, 12
(AXIS_N, AXIS_LOW, AXIS_HIGH, AXIS_BYTES, N_INTERIOR, N_SPECIAL, INTERIOR_OFFSETS, INTERIOR_WEIGHTS, SPECIAL_OFFSETS,
 SPECIAL_WEIGHTS, DIAGONAL, SPECIAL_DIAGONAL) = range(12)  # fmt: skip
HEADER = AXIS + 2 * AXIS_SIZE

MOST_INPUTS, MOST_OUTPUTS = 16, 8
PASS_SIZE = 6 + MOST_INPUTS + MOST_OUTPUTS
(ROW, SPECIAL_ROW, SOURCE, N_INPUTS, N_OUTPUTS, PASS_WEIGHTS) = range(6)

PLAIN, KEEP, REVERSE = range(3)  # what happens to the states of steps
ROWS = 3  # one pass over some rows
MOST_TAPS = 64
SCRATCH_INTEGERS = MOST_TAPS + MOST_INPUTS + MOST_OUTPUTS + 64


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
def locate_axis_taps(a, axis, special, is_special_row, address, count):
    """Append the taps along an axis of rows other than the row itself; returns their number and its own weight."""
    d, taps, weights = a.table, a.integers, a.tap_weights
    if special < 0:
        used = d[axis + N_INTERIOR]
        offsets, places, own = d[axis + INTERIOR_OFFSETS], d[axis + INTERIOR_WEIGHTS], d[axis + DIAGONAL]
    else:
        used = d[axis + N_SPECIAL]
        offsets, places = d[axis + SPECIAL_OFFSETS] + special * used, d[axis + SPECIAL_WEIGHTS] + special * used
        own = d[axis + SPECIAL_DIAGONAL] + special
    for k in range(used):
        taps[count + k] = address + d[offsets + k] * d[axis + AXIS_BYTES]
        weights[count + k] = a.weights[places + k]
    if is_special_row:  # its function reads as many taps for every class
        for k in range(used, d[axis + N_SPECIAL]):
            taps[count + k] = address
            weights[count + k] = 0.0
        used = d[axis + N_SPECIAL]
    return count + used, a.weights[own]


@inlined
def address_of(array):
    """The address of an array as a signed integer, which sums keep an integer."""
    return np.int64(array.ctypes.data)


@inlined
def call_row_function(a, record, row, special, inputs):
    """Call the row function of a pass for row `row` of the grid, its taps and rows located; `special`: which one."""
    d = a.table
    edges = full = address_of(a.numbers)
    if d[N_PATCHES] > 0:
        edges += 8 * (d[EDGES] + row * d[N_PATCHES] * d[N_ENDS])
        if special:
            full += 8 * (d[FULL] + d[d[ORDINALS] + row] * d[N_PATCHES] * d[N_COLUMNS])
    call_row(
        d[record + SPECIAL_ROW] if special else d[record + ROW], address_of(a.integers), address_of(a.tap_weights),
        address_of(a.weights) + 8 * d[COLUMN_WEIGHTS], edges, full, address_of(a.rates) + 8 * d[N_TERMS],
        inputs, inputs + 8 * MOST_INPUTS, address_of(a.coefficients), address_of(a.sums), d[N_COLUMNS],
    )  # fmt: skip


@inlined
def locate_taps(a, special_0, special_1, source):
    """The taps of a row of these classes whose source is at an address; returns their number."""
    d = a.table
    has_0, has_1 = d[AXIS + AXIS_N] > 1, d[AXIS + AXIS_SIZE + AXIS_N] > 1
    is_special = special_0 >= 0 or special_1 >= 0
    a.integers[0] = source
    count, own, own_1 = 1, 0.0, 0.0
    if has_0:
        count, own = locate_axis_taps(a, AXIS, special_0, is_special, source, count)
    if has_1:
        count, own_1 = locate_axis_taps(a, AXIS + AXIS_SIZE, special_1, is_special, source, count)
    a.tap_weights[0] = own + own_1
    return count


@inlined
def run_pass(a, record, begin, end):
    """One pass over the rows begin, ..., end - 1; between rows of the middle the taps move by one row."""
    d, first = a.table, MOST_TAPS
    inputs = address_of(a.integers) + 8 * first
    i, j, count = begin // d[N_1], begin % d[N_1], 0
    for row in range(begin, end):
        start = row * d[ROW_BYTES]
        for k in range(d[record + N_INPUTS]):
            a.integers[first + k] = a.slots[d[record + 6 + k]] + start
        for k in range(d[record + N_OUTPUTS]):
            a.integers[first + MOST_INPUTS + k] = a.slots[d[record + 6 + MOST_INPUTS + k]] + start
        is_special = False
        if d[record + SOURCE] >= 0:
            special_0, special_1 = find_class(d, AXIS, i), find_class(d, AXIS + AXIS_SIZE, j)
            is_special = special_0 >= 0 or special_1 >= 0
            if is_special or count == 0:
                count = locate_taps(a, special_0, special_1, a.slots[d[record + SOURCE]] + start)
                count = 0 if is_special else count
            else:
                for k in range(count):
                    a.integers[k] += d[ROW_BYTES]
        call_row_function(a, record, row, is_special, inputs)
        j += 1
        if j == d[N_1]:
            i, j = i + 1, 0


@inlined
def run_wavefront(a, record, levels):
    """Several steps of one pass: level s follows level s - 1 at a distance of a few rows, in rings that stay in cache.

    On a wrapped axis, where all rows are alike, the lower levels begin and end a few rows outside the grid, so that
    rows near its ends are computed twice instead of being kept.
    """
    d, first = a.table, MOST_TAPS
    inputs = address_of(a.integers) + 8 * first
    n, size, rows, ahead, behind = d[N_0], d[ROW_BYTES], d[RING], d[AHEAD], d[BEHIND]
    wraps = d[IS_WRAPPED]
    source, target, rings = a.slots[d[record + SOURCE]], a.slots[d[record + 6 + MOST_INPUTS]], a.slots[d[RING_SLOT]]
    for front in range(-wraps * (levels - 1) * behind, n + levels * ahead):
        for s in range(levels):
            row, inset = front - s * ahead, wraps * (levels - 1 - s)
            if row < -inset * behind or row >= n + inset * ahead:
                continue
            at, period = (source, n) if s == 0 else (rings + (s - 1) * rows * size, rows)
            here, own = row % n, at + row % period * size
            out = target + row * size if s == levels - 1 else rings + (s * rows + row % rows) * size
            for k in range(d[record + N_INPUTS]):
                a.integers[first + k] = own
            a.integers[first + MOST_INPUTS] = out
            special = -1 if wraps else find_class(d, AXIS, here)
            a.integers[0] = own
            count, weight = locate_axis_taps(a, AXIS, special, special >= 0, own, 1)
            a.tap_weights[0] = weight
            for k in range(1, count):
                tap = row + (a.integers[k] - own) // size
                a.integers[k] = at + tap % period * size
            call_row_function(a, record, here, special >= 0, inputs)


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
    """Steps whose states move between slots."""
    d = a.table
    run_list(a, 0, d[FIRST])
    for _ in range(count - 1):
        run_list(a, d[FIRST], d[FIRST] + d[BODY])
        swap_slots(a, d[SWAPS], d[N_SWAPS])
    run_list(a, d[FIRST] + d[BODY], d[FIRST] + d[BODY] + d[LAST])
    swap_slots(a, d[LAST_SWAPS], d[N_LAST_SWAPS])


@inlined
def run_blocked_steps(a, count):
    """Steps of one pass, several at once."""
    d = a.table
    for first in range(0, count, d[BLOCK]):
        run_wavefront(a, d[PASSES], min(d[BLOCK], count - first))
        swap_slots(a, d[SWAPS], d[N_SWAPS])


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
    elif d[BLOCK] > 1:
        run_blocked_steps(a, count)
    else:
        run_steps(a, count)
    return np.int32(0)


_POINTERS = (types.CPointer(types.int64), types.CPointer(types.int64), types.CPointer(types.float64))
SIGNATURE = types.int32(
    types.float64, types.int64, types.int64, *_POINTERS, types.CPointer(types.float64), types.CPointer(types.float64),
    types.CPointer(types.float64), types.CPointer(types.int64),
)  # fmt: skip
sweep_rows = FieldKernel(run_passes, SIGNATURE)
