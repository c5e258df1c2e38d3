"""Loss readouts: the states that a loss depends on and the gradients at them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepnet.records import as_array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepnet.gradients.event_gradient import EventRun


class LossReadout(Protocol):
    """The states that a loss depends on; called once with the collected states, it returns their gradients."""

    value: float
    """The loss, once it has been evaluated."""
    p_bar: np.ndarray | float
    """The direct contribution to the gradient with respect to the parameters."""

    @property
    def y(self) -> np.ndarray:
        """The states that were read: the end state, or the saved ones."""

    def select_places(self, places: np.ndarray, end: int) -> np.ndarray:
        """The steps whose states enter the loss; `places` are the saved ones or the last, `end` is the last."""

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """The gradients with respect to the flat states at those steps."""

    def differentiate_end(self, end: np.ndarray) -> np.ndarray:
        """The gradient with respect to the flat end state, if the loss depends on nothing else."""


class StateLoss:
    """A loss of states: a function, or a gradient given instead of it; without both the loss is 0."""

    def __init__(
        self, engine: ModuleType, loss: Callable[..., Any] | None, end_gradient: ArrayLike | None,
        shape: tuple[int, ...], is_optional: bool = False,
    ) -> None:  # fmt: skip
        is_neither, is_both = loss is None and end_gradient is None, loss is not None and end_gradient is not None
        if is_both or (is_neither and not is_optional):
            raise TypeError(f"give either `loss` or `end_gradient`, found {'both' if is_both else 'neither'}")
        if loss is not None and not callable(loss):
            raise TypeError(f"`loss` must be a function, found {type(loss).__name__}")
        self.shape, self.is_given = shape, not is_neither
        self._engine, self._loss = engine, loss
        self._gradient = np.zeros(shape) if end_gradient is None else _validate_gradient(end_gradient, shape)

    def value_and_gradient(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        if self._loss is None:
            return float(np.sum(self._gradient * y)), self._gradient
        return self._engine.trace_loss(self._loss, y).value_and_gradient(y)


class StateReadout:
    """The end state, or the states at all save times."""

    p_bar: np.ndarray | float

    def __init__(self, loss: StateLoss):
        self._loss = loss
        self.value, self.y, self.p_bar = float("nan"), np.zeros(loss.shape), 0.0

    def select_places(self, places: np.ndarray, end: int) -> np.ndarray:
        return places

    def __call__(self, states: np.ndarray) -> np.ndarray:
        self.y = states.reshape(self.y.shape).copy()
        self.value, found = self._loss.value_and_gradient(self.y)
        return np.array(found, float).reshape(states.shape)

    def differentiate_end(self, end: np.ndarray) -> np.ndarray:
        return self(end[None]).sum(axis=0)


class RunningCostReadout:
    """The same and the integral of a running cost, the last entry of each state; the end state is read as well."""

    p_bar: np.ndarray | float

    def __init__(self, loss: StateLoss):
        self._states = StateReadout(loss)
        self.value, self.p_bar = float("nan"), 0.0

    @property
    def y(self) -> np.ndarray:
        return self._states.y

    def select_places(self, places: np.ndarray, end: int) -> np.ndarray:
        return np.append(places, end)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        gradients = np.zeros(states.shape)
        gradients[:-1, :-1] = self._states(states[:-1, :-1])
        gradients[-1, -1] = 1.0
        self.value = self._states.value + float(states[-1, -1])
        return gradients

    def differentiate_end(self, end: np.ndarray) -> np.ndarray:
        return self(np.tile(end, (2, 1))).sum(axis=0)


class EventReadout:
    """The state at a terminal event, whose time is differentiated too; without a loss, that time itself."""

    p_bar: np.ndarray | float

    def __init__(self, loss: StateLoss, ended: EventRun):
        self._states, self._ended, self._is_time = StateReadout(loss), ended, not loss.is_given
        self.value, self.p_bar = float("nan"), 0.0

    @property
    def y(self) -> np.ndarray:
        return self._states.y

    def select_places(self, places: np.ndarray, end: int) -> np.ndarray:
        return places

    def __call__(self, states: np.ndarray) -> np.ndarray:
        gradients = self._states(states)
        self.value = self._ended.t if self._is_time else self._states.value
        _, along_y, self.p_bar = self._ended.multiplier(gradients[-1], float(self._is_time))
        gradients[-1] += along_y
        return gradients

    def differentiate_end(self, end: np.ndarray) -> np.ndarray:
        return self(end[None])[0]


def require_real_numbers(name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must hold real numbers, found {value!r:.60}")
    return array.astype(float)


def _validate_gradient(value: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    found = require_real_numbers("end_gradient", value)
    if found.shape != shape:
        raise ValueError(f"`end_gradient` must have the shape {shape} of what the loss would read, found {found.shape}")
    if not np.all(np.isfinite(found)):
        raise ValueError("`end_gradient` must be finite")
    return found


def flatten_derivatives(y0: np.ndarray, args: tuple[Any, ...]) -> np.ndarray:
    """Derivatives with respect to the initial state, then to the arguments that have one, as one array."""
    return np.concatenate([np.ravel(y0), *(np.ravel(each) for each in args if each is not None)])
