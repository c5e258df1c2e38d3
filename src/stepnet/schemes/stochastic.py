"""Schemes for stochastic differential equations dy = f dt + g dW: the record and its members.

A step is a stochastic Runge-Kutta step in the form of A. Roessler (2010), SIAM J. Numer. Anal. 48:922.  Stages of the
drift H0_i and of the diffusion H1_i, and the new state, are

    H0_i  = y + h sum_j A0_ij f(t + c0_j h, H0_j) + sum_X sum_j B0^X_ij g(t + c1_j h, H1_j) X
    H1_i  = y + h sum_j A1_ij f(t + c0_j h, H0_j) + sum_X sum_j B1^X_ij g(t + c1_j h, H1_j) X
    y_new = y + h sum_i alpha_i f(t + c0_i h, H0_i) + sum_X sum_i beta^X_i g(t + c1_i h, H1_i) X + gamma^X (g'g)(t, y) X

where the random variables X of a step are listed in `VARIABLES`, and H0_i has terms gamma0^X_i (g'g)(t, y) X as well.
Stages of the drift may be implicit: A0 and B0 are lower triangular, and a stage with a diagonal entry of A0 is solved
for.  Noise stays explicit, because 1 / (1 - g' dW) has no moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepnet.errors import SchemeError, UnknownName
from stepnet.schemes.tableau import floats, freeze, require_finite
from stepnet.validation import check, one_of, optional, real, text

VARIABLES = {
    "W": "the increment dW",
    "I10/h": "the integral of W - W(t) over the step, divided by h",
    "I11/sqrt(h)": "(dW^2 - h) / (2 sqrt(h))",
    "I111/h": "(dW^3 - 3 h dW) / (6 h)",
    "sqrt(h)": "the square root of the step size",
    "I11": "(dW^2 - h) / 2; (dW_i dW_j - delta_ij h) / 2 for matrices",
    "J11": "dW^2 / 2; dW_i dW_j / 2 for matrices",
    "V": "sqrt(h) times a variable with the values 0 and +-sqrt(3)",
    "V2": "(V^2 - h) / sqrt(h); (V_i V_j + U_ij) / sqrt(h) for pairs, U_ii = -h, U_ij = -U_ji = -h or h for i < j",
}
PAIRED = ("I11", "J11")  # one for each pair of components where diffusion is a matrix
NOISE_TYPES = ("scalar", "additive", "diagonal", "commutative", "general")
CALCULI = ("ito", "stratonovich")

ROESSLER = "Roessler (2010), SIAM J. Numer. Anal. 48:922"
KLOEDEN = "Kloeden & Platen (1992), Numerical Solution of Stochastic Differential Equations"

Row = tuple[float, ...]
Weights = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Orders:
    """The strong and weak order of a scheme for one type of noise; the strong order 0 means convergence in law only."""

    noise: str
    strong: float
    weak: float

    def __post_init__(self) -> None:
        if self.noise not in NOISE_TYPES:
            raise UnknownName("noise", self.noise, NOISE_TYPES)
        freeze(self, strong=float(self.strong), weak=float(self.weak))
        if not (self.strong >= 0.0 and self.weak >= self.strong):
            raise SchemeError(f"orders for {self.noise} noise must satisfy weak >= strong >= 0, found {self}")


@dataclass(frozen=True)
class EmbeddedWeights:
    """Weights of an embedded scheme on the same stages, whose distance from the scheme is the error estimate.

    The differences of drift and noise are taken separately and their absolute values added: their sum may be much
    smaller than both.  The estimate is O(h^(order + 1/2)), where `order` is the strong order of the embedded scheme.

    C. Rackauckas, Q. Nie (2017), Discrete Contin. Dyn. Syst. B 22:2731.
    """

    alpha: Row
    beta: Weights
    order: float

    def __post_init__(self) -> None:
        freeze(self, alpha=floats("alpha", self.alpha), order=float(self.order))
        freeze(self, beta=tuple((_validate_variable(x), floats("beta", row)) for x, row in self.beta))


@check(name=text, reference=text)
@dataclass(frozen=True)
class StochasticRK:
    """A stochastic Runge-Kutta scheme; `orders` lists the types of noise it admits, `calculus` the integral it solves.

    `A1` and `B1` are strictly lower triangular tuples of rows, `A0` and `B0` lower triangular ones: a diagonal entry of
    `A0` makes a stage of the drift implicit.  `B0`, `B1`, `beta`, `gamma0` and `gamma` are pairs of a variable and its
    weights.  A scheme with `gamma` needs the derivative of the diffusion; with `embedded` it has an error estimate.
    """

    name: str
    orders: tuple[Orders, ...]
    calculus: str
    alpha: Row
    beta: Weights
    reference: str
    A0: tuple[Row, ...] = ()
    B0: Weights = ()
    A1: tuple[Row, ...] = ()
    B1: Weights = ()
    c0: Row = ()
    c1: Row = ()
    gamma: Weights = ()
    embedded: EmbeddedWeights | None = None
    gamma0: Weights = ()

    def __post_init__(self) -> None:
        s = len(self.alpha)
        freeze(self, alpha=floats("alpha", self.alpha), orders=tuple(self.orders))
        for name, n_diagonal in (("A0", 1), ("A1", 0)):
            freeze(self, **{name: validate_rows(self.name, name, getattr(self, name), s, n_diagonal)})
        for name, n_diagonal in (("B0", 1), ("B1", 0)):
            freeze(self, **{name: tuple(
                (_validate_variable(x), validate_rows(self.name, name, rows, s, n_diagonal)) for x, rows in self[name]
            )})  # fmt: skip
        for name in ("beta", "gamma0"):
            freeze(self, **{name: tuple((_validate_variable(x), floats(name, row)) for x, row in self[name])})
        freeze(self, gamma=tuple((_validate_variable(x), float(weight)) for x, weight in self.gamma))
        for name in ("c0", "c1"):
            freeze(self, **{name: floats(name, getattr(self, name)) or (0.0,) * s})
        if self.calculus not in CALCULI:
            raise UnknownName("calculus", self.calculus, CALCULI)
        if any(len(row) != s for row in (self.c0, self.c1, *(row for _, row in (*self.beta, *self.gamma0)))):
            raise SchemeError(
                f"{self.name}: `beta`, `gamma0`, `c0` and `c1` must have {s} entries each, as `alpha` has"
            )
        if not self.orders:
            raise SchemeError(f"{self.name}: `orders` must list at least one type of noise")
        require_finite(self.name, alpha=self.alpha, c0=self.c0, c1=self.c1)
        _require_consistency(self.name, self.alpha, self.beta)
        if self.embedded is not None:
            if any(len(row) != s for row in (self.embedded.alpha, *(row for _, row in self.embedded.beta))):
                raise SchemeError(f"{self.name}: weights of `embedded` must have {s} entries each, as `alpha` has")
            _require_consistency(f"{self.name}, embedded", self.embedded.alpha, self.embedded.beta)

    def __getitem__(self, name: str) -> Weights:
        return getattr(self, name)

    @property
    def variables(self) -> tuple[str, ...]:
        """The random variables of a step, in the order of `VARIABLES`."""
        used = {x for some in (self.B0, self.B1, self.beta, self.gamma0, self.gamma) for x, _ in some}
        return tuple(x for x in VARIABLES if x in used)

    @property
    def is_implicit(self) -> bool:
        """Whether some stage of the drift is solved for."""
        return any(row[i] != 0.0 for i, row in enumerate(self.A0))


@check(name=text, reference=text)
@dataclass(frozen=True)
class ReversibleHeun:
    """A scheme for Stratonovich equations with an exact inverse, on the pair (y, z):

    z_new = 2 y - z + f(t, z) h + g(t, z) dW,
    y_new = y + (f(t, z) + f(t + h, z_new)) h / 2 + (g(t, z) + g(t + h, z_new)) dW / 2.
    """

    name: str
    orders: tuple[Orders, ...]
    reference: str
    calculus: str = "stratonovich"

    variables = ("W",)


@check(name=text, reference=text)
@dataclass(frozen=True)
class TamedEuler:
    """y_new = y + h f / (1 + h |f|) + g dW: stays finite in mean square where the drift grows faster than linearly."""

    name: str
    orders: tuple[Orders, ...]
    reference: str
    calculus: str = "ito"

    variables = ("W",)


def _require_consistency(name: str, alpha: Row, beta: Weights) -> None:
    """The drift, and the diffusion times dW, have the weight one in total."""
    drift, noise = sum(alpha), sum(sum(row) for x, row in beta if x in ("W", "V"))
    if abs(drift - 1.0) > 1e-14 or abs(noise - 1.0) > 1e-14:
        raise SchemeError(f"{name}: weights of drift and noise must sum to 1, found {drift} and {noise}")


def _validate_variable(name: str) -> str:
    if name not in VARIABLES:
        raise UnknownName("variable", name, tuple(VARIABLES))
    return name


def validate_rows(scheme: str, name: str, rows: Any, s: int, n_diagonal: int = 0) -> tuple[Row, ...]:
    """Rows of a lower triangular matrix, strictly so unless `n_diagonal` is 1, completed with zeros."""
    found = tuple(floats(name, row) for row in rows)
    if len(found) > s or any(len(row) > s or any(row[i + n_diagonal :]) for i, row in enumerate(found)):
        kind = "lower triangular" if n_diagonal else "strictly lower triangular"
        raise SchemeError(f"{scheme}: `{name}` must be {kind} with at most {s} rows")
    require_finite(scheme, **{name: [x for row in found for x in row]})
    return tuple((*row, *(0.0,) * (s - len(row))) for row in (*found, *((),) * (s - len(found))))


def _admit(**orders: tuple[float, float]) -> tuple[Orders, ...]:
    """Orders by type of noise; scalar and diagonal noise are commutative, all are general."""
    return tuple(Orders(noise, *pair) for noise, pair in orders.items())


@check(theta=real("(0, 1]"), name=optional(text))
def theta_maruyama(theta: float, name: str | None = None) -> StochasticRK:
    """The drift-implicit scheme y_new = y + h ((1 - theta) f(t, y) + theta f(t + h, y_new)) + g(t, y) dW.

    For theta >= 1/2 it is mean-square stable whenever the linear test equation is.

    Parameters
    ----------
    theta : float
        The implicit fraction of the drift, in (0, 1]: 1 is the drift-implicit Euler scheme, 1/2 the trapezoidal one.
    name : str, optional
        The name of the scheme.

    Returns
    -------
    StochasticRK

    Raises
    ------
    ValueError
        If `theta` is not in (0, 1].

    References
    ----------
    D. J. Higham (2000), SIAM J. Numer. Anal. 38:753.

    Examples
    --------
    >>> from stepnet.schemes import theta_maruyama
    >>> theta_maruyama(0.75).is_implicit
    True
    """
    return StochasticRK(
        name or f"theta_maruyama({theta:g})",
        _admit(scalar=(0.5, 1), additive=(1, 1), diagonal=(0.5, 1), commutative=(0.5, 1), general=(0.5, 1)),
        reference=f"{KLOEDEN}, 12.2.5", calculus="ito", **_weigh_implicitly(theta),
    )  # fmt: skip


@check(theta=real("(0, 2]"), calculus=one_of(*CALCULI), name=optional(text))
def theta_milstein(theta: float, calculus: str = "ito", name: str | None = None) -> StochasticRK:
    """The drift-implicit Milstein scheme: `theta_maruyama` and Milstein's term with the derivative of the diffusion.

    Parameters
    ----------
    theta : float
        The implicit fraction of the drift, in (0, 2]; for theta >= 3/2 the scheme is mean-square stable whenever the
        linear test equation is.
    calculus : {"ito", "stratonovich"}, optional
        The integral of the equations that it solves.
    name : str, optional
        The name of the scheme.

    Returns
    -------
    StochasticRK

    Raises
    ------
    ValueError
        If `theta` is not in (0, 2].

    References
    ----------
    D. J. Higham (2000), SIAM J. Numer. Anal. 38:753.

    Examples
    --------
    >>> from stepnet.schemes import theta_milstein
    >>> theta_milstein(1.0, "stratonovich").variables
    ('W', 'J11')
    """
    variable = "I11" if calculus == "ito" else "J11"
    return StochasticRK(
        name or f"theta_milstein({theta:g}, {calculus})",
        _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1)),
        reference=f"{KLOEDEN}, 12.2.{12 if calculus == 'ito' else 13}", calculus=calculus,
        gamma=((variable, 1),), gamma0=((variable, (0, 1)),), **_weigh_implicitly(theta),
    )  # fmt: skip


def _weigh_implicitly(theta: float) -> dict[str, Any]:
    """The weights of both theta schemes; the second stage is the new state."""
    return {
        "alpha": (1 - theta, theta), "beta": (("W", (1, 0)),), "A0": ((), (1 - theta, theta)),
        "B0": (("W", ((), (1, 0))),), "c0": (0, 1),
    }  # fmt: skip


EULER_MARUYAMA = StochasticRK(
    "euler_maruyama",
    _admit(scalar=(0.5, 1), additive=(1, 1), diagonal=(0.5, 1), commutative=(0.5, 1), general=(0.5, 1)),
    "ito", (1,), (("W", (1,)),), "Maruyama (1955), Rend. Circ. Mat. Palermo 4:48",
)  # fmt: skip

MILSTEIN = StochasticRK(
    "milstein",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1)),
    "ito", (1,), (("W", (1,)),), "Milstein (1975), Theory Probab. Appl. 19:557", gamma=(("I11", 1),),
)  # fmt: skip

MILSTEIN_STRATONOVICH = StochasticRK(
    "milstein_stratonovich",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1)),
    "stratonovich", (1,), (("W", (1,)),), f"{KLOEDEN}, 10.3.18", gamma=(("J11", 1),),
)  # fmt: skip

MILSTEIN_DERIVATIVE_FREE = StochasticRK(
    "milstein_derivative_free",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1)),
    "ito", (1, 0), (("W", (1, 0)), ("I11/sqrt(h)", (-1, 1))), f"{KLOEDEN}, 11.1.3",
    A1=((), (1,)), B1=(("sqrt(h)", ((), (1,))),), c1=(0, 0),
)  # fmt: skip

MILSTEIN_STRATONOVICH_DERIVATIVE_FREE = StochasticRK(
    "milstein_stratonovich_derivative_free",  # the mean of dW^2 times the error of the quotient lowers the order
    _admit(scalar=(0.5, 1), additive=(1, 1), diagonal=(0.5, 1)),
    "stratonovich", (1, 0), (("W", (1, 0)), ("I11/sqrt(h)", (-1, 1)), ("sqrt(h)", (-0.5, 0.5))), f"{KLOEDEN}, 11.1.11",
    B1=(("sqrt(h)", ((), (1,))),), c1=(0, 0),
)  # fmt: skip

DRIFT_IMPLICIT_EULER = theta_maruyama(1.0, "drift_implicit_euler")
DRIFT_TRAPEZOID_EULER = theta_maruyama(0.5, "drift_trapezoid_euler")
DRIFT_IMPLICIT_MILSTEIN = theta_milstein(1.0, name="drift_implicit_milstein")

EULER_HEUN = StochasticRK(
    "euler_heun",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1), general=(0.5, 1)),
    "stratonovich", (1, 0), (("W", (0.5, 0.5)),), f"{KLOEDEN}, 14.2",
    B1=(("W", ((), (1,))),), c1=(0, 1),
)  # fmt: skip

STOCHASTIC_HEUN = StochasticRK(
    "stochastic_heun",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1), general=(0.5, 1)),
    "stratonovich", (0.5, 0.5), (("W", (0.5, 0.5)),), "Ruemelin (1982), SIAM J. Numer. Anal. 19:604",
    A0=((), (1,)), B0=(("W", ((), (1,))),), A1=((), (1,)), B1=(("W", ((), (1,))),), c0=(0, 1), c1=(0, 1),
)  # fmt: skip

STOCHASTIC_MIDPOINT = StochasticRK(
    "stochastic_midpoint",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1), general=(0.5, 1)),
    "stratonovich", (0, 1), (("W", (0, 1)),), "Ruemelin (1982), SIAM J. Numer. Anal. 19:604",
    A0=((), (0.5,)), B0=(("W", ((), (0.5,))),), A1=((), (0.5,)), B1=(("W", ((), (0.5,))),), c0=(0, 0.5), c1=(0, 0.5),
)  # fmt: skip

SRA1 = StochasticRK(
    "sra1", _admit(additive=(1.5, 2)), "ito",
    (1 / 3, 2 / 3), (("W", (1, 0)), ("I10/h", (-1, 1))), ROESSLER,
    A0=((), (3 / 4,)), B0=(("I10/h", ((), (3 / 2,))),), c0=(0, 3 / 4), c1=(1, 0),
    embedded=EmbeddedWeights((1, 0), (("W", (1, 0)),), 1),
)  # fmt: skip

SRA2 = StochasticRK(
    "sra2", _admit(additive=(1.5, 2)), "ito",
    (1 / 3, 2 / 3), (("W", (0, 1)), ("I10/h", (3 / 2, -3 / 2))), ROESSLER,
    A0=((), (3 / 4,)), B0=(("I10/h", ((), (3 / 2,))),), c0=(0, 3 / 4), c1=(1 / 3, 1),
    embedded=EmbeddedWeights((1, 0), (("W", (0, 1)),), 1),
)  # fmt: skip

SRA3 = StochasticRK(
    "sra3", _admit(additive=(1.5, 2)), "ito",
    (1 / 6, 1 / 6, 2 / 3), (("W", (1, 0, 0)), ("I10/h", (-1, 1, 0))), ROESSLER,
    A0=((), (1,), (1 / 4, 1 / 4)), B0=(("I10/h", ((), (0,), (1, 1 / 2))),), c0=(0, 1, 1 / 2), c1=(1, 0, 0),
    embedded=EmbeddedWeights((1, 0, 0), (("W", (1, 0, 0)),), 1),
)  # fmt: skip

# Stages that the square root of h displaces leave a term h^(5/2) in the mean of a step, unless noise is additive: the
# weak order is 3/2, not 2.
SRIW1 = StochasticRK(
    "sriw1", _admit(scalar=(1.5, 1.5), additive=(1.5, 2), diagonal=(1.5, 1.5)), "ito",
    (1 / 3, 2 / 3, 0, 0),
    (
        ("W", (-1, 4 / 3, 2 / 3, 0)),
        ("I11/sqrt(h)", (-1, 4 / 3, -1 / 3, 0)),
        ("I10/h", (2, -4 / 3, -2 / 3, 0)),
        ("I111/h", (-2, 5 / 3, -2 / 3, 1)),
    ),
    ROESSLER,
    A0=((), (3 / 4,)), B0=(("I10/h", ((), (3 / 2,))),),
    A1=((), (1 / 4,), (1,), (0, 0, 1 / 4)), B1=(("sqrt(h)", ((), (1 / 2,), (-1,), (-5, 3, 1 / 2))),),
    c0=(0, 3 / 4, 0, 0), c1=(0, 1 / 4, 1, 1 / 4),
    embedded=EmbeddedWeights(
        (1, 0, 0, 0), (("W", (-1, 4 / 3, 2 / 3, 0)), ("I11/sqrt(h)", (-1, 4 / 3, -1 / 3, 0))), 1
    ),
)  # fmt: skip

SRIW2 = StochasticRK(
    "sriw2", _admit(scalar=(1.5, 1.5), additive=(1.5, 2), diagonal=(1.5, 1.5)), "ito",
    (1 / 6, 1 / 6, 2 / 3, 0),
    (
        ("W", (-1, 4 / 3, 2 / 3, 0)),
        ("I11/sqrt(h)", (1, -4 / 3, 1 / 3, 0)),
        ("I10/h", (2, -4 / 3, -2 / 3, 0)),
        ("I111/h", (-2, 5 / 3, -2 / 3, 1)),
    ),
    ROESSLER,
    A0=((), (1,), (1 / 4, 1 / 4)), B0=(("I10/h", ((), (0,), (1, 1 / 2))),),
    A1=((), (1 / 4,), (1,), (0, 0, 1 / 4)), B1=(("sqrt(h)", ((), (-1 / 2,), (1,), (2, -1, 1 / 2))),),
    c0=(0, 1, 1 / 2, 0), c1=(0, 1 / 4, 1, 1 / 4),
    embedded=EmbeddedWeights(
        (1, 0, 0, 0), (("W", (-1, 4 / 3, 2 / 3, 0)), ("I11/sqrt(h)", (1, -4 / 3, 1 / 3, 0))), 1
    ),
)  # fmt: skip

SRID2 = StochasticRK(
    "srid2", _admit(scalar=(1.5, 1.5), additive=(1.5, 2), diagonal=(1.5, 1.5)), "ito",
    (1 / 6, 1 / 6, 2 / 3, 0),
    (
        ("W", (-1, 4 / 3, 2 / 3, 0)),
        ("I11/sqrt(h)", (1, -4 / 3, 1 / 3, 0)),
        ("I10/h", (2, -4 / 3, -2 / 3, 0)),
        ("I111/h", (-2, 5 / 3, -2 / 3, 1)),
    ),
    ROESSLER,
    A0=((), (1,), (1 / 4, 1 / 4)), B0=(("I10/h", ((), (0,), (1, 1 / 2))),),
    A1=((), (1 / 4,), (1,), (0, 0, 1 / 4)), B1=(("sqrt(h)", ((), (-1 / 2,), (1,), (2, -1, 1 / 2))),),
    c0=(0, 1, 1 / 2, 0), c1=(0, 1 / 4, 1, 1 / 4),
)  # fmt: skip

PLATEN_WEAK2 = StochasticRK(
    "platen_weak2", _admit(scalar=(0, 2), diagonal=(0, 2)), "ito",
    (0.5, 0.5, 0), (("V", (0.5, 0.25, 0.25)), ("V2", (0, 0.25, -0.25))), f"{KLOEDEN}, 15.1.1",
    A0=((), (1,)), B0=(("V", ((), (1,))),), A1=((), (1,), (1,)), B1=(("sqrt(h)", ((), (1,), (-1,))),),
    c0=(0, 1, 0), c1=(0, 1, 1),
)  # fmt: skip

REVERSIBLE_HEUN = ReversibleHeun(
    "reversible_heun",
    _admit(scalar=(1, 1), additive=(1, 1), diagonal=(1, 1), commutative=(1, 1), general=(0.5, 1)),
    "Kidger, Foster, Li & Lyons (2021), Efficient and accurate gradients for neural SDEs, NeurIPS",
)  # fmt: skip

TAMED_EULER = TamedEuler(
    "tamed_euler",
    _admit(scalar=(0.5, 1), additive=(1, 1), diagonal=(0.5, 1), commutative=(0.5, 1), general=(0.5, 1)),
    "Hutzenthaler, Jentzen & Kloeden (2012), Ann. Appl. Probab. 22:1611",
)  # fmt: skip
