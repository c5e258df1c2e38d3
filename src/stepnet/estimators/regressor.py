"""NetRegressor."""

from __future__ import annotations

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data

from stepnet.estimators import scaling
from stepnet.estimators.base import NetEstimator


class NetRegressor(MultiOutputMixin, RegressorMixin, NetEstimator):
    """A network for regression; parameters as in `NetClassifier`, with "mse" as the loss if it is left out.

    Targets are shifted and scaled like inputs if `scale` is true.
    """

    NUMBERS = (*NetEstimator.NUMBERS, "y_shift_", "y_factor_")

    def fit(self, X, y, *, path=None, resume=False):
        """Train a new net on samples (n, features) and targets (n,) or (n, outputs); the rest as in `NetClassifier`."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.is_flat_ = y.ndim == 1
        targets = np.asarray(y, float).reshape(len(y), -1)
        self.y_shift_, self.y_factor_ = scaling.standard(targets) if self.scale else scaling.none(targets.shape[1])
        scaled = (targets - self.y_shift_) / self.y_factor_
        loss = "mse" if self.loss is None else self.loss
        return self._fitted(X, scaled, targets.shape[1], loss, path, resume)

    def predict(self, X) -> np.ndarray:
        """Targets of samples."""
        found = self.outputs(X) * self.y_factor_ + self.y_shift_
        return found[:, 0] if self.is_flat_ else found

    def _facts(self) -> dict:
        return super()._facts() | {"is_flat": self.is_flat_}

    def _tell(self, told: dict) -> None:
        self.is_flat_ = told["is_flat"]
