"""Sums of parts that are integrated in turn or differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stepnet.problem.checks import (
    check_flag,
    convert_args,
    set_fields,
    validate_initial_state,
    validate_matrix,
    validate_span,
)
from stepnet.problem.forms import ProblemForm
from stepnet.problem.linear_solvers import validate_linear_solver
from stepnet.records import explain_arguments, show_fields


@dataclass(frozen=True, eq=False)
class Flow:
    """A part of a `Split` that is given by its solution instead of its right-hand side.

    Parameters
    ----------
    fun : callable
        `fun(t, y, h, *args)` returns the state at t + h of the solution that is y at t.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> decay = sn.Flow(lambda t, y, h: np.exp(-h) * y)
    >>> problem = sn.Split((decay, lambda t, y: 0.0 * y + 1.0), [1.0], (0.0, 1.0))
    >>> sn.solve(problem, "strang", steps=10).y[-1].round(2)
    array([1.])
    """

    fun: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(f"`fun` of a flow must be a function, found {type(self.fun).__name__}")


@dataclass(frozen=True, eq=False)
class Linear:
    """L y with a constant matrix L: a part of a `Split` that exponential schemes integrate exactly.

    Other schemes evaluate it like any right-hand side, and implicit ones know its Jacobian.

    Parameters
    ----------
    operator : array_like, sparse matrix, or operator of `stepnet.operators`
        A matrix (n, n), a linear operator on a grid, or a spectral operator, which exponential schemes apply by Fourier
        transforms.  With leading axes in the state it acts on every component alike; a list of operators on the same
        grid has one for each component.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.Split((lambda t, y: np.sin(y), sn.Linear([[-1000.0]])), [1.0], (0.0, 1.0))
    >>> sn.solve(problem, "etdrk4", steps=10).y[-1] < 1e-2
    array([ True])
    """

    operator: Any

    def __post_init__(self) -> None:
        if isinstance(self.operator, (list, tuple)) and any(hasattr(each, "matrix") for each in self.operator):
            set_fields(
                self, operator=tuple(_validate_operator(f"operator[{i}]", each) for i, each in enumerate(self.operator))
            )
            shapes = [each.grid.shape for each in self.operator]
            if len(set(shapes)) > 1:
                raise ValueError(f"`operator` must hold operators on one grid, found grids of the shapes {shapes}")
        else:
            set_fields(self, operator=_validate_operator("operator", self.operator))

    def __call__(self, t: float, y: Any, *args: Any) -> Any:
        """L y, as a right-hand side."""
        is_numpy = isinstance(y, np.ndarray)  # this is traced, so it formats no text
        if not is_numpy and not type(y).__module__.startswith(("torch", "stepnet")):
            raise TypeError("`y` must be an array, found " + type(y).__name__)
        if is_numpy and type(y) is np.ndarray and y.dtype.kind not in "biufc":
            raise TypeError("`y` must be an array of numbers, found dtype " + y.dtype.name)
        shape = np.shape(y)
        if self.is_matrix:
            if shape == (self.n,):
                return self.operator @ y
            return (self.operator @ y.reshape(-1, self.n).T).T.reshape(shape)
        if not isinstance(self.operator, tuple):
            grid = self.operator.grid.shape
            return (
                self.operator(y) if shape == grid else _apply_to_each((self.operator,), y.reshape(-1, 1, *grid), shape)
            )
        grid = self.operator[0].grid.shape
        return _apply_to_each(self.operator, y.reshape(-1, len(self.operator), *grid), shape)

    @property
    def is_matrix(self) -> bool:
        """Whether L is given by its entries."""
        return not isinstance(self.operator, tuple) and not callable(self.operator)

    @cached_property
    def n(self) -> int:
        """The number of entries of a state that L acts on together."""
        if self.is_matrix:
            return self.operator.shape[0]
        operators = self.operator if isinstance(self.operator, tuple) else (self.operator,)
        return len(operators) * int(np.prod(operators[0].grid.shape))

    @cached_property
    def symbol(self) -> np.ndarray | None:
        """Factors of the Fourier coefficients of real fields (components, *grid); None unless L is spectral."""
        operators = self.operator if isinstance(self.operator, tuple) else (self.operator,)
        if any(not hasattr(operator, "symbol") for operator in operators):
            return None
        return np.stack([_make_hermitian(operator.symbol) for operator in operators])

    @cached_property
    def matrix(self) -> Any:
        """L as a matrix, dense or sparse."""
        if self.is_matrix:
            return self.operator
        if isinstance(self.operator, tuple):
            from scipy import sparse

            return sparse.block_diag([operator.matrix() for operator in self.operator], format="csr")
        return self.operator.matrix()


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Split:
    """y' = f1(t, y) + f2(t, y) + ...: a sum of parts that are integrated in turn or differently.

    Splitting schemes integrate the parts in turn.  Additive (IMEX) schemes take two parts, the first one explicit and
    the second one implicit; exponential schemes a part and a `Linear` one.

    Parameters
    ----------
    parts : sequence of callables, C functions, Linear parts or Flows
        Each as `fun` in `ODE`; all get the same `args`.  Problems with a `Flow` have no gradients or dense output.
    y0, t_span, args, trace
        As in `ODE`.
    jac, jac_sparsity, linear_solver : optional
        As in `ODE`, of the last part, where additive and semi-implicit schemes take it implicitly; others ignore them.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.solve(sn.Split((lambda t, y: -y, lambda t, y: 0.5 * y), [1.0], (0.0, 1.0)), "strang", steps=10).y.shape
    (11, 1)
    """

    parts: tuple[Callable[..., Any], ...]
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    jac: object = field(default=None, kw_only=True)
    jac_sparsity: object = field(default=None, kw_only=True)
    linear_solver: object = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        try:
            parts = tuple(self.parts)
        except TypeError:
            raise TypeError(
                f"`parts` must be a sequence of right-hand sides, found {type(self.parts).__name__}"
            ) from None
        if len(parts) < 2:
            raise ValueError(f"`parts` must hold at least two right-hand sides, found {len(parts)}; use `ODE` for one")
        set_fields(
            self,
            parts=parts,
            y0=validate_initial_state("y0", self.y0),
            t_span=validate_span(self.t_span),
            args=convert_args(self.args),
        )
        for part in parts:
            if isinstance(part, Linear):
                require_multiple(part, self.y0.size)
        set_fields(self, linear_solver=validate_linear_solver(self.linear_solver))
        if self.jac is not None and not callable(self.jac):
            set_fields(self, jac=validate_matrix("jac", self.jac, self.y0.size, " or a function returning one"))
        if self.jac_sparsity is not None:
            set_fields(self, jac_sparsity=validate_matrix("jac_sparsity", self.jac_sparsity, self.y0.size))
        check_flag("trace", self.trace)

    form = ProblemForm.SUM

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()


def require_multiple(linear: Linear, size: int) -> None:
    """Refuse a size of the state on which L cannot act."""
    if size == 0 or size % linear.n:
        raise ValueError(
            f"a `Linear` part acts on {linear.n} entries, so the state must have a multiple of them, found {size}"
        )


def _validate_operator(name: str, value: Any) -> Any:
    """A matrix, or an operator on a grid that is linear."""
    if callable(getattr(value, "matrix", None)) and callable(value):
        grid = getattr(value, "grid", None)
        if grid is None:
            raise TypeError(f"`{name}` must act on one field of a grid, found {type(value).__name__}")
        if np.shape(value(np.zeros(grid.shape))) != grid.shape:
            raise ValueError(f"`{name}` must map a field of the grid to one field, found {type(value).__name__}")
        if np.any(value(np.zeros(grid.shape))):
            raise ValueError(
                f"`{name}` must be linear, but its boundary values make it nonzero at 0; add them to the other part"
            )
        return value
    shape = np.shape(value)
    matrix = validate_matrix(name, value, shape[0] if shape else 1, ", or an operator of `stepnet.operators`")
    if matrix.dtype.kind == "c":
        raise TypeError(f"`{name}` must be real, found {matrix.dtype}")
    if not np.all(np.isfinite(matrix.data if hasattr(matrix, "tocsc") else matrix)):
        raise ValueError(f"`{name}` must be finite")
    return matrix.astype(float)


def _apply_to_each(operators: tuple[Any, ...], fields: Any, shape: tuple[int, ...]) -> Any:
    """Operators applied to the components of several fields."""
    return np.stack([operator(u) for some in fields for operator, u in zip(operators, some, strict=True)]).reshape(
        shape
    )


def _make_hermitian(symbol: np.ndarray) -> np.ndarray:
    """The symbol of the operator on real fields, whose results are made real."""
    mirrored = symbol
    for axis in range(symbol.ndim):
        mirrored = np.roll(np.flip(mirrored, axis), 1, axis)
    return 0.5 * (symbol + mirrored.conj())
