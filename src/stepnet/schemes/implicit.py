"""Implicit Runge-Kutta schemes: the record, diagonally implicit schemes and pairs, and collocation schemes by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from stepnet.errors import SchemeError
from stepnet.records import validate_number
from stepnet.schemes.collocation import (
    Nodes,
    build_gauss,
    build_lobatto_iiia,
    build_lobatto_iiib,
    build_lobatto_iiic,
    build_radau_iia,
    build_start_weights,
)
from stepnet.schemes.order import HIGHEST, Conditions, find_simplified_order
from stepnet.schemes.tableau import (
    AN_ORDER,
    Butcher,
    Embedded,
    butcher,
    floats,
    freeze,
    require_finite,
    require_order,
)
from stepnet.validation import check, instance, sequence, text, whole

HAIRER_WANNER = "Hairer & Wanner (1996), Solving Ordinary Differential Equations II"
ALEXANDER = "Alexander (1977), SIAM J. Numer. Anal. 14:1006"
KVAERNO = "Kvaerno (2004), BIT 44:489"

MOST_STAGES = 12  # with more, float64 cannot distinguish the order 2s from the next one
A_STAGE_COUNT = whole(1, MOST_STAGES)
A_LOBATTO_COUNT = whole(2, MOST_STAGES)


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class ImplicitRK:
    """Y_i = y + h sum_j a_ij f(t + c_j h, Y_j),  y_new = y + h sum b_i f(t + c_i h, Y_i).

    `A` holds all rows in full; `c` is the row sums.  The embedded result may also use the slope at the start of the
    step, with the weight `start`, and the error estimate may be damped on stiff components by `damping`:

    e = (I - h damping J)^-1 h (start f(t, y) + sum (b^_i - b_i) f(t + c_i h, Y_i)),

    where J is the Jacobian of f (Hairer & Wanner IV.8; Hosea & Shampine (1996), Appl. Numer. Math. 20:21).

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    A : tuple
        Rows of the matrix.
    b : tuple of float
        Weights.
    reference : str
        The source of the coefficients.
    embedded : tuple of Embedded, optional
        The embedded result for the error estimate.
    start : float, optional
        Weight of the slope at the start of the step in the embedded result.
    damping : float, optional
        Coefficient of h J in the matrix that damps the error estimate; 0 for none.

    Examples
    --------
    >>> import stepnet as sn
    >>> backward = sn.schemes.ImplicitRK("backward", 1, ((1.0,),), (1.0,), "Curtiss & Hirschfelder (1952)")
    >>> sn.schemes.conditions.is_l_stable(backward)
    True
    """

    name: str
    order: int
    A: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    reference: str
    embedded: tuple[Embedded, ...] = ()
    start: float = 0.0
    damping: float = 0.0

    def __post_init__(self) -> None:
        freeze(self, A=sequence(floats)("A", self.A), b=floats("b", self.b))
        freeze(self, embedded=sequence(instance(Embedded))("embedded", self.embedded))
        freeze(self, start=validate_number("start", self.start, "[-inf, inf]"))
        freeze(self, damping=validate_number("damping", self.damping, "[0, inf]"))
        s = len(self.b)
        if s == 0 or [len(row) for row in self.A] != [s] * s:
            raise SchemeError(
                f"{self.name}: `A` must have {s} rows with {s} entries each, because `b` has {s}; "
                f"found rows with {[len(row) for row in self.A]} entries"
            )
        require_finite(self.name, A=[x for row in self.A for x in row], b=self.b, start=[self.start])
        require_finite(self.name, damping=[self.damping])
        if not np.triu(self.butcher.A).any():
            raise SchemeError(f"{self.name}: no stage is implicit; build it as an `ExplicitRK`")
        _require_implicit_order(self)
        _require_embedded_order(self)

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def butcher(self) -> Butcher:
        """The tableau as arrays."""
        return butcher(np.array(self.A, float), np.array(self.b, float))

    @cached_property
    def is_fsal(self) -> bool:
        """First same as last: the last stage is the new state, so its slope begins the next step."""
        return self.butcher.is_fsal

    @cached_property
    def estimate(self) -> np.ndarray:
        """Weights of the error estimate: of the slope at the start of the step, then of the stages."""
        hat = np.array(self.embedded[0].b) if self.embedded else self.butcher.b
        return np.concatenate(([self.start], hat - self.butcher.b))


def _require_implicit_order(scheme: ImplicitRK) -> None:
    """By trees up to `HIGHEST`, above it by the simplifying assumptions."""
    table, order = scheme.butcher, scheme.order
    require_order(scheme.name, "b", Conditions(table.A), table.b, min(order, HIGHEST))
    if order > HIGHEST and find_simplified_order(*table) < order:
        raise SchemeError(
            f"{scheme.name}: `b` promises order {order}, but the simplifying assumptions, which are checked above "
            f"order {HIGHEST}, imply only {find_simplified_order(*table)}"
        )


def _require_embedded_order(scheme: ImplicitRK) -> None:
    """Refuse an embedded result that misses its order; the slope at the start of the step is one more stage."""
    if len(scheme.embedded) > 1:
        raise SchemeError(f"{scheme.name}: at most one embedded result is supported, found {len(scheme.embedded)}")
    if not scheme.embedded and (scheme.start or scheme.damping):
        raise SchemeError(f"{scheme.name}: `start` and `damping` need an embedded result, and there is none")
    for hat in scheme.embedded:
        require_finite(scheme.name, embedded=hat.b)
        if len(hat.b) != len(scheme.b):
            raise SchemeError(f"{scheme.name}: embedded `b` must have {len(scheme.b)} entries, found {len(hat.b)}")
        if hat.b == scheme.b:
            raise SchemeError(f"{scheme.name}: embedded `b` repeats `b`, so it would estimate every error as 0")
        table = extend_by_start(scheme)
        require_order(scheme.name, "embedded b", Conditions(table.A), table.b, hat.order)


def extend_by_start(scheme: ImplicitRK) -> Butcher:
    """The tableau of the embedded result, with the state at the start of the step as its first stage."""
    s = len(scheme.b)
    A = np.zeros((s + 1, s + 1))
    A[1:, 1:] = scheme.butcher.A
    return butcher(A, np.array([scheme.start, *scheme.embedded[0].b]))


# ---- diagonally implicit --------------------------------------------------------------------------------------------

IMPLICIT_EULER = ImplicitRK(
    "implicit_euler", 1, ((1.0,),), (1.0,), "Curtiss & Hirschfelder (1952), Proc. Natl. Acad. Sci. 38:235"
)
IMPLICIT_MIDPOINT = ImplicitRK(
    "implicit_midpoint", 2, ((1 / 2,),), (1.0,), "Hairer, Lubich & Wanner (2006), Geometric Numerical Integration, I.1"
)
TRAPEZOID = ImplicitRK(
    "trapezoid", 2,
    A=((0.0, 0.0), (1 / 2, 1 / 2)),
    b=(1 / 2, 1 / 2),
    reference="Crank & Nicolson (1947), Proc. Camb. Phil. Soc. 43:50",
)  # fmt: skip

_ALPHA = 1 - 0.5**0.5
SDIRK2 = ImplicitRK(
    "sdirk2", 2,
    A=((_ALPHA, 0.0), (1 - _ALPHA, _ALPHA)),
    b=(1 - _ALPHA, _ALPHA),
    reference=ALEXANDER,
    embedded=(Embedded((1.0, 0.0), 1),),
    damping=_ALPHA,
)  # fmt: skip

_D, _W = 1 - 0.5**0.5, 0.125**0.5
TRBDF2 = ImplicitRK(
    "trbdf2", 2,
    A=((0.0, 0.0, 0.0), (_D, _D, 0.0), (_W, _W, _D)),
    b=(_W, _W, _D),
    reference="Bank et al. (1985), IEEE Trans. CAD 4:436; Hosea & Shampine (1996), Appl. Numer. Math. 20:21",
    embedded=(Embedded(((1 - _W) / 3, (3 * _W + 1) / 3, _D / 3), 3),),
    damping=_D,
)  # fmt: skip

SDIRK4 = ImplicitRK(
    "sdirk4", 4,
    A=(
        (1 / 4, 0.0, 0.0, 0.0, 0.0),
        (1 / 2, 1 / 4, 0.0, 0.0, 0.0),
        (17 / 50, -1 / 25, 1 / 4, 0.0, 0.0),
        (371 / 1360, -137 / 2720, 15 / 544, 1 / 4, 0.0),
        (25 / 24, -49 / 48, 125 / 16, -85 / 12, 1 / 4),
    ),
    b=(25 / 24, -49 / 48, 125 / 16, -85 / 12, 1 / 4),
    reference=f"{HAIRER_WANNER}, IV.6",
    embedded=(Embedded((59 / 48, -17 / 96, 225 / 32, -85 / 12, 0.0), 3),),
    damping=1 / 4,
)  # fmt: skip


def _build_esdirk(name: str, order: int, gamma: Fraction, rows: tuple[tuple[Fraction | float, ...], ...]) -> ImplicitRK:
    """A pair whose last two stages are both results: `rows` are those below an explicit first stage."""
    s = len(rows) + 1
    full = [(0.0,) * s]
    for row in rows:
        entries = tuple(float(x) for x in row)
        full.append((*entries, float(gamma), *(0.0,) * (s - 1 - len(row))))
    return ImplicitRK(name, order, tuple(full), full[-1], KVAERNO, (Embedded(full[-2], order - 1),))


def _kvaerno3() -> ImplicitRK:
    """gamma is a root of 6 g^3 - 18 g^2 + 9 g - 1, for L-stability."""
    g = Fraction("0.4358665215084589994160194511935568425293")
    rows = (
        (g,),
        ((-4 * g**2 + 6 * g - 1) / (4 * g), (-2 * g + 1) / (4 * g)),
        ((6 * g - 1) / (12 * g), -1 / ((24 * g - 12) * g), (-6 * g**2 + 6 * g - 1) / (6 * g - 3)),
    )
    return _build_esdirk("kvaerno3", 3, g, rows)


def _kvaerno4() -> ImplicitRK:
    """gamma is a root of 24 g^4 - 96 g^3 + 72 g^2 - 16 g + 1, for L-stability of the result of order 4."""
    g = Fraction("0.5728160624821348554080013849767683409315")
    p, q = 12 * g**2 - 6 * g + 1, 12 * g**2 - 9 * g + 2
    rows = (
        (g,),
        (
            (144 * g**4 - 180 * g**3 + 81 * g**2 - 15 * g + 1) * g / p**2,
            (-36 * g**3 + 39 * g**2 - 15 * g + 2) * g / p**2,
        ),
        (
            (-144 * g**5 + 396 * g**4 - 330 * g**3 + 117 * g**2 - 18 * g + 1) / (12 * g**2 * q),
            (72 * g**4 - 126 * g**3 + 69 * g**2 - 15 * g + 1) / (12 * g**2 * (3 * g - 1)),
            (-6 * g**2 + 6 * g - 1) * p**2 / (12 * g**2 * q * (3 * g - 1)),
        ),
        (
            (288 * g**4 - 312 * g**3 + 120 * g**2 - 18 * g + 1) / (48 * g**2 * q),
            (24 * g**2 - 12 * g + 1) / (48 * g**2 * (3 * g - 1)),
            -(p**3) / (48 * g**2 * (3 * g - 1) * q * (6 * g**2 - 6 * g + 1)),
            (-24 * g**3 + 36 * g**2 - 12 * g + 1) / (24 * g**2 - 24 * g + 4),
        ),
    )
    return _build_esdirk("kvaerno4", 4, g, rows)


KVAERNO3 = _kvaerno3()
KVAERNO4 = _kvaerno4()
# The printed seventeen decimals, refined by Newton's method on the order conditions and those of stage order 2.
KVAERNO5 = _build_esdirk(
    "kvaerno5", 5, Fraction(26, 100),
    (
        (0.26,),
        (0.13, 0.84033320996790809632),
        (0.22371961478320505613, 0.4767553231979969971, -0.064708953631126151345),
        (0.16648564323248321528, 0.10450018841591720439, 0.036314822720987151414, -0.13090704451073998572),
        (0.13855640231268224956, 0.0, -0.042453372017520430923, 0.024466578980031419524, 0.61943039072480676184),
        (
            0.13659751177640291443, 0.0, -0.054969087965383767188, -0.041186267283210469081, 0.6299330489901640321,
            0.06962479448202728974,
        ),
    ),
)  # fmt: skip


# ---- collocation ----------------------------------------------------------------------------------------------------


def _build(name: str, order: int, nodes: Nodes, section: str) -> ImplicitRK:
    return ImplicitRK(name, order, nodes.A, nodes.b, f"{HAIRER_WANNER}, {section}")


@check(stages=A_STAGE_COUNT)
def gauss(stages: int) -> ImplicitRK:
    """Build the scheme of Gauss: collocation at the zeros of Legendre's polynomial, of order 2s, symplectic, symmetric.

    Parameters
    ----------
    stages : int
        Number of stages s.

    Returns
    -------
    ImplicitRK

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.gauss(3).order
    6
    """
    return _build(f"gauss({stages})", 2 * stages, build_gauss(stages), "IV.5")


@check(stages=A_STAGE_COUNT)
def radau_iia(stages: int) -> ImplicitRK:
    """Build the scheme Radau IIA: collocation with c_s = 1, of order 2s - 1, L-stable, stiffly accurate.

    With s >= 2 it is a pair: the embedded result of order s integrates the polynomial through the slopes at the start
    of the step and in the stages, with the weight gamma_0 at the start.  gamma_0 is the real eigenvalue of A if s is
    odd, and the geometric mean of all eigenvalues otherwise.

    Parameters
    ----------
    stages : int
        Number of stages s.

    Returns
    -------
    ImplicitRK

    Examples
    --------
    >>> import stepnet as sn
    >>> radau = sn.schemes.radau_iia(3)
    >>> radau.order, radau.embedded[0].order
    (5, 3)
    """
    nodes = build_radau_iia(stages)
    scheme = _build(f"radau_iia({stages})", 2 * stages - 1, nodes, "IV.5 and IV.8")
    if stages == 1:
        return scheme
    values = np.linalg.eigvals(scheme.butcher.A)
    real = values[np.abs(values.imag) < 1e-9 * np.abs(values)].real
    gamma = float(real[0]) if len(real) else float(np.prod(np.abs(values)) ** (1 / stages))
    hat = Embedded(build_start_weights(nodes, gamma), min(stages, HIGHEST))
    return replace(scheme, embedded=(hat,), start=gamma, damping=gamma)


@check(stages=A_LOBATTO_COUNT)
def lobatto_iiia(stages: int) -> ImplicitRK:
    """Build the scheme Lobatto IIIA: collocation with c_1 = 0 and c_s = 1, of order 2s - 2, symmetric.

    Parameters
    ----------
    stages : int
        Number of stages s, at least 2.

    Returns
    -------
    ImplicitRK

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.conditions.is_symmetric(sn.schemes.lobatto_iiia(3))
    True
    """
    return _build(f"lobatto_iiia({stages})", 2 * stages - 2, build_lobatto_iiia(stages), "IV.5")


@check(stages=A_LOBATTO_COUNT)
def lobatto_iiib(stages: int) -> ImplicitRK:
    """Build the scheme Lobatto IIIB, of order 2s - 2: with Lobatto IIIA for q it is symplectic (partitioned).

    Parameters
    ----------
    stages : int
        Number of stages s, at least 2.

    Returns
    -------
    ImplicitRK

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.lobatto_iiib(3).order
    4
    """
    return _build(f"lobatto_iiib({stages})", 2 * stages - 2, build_lobatto_iiib(stages), "IV.5")


@check(stages=A_LOBATTO_COUNT)
def lobatto_iiic(stages: int) -> ImplicitRK:
    """Build the scheme Lobatto IIIC, of order 2s - 2: L-stable, stiffly accurate.

    Parameters
    ----------
    stages : int
        Number of stages s, at least 2.

    Returns
    -------
    ImplicitRK

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.conditions.is_l_stable(sn.schemes.lobatto_iiic(3))
    True
    """
    return _build(f"lobatto_iiic({stages})", 2 * stages - 2, build_lobatto_iiic(stages), "IV.5")


GAUSS4 = replace(gauss(2), name="gauss4")
GAUSS6 = replace(gauss(3), name="gauss6")
RADAU3 = replace(radau_iia(2), name="radau3")
RADAU5 = replace(radau_iia(3), name="radau5")
RADAU9 = replace(radau_iia(5), name="radau9")
LOBATTO_IIIA4 = replace(lobatto_iiia(3), name="lobatto_iiia4")
LOBATTO_IIIB4 = replace(lobatto_iiib(3), name="lobatto_iiib4")
LOBATTO_IIIC2 = replace(lobatto_iiic(2), name="lobatto_iiic2")
LOBATTO_IIIC4 = replace(lobatto_iiic(3), name="lobatto_iiic4")
