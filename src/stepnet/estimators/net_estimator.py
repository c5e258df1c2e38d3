"""What the estimators share: settings, training, files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from stepnet.estimators import build_net, files, scaling
from stepnet.estimators.datasets import hold_out
from stepnet.estimators.scaling import Scaling
from stepnet.estimators.settings import require_stored
from stepnet.nets import losses, penalties
from stepnet.nets.losses import Meaning
from stepnet.records import explain_arguments, validate_count, validate_number
from stepnet.training import METHODS, ClipNorm, ClipValue, Data, Method, Objective, Recipe, minimise, optimisers, train


class FitData(NamedTuple):
    """What is learnt: samples, targets as the loss takes them, weights, and labels if parts are to have all classes."""

    X: np.ndarray
    scaling: Scaling
    targets: np.ndarray
    outputs: int
    loss: Any
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None


def checked_samples(estimator, X, *y, **how):
    """`validate_data` of scikit-learn, whose complaints do not say which argument they are about."""
    try:
        return validate_data(estimator, X, *y, **how)
    except (TypeError, ValueError, OverflowError) as error:
        if "`" in str(error) and "`X`" in str(error):
            raise
        kind = ValueError if isinstance(error, OverflowError) else type(error)
        names = "`X` and `y`" if y else "`X`"
        raise kind(f"{error} ({names} must be samples (n, features){' and their targets' if y else ''})") from error


@explain_arguments()
class NetEstimator(BaseEstimator):
    """A net, a loss and an optimiser as an estimator; see `NetClassifier` and `NetRegressor`."""

    def __init__(
        self, net="hamiltonian", *, width=16, steps=8, length=2.0, scheme=None, activation="tanh", options=None,
        loss=None, penalty="l2", alpha=1e-4, smoothness=0.0, optimiser="adam", rate=None, epochs=100, batch_size=32,
        clip=None, patience=None, validation_fraction=None, scale=True, random_state=None, workers=1, progress=False,
    ):  # fmt: skip
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

    def _learn(self, lesson: FitData, path, resume: bool):
        """Train a new net on scaled inputs."""
        X, seed = lesson.X, self._seed()
        self.shift_, self.factor_ = lesson.scaling.shift, 1 / lesson.scaling.spread
        self.meaning_: Meaning = lesson.loss.meaning
        self.net_ = build_net.build_net(self, X.shape[1], lesson.outputs, seed)
        objective = Objective(self.net_, lesson.loss, self._penalty(), self.smoothness)
        data, optimiser = Data(self._scaled(X), lesson.targets, lesson.weights), self._optimiser()
        if isinstance(optimiser, Method):
            self._require_for_all_data(path, resume)
            self.run_: Any = minimise(objective, data, optimiser, progress=self.progress)
            self.n_iter_ = len(self.run_.history)
            return self
        held = None
        if self.validation_fraction is not None:
            data, held = hold_out(data, lesson.labels, self.validation_fraction, seed)
        recipe = self._recipe(optimiser, len(data), seed)
        self.run_ = train(objective, data, recipe, validation=held, progress=self.progress, path=path, resume=resume)
        self.n_iter_ = self.run_.epochs
        return self

    def _seed(self) -> int:
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`random_state` must be a whole number, a RandomState or None: {error}") from None

    def _loss(self, default: str):
        """The record of the loss; anything that says what outputs mean will do."""
        loss = default if self.loss is None else self.loss
        loss = losses.get(loss) if isinstance(loss, str) else loss
        meaning = getattr(loss, "meaning", None)
        if not isinstance(meaning, Meaning):
            raise TypeError(
                "`loss` must be a name or a Loss that says by its `meaning` what outputs foretell, "
                f"found {loss!r:.80} ({type(loss).__name__})"
            )
        if meaning.targets == "logits of a teacher":
            raise ValueError(
                f"`loss` must compare with targets that an estimator has, found {loss!r}, which takes the "
                f"{meaning.targets}; `stepnet.training` trains a net with it"
            )
        return loss

    def _optimiser(self):
        """The record of the optimiser; a name takes `rate`, or `epochs` iterations if it is for all data at once."""
        if isinstance(self.optimiser, type):
            name = self.optimiser.__name__
            raise TypeError(f"`optimiser` must be a name or a record such as {name}(), found the class {name}")
        if isinstance(self.optimiser, str) and self.optimiser.lower() in METHODS:
            if self.rate is not None:
                raise ValueError(f"`rate` is for mini-batches; {self.optimiser!r} finds its own steps")
            return METHODS[self.optimiser.lower()](iterations=validate_count("epochs", self.epochs, 0))
        if isinstance(self.optimiser, Method):
            return self.optimiser
        return optimisers.get(self.optimiser, **({} if self.rate is None else {"rate": self.rate}))

    def _recipe(self, optimiser, count: int, seed: int) -> Recipe:
        size = None if self.batch_size is None else min(validate_count("batch_size", self.batch_size, 1), count)
        return Recipe(
            optimiser, epochs=self.epochs, batch_size=size, clip=self._clip(), patience=self.patience, seed=seed
        )

    def _clip(self) -> ClipNorm | ClipValue | None:
        """A number stands for the longest gradient."""
        if self.clip is None or isinstance(self.clip, (ClipNorm, ClipValue)):
            return self.clip
        if isinstance(self.clip, (int, float, np.number)) and not isinstance(self.clip, bool):
            return ClipNorm(validate_number("clip", self.clip, "(0, inf)"))
        found = f"{self.clip!r:.80} ({type(self.clip).__name__})"
        raise TypeError(f"`clip` must be a number, a ClipNorm, a ClipValue or None, found {found}")

    def _penalty(self) -> penalties.Penalty:
        """A name has the strength `alpha`, a record its own."""
        alpha = validate_number("alpha", self.alpha, "[0, inf)")
        if not isinstance(self.penalty, str) or self.penalty.lower() == "none":
            return penalties.get("none" if self.penalty is None else self.penalty)
        return penalties.get(self.penalty, strength=alpha)

    def _scaling(self, values: np.ndarray, weights: np.ndarray) -> Scaling:
        if not isinstance(self.scale, (bool, np.bool_)):
            raise TypeError(f"`scale` must be True or False, found {self.scale!r:.80} ({type(self.scale).__name__})")
        return scaling.standard(values, weights) if self.scale else scaling.none(values.shape[1])

    def _require_for_all_data(self, path, resume: bool) -> None:
        """Nothing is asked for that goes with mini-batches alone."""
        if path is not None or resume:
            raise ValueError("`path` and `resume` are for mini-batches; this optimiser takes all data at once")
        for name in ("clip", "patience", "validation_fraction"):
            if getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for mini-batches; this optimiser takes all data at once")

    @contextmanager
    def _whole(self):
        """A fit that fails leaves the estimator as it was."""
        before = vars(self).copy()
        try:
            require_stored(self.get_params(deep=False))
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return (X - self.shift_) * self.factor_

    def _checked(self, X) -> np.ndarray:
        """Scaled samples for a net that was fitted."""
        check_is_fitted(self, "net_")
        return self._scaled(checked_samples(self, X, reset=False, dtype=np.float64))

    def outputs(self, X) -> np.ndarray:
        """What the net gives for samples, (n, outputs)."""
        X = self._checked(X)
        return self.net_(X)

    def features(self, X, block: int = 0) -> np.ndarray:
        """States (depths, n, width) inside a block of the net."""
        X = self._checked(X)
        return self.net_.features(X, block)

    # ---- files ------------------------------------------------------------------------------------------------------

    NUMBERS: tuple[str, ...] = ("shift_", "factor_")

    def save(self, path) -> None:
        """Write a fitted estimator into a folder: weights and numbers as safetensors, settings as JSON, no pickle.

        Settings that are functions or random states are kept as texts; predictions do not need them.  The folder has
        the old estimator or the new one, whenever the process is killed.
        """
        check_is_fitted(self, "net_")
        files.write(self, path)

    @classmethod
    def load(cls, path):
        """Read an estimator that `save` wrote: it predicts the same bits."""
        return files.read(cls, path)

    def _facts(self) -> dict:
        """What else is stored."""
        return {"n_iter": int(self.n_iter_)}

    def _tell(self, told: dict) -> None:
        """Take what `_facts` has stored."""
        self.n_iter_ = validate_count("n_iter", told["n_iter"], 0)
