"""BDF, NDF and Adams schemes of variable order, and switching between them.

Steps have quasi-constant length: after k + 1 equal steps of order k the errors of the orders k - 1, k and k + 1 choose
order and length of the next ones.  Shampine & Reichelt (1997), SIAM J. Sci. Comput. 18:1; Petzold (1983), SIAM J. Sci.
Stat. Comput. 4:136.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Plan
from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field, combine, copy_row, is_finite_row
from stepnet.engines.numba_engine.derivatives.jacobian_fields import JacobianField
from stepnet.engines.numba_engine.integrators import step_control, stepping
from stepnet.engines.numba_engine.integrators.dense_output import (
    ERROR,
    Y_NEW,
    ZERO,
    K,
    SchemeTables,
    Y,
    evaluate_first_slope,
)
from stepnet.engines.numba_engine.integrators.events import build_event_state
from stepnet.engines.numba_engine.integrators.explicit_rk import FIRST_LOOK, advance_time, find_next_goal, is_lost
from stepnet.engines.numba_engine.integrators.implicit.difference_tables import (
    ADAMS,
    BDF,
    DifferenceTables,
    append_slope,
    append_state,
    build_difference_tables,
    rescale,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    OUTSIDE,
    SMALL_SYSTEM,
    allocate_newton,
    choose_limits,
    evaluate_jacobian,
    factorise_all,
    solve_row,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_systems import Shifts, build_system
from stepnet.engines.numba_engine.integrators.step_output import (
    OutputBuffers,
    build_output_request,
    complete,
    is_full,
    is_nothing_wanted,
)
from stepnet.engines.numba_engine.integrators.stepping import (
    BROKEN,
    DONE,
    EVENT,
    FIELD_RAISED,
    FULL,
    NOT_FINITE,
    NOT_SOLVED,
    PAUSED,
    STEP_LIMIT,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.rhs.problem_parts import build_fields
from stepnet.engines.numba_engine.runs.job import Job, StageSlopes, allocate_work, create_run_state
from stepnet.problem import Problem
from stepnet.schemes.variable_order import Switching, VariableAdams, VariableBDF, find_multistep_parts

MOST_ITERATIONS = 5  # of Newton's method: a shorter step costs less than slow convergence
STRICT = 2.0  # divides the tolerance of a step: errors of multistep schemes add up over the steps of a run
SLOW = 0.1  # rate of convergence above which df/dy of a small system is evaluated again
SHORTER = 0.5  # factor of the step after Newton's iteration failed
CAUTION = 0.9  # further factor of the step: errors of other orders are rough estimates
LITTLE = (1.0, 1.2)  # factors of the step that do not justify a new factorisation
FAR, NEAR, LOW = 10.0, 2.0, 3  # longest growth of a step up to the order LOW, and above, where rounding is amplified
MOST_FAILURES = 3  # rejections in a row after which the order is 1
WITHIN = 0.4  # of the interval of stability: longer Adams steps would let errors of stiff components show
PATIENCE, GAIN = 20, 5.0  # steps before a switch, and how much longer the other scheme's step must be
NOISE = 1e3  # differences below this multiple of rounding carry no information about stiffness
MOST_SWITCHES = 1000  # whose times are recorded


class ChoiceLog(NamedTuple):
    """Accepted steps by scheme and order, and times of switches."""

    steps: np.ndarray
    times: np.ndarray


# ---- one step -------------------------------------------------------------------------------------------------------


@compiled
def begin_history(field, p, tables, work, run):
    """Order 1 from the state and its slope; False if the right-hand side raised."""
    if not evaluate_first_slope(field, p, work, run):
        return False
    first = tables.first
    work[first : first + tables.n_differences] = 0.0
    if run.method == BDF:
        copy_row(work, Y, first)
        combine(work, first + 1, ZERO, run.h, tables.ones, 0, K, 1)
    else:
        copy_row(work, K, first)
    run.order, run.equal_steps, run.h_history, run.since_switch, run.steepness = 1, 0, run.h, 0, 0.0
    return True


@inlined
def set_history(tables, work, h, run):
    """Change the differences to those of steps of length h."""
    if h != run.h_history:
        rescale(tables, work, run.order, h / run.h_history)
        run.h_history = h
        run.equal_steps = 0


@compiled
def take_adams_step(field, p, tables, how, work, h, run):
    """Predict, evaluate, correct; the error estimate is in the row ERROR, f(p) in `spare`, nabla^k f(p) after it."""
    k, first, slope, change = run.order, tables.first, tables.spare, tables.spare + 1
    t_new = run.t + (run.t_low + h)
    combine(work, Y_NEW, Y, h, tables.predict, ADAMS, first, k)
    if call_field(field, t_new, work, Y_NEW, slope, p, run.n) != 0:
        return stepping.note_exception(run, 0, 0, t_new, Y_NEW)
    run.evaluations += 1
    combine(work, change, slope, -1.0, tables.ones, 0, first, k)
    combine(work, Y_NEW, Y_NEW, h * tables.gamma[k], tables.ones, 0, change, 1)
    combine(work, ERROR, ZERO, h * tables.error[ADAMS, k], tables.ones, 0, change, 1)
    return DONE


@compiled
def finish_adams_step(field, p, tables, how, work, h, run):
    """Evaluate the slope at the new state, in the row K + 1, and how steep f is: DONE, FIELD_RAISED or NOT_FINITE."""
    k, slope, change = run.order, tables.spare, tables.spare + 1
    t_new = run.t + (run.t_low + h)
    if call_field(field, t_new, work, Y_NEW, K + 1, p, run.n) != 0:
        return stepping.note_exception(run, 0, 1, t_new, Y_NEW)
    run.evaluations += 1
    if not is_finite_row(work, K + 1):
        return NOT_FINITE
    if tables.may_switch:
        moved, size, least = 0.0, 0.0, 0.0
        for c in range(run.reals):
            scale = how.atol[c] + how.rtol[c] * max(abs(work[Y, c]), abs(work[Y_NEW, c]))
            x = h * tables.gamma[k] * work[change, c] / scale
            d = h * (work[K + 1, c] - work[slope, c]) / scale
            r = NOISE * step_control.EPS * abs(work[Y_NEW, c]) / scale
            moved, size, least = moved + x * x, size + d * d, least + r * r
        found = np.sqrt(size / moved) / abs(h) if moved > least else 0.0
        run.steepness = max(found, 0.7 * run.steepness)
    return DONE


@compiled
def take_bdf_step(tables, newton, how, limits, work, h, run):
    """Newton's iteration for nabla^(k + 1) y in `spare`: DONE, FIELD_RAISED or NOT_SOLVED."""
    k, first, change, psi, residual = run.order, tables.first, tables.spare, tables.spare + 1, tables.spare + 2
    c = h / tables.alpha[k]
    t_new = run.t + (run.t_low + h)
    combine(work, Y_NEW, ZERO, 1.0, tables.ones, 0, first, k + 1)
    combine(work, psi, ZERO, 1.0 / tables.alpha[k], tables.psi, 0, first + 1, k)
    work[change] = 0.0
    if run.jacobian_age == 0:
        if not evaluate_jacobian(newton, work, Y_NEW, t_new, run):
            return stepping.note_exception(run, 0, 0, t_new, Y_NEW)
        if tables.may_switch:
            run.steepness = measure_jacobian(newton, how, work, run)
    if run.h_factorised != c and not factorise_all(tables.alpha_shift, 1, newton, work, c, run):
        return NOT_SOLVED
    before, run.rate = 0.0, 0.0
    for iteration in range(MOST_ITERATIONS):
        if call_field(newton.field, t_new, work, Y_NEW, residual, newton.field_p, run.n) != 0:
            return stepping.note_exception(run, 0, 0, t_new, Y_NEW)
        run.evaluations += 1
        if newton.mass_rows.shape[0] == 0:
            for i in range(run.reals):
                work[residual, i] = c * work[residual, i] - work[psi, i] - work[change, i]
        else:
            for i in range(run.reals):
                work[residual, i] *= c
            for e in range(newton.mass_rows.shape[0]):
                j = newton.mass_columns[e]
                work[residual, newton.mass_rows[e]] -= newton.mass_values[e] * (work[psi, j] + work[change, j])
        solve_row(newton, 0, work, residual, run.n)
        distance = step_control.scaled_norm(work, residual, Y, Y_NEW, how.atol, how.rtol, how.norm, run)
        if not np.isfinite(distance):
            return NOT_SOLVED
        rate = distance / before if iteration > 0 else 0.0
        if iteration > 0:
            run.rate = max(run.rate, rate)
            left = MOST_ITERATIONS - 1 - iteration
            if rate >= 1.0 or rate**left / (1.0 - rate) * distance > limits.kappa:
                return NOT_SOLVED
        for i in range(run.reals):
            work[Y_NEW, i] += work[residual, i]
            work[change, i] += work[residual, i]
        if distance == 0.0 or distance <= 1e-2 * limits.kappa:
            break
        if iteration > 0 and rate / (1.0 - rate) * distance <= limits.kappa:
            break
        before = distance
        if iteration == MOST_ITERATIONS - 1:
            return NOT_SOLVED
    combine(work, ERROR, ZERO, tables.error[BDF, k], tables.ones, 0, change, 1)
    return DONE


@compiled
def measure_jacobian(newton, how, work, run):
    """A bound of the spectral radius of df/dy: its row sums, with entries in units of the tolerances."""
    largest = 0.0
    sums, rows, columns = newton.vector, newton.rows, newton.columns
    for i in range(run.n):
        sums[i] = 0.0
    for e in range(rows.shape[0]):
        i, j = rows[e], columns[e]
        scale_i, scale_j = how.atol[i] + how.rtol[i] * abs(work[Y, i]), how.atol[j] + how.rtol[j] * abs(work[Y, j])
        sums[i] += abs(newton.values[e]) * scale_j / scale_i
    for i in range(run.n):
        largest = max(largest, sums[i])
    return largest


@inlined
def prepare_extension(tables, work, h, run):
    """Slopes and corrections of the polynomial of the step just taken, in the rows from K on."""
    n, count = tables.corrections.shape[0], run.order + 1
    if run.method == BDF:
        combine(work, K, ZERO, 1.0 / h, tables.slopes, 0, tables.first, count)
        combine(work, K + 1, ZERO, 1.0 / h, tables.slopes, 1, tables.first, count)
        for m in range(n):
            combine(work, K + 2 + m, ZERO, 1.0, tables.corrections, m, tables.first, count)
    else:
        for m in range(n):
            combine(work, K + 2 + m, ZERO, h, tables.adams_corrections, m, tables.first, count)


# ---- order and length of the next step ------------------------------------------------------------------------------


@inlined
def find_factor(tables, how, work, row, scale, constant, order, run):
    """The factor of the step for which the error constant * scale * row of an order would be the tolerance."""
    size = step_control.scaled_norm(work, row, Y, Y, how.atol, how.rtol, how.norm, run)
    error = STRICT * abs(scale) * constant * size
    return error ** (-1.0 / (order + 1)) if error > 0.0 else np.inf


@inlined
def find_growth_limit(how, order):
    """The largest factor of the step after a step of an order."""
    return min(how.controller.grow, FAR if order <= LOW else NEAR)


@inlined
def find_stable_factor(tables, h, order, run):
    """The factor of the step for which Adams steps stay well inside the interval of stability."""
    if tables.may_switch == 0 or run.steepness == 0.0:
        return np.inf
    return WITHIN * tables.limits[order] / (abs(h) * run.steepness)


@compiled
def choose_next_step(tables, how, work, error, h, is_at_goal, run):
    """Set order and length of the next step after an accepted one of length h."""
    k, m = run.order, run.method
    run.equal_steps += 1
    run.was_rejected, run.failures = 0, 0
    shrunk, grown = how.controller.shrink, find_growth_limit(how, k)
    best, factor = k, 1.0
    safety = CAUTION * how.controller.safety
    stable = find_stable_factor(tables, h, k, run) if m == ADAMS else np.inf
    if run.equal_steps > k:
        offset, scale = (1, 1.0) if m == BDF else (0, h)
        factor = error ** (-1.0 / (k + 1)) if error > 0.0 else np.inf
        factor = min(factor, stable / safety)
        if k > 1:
            lower = find_factor(
                tables, how, work, tables.first + k - 1 + offset, scale, tables.error[m, k - 1], k - 1, run
            )
            if m == ADAMS:
                lower = min(lower, find_stable_factor(tables, h, k - 1, run) / safety)
            if lower > factor:
                best, factor = k - 1, lower
        if k < tables.highest[m]:
            higher = find_factor(
                tables, how, work, tables.first + k + 1 + offset, scale, tables.error[m, k + 1], k + 1, run
            )
            if m == ADAMS:
                higher = min(higher, find_stable_factor(tables, h, k + 1, run) / safety)
            if higher > factor:
                best, factor = k + 1, higher
        factor = min(grown, max(shrunk, safety * factor))
        if best == k and LITTLE[0] <= factor < LITTLE[1]:
            factor = 1.0
        elif best != k or factor != 1.0:
            run.order, run.equal_steps = best, 0
    elif stable < 1.0:
        factor = max(shrunk, stable)
    longer = h * factor
    if is_at_goal and abs(run.h) > abs(longer):  # it was shortened: no bound for the next step
        longer = h * min(run.h / h, grown)
    run.h = np.sign(h) * min(abs(longer), run.h_max)


@compiled
def find_factor_below(tables, how, work, h, run):
    """The factor of the step for the order below, from the differences of a rejected step, in the row ERROR."""
    below = run.order - 1
    if run.method == BDF:
        change, old, scale = tables.spare, tables.first + below + 1, 1.0
    else:
        change, old, scale = tables.spare + 1, tables.first + below, h
    combine(work, ERROR, change, 1.0, tables.ones, 0, old, 1)
    return find_factor(tables, how, work, ERROR, scale, tables.error[run.method, below], below, run)


@compiled
def shorten(tables, work, error, h, how, run):
    """After a rejected step: PAUSED to continue with a shorter one, or how the run ends."""
    is_broken = not np.isfinite(error)
    run.rejected += 1
    run.failures += 1
    run.was_rejected = 2 if is_broken else 1
    factor = how.controller.shrink
    if not is_broken:
        factor = max(factor, min(0.9, how.controller.safety * error ** (-1.0 / (run.order + 1))))
    if not is_broken and run.order > 1:
        lower = find_factor_below(tables, how, work, h, run)
        if lower > error ** (-1.0 / (run.order + 1)):
            run.order -= 1
            factor = max(factor, min(0.9, how.controller.safety * lower))
    run.h = h * factor
    if step_control.is_too_short(run):
        return NOT_FINITE if is_broken else STEP_TOO_SMALL
    if run.failures >= MOST_FAILURES and run.order > 1:
        set_order_one(run)
    return BROKEN if is_broken and run.is_checked else PAUSED


@inlined
def set_order_one(run):
    """Continue with order 1; the differences of higher orders are not used any more."""
    run.order, run.equal_steps, run.failures = 1, 0, 0


@inlined
def retry(h, run):
    """After Newton's iteration failed: again with df/dy at the new time, or with a shorter step."""
    run.rejected += 1
    if run.jacobian_age != 1:
        run.jacobian_age = 0
        return PAUSED
    run.failures += 1
    run.h = h * SHORTER
    run.was_rejected = 1
    run.jacobian_age = 2
    if run.failures >= MOST_FAILURES and run.order > 1:
        set_order_one(run)
    return NOT_SOLVED if step_control.is_too_short(run) else PAUSED


# ---- switching ------------------------------------------------------------------------------------------------------


@compiled
def should_switch(tables, how, work, error, h, run):
    """Whether the other scheme would take longer steps, by the errors of both and the stability of Adams."""
    if run.since_switch < PATIENCE or run.steepness == 0.0:
        return False
    k = run.order
    if run.method == ADAMS:
        b = min(k, tables.highest[BDF])
        own = error ** (-1.0 / (k + 1)) if error > 0.0 else np.inf
        other = find_factor(tables, how, work, tables.first + b, h, tables.error[BDF, b], b, run)
        return other >= GAIN * min(own, find_stable_factor(tables, h, k, run))
    own = error ** (-1.0 / (k + 1)) if error > 0.0 else np.inf
    other_error = error * tables.error[ADAMS, k] / tables.error[BDF, k]
    other = other_error ** (-1.0 / (k + 1)) if other_error > 0.0 else np.inf
    return min(other, find_stable_factor(tables, h, k, run)) >= own


@compiled
def switch(field, p, tables, work, log, run):
    """Continue with the other scheme, whose differences are computed from the polynomial; False if f raised."""
    first, spare, h = tables.first, tables.spare, run.h_history
    if run.method == ADAMS:
        order = min(run.order, tables.highest[BDF])
        for j in range(1, order + 1):
            combine(work, spare + j, ZERO, h, tables.to_bdf, j, first, run.order)
        copy_row(work, Y, spare)
        run.method = BDF
    else:
        order = run.order
        if call_field(field, run.t + run.t_low, work, Y, spare, p, run.n) != 0:
            stepping.note_exception(run, 0, 0, run.t, Y)
            return False
        run.evaluations += 1
        for j in range(1, order):
            combine(work, spare + j, ZERO, 1.0 / h, tables.to_adams, j, first, order + 1)
        copy_row(work, spare, K)
        order = max(1, order)
        run.method = ADAMS
    work[first : first + tables.n_differences] = 0.0
    for j in range(order + 1 if run.method == BDF else order):
        copy_row(work, spare + j, first + j)
    if run.n_switches < log.times.shape[0]:
        log.times[run.n_switches] = run.t
    run.n_switches += 1
    run.order, run.equal_steps, run.since_switch, run.steepness = order, 0, 0, 0.0
    run.jacobian_age, run.h_factorised = 0, 0.0
    return True


# ---- runs -----------------------------------------------------------------------------------------------------------


@compiled
def attempt(field, p, tables, newton, how, work, h, run):
    """A step of length h into the row Y_NEW: DONE, FIELD_RAISED or NOT_SOLVED."""
    set_history(tables, work, h, run)
    if run.method == BDF:
        return take_bdf_step(tables, newton, how, choose_limits(work, how, run), work, h, run)
    return take_adams_step(field, p, tables, how, work, h, run)


@compiled
def extend_history(tables, work, log, run):
    """Append the step just taken to the differences, and count it."""
    if run.method == BDF:
        append_state(tables, work, tables.spare, run.order, run)
        copy_row(work, Y_NEW, tables.first)
        is_kept = run.n > SMALL_SYSTEM or run.rate < SLOW
        run.jacobian_age = 2 if is_kept else 0
    else:
        copy_row(work, K + 1, tables.spare)
        append_slope(tables, work, tables.spare, run.order, run)
    log.steps[run.method, run.order] += 1
    run.since_switch += 1


@Kernel
def run_variable_order(field, p, tables, output, newton, how, stops, needs, log, work, run_, out):
    """Adaptive steps of variable order; a step ends at each of the times `stops`."""
    run = run_[0]
    is_simple = is_nothing_wanted(needs)
    for _ in range(run.slice):
        if run.step == run.n_steps:
            return DONE
        if stepping.is_full(run, out.t) or (not is_simple and is_full(needs, run, out)):
            return FULL
        if run.step + run.rejected >= run.max_steps:
            return STEP_LIMIT
        if (run.order == 0 or run.has_slope == 0) and not begin_history(field, p, tables, work, run):
            return FIELD_RAISED
        goal = find_next_goal(run, stops)
        remaining = (goal - run.t) - run.t_low
        is_at_goal = abs(run.h) >= abs(remaining) * (1.0 - 1e-9)
        is_last = is_at_goal and run.next_stop == stops.shape[0]
        h = remaining if is_at_goal else run.h
        if not is_at_goal and abs(remaining) < 2.0 * abs(h):  # no very short step before the goal
            h = 0.5 * remaining
        run.h_tried = h
        if not is_finite_row(work, K):
            return NOT_FINITE
        status = attempt(field, p, tables, newton, how, work, h, run)
        if status == NOT_SOLVED:
            status = retry(h, run)
            if status != PAUSED:
                return status
            continue
        if status != DONE:
            return status
        error = STRICT * step_control.scaled_norm(work, ERROR, Y, Y_NEW, how.atol, how.rtol, how.norm, run)
        if error <= 1.0 and run.method == ADAMS:
            status = finish_adams_step(field, p, tables, how, work, h, run)
            if status == FIELD_RAISED:
                return status
            if status == NOT_FINITE:
                error = np.inf
        if not error <= 1.0:
            status = shorten(tables, work, error, h, how, run)
            if status != PAUSED:
                return status
            continue
        if run.was_rejected == 2 and is_lost(work, h, run):
            return NOT_FINITE
        t_new, t_low = advance_time(run, h, goal, is_at_goal)
        run.n_steps = run.step + 1 if is_last else -1
        extend_history(tables, work, log, run)
        if not is_simple:
            prepare_extension(tables, work, h, run)
        status = complete(field, p, output, needs, is_simple, work, 2, t_new, h, run, out)
        if run.theta < 1.0:  # stopped by an event or a failure before the end of the step
            run.n_steps = -1
            return status
        run.t_low = t_low
        if is_at_goal and not is_last:
            run.next_stop += 1
        is_switching = tables.may_switch and should_switch(tables, how, work, error, h, run)
        if is_switching and not switch(field, p, tables, work, log, run):
            return FIELD_RAISED
        choose_next_step(tables, how, work, error, h, is_at_goal, run)
        if status == EVENT:
            return EVENT
    return DONE if run.step == run.n_steps else PAUSED


# ---- preparation ----------------------------------------------------------------------------------------------------


def prepare(problem: Problem, scheme: VariableBDF | VariableAdams | Switching, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    adams, bdf = find_multistep_parts(scheme)
    tables = build_difference_tables(adams, bdf, problem.initial.real.dtype)
    first_row = tables.spare + tables.n_differences
    if bdf is None:
        initial, (field, watched, moved) = problem.initial, build_fields(problem, plan)
        jacobian = JacobianField(0, np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), (0, 0), "")
        newton, own, system = allocate_newton(jacobian, 0, 1, 1, OUTSIDE, 0), field, None
        work, run = allocate_work(initial, 1, first_row + 1), create_run_state(problem, plan)
    else:
        system = build_system(problem, plan, Shifts(tables.alpha_shift, 1, False), first_row)
        initial, own, field, (watched, moved) = system.initial, system.own, system.slopes, system.others
        newton, work, run = system.newton, system.work, system.run
    run["method"] = ADAMS if adams is not None else BDF
    run["highest_order"], run["may_switch"] = max(tables.highest), tables.may_switch
    slopes = evaluate_euler_slopes(own)
    watch = build_event_state(plan, field, (*watched, *moved), problem, run["reals"].item(), work.dtype)
    how = step_control.build_control_settings(cast(AdaptiveSteps, plan.stepping), 0.5)
    run["is_checked"] = own.replay is not None and not own.callbacks
    first_look = cast(AdaptiveSteps, plan.stepping), how, work, FIRST_LOOK, run
    step_control.begin_with_step(field, *first_look)
    run["has_slope"] = 0
    output = build_output_tables(tables, work.dtype)
    log = ChoiceLog(np.zeros((2, tables.n_differences), np.int64), np.zeros(MOST_SWITCHES))

    def choose_step() -> None:
        step_control.begin_anew(field, *first_look)
        run["order"] = 0

    def go(out):
        needs = build_output_request(plan, out.watch, moved, False)
        buffers = OutputBuffers(out.t, out.y, out.piece_t, out.pieces)
        numbers = (tables, output, newton, how, cast(AdaptiveSteps, plan.stepping).stops)
        code = run_variable_order(field.address, field.p, *numbers, needs, log, work, run, buffers)
        return code if system is None else system.check_outside(code)

    fields, describe = (own, *watched, *moved), partial(describe_choices, scheme, log, run)
    return Job(
        go, run, work, 1, fields, initial.dtype, slopes, watch, rows_per_piece=4 + len(output.R),
        choose_step=choose_step, describe_choices=describe, linear_solver="" if system is None else system.solver,
    )  # fmt: skip


def build_output_tables(tables: DifferenceTables, dtype) -> SchemeTables:
    """Tables of the continuous extension, whose slopes and corrections the kernel computes itself."""
    zeros = np.zeros((2, 2), dtype)
    nothing = np.zeros((len(tables.corrections), 0), dtype)
    return SchemeTables(zeros, zeros[:1, :1].copy(), np.array([0.0, 1.0]), zeros[:0, :1].copy(), nothing, 1, 1)


def evaluate_euler_slopes(field):
    """Evaluate the slopes of a step of Euler's method in Python, to diagnose a failure."""

    def slopes(t, y, h):
        slope = field(t, y)
        yield StageSlopes(slope, t, y)
        moved = (y + h * slope).astype(y.dtype)
        yield StageSlopes(field(t + h, moved), t + h, moved)

    return slopes


def describe_choices(scheme, log: ChoiceLog, run: np.ndarray) -> dict:
    """Entries of `Statistics`: steps by order, steps by scheme, and times of switches."""
    parts = find_multistep_parts(scheme)
    names = tuple(part.name for part in parts if part is not None)
    highest = max(part.order for part in parts if part is not None)
    told = {"orders": tuple(log.steps.sum(axis=0)[1 : highest + 1].tolist())}
    if len(names) == 2:
        told |= describe_switches(names, log.steps.sum(axis=1), log.times[: int(run[0]["n_switches"])])
    return told


def describe_switches(names: tuple[str, str], steps, times) -> dict:
    """Entries of `Statistics`: steps by scheme, and the times of switches with the scheme that began there."""
    return {
        "steps_by_scheme": tuple(zip(names, map(int, steps), strict=True)),
        "switches": tuple((float(t), names[(i + 1) % 2]) for i, t in enumerate(times)),
    }
