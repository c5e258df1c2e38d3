"""Problems: frozen records of what to solve, validated when they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import isfinite, isnan
from typing import Any

import numpy as np

from stepnet.c_functions import check_function
from stepnet.errors import UnknownName
from stepnet.linear_solvers import validate_linear_solver
from stepnet.mass_matrix import MassMatrix
from stepnet.records import convert_integers, explain_arguments, show_fields, validate_count, validate_number

LONG = 10_000  # entries from which BLAS starts threads, which costs more than the product


class ProblemForm(Enum):
    """The form of an equation, which decides which schemes can solve it."""

    FIRST = "first"  # y' = f(t, y)
    SUM = "sum"  # y' = f1(t, y) + f2(t, y) + ...
    PARTITIONED = "partitioned"  # q' = dq(t, p), p' = dp(t, q)
    COUPLED = "coupled"  # q' = dq(t, q, p), p' = dp(t, q, p)
    SECOND = "second"  # q'' = a(t, q)
    STOCHASTIC = "stochastic"  # dy = f(t, y) dt + g(t, y) dW
    LANGEVIN = "langevin"  # dq = v dt, dv = a(t, q) dt - friction v dt + s dW

    @property
    def has_separate_halves(self) -> bool:
        """Whether q' depends on p only and p' on q only."""
        return self in (ProblemForm.PARTITIONED, ProblemForm.SECOND)

    @property
    def is_stochastic(self) -> bool:
        """Whether solutions depend on a Brownian path."""
        return self in (ProblemForm.STOCHASTIC, ProblemForm.LANGEVIN)


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
        Initial state of any shape.  float32 and complex128 are kept, other numbers become float64.
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
        stiffly accurate implicit or Rosenbrock scheme; a `y0` that does not satisfy them is corrected, M y0 is kept.
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
        _set(
            self, y0=_validate_initial_state("y0", self.y0), t_span=validate_span(self.t_span), args=_as_args(self.args)
        )
        n = self.y0.size
        if self.jac is not None and not callable(self.jac):
            _set(self, jac=_validate_matrix("jac", self.jac, n, " or a function returning one"))
        if self.jac_sparsity is not None:
            _set(self, jac_sparsity=_validate_matrix("jac_sparsity", self.jac_sparsity, n))
        for name in ("jvp", "vjp"):
            if getattr(self, name) is not None:
                check_function(name, getattr(self, name))
        if self.mass is not None:
            _set(self, mass=_validate_mass_matrix(self.mass, self.y0))
        _set(self, linear_solver=validate_linear_solver(self.linear_solver))
        _check_flag("trace", self.trace)

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
        q0, p0 = _validate_pair("q0", self.q0, "p0", self.p0)
        _set(self, q0=q0, p0=p0, t_span=validate_span(self.t_span), args=_as_args(self.args))
        _check_flag("separable", self.separable)
        _check_flag("trace", self.trace)

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
        q0, v0 = _validate_pair("q0", self.q0, "v0", self.v0)
        _set(self, q0=q0, v0=v0, t_span=validate_span(self.t_span), args=_as_args(self.args))
        _check_flag("trace", self.trace)

    form = ProblemForm.SECOND

    @property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then v."""
        return np.concatenate((self.q0.ravel(), self.v0.ravel()))


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
            _set(
                self, operator=tuple(_validate_operator(f"operator[{i}]", each) for i, each in enumerate(self.operator))
            )
            shapes = [each.grid.shape for each in self.operator]
            if len(set(shapes)) > 1:
                raise ValueError(f"`operator` must hold operators on one grid, found grids of the shapes {shapes}")
        else:
            _set(self, operator=_validate_operator("operator", self.operator))

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
    matrix = _validate_matrix(name, value, shape[0] if shape else 1, ", or an operator of `stepnet.operators`")
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
        _set(
            self,
            parts=parts,
            y0=_validate_initial_state("y0", self.y0),
            t_span=validate_span(self.t_span),
            args=_as_args(self.args),
        )
        for part in parts:
            if isinstance(part, Linear):
                require_multiple(part, self.y0.size)
        _check_flag("trace", self.trace)

    form = ProblemForm.SUM

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()


NOISE_TYPES = ("scalar", "additive", "diagonal", "commutative", "general")
CALCULI = ("ito", "stratonovich")
MOST_SEED, MOST_PATH, MOST_CELLS = 2**64 - 1, 2**40 - 1, 2**32


@explain_arguments()
@dataclass(frozen=True, eq=False)
class SDE:
    """dy = f(t, y) dt + g(t, y) dW, y(t0) = y0 on t_span = (t0, t1): a stochastic differential equation.

    The Brownian path W is a function of `seed`, `path` and `cells`, so that a problem has one solution for each scheme
    and number of steps; see `stepnet.noise.BrownianPath`.

    Parameters
    ----------
    drift : callable
        `f(t, y, *args)`, returning an array of the shape of the state, as `fun` in `ODE`.
    diffusion : callable
        `g(t, y, *args)`; the shape of its result depends on `noise`.
    y0 : array_like
        Initial state of any shape, in float64.
    t_span : (float, float)
        Beginning and end, t0 < t1.
    args : tuple
        Further arguments of both functions.
    noise : {"diagonal", "scalar", "additive", "commutative", "general"}
        "diagonal": g has the shape of the state, and entry i of the state has its own component of W and depends on no
        other entry in g; "scalar": g has the shape of the state and W one component; "general" and "commutative": g is
        (*state, m) and W has m components; "additive": g depends on t only, and is (*state, m), or of the shape of the
        state with a component of W for each entry.
    calculus : {"ito", "stratonovich"}
        The sense of the integral; `convert` changes it.
    seed, path : int
        Which Brownian path; paths of a seed are independent.
    cells : int, optional
        Cells of the base grid of the Brownian path, by default the number of steps.  Runs with different numbers of
        steps see the same path if they have the same `cells`, and each number of steps is a divisor of `cells`, or
        `cells` times a power of two.
    trace : bool
        As in `ODE`.
    correction : float
        A multiple of sum_j (dg_j/dy) g_j, over the columns g_j of g, that is added to the drift; set by `convert`.

    Examples
    --------
    >>> import stepnet as sn
    >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    >>> gbm.noise, gbm.calculus
    ('diagonal', 'ito')
    """

    drift: Callable[..., Any]
    diffusion: Callable[..., Any]
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    noise: str = field(default="diagonal", kw_only=True)
    calculus: str = field(default="ito", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    path: int = field(default=0, kw_only=True)
    cells: int | None = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)
    correction: float = field(default=0.0, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        t_span = _validate_forward_span(self.t_span, "an `SDE`")
        _set(self, y0=_validate_initial_state("y0", self.y0), t_span=t_span, args=_as_args(self.args))
        if self.y0.dtype != np.float64:
            raise TypeError(f"`y0` of an `SDE` must be float64, found {self.y0.dtype}")
        if not isinstance(self.noise, str) or self.noise not in NOISE_TYPES:
            raise UnknownName("noise", self.noise, NOISE_TYPES)
        if not isinstance(self.calculus, str) or self.calculus not in CALCULI:
            raise UnknownName("calculus", self.calculus, CALCULI)
        _set_path(self)
        _check_flag("trace", self.trace)
        _set(self, correction=validate_number("correction", self.correction))

    form = ProblemForm.STOCHASTIC

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()

    @cached_property
    def diffusion_shape(self) -> tuple[int, ...]:
        """The shape of the diffusion, found by calling it once."""
        g = np.asarray(self.diffusion(self.t_span[0], self.y0.copy(), *self.args))
        shape, wanted = g.shape, self.y0.shape
        is_vector, is_matrix = shape == wanted, shape[:-1] == wanted and len(shape) > len(wanted)
        if self.noise in ("scalar", "diagonal"):
            if not is_vector:
                raise ValueError(
                    f"`diffusion` of {self.noise} noise must return the shape {wanted} of the state, found {shape}; "
                    f"for a matrix take noise='general'"
                )
        elif not (is_matrix or (self.noise == "additive" and is_vector)) or 0 in shape:
            raise ValueError(
                f"`diffusion` of {self.noise} noise must return an array (*state, components) = ({_join(wanted)}m), "
                f"found {shape}; for one value per entry of the state take noise='diagonal'"
            )
        if g.dtype.kind not in "biuf":
            raise TypeError(f"`diffusion` must return real numbers, found dtype {g.dtype}")
        if not np.isfinite(g).all():
            raise ValueError(f"`diffusion` must be finite at the beginning, t = {self.t_span[0]:g}, found {g!r:.80}")
        return shape

    @property
    def n_components(self) -> int:
        """The number of components of W."""
        if self.noise == "scalar":
            return 1
        return self.y0.size if self.diffusion_shape == self.y0.shape else self.diffusion_shape[-1]

    def convert(self, calculus: str) -> SDE:
        """The same process in the other calculus: the drift changes by half the derivative of g in the direction g.

        Parameters
        ----------
        calculus : {"ito", "stratonovich"}
            The sense of the integral of the result.

        Returns
        -------
        SDE

        Examples
        --------
        >>> import stepnet as sn
        >>> gbm = sn.SDE(lambda t, y: 0.05 * y, lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
        >>> gbm.convert("stratonovich").calculus
        'stratonovich'
        """
        if not isinstance(calculus, str) or calculus not in CALCULI:
            raise UnknownName("calculus", calculus, CALCULI)
        if calculus == self.calculus:
            return self
        change = 0.0 if self.noise == "additive" else 0.5 if calculus == "ito" else -0.5
        return replace(self, calculus=calculus, correction=self.correction + change)


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Langevin:
    """dq = v dt, m dv = F(t, q) dt - m c v dt + sqrt(2 m c T) dW: Langevin dynamics of friction c and temperature T.

    If F = -grad U, the stationary density of (q, v) is proportional to exp(-(U(q) + m v^2 / 2) / T).

    Parameters
    ----------
    force : callable
        `F(t, q, *args)`, returning an array of the shape of `q0`.
    q0, v0 : array_like
        Initial positions and velocities, of equal shapes, in float64.
    t_span : (float, float)
        Beginning and end, t0 < t1.
    args : tuple
        Further arguments of `force`.
    friction : float
        The rate c at which velocities decay, from 0 on.
    temperature : float
        T in units of energy, from 0 on.
    mass : float or array_like
        One positive mass, or an array of them that broadcasts to the shape of `q0`.
    seed, path, cells, trace
        As in `SDE`; each entry of `q0` has a component of W.

    Examples
    --------
    >>> import stepnet as sn
    >>> well = sn.Langevin(lambda t, q: -q, [1.0], [0.0], (0.0, 10.0), friction=0.5, temperature=2.0)
    >>> well.n_components
    1
    """

    force: Callable[..., Any]
    q0: np.ndarray
    v0: np.ndarray
    t_span: tuple[float, float]
    args: tuple[Any, ...] = ()
    friction: float = field(default=1.0, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    mass: Any = field(default=1.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    path: int = field(default=0, kw_only=True)
    cells: int | None = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self) -> None:
        q0, v0 = _validate_pair("q0", self.q0, "v0", self.v0)
        if q0.dtype != np.float64:
            raise TypeError(f"`q0` and `v0` of a `Langevin` problem must be float64, found {q0.dtype}")
        _set(
            self,
            q0=q0,
            v0=v0,
            t_span=_validate_forward_span(self.t_span, "a `Langevin` problem"),
            args=_as_args(self.args),
        )
        _set(
            self,
            friction=validate_number("friction", self.friction, "[0, inf)"),
            temperature=validate_number("temperature", self.temperature, "[0, inf)"),
            mass=_validate_mass(self.mass, q0.shape),
        )
        _set_path(self)
        _check_flag("trace", self.trace)

    form = ProblemForm.LANGEVIN

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then v."""
        return np.concatenate((self.q0.ravel(), self.v0.ravel()))

    @property
    def n_components(self) -> int:
        """The number of components of W."""
        return self.q0.size

    @cached_property
    def acceleration(self) -> Callable[..., Any]:
        """F / m; the force itself if all masses are 1."""
        if np.all(self.mass == 1.0):
            return self.force
        force, mass = self.force, np.array(np.broadcast_to(self.mass, self.q0.shape))

        def acceleration(t: float, q: np.ndarray, *args: Any) -> np.ndarray:
            return np.asarray(force(t, q, *args)) / mass

        return acceleration

    @cached_property
    def amplitude(self) -> Callable[..., Any]:
        """sqrt(2 c T / m) as a function of any arguments."""
        value = np.array(np.broadcast_to(np.sqrt(2.0 * self.friction * self.temperature / self.mass), self.q0.shape))

        def amplitude(t: float, q: np.ndarray, *args: Any) -> np.ndarray:
            return value

        return amplitude


StochasticProblem = SDE | Langevin
Problem = ODE | Partitioned | SecondOrder | Split | SDE | Langevin


def _validate_forward_span(value: Any, kind: str) -> tuple[float, float]:
    t0, t1 = validate_span(value)
    if not (t0 < t1 and isfinite(t1)):
        raise ValueError(f"`t_span` of {kind} must be two finite times, the second later, found {(t0, t1)}")
    return t0, t1


def _set_path(problem: Any) -> None:
    """Validate the numbers of a Brownian path."""
    _set(
        problem,
        seed=validate_count("seed", problem.seed, 0, MOST_SEED),
        path=validate_count("path", problem.path, 0, MOST_PATH),
        cells=None if problem.cells is None else validate_count("cells", problem.cells, 1, MOST_CELLS),
    )


def _validate_mass(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    mass = _validate_initial_state("mass", value)
    if mass.dtype.kind != "f" or not np.all(mass > 0.0):
        raise ValueError(f"`mass` must be positive, found {value!r:.60}")
    try:
        np.broadcast_to(mass, shape)
    except ValueError:
        raise ValueError(f"`mass` must be one number or have the shape {shape} of `q0`, found {mass.shape}") from None
    return mass


def _join(shape: tuple[int, ...]) -> str:
    return "".join(f"{n}, " for n in shape)


def state_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of a state as users see it: flat for partitioned and second-order problems."""
    return problem.y0.shape if isinstance(problem, (ODE, Split, SDE)) else problem.initial.shape


def list_part_shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The shapes of the parts of a state that functions of events take: of y, or of positions and of momenta."""
    return (state_shape(problem),) if isinstance(problem, (ODE, Split, SDE)) else (problem.q0.shape,) * 2


def restart(problem: Problem, y: np.ndarray, t_span: tuple[float, float]) -> Problem:
    """The same problem with another initial state (in the shape `state_shape`) and time span."""
    if isinstance(problem, (ODE, Split, SDE)):
        return replace(problem, y0=y, t_span=t_span)
    q, p = (half.reshape(problem.q0.shape) for half in np.split(np.ravel(y), 2))
    if isinstance(problem, (SecondOrder, Langevin)):
        return replace(problem, q0=q, v0=p, t_span=t_span)
    return replace(problem, q0=q, p0=p, t_span=t_span)


def _set(record: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _validate_initial_state(name: str, value: Any) -> np.ndarray:
    """Return a finite state as a read-only array of float64, float32 or complex128."""
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError(f"`{name}` must be an array of numbers, found a ragged sequence") from None
    array = convert_integers(name, array)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must hold numbers, found dtype {array.dtype}")
    kind = np.complex128 if array.dtype.kind == "c" else np.float32 if array.dtype == np.float32 else np.float64
    array = np.ascontiguousarray(array, dtype=kind).reshape(array.shape)
    if not is_finite(array):
        bad = np.flatnonzero(~np.isfinite(array))[0]
        raise ValueError(f"`{name}` must be finite, but entry {bad} is {array.ravel()[bad]}")
    array.flags.writeable = False
    return array


def is_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite.  A finite squared norm or sum implies it and is cheaper to compute."""
    some = np.vdot(array, array) if array.size < LONG else array.sum()
    return isfinite(abs(some)) or bool(np.isfinite(array).all())


def validate_state(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a state that may replace one of this shape and dtype."""
    state = _validate_initial_state(name, value)
    if state.shape != shape:
        raise ValueError(f"`{name}` must have the shape {shape} of the state, found {state.shape}")
    if state.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"`{name}` must be real as the state is, found complex numbers")
    return state.astype(dtype)


def _validate_matrix(name: str, value: Any, n: int, alternative: str = "") -> Any:
    """Return a constant n by n matrix, sparse or as a read-only dense copy."""
    is_sparse = hasattr(value, "tocsc")
    try:
        matrix = value if is_sparse else np.array(value)
    except ValueError:
        raise ValueError(f"`{name}` must be a matrix{alternative}, found a ragged sequence") from None
    matrix = matrix if is_sparse else convert_integers(name, matrix)
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must be a matrix{alternative}, found {type(value).__name__}")
    if not matrix.dtype.isnative:
        matrix = matrix.astype(matrix.dtype.newbyteorder("="))
    if n == 1 and matrix.shape in ((), (1,)):
        matrix = matrix.reshape(1, 1)
    if matrix.shape != (n, n):
        raise ValueError(
            f"`{name}` must have shape {(n, n)}, found {matrix.shape}: one row for every slope, one column for every "
            f"entry of the state"
        )
    if not is_sparse:
        matrix.flags.writeable = False
    return matrix


def _validate_mass_matrix(value: Any, y0: np.ndarray) -> Any:
    """Return a real, finite n by n matrix for a state of float64."""
    matrix = _validate_matrix("mass", value, y0.size)
    if y0.dtype != np.float64:
        raise TypeError(f"`mass` is for states of float64, found {y0.dtype}; convert the state")
    if matrix.dtype.kind == "c":
        raise TypeError("`mass` must be real, found complex numbers")
    if not is_finite(matrix.data if hasattr(matrix, "tocsc") else matrix):
        raise ValueError("`mass` must be finite")
    return matrix


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, found {value!r:.60}")


def _validate_pair(first_name: str, first: Any, second_name: str, second: Any) -> tuple[np.ndarray, np.ndarray]:
    q, p = _validate_initial_state(first_name, first), _validate_initial_state(second_name, second)
    if q.shape != p.shape:
        raise ValueError(f"`{first_name}` and `{second_name}` must have equal shapes, found {q.shape} and {p.shape}")
    dtype = np.result_type(q, p)
    return _validate_initial_state(first_name, q.astype(dtype)), _validate_initial_state(second_name, p.astype(dtype))


def validate_span(value: Any) -> tuple[float, float]:
    try:
        first, last = value
        t0, t1 = _as_time(first), _as_time(last)
    except OverflowError:
        raise ValueError(f"`t_span` must be within the range of float64, found {value!r:.80}") from None
    except (TypeError, ValueError):
        raise ValueError(f"`t_span` must be two numbers (t0, t1), found {value!r:.80}") from None
    if not isfinite(t0) or isnan(t1):
        raise ValueError(f"`t_span` must begin at a finite time and end at a number, found ({t0}, {t1})")
    return t0, t1


def _as_time(value: Any) -> float:
    if type(value) is not float and (isinstance(value, (str, bytes)) or np.iscomplexobj(value)):
        raise TypeError
    return float(value)


def validate_args(value: Any, old: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may replace the old ones: as many, with numbers and arrays of the same shapes."""
    args = _as_args(value)
    if len(args) != len(old):
        raise ValueError(f"`args` must hold {len(old)} argument{'s' * (len(old) != 1)} as before, found {len(args)}")
    for i, (new, before) in enumerate(zip(args, old, strict=True)):
        if isinstance(before, (int, float, complex, np.generic, np.ndarray)):
            shape, wanted = getattr(new, "shape", ()), np.shape(before)
            if not isinstance(new, (int, float, complex, np.generic, np.ndarray)) or shape != wanted:
                what = f"an array of shape {wanted}" if wanted else "a number"
                raise ValueError(f"`args[{i}]` must be {what} as before, found {new!r:.60}")
    return args


def _as_args(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"`args` must be a tuple, found {type(value).__name__}; for one argument write `args=(value,)`")
    return tuple(value)
