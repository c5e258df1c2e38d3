"""The part shared by the estimators: settings, training, files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from stepnet.estimators import build_net, files, scaling
from stepnet.estimators.datasets import hold_out
from stepnet.estimators.scaling import Scaling
from stepnet.estimators.settings import require_stored
from stepnet.nets import Net, losses, penalties
from stepnet.nets.losses import Meaning
from stepnet.nets.sample_noise import hash_samples
from stepnet.records import explain_arguments, validate_count, validate_number
from stepnet.training import METHODS, ClipNorm, ClipValue, Data, Method, Objective, Recipe, minimise, optimisers, train


class FitData(NamedTuple):
    """Training data: samples, targets in the form the loss takes, weights, and labels for stratified splits."""

    X: np.ndarray
    scaling: Scaling
    targets: np.ndarray
    outputs: int
    loss: Any
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None


def validate_samples(estimator: Any, X: Any, *y: Any, **how: Any) -> Any:
    """scikit-learn's `validate_data`, with the name of the argument added to its errors."""
    try:
        return validate_data(estimator, X, *y, **how)
    except (TypeError, ValueError, OverflowError) as error:
        if "`" in str(error) and "`X`" in str(error):
            raise
        kind = ValueError if isinstance(error, OverflowError) else type(error)
        names = "`X` and `y`" if y else "`X`"
        raise kind(f"{error} ({names} must be samples (n, features){' and their targets' if y else ''})") from error


@explain_arguments()
class NetEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A net, a loss and an optimiser as an estimator; see `NetClassifier` and `NetRegressor`."""

    def __init__(
        self,
        net: Any = "hamiltonian",
        *,
        width: int = 16,
        steps: int = 8,
        length: float = 2.0,
        scheme: Any = None,
        activation: Any = "tanh",
        options: dict[str, Any] | None = None,
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
        self.net = net
        self.width = width
        self.steps = steps
        self.length = length
        self.scheme = scheme
        self.activation = activation
        self.options = options
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.smoothness = smoothness
        self.optimiser = optimiser
        self.rate = rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.clip = clip
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.scale = scale
        self.random_state = random_state
        self.workers = workers
        self.progress = progress

    # ---- training ---------------------------------------------------------------------------------------------------

    def _learn(self, fit_data: FitData, path: Any, resume: bool) -> Self:
        """Train a new net on scaled inputs."""
        X, seed = fit_data.X, self._seed()
        self.shift_, self.factor_ = fit_data.scaling.shift, 1 / fit_data.scaling.spread
        self.meaning_: Meaning = fit_data.loss.meaning
        self.net_ = self._build_net(X.shape[1], fit_data.outputs, seed)
        objective = self._build_objective(fit_data.loss, seed)
        keys = hash_samples(X) if self.net_.has_noise else None  # not of scaled inputs, which depend on other samples
        data, optimiser = Data(self._scale(X), fit_data.targets, fit_data.weights, keys), self._optimiser()
        if isinstance(optimiser, Method):
            self._require_for_all_data(path, resume)
            self.run_: Any = minimise(objective, data, optimiser, progress=self.progress)
            self.n_iter_ = len(self.run_.history)
            return self
        held = None
        if self.validation_fraction is not None:
            data, held = hold_out(data, fit_data.labels, self.validation_fraction, seed)
        recipe = self._recipe(optimiser, len(data), seed)
        self.run_ = train(objective, data, recipe, validation=held, progress=self.progress, path=path, resume=resume)
        self.n_iter_ = self.run_.epochs
        return self

    def _build_net(self, inputs: int, outputs: int, seed: int) -> Net:
        return build_net.build_net(self, inputs, outputs, seed)

    def _build_objective(self, loss: Any, seed: int) -> Objective:
        return Objective(self.net_, loss, self._penalty(), self.smoothness)

    def _seed(self) -> int:
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`random_state` must be a whole number, a RandomState or None: {error}") from None

    def _loss(self, default: str) -> Any:
        """The record of the loss; any object with a `meaning` of outputs is accepted."""
        loss = default if self.loss is None else self.loss
        loss = losses.get(loss) if isinstance(loss, str) else loss
        meaning = getattr(loss, "meaning", None)
        if not isinstance(meaning, Meaning):
            raise TypeError(
                "`loss` must be a name or a Loss that says by its `meaning` what outputs predict, "
                f"found {loss!r:.80} ({type(loss).__name__})"
            )
        if meaning.targets == "logits of a teacher":
            raise ValueError(
                f"`loss` must compare with targets that an estimator has, found {loss!r}, which takes the "
                f"{meaning.targets}; `stepnet.training` trains a net with it"
            )
        return loss

    def _optimiser(self) -> Any:
        """The record of the optimiser; a name uses `rate`, or `epochs` iterations for a full-batch method."""
        if isinstance(self.optimiser, type):
            name = self.optimiser.__name__
            raise TypeError(f"`optimiser` must be a name or a record such as {name}(), found the class {name}")
        if isinstance(self.optimiser, str) and self.optimiser.lower() in METHODS:
            if self.rate is not None:
                raise ValueError(f"`rate` is for mini-batches; {self.optimiser!r} chooses its step sizes")
            return METHODS[self.optimiser.lower()](iterations=validate_count("epochs", self.epochs, 0))
        if isinstance(self.optimiser, Method):
            return self.optimiser
        return optimisers.get(self.optimiser, **({} if self.rate is None else {"rate": self.rate}))

    def _recipe(self, optimiser: Any, count: int, seed: int) -> Recipe:
        size = None if self.batch_size is None else min(validate_count("batch_size", self.batch_size, 1), count)
        return Recipe(
            optimiser, epochs=self.epochs, batch_size=size, clip=self._clip(), patience=self.patience, seed=seed
        )

    def _clip(self) -> ClipNorm | ClipValue | None:
        """The record of gradient clipping; a number is the maximum norm."""
        if self.clip is None or isinstance(self.clip, (ClipNorm, ClipValue)):
            return self.clip
        if isinstance(self.clip, (int, float, np.number)) and not isinstance(self.clip, bool):
            return ClipNorm(validate_number("clip", self.clip, "(0, inf)"))
        found = f"{self.clip!r:.80} ({type(self.clip).__name__})"
        raise TypeError(f"`clip` must be a number, a ClipNorm, a ClipValue or None, found {found}")

    def _penalty(self) -> penalties.Penalty:
        """The record of the penalty; a name uses the strength `alpha`."""
        alpha = validate_number("alpha", self.alpha, "[0, inf)")
        if not isinstance(self.penalty, str) or self.penalty.lower() == "none":
            return penalties.get("none" if self.penalty is None else self.penalty)
        return penalties.get(self.penalty, strength=alpha)

    def _scaling(self, values: np.ndarray, weights: np.ndarray) -> Scaling:
        if not isinstance(self.scale, (bool, np.bool_)):
            raise TypeError(f"`scale` must be True or False, found {self.scale!r:.80} ({type(self.scale).__name__})")
        return scaling.standard(values, weights) if self.scale else scaling.none(values.shape[1])

    def _require_for_all_data(self, path: Any, resume: bool) -> None:
        """Refuse settings that apply only to mini-batches."""
        if path is not None or resume:
            raise ValueError("`path` and `resume` are for mini-batches; this optimiser takes all data at once")
        for name in ("clip", "patience", "validation_fraction"):
            if getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for mini-batches; this optimiser takes all data at once")

    @contextmanager
    def _restore_after_failure(self) -> Iterator[None]:
        """Restore the estimator if a fit fails."""
        before = vars(self).copy()
        try:
            require_stored(self.get_params(deep=False))
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def _scale(self, X: np.ndarray) -> np.ndarray:
        return (X - self.shift_) * self.factor_

    def _validate_samples(self, X: Any) -> np.ndarray:
        """Samples, after checking that the estimator is fitted."""
        check_is_fitted(self, "net_")
        return validate_samples(self, X, reset=False, dtype=np.float64)

    def _validate_and_scale(self, X: Any) -> np.ndarray:
        """Scaled samples, after checking that the estimator is fitted."""
        return self._scale(self._validate_samples(X))

    def outputs(self, X: Any) -> np.ndarray:
        """The outputs of the net for samples, (n, outputs)."""
        X = self._validate_and_scale(X)
        return self.net_(X)

    def features(self, X: Any, block: int = 0) -> np.ndarray:
        """States (depths, n, width) inside a block of the net."""
        X = self._validate_and_scale(X)
        return self.net_.features(X, block)

    # ---- files ------------------------------------------------------------------------------------------------------

    NUMBERS: tuple[str, ...] = ("shift_", "factor_")

    def save(self, path: Any) -> None:
        """Write a fitted estimator into a folder: weights and numbers as safetensors, settings as JSON, no pickle.

        Settings that are functions or random states are stored as text; predictions do not need them.  If the process
        is killed, the folder has either the old estimator or the new one.
        """
        check_is_fitted(self, "net_")
        files.write(self, path)

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read an estimator written by `save`; its predictions are bitwise equal."""
        return files.read(cls, path)

    def _facts(self) -> dict[str, Any]:
        """Further data to store."""
        return {"n_iter": int(self.n_iter_)}

    def _restore(self, header: dict[str, Any]) -> None:
        """Restore the data of `_facts`."""
        self.n_iter_ = validate_count("n_iter", header["n_iter"], 0)
