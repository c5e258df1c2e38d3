"""Stages of Rosenbrock schemes: one linear system each, with df/dy and df/dt at the start of the step.

With v = u / h the transformed form of `schemes.rosenbrock` becomes

    (I - h gamma J) v_i = gamma (f(t + c_i h, y + h sum a_ij v_j) + sum C_ij v_j + h d_i f_t)

and y_new = y + h sum m_i v_i, without products with J.  With a mass matrix M, the matrix is M - h gamma J, and M
multiplies the sum of the v_j (VI.4).  Hairer & Wanner (1996), Solving Ordinary Differential
Equations II, IV.7.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import compiled
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine, copy_row
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.dense_output import ZERO, K, Y
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    NO_EXPLICIT,
    SLOPES,
    StageTables,
    factorise_all,
    solve_row,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, NOT_SOLVED


@lru_cache(maxsize=64)
def build_linear_tables(scheme) -> StageTables:
    """The coefficients of a `Rosenbrock` as kernels read them: `inner` holds gamma C, `time_weights` gamma d."""
    arrays, form, gamma, s = scheme.arrays, scheme.transformed, scheme.gamma, len(scheme.b)
    return StageTables(
        form.a.copy(), gamma * form.C, form.m[None].copy(), arrays.c.copy(), np.zeros((0, 4), np.int64),
        np.array([gamma], complex), 1, np.ones((s, 1), complex), np.ones((1, s), complex), form.e[None].copy(),
        0.0, -1, 0, gamma * arrays.d, NO_EXPLICIT,
    )  # fmt: skip


@compiled
def take_linear_stages(tables, newton, work, new, t, h, run):
    """All stages, and the new state in the row `new`; the slope at the start and df/dy must be known."""
    s, n = tables.A.shape[0], run.n
    slope, stage = SLOPES + s, SLOPES + 3 * s
    gamma, times = tables.shifts[0].real, newton.rows.shape[0]
    if run.h_factorised != h and not factorise_all(tables.shifts, 1, newton, work, h, run):
        return NOT_SOLVED
    run.rate = 1.0  # df/dy is used for one step only
    for i in range(s):
        if i == 0 and newton.is_slope == 1:
            copy_row(work, K, slope)
        else:
            combine(work, stage, Y, h, tables.A, i, SLOPES, i)
            t_stage = t + (run.t_low + tables.c[i] * h)
            if call_field(newton.field, t_stage, work, stage, slope, newton.field_p, n) != 0:
                return stepping.note_exception(run, 0, i, t_stage, stage)
            run.evaluations += 1
        time = h * tables.time_weights[i]
        for k in range(n):
            work[SLOPES + i, k] = gamma * work[slope, k] + time * newton.values[times + k]
        if newton.mass_rows.shape[0] == 0:
            combine(work, SLOPES + i, SLOPES + i, 1.0, tables.inner, i, SLOPES, i)
        else:
            combine(work, stage, ZERO, 1.0, tables.inner, i, SLOPES, i)
            for e in range(newton.mass_rows.shape[0]):
                work[SLOPES + i, newton.mass_rows[e]] += newton.mass_values[e] * work[stage, newton.mass_columns[e]]
        solve_row(newton, 0, work, SLOPES + i, n)
    combine(work, new, Y, h, tables.b, 0, SLOPES, s)
    return DONE
