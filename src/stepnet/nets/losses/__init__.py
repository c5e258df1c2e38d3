"""Losses as records: value, gradient and Hessian product on arrays (batch, outputs)."""

from stepnet.nets.losses.catalogue import get, names
from stepnet.nets.losses.elementwise import barron, gaussian_nll, huber, mae, mse, poisson, quantile, tukey
from stepnet.nets.losses.entropy import (
    binary_cross_entropy,
    binary_focal,
    cross_entropy,
    distillation,
    focal,
    kl,
    log_softmax,
    softmax,
)
from stepnet.nets.losses.loss import Expansion, Loss
from stepnet.nets.losses.targets import Meaning

__all__ = [
    "Expansion", "Loss", "Meaning", "barron", "binary_cross_entropy", "binary_focal", "cross_entropy", "distillation",
    "focal", "gaussian_nll", "get", "huber", "kl", "log_softmax", "mae", "mse", "names", "poisson", "quantile",
    "softmax", "tukey",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
