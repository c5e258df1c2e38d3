"""Steps of many trajectories in SIMD lanes, generated around a trace: each lane has its own time, step and outcome.

    int64 attempts(double *rows, int64 most)

takes attempts of a pair and returns their number; attempts are accepted or rejected lane by lane as in the kernel for
one trajectory, until a lane needs the kernel's attention, for the reason in the row `OUTCOME`.  Rows hold one number
for every lane.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log as log_of
from typing import Any, NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.steps.fused_steps import write_function
from stepnet.engines.numba_engine.codegen.steps.lane_functions import add_definitions
from stepnet.engines.numba_engine.codegen.steps.step_writer import GeneratedStep
from stepnet.engines.numba_engine.tracing.trace import Trace

# Rows of a lane group.  T to REJECTED change from attempt to attempt; after these come the state, its slope, tolerances
# and parameters, and at the end what the last attempt began with, for step output.
T, T_LOW, H, LOG_1, LOG_2, WAS_REJECTED, ACCEPTED, REJECTED = range(8)
T_END, H_MAX, MOST, T_WANTED, IS_LIVE, OUTCOME, T_OLD, T_LOW_OLD, H_OLD = range(8, 17)
FIRST = 17
CHANGING = range(T_END)

NOTHING, FINISHED, TOO_SMALL, BROKEN, USED_UP, WANTED = map(float, range(6))
LEAST_ERROR = 1e-4  # lower bound of the errors that the controller stores

ATTEMPTS = "ptr noalias %rows, i64 %most"


class LaneOffsets(NamedTuple):
    """Where the vectors of a lane group begin among its rows."""

    y: int
    slope: int
    atol: int
    rtol: int
    p: int
    y_old: int
    stages: int
    total: int

    @classmethod
    def of(cls, n: int, n_parameters: int, n_stages: int) -> LaneOffsets:
        y = FIRST
        p = y + 4 * n
        old = p + n_parameters
        return cls(y, y + n, y + 2 * n, y + 3 * n, p, old, old + n, old + n + n_stages * n)


class ControllerConstants(NamedTuple):
    """The numbers of a step-size controller, literals in the code."""

    is_rms: bool
    betas: tuple[float, float, float]
    exponent: float
    shrink: float
    grow: float
    safety: float
    aim: float
    shortest: float
    least: float


class JacobianTrace(NamedTuple):
    """A trace of the entries of df/dy at (rows, columns), then of df/dt."""

    trace: Trace
    rows: np.ndarray
    columns: np.ndarray


Differentiate = Callable[[Trace], tuple[Trace, np.ndarray, np.ndarray]]


class _AttemptState(NamedTuple):
    """What changes from attempt to attempt."""

    t: str
    t_low: str
    h: str
    log_1: str  # logarithms of the errors of the last two accepted steps
    log_2: str
    was_rejected: str
    accepted: str
    rejected: str
    y: list[str]
    slope: list[str]

    def flat(self) -> list[str]:
        return [*self[:-2], *self.y, *self.slope]

    @classmethod
    def of(cls, names: list[str], n: int) -> _AttemptState:
        return cls(*names[: len(CHANGING)], names[len(CHANGING) : -n], names[-n:])  # type: ignore[arg-type]


class _Attempt(NamedTuple):
    """An attempt: its length, stages, new state and error."""

    h: str
    is_last: str
    can_step: str  # its first slope is finite
    stages: list[list[str]]
    new: list[str]
    error: str
    is_good: str


class _LaneAttempt(GeneratedStep):
    """An attempt of a pair and what follows from its error, in every lane."""

    def __init__(self, trace: Trace, places: LaneOffsets, is_fsal: bool):
        super().__init__([trace], is_wide=True, parameters=("rows", places.p))
        self.trace, self.is_fsal = trace, is_fsal

    def sub(self, x, y):
        return self.do("fsub", x, y)

    def size(self, x):
        return self.call("llvm.fabs.f64", x)

    def least(self, x, y):
        """The smaller one, y if x is NaN."""
        return self.select(self.compare("olt", x, y), x, y)

    def most(self, x, y):
        """The larger one, y if x is NaN."""
        return self.select(self.compare("ogt", x, y), x, y)

    def both(self, x, y):
        return self.line(f"and {self.truth} {x}, {y}")

    def either(self, x, y):
        return self.line(f"or {self.truth} {x}, {y}")

    def is_not(self, x):
        return self.line(f"xor {self.truth} {x}, {self.literal(True)}")

    def are_finite(self, vector):
        """Whether no entry is NaN or infinite: x - x is 0 for every other number."""
        total = self.literal(0.0)
        for x in vector:
            total = self.add(total, self.sub(x, x))
        return self.compare("oeq", total, self.literal(0.0))

    def norm(self, error, y, new, atol, rtol, is_rms: bool):
        """Root mean square or maximum of error / (atol + rtol max(|y|, |new|))."""
        total = self.literal(0.0)
        for e, a, b, absolute, relative in zip(error, y, new, atol, rtol, strict=True):
            scale = self.multiply_add(relative, self._write("max", [], [self.size(a), self.size(b)]), absolute)
            x = self.do("fdiv", self.size(e), scale)
            total = self.multiply_add(x, x, total) if is_rms else self._write("max", [], [x, total])
        if not is_rms:
            return total
        return self.call("llvm.sqrt.f64", self.do("fdiv", total, self.literal(float(len(y)))))

    def length_of(self, now: _AttemptState, t_end) -> tuple[str, str]:
        """The length of the attempt, and whether it ends at `t_end`."""
        remaining = self.sub(self.sub(t_end, now.t), now.t_low)
        nearly = self.multiply(self.size(remaining), self.literal(1.0 - 1e-9))
        is_last = self.compare("oge", self.size(now.h), nearly)
        return self.select(is_last, remaining, now.h), is_last

    def attempt(self, scheme: Any, now: _AttemptState, t_end, tolerances, is_rms: bool) -> _Attempt:
        """A step of the chosen length, or to the end: stages, the new state and its error, as for one trajectory."""
        h, is_last = self.length_of(now, t_end)
        table, k, stage = scheme.butcher, [now.slope], now.y
        for i in range(1, len(scheme.b)):
            stage = self.add_slopes(now.y, h, table.A[i], k)
            offset = self.multiply_add(self.literal(float(table.c[i])), h, now.t_low)
            k.append(self.slopes(self.trace, self.add(now.t, offset), stage))
        new = stage if scheme.is_fsal else self.add_slopes(now.y, h, table.b, k)
        zero = [self.literal(0.0)] * self.trace.n
        weights = [[b - b_hat for b, b_hat in zip(scheme.b, hat.b, strict=True)] for hat in scheme.embedded]
        error = self.error([self.add_slopes(zero, h, w, k) for w in weights], now.y, new, *tolerances, is_rms)
        can_step = self.are_finite(now.slope)
        is_good = self.both(can_step, self.compare("ole", error, self.literal(1.0)))
        return _Attempt(h, is_last, can_step, k, new, error, is_good)

    def judge(
        self, control: ControllerConstants, now: _AttemptState, made: _Attempt, limits
    ) -> tuple[_AttemptState, str]:
        """The state after an attempt is accepted or rejected, and the outcomes of the lanes."""
        log = self.call("log", made.error)
        changed = self.multiply(made.h, self.factor(control, now, made, log))
        after = self.select_state(now, made, limits, changed, log)
        is_lost = self.compare(
            "olt", self.size(changed), self.multiply(self.literal(control.shortest), self.size(now.t))
        )
        least = self.multiply(self.literal(control.least), self.size(self.sub(limits[T_END], now.t)))
        is_lost = self.either(is_lost, self.compare("olt", self.size(changed), least))
        lost = self.select(self.are_finite([made.error]), self.literal(TOO_SMALL), self.literal(BROKEN))
        is_wanted = self.compare("ole", self.multiply(self.sub(limits[T_WANTED], after.t), made.h), self.literal(0.0))
        is_used_up = self.compare("oge", self.add(after.accepted, after.rejected), limits[MOST])
        going_on = self.select(is_used_up, self.literal(USED_UP), self.literal(NOTHING))
        if_bad = self.select(made.can_step, self.select(is_lost, lost, going_on), self.literal(BROKEN))
        if_good = self.select(is_wanted, self.literal(WANTED), going_on)
        if_good = self.select(made.is_last, self.literal(FINISHED), if_good)
        outcome = self.select(made.is_good, if_good, if_bad)
        is_live = self.compare("ogt", limits[IS_LIVE], self.literal(0.0))
        return after, self.select(is_live, outcome, self.literal(NOTHING))

    def select_state(self, now: _AttemptState, made: _Attempt, limits, changed: str, log: str) -> _AttemptState:
        """The end of the attempt in lanes that accept it, else its beginning, with the length of the next attempt."""
        one, zero = self.literal(1.0), self.literal(0.0)
        # the last step was shortened to end there, which does not limit the next one
        is_cut = self.both(made.is_last, self.compare("ogt", self.size(now.h), self.size(changed)))
        longer = self.least(self.size(self.select(is_cut, now.h, changed)), limits[H_MAX])
        increment = self.add(made.h, now.t_low)
        later = self.add(now.t, increment)
        is_tiny = self.compare("olt", made.error, self.literal(LEAST_ERROR))
        moved = _AttemptState(
            self.select(made.is_last, limits[T_END], later),
            self.select(made.is_last, zero, self.sub(increment, self.sub(later, now.t))),
            self.call("llvm.copysign.f64", longer, made.h),
            self.select(is_tiny, self.literal(log_of(LEAST_ERROR)), log),
            now.log_1,
            zero,
            self.add(now.accepted, one),
            now.rejected,
            made.new,
            made.stages[-1] if self.is_fsal else now.slope,
        )
        rejected = self.select(made.can_step, self.add(now.rejected, one), now.rejected)
        stayed = now._replace(h=changed, was_rejected=one, rejected=rejected)
        pairs = zip(moved.flat(), stayed.flat(), strict=True)
        return _AttemptState.of([self.select(made.is_good, x, y) for x, y in pairs], len(now.y))

    def error(self, estimates, y, new, atol, rtol, is_rms: bool):
        """The norm of the estimate; with a second one DOP853's |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2)."""
        error = self.norm(estimates[0], y, new, atol, rtol, is_rms)
        if len(estimates) == 1:
            return error
        other = self.norm(estimates[1], y, new, atol, rtol, is_rms)
        both = self.multiply_add(error, error, self.multiply(self.multiply(self.literal(0.01), other), other))
        smaller = self.multiply(error, self.do("fdiv", error, self.call("llvm.sqrt.f64", both)))
        return self.select(self.compare("ogt", error, self.literal(0.0)), smaller, error)

    def factor(self, control: ControllerConstants, now: _AttemptState, made: _Attempt, log: str) -> str:
        """The factor for the length of the next attempt; `log` is the logarithm of the error."""
        exponent = self.multiply(self.literal(-control.betas[0]), log)
        for beta, earlier in zip(control.betas[1:], (now.log_1, now.log_2), strict=True):
            if beta != 0:
                exponent = self.multiply_add(self.literal(-beta), earlier, exponent)
        after_bad = self.multiply(self.literal(-control.exponent), log)
        power = self.call("exp", self.select(made.is_good, exponent, after_bad))
        scale = self.select(made.is_good, self.literal(control.aim), self.literal(control.safety))
        factor = self.most(self.multiply(scale, power), self.literal(control.shrink))
        was_rejected = self.compare("ogt", now.was_rejected, self.literal(0.0))
        top = self.select(was_rejected, self.literal(1.0), self.literal(control.grow))
        factor = self.select(made.is_good, self.least(factor, top), factor)
        return self.select(self.are_finite([made.error]), factor, self.literal(control.shrink))


class _LaneRosenbrockAttempt(_LaneAttempt):
    """An attempt of a Rosenbrock pair: df/dy from the trace, LU factors with partial pivoting in every lane."""

    def __init__(self, trace: Trace, places: LaneOffsets, derivative: JacobianTrace):
        super().__init__(trace, places, is_fsal=False)
        self.derivative = derivative

    def attempt(self, scheme: Any, now: _AttemptState, t_end, tolerances, is_rms: bool) -> _Attempt:
        """A step by the transformed form of `schemes.rosenbrock`, as in the kernel for one trajectory."""
        h, is_last = self.length_of(now, t_end)
        form, arrays, gamma = scheme.transformed, scheme.arrays, scheme.gamma
        rates, factors = self.factorise(self.add(now.t, now.t_low), now.y, self.multiply(h, self.literal(gamma)))
        v: list[list[str]] = []
        for i in range(len(scheme.b)):
            slope = now.slope
            if i > 0:
                offset = self.multiply_add(self.literal(float(arrays.c[i])), h, now.t_low)
                slope = self.slopes(self.trace, self.add(now.t, offset), self.add_slopes(now.y, h, form.a[i], v))
            right = [self.multiply(self.literal(gamma), x) for x in slope]
            time = self.multiply(h, self.literal(float(gamma * arrays.d[i])))
            right = [self.multiply_add(time, rate, x) for rate, x in zip(rates, right, strict=True)]
            v.append(self.solve(factors, self.add_slopes(right, self.literal(1.0), gamma * form.C[i], v)))
        new, zero = self.add_slopes(now.y, h, form.m, v), [self.literal(0.0)] * self.trace.n
        atol, rtol = tolerances
        error = self.norm(self.add_slopes(zero, h, form.e, v), now.y, new, atol, rtol, is_rms)
        can_step = self.are_finite(now.slope)
        is_good = self.both(can_step, self.compare("ole", error, self.literal(1.0)))
        return _Attempt(h, is_last, can_step, [now.slope], new, error, is_good)

    def factorise(self, t: str, y: list[str], factor: str) -> tuple[list[str], _LaneFactors]:
        """df/dt, and the factors of I - factor df/dy."""
        trace, rows, columns = self.derivative
        n, values = trace.n, self.compute(trace.graph, trace.outputs, self.inputs(trace, trace.outputs, t, y))
        M = [[self.literal(float(i == j)) for j in range(n)] for i in range(n)]
        negative = self.negative(factor)
        for i, j, value in zip(rows, columns, values, strict=False):
            M[i][j] = self.multiply_add(negative, value, M[i][j])
        factors = _LaneFactors(M, [], [])
        for k in range(n):
            for i in range(k + 1, n):
                is_larger = self.compare("ogt", self.size(M[i][k]), self.size(M[k][k]))
                factors.exchanges.append(is_larger)
                for j in range(k, n):
                    M[k][j], M[i][j] = self.exchange(is_larger, M[k][j], M[i][j])
            inverse = self.do("fdiv", self.literal(1.0), M[k][k])
            factors.inverses.append(inverse)
            for i in range(k + 1, n):
                M[i][k] = self.negative(self.multiply(M[i][k], inverse))
                for j in range(k + 1, n):
                    M[i][j] = self.multiply_add(M[i][k], M[k][j], M[i][j])
        return values[len(rows) :], factors

    def exchange(self, condition: str, x: str, y: str) -> tuple[str, str]:
        """(y, x) in the lanes where the condition holds, else (x, y)."""
        return self.select(condition, y, x), self.select(condition, x, y)

    def solve(self, factors: _LaneFactors, x: list[str]) -> list[str]:
        """The solution of the system with these factors."""
        x, n, exchanges = list(x), len(x), iter(factors.exchanges)
        for k in range(n):
            for i in range(k + 1, n):
                x[k], x[i] = self.exchange(next(exchanges), x[k], x[i])
            for i in range(k + 1, n):
                x[i] = self.multiply_add(factors.M[i][k], x[k], x[i])
        for k in reversed(range(n)):
            for j in range(k + 1, n):
                x[k] = self.sub(x[k], self.multiply(factors.M[k][j], x[j]))
            x[k] = self.multiply(x[k], factors.inverses[k])
        return x


class _LaneFactors(NamedTuple):
    """Factors of a matrix in every lane: entries below the diagonal change their sign; inverses of the pivots.

    `exchanges` says, for each k and each i > k in turn, in which lanes the rows k and i were exchanged.
    """

    M: list[list[str]]
    exchanges: list[str]
    inverses: list[str]


def write_lane_attempts(
    scheme: Any, control: ControllerConstants, places: LaneOffsets, differentiate: Differentiate | None = None
) -> Callable[[list[Trace]], str]:
    """Assembly of attempts of a pair in all lanes; `differentiate` gives the entries of df/dy to Rosenbrock pairs."""

    def write(traces: list[Trace]) -> str:
        (trace,) = traces
        n = trace.n
        if differentiate is None:
            w = _LaneAttempt(trace, places, scheme.is_fsal)
        else:
            w = _LaneRosenbrockAttempt(trace, places, JacobianTrace(*differentiate(trace)))
        limits = {row: w.load("rows", row) for row in (T_END, H_MAX, MOST, T_WANTED, IS_LIVE)}
        tolerances = [[w.load("rows", at + i) for i in range(n)] for at in (places.atol, places.rtol)]
        first = [w.load("rows", row) for row in (*CHANGING, *range(places.y, places.y + 2 * n))]
        before, w.lines = w.lines, []
        names = [f"%c{i}" for i in range(len(first))]
        now = _AttemptState.of(names, n)
        if not w.is_fsal:
            now = now._replace(slope=w.slopes(trace, w.add(now.t, now.t_low), now.y))
        made = w.attempt(scheme, now, limits[T_END], tolerances, control.is_rms)
        after, outcome = w.judge(control, now, made, limits)
        is_eventful = w.compare("ogt", outcome, w.literal(0.0))
        inside, w.lines = w.lines, []
        rows = zip((*CHANGING, *range(places.y, places.y + 2 * n)), after.flat(), strict=True)
        for row, value in (*rows, (OUTCOME, outcome), (T_OLD, now.t), (T_LOW_OLD, now.t_low), (H_OLD, made.h)):
            w.store(value, "rows", row)
        w.store_rows([now.y, *made.stages], "rows", range(len(made.stages) + 1), n, places.y_old)
        phis = zip(names, first, after.flat(), strict=True)
        lines = [
            *before, "br label %entry", "entry:", "br label %loop", "loop:",
            "%i = phi i64 [ 0, %entry ], [ %i_next, %loop ]",
            *(f"{name} = phi {w.real} [ {old}, %entry ], [ {new}, %loop ]" for name, old, new in phis),
            *inside, f"%mask = bitcast {w.truth} {is_eventful} to i{LANES}", f"%quiet = icmp eq i{LANES} %mask, 0",
            "%i_next = add i64 %i, 1", "%more = icmp slt i64 %i_next, %most", "%on = and i1 %more, %quiet",
            "br i1 %on, label %loop, label %done", "done:", *w.lines,
        ]  # fmt: skip
        return add_definitions(write_function("attempts", ATTEMPTS, lines, "i64 %i_next"))

    return write
