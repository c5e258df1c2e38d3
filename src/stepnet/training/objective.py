"""Objectives: a loss of a model's outputs on data plus penalties, as a function of one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets import losses, penalties
from stepnet.nets.losses import Expansion
from stepnet.nets.penalties import Penalty
from stepnet.nets.sample_noise import SampleNoise, repeat_noise, validate_noise
from stepnet.records import as_array, keep, keep_numbers, show_fields, validate_count
from stepnet.validation import array, check, having, instance, sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Model(Protocol):
    """The interface that training requires of a model, such as a `Net`.

    `gradient(x, loss)` calls `loss(outputs)`, which returns a value and its gradient with respect to the outputs, and
    returns a record with `value`, `theta` (the gradient with respect to the parameters) and `outputs`.
    `gauss_newton(x, v, hessian)`, needed only by the method of that name, returns J' hessian(J v), with J the
    derivative of the outputs with respect to the parameters.  If a model has `linearise(x)`, like `Net`, it is used
    once per step instead; if it has `parameter_gradient(x, loss)`, it is used for gradients without that of the inputs.
    If its `has_noise` is true, as for a `Net` with diffusion, all of these are called with `noise=SampleNoise(...)`.
    """

    @property
    def theta(self) -> np.ndarray: ...

    def put(self, theta: np.ndarray, /) -> None: ...

    def __call__(self, x: np.ndarray, /) -> np.ndarray: ...

    def gradient(self, x: np.ndarray, loss: Callable[..., Any], /) -> Any: ...

    def gauss_newton(self, x: np.ndarray, v: np.ndarray, hessian: Callable[..., Any], /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Data:
    """Samples: inputs (batch, ...), targets (batch,) or (batch, outputs), and weights (batch,) if they differ.

    Parameters
    ----------
    x : ndarray
        Inputs (batch, ...).
    y : ndarray
        Targets (batch,) or (batch, outputs).
    weights : ndarray, optional
        Weights of the samples (batch,).
    keys : ndarray of int, optional
        Keys (batch,) that choose the Brownian paths of the samples, if the model has noise; by default a hash of each
        input.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import training
    >>> training.Data(np.ones((4, 2)), [0, 1, 0, 1]).y.shape
    (4,)
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None = None
    keys: np.ndarray | None = None

    __repr__ = show_fields

    def __post_init__(self) -> None:
        keep(self, x=_require_finite("x", self.x), y=_require_finite("y", self.y))
        if self.weights is not None:
            keep(self, weights=_require_finite("weights", self.weights))
            if (self.weights < 0).any() or not (self.weights > 0).any():
                raise ValueError("`weights` must not be negative, and some must be positive")
        if self.keys is not None:
            keep(self, keys=_require_finite("keys", self.keys))
            SampleNoise(keys=self.keys)  # refuses what are not keys
        lengths = {name: len(value) for name, value in self.arrays().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"`x`, `y`, `weights` and `keys` must have as many samples, found {lengths}")

    def __len__(self) -> int:
        return len(self.x)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are present, by name."""
        found = {"x": self.x, "y": self.y, "weights": self.weights, "keys": self.keys}
        return {name: value for name, value in found.items() if value is not None}

    def rows(self, indices: np.ndarray) -> Data:
        """Select samples, without repeating the validation."""
        indices, part = validate_indices("indices", indices, len(self)), object.__new__(Data)
        weights = None if self.weights is None else self.weights[indices]
        keys = None if self.keys is None else self.keys[indices]
        keep(part, x=self.x.take(indices, axis=0), y=self.y.take(indices, axis=0), weights=weights, keys=keys)
        return part


check_theta_and_data = check(theta=array(None), data=instance(Data, what="Data(x, y)"))


class Evaluation(NamedTuple):
    """The value of an objective, the accuracy (NaN in regression), and the gradient.

    Parameters
    ----------
    value : float
        The objective.
    accuracy : float
        The fraction of samples classified correctly; NaN in regression.
    gradient : ndarray
        With respect to the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> objective = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse")
    >>> theta, data = objective.model.theta, training.Data(np.ones((4, 2)), np.ones((4, 1)))
    >>> objective.gradient(theta, data).gradient.shape == theta.shape
    True
    """

    value: float
    accuracy: float
    gradient: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True, eq=False)
class Objective:
    """J(theta) = loss(model(x; theta), y) + penalty(theta) + smoothness roughness(theta) + regularisers(theta; x).

    For a model with noise, the loss is the mean over some Brownian paths of each sample.

    Parameters
    ----------
    model : Model
        For example a `Net`.
    loss : Loss or str
        Anything with `at(outputs, targets, weights)` and `hits`, or a name.
    penalty : Penalty or str
        Penalty on the parameters.
    smoothness : float
        A factor of `model.roughness()`, which returns value and gradient of a quadratic form of the parameters.
    paths : int
        Brownian paths of each sample, if the model has noise.
    noise : SampleNoise, optional
        Which paths they are: `noise.path * paths + k` for k below `paths`.  Mini-batch training draws others in each
        epoch; everything else uses these.
    regularisers : sequence of Regulariser
        Such as `KineticEnergy`, `JacobianFrobenius` and `LogNorm`: anything with `at(model, x)` that returns a value
        and its gradient.  Gauss-Newton products leave out their second derivatives.

    Examples
    --------
    >>> from stepnet import nets, training
    >>> training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse", smoothness=1e-3).smoothness
    0.001
    """

    model: Model
    loss: Any
    penalty: Penalty = Penalty()
    smoothness: float = 0.0
    paths: int = 1
    noise: SampleNoise | None = None
    regularisers: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        keep(self, regularisers=sequence(having("at", what="a regulariser"))("regularisers", self.regularisers))
        loss = losses.get(self.loss) if isinstance(self.loss, str) else self.loss
        if not callable(getattr(loss, "at", None)):
            raise TypeError(f"`loss` must be a Loss or its name, found {loss!r:.80} ({type(loss).__name__})")
        keep(self, loss=loss, penalty=penalties.get(self.penalty), noise=validate_noise(self.noise))
        keep(self, paths=validate_count("paths", self.paths, 1))
        keep_numbers(self, smoothness="[0, inf)")

    @check_theta_and_data
    def value(self, theta: np.ndarray, data: Data) -> tuple[float, float]:
        """The value and the accuracy."""
        self.model.put(theta)
        data, drawn = self._draw(data)
        outputs = self.model(data.x, **drawn)
        value = self.loss.at(outputs, data.y, data.weights).value
        if self._has_own:
            value += self._expand_penalties(theta).value
        return value + self._regularise(data)[0], self._accuracy(outputs, data)

    @check_theta_and_data
    def gradient(self, theta: np.ndarray, data: Data) -> Evaluation:
        """The value, the accuracy and the gradient."""
        data, drawn = self._draw(data)
        found = self._pull_back(theta, data, drawn)
        accuracy = self._accuracy(found.outputs, data)
        value, slope = found.value, found.theta
        if self.regularisers:
            more, extra = self._regularise(data)
            value, slope = value + more, slope + extra
        if not self._has_own:
            return Evaluation(value, accuracy, slope)
        own = self._expand_penalties(theta)
        return Evaluation(value + own.value, accuracy, slope + own.gradient)

    @check_theta_and_data
    def expansion(self, theta: np.ndarray, data: Data) -> Expansion:
        """Value, gradient, and products with J' H J, the Gauss-Newton part of the Hessian; penalties are exact.

        Gradient and products are computed on demand, from one run if the model has `linearise`.
        """
        self.model.put(theta)
        data, drawn = self._draw(data)
        near = self.model.linearise(data.x, **drawn) if hasattr(self.model, "linearise") else None
        outputs = self.model(data.x, **drawn) if near is None else near.outputs
        local, own = self.loss.at(outputs, data.y, data.weights), self._expand_penalties(theta)
        value, extra = self._regularise(data)

        def slope() -> np.ndarray:
            pulled = self._pull_back(theta, data, drawn).theta if near is None else near.pullback(local.gradient)
            return pulled + own.gradient + extra

        def product(v: np.ndarray) -> np.ndarray:
            if near is not None:
                return near.gauss_newton(v, local.product) + own.product(v)
            self.model.put(theta)
            return self.model.gauss_newton(data.x, v, local.product, **drawn) + own.product(v)

        def bend(v: np.ndarray) -> float:
            """v' J' H J v, without a reverse sweep."""
            pushed = near.tangent(v)  # type: ignore[union-attr]  # it is used only where `near` is there
            return inner(pushed.ravel(), local.product(pushed).ravel()) + own.curvature(v)

        return Expansion(local.value + own.value + value, slope, product, None if near is None else bend)

    @property
    def has_noise(self) -> bool:
        """Whether the model has noise."""
        return getattr(self.model, "has_noise", False)

    def _draw(self, data: Data) -> tuple[Data, dict[str, SampleNoise]]:
        """The samples, once for each of their paths, and the noise that the model takes."""
        if not self.has_noise:
            return data, {}
        noise = SampleNoise() if self.noise is None else self.noise
        if data.keys is not None:
            noise = replace(noise, keys=data.keys)
        return _repeat_samples(data, self.paths), {"noise": repeat_noise(noise, len(data), self.paths)}

    def _pull_back(self, theta: np.ndarray, data: Data, drawn: dict[str, SampleNoise]) -> Any:
        """The loss and its gradient with respect to the parameters."""

        def seed(outputs: np.ndarray) -> tuple[float, np.ndarray]:
            local = self.loss.at(outputs, data.y, data.weights)
            return local.value, local.gradient

        self.model.put(theta)
        return getattr(self.model, "parameter_gradient", self.model.gradient)(data.x, seed, **drawn)

    def _regularise(self, data: Data) -> tuple[float, np.ndarray | float]:
        """The sum of the regularisers at the parameters of the model, and its gradient."""
        found = [each.at(self.model, data.x) for each in self.regularisers]
        return sum(value for value, _ in found), sum((gradient for _, gradient in found), 0.0)

    @property
    def _has_own(self) -> bool:
        return bool(self.penalty.l1 or self.penalty.l2 or self.smoothness)

    def _expand_penalties(self, theta: np.ndarray) -> Expansion:
        """The penalties, which do not depend on data."""
        penalty = self.penalty.at(theta)
        if not self.smoothness:
            return penalty
        value, slope = self._roughness(theta)

        rest = cache(lambda: self._roughness(np.zeros_like(theta))[1])  # contribution of fixed parameters

        def product(v: np.ndarray) -> np.ndarray:
            """The gradient of a quadratic form at v is its Hessian times v."""
            return penalty.product(v) + self.smoothness * (self._roughness(v)[1] - rest())

        return Expansion(
            penalty.value + self.smoothness * value, lambda: penalty.gradient + self.smoothness * slope, product
        )

    def _roughness(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The roughness of these parameters; those of the model are unchanged."""
        own = np.array(self.model.theta)
        self.model.put(theta)
        found = self.model.roughness()  # type: ignore[attr-defined]
        self.model.put(own)
        return found

    def _accuracy(self, outputs: np.ndarray, data: Data) -> float:
        if self.loss.hits is None:
            return float("nan")
        return int(np.count_nonzero(self.loss.hits(outputs, data.y))) / len(outputs)


def _repeat_samples(data: Data, times: int) -> Data:
    """Each sample `times` times in a row; weights keep their sum, for losses that are sums."""
    if times == 1:
        return data
    found = data.rows(np.repeat(np.arange(len(data)), times))
    keep(found, weights=(np.ones(len(found)) if found.weights is None else found.weights) / times)
    return found


def validate_indices(name: str, value: Any, count: int) -> np.ndarray:
    """Return integers below a count, a scalar or one-dimensional."""
    found = as_array(name, value)
    if found.dtype.kind not in "iu" or found.ndim > 1:
        raise TypeError(f"`{name}` must be whole numbers (n,), found {found.dtype} of the shape {found.shape}")
    if found.size and not (-count <= found.min() and found.max() < count):
        raise ValueError(f"`{name}` must be below {count}, found {found.min()} to {found.max()}")
    return found


def _require_finite(name: str, value: Any) -> np.ndarray:
    try:
        found = np.asarray(value)
    except ValueError:
        raise ValueError(f"`{name}` must be an array of numbers, found a ragged sequence") from None
    if found.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must be real numbers, found {found.dtype}")
    if found.ndim == 0 or len(found) == 0:
        raise ValueError(f"`{name}` must have at least one sample, found shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be finite, found NaN or infinite numbers")
    return found


def require(objective: object, data: object, validation: object = None) -> None:
    """Refuse arguments of wrong types."""
    if not isinstance(objective, Objective):
        raise TypeError(f"`objective` must be an Objective, found {objective!r:.80} ({type(objective).__name__})")
    for name, value in (("data", data), ("validation", data if validation is None else validation)):
        if not isinstance(value, Data):
            raise TypeError(f"`{name}` must be Data(x, y), found {value!r:.80} ({type(value).__name__})")


def validate_theta(model: Model, theta: ArrayLike | None) -> np.ndarray:
    """Return a copy of the given initial parameters, or of those of the model."""
    own = np.asarray(model.theta)
    found = np.array(own if theta is None else array()("theta", theta), own.dtype)
    if found.shape != own.shape:
        raise ValueError(f"`theta` must be {own.size} parameters, shape {own.shape}, found shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("`theta` must be finite, found NaN or infinite parameters")
    return found
