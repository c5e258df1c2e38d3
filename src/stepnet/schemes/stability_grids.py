"""Stability functions on grids of z = h lambda, and the curves on which their size is one."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.conditions import amplification, imaginary_stability_limit, stability_function
from stepnet.schemes.conditions.families import OF_DIFFERENCES, OF_HALVES, check_scheme, linear_tableau
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.phi_functions import sum_phi
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.tableau import Butcher, StabilisedRK
from stepnet.schemes.variable_order import find_growth, find_locus

ON_CURVE = 1e-6  # | |R(z)| - 1 | of computed points of the boundary; others are roots at infinity, which are rounding
NO_DEGREE = 1e-12  # relative size of coefficients of a polynomial that are rounding
NEAR_ONE = 1e-9  # | w - 1 | of values w of R that are left out, because R(0) = 1 needs no root


@check_scheme
def is_for_oscillators(scheme: Any) -> bool:
    """Whether its test equation is q'' = -omega^2 q, with z = i h omega, and not y' = lambda y."""
    return isinstance(scheme, OF_HALVES) or getattr(scheme, "derivative", 1) == 2


def evaluate_grid(scheme: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|R(x + iy)| on a grid, (len(y), len(x)): the largest root where there are several.

    Coefficients are real, so |R| is even in y and rows are computed once for y and -y.
    """
    rows, places = np.unique(np.abs(y), return_inverse=True)
    has_polynomials = linear_tableau(scheme) is not None and not isinstance(scheme, StabilisedRK)
    if has_polynomials:
        found = _evaluate_rational(scheme, x, rows)
    elif isinstance(scheme, Multistep) and scheme.n_steps == 2 and scheme.derivative == 1:
        found = _evaluate_two_step(scheme, x + 1j * rows[:, None])
    else:
        found = amplification(scheme, x + 1j * rows[:, None])
    return found[places] if len(rows) < len(y) else found


def _evaluate_rational(scheme: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    P, Q = stability_function(scheme)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squared = _evaluate_squared(P.coef, x, y)
        if len(Q.coef) > 1:
            squared /= _evaluate_squared(Q.coef, x, y)
        return np.sqrt(squared, out=squared)


def _evaluate_squared(coefficients: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|P(x + iy)|^2 by Taylor's formula in iy: real and imaginary part are products of two narrow matrices."""
    n = len(coefficients)
    taylor = np.zeros((n, n))  # row j: the coefficients of P^(j) / j!
    for j in range(n):
        taylor[j, : n - j] = [comb(k, j) * coefficients[k] for k in range(j, n)]
    in_x = taylor @ np.vander(x, n, increasing=True).T
    in_y = np.vander(y, n, increasing=True) * np.resize([1.0, 1.0, -1.0, -1.0], n)
    squared = in_y[:, 0::2] @ in_x[0::2]
    squared *= squared
    if n > 1:
        imaginary = in_y[:, 1::2] @ in_x[1::2]
        imaginary *= imaginary
        squared += imaginary
    return squared


def _evaluate_two_step(scheme: Multistep, z: np.ndarray) -> np.ndarray:
    """The larger root of xi^2 = p xi + q, in closed form."""
    alpha, beta = (np.append(each, [0.0, 0.0])[:2] for each in (scheme.alpha, scheme.beta))
    half, q = 0.5 * (alpha[0] + beta[0] * z), alpha[1] + beta[1] * z
    root = np.sqrt(half * half + q)
    return np.maximum(np.abs(half + root), np.abs(half - root))


# ---- sums -----------------------------------------------------------------------------------------------------------


def is_for_sums(scheme: Any) -> bool:
    """Whether it takes y' = lambda y + mu y with lambda y explicit and mu y implicit or exact."""
    return isinstance(scheme, (AdditiveRK, ExponentialRK, SemiImplicitBDF))


def is_pole(scheme: Any, stiff: complex) -> bool:
    """Whether the equations of an implicit stage are singular for h mu = stiff."""
    if isinstance(scheme, ExponentialRK):
        return False
    diagonal = [scheme.gamma] if isinstance(scheme, SemiImplicitBDF) else [row[-1] for row in scheme.implicit]
    return any(stiff * a == 1.0 for a in diagonal)


def evaluate_sum(scheme: Any, z: np.ndarray, stiff: complex) -> np.ndarray:
    """R(z, w) with z = h lambda and w = h mu; of the roots of a multistep scheme the largest."""
    if isinstance(scheme, SemiImplicitBDF):
        k = scheme.n_steps
        M = np.zeros((*z.shape, k, k), complex)
        M[...] = np.eye(k, k=-1)
        M[..., 0, :] = (np.array(scheme.alpha) + z[..., None] * np.array(scheme.beta)) / (1.0 - scheme.gamma * stiff)
        roots = np.linalg.eigvals(M)
        return np.take_along_axis(roots, np.argmax(np.abs(roots), axis=-1)[..., None], -1)[..., 0]
    stages: list[np.ndarray] = []
    if isinstance(scheme, ExponentialRK):
        w = np.array(complex(stiff))

        def advance(c: float, coefficients: Any) -> np.ndarray:
            moved = np.exp(c * w) + 0.0 * z
            for terms, stage in zip(coefficients, stages, strict=True):
                moved = moved + z * stage * sum_phi(w, tuple((a.weight, a.k, a.c) for a in terms))
            return moved

        for c, row in zip(scheme.c, scheme.A, strict=True):
            stages.append(advance(c, row))
        return advance(1.0, scheme.b)
    for explicit, implicit in zip(scheme.explicit, scheme.implicit, strict=True):
        moved = 1.0 + 0.0 * z
        for a, b, stage in zip(explicit, implicit, stages, strict=False):
            moved = moved + (z * a + stiff * b) * stage
        stages.append(moved / (1.0 - stiff * implicit[-1]))
    weights = zip(scheme.b_explicit, scheme.b, stages, strict=True)
    return 1.0 + sum((z * a + stiff * b) * stage for a, b, stage in weights)


def find_boundary_of_sum(scheme: Any, stiff: complex, n_angles: int) -> np.ndarray:
    """The points z with |R(z, w)| = 1: R is a polynomial in z, and of multistep schemes there is a root locus."""
    xi = np.exp(2j * np.pi * (np.arange(n_angles) + 0.5) / n_angles)
    if isinstance(scheme, SemiImplicitBDF):
        rho = (1.0 - scheme.gamma * stiff) - sum(a * xi ** (-1.0 - j) for j, a in enumerate(scheme.alpha))
        return np.asarray(rho / sum(b * xi ** (-1.0 - j) for j, b in enumerate(scheme.beta)))[None]
    n = len(scheme.b) + 1
    samples = evaluate_sum(scheme, np.exp(2j * np.pi * np.arange(n) / n), stiff)
    coefficients = np.fft.fft(samples) / n
    coefficients = coefficients[: 1 + int(np.flatnonzero(np.abs(coefficients) > NO_DEGREE * np.abs(samples).max())[-1])]
    roots = [np.roots([*coefficients[:0:-1], coefficients[0] - value]) for value in xi]
    return _join_curves(np.array(roots))


# ---- formulas of schemes of variable order ---------------------------------------------------------------------------


def evaluate_formula(scheme: Any, order: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The largest root of the formula of an order on a grid, (len(y), len(x))."""
    rows, places = np.unique(np.abs(y), return_inverse=True)
    return find_growth(scheme, order, x + 1j * rows[:, None])[places]


def find_boundary_of_formula(scheme: Any, order: int, n_angles: int) -> np.ndarray:
    """The root locus of the formula of an order, (curves, angles)."""
    return _join_curves(find_locus(scheme, order, np.exp(2j * np.pi * (np.arange(n_angles) + 0.5) / n_angles)))


# ---- boundary -------------------------------------------------------------------------------------------------------


def find_boundary(scheme: Any, n_angles: int) -> np.ndarray:
    """The points z with |R(z)| = 1, (curves, angles): the roots of R(z) = exp(i theta), NaN where there are fewer.

    Multistep schemes: the root locus rho(xi) / sigma(xi), |xi| = 1, which contains the boundary of the region.  Schemes
    for oscillators: the two ends of the stable interval.
    """
    if is_for_oscillators(scheme):
        limit = imaginary_stability_limit(scheme)
        return np.array([[-1j * limit], [1j * limit]])
    angles = 2 * np.pi * (np.arange(n_angles) + 0.5) / n_angles
    if isinstance(scheme, (Multistep, *OF_DIFFERENCES)):
        return find_root_locus(scheme, angles)[None]
    return _join_curves(_find_roots(scheme, np.exp(1j * angles)))


def find_root_locus(scheme: Multistep | SemiImplicitBDF | FixedBDF, angles: np.ndarray) -> np.ndarray:
    """z = rho(xi) / sigma(xi) at xi = exp(i theta)."""
    xi = np.exp(1j * angles)
    rho = 1 - sum(a * xi ** (-1.0 - j) for j, a in enumerate(scheme.alpha))
    if isinstance(scheme, OF_DIFFERENCES):
        return np.asarray(rho / scheme.gamma)
    return np.asarray(rho / sum(b * xi ** (-1.0 - j) for j, b in enumerate(scheme.beta)))


def _find_roots(scheme: Any, w: np.ndarray) -> np.ndarray:
    """The solutions of R(z) = w for each w: 1/z is an eigenvalue of A + 1 b' / (w - 1), (values, roots)."""
    table: Butcher = linear_tableau(scheme)  # type: ignore[assignment] # every one-step scheme has one
    jumps = np.outer(np.ones_like(table.b), table.b) / (w - 1)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = 1 / np.linalg.eigvals(table.A + jumps)
        z[~(np.abs(amplification(scheme, z) - 1) < ON_CURVE)] = np.nan
    return z


def _join_curves(roots: np.ndarray) -> np.ndarray:
    """Order the roots of each angle so that each row of the result is continuous, (curves, angles)."""
    roots = roots[:, ~np.isnan(roots).all(axis=0)] if np.isnan(roots).any() else roots
    curves = roots.T.copy()
    for k in range(1, curves.shape[1]):
        free = list(range(len(curves)))
        before, now = curves[:, k - 1].copy(), curves[:, k].copy()
        for i in np.argsort(np.isnan(before)):  # finite roots are matched first
            distances = np.abs(now[free] - before[i])
            j = free.pop(int(np.argmin(np.where(np.isnan(distances), np.inf, distances))))
            curves[i, k] = now[j]
    return curves
