"""NetRegressor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from stepnet.estimators import sample_weights, scaling
from stepnet.estimators.net_estimator import FitData, NetEstimator, validate_samples
from stepnet.nets.losses.entropy import SUMS_TO_ONE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class NetRegressor(MultiOutputMixin, RegressorMixin, NetEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network for regression; parameters as in `NetClassifier`, with "mse" as the default loss.

    Real targets are standardised like inputs if `scale` is true.  Counts ("poisson"), fractions ("binary_...") and
    probabilities ("kl", "cross_entropy", "focal": rows of `y` that sum to one) are not; what outputs predict, such as a
    rate or a mean, follows from the loss.

    Parameters
    ----------
    net, width, steps, length, scheme, activation, options
        As in `NetClassifier`.
    loss
        By default "mse".
    penalty, alpha, smoothness, optimiser, rate, epochs, batch_size, clip, patience
        As in `NetClassifier`.
    validation_fraction, scale, random_state, workers, progress
        As in `NetClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.estimators import NetRegressor
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> NetRegressor(width=4, steps=3, epochs=20, random_state=0).fit(X, X[:, 0] ** 2).predict(X).shape
    (50,)
    """

    NUMBERS = (*NetEstimator.NUMBERS, "y_shift_", "y_factor_")

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, path: Any = None, resume: bool = False
    ) -> Self:
        """Train a new net on samples (n, features) and targets (n,) or (n, outputs); the rest as in `NetClassifier`."""
        with self._restore_after_failure():
            X, y = validate_samples(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
            self.is_flat_ = y.ndim == 1
            targets = np.asarray(y, float).reshape(len(y), -1)
            fit_data = self._build_fit_data(X, targets, sample_weights.weigh_samples(sample_weight, len(X)))
            return self._learn(fit_data, path, resume)

    def _build_fit_data(self, X: np.ndarray, y: np.ndarray, each: np.ndarray) -> FitData:
        """The samples with nonzero weight, with targets in the form the loss takes."""
        loss, counted = self._loss("mse"), each > 0
        _require(y, loss)
        X, y, each = X[counted], y[counted], each[counted]
        is_real, meaning = loss.meaning.targets == "real numbers", loss.meaning
        self.y_shift_, self.y_factor_ = self._scaling(y, each) if is_real else scaling.none(y.shape[1])
        targets, outputs = (y - self.y_shift_) / self.y_factor_, y.shape[1] * meaning.each
        return FitData(X, self._scaling(X, each), targets, outputs, loss, sample_weights.drop_trivial(each))

    def predict(self, X: Any) -> np.ndarray:
        """Predict the targets of samples."""
        outputs = self.outputs(X)
        found = self.meaning_.predict(outputs) * self.y_factor_ + self.y_shift_
        return found[:, 0] if self.is_flat_ else found

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"is_flat": self.is_flat_}

    def _restore(self, header: dict[str, Any]) -> None:
        super()._restore(header)
        self.is_flat_ = bool(header["is_flat"])


def _require(y: np.ndarray, loss: Any) -> None:
    """Refuse targets that the loss cannot take."""
    kind = loss.meaning.targets
    if kind == "counts" and (y < 0).any():
        raise ValueError(f"`y` must not be negative for the loss {loss!r}, found {y.min():g}")
    if kind == "answers" and not ((y >= 0) & (y <= 1)).all():
        raise ValueError(f"`y` must be between 0 and 1 for the loss {loss!r}, found {y.min():g} to {y.max():g}")
    if kind in ("classes", "probabilities"):
        sums = y.sum(axis=1)
        if y.shape[1] < 2 or (y < 0).any() or not np.allclose(sums, 1, rtol=0, atol=SUMS_TO_ONE):
            raise ValueError(
                f"`y` must be probabilities (n, classes) whose rows sum to one for the loss {loss!r}, found shape "
                f"{y.shape} and sums from {sums.min():g} to {sums.max():g}; classes are for NetClassifier"
            )
