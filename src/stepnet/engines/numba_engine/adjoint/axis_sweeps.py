"""Sweeps over steps along the axes of a grid (`integrators/implicit/axis_rosenbrock.py`), forward and in reverse.

With M_k = I - h gamma A_k a step is y_new = y + x_m, M_k x_k = x_(k-1), x_0 = h f.  In reverse M_k' w_k = w_(k+1) from
w_(m+1) = the gradient; w_k . h gamma (dA_k) x_k and the pullback of f by h w_1 give the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stepnet.engines.numba_engine.adjoint.step_sweeps import (
    DONE,
    NO_MARKS,
    RAISED,
    GradientSums,
    LossReadSteps,
    StepClock,
    SweepFailed,
    find_step_time,
)
from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.codegen.primitives import call_field
from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback
from stepnet.engines.numba_engine.stencils.axis_systems import (
    AxisSystems,
    build_axis_systems,
    build_systems,
    differentiate_rate,
    factorise_axes,
    factorise_systems,
    list_numbers,
    solve_axis,
    solve_system,
    weigh_axis,
)
from stepnet.engines.numba_engine.stencils.line_systems import pull_back_coefficient
from stepnet.operators.linear_form import DiffusionForm, LinearForm
from stepnet.problem import ODE, is_finite

VJP = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_double, *[ctypes.c_void_p] * 6, ctypes.c_int64)


@Kernel
def sweep_axis_steps(field, p, systems, gamma, clock, first, count, work, states, is_kept):
    """Advance row 0 of `work` over `count` steps; if `is_kept`, the state before each goes to a row of `states`."""
    n, factored = states.shape[1], 0.0
    for j in range(count):
        for i in range(n):
            if is_kept:
                states[j, i] = work[0, i]
        t, h = find_step_time(clock, first + j)
        if factored != h:
            if not factorise_axes(systems, gamma * h):
                return RAISED
            factored = h
        if call_field(field, t + 0.5 * h, work, 0, 1, p, n) != 0:
            return RAISED
        for k in range(systems.sizes.shape[0]):
            solve_axis(systems, k, gamma * h, 0, work[1], work[1])
        for i in range(n):
            work[0, i] += h * work[1, i]
    return DONE


NumberPullback = Callable[[int, np.ndarray, np.ndarray, float, np.ndarray], None]


def build_number_pullback(form: LinearForm | DiffusionForm, p: np.ndarray) -> NumberPullback:
    """A function (k, w, x, factor, p_bar) that adds the gradient of w . factor A_k x with respect to p."""
    if isinstance(form, DiffusionForm):
        return partial(_add_coefficient, form)
    changes: list[tuple[int, float, AxisSystems]] = []  # argument, derivative of the rate, its matrices
    rates = dict.fromkeys(term.rate for term in form.terms)
    for rate in rates:
        slope = differentiate_rate(rate, p)
        if slope != 0.0:
            single = build_axis_systems(form, {each: float(each == rate) for each in rates})
            changes.append((rate.argument, slope, single))
    return partial(_add_rates, changes)


def _add_coefficient(
    form: DiffusionForm, k: int, w: np.ndarray, x: np.ndarray, factor: float, p_bar: np.ndarray
) -> None:
    shape = form.operator.grid.shape
    found = pull_back_coefficient(form.operator, k, w.reshape(shape), x.reshape(shape))
    p_bar[form.argument : form.argument + found.size] += factor * found.ravel()


def _add_rates(
    changes: list[tuple[int, float, AxisSystems]], k: int, w: np.ndarray, x: np.ndarray, factor: float,
    p_bar: np.ndarray,
) -> None:  # fmt: skip
    total = np.zeros(1)
    for argument, slope, single in changes:
        if np.any(single.bands[k]):
            weigh_axis(single, k, w, x, total)
            p_bar[argument] += slope * factor * total[0]


class AxisRunner:
    """Steps along axes on one equation: `forward` over the steps of a clock, and `backward` by their adjoint."""

    is_generated = False

    def __init__(self, problem: ODE, part: PartPullback, gamma: float, clock: StepClock, has_times: bool):
        fun: Any = problem.fun
        form, p = fun.find_axes(*problem.args), list_numbers(problem)
        self._part, self._gamma, self._clock, self._has_times = part, gamma, clock, has_times
        self._p, self._n, self._factored = part.field.p, problem.initial.size, 0.0
        self._systems = build_systems(form, p)
        self._pull_back_numbers = build_number_pullback(form, p)

    def forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None = None) -> None:
        """Advance `state` (1, n) over `count` steps; the states before them go to the rows of `states`."""
        if count == 0:
            return
        work, kept = np.zeros((2, self._n)), np.empty((1, self._n)) if states is None else states
        work[0] = state[0]
        self._factored = 0.0
        head = (self._part.field.address, self._p, self._systems, self._gamma, self._clock, first, count)
        if sweep_axis_steps(*head, work, kept, int(states is not None)) != DONE:
            self._explain()
        state[0] = work[0]
        if not is_finite(state):
            raise SweepFailed("a state became NaN or infinite")

    def backward(
        self,
        states: np.ndarray,
        first: int,
        count: int,
        bar: np.ndarray,
        sums: GradientSums,
        marks: LossReadSteps = NO_MARKS,
    ) -> None:
        """Pull the gradient `bar` (1, n) back over `count` steps from the states before them, adding `marks`."""
        mark = len(marks.at) - 1
        for j in reversed(range(count)):
            self._pull_back_step(states[j], first + j, bar, sums)
            if mark >= 0 and marks.at[mark] == first + j:
                if marks.bars.size:
                    marks.bars[mark], marks.p_bars[mark] = bar, sums.p
                    bar[:], sums.p[:] = 0.0, 0.0
                bar += marks.seeds[mark]
                mark -= 1

    def _pull_back_step(self, y: np.ndarray, index: int, bar: np.ndarray, sums: GradientSums) -> None:
        clock = self._clock
        t, h = find_step_time.py_func(clock, index)
        factor = self._gamma * h
        if self._factored != h and factorise_systems(self._systems, factor) != 1:
            raise SweepFailed("the equations of an implicit step could not be solved")
        self._factored = h
        rows = [h * self._part.field(t + 0.5 * h, y)]
        for k in range(len(self._systems.sizes)):
            rows.append(np.empty(self._n))
            solve_system(self._systems, k, factor, 0, rows[k], rows[k + 1])
        w, length = bar[0].copy(), 0.0
        for k in reversed(range(len(rows) - 1)):
            solve_system(self._systems, k, factor, 1, w, w)
            self._pull_back_numbers(k, w, rows[k + 1], factor, sums.p)
            if self._has_times:
                length += float(w @ (rows[k + 1] - rows[k])) / h
        if self._has_times:
            length += float(w @ rows[0]) / h
        w *= h
        t_bar = np.zeros(1)
        arrays = (np.ascontiguousarray(y), self._p, w, t_bar, bar[0], sums.p)
        if VJP(self._part.vjp)(t + 0.5 * h, *(each.ctypes.data for each in arrays), self._n) != 0:
            self._explain()
        if self._has_times:
            sums.t[0] += t_bar[0]
            sums.t[1] += (t - clock.t0) * t_bar[0] + h * (0.5 * t_bar[0] + length)

    def _explain(self) -> None:
        """Raise the exception of a right-hand side or a pullback."""
        for exception in (self._part.exception, *(each.exception for each in self._part.field.callbacks)):
            if exception is not None:
                raise exception
        raise SweepFailed("the equations of an implicit step could not be solved, or a right-hand side failed")
