"""A linear read-out that is always the best one for the features before it: it can be left out of the parameters.

phi(F) = min_W loss([F 1] W, y) + ridge / 2 |W|^2 is a loss of the features F, with value, gradient and Hessian product
like any other, so every optimiser can minimise it over the parameters of F alone.  Golub & Pereyra (1973), SIAM J.
Numer. Anal. 10:413; for other convex losses Newman, Ruthotto, Hart & van Bloemen Waanders (2021), arXiv:2007.13171.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepnet.nets import losses
from stepnet.nets.losses import Expansion
from stepnet.records import keep, keep_numbers, validate_count
from stepnet.validation import array

NEWTON_STEPS = 50
FLAT = 1e-11  # of the first gradient, at which the best read-out is found
DESCENT = 1e-4


class BestReadout(NamedTuple):
    """The best read-out W, (features + 1, outputs), the loss near its outputs, and solves with its Hessian."""

    W: np.ndarray
    loss: Expansion
    solve: Any


@dataclass(frozen=True)
class Projected:
    """The least value of a loss over all linear read-outs with bias, as a loss of features (batch, features).

    Parameters
    ----------
    loss : Loss or str
        A convex and smooth one, such as "mse" or "cross_entropy".
    outputs : int
        How many outputs the read-out has: classes, or targets.
    ridge : float
        Keeps the read-out finite, where classes can be separated, and unique.
    """

    loss: Any
    outputs: int
    ridge: float = 1e-6
    hits = None

    def __post_init__(self):
        loss = losses.get(self.loss) if isinstance(self.loss, str) else self.loss
        if not isinstance(loss, losses.Loss):
            raise TypeError(f"`loss` must be a Loss or its name, found {loss!r:.80} ({type(loss).__name__})")
        if not loss.convex or loss.name in ("mae", "quantile"):
            raise ValueError(f"`loss` must be convex and smooth for a best read-out to be found, found {loss!r}")
        keep(self, loss=loss, outputs=validate_count("outputs", self.outputs, 1))
        keep_numbers(self, ridge="(0, inf)")

    def readout(self, features, targets, weights=None) -> np.ndarray:
        """The best W, (features + 1, outputs): outputs are features @ W[:-1] + W[-1]."""
        return self._best(_append_ones(features), targets, weights).W

    def at(self, features, targets, weights=None) -> Expansion:
        """Value, gradient and Hessian product by the features; the read-out moves with them."""
        dtype = np.asarray(features).dtype
        F = _append_ones(features)
        W, loss, solve = self._best(F, targets, weights)
        G, inner = loss.gradient, W[:-1].T

        def product(v):
            """F changes by v, W by W_dot so that F' G + ridge W stays zero."""
            v = np.asarray(v, np.float64)
            turned = loss.product(v @ W[:-1])
            right = F.T @ turned
            right[:-1] += v.T @ G
            W_dot = -solve(right)
            return ((turned + loss.product(F @ W_dot)) @ inner + G @ W_dot[:-1].T).astype(dtype, copy=False)

        value = loss.value + 0.5 * self.ridge * float(np.vdot(W, W))
        return Expansion(value, lambda: (G @ inner).astype(dtype, copy=False), product)

    def _best(self, F: np.ndarray, targets, weights) -> BestReadout:
        """Newton's method with halved steps: one step for least squares."""
        W = np.zeros((F.shape[1], self.outputs))
        here = self._ridged(F, W, targets, weights)
        first = np.linalg.norm(here.gradient)
        for _ in range(NEWTON_STEPS):
            solve = self._solver(F, here.loss)
            if np.linalg.norm(here.gradient) <= FLAT * first:
                return BestReadout(W, here.loss, solve)
            direction, length = -solve(here.gradient), 1.0
            slope = float(np.vdot(here.gradient, direction))
            while True:
                new = self._ridged(F, W + length * direction, targets, weights)
                if new.value <= here.value + DESCENT * length * slope or length * abs(slope) <= 1e-15 * abs(here.value):
                    break
                length /= 2
            W, here = W + length * direction, new
        found = np.linalg.norm(here.gradient)
        raise ValueError(
            f"the best read-out of {self.loss!r} was not found in {NEWTON_STEPS} steps: its gradient fell from "
            f"{first:.2g} to {found:.2g} only; scale the features, or use a larger `ridge` than {self.ridge:g}"
        )

    def _ridged(self, F: np.ndarray, W: np.ndarray, targets, weights) -> _RidgeObjective:
        loss = self.loss.at(F @ W, targets, weights)
        value = loss.value + 0.5 * self.ridge * float(np.vdot(W, W))
        return _RidgeObjective(value, F.T @ loss.gradient + self.ridge * W, loss)

    def _solver(self, F: np.ndarray, loss: Expansion):
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
    """The objective of a read-out: value, gradient, and the loss near its outputs."""

    value: float
    gradient: np.ndarray
    loss: Expansion


def _append_ones(features) -> np.ndarray:
    F = array(dtype=np.float64)("features", features)
    if F.ndim != 2 or 0 in F.shape:
        raise ValueError(f"`features` must be an array (batch, features), found shape {F.shape}")
    return np.hstack((F, np.ones((len(F), 1))))
