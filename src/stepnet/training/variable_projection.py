"""Variable projection: a linear readout that is always optimal for its features is eliminated from the parameters.

phi(F) = min_W loss([F 1] W, y) + ridge / 2 |W|^2 is a loss of the features F with value, gradient and Hessian product,
so any optimiser can minimise it over the parameters of F alone.  Golub & Pereyra (1973), SIAM J.  Numer. Anal. 10:413;
for other convex losses Newman, Ruthotto, Hart & van Bloemen Waanders (2021), arXiv:2007.13171.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.nets import losses
from stepnet.nets.losses import Expansion
from stepnet.records import keep, keep_numbers, validate_count
from stepnet.validation import array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NEWTON_STEPS = 50
FLAT = 1e-11  # gradient, relative to the first one, at which the readout counts as optimal
DESCENT = 1e-4


class BestReadout(NamedTuple):
    """The optimal readout W (features + 1, outputs), the expansion of the loss there, and a solver with its Hessian."""

    W: np.ndarray
    loss: Expansion
    solve: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Projected:
    """The minimum of a loss over all linear readouts with bias, as a loss of features (batch, features).

    Parameters
    ----------
    loss : Loss or str
        A convex and smooth loss, such as "mse" or "cross_entropy".
    outputs : int
        Number of outputs of the readout: classes, or targets.
    ridge : float
        Regularisation that makes the readout unique, and finite where classes are separable.

    Examples
    --------
    >>> from stepnet import training
    >>> training.Projected("mse", outputs=2).outputs
    2
    """

    loss: Any
    outputs: int
    ridge: float = 1e-6
    hits = None

    def __post_init__(self) -> None:
        loss = losses.get(self.loss) if isinstance(self.loss, str) else self.loss
        if not isinstance(loss, losses.Loss):
            raise TypeError(f"`loss` must be a Loss or its name, found {loss!r:.80} ({type(loss).__name__})")
        if not loss.convex or loss.name in ("mae", "quantile"):
            raise ValueError(f"`loss` must be convex and smooth for the best readout to be found, found {loss!r}")
        keep(self, loss=loss, outputs=validate_count("outputs", self.outputs, 1))
        keep_numbers(self, ridge="(0, inf)")

    def readout(self, features: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> np.ndarray:
        """The optimal W (features + 1, outputs): outputs are features @ W[:-1] + W[-1]."""
        return self._find_best_readout(_append_ones(features), targets, weights).W

    def at(self, features: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> Expansion:
        """Value, gradient and Hessian product with respect to the features; the readout depends on them."""
        dtype = np.asarray(features).dtype
        F = _append_ones(features)
        W, loss, solve = self._find_best_readout(F, targets, weights)
        G, inner = loss.gradient, W[:-1].T

        def product(v: np.ndarray) -> np.ndarray:
            """If F changes by v, W changes by W_dot such that F' G + ridge W remains zero."""
            v = np.asarray(v, np.float64)
            turned = loss.product(v @ W[:-1])
            right = F.T @ turned
            right[:-1] += v.T @ G
            W_dot = -solve(right)
            return ((turned + loss.product(F @ W_dot)) @ inner + G @ W_dot[:-1].T).astype(dtype, copy=False)

        value = loss.value + 0.5 * self.ridge * float(np.vdot(W, W))
        return Expansion(value, lambda: (G @ inner).astype(dtype, copy=False), product)

    def _find_best_readout(self, F: np.ndarray, targets: ArrayLike, weights: ArrayLike | None) -> BestReadout:
        """Damped Newton iteration for the optimal readout: one step for least squares."""
        W = np.zeros((F.shape[1], self.outputs))
        here = self._add_ridge(F, W, targets, weights)
        first = np.linalg.norm(here.gradient)
        for _ in range(NEWTON_STEPS):
            solve = self._solver(F, here.loss)
            if np.linalg.norm(here.gradient) <= FLAT * first:
                return BestReadout(W, here.loss, solve)
            direction, length = -solve(here.gradient), 1.0
            slope = float(np.vdot(here.gradient, direction))
            while True:
                new = self._add_ridge(F, W + length * direction, targets, weights)
                if new.value <= here.value + DESCENT * length * slope or length * abs(slope) <= 1e-15 * abs(here.value):
                    break
                length /= 2
            W, here = W + length * direction, new
        found = np.linalg.norm(here.gradient)
        raise ValueError(
            f"the best readout of {self.loss!r} was not found in {NEWTON_STEPS} steps: its gradient fell from "
            f"{first:.2g} to {found:.2g} only; scale the features, or use a larger `ridge` than {self.ridge:g}"
        )

    def _add_ridge(
        self, F: np.ndarray, W: np.ndarray, targets: ArrayLike, weights: ArrayLike | None
    ) -> _RidgeObjective:
        loss = self.loss.at(F @ W, targets, weights)
        value = loss.value + 0.5 * self.ridge * float(np.vdot(W, W))
        return _RidgeObjective(value, F.T @ loss.gradient + self.ridge * W, loss)

    def _solver(self, F: np.ndarray, loss: Expansion) -> Callable[[np.ndarray], np.ndarray]:
        """Solves with F' H F + ridge; H is a matrix (outputs, outputs) for each sample."""
        from scipy.linalg import cho_factor, cho_solve

        n, k = F.shape[1], self.outputs
        A = np.empty((n, k, n, k))
        for c in range(k):
            unit = np.zeros((len(F), k))
            unit[:, c] = 1
            column = loss.product(unit)
            for d in range(k):
                A[:, d, :, c] = F.T @ (column[:, d, None] * F)
        matrix = A.reshape(n * k, n * k)
        matrix[np.diag_indices(n * k)] += self.ridge
        factor = cho_factor(matrix, lower=True, check_finite=False)
        return lambda right: cho_solve(factor, right.ravel(), check_finite=False).reshape(n, k)


class _RidgeObjective(NamedTuple):
    """The objective of a readout: value, gradient, and the expansion of the loss."""

    value: float
    gradient: np.ndarray
    loss: Expansion


def _append_ones(features: ArrayLike) -> np.ndarray:
    F = array(dtype=np.float64)("features", features)
    if F.ndim != 2 or 0 in F.shape:
        raise ValueError(f"`features` must be an array (batch, features), found shape {F.shape}")
    return np.hstack((F, np.ones((len(F), 1))))
