"""NetClassifier."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from stepnet.estimators.base import NetEstimator


class NetClassifier(ClassifierMixin, NetEstimator):
    """A network classifier: connectivity x dynamics x scheme, trained by exact gradients.

    Parameters
    ----------
    net : str or callable
        "hamiltonian", "resnet", "antisymmetric", "parabolic", "hyperbolic", "midpoint_net", "leapfrog_net", "mlp", or a
        function of (inputs, outputs) that gives a `Net`.
    width, steps, length, scheme, activation, options
        Of that net; `options` is a dictionary for the rest.
    loss : str or Loss
        "cross_entropy" if it is left out.
    alpha, smoothness : float
        Factors of the squared weights, and of their roughness along depth.
    optimiser : str or record of `stepnet.training`
        "adam", `Adam(rate)`, ...; or `LBFGS`, `GaussNewton`, `MSA` (or "lbfgs", "gauss_newton", "msa") for all data at
        once.
    rate : float
        Of an optimiser that is given by its name.
    epochs, batch_size, patience
        Of the mini-batches; names of methods for all data at once make so many iterations as there are epochs.
    scale : bool
        Whether inputs are shifted and scaled to mean 0 and variance 1.
    random_state : int, RandomState or None
        Of weights and order of samples.
    workers : int
        Threads.
    progress : bool
        Show a bar.
    """

    def fit(self, X, y, *, path=None, resume=False):
        """Train a new net on samples (n, features) and their classes (n,).

        `path` is a folder to store the run in, epoch by epoch; with `resume` an earlier one goes on from there.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes, found one class: {self.classes_[0]!r}")
        loss = "cross_entropy" if self.loss is None else self.loss
        return self._fitted(X, labels, len(self.classes_), loss, path, resume)

    def decision_function(self, X) -> np.ndarray:
        """Outputs of the net (n, classes); their difference (n,) if there are two classes."""
        outputs = self.outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X) -> np.ndarray:
        """Probabilities (n, classes)."""
        return softmax(self.outputs(X), axis=1)

    def predict(self, X) -> np.ndarray:
        """The likeliest class of each sample."""
        outputs = self.outputs(X)
        return self.classes_[np.argmax(outputs, axis=1)]

    def _facts(self) -> dict:
        return super()._facts() | {"classes": self.classes_.tolist(), "kind": self.classes_.dtype.str}

    def _tell(self, told: dict) -> None:
        self.classes_ = np.array(told["classes"], dtype=told["kind"])
