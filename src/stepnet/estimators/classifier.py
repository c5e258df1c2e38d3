"""NetClassifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import expit, log_expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from stepnet.estimators import sample_weights, settings
from stepnet.estimators.net_estimator import FitData, NetEstimator, checked_samples
from stepnet.nets.losses import Loss
from stepnet.records import explain_arguments

LABELS, LONGEST_LABEL = "biufUSOmM", 2**16  # kinds of labels, and their bytes, in a file


def _has_probabilities(estimator) -> bool:
    """Whether outputs foretell probabilities under the loss; a loss that is wrong is told of by `fit`."""
    try:
        meaning = estimator.meaning_ if hasattr(estimator, "meaning_") else estimator._loss("cross_entropy").meaning
    except (LookupError, TypeError, ValueError):
        return True
    if not meaning.has_probabilities:
        raise AttributeError(f"there are no probabilities under this loss, whose link is {meaning.link!r}")
    return True


@explain_arguments()
class NetClassifier(ClassifierMixin, NetEstimator):
    """A network classifier: connectivity x dynamics x scheme, trained by exact gradients.

    Parameters
    ----------
    net : str, Field, Net or callable
        "hamiltonian", "resnet", "antisymmetric", "parabolic", "hyperbolic", "midpoint_net", "leapfrog_net", "mlp"; a
        field between an opening and a read-out; a net, whose weights are where training begins; or a function of
        (inputs, outputs), or (inputs, outputs, seed), that gives one.
    width, steps, length, scheme, activation, options
        Of that net; `options` is a dictionary for the rest.  A field has its own width and activation, a `Net` all.
    loss : str or Loss
        "cross_entropy" if it is left out.  Losses of numbers compare outputs with one for the class and zero for the
        others; binary ones have one output for two classes, else one for each class against the rest.
    penalty, alpha : str or Penalty, float
        "l2", "l1", "elastic_net" of the strength `alpha`; a record has a strength of its own.
    smoothness : float
        A factor of the roughness of weights along depth.
    optimiser : str or record of `stepnet.training`
        "adam", `Adam(rate)`, ...; or `LBFGS`, `GaussNewton`, `MSA` (or "lbfgs", "gauss_newton", "msa") for all data at
        once.
    rate : float or schedule
        Of an optimiser that is given by its name.
    epochs, batch_size
        Of the mini-batches; names of methods for all data at once make so many iterations as there are epochs.
    clip : float, ClipNorm or ClipValue
        What is done with long gradients; a number is the longest one.
    patience : int
        Epochs without improvement after which training ends.
    validation_fraction : float
        The share of samples (of each class) that is held back: their loss tells which weights are the best.
    scale : bool
        Whether inputs are shifted and scaled to mean 0 and variance 1.
    random_state : int, RandomState or None
        Of weights, order of samples and those held back.  An int gives the same fit every time, None another one.
    workers : int
        Threads.
    progress : bool
        Show a bar.
    class_weight : None, "balanced" or dict
        A factor for the samples of each class; balanced ones give all classes the same weight.
    """

    def __init__(
        self, net="hamiltonian", *, width=16, steps=8, length=2.0, scheme=None, activation="tanh", options=None,
        loss=None, penalty="l2", alpha=1e-4, smoothness=0.0, optimiser="adam", rate=None, epochs=100, batch_size=32,
        clip=None, patience=None, validation_fraction=None, scale=True, random_state=None, workers=1, progress=False,
        class_weight=None,
    ):  # fmt: skip
        super().__init__(
            net, width=width, steps=steps, length=length, scheme=scheme, activation=activation, options=options,
            loss=loss, penalty=penalty, alpha=alpha, smoothness=smoothness, optimiser=optimiser, rate=rate,
            epochs=epochs, batch_size=batch_size, clip=clip, patience=patience,
            validation_fraction=validation_fraction, scale=scale, random_state=random_state, workers=workers,
            progress=progress,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X, y, sample_weight=None, *, path=None, resume=False):
        """Train a new net on samples (n, features) and their classes (n,), with weights (n,) if they differ.

        `path` is a folder to store the run in, epoch by epoch; with `resume` an earlier one goes on from there.
        """
        with self._whole():
            X, y = checked_samples(self, X, y, dtype=np.float64)
            check_classification_targets(y)
            return self._learn(self._lesson(X, y, sample_weights.weigh_samples(sample_weight, len(X))), path, resume)

    def _lesson(self, X: np.ndarray, y: np.ndarray, each: np.ndarray) -> FitData:
        """What counts of the samples, with targets as the loss takes them."""
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

    def decision_function(self, X) -> np.ndarray:
        """Outputs of the net (n, classes); their difference, or the only one (n,), if there are two classes."""
        outputs = self.outputs(X)
        if len(self.classes_) > 2:
            return outputs
        return outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]

    @available_if(_has_probabilities)
    def predict_proba(self, X) -> np.ndarray:
        """Probabilities (n, classes); those of each class against the rest are divided by their sum."""
        outputs = self.outputs(X)
        if self.meaning_.link == "softmax":
            return self.meaning_.foretold(outputs)
        logits = self.meaning_.logits(outputs)
        if outputs.shape[1] == 1:
            return expit(np.hstack((-logits, logits)))
        return softmax(log_expit(logits), axis=1)

    def predict(self, X) -> np.ndarray:
        """The likeliest class of each sample: the one with the largest output."""
        outputs = self.outputs(X)
        if outputs.shape[1] == 1:
            return self.classes_[(outputs[:, 0] > 0).astype(int)]
        return self.classes_[np.argmax(outputs, axis=1)]

    def _facts(self) -> dict:
        classes, kind = self.classes_, self.classes_.dtype
        if kind.kind in "mM":  # times count units
            classes = classes.view(np.int64)
        return super()._facts() | {"classes": settings.describe(classes.tolist()), "kind": kind.str}

    def _tell(self, told: dict) -> None:
        super()._tell(told)
        kind, classes = np.dtype(told["kind"]), settings.build(told["classes"])
        if kind.kind not in LABELS or kind.itemsize > LONGEST_LABEL:
            raise ValueError(f"classes must be numbers, texts or times, found {kind}")
        outputs = self.net_.design.n_out
        if not isinstance(classes, list) or len(classes) != max(2, outputs):
            raise ValueError(f"a net of {outputs} outputs must have {max(2, outputs)} classes, found {classes!r:.60}")
        self.classes_ = np.array(classes, dtype=kind)


def _count_hits(z: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Which samples have the largest output at their class."""
    return z.argmax(axis=1) == targets.argmax(axis=1)
