"""Losses: a scalar function of states, with its gradient and Hessian-vector products."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from stepnet.engines.numba_engine.array_tracing.array_trace import MOST_UNKNOWNS, trace_loops
from stepnet.engines.numba_engine.codegen.loop_code import compile_loops
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.derivatives.augmented_problems import MOST, trace_tangent
from stepnet.engines.numba_engine.derivatives.jacobian_products import VJP
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import CallForm, find_call_form
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.ladder import compile_traced, summarise, validate_code
from stepnet.engines.numba_engine.tracing.function_key import reach
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.joint_trace import copy_nodes
from stepnet.engines.numba_engine.tracing.trace import Trace, trace
from stepnet.errors import NoDerivative

MOST_KEPT = 64
_kept: OrderedDict = OrderedDict()


def trace_loss(loss: Callable, y: np.ndarray) -> ScalarLoss:
    """A loss of an array like `y`; its trace is reused while nothing that it refers to changes."""
    return trace_loss_at(loss, y.shape, lambda: y)


def trace_loss_at(loss: Callable, shape: tuple[int, ...], find_y: Callable[[], np.ndarray]) -> ScalarLoss:
    """As `trace_loss`, with an array that is computed only if the loss was not traced before."""
    reached = reach(loss)
    if reached.opaque:
        return ScalarLoss(loss, find_y())
    key = (reached.key, shape)
    scalar = _kept.get(key)
    if scalar is None:
        scalar = _kept[key] = ScalarLoss(loss, find_y())
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return scalar


class ScalarLoss:
    """A loss of one array: traced if it returns a number, used as it is if it returns (number, gradient)."""

    def __init__(self, loss: Callable, y: np.ndarray):
        if not callable(loss):
            raise TypeError(f"`loss` must be a function, found {type(loss).__name__}")
        self._loss, self._shape = loss, y.shape
        self._pullback: MachineCode | None = None  # of a loss of many numbers, as loops
        self._codes: dict[str, tuple] = {}
        found = loss(y)
        self._is_traced = not isinstance(found, tuple)
        if self._is_traced:
            validate_value(found)
            self._pullback = self._compile_loops(y) if y.size > MOST_UNKNOWNS else None
            if self._pullback is None:
                self._trace(y)

    def _form(self, y: np.ndarray) -> CallForm:
        loss = self._loss

        def of_state(t, y):
            return loss(y)

        return find_call_form(of_state, (), (self._shape,), (), y.dtype, "loss")

    def _compile_loops(self, y: np.ndarray) -> MachineCode | None:
        """The pullback as loops, which compile quickly; None if the loss cannot be traced as loops."""
        form, block = self._form(y), pack(())
        try:
            loops = trace_loops(form, block)
            validate_code(compile_loops(loops, "f"), form, block, (0.0, 0.0), y.ravel())
            return compile_loops(loops, "vjp")
        except Exception:  # of this package or the user's function; straight-line code may still work
            return None

    def _trace(self, y: np.ndarray) -> Trace:
        """The loss as straight-line code."""
        if "value" not in self._codes:
            form, block = self._form(y), pack(())
            try:
                traced = trace(form, block, MOST)
                self._codes["value"] = traced, validate_code(compile_traced(traced), form, block, (0.0, 0.0), y.ravel())
            except Exception as exception:
                raise NoDerivative(
                    f"`loss` could not be traced ({summarise(exception)}); let it return the pair (value, gradient)"
                ) from None
        return self._codes["value"][0]

    def value_and_gradient(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss of an array, and its gradient in the same shape."""
        found = self._loss(y)
        if not self._is_traced:
            return validate_pair(found, y.shape)
        value = validate_value(found)
        if self._pullback is not None:
            return value, self._pull_back(y.ravel()).reshape(y.shape)
        return value, self._run("gradient", trace_gradient, y, y.ravel()).reshape(y.shape)

    @property
    def is_compiled(self) -> bool:
        """Whether value and gradient are C functions."""
        return self._is_traced and self._pullback is None

    def find_addresses(self) -> tuple[int, int]:
        """The addresses of C functions for the value and the gradient of a compiled loss."""
        if "gradient" not in self._codes:
            code = compile_traced(trace_gradient(self._codes["value"][0]))
            self._codes["gradient"] = code, SIGNATURE(code.address)
        return self._codes["value"][1].address, self._codes["gradient"][0].address

    def hessian_product(self, y: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The Hessian of the loss times an array."""
        if not self._is_traced:
            raise NoDerivative("second derivatives need a `loss` that returns a number only, so that it can be traced")
        both = np.concatenate((y.ravel(), v.ravel()))
        found = self._run("hessian", lambda trace: trace_tangent(trace_gradient(trace)), y, both)
        return found[y.size :].reshape(y.shape)

    def _pull_back(self, y: np.ndarray) -> np.ndarray:
        y, p, one = np.ascontiguousarray(y, float), np.zeros(1), np.ones(1)
        t_bar, y_bar, p_bar = np.zeros(1), np.zeros(y.size), np.zeros(1)
        pointers = [array.ctypes.data for array in (y, p, one, t_bar, y_bar, p_bar)]
        VJP(self._pullback.address)(0.0, *pointers, y.size)
        return y_bar

    def _run(self, name: str, make: Callable[[Trace], Trace], y: np.ndarray, state: np.ndarray) -> np.ndarray:
        if name not in self._codes:
            code = compile_traced(make(self._trace(y)))
            self._codes[name] = code, SIGNATURE(code.address)
        state, out = np.ascontiguousarray(state, float), np.empty(state.size)
        self._codes[name][1](0.0, state.ctypes.data, out.ctypes.data, 0, state.size)
        return out


def trace_gradient(trace: Trace) -> Trace:
    """The gradient of a trace with a single output, as a trace."""
    trace.graph.most = MOST
    graph = Graph(MOST)
    zero = trace.graph.constant(0.0)
    nodes = [zero if node is None else node for node in trace.gradient()[1 : 1 + trace.n]]
    outputs = copy_nodes(graph, trace.graph, nodes, {"w": lambda i: graph.constant(1.0)})
    return Trace(graph, outputs, trace.n, 0)


def validate_value(value) -> float:
    """A loss as a number, or an explanatory error."""
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
        raise TypeError(f"`loss` must return a number, found {value!r:.80} of shape {np.shape(value)}")
    if not np.isfinite(value):
        raise ValueError(f"`loss` must be finite, found {value}")
    return float(value)


def validate_pair(found, shape: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """A loss and its gradient as the user returns them, or an explanatory error."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"`loss` must return a number or the pair (value, gradient), found {found!r:.80}")
    gradient = np.asarray(found[1])
    if gradient.dtype.kind not in "biuf":
        raise TypeError(f"`loss` must return a gradient of real numbers, found {found[1]!r:.80}")
    if gradient.shape != shape:
        raise ValueError(f"`loss` returned a gradient of shape {gradient.shape}, but the state has shape {shape}")
    if not np.all(np.isfinite(gradient)):
        raise ValueError("`loss` returned a gradient that is not finite")
    return validate_value(found[0]), gradient.astype(float)
