"""`feynman_kac`: solutions of backward equations at single points, as expectations over paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from stepnet.errors import Interrupted, SolveFailed
from stepnet.events import Event
from stepnet.montecarlo.boundaries import build_exit, build_fold, fold_first, require_inside, unfold, validate_box
from stepnet.montecarlo.estimate import Estimate
from stepnet.montecarlo.linear_controls import BrownianEnd, linearise
from stepnet.montecarlo.path_averages import PathSums, QuasiSums, Sampling, Sums, Target, run_to_target
from stepnet.montecarlo.path_functional import PathFunctional, augment, reflect, require_result
from stepnet.montecarlo.quasi import MOST_DIMENSIONS
from stepnet.montecarlo.random_start import RandomStart, StartSums, draw_start_points
from stepnet.problem import MOST_PATH, SDE
from stepnet.records import explain_arguments, validate_thread_count
from stepnet.schemes.capabilities import needs_increments_only
from stepnet.solving.integrate import find_scheme, import_engine
from stepnet.validation import array, check, function, instance, one_of, optional, real, whole

SAMPLINGS = ("plain", "antithetic", "quasi")
LINEAR_CONTROLS = ("brownian", "linearisation")
MOST_REPLICATES = 1024
DEFAULT_PATHS = 10_000
COMPLETE = "complete"


@explain_arguments()
@check(
    sde=instance(SDE, what="an `SDE`"),
    potential=optional(function),
    source=optional(function),
    domain=optional(lambda name, value: value if isinstance(value, Event) else function(name, value)),
    boundary=optional(function),
    steps=whole(1, 2**31),
    paths=optional(whole(2, MOST_PATH)),
    error=optional(real("[1e-100, inf)")),  # its square is a number
    confidence=real("(0, 1)"),
    sampling=one_of(*SAMPLINGS),
    replicates=whole(2, MOST_REPLICATES),
    max_paths=whole(2, MOST_PATH),
    workers=optional(lambda name, value: validate_thread_count(value, name)),
)
def feynman_kac(
    sde: SDE,
    terminal: Callable[..., Any],
    x: Any = None,
    *,
    potential: Callable[..., Any] | None = None,
    source: Callable[..., Any] | None = None,
    domain: Callable[..., Any] | Event | None = None,
    boundary: Callable[..., Any] | None = None,
    reflecting: Any = None,
    scheme: Any = None,
    steps: int = 100,
    paths: int | None = None,
    error: float | None = None,
    confidence: float = 0.95,
    sampling: str = "plain",
    replicates: int = 16,
    control: Any = None,
    control_mean: Any = None,
    max_paths: int = 10**8,
    workers: int | None = None,
    progress: bool = False,
    check: bool = True,
) -> Estimate:
    """Estimate u(x, t0) = E[exp(-int V) terminal(y(T)) + int exp(-int V) source dt] over paths from y(t0) = x.

    u solves the backward equation u_t + f . grad u + 1/2 g g' : hess u - V u + source = 0 with the values u(., T) =
    terminal at the end T of `t_span` (for an Ito equation).  Every start point uses the same paths, so that u is a
    smooth function of x for fixed paths, and its value at x does not depend on other points, on the order of the
    computation or on threads.

    Parameters
    ----------
    sde : SDE
        dy = f dt + g dW; paths are counted from its `path` on.
    terminal : callable
        `terminal(y)` of one end state, returning a number.
    x : array_like or RandomStart, optional
        A start point or several, (points, *state), or a distribution of start points; by default `y0`.
    potential, source : callable, optional
        V and source, `V(t, y, *args)` of one state, returning a number.
    domain : callable or Event, optional
        `domain(t, y, *args)`, positive inside: paths stop at their first exit, which is found between the steps by the
        Brownian bridge, and have the value `boundary` there (Dirichlet conditions).
    boundary : callable, optional
        `boundary(t, y)`, returning a number; by default `terminal(y)`.
    reflecting : (array_like, array_like), optional
        Lower and upper ends of a box, infinite where it is open, whose faces reflect paths along their normals: the
        derivative of u along the normal is zero there (Neumann conditions).  Of weak order one.
    scheme, workers
        As in `solve_ensemble`.
    steps : int
        Equal steps of each path.
    paths : int, optional
        Paths from each start point; 10000 unless `error` is given.
    error : float, optional
        Half-width of the interval to reach at every start point, instead of `paths`.  A pilot run of 1024 paths
        estimates the variance.
    confidence : float
        Of the interval, for each point separately.
    sampling : {"plain", "antithetic", "quasi"}
        "antithetic": pairs of paths with W and -W.  "quasi": scrambled Sobol points in the order of a Brownian bridge,
        the error from independent scramblings; the number of paths is rounded up to a power of two for each of them.
    replicates : int
        Scramblings of quasi-Monte Carlo.
    control : callable, "brownian" or "linearisation", optional
        A control variable: a function of one end state with the known mean `control_mean`; "brownian" takes the
        components of W(T) - W(t0), which removes the part of the functional that is linear in them; "linearisation" the
        end of the equation linearised about its path without noise.
    control_mean : float or array_like, optional
        The mean of the control variable, for all points or for each.
    max_paths : int
        A target error that needs more paths is refused.
    progress : bool
        Show a progress bar.
    check : bool
        Raise an error if paths explode; with False the estimate is returned and `exploded` counts them.

    Returns
    -------
    Estimate
        The interval covers the statistical error; the discretisation error is that of the scheme and `steps`.

    Raises
    ------
    SolveFailed
        If paths become NaN or infinite; `.solution` is the estimate from the others.
    Interrupted
        After Ctrl-C; `.solution` is the estimate so far.

    Examples
    --------
    >>> import stepnet as sn
    >>> sde = sn.SDE(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y, [1.0], (0.0, 1.0))
    >>> found = sn.montecarlo.feynman_kac(sde, lambda y: y[0] ** 2, paths=4096, sampling="quasi")
    >>> abs(found.value - 0.2418) < 0.01  # exp(-2) + (1 - exp(-2)) / 8 and the error of 100 steps
    True
    """
    if paths is not None and error is not None:
        raise TypeError("give either `paths` or `error`, found both")
    target = Target(DEFAULT_PATHS if paths is None else paths, error, confidence, max_paths)
    scheme = find_scheme(sde, scheme, steps)
    start = x if isinstance(x, RandomStart) else None
    points, is_single = validate_points(None if start else x, sde)
    tried = draw_start_points(start, sde.seed, sde.path, sde.y0.shape)[:1] if start else points
    functional = build_functional(
        sde, terminal, potential, source, scheme, tried, domain=domain, boundary=boundary, reflecting=reflecting
    )
    with open_bar(progress) as show:
        how = Sampling(steps, workers, show)
        if start is not None:
            require = partial(_require_starts, sde, domain, reflecting)
            sums: Sums = _begin_random_start(functional, start, how, require, sampling, control, control_mean)
        elif sampling == "quasi":
            sums = _begin_quasi(functional, sde, points, how, replicates, control)
        else:
            sums = _begin_plain(functional, sde, points, how, sampling, control, control_mean)
        with np.errstate(over="ignore", invalid="ignore"):  # of paths that explode, which are counted
            return _finish(sums, target, sampling, is_single, check)


def validate_points(x: Any, sde: SDE) -> tuple[np.ndarray, bool]:
    """Flat start points (points, entries), and whether it is a single one without an axis of points."""
    if x is None:
        return sde.y0.reshape(1, -1), True
    found, shape = np.asarray(array()("x", x), float), sde.y0.shape
    if found.shape != shape and (found.shape[1:] != shape or found.ndim != len(shape) + 1 or not len(found)):
        raise ValueError(
            f"`x` must have the shape {shape} of the state, or (points, *state) for several points, found {found.shape}"
        )
    if not np.isfinite(found).all():
        raise ValueError("`x` must be finite, found NaN or infinity")
    return found.reshape(-1, sde.y0.size), found.shape == shape


def build_functional(
    sde: SDE,
    terminal: Callable[..., Any],
    potential: Callable[..., Any] | None,
    source: Callable[..., Any] | None,
    scheme: Any,
    points: np.ndarray,
    *,
    domain: Any = None,
    boundary: Callable[..., Any] | None = None,
    reflecting: Any = None,
) -> PathFunctional:
    """The functional of the paths, with its functions tried at the first start point."""
    shape, n = sde.y0.shape, sde.y0.size
    y, t0 = points[0].reshape(shape), sde.t_span[0]
    for name, rate in (("potential", potential), ("source", source)):
        value = 0.0 if rate is None else rate(t0, y.copy(), *sde.args)
        if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
            raise TypeError(f"`{name}` must return a number for one state, found {value!r:.80}")
        if not np.isfinite(value):
            raise ValueError(f"`{name}` must be finite at the start point, found {value}")
    if boundary is not None and domain is None:
        raise TypeError("`boundary` needs `domain`, which is missing")
    if domain is not None:
        require_inside(domain, sde, points)
    if reflecting is not None:
        require_result(sde.drift, "`reflecting` needs")
        box = validate_box(reflecting, sde, points)
        if domain is not None:
            raise ValueError("`reflecting` and `domain` exclude each other")
        potential, source = (fold_first(each, box, shape) for each in (potential, source))
        fold, end, sde = build_fold(box)[0], terminal, unfold(sde, box)
        terminal = lambda z: end(fold(z.reshape(n)).reshape(shape))
    read = import_engine().RowFunction(terminal, y, "terminal")
    added = potential is not None, source is not None
    augmented = augment(sde, potential, source)
    if domain is None:
        return PathFunctional(augmented, terminal, read, shape, *added, scheme)
    exits = build_exit(domain, shape, n)
    value = None
    if boundary is not None:
        given = boundary
        value = import_engine().RowFunction(lambda z: given(z[n], z[:n].reshape(shape)), np.append(y, t0), "boundary")
    return PathFunctional(augmented, terminal, read, shape, *added, scheme, exits, value)


def _require_starts(sde: SDE, domain: Any, reflecting: Any, points: np.ndarray) -> None:
    """Refuse start points outside of the domain or the box."""
    if domain is not None:
        require_inside(domain, sde, points)
    if reflecting is not None:
        validate_box(reflecting, sde, points)


@contextmanager
def open_bar(is_wanted: bool) -> Any:
    """A function that shows the progress, in paths."""
    if not is_wanted:
        yield lambda n: None
        return
    with tqdm(unit=" paths", unit_scale=True) as bar:
        yield bar.update


def _begin_plain(
    functional: PathFunctional, sde: SDE, points: np.ndarray, how: Sampling, sampling: str, control: Any, mean: Any
) -> PathSums:
    functionals = _pair(functional, sampling)
    if control is None:
        if mean is not None:
            raise TypeError("`control_mean` needs `control`, which is missing")
        return PathSums(functionals, points, how)
    if isinstance(control, str):
        name = one_of(*LINEAR_CONTROLS)("control", control)
        if mean is not None or sampling == "antithetic":
            raise ValueError(
                f"`control` = {name!r} has mean 0 and needs plain sampling: leave out `control_mean`, and "
                "note that antithetic pairs already remove what is linear in W"
            )
        linear = BrownianEnd(sde, how.steps) if name == "brownian" else linearise(sde, points, how.steps)
        return PathSums(functionals, points, how, linear, np.zeros((len(points), linear.number)))
    if mean is None:
        raise TypeError("`control` needs its mean, `control_mean`")
    means = array()("control_mean", mean)
    if means.shape not in ((), (len(points),)) or not np.isfinite(means).all():
        raise ValueError(f"`control_mean` must be a finite number, or one for each point, found {mean!r:.80}")
    read = import_engine().RowFunction(control, points[0].reshape(sde.y0.shape), "control")
    return PathSums(functionals, points, how, read, np.broadcast_to(means, len(points)).reshape(-1, 1))


def _pair(functional: PathFunctional, sampling: str) -> tuple[PathFunctional, ...]:
    """The functional, and that for -W if paths come in antithetic pairs."""
    return (functional, replace(functional, sde=reflect(functional.sde)))[: 1 + (sampling == "antithetic")]


def _begin_random_start(
    functional: PathFunctional, start: RandomStart, how: Sampling, require: Any, sampling: str, control: Any, mean: Any
) -> StartSums:
    if control is not None or mean is not None:
        raise ValueError("`control` cannot be combined with a `RandomStart`")
    if sampling == "quasi":
        raise ValueError("`sampling` = 'quasi' cannot be combined with a `RandomStart`, whose points are stratified")
    return StartSums(_pair(functional, sampling), start, how, require)


def _begin_quasi(
    functional: PathFunctional, sde: SDE, points: np.ndarray, how: Sampling, replicates: int, control: Any
) -> QuasiSums:
    if control is not None:
        raise ValueError("`control` cannot be combined with `sampling` = 'quasi'")
    if functional.exits is not None:
        raise ValueError(
            "`domain` cannot be combined with `sampling` = 'quasi': exits between steps are random numbers"
        )
    if not needs_increments_only(functional.scheme):
        raise ValueError(
            f"`sampling` = 'quasi' needs a scheme that takes increments of W only, and {functional.scheme.name} needs "
            f"{', '.join(functional.scheme.variables)}"
        )
    dimensions = how.steps * sde.n_components
    if dimensions > MOST_DIMENSIONS:
        raise ValueError(
            f"`sampling` = 'quasi' admits at most {MOST_DIMENSIONS} dimensions, and `steps` times the components of W "
            f"are {dimensions}; use fewer steps"
        )
    return QuasiSums(functional, points, how, sde.n_components, replicates)


def _finish(sums: Sums, target: Target, sampling: str, is_single: bool, must_check: bool) -> Estimate:
    began, is_interrupted = time.perf_counter(), False
    try:
        run_to_target(sums, target)
    except KeyboardInterrupt:
        if not sums.is_usable:
            raise
        is_interrupted = True
    found = sums.average(target.confidence)
    value, error, half = (each[0].item() if is_single else each for each in found[:3])
    message = COMPLETE
    if is_interrupted:
        message = f"interrupted after {found.paths} paths"
    elif sums.exploded:
        t0, t1 = sums.functional.sde.t_span
        message = (
            f"{sums.exploded} of {found.paths * sums.n_points} paths became NaN or infinite between t = {t0:g} and "
            f"{t1:g}, and the estimate is that of the others; use more `steps`, or a potential that is bounded below"
        )
    cost = found.paths * sums.how.steps * sums.n_points
    facts = found.paths, sums.how.steps, cost, sampling, sums.exploded, sums.rung, sums.reason
    estimate = Estimate(
        value, error, (value - half, value + half), target.confidence, *facts, time.perf_counter() - began, message
    )
    if is_interrupted:
        raise Interrupted(estimate)
    if sums.exploded and must_check:
        raise SolveFailed(estimate)
    return estimate
