"""Schemes that choose their order or switch by themselves: BDF and NDF, Adams, and switching by stiffness.

They take adaptive steps only.  Steps have quasi-constant length: the history consists of backward differences, which
are computed again from their polynomial when the length changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.conditions.stability import AT_POLE
from stepnet.schemes.explicit import TSIT5
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.rosenbrock import RODAS5P, Rosenbrock
from stepnet.schemes.tableau import ExplicitRK, floats, freeze, require_finite
from stepnet.validation import check, instance, text, whole

MOST_BDF, MOST_ADAMS = 5, 12  # BDF of order 6 is stable in a sector of 18 degrees only
SHAMPINE_REICHELT = "Shampine & Reichelt (1997), SIAM J. Sci. Comput. 18:1"
ON_CIRCLE = 1e-9  # roots this near to the unit circle are on it


@check(name=text)
@dataclass(frozen=True)
class VariableBDF:
    """sum_{m=1}^k nabla^m y_{n+1} / m = h f(t_{n+1}, y_{n+1}) + kappa_k gamma_k nabla^{k+1} y_{n+1},  k = 1, 2, ...

    gamma_k = sum_{j=1}^k 1/j; with kappa = 0 these are the backward differentiation formulas (BDF), with others the
    numerical differentiation formulas (NDF).  The highest order is the number of `kappa`.

    Parameters
    ----------
    name : str
        The name.
    kappa : tuple of float
        The coefficient of each order, beginning with order 1; at most 5.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> low = sn.schemes.VariableBDF("low", (0.0, 0.0), "Curtiss & Hirschfelder (1952)")
    >>> low.order
    2
    """

    name: str
    kappa: tuple[float, ...]
    reference: str

    def __post_init__(self) -> None:
        freeze(self, kappa=floats("kappa", self.kappa))
        if not 1 <= len(self.kappa) <= MOST_BDF:
            raise SchemeError(
                f"{self.name}: `kappa` must have one number for each order from 1 to at most {MOST_BDF}, "
                f"found {len(self.kappa)}"
            )
        require_finite(self.name, kappa=self.kappa)
        for order in range(1, self.order + 1):
            if not self.numbers.error[order] > 0:
                raise SchemeError(
                    f"{self.name}: `kappa` of order {order} must be above {-1 / ((order + 1) * _gamma(order)):.4f}, "
                    f"where the error constant is zero, found {self.kappa[order - 1]}"
                )
            if not is_zero_stable(self, order):
                raise SchemeError(f"{self.name}: the formula of order {order} breaks the root condition")

    @property
    def order(self) -> int:
        """The highest order."""
        return len(self.kappa)

    @cached_property
    def numbers(self) -> BDFNumbers:
        """The coefficients as arrays indexed by the order."""
        orders = np.arange(self.order + 1)
        gamma = np.array([_gamma(k) for k in range(self.order + 1)])
        kappa = np.array([0.0, *self.kappa])
        return BDFNumbers(gamma, (1 - kappa) * gamma, kappa * gamma + 1 / (orders + 1))


class BDFNumbers(NamedTuple):
    """gamma_k, alpha_k = (1 - kappa_k) gamma_k, and the constants of the errors error_k nabla^(k+1) y."""

    gamma: np.ndarray
    alpha: np.ndarray
    error: np.ndarray


def _gamma(order: int) -> float:
    return sum(1.0 / j for j in range(1, order + 1))


def find_characteristic(scheme: VariableBDF, order: int) -> np.ndarray:
    """Coefficients of rho(xi), the highest power first: the formula of an order on y' = 0."""
    backward = np.poly1d([1.0, -1.0])  # nabla^m is (xi - 1)^m / xi^m
    shift = np.poly1d([1.0, 0.0])
    rho = sum((backward**m * shift ** (order + 1 - m) / m for m in range(1, order + 1)), np.poly1d([0.0]))
    return np.asarray((rho - scheme.kappa[order - 1] * _gamma(order) * backward ** (order + 1)).coeffs)


def is_zero_stable(scheme: VariableBDF, order: int) -> bool:
    """The root condition: apart from 1, which is simple, all roots lie inside the unit disc."""
    roots = np.roots(np.polydiv(find_characteristic(scheme, order), [1.0, -1.0])[0])
    return bool(np.all(np.abs(roots) < 1 - ON_CIRCLE))


def find_growth(scheme: VariableBDF | VariableAdams, order: int, z: np.ndarray) -> np.ndarray:
    """The largest root, in modulus, of the formula of an order on y' = lambda y, at z = h lambda of any shape."""
    if isinstance(scheme, VariableAdams):
        M = _build_pece_matrix(scheme.gamma, order, z)
        return np.asarray(np.abs(np.linalg.eigvals(M)).max(axis=-1))
    rho = find_characteristic(scheme, order)
    M = np.zeros((*z.shape, order + 1, order + 1), complex)
    M[...] = np.eye(order + 1, k=-1)
    leading = rho[0] - z[..., None]
    M[..., 0, :] = -rho[1:] / np.where(leading == 0, AT_POLE, leading)
    return np.asarray(np.abs(np.linalg.eigvals(M)).max(axis=-1))


def find_locus(scheme: VariableBDF | VariableAdams, order: int, xi: np.ndarray) -> np.ndarray:
    """The z for which the formula of an order has the roots xi (n,) on y' = lambda y, (n, values)."""
    if isinstance(scheme, VariableBDF):
        return np.asarray(np.polyval(find_characteristic(scheme, order), xi) / xi ** (order + 1))[:, None]
    nodes = np.exp(2j * np.pi * np.arange(3) / 3)  # the determinant is a polynomial of degree 2 in z
    M = _build_pece_matrix(scheme.gamma, order, nodes)
    values = np.linalg.det(xi[:, None, None, None] * np.eye(order + 1) - M)
    return np.array([np.roots(each[::-1]) for each in np.fft.fft(values, axis=1)])


def find_stability_angle(scheme: VariableBDF, order: int) -> float:
    """The angle alpha, in degrees, for which the formula of an order is A(alpha)-stable, from its root locus."""
    xi = np.exp(1j * np.linspace(1e-4, np.pi, 200001))
    locus = np.polyval(find_characteristic(scheme, order), xi) / xi ** (order + 1)
    left = locus[locus.real < 0]
    if not left.size or np.max(-left.real) < ON_CIRCLE:
        return 90.0
    return float(np.degrees(np.min(np.arctan2(np.abs(left.imag), -left.real))))


@check(name=text, order=whole(1, MOST_ADAMS))
@dataclass(frozen=True)
class VariableAdams:
    """p = y_n + h sum_{j<k} gamma_j nabla^j f_n,  y_{n+1} = p + h gamma_k nabla^k f(t_{n+1}, p),  k = 1, 2, ...

    Adams-Bashforth predicts with order k, Adams-Moulton corrects once with order k + 1, and f is evaluated again (PECE
    with local extrapolation); gamma_j = int_0^1 s (s + 1) ... (s + j - 1) / j! ds.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The highest order k of the predictor, at most 12.
    reference : str
        The source.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.VariableAdams("low", 4, "Shampine & Gordon (1975)").gamma[:3].round(4).tolist()
    [1.0, 0.5, 0.4167]
    """

    name: str
    order: int
    reference: str

    @cached_property
    def gamma(self) -> np.ndarray:
        """gamma_0, ..., gamma_(order + 1): sum_{i<=j} gamma_i / (j + 1 - i) = 1."""
        found: list[float] = []
        for j in range(self.order + 2):
            found.append(1.0 - sum(g / (j + 1 - i) for i, g in enumerate(found)))
        return np.array(found)

    @cached_property
    def error(self) -> np.ndarray:
        """The constants of the errors error_k h nabla^k f of the predictor after one correction, by order."""
        return np.concatenate(([0.0], np.abs(np.diff(self.gamma))))

    @cached_property
    def stability_limits(self) -> np.ndarray:
        """The length of the real stability interval of each order k (0 for k = 0), by a scan of the roots."""
        return np.array([0.0, *(self._find_limit(k) for k in range(1, self.order + 1))])

    def _find_limit(self, k: int) -> float:
        x = np.arange(0.005, 3.0, 0.005)
        return float(next(iter(x[find_growth(self, k, -x) > 1]), 3.0))


def _build_pece_matrix(gamma: np.ndarray, k: int, z: np.ndarray) -> np.ndarray:
    """The matrix of PECE on y' = lambda y for z = h lambda of any shape; history y_n, h f_n, h f_(n-1), ..."""
    to_differences = np.zeros((k + 1, k))  # h nabla^j f from h f_(n-i)
    for j in range(k):
        row = np.array([1.0])
        for _ in range(j):
            row = np.convolve(row, [1.0, -1.0])
        to_differences[j, : len(row)] = row
    predict = np.concatenate(([1.0], gamma[:k] @ to_differences[:k]))
    z = np.asarray(z)[..., None]
    new_difference = z * predict - np.concatenate(([0.0], to_differences[:k].sum(axis=0)))
    new = predict + gamma[k] * new_difference
    M = np.zeros((*z.shape[:-1], k + 1, k + 1), new.dtype)
    M[..., 0, :], M[..., 1, :], M[..., 2:, :] = new, z * new, np.eye(k, k + 1, k=1)[: k - 1]
    return M


@check(name=text, explicit=instance(VariableAdams, ExplicitRK), implicit=instance(VariableBDF, Rosenbrock, ImplicitRK))
@dataclass(frozen=True)
class Switching:
    """An explicit scheme and an implicit one: a run begins with the explicit one and switches by stiffness, both ways.

    Either both are multistep schemes of variable order, or both are one-step pairs.  The explicit pair must have two
    last stages at the end of the step, whose slopes show the stiffness: |k_s - k_(s-1)| / |Y_s - Y_(s-1)|.

    Parameters
    ----------
    name : str
        The name.
    explicit : VariableAdams or ExplicitRK
        The scheme where the problem is not stiff.
    implicit : VariableBDF, Rosenbrock or ImplicitRK
        The scheme where it is.
    reference : str
        The source.

    Examples
    --------
    >>> import stepnet as sn
    >>> pair = sn.schemes.Switching("pair", sn.schemes.get("tsit5"), sn.schemes.get("rodas4"), "Petzold (1983)")
    >>> pair.order
    4
    """

    name: str
    explicit: VariableAdams | ExplicitRK
    implicit: VariableBDF | Rosenbrock | ImplicitRK
    reference: str

    def __post_init__(self) -> None:
        if self.is_multistep != isinstance(self.implicit, VariableBDF):
            raise SchemeError(
                f"{self.name}: `explicit` and `implicit` must both be multistep schemes or both one-step schemes, "
                f"found {self.explicit.name} and {self.implicit.name}"
            )
        if isinstance(self.explicit, VariableAdams) or isinstance(self.implicit, VariableBDF):
            return
        for scheme in (self.explicit, self.implicit):
            if not scheme.embedded:
                raise SchemeError(f"{self.name}: {scheme.name} has no error estimate to choose its steps by")
        c = self.explicit.butcher.c
        if not (self.explicit.is_fsal and len(c) > 2 and c[-2] == 1.0):
            raise SchemeError(
                f"{self.name}: the last two stages of `explicit` must be at the end of the step, as those of tsit5 and "
                f"dopri5, found {self.explicit.name}"
            )

    @property
    def order(self) -> int:
        """The lower order of the two."""
        return min(self.explicit.order, self.implicit.order)

    @property
    def is_multistep(self) -> bool:
        """Whether both schemes are multistep schemes."""
        return isinstance(self.explicit, VariableAdams)


def find_multistep_parts(scheme: Any) -> tuple[VariableAdams | None, VariableBDF | None]:
    """The Adams scheme and the BDF of a multistep scheme of variable order; None where it has none."""
    if isinstance(scheme, VariableAdams):
        return scheme, None
    return (None, scheme) if isinstance(scheme, VariableBDF) else (scheme.explicit, scheme.implicit)


BDF = VariableBDF("bdf", (0.0,) * 5, "Gear (1971), Numerical Initial Value Problems in Ordinary Differential Equations")
NDF = VariableBDF("ndf", (-0.1850, -1 / 9, -0.0823, -0.0415, 0.0), SHAMPINE_REICHELT)
ADAMS = VariableAdams(
    "adams", 12, "Shampine & Gordon (1975), Computer Solution of Ordinary Differential Equations; Krogh (1974)"
)
PETZOLD = "Petzold (1983), SIAM J. Sci. Stat. Comput. 4:136"
LSODA = Switching("lsoda", ADAMS, NDF, PETZOLD)
AUTO = Switching("auto", TSIT5, RODAS5P, f"{PETZOLD}; Hairer & Wanner (1996), IV.2")
