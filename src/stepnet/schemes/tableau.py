"""Runge-Kutta schemes as records: explicit tableaux, 2N low-storage form, stabilised three-term recursions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from stepnet.errors import SchemeError
from stepnet.records import MOST_COUNT, validate_number
from stepnet.schemes.order import HIGHEST, TOLERANCE, Conditions, runge_kutta_defect
from stepnet.validation import check, instance, optional, sequence, text, whole

DENSE_TOLERANCE = 1e-14  # the corrections are rounded to float64 and summed over up to 26 stages


AN_ORDER = whole(-MOST_COUNT, MOST_COUNT)  # records check the range, with the name of the scheme in the error


class Butcher(NamedTuple):
    """Y_i = y + h sum a_ij f(t + c_j h, Y_j),  y_new = y + h sum b_i f(t + c_i h, Y_i).

    Parameters
    ----------
    A : ndarray
        Coefficients of the stages (stages, stages).
    b : ndarray
        Weights (stages,).
    c : ndarray
        Nodes (stages,).

    Examples
    --------
    >>> from stepnet.schemes import conditions, get
    >>> conditions.tableau_of(get("rk4")).b.round(4)
    array([0.1667, 0.3333, 0.3333, 0.1667])
    """

    A: np.ndarray
    b: np.ndarray
    c: np.ndarray

    @property
    def is_fsal(self) -> bool:
        """First same as last: the last stage is the new state, so its slope begins the next step."""
        return len(self.b) > 1 and self.has_explicit_first_stage and self.is_stiffly_accurate

    @property
    def is_stiffly_accurate(self) -> bool:
        """The new state is the last stage."""
        return bool(np.array_equal(self.A[-1], self.b))

    @property
    def has_explicit_first_stage(self) -> bool:
        """The first stage is the state at the start of the step."""
        return not self.A[0].any()

    @property
    def is_diagonally_implicit(self) -> bool:
        """No stage depends on later ones, so stages are solved one by one."""
        return not np.triu(self.A, 1).any()

    @property
    def is_singly_diagonal(self) -> bool:
        """Diagonally implicit, with the same entry for all implicit stages, so that one factorisation serves all."""
        diagonal = np.diag(self.A)[int(self.has_explicit_first_stage) :]
        return self.is_diagonally_implicit and len(diagonal) > 0 and bool(np.all(diagonal == diagonal[0]))


@dataclass(frozen=True)
class Embedded:
    """Weights of a second result from the same stages; its difference from the first estimates the error.

    Parameters
    ----------
    b : tuple of float
        The weights.
    order : int
        Their order.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.get("dopri5").embedded[0].order
    4
    """

    b: tuple[float, ...]
    order: int

    def __post_init__(self) -> None:
        freeze(self, b=floats("b", self.b), order=AN_ORDER("order", self.order))


@dataclass(frozen=True)
class Dense:
    """The solution inside a step: with H the cubic Hermite polynomial through both ends and their slopes,

    y(t + theta h) = H(theta) + h theta^2 (1 - theta)^2 sum_i sum_m R_im (theta - 1/2)^m k_i.

    `correction` holds R, a row for each stage; `stages` the rows of extra stages, each over all earlier ones.  In a
    scheme that is not first-same-as-last the first extra stage is the slope at the new point: its row is `b`.
    """

    order: int
    correction: tuple[tuple[float, ...], ...]
    stages: tuple[tuple[float, ...], ...]
    reference: str


class Continuous(NamedTuple):
    """A continuous extension as arrays: tableau with extra stages, R by powers (rows), the stage at the new point."""

    A: np.ndarray
    c: np.ndarray
    R: np.ndarray
    new: int
    order: int


@check(name=text, order=AN_ORDER, dense=optional(instance(Dense)))
@dataclass(frozen=True)
class ExplicitRK:
    """k_i = f(t + c_i h, y + h sum_{j<i} a_ij k_j),  y_new = y + h sum b_i k_i.

    `a` holds the rows of the strict lower triangle, the empty first row included.  `c` is the row sums.  With one
    embedded result the error estimate is h (b - b^) k; with two, e and e~, it is the rule of DOP853,
    |e|^2 / sqrt(|e|^2 + 0.01 |e~|^2).

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    a : tuple
        Rows of the strict lower triangle.
    b : tuple of float
        Weights.
    reference : str
        The source of the coefficients.
    embedded : tuple of Embedded, optional
        Embedded results for the error estimate.
    dense : Dense, optional
        The continuous extension; by default cubic Hermite interpolation.

    Examples
    --------
    >>> import stepnet as sn
    >>> ralston = sn.schemes.ExplicitRK("ralston", 2, ((), (2 / 3,)), (1 / 4, 3 / 4), "Ralston (1962)")
    >>> sn.schemes.conditions.order(ralston)
    2
    """

    name: str
    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    reference: str
    embedded: tuple[Embedded, ...] = ()
    dense: Dense | None = None

    def __post_init__(self) -> None:
        freeze(self, a=sequence(floats)("a", self.a), b=floats("b", self.b))
        freeze(self, embedded=sequence(instance(Embedded))("embedded", self.embedded))
        s = len(self.b)
        if [len(row) for row in self.a] != list(range(s)):
            raise SchemeError(
                f"{self.name}: `a` must have {s} rows with 0, 1, ..., {s - 1} entries, because `b` has {s}; "
                f"found rows with {[len(row) for row in self.a]} entries"
            )
        if len(self.embedded) > 2:
            raise SchemeError(f"{self.name}: at most two embedded results are supported, found {len(self.embedded)}")
        require_finite(self.name, a=[x for row in self.a for x in row], b=self.b)
        conditions = Conditions(self.butcher.A)
        require_order(self.name, "b", conditions, self.butcher.b, self.order)
        for hat in self.embedded:
            require_finite(self.name, embedded=hat.b)
            if len(hat.b) != s:
                raise SchemeError(f"{self.name}: embedded `b` must have {s} entries, found {len(hat.b)}")
            if hat.b == self.b:
                raise SchemeError(f"{self.name}: embedded `b` repeats `b`, so it would estimate every error as 0")
            require_order(self.name, "embedded b", conditions, np.array(hat.b), hat.order)
        if self.dense is not None:
            require_dense_shape(self.name, len(self.b), self.dense)
            require_dense_order(self)

    def __hash__(self) -> int:
        return hash((self.name, self.order))  # a subset of the fields: hashing all coefficients is slow

    @cached_property
    def butcher(self) -> Butcher:
        """The tableau as arrays."""
        A = np.zeros((len(self.b), len(self.b)))
        for i, row in enumerate(self.a):
            A[i, :i] = row
        return butcher(A, np.array(self.b, float))

    @cached_property
    def is_fsal(self) -> bool:
        """First same as last: the last stage is the new state, so its slope begins the next step."""
        return self.butcher.is_fsal

    @cached_property
    def continuous(self) -> Continuous:
        """Its continuous extension if it has one, otherwise the cubic Hermite polynomial (order 3 at most)."""
        s, stages = len(self.b), () if self.is_fsal else (self.b,)
        dense = self.dense or Dense(min(self.order, 3), (), stages, "cubic Hermite polynomial")
        n = s + len(dense.stages)
        A = np.zeros((n, n))
        A[:s, :s] = self.butcher.A
        for i, row in enumerate(dense.stages):
            A[s + i, : s + i] = row
        R = np.array(dense.correction).T if dense.correction else np.zeros((0, n))
        return Continuous(A, butcher(A, A[-1]).c, R, s - 1 if self.is_fsal else s, dense.order)


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class LowStorageRK:
    """d <- A_i d + h f(t + c_i h, y);  y <- y + B_i d: two registers for any number of stages.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    A, B : tuple of float
        One coefficient for each stage.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.schemes.LowStorageRK("heun_2n", 2, (0.0, -1.0), (1.0, 0.5), "Williamson (1980)").order
    2
    """

    name: str
    order: int
    A: tuple[float, ...]
    B: tuple[float, ...]
    reference: str

    def __post_init__(self) -> None:
        freeze(self, A=floats("A", self.A), B=floats("B", self.B))
        if not self.A:
            raise SchemeError(f"{self.name}: `A` and `B` must not be empty")
        if len(self.A) != len(self.B):
            raise SchemeError(f"{self.name}: `A` and `B` must be equally long, found {len(self.A)} and {len(self.B)}")
        if self.A[0] != 0.0:
            raise SchemeError(
                f"{self.name}: `A[0]` must be 0, because nothing is stored before the first stage; found {self.A[0]}"
            )
        require_finite(self.name, A=self.A, B=self.B)
        require_order(self.name, "B", Conditions(self.butcher.A), self.butcher.b, self.order)

    @cached_property
    def butcher(self) -> Butcher:
        """The equivalent Butcher tableau."""
        s = len(self.B)
        rows, d = np.zeros((s + 1, s)), np.zeros(s)
        for i in range(s):
            d = self.A[i] * d + np.eye(s)[i]
            rows[i + 1] = rows[i] + self.B[i] * d
        return butcher(rows[:-1], rows[-1])


@check(name=text, order=AN_ORDER)
@dataclass(frozen=True)
class StabilisedRK:
    """Y_j = (1 - mu_j - nu_j) y + mu_j Y_{j-1} + nu_j Y_{j-2} + mu~_j h F_{j-1} + gamma~_j h F_0, Y_1 = y + mu~_1 h F_0

    Orthogonal polynomials make the real stability interval grow like the square of the number of stages.  Entry
    j - 1 of each tuple belongs to stage j.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    mu, nu, mu_tilde, gamma_tilde : tuple of float
        One coefficient for each stage.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> len(sn.schemes.rkc2(10).mu)
    10
    """

    name: str
    order: int
    mu: tuple[float, ...]
    nu: tuple[float, ...]
    mu_tilde: tuple[float, ...]
    gamma_tilde: tuple[float, ...]
    reference: str

    def __post_init__(self) -> None:
        names = ("mu", "nu", "mu_tilde", "gamma_tilde")
        freeze(self, **{name: floats(name, getattr(self, name)) for name in names})
        lengths = {len(self.mu), len(self.nu), len(self.mu_tilde), len(self.gamma_tilde)}
        if len(lengths) != 1 or lengths == {0}:
            raise SchemeError(f"{self.name}: the four coefficient tuples must be equally long, found {sorted(lengths)}")
        require_finite(self.name, mu=self.mu, nu=self.nu, mu_tilde=self.mu_tilde, gamma_tilde=self.gamma_tilde)
        require_order(self.name, "recursion", Conditions(self.butcher.A), self.butcher.b, self.order, self.rounding)

    @property
    def rounding(self) -> float:
        """Relative defect that counts as zero: the recursion amplifies the rounding of its coefficients."""
        return TOLERANCE * len(self.mu)

    @cached_property
    def butcher(self) -> Butcher:
        """The equivalent Butcher tableau."""
        s = len(self.mu)
        F, rows = np.eye(s), np.zeros((s + 1, s))
        rows[1] = self.mu_tilde[0] * F[0]
        for j in range(2, s + 1):
            mu, nu = self.mu[j - 1], self.nu[j - 1]
            rows[j] = (
                mu * rows[j - 1] + nu * rows[j - 2] + self.mu_tilde[j - 1] * F[j - 1] + self.gamma_tilde[j - 1] * F[0]
            )
        return butcher(rows[:-1], rows[-1])


def freeze(record: object, **values: Any) -> None:
    """Set the fields of a frozen record while it is being built."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def floats(name: str, values: Any) -> tuple[float, ...]:
    """Convert a sequence of coefficients to a tuple of floats."""
    return sequence(_coefficient)(name, values)


def _coefficient(name: str, value: Any) -> float:
    """Convert to a number; finiteness is checked later, with the name of the scheme in the error."""
    return float(value) if isinstance(value, (float, np.floating)) else validate_number(name, value, "[-inf, inf]")


def butcher(A: np.ndarray, b: np.ndarray) -> Butcher:
    """Build a read-only tableau whose nodes are the row sums.

    A node that is 1 up to rounding is set to 1, so that no stage evaluates the right-hand side beyond the end of the
    step.
    """
    c = A.sum(axis=1)
    c[np.abs(c - 1) < 1e-13] = 1.0
    table = Butcher(A, b, c)
    for array in table:
        array.flags.writeable = False
    return table


def require_finite(name: str, **coefficients: Any) -> None:
    """Refuse a record with a NaN or an infinity among its numbers."""
    for label, values in coefficients.items():
        for i, value in enumerate(values):
            if not isfinite(value):
                raise SchemeError(f"{name}: `{label}` must be finite, but entry {i} is {value}")


def require_order(
    name: str, label: str, conditions: Conditions, b: np.ndarray, order: int, tolerance: float = TOLERANCE
) -> None:
    """Refuse weights that violate an order condition up to their declared order."""
    if order < 1:
        raise SchemeError(f"{name}: the order of `{label}` must be at least 1, found {order}")
    if order > HIGHEST:
        raise SchemeError(f"{name}: orders are checked up to {HIGHEST}, so `{label}` cannot promise {order}")
    for p in range(1, order + 1):
        defect = runge_kutta_defect(conditions, b, p)
        if not defect <= tolerance:
            raise SchemeError(
                f"{name}: `{label}` promises order {order}, but a condition of order {p} is missed by {defect:.1e} "
                f"(relative; up to {tolerance:.0e} is rounding)"
            )


def dense_basis(theta: Any, n_corrections: int) -> list[Any]:
    """The basis polynomials of B(theta): Hermite's, and theta^2 (1 - theta)^2 (theta - 1/2)^m."""
    rest = 1 - theta
    bump = theta**2 * rest**2
    corrections = [bump * (theta - 0.5) ** m for m in range(n_corrections)]
    return [theta**2 * (3 - 2 * theta), theta * rest**2, -(theta**2) * rest, *corrections]


def dense_matrix(scheme: ExplicitRK) -> np.ndarray:
    """G in B(theta) = basis(theta) G, over all stages, extra ones included."""
    extension = scheme.continuous
    hermite = np.zeros((3, len(extension.c)))
    hermite[0, : len(scheme.b)] = scheme.b
    hermite[1, 0] = hermite[2, extension.new] = 1.0
    return np.vstack((hermite, extension.R))


def dense_weights(scheme: ExplicitRK, theta: float) -> np.ndarray:
    """B(theta) in y(t + theta h) = y + h sum_i B_i(theta) k_i, over all stages, extra ones included."""
    return np.array(dense_basis(theta, len(scheme.continuous.R))) @ dense_matrix(scheme)


def require_dense_shape(name: str, s: int, dense: Dense) -> None:
    """Refuse a continuous extension whose rows do not match the `s` stages of the scheme."""
    n = s + len(dense.stages)
    lengths = [len(row) for row in dense.stages]
    if lengths != list(range(s, n)):
        raise SchemeError(f"{name}: `dense` stages must have {s}, {s + 1}, ... entries, found {lengths}")
    widths = sorted({len(row) for row in dense.correction})
    if len(dense.correction) not in (0, n) or len(widths) > 1:
        raise SchemeError(
            f"{name}: `dense` correction must have {n} equally long rows, one for every stage, found "
            f"{len(dense.correction)} of length {widths}"
        )


def require_dense_order(scheme: ExplicitRK) -> None:
    """Refuse a continuous extension that violates sum_i B_i(theta) Phi_i(tree) = theta^|tree| / gamma(tree)."""
    extension = scheme.continuous
    conditions = Conditions(extension.A)
    for theta in (0.3, 0.5, 0.8):
        B = dense_weights(scheme, theta)
        for p in range(1, min(extension.order, HIGHEST) + 1):
            defect = conditions.defect(B, p, scale=theta**p)
            if not defect <= DENSE_TOLERANCE:
                raise SchemeError(
                    f"{scheme.name}: `dense` promises order {extension.order}, but a condition of order {p} is missed "
                    f"by {defect:.1e} at theta = {theta}"
                )
