"""NetClassifier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import expit, log_expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from stepnet.estimators import sample_weights, settings
from stepnet.estimators.net_estimator import FitData, NetEstimator, validate_samples
from stepnet.nets.losses import Loss
from stepnet.records import explain_arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LABELS, LONGEST_LABEL = "biufUSOmM", 2**16  # dtype kinds of labels, and their maximum bytes, in a file


def _has_probabilities(estimator: Any) -> bool:
    """Whether the loss defines probabilities; an invalid loss is reported by `fit`."""
    try:
        meaning = estimator.meaning_ if hasattr(estimator, "meaning_") else estimator._loss("cross_entropy").meaning
    except (LookupError, TypeError, ValueError):
        return True
    if not meaning.has_probabilities:
        raise AttributeError(f"this loss has no probabilities, whose link is {meaning.link!r}")
    return True


@explain_arguments()
class NetClassifier(ClassifierMixin, NetEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network classifier: connectivity x dynamics x scheme, trained by exact gradients.

    Parameters
    ----------
    net : str, Field, Net or callable
        "hamiltonian", "resnet", "antisymmetric", "parabolic", "hyperbolic", "midpoint_net", "leapfrog_net", "mlp"; a
        field, placed between an opening layer and a readout; a net, with its weights as initial values; or a function
        of (inputs, outputs), or (inputs, outputs, seed), that returns a net.
    width, steps, length, scheme, activation, options
        Arguments of that net; `options` is a dictionary of further ones.  A field determines width and activation, a
        `Net` all of them.
    loss : str or Loss
        By default "cross_entropy".  Regression losses use one-hot targets; binary losses have one output for two
        classes, otherwise one per class against the rest.
    penalty, alpha : str or Penalty, float
        "l2", "l1" or "elastic_net" with strength `alpha`; a record has its own strength.
    smoothness : float
        Factor of the roughness of weights in depth.
    optimiser : str or record of `stepnet.training`
        "adam", `Adam(rate)`, ...; or `LBFGS`, `GaussNewton`, `MSA` (or "lbfgs", "gauss_newton", "msa") for full-batch
        training.
    rate : float or schedule
        Learning rate of an optimiser given by name.
    epochs, batch_size
        Settings of mini-batch training; a full-batch method given by name runs `epochs` iterations.
    clip : float, ClipNorm or ClipValue
        Gradient clipping; a number is the maximum norm.
    patience : int
        Epochs without improvement after which training ends.
    validation_fraction : float
        The fraction of samples of each class held out for validation: the weights with the lowest loss on them are
        kept.
    scale : bool
        Whether inputs are shifted and scaled to mean 0 and variance 1.
    random_state : int, RandomState or None
        Seed of weights, sample order and validation split.  An int makes the fit reproducible.
    workers : int
        Threads.
    progress : bool
        Show a progress bar.
    class_weight : None, "balanced" or dict
        A factor for the samples of each class; "balanced" gives all classes the same total weight.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from stepnet.estimators import NetClassifier
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> NetClassifier(width=4, steps=3, epochs=20, random_state=0).fit(X, y).predict(X).shape
    (100,)
    """

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
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            net, width=width, steps=steps, length=length, scheme=scheme, activation=activation, options=options,
            loss=loss, penalty=penalty, alpha=alpha, smoothness=smoothness, optimiser=optimiser, rate=rate,
            epochs=epochs, batch_size=batch_size, clip=clip, patience=patience,
            validation_fraction=validation_fraction, scale=scale, random_state=random_state, workers=workers,
            progress=progress,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, path: Any = None, resume: bool = False
    ) -> Self:
        """Train a new net on samples (n, features) and their classes (n,), with optional weights (n,).

        `path` is a folder in which the run is stored after each epoch; with `resume` a stored run is continued.
        """
        with self._restore_after_failure():
            X, y = validate_samples(self, X, y, dtype=np.float64)
            check_classification_targets(y)
            return self._learn(
                self._build_fit_data(X, y, sample_weights.weigh_samples(sample_weight, len(X))), path, resume
            )

    def _build_fit_data(self, X: np.ndarray, y: np.ndarray, each: np.ndarray) -> FitData:
        """The samples with nonzero weight, with targets in the form the loss takes."""
        X, y, each = X[each > 0], y[each > 0], each[each > 0]
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes, found one class: {self.classes_[0]!r}")
        scaling = self._scaling(X, each)
        each = each * sample_weights.weigh_classes(self.class_weight, self.classes_, labels, each)[labels]
        X, labels, each = X[each > 0], labels[each > 0], each[each > 0]
        loss, count = self._loss("cross_entropy"), len(self.classes_)
        meaning = loss.meaning
        if meaning.each != 1:
            raise ValueError(f"`loss` must have one output for each class, found {loss!r}, which has {meaning.each}")
        if meaning.targets == "answers" and count == 2:
            return FitData(X, scaling, labels, 1, loss, sample_weights.drop_trivial(each), labels)
        targets = labels if meaning.targets == "classes" else np.eye(count)[labels]
        if isinstance(loss, Loss) and (loss.hits is None or meaning.targets == "answers"):
            loss = replace(loss, hits=_count_hits)
        return FitData(X, scaling, targets, count, loss, sample_weights.drop_trivial(each), labels)

    def decision_function(self, X: Any) -> np.ndarray:
        """Outputs of the net (n, classes); for two classes their difference, or the single output (n,)."""
        outputs = self.outputs(X)
        if len(self.classes_) > 2:
            return outputs
        return outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes); one-against-rest probabilities are normalised by their sum."""
        return self._find_probabilities(self.outputs(X))

    def _find_probabilities(self, outputs: np.ndarray) -> np.ndarray:
        if self.meaning_.link == "softmax":
            return self.meaning_.predict(outputs)
        logits = self.meaning_.logits(outputs)
        if outputs.shape[1] == 1:
            return expit(np.hstack((-logits, logits)))
        return softmax(log_expit(logits), axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sample: the one with the largest output."""
        outputs = self.outputs(X)
        if outputs.shape[1] == 1:
            return self.classes_[(outputs[:, 0] > 0).astype(int)]
        return self.classes_[np.argmax(outputs, axis=1)]

    def _facts(self) -> dict[str, Any]:
        classes, kind = self.classes_, self.classes_.dtype
        if kind.kind in "mM":  # datetimes are integers in a unit
            classes = classes.view(np.int64)
        return super()._facts() | {"classes": settings.describe(classes.tolist()), "kind": kind.str}

    def _restore(self, header: dict[str, Any]) -> None:
        super()._restore(header)
        kind, classes = np.dtype(header["kind"]), settings.build(header["classes"])
        if kind.kind not in LABELS or kind.itemsize > LONGEST_LABEL:
            raise ValueError(f"classes must be numbers, texts or times, found {kind}")
        outputs = self.net_.design.n_out
        if not isinstance(classes, list) or len(classes) != max(2, outputs):
            raise ValueError(f"a net of {outputs} outputs must have {max(2, outputs)} classes, found {classes!r:.60}")
        self.classes_ = np.array(classes, dtype=kind)


def _count_hits(z: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Which samples have the largest output at their class."""
    return z.argmax(axis=1) == targets.argmax(axis=1)
