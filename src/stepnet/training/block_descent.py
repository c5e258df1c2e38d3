"""Block coordinate descent over groups of parameters, and multilevel training from few steps to many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.errors import TrainingInterrupted
from stepnet.nets.derivatives import Linearised
from stepnet.nets.sample_noise import SampleNoise
from stepnet.records import find_by_name, validate_count
from stepnet.training.full_batch import METHODS, Method, minimise
from stepnet.training.maximum_principle import MSA
from stepnet.training.minimisation import MinimisationState
from stepnet.training.objective import Data, Model, Objective, require, validate_indices, validate_theta
from stepnet.training.progress import show_bar
from stepnet.validation import array, check, having, sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.training.minimum import Minimum

MOST_LEVELS = 31  # each level doubles the steps


@dataclass(frozen=True, eq=False)
class FreeGradient:
    """The gradient of a value with respect to the free parameters."""

    value: float
    theta: np.ndarray
    outputs: np.ndarray


class Part:
    """A model in which only the parameters with these indices are free.

    Parameters
    ----------
    model : Model
        The model.
    indices : ndarray
        Which of its parameters are free.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> training.Part(nets.resnet(2, 1, width=3, steps=2), np.arange(5)).theta.size
    5
    """

    def __init__(self, model: Model, indices: np.ndarray):
        self._model = having("theta", "put", "gradient", what="a model")("model", model)
        self._indices = validate_indices("indices", indices, np.size(model.theta))
        if hasattr(model, "linearise"):
            self.linearise = self._linearise

    @property
    def theta(self) -> np.ndarray:
        return np.asarray(self._model.theta)[self._indices]

    @property
    def has_noise(self) -> bool:
        return getattr(self._model, "has_noise", False)

    def put(self, theta: np.ndarray) -> None:
        whole = np.array(self._model.theta)
        whole[self._indices] = self._validate_free("theta", theta)
        self._model.put(whole)

    def __call__(self, x: np.ndarray, *, noise: SampleNoise | None = None) -> np.ndarray:
        return self._model(x, **_pass_on(noise))

    def gradient(self, x: np.ndarray, loss: Callable[..., Any], *, noise: SampleNoise | None = None) -> FreeGradient:
        found = getattr(self._model, "parameter_gradient", self._model.gradient)(x, loss, **_pass_on(noise))
        return FreeGradient(found.value, found.theta[self._indices], found.outputs)

    def gauss_newton(
        self, x: np.ndarray, v: np.ndarray, hessian: Callable[..., Any], *, noise: SampleNoise | None = None
    ) -> np.ndarray:
        return self._model.gauss_newton(x, self._extend_direction(v), hessian, **_pass_on(noise))[self._indices]

    def _linearise(self, x: np.ndarray, *, noise: SampleNoise | None = None) -> Linearised:
        near = self._model.linearise(x, **_pass_on(noise))
        return Linearised(
            self._indices.size, near.outputs, lambda v: near.tangent(self._extend_direction(v)),
            lambda u: near.pullback(u)[self._indices],
        )  # fmt: skip

    def _extend_direction(self, v: np.ndarray) -> np.ndarray:
        """Extend a direction of the free parameters to all parameters by zeros."""
        whole = np.zeros_like(self._model.theta)
        whole[self._indices] = self._validate_free("v", v)
        return whole

    def _validate_free(self, name: str, value: ArrayLike) -> np.ndarray:
        return array(len(self._indices))(name, value)

    def roughness(self) -> tuple[float, np.ndarray]:
        value, gradient = self._model.roughness()
        return value, gradient[self._indices]


def _pass_on(noise: SampleNoise | None) -> dict[str, SampleNoise]:
    """The argument for a model with noise; other models take none."""
    return {} if noise is None else {"noise": noise}


@check(model=having("views", "theta", what="a net"))
def blocks_by_name(model: Any) -> dict[str, np.ndarray]:
    """The parameter indices of a net, grouped by opening layer, block, join and readout.

    Parameters
    ----------
    model
        A net.

    Returns
    -------
    dict
        Index arrays by name.

    Examples
    --------
    >>> from stepnet import nets, training
    >>> list(training.blocks_by_name(nets.resnet(2, 1, width=3, steps=2)))
    ['opening', 'blocks.0', 'readout']
    """
    found: dict[str, list[np.ndarray]] = {}
    for name, places in model.views(np.arange(model.theta.size)).items():
        found.setdefault(name.rpartition(".")[0], []).append(places.ravel())
    return {name: np.concatenate(places) for name, places in found.items()}


def block_coordinate(
    objective: Objective,
    data: Data,
    blocks: Mapping[str, np.ndarray] | Sequence[np.ndarray] | None = None,
    method: Method | str = "lbfgs",
    *,
    sweeps: int = 10,
    theta: ArrayLike | None = None,
    progress: bool = False,
) -> Minimum:
    """Minimise over one block of parameters after the other; the model keeps the result.

    The objective does not increase in any sweep.  Haber & Ruthotto (2017), arXiv:1705.03341, alternate between the
    layers and the readout.

    Parameters
    ----------
    objective, data, method, theta, progress
        As in `minimise`; `method` is applied to each block.
    blocks : mapping or sequence of arrays of indices, optional
        Groups of parameters, which together contain each parameter once.  By default `blocks_by_name`.
    sweeps : int
        The number of passes over all blocks.

    Returns
    -------
    Minimum
        With the value after each sweep as `history`, and the gradient with respect to all parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> found = training.block_coordinate(objective, training.Data(np.ones((4, 2)), np.ones((4, 1))), sweeps=2)
    >>> bool((np.diff(found.history) <= 0).all())
    True
    """
    require(objective, data)
    model = objective.model
    if isinstance(find_by_name("method", METHODS, method, {}), MSA):
        raise TypeError("`method` of block-coordinate descent must be LBFGS or GaussNewton; MSA trains whole nets")
    model.put(validate_theta(model, theta))
    parts = _validate(blocks_by_name(model) if blocks is None else blocks, model.theta.size)
    with show_bar(validate_count("sweeps", sweeps, 0), progress, unit="sweep") as shown:
        watch = MinimisationState(shown, np.array(model.theta))
        try:
            for _ in range(sweeps):
                for indices in parts:
                    found = minimise(replace(objective, model=Part(model, indices)), data, method)
                    watch.gradients, watch.products = watch.gradients + found.gradients, watch.products + found.products
                value, accuracy = objective.value(model.theta, data)
                watch.tell(loss=value, accuracy=accuracy)
                watch.step(value)
        except TrainingInterrupted:
            _keep_end(objective, data, watch)
            raise TrainingInterrupted(watch.build_interrupted()) from None
    _keep_end(objective, data, watch)
    return watch.minimum(False, f"{sweeps} sweeps over {len(parts)} blocks are done")


def _keep_end(objective: Objective, data: Data, watch: MinimisationState) -> None:
    """Keep the end point, with the gradient with respect to all parameters."""
    theta = np.array(objective.model.theta)
    value, _, gradient = objective.gradient(theta, data)
    watch.gradients += 1
    watch.keep(theta, value, gradient)


def multilevel(
    objective: Objective, data: Data, method: Method | str = "lbfgs", *, levels: int = 3, progress: bool = False
) -> tuple[Any, list[Minimum]]:
    """Train a net with few steps, then the same function of depth with twice as many, and so on.

    A level starts from the weights of the previous one: `model.refine()` keeps them as functions of depth and halves
    the steps.  Its first value is that of the last level only in the limit of short steps; where steps are long, the
    objective can jump, and the roughness of weights that are constant on each step doubles.  Haber & Ruthotto (2017);
    Chang et al. (2018), arXiv:1710.10348.  An interruption carries the minimum of its level, and the model as `.model`.

    Parameters
    ----------
    objective, data, method, progress
        As in `minimise`; `method` is applied on each level.
    levels : int, optional
        The number of levels.

    Returns
    -------
    model, minima
        The model with the most steps, trained, and the minimum of each level.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> model, minima = training.multilevel(objective, training.Data(np.ones((4, 2)), np.ones((4, 1))), levels=2)
    >>> model.design.blocks[0].steps
    4
    """
    minima: list[Minimum] = []
    for level in range(validate_count("levels", levels, 1, MOST_LEVELS, "each level doubles the steps")):
        if level:
            objective = replace(objective, model=objective.model.refine())  # type: ignore[attr-defined]
        try:
            minima.append(minimise(objective, data, method, progress=progress))
        except TrainingInterrupted as interrupted:
            interrupted.model = objective.model
            raise
    return objective.model, minima


def _validate(blocks: Mapping[str, np.ndarray] | Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Return blocks as index arrays that contain each parameter once."""
    given = sequence(lambda _, each: each)("blocks", blocks.values() if isinstance(blocks, Mapping) else blocks)
    parts = [validate_indices("blocks", each, size) for each in given]
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in parts):
        raise TypeError("`blocks` must be arrays of indices, each with one axis")
    together = np.sort(np.concatenate(parts)) if parts else np.zeros(0, int)
    if not np.array_equal(together, np.arange(size)):
        raise ValueError(f"`blocks` must have each of the {size} parameters once, found {together.size} indices")
    return parts
