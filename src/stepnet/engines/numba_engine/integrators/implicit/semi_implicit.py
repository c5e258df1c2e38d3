"""BDF with equal steps: y_{n+1} = sum alpha_j y_{n-j} + h sum beta_j f1_{n-j} + h gamma f2(t_{n+1}, y_{n+1}).

Semi-implicit schemes have both parts, the others f2 alone, which is then the whole right-hand side.  The history is
part of the state.  States, and slopes of f1, at the last steps are stored in ring buffers: step i in slot i modulo the
length of the ring.  The implicit part is solved by the Newton iteration of implicit Runge-Kutta schemes.
"""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import Outcome, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, copy_row, is_finite_row
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import ASIDE, Y_NEW, K, Y
from stepnet.engines.numba_engine.integrators.explicit_rk import evaluate_stage_slopes
from stepnet.engines.numba_engine.integrators.implicit.implicit_rk import set_exact_scale
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    EXACT,
    NO_EXPLICIT,
    SLOPES,
    StageTables,
    evaluate_jacobian,
    factorise_all,
    forget_jacobian,
    solve_block,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_systems import Shifts, build_system
from stepnet.engines.numba_engine.integrators.multistep import prepare_with_history
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, FULL, NOT_FINITE, NOT_SOLVED, PAUSED
from stepnet.engines.numba_engine.rhs.problem_parts import build_part_fields
from stepnet.engines.numba_engine.runs.job import Job, find_save_times
from stepnet.problem import Problem
from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.controllers import controller
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.semi_implicit import SemiImplicitBDF

BASE = SLOPES + 5  # row after those of one implicit stage; then the rings, then df2/dy


@inlined
def predict(f1, p, alpha, beta, rings, work, h, run):
    """work[BASE] = all of the new state but the implicit part, from the rings; False if f1 raised."""
    length = alpha.shape[0] + 1
    slopes, now = rings + length, run.step % length
    if run.has_slope == 0 and beta.shape[0] > 0:
        copy_row(work, Y, rings + now)
        if call_field(f1, run.t, work, Y, slopes + now, p, run.n) != 0:
            stepping.note_exception(run, 0, 0, run.t, Y)
            return False
        run.evaluations += 1
    for k in range(run.reals):
        work[BASE, k] = 0.0
    for j in range(alpha.shape[0]):
        slot = (run.step - j) % length
        for k in range(run.reals):
            work[BASE, k] += alpha[j] * work[rings + slot, k]
    for j in range(beta.shape[0]):
        slot = (run.step - j) % length
        for k in range(run.reals):
            work[BASE, k] += h * beta[j] * work[slopes + slot, k]
    return True


@inlined
def interpolate(rings, length, work, theta, run):
    """work[ASIDE] = the polynomial through the new state and the earlier ones at t + theta h."""
    for k in range(run.reals):
        work[ASIDE, k] = 0.0
    for i in range(length):
        weight = 1.0
        for j in range(length):
            if j != i:
                weight *= (theta - (1.0 - j)) / (j - i)
        row = Y_NEW if i == 0 else rings + (run.step + 1 - i) % length
        for k in range(run.reals):
            work[ASIDE, k] += weight * work[row, k]


@Kernel
def run_semi_implicit(
    f1, f2, p, alpha, beta, tables, newton, how, rings, work, run_, save_at, out_t, out_y
):  # fmt: skip
    """Equal steps."""
    run = run_[0]
    no_grid = save_at[:0]
    length, gamma = alpha.shape[0] + 1, tables.inner[0, 0]
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out_t):
            return FULL
        t, t_new, h = stepping.find_next_step(run, no_grid)
        run.h_tried = h
        if not predict(f1, p, alpha, beta, rings, work, h, run):
            return FIELD_RAISED
        set_exact_scale(how, work, BASE, run)
        if run.jacobian_age == 0 and not evaluate_jacobian(newton, work, Y, t, run):
            return stepping.note_exception(run, 0, 0, t, Y)
        if run.h_factorised != h and not factorise_all(tables.shifts, 1, newton, work, h, run):
            return NOT_SOLVED
        run.rate = 0.0
        status = solve_block(f2, p, tables, newton, tables.blocks[0], how, EXACT, work, BASE, t, h, run)
        if status != DONE:
            return status
        for k in range(run.reals):
            work[Y_NEW, k] = work[BASE, k] + h * gamma * work[SLOPES, k]
        if not is_finite_row(work, Y_NEW):
            return NOT_FINITE
        copy_row(work, SLOPES, K)  # where the next iteration begins
        forget_jacobian(run)
        while stepping.is_inside(run, save_at, t_new):
            interpolate(rings, length, work, (save_at[run.next_save] - t) / h, run)
            stepping.save_wanted(work, ASIDE, 1, run, save_at, out_t, out_y)
        slot = (run.step + 1) % length
        copy_row(work, Y_NEW, rings + slot)
        if beta.shape[0] > 0:
            if call_field(f1, t_new, work, Y_NEW, rings + length + slot, p, run.n) != 0:
                return stepping.note_exception(run, 0, 0, t_new, Y_NEW)
            run.evaluations += 1
            run.has_slope = 1
        copy_row(work, Y_NEW, Y)
        stepping.finish_step(work, Y, 1, t_new, run, save_at, out_t, out_y)
    return DONE if run.step == run.n_steps else PAUSED


def prepare(problem: Problem, scheme: SemiImplicitBDF | FixedBDF, plan: Plan) -> Job:
    """Prepare a run of a sum of two parts, or of any problem as a whole."""
    return prepare_with_history(problem, scheme, plan, _prepare)


def _prepare(problem: Problem, scheme: SemiImplicitBDF | FixedBDF, plan: Plan, start: Outcome, n_started: int) -> Job:
    n, length = problem.initial.size, scheme.n_steps + 1
    explicit = isinstance(scheme, SemiImplicitBDF)
    parts = build_part_fields(problem) if explicit else ()
    rings, n_rows = BASE + 1, (1 + explicit) * length
    tables = _build_tables(scheme.gamma)
    system = build_system(problem, plan, Shifts(tables.shifts, 1, False), rings + n_rows, parts)
    newton, work, run = system.newton, system.work, system.run
    work[rings : rings + n_started + 1, :n] = start.y
    work[Y, :n] = start.y[-1]
    r = run[0]
    r["step"], r["t"], r["evaluations"] = n_started, start.t[-1], start.statistics.evaluations
    if parts:
        f1, f2 = parts
        for i in range(n_started):
            work[rings + length + i, :n] = f1(start.t[i], start.y[i])
        work[K, :n] = f2(start.t[-1], start.y[-1])
        r["evaluations"] += n_started
        fields, beta = (f1.address, f2.address, f1.p), np.array(scheme.beta)
    else:  # the iteration begins with the last difference quotient
        work[K, :n] = (start.y[-1] - start.y[-2]) / (start.t[-1] - start.t[-2])
        fields, beta = (0, newton.field, newton.field_p), np.zeros(0)
    scale = np.zeros(n)
    control = step_control.build_controller(controller("I"), 1.0)
    how = step_control.ControlSettings(scale, scale.copy(), step_control.MAXIMUM, control)
    head = (*fields, np.array(scheme.alpha), beta, tables, newton, how, rings)

    def advance(out):
        code = run_semi_implicit(*head, work, run, find_save_times(plan), out.t, out.y)
        return system.check_outside(code)

    starter = scheme.starter
    table = starter.implicit_table if isinstance(starter, AdditiveRK) else starter.butcher
    slopes = evaluate_stage_slopes(system.own, table)
    return Job(advance, run, work, 1, (system.own,), problem.initial.dtype, slopes, linear_solver=system.solver)


def _build_tables(gamma: float) -> StageTables:
    """One implicit stage at the end of the step."""
    one, A = np.ones((1, 1)), np.array([[gamma]])
    return StageTables(
        A, A.copy(), A.copy(), np.ones(1), np.array([[0, 1, 0, 1]]), np.array([gamma], complex), 1, one.astype(complex),
        one.astype(complex), np.zeros((1, 1)), 0.0, -1, 0, np.zeros(0), NO_EXPLICIT,
    )  # fmt: skip
