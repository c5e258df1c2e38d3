"""FeynmanKacClassifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.estimators import build_net
from stepnet.estimators.classifier import NetClassifier
from stepnet.estimators.path_means import MOST_PATHS, PathMeans, average_over_paths
from stepnet.nets import Net, SampleNoise
from stepnet.nets.sample_noise import hash_samples
from stepnet.records import explain_arguments, validate_count, validate_flag, validate_number, validate_seed
from stepnet.training import Objective

OTHER_SEED = 2**32  # added to the seed of training: predictions see other paths
FEWEST = 2  # paths, for a standard error


@explain_arguments()
class FeynmanKacClassifier(NetClassifier):
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
        Whether each channel and step has its own noise level, which is learned from `diffusion` on.
    train_paths : int
        Paths of each sample in one step of training.
    paths : int
        Paths of each sample in a prediction, at least 2.
    error : float, optional
        A target for the standard errors of the probabilities: samples that need more than `paths` for it get more.
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
        self.confidence = confidence

    # ---- training ---------------------------------------------------------------------------------------------------

    def _loss(self, default: str) -> Any:
        loss = super()._loss(default)
        if not loss.meaning.has_probabilities:
            raise ValueError(f"`loss` must define probabilities, such as 'cross_entropy', found {loss!r}")
        return loss

    def _build_net(self, inputs: int, outputs: int, seed: int) -> Net:
        is_learned = validate_flag("learn_diffusion", self.learn_diffusion)
        net = super()._build_net(inputs, outputs, seed)
        if self.diffusion is not None:
            return build_net.add_diffusion(net, validate_number("diffusion", self.diffusion, "[0, inf)"), is_learned)
        if is_learned or not net.has_noise:
            raise ValueError("`diffusion` must be a number, unless `net` has noise of its own and none is learned")
        return net

    def _build_objective(self, loss: Any, seed: int) -> Objective:
        self._find_sampling()  # settings of predictions are refused before training
        self.noise_seed_ = seed + OTHER_SEED
        paths = validate_count("train_paths", self.train_paths, 1, MOST_PATHS)
        return Objective(self.net_, loss, self._penalty(), self.smoothness, paths, SampleNoise(seed))

    def _find_sampling(self) -> tuple[int, float | None, float]:
        """The settings `paths`, `error` and `confidence`."""
        paths = validate_count("paths", self.paths, FEWEST, MOST_PATHS)
        confidence = validate_number("confidence", self.confidence, "(0, 1)")
        if self.error is None:
            return paths, None, confidence
        error = validate_number("error", self.error, "(0, inf)")
        most = 0.25 / error**2  # the variance of a number between 0 and 1 is at most 1/4
        if most > MOST_PATHS:
            raise ValueError(
                f"`error` = {error:g} may take {most:.2g} paths of a sample, more than {MOST_PATHS}; "
                f"it must be at least {0.5 / MOST_PATHS**0.5:.2g}"
            )
        return paths, error, confidence

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def outputs(self, X: Any, path: int = 0) -> np.ndarray:
        """The outputs of the net for one path of each sample, (n, outputs)."""
        scaled, noise = self._draw(X, path)
        return self.net_(scaled, noise=noise)

    def features(self, X: Any, block: int = 0, path: int = 0) -> np.ndarray:
        """States (depths, n, width) inside a block of the net, for one path of each sample."""
        scaled, noise = self._draw(X, path)
        return self.net_.features(scaled, block, noise=noise)

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
        if not is_wanted:
            return found.mean
        margin = found.find_margin(confidence)
        return found.mean, np.maximum(found.mean - margin, 0.0), np.minimum(found.mean + margin, 1.0)

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

    def _draw(self, X: Any, path: int = 0) -> tuple[np.ndarray, SampleNoise]:
        """Scaled samples and their noise; keys are those of the samples as they are, as in training."""
        X = self._validated(X)
        return self._scaled(X), SampleNoise(self.noise_seed_, hash_samples(X), path)

    def _average(self, X: Any) -> tuple[PathMeans, float]:
        """Mean probabilities, and the confidence of their intervals."""
        scaled, noise = self._draw(X)
        paths, error, confidence = self._find_sampling()
        evaluate = lambda x, noise: self._find_probabilities(self.net_(x, noise=noise))
        paths = paths if self.net_.has_noise else FEWEST  # all paths are equal
        return average_over_paths(evaluate, scaled, noise, paths, error), confidence

    # ---- files ------------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"noise_seed": self.noise_seed_}

    def _restore(self, header: dict[str, Any]) -> None:
        super()._restore(header)
        self.noise_seed_ = validate_seed(header["noise_seed"])
