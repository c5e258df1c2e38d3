"""The meaning of a net's outputs to a loss: the targets they are compared with, and what they predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit, log_softmax, softmax

from stepnet.errors import UnknownName
from stepnet.records import keep, keep_numbers, validate_count
from stepnet.validation import array, check

TARGETS = ("real numbers", "counts", "answers", "classes", "probabilities", "logits of a teacher")
LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda z: z,
    "exp": np.exp,
    "sigmoid": expit,
    "softmax": lambda z: softmax(z, axis=1),
    "first half": lambda z: z[:, : z.shape[1] // 2],
}


@dataclass(frozen=True)
class Meaning:
    """The kind of targets, and the link from outputs (batch, outputs) to predictions.

    Parameters
    ----------
    targets : str
        What a loss compares outputs with: one of `TARGETS`.
    link : str
        The function from outputs to predictions (a mean, a rate, probabilities): one of `LINKS`.
    each : int
        Outputs for each target, or for each class.
    temperature : float
        Divisor of the outputs before the link.
    focus : float
        The exponent of a focal loss, whose optimal outputs are flatter than the probabilities.

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.poisson().meaning.targets
    'counts'
    """

    targets: str = "real numbers"
    link: str = "identity"
    each: int = 1
    temperature: float = 1.0
    focus: float = 0.0

    def __post_init__(self) -> None:
        for what, name, known in (("kind of targets", self.targets, TARGETS), ("link", self.link, LINKS)):
            if not isinstance(name, str) or name not in known:
                raise UnknownName(what, name, known)
        keep(self, each=validate_count("each", self.each, 1))
        keep_numbers(self, temperature="(0, inf)", focus="[0, inf)")

    @property
    def has_probabilities(self) -> bool:
        """Whether predictions are probabilities, of classes or of a positive label."""
        return self.link in ("sigmoid", "softmax")

    @check(outputs=array(None, None))
    def logits(self, outputs: np.ndarray) -> np.ndarray:
        """The argument of the link: outputs divided by the temperature and corrected for `focus`."""
        z = outputs if self.temperature == 1 else outputs / self.temperature
        if self.focus == 0:
            return z
        if self.link == "sigmoid":
            return _invert_focus(log_expit(z), self.focus) - _invert_focus(log_expit(-z), self.focus)
        return _invert_focus(log_softmax(z, axis=1), self.focus)

    @check(outputs=array(None, None))
    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The predictions for these outputs."""
        return LINKS[self.link](self.logits(outputs))


def _invert_focus(l: np.ndarray, focus: float) -> np.ndarray:  # noqa: E741
    """log(p / f), f = (1 - p)^focus - focus (1 - p)^(focus - 1) p log p, of l = log p, up to a constant per sample.

    Where the gradient of the focal loss is zero, probabilities are proportional to p / f.  Charoenphakdee et al.
    (2021), On focal loss for class-posterior probability estimation, CVPR.
    """
    p, m = np.exp(l), np.maximum(-np.expm1(l), np.finfo(l.dtype).tiny)
    return l - focus * np.log(m) - np.log1p(-focus * p * l / m)
