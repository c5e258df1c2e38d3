"""FeynmanKacClassifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.estimators.classifier import NetClassifier
from stepnet.estimators.path_estimator import PathEstimator
from stepnet.estimators.path_means import MOST_PATHS
from stepnet.records import explain_arguments, validate_flag


@explain_arguments()
class FeynmanKacClassifier(PathEstimator, NetClassifier):
    """A network with noise after each layer; probabilities are expectations over Brownian paths.

    The states follow dy = F(t, y) dt + g dW from the opening layer on, and the probabilities of an input with the first
    state x are u(x, 0) = E[p(y_T) | y_0 = x], with p those of the readout.  By the formula of Feynman and Kac u solves
    the backward equation u_t + F . grad u + 1/2 g g' : hess u = 0 with u(y, T) = p(y).  Without noise it is a
    `NetClassifier`.  Training minimises the expected loss, with new paths in every epoch.

    Parameters
    ----------
    net : str, Field, Net or callable
        As in `NetClassifier`, by default "resnet"; its scheme must be a one-step scheme.
    width, steps, length, scheme, activation, options
        As in `NetClassifier`.
    diffusion : float or None
        The noise level g: the standard deviation of the noise over unit time.  None for a net that has its own
        diffusion.
    learn_diffusion : bool
        Whether each channel and step has its own noise level, which is learned, starting from `diffusion`.
    train_paths : int
        Paths of each sample in one step of training.
    paths : int
        Paths of each sample in a prediction, at least 2.
    error : float, optional
        A target for the standard errors of the probabilities: samples that need more than `paths` paths get more.
    levels : int
        Levels of depth for multilevel Monte Carlo, 1 for none: paths of the net with 2, 4, ... times fewer, longer
        steps replace most paths of the net itself.  They reach `error`, or about the standard errors of
        `paths` paths of the net, at a fraction of the cost.  Steps must be a multiple of 2^(levels - 1).
    confidence : float
        Probability with which an interval contains the expectation.
    loss : str or Loss
        As in `NetClassifier`; it must define probabilities.
    penalty, alpha, smoothness, optimiser, rate, epochs, batch_size, clip, patience
        As in `NetClassifier`.  Full-batch methods use the same paths in all iterations.
    validation_fraction, scale, random_state, workers, progress, class_weight
        As in `NetClassifier`.  `random_state` is also the seed of the paths.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from stepnet.estimators import FeynmanKacClassifier
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = FeynmanKacClassifier(width=4, steps=3, epochs=20, diffusion=0.3, random_state=0).fit(X, y)
    >>> probability, lower, upper = model.predict_proba(X, return_interval=True)
    >>> bool((lower <= probability).all() and (probability <= upper).all())
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
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            net, width=width, steps=steps, length=length, scheme=scheme, activation=activation, options=options,
            loss=loss, penalty=penalty, alpha=alpha, smoothness=smoothness, optimiser=optimiser, rate=rate,
            epochs=epochs, batch_size=batch_size, clip=clip, patience=patience,
            validation_fraction=validation_fraction, scale=scale, random_state=random_state, workers=workers,
            progress=progress, class_weight=class_weight,
        )  # fmt: skip
        self.diffusion = diffusion
        self.learn_diffusion = learn_diffusion
        self.train_paths = train_paths
        self.paths = paths
        self.error = error
        self.levels = levels
        self.confidence = confidence

    # ---- training ---------------------------------------------------------------------------------------------------

    def _loss(self, default: str) -> Any:
        loss = super()._loss(default)
        if not loss.meaning.has_probabilities:
            raise ValueError(f"`loss` must define probabilities, such as 'cross_entropy', found {loss!r}")
        return loss

    def _find_sampling(self) -> tuple[int, float | None, float]:
        """The settings `paths`, `error` and `confidence`."""
        paths, error, confidence = super()._find_sampling()
        most = 0.0 if error is None else 0.25 / error**2  # the variance of a number between 0 and 1 is at most 1/4
        if most > MOST_PATHS:
            raise ValueError(
                f"`error` = {error:g} may take {most:.2g} paths of a sample, more than {MOST_PATHS}; "
                f"it must be at least {0.5 / MOST_PATHS**0.5:.2g}"
            )
        return paths, error, confidence

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes); for two classes their difference (n,)."""
        found = self.predict_proba(X)
        return found if len(self.classes_) > 2 else found[:, 1] - found[:, 0]

    def predict_proba(self, X: Any, return_interval: bool = False) -> Any:
        """Probabilities (n, classes): means over paths.

        With `return_interval` also the lower and upper ends of their confidence intervals, (n, classes) each: the mean
        and its standard error, with a quantile of Student's distribution.
        """
        is_wanted = validate_flag("return_interval", return_interval)
        found, confidence = self._average(X)
        mean = found.mean
        if self.levels > 1:  # sums of differences may leave the interval [0, 1] within their errors
            mean = np.clip(mean, 0.0, 1.0)
            mean = mean / mean.sum(axis=1, keepdims=True)
        if not is_wanted:
            return mean
        margin = found.find_margin(confidence)
        return mean, np.maximum(mean - margin, 0.0), np.minimum(mean + margin, 1.0)

    def predict(self, X: Any, abstain: bool = False) -> np.ndarray:
        """The class with the largest probability for each sample.

        With `abstain` the labels are objects, and None where the confidence interval of the largest probability
        overlaps that of another class.
        """
        if not validate_flag("abstain", abstain):
            leader = np.argmax(self.predict_proba(X), axis=1)
            return self.classes_[leader]
        found, lower, upper = self.predict_proba(X, return_interval=True)
        leader = np.argmax(found, axis=1)
        labels, rows = self.classes_[leader].astype(object), np.arange(len(found))
        upper[rows, leader] = -np.inf
        labels[~(lower[rows, leader] > upper.max(axis=1))] = None
        return labels

    def _read(self, outputs: np.ndarray) -> np.ndarray:
        return self._find_probabilities(outputs)
