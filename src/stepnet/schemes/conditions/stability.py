"""Stability: functions on y' = lambda y, limits, A- and L-stability; coefficients of strong stability preservation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.conditions.families import (
    A_SCHEME,
    OF_DIFFERENCES,
    OF_HALVES,
    ROUNDING,
    check_scheme,
    linear_tableau,
    remember,
    tableau_of,
)
from stepnet.schemes.conditions.structure import is_explicit
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import (
    PartitionedRK,
)
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import LowStorageRK, StabilisedRK
from stepnet.validation import check

AT_POLE = 1e-30  # in place of a leading coefficient that vanishes: one root is at infinity
ROOT_ROUNDING = 1e-7  # double eigenvalues are accurate to 1e-8 only
ON_AXIS = np.concatenate((np.linspace(0.0, 20.0, 2001), np.logspace(1.3, 6, 100)))  # where roots on i R are tested


def _complex_numbers(name: str, value: Any) -> np.ndarray:
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array of numbers, found {type(value).__name__}") from None
    if found.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must be an array of numbers, found {found.dtype}")
    return found.astype(complex)


@check_scheme
@remember
def ssp_coefficient(scheme: Any) -> float:
    """Largest r for which the step is a convex combination of Euler steps of length h/r; 0 if there is none.

    Kraaijevanger (1991), BIT 31:482: K (I + rK)^-1 >= 0 and r K (I + rK)^-1 1 <= 1 with K = [A 0; b 0].

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    float

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> round(conditions.ssp_coefficient(get("ssprk3")), 6)
    1.0
    """
    table = tableau_of(scheme)
    if table is None:
        return 0.0
    s = len(table.b)
    K = np.zeros((s + 1, s + 1))
    K[:s, :s], K[s, :s] = table.A, table.b

    def holds(r: float) -> bool:
        M = np.linalg.solve((np.eye(s + 1) + r * K).T, K.T).T
        return bool(np.all(M >= -1e-13) and np.all(r * M.sum(axis=1) <= 1 + 1e-13))

    return float("inf") if holds(1e6) else _find_largest(holds, 4.0 * s, 1e-8)


@check_scheme
def stability_function(scheme: Any) -> tuple[Polynomial, Polynomial]:
    """R(z) = P(z) / Q(z) with y_new = R(h lambda) y for y' = lambda y; P = det(I - zA + z 1 b'), Q = det(I - zA).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    tuple of Polynomial
        P and Q.

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> P, Q = conditions.stability_function(get("rk4"))
    >>> P.coef.round(4)
    array([1.    , 1.    , 0.5   , 0.1667, 0.0417])
    """
    table = linear_tableau(scheme)
    if table is None:
        raise TypeError(f"{scheme.name}: only one-step Runge-Kutta schemes have a stability function")
    if is_explicit(scheme):
        v, coefficients = np.ones(len(table.b)), [1.0]
        for _ in table.b:
            coefficients.append(float(table.b @ v))
            v = table.A @ v
        return Polynomial(coefficients), Polynomial([1.0])
    scale = max(np.abs(np.linalg.eigvals(table.A)))  # of the coefficients, which decay like its powers
    stretch = scale ** np.arange(len(table.b) + 1)
    found = [np.poly(M / scale) for M in (table.A - np.outer(np.ones_like(table.b), table.b), table.A)]
    P, Q = (_trim(Polynomial(each)) for each in found)
    return Polynomial(P.coef * stretch[: len(P.coef)]), Polynomial(Q.coef * stretch[: len(Q.coef)])


@check(scheme=A_SCHEME, z=_complex_numbers)
def amplification(scheme: Any, z: Any) -> np.ndarray:
    """Largest |y_{n+1} / y_n| on y' = lambda y at z = h lambda (for schemes of q and p on q'' = -omega^2 q).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.
    z
        Complex numbers h lambda, of any shape.

    Returns
    -------
    ndarray
        Of the shape of `z`.

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> float(conditions.amplification(get("euler"), -1.5))
    0.5
    """
    if isinstance(scheme, StabilisedRK):
        return np.abs(_recursion(scheme, z))
    if linear_tableau(scheme) is not None:
        P, Q = stability_function(scheme)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return np.abs(P(z) / Q(z))
    is_oscillator = isinstance(scheme, OF_HALVES) or scheme.derivative == 2
    companion = _oscillator if is_oscillator else _multistep_companion
    return np.max(np.abs(np.linalg.eigvals(companion(scheme, z))), axis=-1)


@check_scheme
@remember
def real_stability_limit(scheme: Any) -> float:
    """Largest x for which every point of [-x, 0] is stable (infinity if all are; NaN for second-order problems).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    float

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> round(float(conditions.real_stability_limit(get("rk4"))), 4)
    2.7853
    """
    if isinstance(scheme, OF_HALVES) or getattr(scheme, "derivative", 1) == 2:
        return float("nan")
    return _find_first_exit(scheme, -1.0)


@check_scheme
@remember
def imaginary_stability_limit(scheme: Any) -> float:
    """Largest y for which every point of i [0, y] is stable: the largest h omega on an oscillator.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    float

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> round(float(conditions.imaginary_stability_limit(get("rk4"))), 4)
    2.8284
    """
    is_polynomial = linear_tableau(scheme) is not None and not isinstance(scheme, StabilisedRK)
    if is_polynomial and _growth_on_imaginary_axis(scheme) > 0:
        return 0.0
    return _find_first_exit(scheme, 1j)


@check_scheme
def is_a_stable(scheme: Any) -> bool:
    """Whether |R(z)| <= 1 on the whole left half plane: no pole there, and |R| <= 1 on the imaginary axis.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_a_stable(get("rk4"))
    False
    """
    if isinstance(scheme, OF_DIFFERENCES):
        return bool(np.all(amplification(scheme, 1j * ON_AXIS) <= 1.0 + ROOT_ROUNDING))
    if linear_tableau(scheme) is None:
        return False
    P, Q = stability_function(scheme)
    if P.degree() > Q.degree():
        return False
    axis = _square_on_axis(Q) - _square_on_axis(P)  # |Q(iy)|^2 - |P(iy)|^2 as a polynomial in y^2
    y2 = np.concatenate((np.linspace(0, 100, 2001), np.logspace(2, 8, 200)))
    size = np.maximum(np.abs(_square_on_axis(Q)(y2)), 1.0)
    return bool(np.all(Q.roots().real > 0) and np.all(axis(y2) >= -1e-10 * size))


@check_scheme
def is_l_stable(scheme: Any) -> bool:
    """A-stable, and R(z) -> 0 as z -> infinity.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    bool

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.is_l_stable(get("rk4"))
    False
    """
    if not is_a_stable(scheme) or isinstance(scheme, OF_DIFFERENCES):
        return is_a_stable(scheme)  # backward differences damp infinitely stiff components at once
    P, Q = stability_function(scheme)
    return P.degree() < Q.degree()


def _trim(polynomial: Polynomial) -> Polynomial:
    return polynomial.trim(1e-10)


def _square_on_axis(P: Polynomial) -> Polynomial:
    """|P(iy)|^2 as a polynomial in y^2."""
    even = Polynomial([c * (-1) ** k for k, c in enumerate(P.coef[0::2])])
    odd = Polynomial([c * (-1) ** k for k, c in enumerate(P.coef[1::2])] or [0.0])
    return even**2 + Polynomial([0.0, 1.0]) * odd**2


def _growth_on_imaginary_axis(scheme: Any) -> float:
    """Sign of |R(iy)| - 1 for small y: the first coefficient of |P|^2 - |Q|^2 that is not rounding."""
    P, Q = stability_function(scheme)
    coefficients = np.asarray((_square_on_axis(P) - _square_on_axis(Q)).coef, dtype=float)
    return next((float(np.sign(c)) for c in coefficients if abs(c) > ROUNDING), 0.0)


def _recursion(scheme: StabilisedRK, z: np.ndarray) -> np.ndarray:
    """R(z) by the recursion of the scheme; polynomial coefficients are inaccurate at high degree."""
    before, now = np.ones_like(z), 1 + scheme.mu_tilde[0] * z
    for mu, nu, mu_t, gamma_t in zip(
        scheme.mu[1:], scheme.nu[1:], scheme.mu_tilde[1:], scheme.gamma_tilde[1:], strict=True
    ):
        before, now = now, (1 - mu - nu) + mu * now + nu * before + mu_t * z * now + gamma_t * z
    return now


def _oscillator(scheme: Any, z: np.ndarray) -> np.ndarray:
    """The matrices of one step on q'' = -omega^2 q with z = i h omega, in the variables (q, q'/omega)."""
    if isinstance(scheme, Multistep):
        return _multistep_companion(scheme, z * z)
    h = z.imag[..., None, None]
    if isinstance(scheme, PartitionedRK):
        return _pair_on_oscillator(scheme, h)
    M = np.broadcast_to(np.eye(2), (*z.shape, 2, 2))
    drift, kick = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [-1.0, 0.0]])
    for part, fraction in scheme.sequence():
        M = M + fraction * h * ((drift if part == 0 else kick) @ M)
    return M


def _pair_on_oscillator(scheme: PartitionedRK, h: np.ndarray) -> np.ndarray:
    """The same for a pair: k = P and m = -Q of all stages, k = p 1 + h A^ m and m = -q 1 - h A k."""
    b, A, _, A_hat = scheme.tableaux
    s = len(b)
    unit, zero, one = np.eye(s), np.zeros((s, s)), np.ones(s)
    slopes = np.linalg.solve(
        np.block([[unit, zero], [zero, unit]]) + h * np.block([[zero, -A_hat], [A, zero]]),
        np.stack((np.concatenate((0 * one, -one)), np.concatenate((one, 0 * one))), axis=1),
    )
    return np.eye(2) + h * (np.kron(np.eye(2), b) @ slopes)


def _multistep_companion(scheme: Multistep | SemiImplicitBDF | FixedBDF, z: np.ndarray) -> np.ndarray:
    k = scheme.n_steps
    M = np.zeros((*z.shape, k, k), complex)
    M[...] = np.eye(k, k=-1)
    M[..., 0, : len(scheme.alpha)] += scheme.alpha
    if isinstance(scheme, OF_DIFFERENCES):  # the whole equation is implicit
        leading = 1.0 - scheme.gamma * z[..., None]
        M[..., 0, :] /= np.where(leading == 0, AT_POLE, leading)
    else:
        M[..., 0, : len(scheme.beta)] += z[..., None] * np.array(scheme.beta)
    return M


def _find_first_exit(scheme: Any, direction: complex) -> float:
    """Where the ray from 0 first leaves the stability region, by a fine scan, a check of its peaks, and bisection."""
    is_tableau = linear_tableau(scheme) is not None
    reach = 2.5 * len(scheme.mu) ** 2 if isinstance(scheme, StabilisedRK) else 200.0
    slack = 1e-9 if is_tableau else 1e-7  # double eigenvalues are accurate to 1e-8 only

    def size(x: Any) -> Any:
        return amplification(scheme, direction * x)

    if isinstance(scheme, (LowStorageRK, StabilisedRK, Multistep, *OF_DIFFERENCES)) and size(0.02) > 1 + 1e-12:
        return 0.0
    x = np.linspace(0, reach, 20001)[1:]
    outside = np.flatnonzero(size(x) > 1 + slack)
    end = x[outside[0]] if outside.size else float("inf")
    if isinstance(scheme, OF_HALVES):
        end = min(end, _find_first_gap(scheme, x[x < min(end, reach)], size, slack))
    if not np.isfinite(end):
        return float("inf")
    first = max(x[x < end], default=0.0)
    found = first + _find_largest(lambda d: size(first + d) <= 1 + slack, end - first, 1e-10)
    return _polish_exit(scheme, direction, found) if is_tableau and not isinstance(scheme, StabilisedRK) else found


def _polish_exit(scheme: Any, direction: complex, x: float) -> float:
    """Newton's method on |P|^2 - |Q|^2, as the slack of the search moves the exit where |R| grows slowly."""
    P, Q = stability_function(scheme)
    if direction == 1j:
        squares, variable = _square_on_axis(P) - _square_on_axis(Q), Polynomial([0.0, 0.0, 1.0])
    else:
        squares, variable = P * P - Q * Q, Polynomial([0.0, -1.0])
    g = squares(variable)
    slope, new = g.deriv(), x
    for _ in range(20):
        new -= g(new) / slope(new) if slope(new) != 0 else 0.0
    return float(new) if abs(new - x) < 1e-4 else x


def _find_first_gap(
    scheme: Splitting | PartitionedRK, x: np.ndarray, size: Callable[[Any], Any], slack: float
) -> float:
    """A point in the first gap that the scan misses: |trace| touches 2 near multiples of pi and may exceed it there."""
    half_trace = np.abs(np.trace(_oscillator(scheme, 1j * x), axis1=-2, axis2=-1)) / 2
    peaks = np.flatnonzero((half_trace[1:-1] >= half_trace[:-2]) & (half_trace[1:-1] > half_trace[2:])) + 1
    for i in peaks[half_trace[peaks] > 0.99]:
        fine = np.linspace(x[i - 1], x[i + 1], 2001)
        outside = fine[size(fine) > 1 + slack]
        if outside.size:
            return float(outside[0])
    return float("inf")


def _find_largest(holds: Callable[[float], bool], highest: float, tolerance: float) -> float:
    """Largest x in [0, highest] with `holds` on all of [0, x], by bisection; 0 if it holds nowhere."""
    if holds(highest):
        return highest
    low, high = 0.0, highest
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low if low > 2 * tolerance else 0.0
