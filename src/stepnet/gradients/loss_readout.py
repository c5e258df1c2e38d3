"""What a loss reads: states, and the numbers that come with them."""

from __future__ import annotations

import numpy as np

from stepnet.records import as_array


class LossReadout:
    """The loss of the states that were collected: called once, it gives their gradients and remembers the value.

    With a running cost, that is the last entry of every state, and one more state is that of the end.
    """

    def __init__(self, engine, loss, end_gradient, shape: tuple[int, ...], n: int, has_running: bool, ended=None):
        is_neither, is_both = loss is None and end_gradient is None, loss is not None and end_gradient is not None
        if is_both or (is_neither and not has_running and ended is None):
            raise TypeError(f"give either `loss` or `end_gradient`, found {'both' if is_both else 'neither'}")
        if loss is not None and not callable(loss):
            raise TypeError(f"`loss` must be a function, found {type(loss).__name__}")
        self._engine, self._loss, self._n, self._has_running = engine, loss, n, has_running
        self._ended, self._is_time = ended, is_neither and ended is not None
        self.p_bar: np.ndarray | float = 0.0  # of the event with respect to the parameters
        self._gradient = np.zeros(shape) if end_gradient is None else _validate_gradient(end_gradient, shape)
        self.value, self.y = float("nan"), np.zeros(shape)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        own = states[: len(states) - self._has_running, : self._n]
        self.y = own.reshape(self.y.shape).copy()
        if self._loss is None:
            self.value, found = float(np.sum(self._gradient * self.y)), self._gradient
        else:
            self.value, found = self._engine.scalar_of(self._loss, self.y).value_and_gradient(self.y)
        gradients = np.zeros(states.shape)
        gradients[: len(own), : self._n] = np.reshape(found, own.shape)
        if self._has_running:
            self.value += float(states[-1, -1])
            gradients[-1, -1] = 1.0
        if self._ended is not None:
            if self._is_time:
                self.value = self._ended.t
            _, along_y, self.p_bar = self._ended.multiplier(gradients[-1], float(self._is_time))
            gradients[-1] += along_y
        return gradients

    def at_end(self, end: np.ndarray) -> np.ndarray:
        """The gradient with respect to the flat end state, which is all that the loss reads."""
        return self(np.tile(end, (1 + self._has_running, 1))).sum(axis=0)


def require_real_numbers(name: str, value) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must hold real numbers, found {value!r:.60}")
    return array.astype(float)


def _validate_gradient(value, shape: tuple[int, ...]) -> np.ndarray:
    found = require_real_numbers("end_gradient", value)
    if found.shape != shape:
        raise ValueError(f"`end_gradient` must have the shape {shape} of what the loss would read, found {found.shape}")
    if not np.all(np.isfinite(found)):
        raise ValueError("`end_gradient` must be finite")
    return found


def flatten_derivatives(y0: np.ndarray, args: tuple) -> np.ndarray:
    """Derivatives with respect to the initial state, then to the arguments that have one, as one array."""
    return np.concatenate([np.ravel(y0), *(np.ravel(each) for each in args if each is not None)])
