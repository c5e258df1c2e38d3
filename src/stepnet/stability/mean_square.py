"""Mean-square stability of stochastic schemes: where E y^2 does not grow on dy = lambda y dt + mu y dW."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.records import show_fields
from stepnet.schemes.capabilities import find_noise_refusal, is_stochastic
from stepnet.schemes.step_program import (
    DIFFUSION,
    DRIFT,
    ELEMENTWISE,
    Noise,
    Product,
    Slope,
    Solve,
    StepProgram,
    Sum,
    Tamed,
    build_stochastic_program,
)
from stepnet.stability.arguments import any_scheme, grid_axis
from stepnet.validation import check, instance, text

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NODES = 10  # of a Gauss-Hermite rule: exact for the moments of dW up to 19, squares of steps have at most 8
SLACK = 1e-12


@check(name=text, calculus=text, drift=grid_axis, diffusion=grid_axis, growth=instance(np.ndarray))
@dataclass(frozen=True, repr=False, eq=False)
class MeanSquareRegion:
    """Growth of the second moment in a step on dy = lambda y dt + mu y dW, with real lambda and mu.

    Parameters
    ----------
    name, calculus : str
        The scheme, and the sense of the equation: "ito" or "stratonovich".
    drift : array
        The values of h lambda.
    diffusion : array
        The values of h mu^2.
    growth : array (len(diffusion), len(drift))
        The factor of E y^2 in a step; the spectral radius of the moments where the scheme has several rows.

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.stability.mean_square_region("milstein", drift=[-1.0], diffusion=[0.0, 0.5])
    >>> found.is_stable.ravel().tolist()
    [True, True]
    """

    name: str
    calculus: str
    drift: np.ndarray
    diffusion: np.ndarray
    growth: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.diffusion), len(self.drift))
        if self.growth.shape != shape:
            raise ValueError(f"`growth` must have the shape {shape}, found {self.growth.shape}")

    @property
    def is_stable(self) -> np.ndarray:
        """Where the second moment does not grow."""
        return self.growth <= 1 + SLACK

    @property
    def exact(self) -> np.ndarray:
        """Where the exact second moment does not grow: 2 lambda + mu^2 <= 0, or 2 lambda + 2 mu^2 <= 0."""
        factor = 1.0 if self.calculus == "ito" else 2.0
        return 2 * self.drift + factor * self.diffusion[:, None] <= 0

    def __repr__(self) -> str:
        return show_fields(self)


DRIFTS = tuple(np.linspace(-3.0, 0.5, 141))
DIFFUSIONS = tuple(np.linspace(0.0, 4.0, 161))


@check(scheme=any_scheme, drift=grid_axis, diffusion=grid_axis)
def mean_square_region(
    scheme: Any, *, drift: ArrayLike = DRIFTS, diffusion: ArrayLike = DIFFUSIONS
) -> MeanSquareRegion:  # fmt: skip
    """Compute where a stochastic scheme does not amplify E y^2 on dy = lambda y dt + mu y dW.

    The step program is evaluated on numbers, and the expectation over the variables of the step is exact: they are
    polynomials of normal variables, or have a few values.  Saito & Mitsui (1996), SIAM J. Numer. Anal. 33:2254.

    Parameters
    ----------
    scheme : str or scheme
        A stochastic scheme by name or record.
    drift : array_like, optional
        Values of h lambda, increasing.
    diffusion : array_like, optional
        Values of h mu^2, increasing and not negative.

    Returns
    -------
    MeanSquareRegion

    Raises
    ------
    TypeError
        If the scheme has no noise: its region is that of `region`.
    ValueError
        If the scheme admits additive noise only, or tames the drift, or `diffusion` is negative.

    Examples
    --------
    >>> import stepnet as sn
    >>> found = sn.stability.mean_square_region("euler_maruyama", drift=[-1.0], diffusion=[0.0, 0.5])
    >>> found.growth.ravel().round(12).tolist()  # (1 + h lambda)^2 + h mu^2
    [0.0, 0.5]
    """
    if not is_stochastic(scheme):
        raise TypeError(f"`scheme` must be a stochastic scheme, found {scheme.name}; use `stability.region`")
    refusal = find_noise_refusal(scheme, "scalar", scheme.calculus)
    if refusal is not None:
        raise ValueError(f"`scheme` must admit noise that depends on the state: {refusal}")
    drift, diffusion = np.asarray(drift, float), np.asarray(diffusion, float)
    if diffusion[0] < 0:
        raise ValueError(f"`diffusion` must not be negative, found {diffusion[0]:g}: its values are h mu^2")
    p, q = np.broadcast_arrays(drift, np.sqrt(diffusion)[:, None])
    program = build_stochastic_program(scheme, ELEMENTWISE).step
    if any(isinstance(operation, Tamed) for operation in program.operations):
        raise ValueError(f"`scheme` must have linear steps on linear equations, and {scheme.name} tames the drift")
    n = program.n_rows
    total = np.zeros((*p.shape, n * n, n * n))
    for weight, variables in _list_outcomes(set(scheme.variables)):
        M = _evaluate_step(program, p, q, variables)
        total = total + weight * np.einsum("...ij,...kl->...ikjl", M, M).reshape(*p.shape, n * n, n * n)
    growth = np.abs(np.linalg.eigvals(total)).max(axis=-1) if n > 1 else np.abs(total[..., 0, 0])
    return MeanSquareRegion(scheme.name, scheme.calculus, drift, diffusion, growth)


def _evaluate_step(program: StepProgram, p: np.ndarray, q: np.ndarray, variables: dict[str, float]) -> np.ndarray:
    """The matrix of a step with h = 1 on f = p y, g = q y, whose g'g is q^2 y, (..., rows, rows)."""
    rows: list[Any] = [np.broadcast_to(unit, (*p.shape, program.n_rows)) for unit in np.eye(program.n_rows)]
    factors = {DRIFT: p[..., None], DIFFUSION: q[..., None]}
    for operation in program.operations:
        if isinstance(operation, Slope):
            rows.append(factors.get(operation.part, q[..., None] ** 2) * rows[operation.row])
        elif isinstance(operation, Solve):
            rows.append(_solve_stages(operation, p)[..., None] * rows[operation.row])
        elif isinstance(operation, Sum):
            rows.append(sum(term.weight * rows[term.row] for term in operation.terms))
        elif isinstance(operation, Noise):
            rows.append(variables[operation.variable])
        elif isinstance(operation, Product):
            rows.append(rows[operation.noise] * rows[operation.diffusion])
    return np.stack([rows[output] for output in program.outputs], axis=-2)


def _solve_stages(operation: Solve, p: np.ndarray) -> np.ndarray:
    """The factor sum_i b_i K_i of implicit stages K = p (1 + A K)."""
    matrix = np.eye(len(operation.b)) - p[..., None, None] * np.array(operation.A)
    stages = np.linalg.solve(matrix, np.broadcast_to(p[..., None, None], (*matrix.shape[:-1], 1)))
    return stages[..., 0] @ np.array(operation.b)


def _list_outcomes(names: set[str]) -> Iterator[tuple[float, dict[str, float]]]:
    """Weights and values of the variables of a step with h = 1, for exact expectations of polynomials."""
    if names & {"V", "V2"}:  # 0 and +-sqrt(3)
        for V, weight in ((0.0, 2 / 3), (sqrt(3.0), 1 / 6), (-sqrt(3.0), 1 / 6)):
            yield weight, {"V": V, "V2": V * V - 1, "sqrt(h)": 1.0}
        return
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    others = zip(nodes, weights, strict=True) if "I10/h" in names else [(0.0, 1.0)]
    for U, other in list(others):
        for W, weight in zip(nodes, weights, strict=True):
            yield float(weight * other), {
                "W": W, "I10/h": 0.5 * (W + U / sqrt(3.0)), "I11/sqrt(h)": 0.5 * (W * W - 1),
                "I111/h": (W**3 - 3 * W) / 6, "sqrt(h)": 1.0, "I11": 0.5 * (W * W - 1), "J11": 0.5 * W * W,
            }  # fmt: skip
