"""FeynmanKacRegressor."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.estimators.path_estimator import PathEstimator
from stepnet.estimators.regressor import NetRegressor
from stepnet.records import explain_arguments, validate_flag


@explain_arguments()
class FeynmanKacRegressor(PathEstimator, NetRegressor):
    """A network with noise after each layer; predictions are expectations over Brownian paths, with intervals.

    The prediction for an input with the first state x is u(x, 0) = E[r(y_T) | y_0 = x] for dy = F(t, y) dt + g dW, with
    r what the readout predicts.  Without noise it is a `NetRegressor`.

    Parameters
    ----------
    net, width, steps, length, scheme, activation, options
        As in `NetClassifier`; by default a "resnet".
    diffusion, learn_diffusion, train_paths, levels, confidence
        As in `FeynmanKacClassifier`.
    paths : int
        Paths of each sample in a prediction, at least 2.
    error : float, optional
        A target for the standard errors of predictions, in the units of the targets; at most 2^20 paths of a sample.
    loss : str or Loss
        As in `NetRegressor`.
    penalty, alpha, smoothness, optimiser, rate, epochs, batch_size, clip, patience
        As in `NetClassifier`.
    validation_fraction, scale, random_state, workers, progress
        As in `NetClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.estimators import FeynmanKacRegressor
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> model = FeynmanKacRegressor(width=4, steps=3, epochs=20, random_state=0).fit(X, X[:, 0] ** 2)
    >>> mean, lower, upper = model.predict(X, return_interval=True)
    >>> bool((lower < mean).all() and (mean < upper).all())
    True
    """

    def __init__(
        self,
        net: Any = "resnet",
        *,
        width: int = 16,
        steps: int = 8,
        length: float = 2.0,
        scheme: Any = None,
        activation: Any = "tanh",
        options: dict[str, Any] | None = None,
        diffusion: float | None = 0.2,
        learn_diffusion: Any = False,
        train_paths: int = 1,
        paths: int = 64,
        error: float | None = None,
        levels: int = 1,
        confidence: float = 0.95,
        loss: Any = None,
        penalty: str = "l2",
        alpha: float = 1e-4,
        smoothness: float = 0.0,
        optimiser: Any = "adam",
        rate: Any = None,
        epochs: int = 100,
        batch_size: int | None = 32,
        clip: Any = None,
        patience: int | None = None,
        validation_fraction: float | None = None,
        scale: Any = True,
        random_state: Any = None,
        workers: int | None = 1,
        progress: Any = False,
    ) -> None:
        super().__init__(
            net, width=width, steps=steps, length=length, scheme=scheme, activation=activation, options=options,
            loss=loss, penalty=penalty, alpha=alpha, smoothness=smoothness, optimiser=optimiser, rate=rate,
            epochs=epochs, batch_size=batch_size, clip=clip, patience=patience,
            validation_fraction=validation_fraction, scale=scale, random_state=random_state, workers=workers,
            progress=progress,
        )  # fmt: skip
        self.diffusion = diffusion
        self.learn_diffusion = learn_diffusion
        self.train_paths = train_paths
        self.paths = paths
        self.error = error
        self.levels = levels
        self.confidence = confidence

    def predict(self, X: Any, return_interval: Any = False) -> Any:
        """Predict the targets of samples: means over paths.

        With `return_interval` also the lower and upper ends of their confidence intervals, each of the shape of the
        predictions.
        """
        is_wanted = validate_flag("return_interval", return_interval)
        found, confidence = self._average(X)
        margin = found.find_margin(confidence)
        ends = (found.mean, found.mean - margin, found.mean + margin)
        mean, lower, upper = (each[:, 0] if self.is_flat_ else each for each in ends)
        return (mean, lower, upper) if is_wanted else mean

    def _read(self, outputs: np.ndarray) -> np.ndarray:
        return self.meaning_.predict(outputs) * self.y_factor_ + self.y_shift_
