"""Explicit Runge-Kutta pairs with adaptive steps, the same for the whole tensor.

The solution inside a step is the pair's continuous extension,
y(t + theta h) = H(theta) + h theta^2 (1 - theta)^2 sum_i sum_m R_mi (theta - 1/2)^m k_i, H the Hermite cubic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.integrators import step_control
from stepnet.engines.torch_engine.integrators.implicit_rk import find_pair_program, take_pair_step
from stepnet.engines.torch_engine.integrators.implicit_stages import TO_ROUNDING, NewtonSettings
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings, ErrorHistory
from stepnet.engines.torch_engine.integrators.step_program import Length, TensorProgram, combine
from stepnet.engines.torch_engine.rhs.tensor_fields import SumFunction
from stepnet.schemes.step_program import Term
from stepnet.schemes.tableau import ExplicitRK, dense_weights

NOT_FINITE = "`func` gives values that are not finite"
SHORTEST = 1e-14  # a step below this fraction of |t| is below the resolution of t


class StepError(RuntimeError):
    """Steps that cannot continue: too many, too short, or not finite."""


class Attempt(NamedTuple):
    """A step from (t, y): its stages, end and error estimates; t and h may be columns with one entry per sample."""

    t: Any
    h: Any
    y: Tensor
    k: list[Tensor]
    y_new: Tensor
    errors: list[Tensor]
    slope: Callable[..., Tensor]


class SlopeFunction(NamedTuple):
    """`fun` as a function of times that are numbers, clipped to the bounds."""

    fun: Callable[..., Tensor]
    like: Tensor
    bounds: tuple[float, float]

    def place(self, t: float) -> Tensor:
        """A time clipped to the bounds, as a scalar tensor."""
        least, most = self.bounds
        return torch.full((), min(max(t, least), most), dtype=self.like.real.dtype, device=self.like.device)

    def __call__(self, t: float, y: Tensor) -> Tensor:
        return self.fun(self.place(t), y)


def evaluate_slope(fun: Callable[..., Tensor], like: Tensor, bounds: tuple[float, float] = (-inf, inf)) -> Any:
    """`fun` as a function of times that are numbers, clipped to the bounds."""
    return SlopeFunction(fun, like.detach(), bounds)


def find_inside(start: float, stop: float, like: Tensor) -> tuple[float, float]:
    """The smallest and the largest number strictly between two times, in the precision of the state."""
    ends = torch.tensor([start, stop], dtype=like.real.dtype)
    least, most = sorted(torch.nextafter(ends, ends.flip(0)).tolist())
    return least, most


def move(y: Tensor, k: Sequence[Tensor], weights: Iterable[float], h: Length) -> Tensor:
    """y + h sum_j w_j k_j."""
    terms = [Term(j, float(w)) for j, w in enumerate(weights) if w != 0]
    return combine([*k, y], [Term(len(k), 1.0, 0), *terms], h)


def attempt_step(
    slope: Callable[..., Tensor],
    scheme: Any,
    t: Length,
    h: Length,
    y: Tensor,
    k_first: Tensor,
    newton: NewtonSettings = TO_ROUNDING,
) -> Attempt:
    """Stages, new state and error estimates of one step; `newton` holds the convergence criteria of implicit stages."""
    fun = slope.fun if isinstance(slope, SlopeFunction) else slope
    program = find_pair_program(scheme, isinstance(fun, SumFunction))
    if program is not None:
        return _attempt_implicit_step(program, slope, t, h, y, k_first, newton)
    A, b, c = scheme.butcher
    k, stage = [k_first], y
    for i in range(1, len(b)):
        stage = move(y, k, A[i, :i], h)
        k.append(slope(t + c[i] * h, stage))
    y_new = stage if scheme.is_fsal else move(y, k, b, h)
    errors = [move(torch.zeros_like(y), k, b - hat.b, h) for hat in scheme.embedded]
    return Attempt(t, h, y, k, y_new, errors, slope)


def _attempt_implicit_step(
    program: TensorProgram,
    slope: Callable[..., Tensor],
    t: Length,
    h: Length,
    y: Tensor,
    k_first: Tensor,
    newton: NewtonSettings,
) -> Attempt:
    at: list[Any] = [t + node.c * h for node in program.nodes]
    if isinstance(slope, SlopeFunction):
        fun, times = slope.fun, [slope.place(time) for time in at]
    else:
        fun, times = slope, at
    functions = fun.parts if isinstance(fun, SumFunction) else (fun,)
    y_new, error = take_pair_step(program, functions, times, h, y, newton)
    return Attempt(t, h, y, [k_first], y_new, [error], slope)


def measure_error(step: Attempt, how: ControlSettings) -> float:
    """Norm of the estimate; with two of them, e and e~, DOP853 takes |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2)."""
    first, *second = (step_control.scaled_norm(e, step.y, step.y_new, how) for e in step.errors)
    if second and first > 0.0:
        return first * first / (first * first + 0.01 * second[0] ** 2) ** 0.5
    return first


def error_power(scheme: ExplicitRK) -> int:
    """k in error = O(h^k): the lower order plus one; 2 k_1 - k_2 for the two estimates of DOP853."""
    powers = [min(scheme.order, hat.order) + 1 for hat in scheme.embedded]
    return powers[0] if len(powers) == 1 else 2 * powers[0] - powers[1]


def iterate_accepted_steps(
    fun: Callable[..., Tensor], scheme: ExplicitRK, y: Tensor, t: float, t_end: float, how: ControlSettings
) -> Iterator[Attempt]:
    """Iterate over the accepted steps from t to t_end."""
    memory, low, attempts, marks = ErrorHistory(), 0.0, 0, list(select_times_ahead(how.marks, t, t_end))
    slope, targets = (
        evaluate_slope(fun, y, find_sides(t, t_end, y, how)),
        [*select_times_ahead(how.stops, t, t_end), t_end],
    )
    newton, is_implicit = choose_newton(how), find_pair_program(scheme) is not None
    k = slope(t, y)
    with torch.no_grad():
        _require(bool(k.isfinite().all()), NOT_FINITE, float(k.abs().max()), t)
        h = step_control.choose_initial_step(slope, t, t_end, y, k, how)
    while t != t_end:
        _require(attempts < how.max_steps, "`max_num_steps` exceeded: `func` is perhaps stiff", how.max_steps, t)
        attempts += 1
        remaining = (targets[0] - t) - low
        is_last = abs(h) >= abs(remaining) * (1.0 - 1e-9)
        how.watch("step", t + low, y, remaining if is_last else h)
        step = attempt_step(slope, scheme, t + low, remaining if is_last else h, y, k, newton)
        with torch.no_grad():
            error = measure_error(step, how)
        if not (error <= 1.0 or (abs(step.h) <= how.min_step and isfinite(error))):
            how.watch("reject_step", step.t, y, step.h)
            h = _limit_step(step.h * step_control.shrinkage(error, how), how)
            memory = memory._replace(was_rejected=True)
            reason = "the step became too short" if isfinite(error) else NOT_FINITE
            _require(_is_seen(h, t) and abs(h) < abs(step.h), reason, h, t)
            continue
        how.watch("accept_step", step.t, y, step.h)
        yield step
        grown = step.h * step_control.growth(error, memory, how)
        h = _limit_step(max(grown, h, key=abs) if abs(step.h) < 0.5 * abs(h) else grown, how)  # a step cut short
        memory = ErrorHistory(max(error, 1e-4), memory.error_1, False)
        t, low = (targets.pop(0), 0.0) if is_last else _advance_time(t, low, step.h)
        y = step.y_new
        if is_last and t in how.jumps:
            slope = evaluate_slope(fun, y, find_sides(t, t_end, y, how))
            k = slope(t, y)
        else:
            k = step.k[-1] if is_implicit or scheme.is_fsal else slope(t + low, y)  # implicit steps do not use it
        while marks and abs(t - t_end) <= abs(marks[0] - t_end):
            marks.pop(0)
            attempts = 0


def choose_newton(how: ControlSettings) -> NewtonSettings:
    """Solve implicit stages to a fraction of the tolerances, or to rounding where gradients may be needed."""
    if torch.is_grad_enabled():
        return NewtonSettings(can_reject=True)
    rtol, atol = (float(torch.as_tensor(x).min()) for x in (how.rtol, how.atol))
    return NewtonSettings(rtol, atol, can_reject=True)


def select_times_ahead(times: Iterable[float], t: float, t_end: float) -> list[float]:
    """The times between t and t_end, in the order of integration."""
    return sorted((time for time in times if min(t, t_end) < time < max(t, t_end)), reverse=t_end < t)


def find_sides(t: float, t_end: float, y: Tensor, how: ControlSettings) -> tuple[float, float]:
    """Bounds for evaluations of the right-hand side: after the jump at t, if there is one, and before the next."""
    if not how.jumps:
        return -inf, inf
    far = inf if t_end > t else -inf
    return find_inside(t if t in how.jumps else -far, next(iter(select_times_ahead(how.jumps, t, t_end)), far), y)


def _is_seen(h: float, t: float) -> bool:
    """Whether a step of this length is above the resolution of t."""
    return abs(h) >= SHORTEST * abs(t) and t + h != t


def _require(condition: bool, reason: str, number: float, t: float) -> None:
    if not condition:
        raise StepError(f"{reason} ({number}) at t = {t}; loosen `rtol` and `atol`, or check `func` there")


def _limit_step(h: float, how: ControlSettings) -> float:
    return max(min(abs(h), how.max_step), how.min_step) * (1.0 if h > 0 else -1.0)


def _advance_time(t: float, low: float, h: float) -> tuple[float, float]:
    """t + h with compensated (Kahan) summation."""
    increment = h + low
    later = t + increment
    return later, increment - (later - t)


def is_cubic_output_poor(scheme: Any) -> bool:
    """Whether the interpolant is only a cubic of lower order than the scheme, or missing (implicit schemes)."""
    return find_pair_program(scheme) is not None or (scheme.dense is None and scheme.order > scheme.continuous.order)


def build_interpolant(scheme: ExplicitRK, step: Attempt) -> Callable[[float], Tensor]:
    """The solution inside a step: by the continuous extension, or by shorter steps if its order is too low."""
    if is_cubic_output_poor(scheme):
        return lambda t: attempt_step(step.slope, scheme, step.t, t - step.t, step.y, step.k[0]).y_new
    k = extend_stages(scheme, step)
    return lambda t: move(step.y, k, dense_weights(scheme, (t - step.t) / step.h), step.h)


def extend_stages(scheme: ExplicitRK, step: Attempt) -> list[Tensor]:
    """All stages of the continuous extension."""
    extension, k = scheme.continuous, list(step.k)
    for i in range(len(k), len(extension.c)):
        stage = step.y_new if i == extension.new else move(step.y, k, extension.A[i, :i], step.h)
        k.append(step.slope(step.t + extension.c[i] * step.h, stage))
    return k
