"""A function of one state, evaluated for the rows of an array: in machine code where it can be traced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.codegen.primitives import call_field
from stepnet.engines.numba_engine.derivatives.augmented_problems import MOST
from stepnet.engines.numba_engine.derivatives.scalar_loss import trace_gradient
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import CallForm, find_call_form
from stepnet.engines.numba_engine.rhs.ladder import compile_traced, summarise, validate_code
from stepnet.engines.numba_engine.tracing.function_key import reach
from stepnet.engines.numba_engine.tracing.trace import trace
from stepnet.errors import NoDerivative


@Kernel
def evaluate_rows(address, rows, out, work, p):
    """out[i] = function(rows[i]), by way of the two rows of `work`."""
    n, n_out = rows.shape[1], out.shape[1]
    for i in range(rows.shape[0]):
        for j in range(n):
            work[0, j] = rows[i, j]
        status = call_field(address, 0.0, work, 0, 1, p, n)
        if status != 0:
            return status
        for j in range(n_out):
            out[i, j] = work[1, j]
    return 0


class RowFunction:
    """A function of a state that returns a number, for many states; `reason` says why it runs in Python.

    Parameters
    ----------
    function : callable
        `function(y)` of one state, returning a number.
    y : array
        A state at which it can be called.
    label : str
        Its name in error messages.
    """

    def __init__(self, function: Callable, y: np.ndarray, label: str):
        self._function, self._shape, self._label = function, y.shape, label
        if not callable(function):
            raise TypeError(f"`{label}` must be a function, found {type(function).__name__}")
        self._validate(function(y.copy()))
        self._gradient: MachineCode | None = None
        self._code, self.reason = self._compile(y)

    @property
    def rung(self) -> str:
        return "python" if self._code is None else "trace"

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """The values (rows,) for flat states (rows, entries)."""
        if self._code is not None:
            return _evaluate(self._code, rows, 1)[:, 0]
        return np.array([self._validate(self._function(row.reshape(self._shape))) for row in rows], float)

    def gradient(self, rows: np.ndarray) -> np.ndarray:
        """The gradients (rows, entries)."""
        if self._code is None:
            raise NoDerivative(f"the gradient of `{self._label}` needs its trace, and it is not traced ({self.reason})")
        if self._gradient is None:
            self._gradient = compile_traced(trace_gradient(self._code.trace))
        return _evaluate(self._gradient, rows, rows.shape[1])

    def _compile(self, y: np.ndarray) -> tuple[MachineCode | None, str]:
        reached = reach(self._function)
        if reached.opaque:
            return None, reached.opaque
        form, block = self._find_form(y), pack(())
        try:
            code = compile_traced(trace(form, block, MOST))
            return validate_code(code, form, block, (0.0, 0.0), y.ravel()), ""
        except Exception as exception:  # of this package or the user's function; Python remains
            return None, summarise(exception)

    def _find_form(self, y: np.ndarray) -> CallForm:
        function = self._function

        def of_state(t, y):
            return function(y)

        return find_call_form(of_state, (), (self._shape,), (), y.dtype, self._label)

    def _validate(self, value) -> float:
        if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
            raise TypeError(
                f"`{self._label}` must return a number for one state of shape {self._shape}, found "
                f"{value!r:.80} of shape {np.shape(value)}"
            )
        return float(value)


def _evaluate(code: MachineCode, rows: np.ndarray, n_out: int) -> np.ndarray:
    out = np.empty((len(rows), n_out))
    work = np.zeros((2, max(1, rows.shape[1], n_out)))
    evaluate_rows(code.address, as_argument(rows), out, work, np.zeros(1))
    return out
