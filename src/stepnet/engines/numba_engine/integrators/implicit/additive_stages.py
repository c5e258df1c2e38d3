"""Stages of additive (IMEX) Runge-Kutta schemes: of the sum f1 + f2, f1 is explicit and f2 implicit.

    Y_i = y + h sum_{j<i} (a^_ij f1(Y_j) + a_ij f2(Y_j)) + h a_ii f2(Y_i)

Each stage is solved by Newton's iteration with the Jacobian of f2 alone.  Ascher, Ruuth & Spiteri (1997), Appl. Numer.
Math. 25:151.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import uintp

from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine
from stepnet.engines.numba_engine.integrators import stepping
from stepnet.engines.numba_engine.integrators.dense_output import K, Y
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    SLOPES,
    StageTables,
    build_stage_tables,
    factorise_all,
    solve_block,
)
from stepnet.engines.numba_engine.integrators.stepping import DONE, NOT_SOLVED


@lru_cache(maxsize=64)
def build_additive_tables(scheme) -> StageTables:
    """The coefficients of an `AdditiveRK` as kernels read them."""
    table = scheme.explicit_table
    hat = np.array(scheme.embedded[0].b) if scheme.embedded else table.b
    explicit = np.vstack((table.A, table.b, hat - table.b))
    return build_stage_tables(scheme.implicit_scheme)._replace(explicit=explicit, ends_with_slope=0)


def count_additive_rows(s: int) -> int:
    """Rows of `work` in addition to those of implicit stages: the base of a stage, and the slopes of f1."""
    return 1 + s


@inlined
def find_explicit_slopes(s):
    """The first row of the slopes of f1, after the base of a stage."""
    return SLOPES + 3 * s + 3


@inlined
def is_needed(explicit, i):
    """Whether the slope of f1 in stage i is used."""
    found = False
    for j in range(explicit.shape[0]):
        found = found or explicit[j, i] != 0.0
    return found


@compiled
def take_additive_stages(tables, newton, how, limits, work, new, t, h, run):
    """All stages, and the new state in the row `new`: DONE, FIELD_RAISED or NOT_SOLVED.

    The whole slope at the start of the step and the Jacobian of f2 must be known.
    """
    s, p = tables.b.shape[1], newton.parts_p
    f1, f2 = uintp(newton.parts[0]), uintp(newton.parts[1])
    slopes, stage = find_explicit_slopes(s), SLOPES + 3 * s
    base = slopes - 1
    if run.h_factorised != h and not factorise_all(tables.shifts, tables.n_real, newton, work, h, run):
        return NOT_SOLVED
    run.rate = 0.0
    for i in range(s):
        t_stage = t + (run.t_low + tables.c[i] * h)
        combine(work, base, Y, h, tables.A, i, SLOPES, i)
        combine(work, base, base, h, tables.explicit, i, slopes, i)
        block = tables.blocks[i]
        if block[3] > block[2]:
            status = solve_block(f2, p, tables, newton, block, how, limits, work, base, t, h, run)
            if status != DONE:
                return status
        elif i > 0:
            if call_field(f2, t_stage, work, base, SLOPES + i, p, run.n) != 0:
                return stepping.note_exception(run, 0, i, t_stage, base)
            run.evaluations += 1
        if i == 0 or is_needed(tables.explicit, i):
            combine(work, stage, base, h, tables.inner, i, SLOPES + i, 1)
            if call_field(f1, t_stage, work, stage, slopes + i, p, run.n) != 0:
                return stepping.note_exception(run, 0, i, t_stage, stage)
            run.evaluations += 1
        if i == 0:  # f2 = (f1 + f2) - f1, up to rounding of f1, which is not stiff
            for k in range(run.reals):
                work[SLOPES, k] = work[K, k] - work[slopes, k]
    combine(work, new, Y, h, tables.b, 0, SLOPES, s)
    combine(work, new, new, h, tables.explicit, s, slopes, s)
    return DONE
