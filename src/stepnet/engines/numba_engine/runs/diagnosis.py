"""Diagnosis of failures in Python after the kernel has stopped: what happened, where, and what to try."""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Plan
from stepnet.engines.numba_engine.derivatives import dominant_eigenvalue
from stepnet.engines.numba_engine.integrators.stepping import BROKEN, FIELD_RAISED, NOT_FINITE, PAUSED
from stepnet.engines.numba_engine.runs.job import ELSEWHERE, Job, allocate_work
from stepnet.schemes.capabilities import find_stability_limit
from stepnet.solution import Failure, Status

STIFF = 0.8  # of the stability limit, with a decaying direction: the step is limited by stability, not by accuracy
HUGE = 1e60  # a state beyond this counts as blown up, even if its slopes are finite
WORTH_A_LOOK = 500  # accepted steps of a completed run above which stiffness is measured


def explain(job: Job, scheme, plan: Plan, status: Status) -> tuple[Failure | None, float]:
    """The failure of a run (None if it completed) and its stiffness (NaN if not measured)."""
    if status in (Status.COMPLETED, Status.EVENT):
        is_long = isinstance(plan.stepping, AdaptiveSteps) and job.run["step"].item() > WORTH_A_LOOK
        return None, (measure_stiffness(job, scheme) if is_long else float("nan"))
    if status is Status.INTERRUPTED:
        return _describe_failure(job, status), float("nan")
    if status is Status.FIELD_RAISED:
        return find_user_exception(job), float("nan")
    ratio = measure_stiffness(job, scheme)
    return _describe_failure(job, status, ratio), ratio


def measure_stiffness(job: Job, scheme) -> float:
    """h rho(J) / (real stability limit) at the end of the run; NaN unless the dominant direction decays."""
    run, y = job.run[0], job.state
    limit = find_stability_limit(scheme, int(run["order"]))
    if not 0 < limit < np.inf or y.size == 0 or job.rows != 1:
        return float("nan")
    field, reals = job.fields[0], int(run["reals"])
    work = allocate_work(y, 1, 5)
    work[dominant_eigenvalue.DIRECTION, :reals] = np.cos(np.arange(1.0, reals + 1))  # an arbitrary direction
    distance = np.sqrt(np.finfo(work.dtype).eps) * max(_measure_norm(y), 1e-8)
    result = np.zeros(2)
    run["evaluations"] += dominant_eigenvalue.ITERATIONS + 1
    place = (float(run["t"]), int(run["n"]), reals, float(distance))
    if dominant_eigenvalue.find_dominant(field.address, field.p, work, *place, result) != 0:
        return float("nan")
    radius, growth = result
    direction = 1.0 if run["t_end"] > run["t0"] else -1.0
    is_decaying = growth * direction < -0.5 * radius
    return float(abs(run["h"]) * radius / limit) if is_decaying else float("nan")


def _describe_failure(job: Job, status: Status, ratio: float = float("nan")) -> Failure:
    run = job.run[0]
    t, h, y = float(run["t"]), float(run["h_tried"] or run["h"]), job.state
    stage, component, slope_norm = None, None, float("nan")
    if status is not Status.INTERRUPTED:
        stage, component, slope_norm = _find_first_bad_slope(job, t, y, h)
    y_norm = _measure_norm(y)
    has_grown = y_norm > HUGE
    return Failure(
        t=t,
        h=h,
        y_norm=y_norm,
        slope_norm=slope_norm,
        stage=None if has_grown else stage,
        component=None if has_grown else component,
        stiffness=ratio,
        advice=_advise(status, ratio, stage is not None and not has_grown),
    )


def _measure_norm(values: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(values))


def correct_code(job: Job, code: int) -> int:
    """FIELD_RAISED if a Python original raises where machine code gives a value that is not finite; else the code.

    `math.sqrt(-1.0)` raises, whereas `np.sqrt(-1.0)` and compiled code give NaN.
    """
    if code not in (BROKEN, NOT_FINITE):
        return code
    if job.inner is not None and job.run[0]["part"] == ELSEWHERE:
        return correct_code(job.inner, code)
    return FIELD_RAISED if _find_exception(job) else PAUSED if code == BROKEN else code


def does_event_raise(job: Job) -> bool:
    """Whether the Python original of an event that was NaN raises there; records where if it does."""
    run, watch = job.run[0], job.watch
    part, t, y = int(run["nan_event"]), float(run["t_nan"]), watch.y_nan.view(job.dtype).copy()
    run["nan_event"] = -1
    return _is_raising(job, part, 0, t, y)


def _is_raising(job: Job, part: int, stage: int, t: float, y: np.ndarray) -> bool:
    """Whether the Python original of a function raises; records where if it does."""
    run, replay = job.run[0], job.fields[part].replay
    try:
        if replay is not None:
            with np.errstate(all="ignore"):
                replay(t, y)
    except Exception:
        run["part"], run["stage"], run["t_stage"], run["row_in"] = part, stage, t, -1
        real = y.view(job.work.dtype)
        job.work[-1, : real.size] = real
        return True
    return False


def _find_exception(job: Job) -> bool:
    """Call the Python originals for the slopes of the last attempt that are not finite; records where one raises."""
    t, h = float(job.run[0]["t"]), float(job.run[0]["h_tried"] or job.run[0]["h"])
    try:
        with np.errstate(all="ignore"):
            for stage, found in enumerate(job.stage_slopes(t, job.state, h)):
                is_finite = np.isfinite(found.slopes).all()
                if not is_finite and _is_raising(job, found.part, stage, found.t, found.y):
                    return True
    except RuntimeError:  # a right-hand side raised, which the kernel would have reported
        pass
    return False


def _find_first_bad_slope(job: Job, t: float, y: np.ndarray, h: float):
    """(stage, component, norm of the first slope) of the first slope that is not finite."""
    norm = float("nan")
    with np.errstate(all="ignore"):
        try:
            for stage, found in enumerate(job.stage_slopes(t, y, h)):
                slopes = found.slopes
                if stage == 0:
                    norm = _measure_norm(slopes)
                bad = np.flatnonzero(~np.isfinite(slopes))
                if bad.size:
                    return stage, int(bad[0]), norm
        except RuntimeError:  # the right-hand side raised; there is nothing finite to examine
            pass
    return None, None, norm


def _advise(status: Status, ratio: float, is_slope_bad: bool) -> str:
    if ratio > STIFF:
        return "the problem is stiff: use an implicit scheme such as rodas5p, or a stabilised scheme such as rkl2"
    return {
        Status.STEP_LIMIT: "raise `max_steps` or loosen `rtol` and `atol`",
        Status.NOT_FINITE: "check the right-hand side there"
        if is_slope_bad
        else "the solution grows without bound: use smaller steps, or end `t_span` before a singularity",
        Status.STEP_TOO_SMALL: "the solution may be singular there; end `t_span` before it or loosen the tolerances",
        Status.NOT_SOLVED: "take smaller steps, or a pair with adaptive steps; check `jac` if you gave it",
        Status.INTERRUPTED: "",
        Status.EVENTS_ACCUMULATE: "the time between them has gone to zero, as for a ball that comes to rest: "
        "end `t_span` before it, or stop the run by a `terminal` event",
    }[status]


def find_user_exception(job: Job) -> Failure:
    """The user's exception: the one the callback stored, or that of the Python original called with the same values."""
    if job.inner is not None and job.run[0]["part"] == ELSEWHERE:
        return find_user_exception(job.inner)
    run = job.run[0]
    t = float(run["t_stage"])
    y = job.work[run["row_in"], : run["reals"]].view(job.dtype).copy()
    field = job.fields[int(run["part"])]
    exception = next((c.exception for c in field.callbacks if c.exception is not None), None)
    if exception is None and field.replay is not None:
        try:
            field.replay(t, y)
        except BaseException as error:
            exception = error
    if exception is not None and not isinstance(exception, Exception):
        raise exception  # `sys.exit()` and interrupts propagate as usual
    what = (
        "its Python original does not raise there" if exception is None else f"{type(exception).__name__}: {exception}"
    )
    if field.rung == "address":
        what = "the C function returned a status other than 0"
    return Failure(
        t=float(run["t"]),
        h=float(run["h"]),
        y_norm=_measure_norm(job.state),
        slope_norm=float("nan"),
        stage=int(run["stage"]),
        advice=f"{what} (at t = {t:.6g}, stage {int(run['stage']) + 1})",
        exception=exception,
    )
