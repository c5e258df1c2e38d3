"""How large is the error of a step, and how long should the next one be?"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, uintp

from stepnet.engines.numba_engine.compile.cache import inlined, kernel
from stepnet.engines.numba_engine.primitives import call_field
from stepnet.engines.numba_engine.stepping import RUN_TYPE
from stepnet.schemes.controllers import Controller

RMS, MAXIMUM = 0, 1
NORMS = {"rms": RMS, "max": MAXIMUM}


def numbers(controller: Controller, exponent: float) -> np.ndarray:
    """A controller as the array that `growth` and `shrinkage` read; `exponent` is 1/k for an error of O(h^k)."""
    betas = (controller.beta1 * exponent, controller.beta2 * exponent, controller.beta3 * exponent)
    return np.array([*betas, controller.shrink, controller.grow, controller.safety, exponent])


@inlined
def scaled_norm(work, row, y, y_new, atol, rtol, run, norm):
    """Norm of work[row] / (atol + rtol max(|y|, |y_new|)), root mean square or maximum."""
    n, total = run.n, 0.0
    is_complex = run.reals > n
    for k in range(n):
        if is_complex:
            size_y = np.hypot(work[y, 2 * k], work[y, 2 * k + 1])
            size_new = np.hypot(work[y_new, 2 * k], work[y_new, 2 * k + 1])
            size = np.hypot(work[row, 2 * k], work[row, 2 * k + 1])
        else:
            size_y, size_new, size = abs(work[y, k]), abs(work[y_new, k]), abs(work[row, k])
        x = float64(size) / (atol[k] + rtol[k] * max(size_y, size_new))
        if norm == RMS:
            total += x * x
        elif total == total and not x <= total:  # a NaN stays
            total = x
    if norm == RMS and n > 0:
        return np.sqrt(total / n)
    return total


@inlined
def growth(error, run, control):
    """Factor for the next step: safety * prod error_i^(-beta_i), clipped; no growth right after a rejection."""
    least, most, safety = control[3], control[4], control[5]
    if error == 0.0:
        factor = most
    else:
        factor = safety * error ** -control[0]
        if control[1] != 0.0:
            factor *= run.error_1 ** -control[1]
        if control[2] != 0.0:
            factor *= run.error_2 ** -control[2]
        factor = min(most, max(least, factor))
    return min(factor, 1.0) if run.was_rejected else factor


@inlined
def shrinkage(error, control):
    """Factor for the next attempt after an error above 1 or a result that is not finite."""
    if not np.isfinite(error):
        return control[3]
    return max(control[3], control[5] * error ** -control[6])


@kernel(
    lambda real: int64(
        uintp, float64[::1], real[:, ::1], float64[::1], float64[::1], float64, int64, int64[::1], RUN_TYPE
    )
)
def first_step(field, p, work, atol, rtol, exponent, norm, rows, run_):
    """Set run.h by the rule of Hairer, Norsett & Wanner I, II.4: an Euler step tells how fast the slope changes.

    `rows` are those of y, its slope (known on exit), and two of scratch.
    """
    run = run_[0]
    y, slope, probe, change = rows
    span = abs(run.t_end - run.t)
    direction = np.sign(run.t_end - run.t)
    if call_field(field, run.t, work, y, slope, p, run.n) != 0:
        return 1
    run.has_slope = 1
    run.evaluations += 2
    d0 = scaled_norm(work, y, y, y, atol, rtol, run, norm)
    d1 = scaled_norm(work, slope, y, y, atol, rtol, run, norm)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, span)
    for k in range(run.reals):
        work[probe, k] = work[y, k] + h0 * direction * work[slope, k]
    if call_field(field, run.t + h0 * direction, work, probe, change, p, run.n) != 0:
        run.h = h0 * direction
        return 0
    for k in range(run.reals):
        work[change, k] -= work[slope, k]
    d2 = scaled_norm(work, change, y, y, atol, rtol, run, norm) / h0
    steepest = max(d1, d2)
    h1 = max(1e-6, 1e-3 * h0) if steepest <= 1e-15 else (0.01 / steepest) ** exponent
    best = min(100 * h0, h1)
    run.h = direction * min(best if np.isfinite(best) else h0, span, run.h_max)
    return 0
