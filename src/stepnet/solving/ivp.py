"""`solve_ivp` with SciPy's signature, semantics and result, computed by the kernels of this package."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepnet.c_functions import check_function, is_function
from stepnet.events import Event
from stepnet.problem import ODE, Problem, is_finite, validate_span
from stepnet.records import convert_integers, format_value, shorten
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import is_adaptive, is_implicit
from stepnet.solution import Pieces, Solution, Status
from stepnet.solving.integrate import solve
from stepnet.solving.planning import DEFAULT_MAX_STEPS
from stepnet.solving.scipy_jacobians import (
    convert_complex_jacobian,
    convert_jacobian_options,
    take_complex,
    write_as_real,
)
from stepnet.validation import array, validate_flag

METHODS = {
    "RK23": "bosh3", "RK45": "dopri5", "DOP853": "dop853", "Radau": "radau5", "BDF": "ndf", "LSODA": "lsoda",
}  # fmt: skip
SCIPYS_OWN = "scipy.integrate"  # module of the classes that stand for these names
MESSAGES = {
    0: "The solver successfully reached the end of the integration interval.",
    1: "A termination event occurred.",
    -1: "Required step size is less than spacing between numbers.",
}
IN_PLACE_NAMES = ("dy", "out")  # of the third parameter, by which `ODE` recognises a function that fills its result
KNOWN_OPTIONS = {"rtol", "atol", "first_step", "max_step"}
JACOBIAN_OPTIONS = {
    "Radau": {"jac", "jac_sparsity"}, "BDF": {"jac", "jac_sparsity"}, "LSODA": {"jac", "lband", "uband", "min_step"},
}  # fmt: skip
ALL_JACOBIAN_OPTIONS = {"jac", "jac_sparsity", "lband", "uband"}  # of our own implicit schemes
LEAST_RTOL = 100 * np.finfo(float).eps
MANY = 2**62  # steps: SciPy has no limit
LEAST_ATOL = 1e-300  # in place of SciPy's 0, which divides by zero where the state is 0


class IvpResult(dict[str, Any]):
    """A dictionary whose entries are also attributes, like SciPy's `OdeResult`.

    `solver` names what computed it, such as "stepnet:dopri5"; `solution` is the `Solution` (None if an `OdeSolver`
    class of the user computed it).
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as missing:
            raise AttributeError(name) from missing

    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__

    def __dir__(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:>{width}}: {shorten(value)}" for name, value in self.items())


class DenseSolution:
    """SciPy's `sol`: the state (n,) at a time, or (n, times) at several; outside the interval it extrapolates."""

    def __init__(self, pieces: Pieces, t_end: float, is_complex: bool = False):
        self._pieces, self._is_complex = pieces, is_complex
        self.ts = np.append(pieces.t, t_end)
        self.t_min, self.t_max = sorted((self.ts[0], self.ts[-1]))

    def __repr__(self) -> str:
        return f"DenseSolution of {len(self.ts) - 1} steps, t = {self.ts[0]:g} to {self.ts[-1]:g}"

    def __call__(self, t: ArrayLike) -> np.ndarray:
        states = self._pieces(array()("t", t).astype(float))
        return np.moveaxis(states.view(complex) if self._is_complex else states, -1, 0)


def solve_ivp(
    fun: Callable[..., Any],
    t_span: Sequence[float],
    y0: ArrayLike,
    method: Any = "RK45",
    t_eval: ArrayLike | None = None,
    dense_output: bool = False,
    events: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    vectorized: bool = False,
    args: tuple[Any, ...] | None = None,
    **options: Any,
) -> IvpResult:
    """Solve an initial value problem with the arguments and the result of SciPy's `solve_ivp`.

    Parameters
    ----------
    fun : callable
        `fun(t, y, *args)`, or `fun(t, Y, *args)` with columns of states if `vectorized`.
    t_span : (float, float)
        Initial and final time; the latter may be infinite if an event is terminal.
    y0 : array_like, shape (n,)
        Initial state, real or complex.
    method : str
        "RK23", "RK45", "DOP853", "Radau" (radau5), "BDF" (ndf), "LSODA" (lsoda), or any pair of `schemes.names()`, or a
        scheme of variable order.  An `OdeSolver` class that is not SciPy's own is run by SciPy.
    t_eval : array_like, optional
        Save times; by default the state after each step is saved.
    dense_output : bool
        Whether to compute `sol`.
    events : callable or list of callables, optional
        Functions `event(t, y, *args)` with the optional attributes `terminal` (bool or count) and `direction`.
    vectorized : bool
        Whether `fun` takes states as columns.
    args : tuple, optional
        Further arguments of `fun` and of the events.
    **options
        `rtol` (1e-3), `atol` (1e-6), `first_step`, `max_step`; for implicit methods `jac`, and `jac_sparsity`
        ("Radau", "BDF") or `lband` and `uband` ("LSODA").

    Returns
    -------
    IvpResult
        With `t`, `y` (n, times), `sol`, `t_events`, `y_events`, `nfev`, `njev`, `nlu`, `status`, `message`, `success`.

    Examples
    --------
    >>> from stepnet import solve_ivp
    >>> solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], rtol=1e-8, atol=1e-10).y[:, -1].round(6)
    array([0.367879])
    """
    if inspect.isclass(method):
        if not method.__module__.startswith(SCIPYS_OWN):
            return _solve_with_scipy(fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args, options)
        method = method.__name__
    scheme = _find_scheme(method)
    args = _validate_args(args)
    y0 = _validate_state(y0)
    if not np.iterable(t_span):
        raise TypeError(f"`t_span` must be two numbers (t0, tf), found {format_value(t_span)}")
    t0, tf = validate_span(t_span)
    dense_output, vectorized = validate_flag("dense_output", dense_output), validate_flag("vectorized", vectorized)
    tolerances = _validate_options(options, y0.size, t0, tf, _list_options(method, scheme))
    derivatives = convert_jacobian_options(options, y0.size) if is_implicit(scheme) else {}
    times = None if t_eval is None else _validate_t_eval(t_eval, t0, tf)
    watched, is_listed = _validate_events(events)
    max_steps = MANY if np.isfinite(tf) else DEFAULT_MAX_STEPS
    choices = {"dense": bool(dense_output), "events": watched, "max_steps": max_steps, **tolerances}

    is_split = y0.dtype.kind == "c" and is_implicit(scheme)
    if is_split:
        _require_complex_solver(method)
        derivatives, watched = convert_complex_jacobian(derivatives), _split_events(watched)
        choices |= {
            "events": watched,
            **{name: np.repeat(choices[name], 2) for name in ("rtol", "atol") if np.ndim(choices[name])},
        }

    def run(function: Callable[..., Any]) -> IvpResult:
        start = y0.view(float) if is_split else y0
        problem = ODE(write_as_real(function) if is_split else function, start, (t0, tf), args, **derivatives)
        solution = solve(problem, scheme, save_at=times, check=False, **choices)
        _raise_failure(solution)
        return _build_result(solution, t_eval, watched if is_listed else None, is_split)

    fun = _as_columns(fun) if vectorized else _make_returning(fun)
    try:
        return run(fun)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
    return run(_make_copying(fun))


def _make_returning(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns its slopes but has a third parameter that `ODE` would fill in place."""
    function = getattr(fun, "py_func", fun)
    try:
        code = getattr(function, "__code__", None)
        names = tuple(inspect.signature(function).parameters) if code is None else code.co_varnames[: code.co_argcount]
    except (TypeError, ValueError):  # it has no signature
        return fun
    if names[2:3] and names[2] in IN_PLACE_NAMES:
        return lambda t, y, *args: fun(t, y, *args)
    return fun


def _make_copying(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that writes into its state, so that it gets a copy; rare, so used only after a failure."""
    return lambda t, y, *args: fun(t, y.copy(), *args)


def _raise_failure(solution: Solution) -> None:
    """Raise what SciPy raises: an interrupt, or an exception of the right-hand side."""
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if (
        solution.status is Status.FIELD_RAISED
        and solution.failure is not None
        and solution.failure.exception is not None
    ):
        raise solution.failure.exception


def _build_result(
    solution: Solution, t_eval: ArrayLike | None, events: tuple[Event, ...] | None, is_split: bool = False
) -> IvpResult:
    """SciPy's fields; with `is_split` the solution holds real and imaginary parts."""
    status = 0 if solution.status is Status.COMPLETED else 1 if solution.status is Status.EVENT else -1
    kind = complex if is_split else solution.y.dtype
    t, y, problem = solution.t, solution.y.view(kind).T, solution.problem
    t_events = [np.array(t) for t in solution.t_events]
    y_events = [y.view(kind) if len(y) else np.zeros(0) for y in solution.y_events]  # as SciPy, without a second axis
    if t_eval is not None:
        t = np.asarray(t_eval)[: len(t)]
    if problem.t_span[0] == problem.t_span[1]:
        t, y = _solve_empty_interval(t, y, t_eval)
        status, t_events, y_events = _find_events_at_once(problem, events or ())
    return IvpResult(
        t=t if len(t) else [],  # lists, as in SciPy
        y=y if len(t) else [],
        sol=None if solution.pieces is None else DenseSolution(solution.pieces, solution.t_end, is_split),
        t_events=None if events is None else t_events,
        y_events=None if events is None else y_events,
        nfev=solution.statistics.evaluations - solution.statistics.probes,
        njev=solution.statistics.jacobians,
        nlu=solution.statistics.factorisations,
        status=status,
        message=MESSAGES[status],
        success=status >= 0,
        solver=f"stepnet:{solution.scheme.name}",
        solution=solution,
    )


def _solve_empty_interval(t: np.ndarray, y: np.ndarray, t_eval: ArrayLike | None) -> Any:
    """For an interval of zero length SciPy reports both ends, and none of the times in `t_eval`."""
    return (t[:0], y[:, :0]) if t_eval is not None else (np.repeat(t[:1], 2), np.repeat(y[:, :1], 2, axis=1))


def _find_events_at_once(problem: Problem, events: tuple[Event, ...]) -> Any:
    """Status, times and states of the events that are zero in an interval of zero length."""
    t, y, status = problem.t_span[0], problem.initial, 0
    t_events, y_events = [], []
    for event in events:
        is_found = event.fun(t, y.copy(), *problem.args) == 0
        status = 1 if is_found and event.terminal == 1 else status
        t_events.append(np.array([t] if is_found else []))
        y_events.append(np.array([y]) if is_found else np.zeros(0))
    return status, t_events, y_events


def _solve_with_scipy(
    fun: Any,
    t_span: Any,
    y0: Any,
    method: Any,
    t_eval: Any,
    dense_output: Any,
    events: Any,
    vectorized: Any,
    args: Any,
    options: Any,
) -> IvpResult:
    from scipy.integrate import solve_ivp as scipy_solve_ivp

    found = scipy_solve_ivp(fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args, **options)
    name = method if isinstance(method, str) else method.__name__
    return IvpResult(**found, solver=f"scipy:{name}", solution=None)


def _validate_state(y0: Any) -> np.ndarray:
    """Return the initial state in double precision, as SciPy does."""
    try:
        y0 = convert_integers("y0", np.asarray(y0))
    except ValueError as wrong:
        if "`y0`" in str(wrong):
            raise
        raise ValueError("`y0` must be an array of numbers, found a ragged sequence") from None
    if y0.dtype.kind not in "biufc":
        raise ValueError(f"`y0` must hold numbers, found {y0.dtype}")  # as SciPy
    y0 = y0.astype(complex if y0.dtype.kind == "c" else float)
    if y0.ndim != 1:
        raise ValueError("`y0` must be 1-dimensional.")
    if not is_finite(y0):
        raise ValueError("All components of the initial state `y0` must be finite.")
    return y0


def _find_scheme(method: Any) -> Any:
    if isinstance(method, str) and method in METHODS:
        return catalogue.get(METHODS[method])
    try:
        scheme = catalogue.get(method)
    except LookupError as unknown:
        known = list(METHODS)
        raise ValueError(
            f"`method` must be one of {known}, an OdeSolver class or a pair of stepnet: {unknown}"
        ) from None
    if not is_adaptive(scheme):
        raise ValueError(
            f"`method` must choose its own steps, {scheme.name} has no error estimate; use `solve` with `steps`"
        )
    return scheme


def _validate_args(args: Any) -> tuple[Any, ...]:
    if args is None:
        return ()
    try:
        if isinstance(args, (str, bytes)):
            raise TypeError
        return tuple(args)
    except TypeError:
        raise TypeError(
            f"Supplied 'args' cannot be unpacked. Please supply `args` as a tuple (e.g. `args=({args},)`)"
        ) from None


def _list_options(method: Any, scheme: Any) -> set[str]:
    """The names of options that a method takes."""
    own = ALL_JACOBIAN_OPTIONS if is_implicit(scheme) else set()
    return KNOWN_OPTIONS | (JACOBIAN_OPTIONS.get(method, own) if isinstance(method, str) else own)


def _require_complex_solver(method: Any) -> None:
    if method in ("Radau", "LSODA"):
        raise ValueError("`y0` is complex, but the chosen solver does not support integration in a complex domain.")


def _split_events(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of a complex state as events of its real and imaginary parts."""
    return tuple(replace(event, fun=take_complex(event.fun)) for event in events)


def _validate_options(options: dict[str, Any], n: int, t0: float, tf: float, known: set[str]) -> dict[str, Any]:
    """Tolerances and step limits with SciPy's defaults, checks and warnings."""
    others = options.keys() - known
    if others:
        names = ", ".join(f"`{name}`" for name in sorted(others))
        warnings.warn(f"The following arguments have no effect for a chosen solver: {names}.", stacklevel=3)
    rtol, atol = (
        _validate_tolerance(name, options.get(name, default)) for name, default in (("rtol", 1e-3), ("atol", 1e-6))
    )
    if _find_least(rtol) < LEAST_RTOL:
        advice = f"Setting `rtol = np.maximum(rtol, {LEAST_RTOL})`."
        warnings.warn(f"At least one element of `rtol` is too small. {advice}", stacklevel=3)
        rtol = np.maximum(rtol, LEAST_RTOL)
    if not isinstance(atol, float) and atol.shape not in ((), (n,)):
        raise ValueError("`atol` has wrong shape.")
    if _find_least(atol) < 0:
        raise ValueError("`atol` must be positive.")
    least_step = options.get("min_step", 0.0)
    if "min_step" in known and least_step != 0:
        if not least_step > 0:
            raise ValueError("`min_step` must be nonnegative.")
        raise ValueError(
            f"`min_step` must be 0, the default, found {least_step!r}: a step that is too long is an error"
        )
    max_step = options.get("max_step", np.inf)
    if max_step <= 0:
        raise ValueError("`max_step` must be positive.")
    first_step = options.get("first_step")
    if first_step is not None:
        if first_step <= 0:
            raise ValueError("`first_step` must be positive.")
        if first_step > abs(tf - t0):
            raise ValueError("`first_step` exceeds bounds.")
    atol = max(atol, LEAST_ATOL) if isinstance(atol, float) else np.maximum(atol, LEAST_ATOL)
    return {"rtol": rtol, "atol": atol, "max_step": max_step, "first_step": first_step}


def _validate_tolerance(name: str, value: Any) -> float | np.ndarray:
    return value if isinstance(value, float) else array(dtype=float)(name, value)


def _find_least(tolerance: float | np.ndarray) -> float:
    """The smallest tolerance, NaN ignored."""
    return tolerance if isinstance(tolerance, float) else np.fmin.reduce(tolerance, axis=None, initial=np.inf)


def _validate_t_eval(t_eval: Any, t0: float, tf: float) -> np.ndarray:
    try:
        times = array(dtype=float)("t_eval", t_eval)
    except TypeError:
        raise TypeError(f"`t_eval` must be an array of times, found {format_value(t_eval)}") from None
    if times.ndim != 1:
        raise ValueError("`t_eval` must be 1-dimensional.")
    low, high, upward = (t0, tf, times) if t0 <= tf else (tf, t0, times[::-1])
    if times.size and low <= upward[0] and upward[-1] <= high and (upward[:-1] < upward[1:]).all():
        return times
    if np.any(times < low) or np.any(times > high):
        raise ValueError("Values in `t_eval` are not within `t_span`.")
    if low < high and np.any(upward[1:] <= upward[:-1]):
        raise ValueError("Values in `t_eval` are not properly sorted.")
    return times


def _validate_events(events: Any) -> tuple[tuple[Event, ...], bool]:
    if events is None:
        return (), False
    if not np.iterable(events):
        check_function("events", events)
    functions = (events,) if is_function(events) else tuple(events)
    return tuple(_validate_event(function) for function in functions), True


def _validate_event(function: Callable[..., Any]) -> Event:
    terminal = getattr(function, "terminal", None) or False
    if terminal is not True and terminal is not False and (int(terminal) != terminal or terminal < 0):
        raise ValueError("The `terminal` attribute of each event must be a boolean or positive integer.")
    direction = int(np.sign(getattr(function, "direction", 0) or 0))
    return Event(
        _make_returning(function), direction, terminal if isinstance(terminal, bool) else int(terminal), at_start=True
    )


def _as_columns(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of columns so that it takes one state."""

    def single(t: float, y: np.ndarray, *args: Any) -> Any:
        return np.asarray(fun(t, y[:, None], *args))[:, 0]

    return single
