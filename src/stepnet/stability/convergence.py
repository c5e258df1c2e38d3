"""Convergence of schemes as steps get shorter, and the work they need for a precision: tables, orders, CSV."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.errors import SolveFailed
from stepnet.problem import Partitioned, Problem, SecondOrder
from stepnet.records import show_fields
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import is_adaptive
from stepnet.solving.integrate import solve
from stepnet.stability.arguments import any_scheme
from stepnet.stability.first_order import DETERMINISTIC, as_first_order, choose_state
from stepnet.validation import check, real, sequence, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TIGHT = 1e-13, 1e-12  # tolerances of two solutions by dop853, of which the first is the reference
PLATEAU = 30.0  # errors below this many roundings do not show an order,
UNSURE = 3.0  # nor do those below this many distances of the two solutions
ROUNDING = PLATEAU * float(np.finfo(float).eps)
STEPS = (20, 40, 80, 160, 320)
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


@dataclass(frozen=True)
class ConvergenceRow:
    """Errors of a scheme at the end for several numbers of equal steps.

    Parameters
    ----------
    scheme : str
    order : int
        The order that the scheme declares.
    steps : tuple of int
    errors : tuple of float
        The largest error of an entry of the state, relative to the largest entry.
    floor : float, optional
        Errors below it may be those of the reference or of rounding, and show no order.

    Examples
    --------
    >>> import stepnet as sn
    >>> round(sn.stability.ConvergenceRow("euler", 1, (10, 20), (0.2, 0.1)).observed_order, 12)
    1.0
    """

    scheme: str
    order: int
    steps: tuple[int, ...]
    errors: tuple[float, ...]
    floor: float = ROUNDING

    @property
    def observed_orders(self) -> tuple[float, ...]:
        """log(e_k / e_(k+1)) / log(h_k / h_(k+1)) between neighbours; NaN below the floor."""
        h, e = np.log(self.steps), np.asarray(self.errors)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = -np.diff(np.log(e)) / np.diff(h)
        return tuple(float(p) if e[k + 1] > self.floor else float("nan") for k, p in enumerate(found))

    @property
    def observed_order(self) -> float:
        """The last of the observed orders; NaN if all errors are below the floor."""
        found = [p for p in self.observed_orders if np.isfinite(p)]
        return found[-1] if found else float("nan")


@dataclass(frozen=True)
class ConvergenceStudy:
    """Errors of several schemes for several numbers of steps.

    Parameters
    ----------
    length : float
        Of the time span: h is length / steps.
    rows : tuple of ConvergenceRow

    Examples
    --------
    >>> import stepnet as sn
    >>> rows = (sn.stability.ConvergenceRow("euler", 1, (10, 20), (0.2, 0.1)),)
    >>> print(sn.stability.ConvergenceStudy(1.0, rows))
    scheme  steps           h       error   order
    euler      10         0.1   2.000e-01
    euler      20        0.05   1.000e-01    1.00
    """

    length: float
    rows: tuple[ConvergenceRow, ...]

    def table(self) -> list[tuple[str, int, float, float, float]]:
        """Scheme, steps, h, error, observed order (NaN in the first line of a scheme)."""
        return [
            (row.scheme, n, self.length / n, error, p)
            for row in self.rows
            for n, error, p in zip(row.steps, row.errors, (float("nan"), *row.observed_orders), strict=True)
        ]

    def as_csv(self) -> str:
        """The table as CSV."""
        return _write_csv(("scheme", "steps", "h", "error", "order"), self.table())

    def __str__(self) -> str:
        """The table with aligned columns."""
        width = max(6, *(len(row.scheme) for row in self.rows))
        lines = [f"{'scheme':<{width}}{'steps':>7}{'h':>12}{'error':>12}{'order':>8}"]
        for name, n, h, error, p in self.table():
            lines.append(f"{name:<{width}}{n:>7}{h:>12.4g}{error:>12.3e}{'' if np.isnan(p) else f'{p:>8.2f}'}")
        return "\n".join(lines)


def _validate_steps(name: str, value: Any) -> tuple[int, ...]:
    found = sequence(whole(1), least=1)(name, value)
    if list(found) != sorted(set(found)):
        raise ValueError(f"`{name}` must be increasing numbers of steps, found {found!r:.60}")
    return found


def _validate_schemes(name: str, value: Any) -> tuple[Any, ...]:
    return sequence(any_scheme, least=1)(name, [value] if _is_single(value) else value)


def _is_single(value: Any) -> bool:
    return isinstance(value, str) or catalogue.is_scheme(value)


@check(problem=DETERMINISTIC, schemes=_validate_schemes, steps=_validate_steps)
def convergence_study(
    problem: Problem, schemes: Any, *, steps: Sequence[int] = STEPS, exact: ArrayLike | None = None
) -> ConvergenceStudy:
    """Measure errors at the end of the time span and observed orders.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    schemes : str or scheme, or a sequence of them
    steps : sequence of int, optional
        Increasing numbers of equal steps.
    exact : array_like, optional
        The end state; by default it is computed by dop853 with tolerances of 1e-13; needed if a part is a `Flow`.

    Returns
    -------
    ConvergenceStudy

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.ODE(lambda t, y: y * np.cos(t), [1.0], (0.0, 2.0))
    >>> found = sn.stability.convergence_study(problem, ["heun2", "rk4"], steps=(40, 80, 160))
    >>> [round(row.observed_order) for row in found.rows]
    [2, 4]
    """
    schemes = _validate_schemes("schemes", schemes)
    end, floor = _find_end(problem, exact)
    rows = []
    for scheme in schemes:
        errors = tuple(_measure_error(problem, scheme, end, steps=n) for n in steps)
        rows.append(ConvergenceRow(scheme.name, scheme.order, tuple(steps), errors, floor))
    return ConvergenceStudy(abs(problem.t_span[1] - problem.t_span[0]), tuple(rows))


@dataclass(frozen=True)
class WorkPrecisionRow:
    """Work and errors of a scheme for several tolerances or numbers of steps.

    Parameters
    ----------
    scheme : str
    settings : tuple of float
        Tolerances of adaptive steps, or numbers of equal steps.
    errors, evaluations, seconds : tuple of float
        The error at the end, evaluations of the right-hand side, the shortest time of a solve.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.stability.WorkPrecisionRow("dopri5", (1e-6,), (1e-7,), (100.0,), (1e-5,)).errors
    (1e-07,)
    """

    scheme: str
    settings: tuple[float, ...]
    errors: tuple[float, ...]
    evaluations: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class WorkPrecision:
    """Work of several schemes for the precision they reach.

    Parameters
    ----------
    rows : tuple of WorkPrecisionRow

    Examples
    --------
    >>> import stepnet as sn
    >>> row = sn.stability.WorkPrecisionRow("rk4", (10.0,), (1e-4,), (40.0,), (1e-5,))
    >>> print(sn.stability.WorkPrecision((row,)).as_csv().splitlines()[1])
    rk4,10.0,0.0001,40.0,1e-05
    """

    rows: tuple[WorkPrecisionRow, ...]

    __repr__ = show_fields

    def table(self) -> list[tuple[str, float, float, float, float]]:
        """Scheme, tolerance or number of steps, error, evaluations, seconds."""
        return [
            (row.scheme, *line)
            for row in self.rows
            for line in zip(row.settings, row.errors, row.evaluations, row.seconds, strict=True)
        ]

    def as_csv(self) -> str:
        """The table as CSV."""
        return _write_csv(("scheme", "setting", "error", "evaluations", "seconds"), self.table())

    def __str__(self) -> str:
        """The table with aligned columns."""
        width = max(6, *(len(row.scheme) for row in self.rows))
        lines = [f"{'scheme':<{width}}{'setting':>10}{'error':>12}{'evaluations':>13}{'ms':>10}"]
        for name, setting, error, evaluations, seconds in self.table():
            lines.append(f"{name:<{width}}{setting:>10.3g}{error:>12.3e}{evaluations:>13.0f}{1e3 * seconds:>10.3f}")
        return "\n".join(lines)


@check(problem=DETERMINISTIC, schemes=_validate_schemes, tolerances=sequence(real("(0, 1)"), least=1),
       steps=_validate_steps, repeats=whole(1, 1000))  # fmt: skip
def work_precision(
    problem: Problem, schemes: Any, *, tolerances: Sequence[float] = TOLERANCES, steps: Sequence[int] = STEPS,
    exact: ArrayLike | None = None, repeats: int = 3,
) -> WorkPrecision:  # fmt: skip
    """Measure the work of schemes for the precision they reach: pairs with adaptive, others with equal steps.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    schemes : str or scheme, or a sequence of them
    tolerances : sequence of float, optional
        Both the relative and the absolute tolerance of pairs.
    steps : sequence of int, optional
        Numbers of equal steps of schemes without an error estimate.
    exact : array_like, optional
        The end state; by default it is computed by dop853 with tolerances of 1e-13; needed if a part is a `Flow`.
    repeats : int, optional
        Number of solves, of which the shortest time is reported.

    Returns
    -------
    WorkPrecision

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 6.0))
    >>> found = sn.stability.work_precision(problem, ["dopri5", "rk4"], tolerances=(1e-4, 1e-8), steps=(50, 100))
    >>> [row.errors[0] > row.errors[1] for row in found.rows]
    [True, True]
    """
    schemes = _validate_schemes("schemes", schemes)
    end, _ = _find_end(problem, exact)
    rows = []
    for scheme in schemes:
        settings = tolerances if is_adaptive(scheme) else steps
        lines = [_measure_work(problem, scheme, end, setting, repeats) for setting in settings]
        errors, evaluations, seconds = zip(*lines, strict=True)
        rows.append(WorkPrecisionRow(scheme.name, tuple(map(float, settings)), errors, evaluations, seconds))
    return WorkPrecision(tuple(rows))


def _measure_work(
    problem: Problem, scheme: Any, end: np.ndarray, setting: float, repeats: int
) -> tuple[float, float, float]:
    """Error, evaluations and the shortest time of a solve."""
    how: dict[str, Any] = {"rtol": setting, "atol": setting} if is_adaptive(scheme) else {"steps": int(setting)}
    best, error, evaluations = float("inf"), float("inf"), float("nan")
    try:
        for _ in range(repeats):
            begin = time.perf_counter()
            solution = solve(problem, scheme, save_every=0, **how)
            best = min(best, time.perf_counter() - begin)
        error, evaluations = _compare(solution, end), float(solution.statistics.evaluations)
    except SolveFailed:
        best = float("nan")
    return error, evaluations, best


def _measure_error(problem: Problem, scheme: Any, end: np.ndarray, **how: Any) -> float:
    """The error at the end; infinity for a run that fails."""
    try:
        return _compare(solve(problem, scheme, save_every=0, **how), end)
    except SolveFailed:
        return float("inf")


def _compare(solution: Any, end: np.ndarray) -> float:
    error = np.abs(np.asarray(solution.y[-1]).ravel() - end).max()
    return float(error / (np.abs(end).max() or 1.0))


def _find_end(problem: Problem, exact: ArrayLike | None) -> tuple[np.ndarray, float]:
    """The exact end state, or that of an accurate run, and the relative error below which it is not conclusive."""
    if exact is not None:
        return choose_state("exact", exact, problem.initial), ROUNDING
    is_partitioned = isinstance(problem, (Partitioned, SecondOrder))
    plain = problem if is_partitioned else as_first_order(problem)
    runs = [solve(plain, "dop853", save_every=0, rtol=tolerance, atol=0.1 * tolerance) for tolerance in TIGHT]
    end, other = (np.asarray(run.y[-1]).ravel() for run in runs)
    return end, max(ROUNDING, UNSURE * float(np.abs(end - other).max() / (np.abs(end).max() or 1.0)))


def _write_csv(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([["" if cell != cell else cell for cell in line] for line in lines])
    return text.getvalue()
