"""Error norms and step-size control."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import AdaptiveSteps
from stepnet.engines.numba_engine.codegen.kernels import Kernel, check_once, inlined
from stepnet.engines.numba_engine.codegen.primitives import call_field
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.schemes.controllers import Controller

RMS, MAXIMUM = 0, 1
EPS = 2.0**-52
LEAST_STEP = 1e-100  # of the time span
LOST = 1e-14  # of the time span or the time: if a step this short leaves the state unchanged, the run is stuck
NORMS = {"rms": RMS, "max": MAXIMUM}


@check_once
class ControllerNumbers(NamedTuple):
    """A controller for errors O(h^k): `betas` are divided by k, and `exponent` is 1/k."""

    betas: np.ndarray
    exponent: float
    shrink: float
    grow: float
    safety: float
    aim: float


class ControlSettings(NamedTuple):
    """Tolerances, norm and controller for kernels."""

    atol: np.ndarray
    rtol: np.ndarray
    norm: int
    controller: ControllerNumbers


def build_control_settings(plan: AdaptiveSteps, exponent: float) -> ControlSettings:
    """The control settings of a plan."""
    return ControlSettings(plan.atol, plan.rtol, NORMS[plan.norm], build_controller(plan.controller, exponent))


@lru_cache(maxsize=64)
def build_controller(c: Controller, exponent: float) -> ControllerNumbers:
    betas = exponent * np.array([c.beta1, c.beta2, c.beta3])
    aim = c.safety ** (c.beta1 + c.beta2 + c.beta3)
    return ControllerNumbers(betas, exponent, c.shrink, c.grow, c.safety, aim)


@inlined
def scaled_norm(work, row, y, y_new, atol, rtol, norm, run):
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
        x = float(size) / (atol[k] + rtol[k] * max(size_y, size_new))
        if norm == RMS:
            total += x * x
        elif total == total and not x <= total:  # a NaN is kept
            total = x
    if norm == RMS and n > 0:
        return np.sqrt(total / n)
    return total


@inlined
def growth(error, run, controller):
    """Factor for the next step: aim * prod error_i^(-beta_i), clipped; no growth directly after a rejection."""
    betas = controller.betas
    if error == 0.0:
        factor = controller.grow
    else:
        factor = controller.aim * error ** -betas[0]
        if betas[1] != 0.0:
            factor *= run.error_1 ** -betas[1]
        if betas[2] != 0.0:
            factor *= run.error_2 ** -betas[2]
        factor = min(controller.grow, max(controller.shrink, factor))
    return min(factor, 1.0) if run.was_rejected else factor


@inlined
def shrinkage(error, controller):
    """Factor for the next attempt after an error above 1 or a result that is not finite."""
    if not np.isfinite(error):
        return controller.shrink
    return max(controller.shrink, controller.safety * error**-controller.exponent)


@inlined
def choose_first_step(field, p, work, how, rows, run):
    """Set run.h by the rule of Hairer, Norsett & Wanner I, II.4: an Euler step estimates how fast the slope changes.

    `rows` are those of y, its slope (known on exit), and two scratch rows.
    """
    y, slope, probe, change = rows
    span = abs(run.t_end - run.t)
    direction = np.sign(run.t_end - run.t)
    if call_field(field, run.t, work, y, slope, p, run.n) != 0:
        return 1
    run.has_slope = 1
    run.evaluations += 2
    d0 = scaled_norm(work, y, y, y, how.atol, how.rtol, how.norm, run)
    d1 = scaled_norm(work, slope, y, y, how.atol, how.rtol, how.norm, run)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, span)
    for k in range(run.reals):
        work[probe, k] = work[y, k] + h0 * direction * work[slope, k]
    if call_field(field, run.t + h0 * direction, work, probe, change, p, run.n) != 0:
        run.h = h0 * direction
        return 0
    for k in range(run.reals):
        work[change, k] -= work[slope, k]
    d2 = scaled_norm(work, change, y, y, how.atol, how.rtol, how.norm, run) / h0
    steepest = max(d1, d2)
    h1 = max(1e-6, 1e-3 * h0) if steepest <= 1e-15 else (0.01 / steepest) ** how.controller.exponent
    best = min(100 * h0, h1)
    run.h = direction * min(best if np.isfinite(best) else h0, span, run.h_max)
    return 0


@inlined
def is_too_short(run):
    """Whether the next step is below the resolution of t: 10 spacings of t, as in SciPy, or h_least at t = 0."""
    return abs(run.h) < max(10 * EPS * abs(run.t), run.h_least)


@Kernel
def choose_initial_step(field, p, work, how, rows, run_):
    """As `choose_first_step`, callable by the driver."""
    return choose_first_step(field, p, work, how, rows, run_[0])


def begin_with_step(field: CompiledRHS, stepping: AdaptiveSteps, how, work: np.ndarray, rows, run: np.ndarray) -> None:
    """Set the length of the first step, that of the plan if it has one; `rows` as in `choose_first_step`."""
    if stepping.first_step is None:
        choose_initial_step(field.address, field.p, work, how, rows, run)
    else:
        first = min(stepping.first_step, stepping.max_step)
        run[0]["h"] = np.copysign(first, run[0]["t_end"] - run[0]["t0"])


def begin_anew(field: CompiledRHS, stepping: AdaptiveSteps, how, work: np.ndarray, rows, run: np.ndarray) -> None:
    """The same in the course of a run, without its earlier errors."""
    run["error_1"] = run["error_2"] = 1.0
    run["was_rejected"] = 0
    begin_with_step(field, stepping, how, work, rows, run)
