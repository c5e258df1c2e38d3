"""Ordinary differential equations: of first order, partitioned, of second order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stepnet.c_functions import check_function
from stepnet.problem.checks import (
    check_flag,
    convert_args,
    set_fields,
    validate_initial_state,
    validate_mass_matrix,
    validate_matrix,
    validate_pair,
    validate_span,
)
from stepnet.problem.forms import ProblemForm
from stepnet.problem.linear_solvers import validate_linear_solver
from stepnet.problem.mass_matrix import MassMatrix
from stepnet.records import explain_arguments, show_fields


@explain_arguments()
@dataclass(frozen=True, eq=False)
class ODE:
    """y' = f(t, y), or M y' = f(t, y), with y(t0) = y0 on t_span = (t0, t1); t1 < t0 integrates backward.

    Parameters
    ----------
    fun : callable or C function
        `f(t, y, *args)` returning the slopes (array, list or tuple), or `f(t, y, dy, p)` filling `dy` in place, where
        `p` holds the numbers of `args` in one flat array.  Also a ctypes function, LowLevelCallable, Numba cfunc or
        `stepnet.address(...)` with the C signature
        `int32 f(double t, const double *y, double *dy, const double *p, int64 n)`.
    y0 : array_like
        Initial state of any shape.  float32 and complex128 are preserved, other numbers become float64.
    t_span : (float, float)
        Beginning and end of the integration; the end may be infinite for adaptive steps that a terminal event stops.
    args : tuple
        Further arguments of `fun`: numbers and arrays of floats reach compiled code.
    jac : callable, array_like or sparse matrix, optional
        df/dy as `jac(t, y, *args)`, dense or sparse, or the matrix itself if it is constant.  For Jacobians it takes
        precedence over a trace; gradients, which also need df/dp, use `vjp`, then a trace, then `jac`.
    jac_sparsity : array_like or sparse matrix, optional
        Nonzero where slope i depends on entry j; needed only where this cannot be found by tracing.
    jvp, vjp : callable or C function, optional
        `jvp(t, y, v, *args)` returns (df/dy) v and `vjp(t, y, w, *args)` returns w (df/dy).
    mass : array_like or sparse matrix, optional
        The constant matrix M.  If it is singular, some equations are algebraic: they may have index one, and need a
        stiffly accurate implicit or Rosenbrock scheme; a `y0` that does not satisfy them is corrected with M y0
        unchanged.
    linear_solver : {"dense", "banded", "sparse", "gmres"} or Gmres, optional
        How the linear systems of implicit steps are solved; by default chosen by size and bandwidth of df/dy.
    trace : bool
        False disables tracing: the functions of the problem are then compiled by Numba, or called in Python.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=10).y[-1].round(6)
    array([0.36788])
    """

    fun: Callable[..., Any]
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    jac: object = field(default=None, kw_only=True)
    jac_sparsity: object = field(default=None, kw_only=True)
    jvp: object = field(default=None, kw_only=True)
    vjp: object = field(default=None, kw_only=True)
    mass: object = field(default=None, kw_only=True)
    linear_solver: object = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        set_fields(
            self,
            y0=validate_initial_state("y0", self.y0),
            t_span=validate_span(self.t_span),
            args=convert_args(self.args),
        )
        n = self.y0.size
        if self.jac is not None and not callable(self.jac):
            set_fields(self, jac=validate_matrix("jac", self.jac, n, " or a function returning one"))
        if self.jac_sparsity is not None:
            set_fields(self, jac_sparsity=validate_matrix("jac_sparsity", self.jac_sparsity, n))
        for name in ("jvp", "vjp"):
            if getattr(self, name) is not None:
                check_function(name, getattr(self, name))
        if self.mass is not None:
            set_fields(self, mass=validate_mass_matrix(self.mass, self.y0))
        set_fields(self, linear_solver=validate_linear_solver(self.linear_solver))
        check_flag("trace", self.trace)

    form = ProblemForm.FIRST

    @cached_property
    def mass_matrix(self) -> MassMatrix | None:
        """The mass matrix with its division into differential and algebraic equations; None for y' = f."""
        return None if self.mass is None else MassMatrix(self.mass)

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Partitioned:
    """q' = dq(t, p), p' = dp(t, q), q(t0) = q0, p(t0) = p0: a partitioned problem, as splitting schemes need it.

    With `separable=False` both right-hand sides are called as (t, q, p, *args).

    Parameters
    ----------
    dq, dp : callable or C function
        `dq(t, p, *args)` and `dp(t, q, *args)`, returning arrays or filling `dy` in place as in `ODE`.
    q0, p0 : array_like
        Initial state, of equal shapes.
    t_span, args, trace
        As in `ODE`.
    separable : bool, optional
        Whether dq depends on p only and dp on q only.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> pendulum = sn.Partitioned(lambda t, p: p, lambda t, q: -np.sin(q), [1.0], [0.0], (0.0, 1.0))
    >>> sn.solve(pendulum, "verlet", steps=100).q[-1].round(3)
    array([0.6])
    """

    dq: Callable[..., Any]
    dp: Callable[..., Any]
    q0: np.ndarray
    p0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    separable: bool = True
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        q0, p0 = validate_pair("q0", self.q0, "p0", self.p0)
        set_fields(self, q0=q0, p0=p0, t_span=validate_span(self.t_span), args=convert_args(self.args))
        check_flag("separable", self.separable)
        check_flag("trace", self.trace)

    @property
    def form(self) -> ProblemForm:
        return ProblemForm.PARTITIONED if self.separable else ProblemForm.COUPLED

    @property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then p."""
        return np.concatenate((self.q0.ravel(), self.p0.ravel()))


@explain_arguments()
@dataclass(frozen=True, eq=False)
class SecondOrder:
    """q'' = a(t, q), q(t0) = q0, q'(t0) = v0.

    Parameters
    ----------
    acceleration : callable or C function
        `a(t, q, *args)`, returning an array or filling `dy` in place as in `ODE`.
    q0, v0 : array_like
        Initial positions and velocities, of equal shapes.
    t_span, args, trace
        As in `ODE`.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.solve(sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 1.0)), "verlet", steps=100).v[-1].round(3)
    array([-0.841])
    """

    acceleration: Callable[..., Any]
    q0: np.ndarray
    v0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        q0, v0 = validate_pair("q0", self.q0, "v0", self.v0)
        set_fields(self, q0=q0, v0=v0, t_span=validate_span(self.t_span), args=convert_args(self.args))
        check_flag("trace", self.trace)

    form = ProblemForm.SECOND

    @property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then v."""
        return np.concatenate((self.q0.ravel(), self.v0.ravel()))
