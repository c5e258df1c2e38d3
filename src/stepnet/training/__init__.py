"""Training: optimisers, schedules, Gauss-Newton, variable projection, the loop and its storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepnet.training import optimisers, schedules
from stepnet.training.block_descent import Part, block_coordinate, blocks_by_name, multilevel
from stepnet.training.clipping import ClipNorm, ClipValue
from stepnet.training.conjugate_gradients import truncated_cg
from stepnet.training.full_batch import METHODS, GaussNewton, LineSearch, Method, TrustRegion, minimise
from stepnet.training.lbfgs import LBFGS
from stepnet.training.loop import train
from stepnet.training.maximum_principle import MSA
from stepnet.training.objective import Data, Evaluation, Model, Objective
from stepnet.training.optimisers import SGD, AdaGrad, Adam, AdamW, Momentum, Nesterov, Proximal, RMSprop
from stepnet.training.regularisers import (
    JacobianFrobenius,
    KineticEnergy,
    LogNorm,
    SpectralProjection,
    spectral_projection,
)
from stepnet.training.run import Ending, Recipe, Run
from stepnet.training.schedules import Constant, Cosine, Exponential, InverseTime, StepDecay, WarmUp
from stepnet.training.storage import load
from stepnet.training.variable_projection import Projected

if TYPE_CHECKING:
    from stepnet.training.minimum import Minimum

__all__ = [
    "LBFGS", "METHODS", "MSA", "SGD", "AdaGrad", "Adam", "AdamW", "ClipNorm", "ClipValue", "Constant", "Cosine", "Data",
    "Ending", "Evaluation", "Exponential", "GaussNewton", "InverseTime", "JacobianFrobenius", "KineticEnergy",
    "LineSearch", "LogNorm", "Method", "Minimum", "Model", "Momentum", "Nesterov", "Objective", "Part", "Projected",
    "Proximal", "RMSprop", "Recipe", "Run", "SpectralProjection", "StepDecay", "TrustRegion", "WarmUp",
    "block_coordinate", "blocks_by_name", "load", "minimise", "multilevel", "optimisers", "schedules",
    "spectral_projection", "train", "truncated_cg",
]  # fmt: skip


def __getattr__(name: str) -> type[Minimum]:
    """`Minimum`, which loads `scipy.optimize`."""
    if name != "Minimum":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepnet.training.minimum import Minimum

    return Minimum


def __dir__() -> list[str]:
    return __all__
