"""The part shared by estimators whose predictions are expectations over Brownian paths."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.estimators import build_net
from stepnet.estimators.depth_levels import average_over_levels, build_levels
from stepnet.estimators.net_estimator import NetEstimator
from stepnet.estimators.path_means import MOST_PATHS, PathMeans, average_over_paths
from stepnet.nets import Net, SampleNoise
from stepnet.nets.sample_noise import hash_samples
from stepnet.records import validate_count, validate_flag, validate_number, validate_seed
from stepnet.training import Objective

OTHER_SEED = 2**32  # added to the seed of training: predictions use other paths
FEWEST = 2  # paths, for a standard error
MOST_LEVELS = 16


class PathEstimator(NetEstimator):
    """Nets with noise: training on expected losses, means over paths; see `FeynmanKacClassifier`."""

    # ---- training ---------------------------------------------------------------------------------------------------

    def _build_net(self, inputs: int, outputs: int, seed: int) -> Net:
        is_learned = validate_flag("learn_diffusion", self.learn_diffusion)
        net = super()._build_net(inputs, outputs, seed)
        if self.diffusion is not None:
            return build_net.add_diffusion(net, validate_number("diffusion", self.diffusion, "[0, inf)"), is_learned)
        if is_learned or not net.has_noise:
            raise ValueError("`diffusion` must be a number, unless `net` already has noise and none is learned")
        return net

    def _build_objective(self, loss: Any, seed: int) -> Objective:
        self._find_sampling()  # settings of predictions are refused before training
        if (number := self._find_levels()) > 1:
            build_levels(self.net_, number, self._read)
        self.noise_seed_ = seed + OTHER_SEED
        paths = validate_count("train_paths", self.train_paths, 1, MOST_PATHS)
        return Objective(self.net_, loss, self._penalty(), self.smoothness, paths, SampleNoise(seed))

    def _find_levels(self) -> int:
        return validate_count("levels", self.levels, 1, MOST_LEVELS)

    def _find_sampling(self) -> tuple[int, float | None, float]:
        """The settings `paths`, `error` and `confidence`."""
        paths = validate_count("paths", self.paths, FEWEST, MOST_PATHS)
        confidence = validate_number("confidence", self.confidence, "(0, 1)")
        error = None if self.error is None else validate_number("error", self.error, "[1e-100, inf)")
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

    def _draw(self, X: Any, path: int = 0) -> tuple[np.ndarray, SampleNoise]:
        """Scaled samples and their noise; keys are those of the unscaled samples, as in training."""
        X = self._validate_samples(X)
        return self._scale(X), SampleNoise(self.noise_seed_, hash_samples(X), path)

    def _read(self, outputs: np.ndarray) -> np.ndarray:
        """What is averaged over paths, (n, columns), as a function of the outputs of the net."""
        raise NotImplementedError

    def _average(self, X: Any) -> tuple[PathMeans, float]:
        """Means over paths, and the confidence of their intervals."""
        scaled, noise = self._draw(X)
        paths, error, confidence = self._find_sampling()
        number = self._find_levels()
        if number > 1 and self.net_.has_noise:
            levels = build_levels(self.net_, number, self._read)
            return average_over_levels(levels, scaled, noise, paths, error), confidence
        evaluate = lambda x, noise: self._read(self.net_(x, noise=noise))
        paths = paths if self.net_.has_noise else FEWEST  # all paths are equal
        return average_over_paths(evaluate, scaled, noise, paths, error), confidence

    # ---- files ------------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"noise_seed": self.noise_seed_}

    def _restore(self, header: dict[str, Any]) -> None:
        super()._restore(header)
        self.noise_seed_ = validate_seed(header["noise_seed"])
