"""Coefficients of the schemes of variable order, for kernels, and changes of their backward differences.

The history of BDF is nabla^j y_n, that of Adams nabla^j f_n; both belong to equal steps and are computed again, from
the polynomial that they define, when the length of the steps changes (Shampine & Reichelt (1997), section 2).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from stepnet.engines.numba_engine.codegen.kernels import check_once, compiled
from stepnet.engines.numba_engine.codegen.primitives import combine, copy_row
from stepnet.engines.numba_engine.integrators.dense_output import ZERO, K
from stepnet.schemes.variable_order import VariableAdams, VariableBDF

ADAMS, BDF = 0, 1  # `run.method`


@check_once
class DifferenceTables(NamedTuple):
    """Coefficients by order; rows of arrays with two rows are those of Adams and BDF.

    `first` is the first of `n_differences` rows of `work` with differences, `spare` the first of as many free ones.
    `predict` (weights of the differences), `error` (constants), `highest` order; `psi` and `alpha` of BDF, `gamma` and
    `limits` (of real stability) of Adams.  `slopes` are the weights of the slopes of BDF at both ends of the step,
    `corrections` those of the continuous extension; `to_bdf` and `to_adams` convert differences at a switch.
    """

    first: int
    spare: int
    n_differences: int
    may_switch: int
    ones: np.ndarray
    predict: np.ndarray
    error: np.ndarray
    highest: np.ndarray
    psi: np.ndarray
    alpha: np.ndarray
    gamma: np.ndarray
    limits: np.ndarray
    slopes: np.ndarray
    corrections: np.ndarray
    adams_corrections: np.ndarray
    to_bdf: np.ndarray
    to_adams: np.ndarray
    unit: np.ndarray
    alpha_shift: np.ndarray
    weights: np.ndarray
    scratch: np.ndarray


def build_difference_tables(adams: VariableAdams | None, bdf: VariableBDF | None, dtype) -> DifferenceTables:
    """Tables for one of the two schemes, or both."""
    parts = _build_parts(adams, bdf)
    n = parts["n_differences"]
    workspace = {"weights": np.zeros((n, n)), "scratch": np.zeros((n, n))}  # of this run, not shared
    arrays = {name: value for name, value in (parts | workspace).items() if isinstance(value, np.ndarray)}
    typed = {
        name: value if value.dtype in (np.int64, complex) else np.ascontiguousarray(value, dtype)
        for name, value in arrays.items()
    }
    return DifferenceTables(**(parts | workspace | typed))


@lru_cache(maxsize=16)
def _build_parts(adams: VariableAdams | None, bdf: VariableBDF | None) -> dict:
    highest = [0 if scheme is None else scheme.order for scheme in (adams, bdf)]
    n = max(highest) + 3
    predict, error = np.ones((2, n)), np.zeros((2, n))
    gamma, limits, psi, alpha = np.zeros(n), np.zeros(n), np.zeros((1, n)), np.zeros(n)
    if adams is not None:
        gamma[: adams.order + 2], limits[: adams.order + 1] = adams.gamma, adams.stability_limits
        predict[ADAMS], error[ADAMS, : adams.order + 2] = gamma, adams.error
    if bdf is not None:
        numbers = bdf.numbers
        psi[0, : bdf.order], alpha[: bdf.order + 1] = numbers.gamma[1:], numbers.alpha
        error[BDF, : bdf.order + 1] = numbers.error
    slopes, corrections = _find_extension_of_states(n, bdf)
    adams_corrections = _find_extension_of_slopes(n, adams)
    rows = max(len(corrections), len(adams_corrections))
    first = K + 2 + rows
    return {
        "first": first, "spare": first + n, "n_differences": n, "may_switch": int(min(highest) > 0),
        "ones": np.ones((1, n)), "predict": predict, "error": error, "highest": np.array(highest, np.int64),
        "psi": psi, "alpha": alpha, "gamma": gamma, "limits": limits, "slopes": slopes,
        "corrections": _pad(corrections, rows, n), "adams_corrections": _pad(adams_corrections, rows, n),
        "to_bdf": _find_states_from_slopes(n), "to_adams": _find_slopes_from_states(n),
        "unit": _change_matrix(n, 1.0), "alpha_shift": np.ones(1, complex),
    }  # fmt: skip


def _pad(rows: list[np.ndarray], n_rows: int, n: int) -> np.ndarray:
    padded = np.zeros((n_rows, n))
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _newton_basis(n: int) -> list[Polynomial]:
    """b_j(theta) = prod_{i<j} (theta - 1 + i) / j!: P = sum_j b_j nabla^j P(t_(n+1)), with theta = 1 at t_(n+1)."""
    found = [Polynomial([1.0])]
    for j in range(1, n):
        found.append(found[-1] * Polynomial([j - 2.0, 1.0]) / j)
    return found


def _divide_bump(P: Polynomial) -> np.ndarray:
    """Coefficients in powers of theta - 1/2 of (P - H) / (theta^2 (1 - theta)^2), H the cubic with its ends."""
    slope, x, m = P.deriv(), Polynomial([0.0, 1.0]), Polynomial([1.0, -1.0])
    ends = m * m * (1 + 2 * x) * P(0.0) + x * x * (3 - 2 * x) * P(1.0) + x * m * m * slope(0.0) - x * x * m * slope(1.0)
    quotient = (P - ends) // (x * x * m * m)
    return np.asarray(quotient(Polynomial([0.5, 1.0])).coef)


def _find_extension_of_states(n: int, bdf: VariableBDF | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Slopes at both ends, and corrections, of the polynomial through y_(n+1), y_n, ...: weights of nabla^j y."""
    slopes = np.zeros((2, n))
    if bdf is None:
        return slopes, []
    basis = _newton_basis(bdf.order + 1)
    for j, b in enumerate(basis):
        slopes[:, j] = b.deriv()(0.0), b.deriv()(1.0)
    return slopes, _transpose([_divide_bump(b) for b in basis], bdf.order - 3)


def _find_extension_of_slopes(n: int, adams: VariableAdams | None) -> list[np.ndarray]:
    """Corrections of the integral of the polynomial through f_(n+1), f_n, ...: weights of h nabla^j f."""
    if adams is None:
        return []
    return _transpose([_divide_bump(b.integ()) for b in _newton_basis(adams.order + 1)], adams.order - 2)


def _transpose(columns: list[np.ndarray], n_rows: int) -> list[np.ndarray]:
    table = np.zeros((max(n_rows, 0), len(columns)))
    for j, column in enumerate(columns):
        kept = min(len(column), len(table))
        table[:kept, j] = column[:kept]
    return list(table)


def _find_states_from_slopes(n: int) -> np.ndarray:
    """nabla^j y = h sum_m w_jm nabla^m f, j >= 1, from nabla y = h (1 - nabla/2 - nabla^2/12 - ...) f."""
    series = np.zeros(n)
    for i in range(n):  # -nabla / log(1 - nabla)
        series[i] = (1.0 if i == 0 else 0.0) - sum(series[j] / (i - j + 1) for j in range(i))
    table = np.zeros((n, n))
    for j in range(1, n):
        table[j, j - 1 :] = series[: n - j + 1]
    return table


def _find_slopes_from_states(n: int) -> np.ndarray:
    """h nabla^i f = sum_m nabla^(i+m) y / m."""
    table = np.zeros((n, n))
    for i in range(n):
        for m in range(1, n - i):
            table[i, i + m] = 1.0 / m
    return table


def _change_matrix(n: int, factor: float) -> np.ndarray:
    """Row i: the values (-1)^i binomial(factor j, i) at which the polynomial of nabla^i is taken, j = 0, 1, ..."""
    i, j = np.arange(1, n)[:, None], np.arange(1, n)
    R = np.zeros((n, n))
    R[0] = 1.0
    R[1:, 1:] = (i - 1 - factor * j) / i
    return np.cumprod(R, axis=0)


@compiled
def rescale(tables, work, order, factor):
    """Change the differences up to an order to those of steps `factor` times as long."""
    R, W, m = tables.scratch, tables.weights, order + 1
    for j in range(m):
        R[0, j] = 1.0
    for i in range(1, m):
        R[i, 0] = 0.0
        for j in range(1, m):
            R[i, j] = R[i - 1, j] * (i - 1 - factor * j) / i
    for i in range(m):
        for q in range(m):
            total = 0.0
            for j in range(m):
                total += R[q, j] * tables.unit[j, i]
            W[i, q] = total
    for i in range(1, m):
        combine(work, tables.spare + i, ZERO, 1.0, W, i, tables.first, m)
    for i in range(1, m):
        copy_row(work, tables.spare + i, tables.first + i)


@compiled
def append_slope(tables, work, row, order, run):
    """Differences of slopes at the new time, from the slope there in `row`, which is overwritten."""
    for j in range(order + 2):
        d = tables.first + j
        for k in range(run.reals):
            old = work[d, k]
            work[d, k] = work[row, k]
            work[row, k] -= old


@compiled
def append_state(tables, work, row, order, run):
    """Differences of states at the new time, from nabla^(order + 1) y there in `row`."""
    first = tables.first
    for k in range(run.reals):
        work[first + order + 2, k] = work[row, k] - work[first + order + 1, k]
        work[first + order + 1, k] = work[row, k]
    for j in range(order, -1, -1):
        for k in range(run.reals):
            work[first + j, k] += work[first + j + 1, k]
