"""The continuous extension of a Runge-Kutta step: a cubic Hermite polynomial with corrections.

    y(t + theta h) = H(theta) + theta^2 (1 - theta)^2 sum_m (theta - 1/2)^m r_m,   r_m = h sum_i R_mi k_i

H interpolates the states and slopes at both ends; schemes without a continuous extension have no corrections r_m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import check_once, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine
from stepnet.engines.numba_engine.integrators import stepping

# Rows of `work`: state, new state, interpolated or auxiliary state, two error estimates, event value, zeros;
# from K on stages (with the extra ones of the continuous extension), its corrections, the stages of auxiliary steps.
Y, Y_NEW, ASIDE, ERROR, ERROR_2, VALUE, ZERO, K = range(8)


@check_once
class SchemeTables(NamedTuple):
    """Coefficients of a scheme: A and c with the extra stages of the continuous extension, R, and the stage at the end.

    `b` has one entry fewer than there are stages if the scheme is first-same-as-last.
    """

    A: np.ndarray
    b: np.ndarray
    c: np.ndarray
    E: np.ndarray
    R: np.ndarray
    n_stages: int
    new: int


def build_cubic_tables(dtype) -> SchemeTables:
    """Tables of the cubic Hermite polynomial alone: its two stages are the slopes at both ends."""
    zeros = np.zeros((2, 2), dtype)
    return SchemeTables(zeros, zeros[:1, :1].copy(), np.array([0.0, 1.0]), zeros[:0, :1].copy(), zeros[:0].copy(), 1, 1)


@inlined
def evaluate_stages(field, p, A, c, work, base, scratch, first, start, stop, t, h, run):
    """Evaluate the slopes `start` to `stop - 1` from the earlier ones; False if the right-hand side raised."""
    for i in range(start, stop):
        combine(work, scratch, base, h, A, i, first, i)
        t_stage = t + (run.t_low + c[i] * h)
        if call_field(field, t_stage, work, scratch, first + i, p, run.n) != 0:
            stepping.note_exception(run, 0, i, t_stage, scratch)
            return False
    run.evaluations += stop - start
    return True


@inlined
def evaluate_first_slope(field, p, work, run):
    """Evaluate the slope at the beginning of the step unless it is known."""
    if run.has_slope == 0:
        if call_field(field, run.t + run.t_low, work, Y, K, p, run.n) != 0:
            stepping.note_exception(run, 0, 0, run.t, Y)
            return False
        run.evaluations += 1
        run.has_slope = 1
    return True


@inlined
def extend(field, p, tables, work, known, h, run):
    """Compute the extra stages and corrections of the continuous extension; False if the right-hand side raised."""
    n = tables.c.shape[0]
    if not evaluate_first_slope(field, p, work, run):
        return False
    if tables.new >= known:  # the slope at the new state, which is also the first slope of the next step
        t_new = run.t + (run.t_low + h)
        if call_field(field, t_new, work, Y_NEW, K + tables.new, p, run.n) != 0:
            stepping.note_exception(run, 0, tables.new, t_new, Y_NEW)
            return False
        run.evaluations += 1
        known = tables.new + 1
    if not evaluate_stages(field, p, tables.A, tables.c, work, Y, ASIDE, K, known, n, run.t, h, run):
        return False
    if tables.R.shape[1] > 0:  # else the caller has computed the corrections
        for m in range(tables.R.shape[0]):
            combine(work, K + n + m, ZERO, h, tables.R, m, K, n)
    return True


@inlined
def interpolate(tables, work, theta, h, run):
    """work[ASIDE] = y(t + theta h)."""
    n, n_corrections, slope_new = tables.c.shape[0], tables.R.shape[0], K + tables.new
    x, m = theta, 1.0 - theta
    to_y, to_new, to_slope, to_slope_new = m * m * (1 + 2 * x), x * x * (3 - 2 * x), x * m * m * h, -x * x * m * h
    bump, shifted = x * x * m * m, x - 0.5
    for k in range(run.reals):
        total = to_y * work[Y, k] + to_new * work[Y_NEW, k] + to_slope * work[K, k] + to_slope_new * work[slope_new, k]
        correction = 0.0
        for i in range(n_corrections - 1, -1, -1):
            correction = correction * shifted + work[K + n + i, k]
        work[ASIDE, k] = total + bump * correction


@inlined
def keep_piece(tables, work, h, run, out):
    """Append the polynomial of this step: y, y_new, the slopes at both ends, corrections."""
    i, n, reals = run.n_pieces, tables.c.shape[0], run.reals
    out.piece_t[i, 0], out.piece_t[i, 1] = run.t, h
    for k in range(reals):
        out.pieces[i, k] = work[Y, k]
        out.pieces[i, reals + k] = work[Y_NEW, k]
        out.pieces[i, 2 * reals + k] = work[K, k]
        out.pieces[i, 3 * reals + k] = work[K + tables.new, k]
        for m in range(tables.R.shape[0]):
            out.pieces[i, (4 + m) * reals + k] = work[K + n + m, k]
    run.n_pieces = i + 1
