"""Losses: a number made from states, with its gradient and its Hessian's products."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from stepnet.engines.numba_engine.compile.arguments import pack
from stepnet.engines.numba_engine.compile.augmented import MOST, tangent_trace
from stepnet.engines.numba_engine.compile.callback import SIGNATURE
from stepnet.engines.numba_engine.compile.field import checked_code, first_line, traced_code
from stepnet.engines.numba_engine.compile.form import form_of
from stepnet.engines.numba_engine.compile.graph import Graph
from stepnet.engines.numba_engine.compile.joined import copied_nodes
from stepnet.engines.numba_engine.compile.reach import reach
from stepnet.engines.numba_engine.compile.trace import Trace, trace
from stepnet.errors import NoDerivative

MOST_KEPT = 64
_kept: OrderedDict = OrderedDict()


def scalar_of(loss: Callable, y: np.ndarray) -> Scalar:
    """A loss of an array like `y`, traced once as long as nothing changes that it refers to."""
    reached = reach(loss)
    if reached.opaque:
        return Scalar(loss, y)
    key = (reached.key, y.shape)
    if key not in _kept:
        _kept[key] = Scalar(loss, y)
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return _kept[key]


class Scalar:
    """A loss of one array: traced if it returns a number, taken at its word if it returns (number, gradient)."""

    def __init__(self, loss: Callable, y: np.ndarray):
        self._loss, self._shape = loss, y.shape
        self._trace: Trace | None = None
        self._codes: dict[str, tuple] = {}
        found = loss(y)
        if not isinstance(found, tuple):
            checked_value(found)
            self._trace = self._traced(y)

    def _traced(self, y: np.ndarray) -> Trace:
        loss = self._loss

        def of_state(t, y):
            return loss(y)

        form, block = form_of(of_state, (), (self._shape,), (), y.dtype, "loss"), pack(())
        try:
            traced = trace(form, block, MOST)
            checked_code(traced_code(traced), form, block, (0.0, 0.0), y.ravel())
        except Exception as exception:
            raise NoDerivative(
                f"`loss` could not be traced ({first_line(exception)}); let it return the pair (value, gradient)"
            ) from None
        return traced

    def value_and_gradient(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss of an array, and its gradient in the same shape."""
        found = self._loss(y)
        if self._trace is None:
            return checked_pair(found, y.shape)
        value = checked_value(found)
        return value, self._run("gradient", gradient_trace, y.ravel()).reshape(y.shape)

    def hessian_product(self, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Second derivative of the loss times an array."""
        if self._trace is None:
            raise NoDerivative("second derivatives need a `loss` that returns a number only, so that it can be traced")
        both = np.concatenate((y.ravel(), v.ravel()))
        return self._run("hessian", lambda trace: tangent_trace(gradient_trace(trace)), both)[y.size :].reshape(y.shape)

    def _run(self, name: str, make: Callable[[Trace], Trace], state: np.ndarray) -> np.ndarray:
        if name not in self._codes:
            code = traced_code(make(self._trace))
            self._codes[name] = code, SIGNATURE(code.address)
        state, out = np.ascontiguousarray(state, float), np.empty(state.size)
        self._codes[name][1](0.0, state.ctypes.data, out.ctypes.data, 0, state.size)
        return out


def gradient_trace(trace: Trace) -> Trace:
    """The gradient of a trace with a single output, as a trace."""
    trace.graph.most = MOST
    graph = Graph(MOST)
    zero = trace.graph.constant(0.0)
    nodes = [zero if node is None else node for node in trace.gradient()[1 : 1 + trace.n]]
    outputs = copied_nodes(graph, trace.graph, nodes, {"w": lambda i: graph.constant(1.0)})
    return Trace(graph, outputs, trace.n, 0)


def checked_value(value) -> float:
    """A loss as a number, or a clear error."""
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
        raise TypeError(f"`loss` must return a number, found {value!r:.80} of shape {np.shape(value)}")
    if not np.isfinite(value):
        raise ValueError(f"`loss` must be finite, found {value}")
    return float(value)


def checked_pair(found, shape: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """A loss with its gradient as the user gives them, or a clear error."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"`loss` must return a number or the pair (value, gradient), found {found!r:.80}")
    gradient = np.asarray(found[1])
    if gradient.dtype.kind not in "biuf":
        raise TypeError(f"`loss` must return a gradient of real numbers, found {found[1]!r:.80}")
    if gradient.shape != shape:
        raise ValueError(f"`loss` returned a gradient of shape {gradient.shape}, but the state has shape {shape}")
    if not np.all(np.isfinite(gradient)):
        raise ValueError("`loss` returned a gradient that is not finite")
    return checked_value(found[0]), gradient.astype(float)
