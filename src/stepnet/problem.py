"""What to solve: frozen records that check their numbers when they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, isnan

import numpy as np

from stepnet.c_functions import check_function
from stepnet.records import convert_integers, explain_arguments, show_fields

LONG = 10_000  # entries from which on BLAS starts threads, which costs more than a product


@explain_arguments()
@dataclass(frozen=True, eq=False)
class ODE:
    """y' = f(t, y), y(t0) = y0 on t_span = (t0, t1); t1 < t0 integrates backward.

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
        df/dy as `jac(t, y, *args)`, dense or sparse, or the matrix itself if it is constant.  As a Jacobian it wins
        over what tracing finds; gradients, which want df/dp too, take `vjp`, then a trace, then this.
    jac_sparsity : array_like or sparse matrix, optional
        Nonzero where slope i depends on entry j; needed only where that cannot be found out.
    jvp, vjp : callable or C function, optional
        `jvp(t, y, v, *args)` giving (df/dy) v and `vjp(t, y, w, *args)` giving w (df/dy).
    trace : bool
        False refuses tracing: the functions of the problem are then compiled by Numba, or called back in Python.
    """

    fun: Callable
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple = ()
    jac: object = field(default=None, kw_only=True)
    jac_sparsity: object = field(default=None, kw_only=True)
    jvp: object = field(default=None, kw_only=True)
    vjp: object = field(default=None, kw_only=True)
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self):
        _set(self, y0=_validate_initial_state("y0", self.y0), t_span=span_of(self.t_span), args=_as_args(self.args))
        n = self.y0.size
        _set(
            self,
            jac=self.jac
            if callable(self.jac)
            else _validate_matrix("jac", self.jac, n, " or a function returning one"),
        )
        _set(self, jac_sparsity=_validate_matrix("jac_sparsity", self.jac_sparsity, n))
        for name in ("jvp", "vjp"):
            if getattr(self, name) is not None:
                check_function(name, getattr(self, name))
        _check_flag("trace", self.trace)

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Partitioned:
    """q' = dq(t, p), p' = dp(t, q): what splitting schemes want; q = q0, p = p0 at the beginning.

    With `separable=False` both right-hand sides are called as (t, q, p, *args).

    Parameters
    ----------
    dq, dp : callable or C function
        `dq(t, p, *args)` and `dp(t, q, *args)`, returning arrays or filling `dy` in place as in `ODE`.
    q0, p0 : array_like
        Initial state, equal shapes.
    t_span, args, trace
        As in `ODE`.
    """

    dq: Callable
    dp: Callable
    q0: np.ndarray
    p0: np.ndarray
    t_span: tuple[float, float]
    args: tuple = ()
    separable: bool = True
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self):
        q0, p0 = _validate_pair("q0", self.q0, "p0", self.p0)
        _set(self, q0=q0, p0=p0, t_span=span_of(self.t_span), args=_as_args(self.args))
        _check_flag("separable", self.separable)
        _check_flag("trace", self.trace)

    @property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then p."""
        return np.concatenate((self.q0.ravel(), self.p0.ravel()))


@explain_arguments()
@dataclass(frozen=True, eq=False)
class SecondOrder:
    """q'' = a(t, q), q = q0 and q' = v0 at the beginning.

    Parameters
    ----------
    acceleration : callable or C function
        `a(t, q, *args)`, returning an array or filling `dy` in place as in `ODE`.
    q0, v0 : array_like
        Initial positions and velocities, equal shapes.
    t_span, args, trace
        As in `ODE`.
    """

    acceleration: Callable
    q0: np.ndarray
    v0: np.ndarray
    t_span: tuple[float, float]
    args: tuple = ()
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self):
        q0, v0 = _validate_pair("q0", self.q0, "v0", self.v0)
        _set(self, q0=q0, v0=v0, t_span=span_of(self.t_span), args=_as_args(self.args))
        _check_flag("trace", self.trace)

    @property
    def initial(self) -> np.ndarray:
        """The flat initial state: q, then v."""
        return np.concatenate((self.q0.ravel(), self.v0.ravel()))


@explain_arguments()
@dataclass(frozen=True, eq=False)
class Split:
    """y' = f1(t, y) + f2(t, y) + ...: the parts are integrated in turn by a splitting scheme.

    Parameters
    ----------
    parts : sequence of callables or C functions
        Each as `fun` in `ODE`; all get the same `args`.
    y0, t_span, args, trace
        As in `ODE`.
    """

    parts: tuple[Callable, ...]
    y0: np.ndarray
    t_span: tuple[float, float]
    args: tuple = ()
    trace: bool = field(default=True, kw_only=True)

    __repr__ = show_fields

    def __post_init__(self):
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
            t_span=span_of(self.t_span),
            args=_as_args(self.args),
        )
        _check_flag("trace", self.trace)

    @cached_property
    def initial(self) -> np.ndarray:
        """The flat initial state."""
        return self.y0.ravel()


Problem = ODE | Partitioned | SecondOrder | Split


def state_shape(problem: Problem) -> tuple[int, ...]:
    """The shape in which states are given to users: flat for problems in halves."""
    return problem.y0.shape if isinstance(problem, (ODE, Split)) else problem.initial.shape


def restart(problem: Problem, y: np.ndarray, t_span: tuple[float, float]) -> Problem:
    """The same problem from another state (flat for problems in halves) and over another time span."""
    if isinstance(problem, (ODE, Split)):
        return replace(problem, y0=y, t_span=t_span)
    q, p = (half.reshape(problem.q0.shape) for half in np.split(np.ravel(y), 2))
    if isinstance(problem, SecondOrder):
        return replace(problem, q0=q, v0=p, t_span=t_span)
    return replace(problem, q0=q, p0=p, t_span=t_span)


def _set(record, **values) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _validate_initial_state(name: str, value) -> np.ndarray:
    """A state as a read-only array of float64, float32 or complex128, every entry finite."""
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
    """Whether all entries are finite.  If the square of their norm or their sum is, so are they, and sooner known."""
    some = np.vdot(array, array) if array.size < LONG else array.sum()
    return isfinite(abs(some)) or bool(np.isfinite(array).all())


def validate_state(name: str, value, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A state to put in the place of another one."""
    state = _validate_initial_state(name, value)
    if state.shape != shape:
        raise ValueError(f"`{name}` must have the shape {shape} of the state, found {state.shape}")
    if state.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"`{name}` must be real as the state is, found complex numbers")
    return state.astype(dtype)


def _validate_matrix(name: str, value, n: int, alternative: str = ""):
    """A constant n by n matrix, dense (then a read-only copy) or sparse, or None."""
    if value is None:
        return None
    is_sparse = hasattr(value, "tocsc")
    try:
        matrix = value if is_sparse else np.array(value)
    except ValueError:
        raise ValueError(f"`{name}` must be a matrix{alternative}, found a ragged sequence") from None
    matrix = matrix if is_sparse else convert_integers(name, matrix)
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"`{name}` must be a matrix{alternative}, found {type(value).__name__}")
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


def _check_flag(name: str, value) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, found {value!r:.60}")


def _validate_pair(first_name: str, first, second_name: str, second) -> tuple[np.ndarray, np.ndarray]:
    q, p = _validate_initial_state(first_name, first), _validate_initial_state(second_name, second)
    if q.shape != p.shape:
        raise ValueError(f"`{first_name}` and `{second_name}` must have equal shapes, found {q.shape} and {p.shape}")
    dtype = np.result_type(q, p)
    return _validate_initial_state(first_name, q.astype(dtype)), _validate_initial_state(second_name, p.astype(dtype))


def span_of(value) -> tuple[float, float]:
    try:
        times = tuple(value)
        if any(isinstance(t, (str, bytes)) or np.iscomplexobj(t) for t in times):
            raise TypeError
        t0, t1 = (float(t) for t in times)
    except OverflowError:
        raise ValueError(f"`t_span` must be within the range of float64, found {value!r:.80}") from None
    except (TypeError, ValueError):
        raise ValueError(f"`t_span` must be two numbers (t0, t1), found {value!r:.80}") from None
    if not isfinite(t0) or isnan(t1):
        raise ValueError(f"`t_span` must begin at a finite time and end at a number, found ({t0}, {t1})")
    return t0, t1


def validate_args(value, old: tuple) -> tuple:
    """Arguments to go on with in the place of old ones: as many, and numbers and arrays of the same shapes."""
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


def _as_args(value) -> tuple:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"`args` must be a tuple, found {type(value).__name__}; for one argument write `args=(value,)`")
    return tuple(value)
