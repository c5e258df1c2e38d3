"""Properties derived from the coefficients of a scheme: order, symplecticity, symmetry, stability, error constants.

Functions take any record of the catalogue, or a `Butcher` tableau (implicit ones too); where a property is not defined
for a family, they return False, 0 or NaN, as documented.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from stepnet.schemes.backward_differences import FixedBDF, find_implicit_defect
from stepnet.schemes.explicit import RK4
from stepnet.schemes.exponential import ExponentialRK
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK, extend_by_start
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.order import (
    HIGHEST,
    TOLERANCE,
    Conditions,
    additive_defect,
    find_attained,
    find_simplified_order,
    multistep_defect,
    partitioned_defect,
    runge_kutta_defect,
)
from stepnet.schemes.partitioned_rk import (
    PartitionedRK,
    find_pair_defect,
    find_simplified_pair_order,
    find_symplecticity_defect,
    is_symmetric_pair,
)
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF, find_explicit_defect
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import Butcher, ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.schemes.trees import density, symmetry, trees
from stepnet.validation import check, instance

Scheme = (
    ExplicitRK | LowStorageRK | StabilisedRK | Splitting | Multistep | ImplicitRK | Rosenbrock | AdditiveRK
    | SemiImplicitBDF | ExponentialRK | PartitionedRK | FixedBDF
)  # fmt: skip

FAMILIES = (
    ExplicitRK, LowStorageRK, StabilisedRK, Splitting, Multistep, ImplicitRK, Rosenbrock, AdditiveRK, SemiImplicitBDF,
    ExponentialRK, PartitionedRK, FixedBDF, Butcher,
)  # fmt: skip
OF_DIFFERENCES = (SemiImplicitBDF, FixedBDF)
OF_HALVES = (Splitting, PartitionedRK)  # which advance q and p by different formulas
A_SCHEME = instance(*FAMILIES, what="a scheme such as `schemes.get('rk4')`, or a `Butcher` tableau")
check_scheme = check(scheme=A_SCHEME)

AT_POLE = 1e-30  # in place of a leading coefficient that vanishes: one root is at infinity
ROUNDING = 1e-12  # rounding left where coefficients of size 1 cancel
ROOT_ROUNDING = 1e-7  # double eigenvalues are accurate to 1e-8 only
ON_AXIS = np.concatenate((np.linspace(0.0, 20.0, 2001), np.logspace(1.3, 6, 100)))  # where roots on i R are tested


__all__ = [
    "amplification",
    "embedded_orders",
    "error_constant",
    "imaginary_stability_limit",
    "is_a_stable",
    "is_explicit",
    "is_fsal",
    "is_l_stable",
    "is_pair",
    "is_reversible",
    "is_stiffly_accurate",
    "is_symmetric",
    "is_symplectic",
    "order",
    "real_stability_limit",
    "ssp_coefficient",
    "stability_function",
    "stage_order",
    "symplecticity_defect",
    "tableau_of",
]


def __dir__() -> list[str]:
    return __all__


def remember(function: Callable[[Any], float]) -> Callable[[Any], float]:
    """Cache a function per scheme; tableaux of arrays are not hashable and are computed each time."""
    kept = cache(function)
    return wraps(function)(lambda scheme: function(scheme) if isinstance(scheme, Butcher) else kept(scheme))


def _complex_numbers(name: str, value: Any) -> np.ndarray:
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array of numbers, found {type(value).__name__}") from None
    if found.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must be an array of numbers, found {found.dtype}")
    return found.astype(complex)


@check_scheme
def tableau_of(scheme: Any) -> Butcher | None:
    """The Butcher tableau of a Runge-Kutta scheme in any form; None for other schemes.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    Butcher or None

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.tableau_of(get("rk4")).c
    array([0. , 0.5, 0.5, 1. ])
    """
    return scheme if isinstance(scheme, Butcher) else getattr(scheme, "butcher", None)


def linear_tableau(scheme: Any) -> Butcher | None:
    """The Runge-Kutta scheme that takes the same steps on y' = lambda y.

    For Rosenbrock schemes its matrix is alpha + gamma; of additive schemes it is the implicit one, and of exponential
    ones the explicit one that remains without a linear part.
    """
    if isinstance(scheme, Rosenbrock):
        return scheme.linear
    return scheme.implicit_table if isinstance(scheme, AdditiveRK) else tableau_of(scheme)


def find_explicit_part(scheme: Any) -> Butcher | Multistep | None:
    """What an IMEX scheme does to y' = f1 without an implicit part; None for other schemes."""
    if isinstance(scheme, AdditiveRK):
        return scheme.explicit_table
    if not isinstance(scheme, SemiImplicitBDF):
        return None
    return Multistep(f"{scheme.name}, explicit", scheme.order, scheme.alpha, scheme.beta, RK4, scheme.reference)


# ---- order ----------------------------------------------------------------------------------------------------------


@check_scheme
def order(scheme: Any) -> int:
    """The order that the coefficients attain, up to `HIGHEST`, by rooted trees, alternating trees or polynomials.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.order(get("dopri5"))
    5
    """
    table = tableau_of(scheme)
    if table is not None:
        rounding = scheme.rounding if isinstance(scheme, StabilisedRK) else TOLERANCE
        found = _weights_order(Conditions(table.A), table.b, rounding)
        return max(found, find_simplified_order(*table)) if found == HIGHEST else found
    if isinstance(scheme, Rosenbrock):
        return _weights_order(scheme.conditions, scheme.arrays.b)
    if isinstance(scheme, FixedBDF):
        return find_attained(lambda p: find_implicit_defect(scheme, p), highest=20)
    if isinstance(scheme, AdditiveRK):
        return find_attained(lambda p: additive_defect(*scheme.coupled, p), highest=scheme.order + 1)
    if isinstance(scheme, SemiImplicitBDF):
        return find_attained(
            lambda p: max(find_explicit_defect(scheme, p), find_implicit_defect(scheme, p)), highest=20
        )
    if isinstance(scheme, PartitionedRK):
        found = find_attained(lambda p: find_pair_defect(scheme.tableaux, p), highest=min(scheme.order + 1, HIGHEST))
        return max(found, find_simplified_pair_order(scheme.tableaux)) if found == HIGHEST else found
    if isinstance(scheme, Splitting):
        b, _, b_hat, _ = scheme.tableaux
        return find_attained(lambda p: partitioned_defect(scheme.conditions, b, b_hat, p, scheme.nystrom))
    alpha, beta = np.array(scheme.alpha), np.array(scheme.beta)
    return find_attained(lambda p: multistep_defect(alpha, beta, scheme.derivative, p), highest=20)


@check_scheme
def embedded_orders(scheme: Any) -> tuple[int, ...]:
    """The orders that the embedded results attain.

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.embedded_orders(get("dopri5"))
    (4,)
    """
    if not is_pair(scheme):
        return ()
    if isinstance(scheme, ImplicitRK):
        table = extend_by_start(scheme)
        return (_weights_order(Conditions(table.A), table.b),)
    if isinstance(scheme, AdditiveRK):
        matrices, hats = scheme.coupled[0], [np.array(hat.b) for hat in scheme.embedded]
        return (find_attained(lambda p: additive_defect(matrices, hats, p), highest=scheme.order + 1),)
    conditions = scheme.conditions if isinstance(scheme, Rosenbrock) else Conditions(scheme.butcher.A)
    return tuple(_weights_order(conditions, np.array(hat.b)) for hat in scheme.embedded)


def _weights_order(conditions: Conditions, b: np.ndarray, tolerance: float = TOLERANCE) -> int:
    return find_attained(lambda p: runge_kutta_defect(conditions, b, p), tolerance=tolerance)


@check_scheme
def stage_order(scheme: Any) -> int:
    """Largest q with sum_j a_ij c_j^(k-1) = c_i^k / k in every stage for k = 1..q (0 for other families).

    Parameters
    ----------
    scheme
        The scheme, or its Butcher tableau.

    Returns
    -------
    int

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.stage_order(get("rk4"))
    1
    """
    table = tableau_of(scheme)
    if table is None:
        return 0
    q = 0
    while q < HIGHEST and np.allclose(table.A @ table.c**q, table.c ** (q + 1) / (q + 1), rtol=0, atol=ROUNDING):
        q += 1
    return q


@check_scheme
def error_constant(scheme: Any) -> float:
    """Size of the principal error: 2-norm over the trees of order p + 1 of (Phi - 1/gamma) / sigma.

    For multistep schemes C_{p+1} of Hairer, Norsett & Wanner I, III.2; NaN for splitting schemes, whose error consists
    of commutators, for partitioned and additive ones, whose error depends on the parts, and above order 9.

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
    >>> conditions.error_constant(get("euler"))
    0.5
    """
    table = scheme.linear if isinstance(scheme, Rosenbrock) else tableau_of(scheme)
    if table is not None:
        conditions = scheme.conditions if isinstance(scheme, Rosenbrock) else Conditions(table.A)
        attained = order(scheme)
        if attained > HIGHEST:  # there are too many trees
            return float("nan")
        values = [
            (table.b @ conditions.stage_weights(tree) - 1 / density(tree)) / symmetry(tree)
            for tree in trees(attained + 1)
        ]
        return float(np.linalg.norm(values))
    if isinstance(scheme, (*OF_HALVES, AdditiveRK, SemiImplicitBDF)):
        return float("nan")
    m = order(scheme) + scheme.derivative
    if isinstance(scheme, FixedBDF):
        return 1.0 / m  # the next difference is left out: HNW I, III.2
    alpha_terms = np.array(scheme.alpha) * (-1.0 - np.arange(len(scheme.alpha))) ** m
    factor = float(np.prod(m - np.arange(scheme.derivative)))
    beta_terms = factor * np.array(scheme.beta) * (-1.0 - np.arange(len(scheme.beta))) ** (m - scheme.derivative)
    factorial = float(np.prod(np.arange(1, m + 1)))
    return float(-(alpha_terms.sum() + beta_terms.sum()) / factorial / sum(scheme.beta))


# ---- structure ------------------------------------------------------------------------------------------------------


@check_scheme
def is_explicit(scheme: Any) -> bool:
    """Whether no stage depends on its own slope.

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
    >>> conditions.is_explicit(get("rk4"))
    True
    """
    table = linear_tableau(scheme)
    return not isinstance(scheme, (*OF_DIFFERENCES, PartitionedRK)) and (table is None or not np.any(np.triu(table.A)))


@check_scheme
def is_pair(scheme: Any) -> bool:
    """Whether it has an embedded error estimate for adaptive steps.

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
    >>> conditions.is_pair(get("dopri5")), conditions.is_pair(get("rk4"))
    (True, False)
    """
    return bool(getattr(scheme, "embedded", ()))


@check_scheme
def is_fsal(scheme: Any) -> bool:
    """First same as last: the last stage is the new state, so its slope begins the next step.

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
    >>> conditions.is_fsal(get("dopri5")), conditions.is_fsal(get("rk4"))
    (True, False)
    """
    table = tableau_of(scheme)
    return bool(getattr(scheme, "is_fsal", False)) if table is None else table.is_fsal


@check_scheme
def is_stiffly_accurate(scheme: Any) -> bool:
    """Whether the new state is the last stage.

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
    >>> conditions.is_stiffly_accurate(get("dopri5"))
    True
    """
    table = linear_tableau(scheme)
    return table is not None and bool(np.allclose(table.A[-1], table.b, rtol=0, atol=ROUNDING))


@check_scheme
def symplecticity_defect(scheme: Any) -> float:
    """max |b_i a_ij + b_j a_ji - b_i b_j|; 0 for splittings, which compose exact flows; NaN for multistep schemes.

    Of a partitioned scheme the first matrix is that of p.

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
    >>> conditions.symplecticity_defect(get("verlet"))
    0.0
    """
    if isinstance(scheme, Splitting):
        return 0.0
    if isinstance(scheme, PartitionedRK):
        return find_symplecticity_defect(scheme.tableaux)
    table = tableau_of(scheme)
    if table is None:
        return float("nan")
    BA = table.b[:, None] * table.A
    return float(np.max(np.abs(BA + BA.T - np.outer(table.b, table.b))))


@check_scheme
def is_symplectic(scheme: Any) -> bool:
    """Whether it preserves the symplectic form (of a separable problem, for splittings).

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
    >>> conditions.is_symplectic(get("verlet")), conditions.is_symplectic(get("rk4"))
    (True, False)
    """
    return symplecticity_defect(scheme) < ROUNDING


@check_scheme
def is_symmetric(scheme: Any) -> bool:
    """Whether a step with -h inverts a step with h: the scheme is its own adjoint.

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
    >>> conditions.is_symmetric(get("verlet")), conditions.is_symmetric(get("rk4"))
    (True, False)
    """
    table = tableau_of(scheme)
    if table is not None:
        return bool(np.allclose(table.A + table.A[::-1, ::-1], table.b[None, :], rtol=0, atol=ROUNDING))
    if isinstance(scheme, Splitting):
        flows = scheme.sequence()
        forward, backward = np.array(flows), np.array(flows[::-1])
        return bool(np.allclose(forward, backward, rtol=0, atol=ROUNDING))
    if isinstance(scheme, PartitionedRK):
        return is_symmetric_pair(scheme.tableaux)
    if not isinstance(scheme, Multistep):
        return False
    k = scheme.n_steps
    rho, sigma = np.zeros(k + 1), np.zeros(k + 1)
    rho[0], rho[1 : 1 + len(scheme.alpha)], sigma[1 : 1 + len(scheme.beta)] = (
        1.0,
        np.negative(scheme.alpha),
        scheme.beta,
    )
    return bool(np.allclose(rho[::-1], rho[-1] * rho) and abs(rho[-1]) == 1 and np.allclose(sigma[::-1], sigma))


@check_scheme
def is_reversible(scheme: Any) -> bool:
    """Whether the previous state can be computed explicitly, exactly up to rounding.

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
    >>> conditions.is_reversible(get("verlet")), conditions.is_reversible(get("rk4"))
    (True, False)
    """
    return is_symmetric(scheme) and tableau_of(scheme) is None and is_explicit(scheme)


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


# ---- linear stability -----------------------------------------------------------------------------------------------


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
    axis = _squared_on_axis(Q) - _squared_on_axis(P)  # |Q(iy)|^2 - |P(iy)|^2 as a polynomial in y^2
    y2 = np.concatenate((np.linspace(0, 100, 2001), np.logspace(2, 8, 200)))
    size = np.maximum(np.abs(_squared_on_axis(Q)(y2)), 1.0)
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


def _squared_on_axis(P: Polynomial) -> Polynomial:
    """|P(iy)|^2 as a polynomial in y^2."""
    even = Polynomial([c * (-1) ** k for k, c in enumerate(P.coef[0::2])])
    odd = Polynomial([c * (-1) ** k for k, c in enumerate(P.coef[1::2])] or [0.0])
    return even**2 + Polynomial([0.0, 1.0]) * odd**2


def _growth_on_imaginary_axis(scheme: Any) -> float:
    """Sign of |R(iy)| - 1 for small y: the first coefficient of |P|^2 - |Q|^2 that is not rounding."""
    P, Q = stability_function(scheme)
    coefficients = np.asarray((_squared_on_axis(P) - _squared_on_axis(Q)).coef, dtype=float)
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
        squares, variable = _squared_on_axis(P) - _squared_on_axis(Q), Polynomial([0.0, 0.0, 1.0])
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
