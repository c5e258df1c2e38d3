"""odeint, odeint_adjoint and odeint_event, with torchdiffeq's arguments and meaning."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from stepnet.checkpoints import Checkpoints
from stepnet.engines.torch_engine.explicit_rk import accepted_steps, attempt, inside_of, interpolant, slope_at
from stepnet.engines.torch_engine.fields import Single, State, checked, joined, modules_of, parted
from stepnet.engines.torch_engine.fixed import (
    Fixed,
    Grid,
    Manner,
    fixed_run,
    grid_of_numbers,
    grid_of_tensor,
    split_at_opening,
    states_at,
)
from stepnet.engines.torch_engine.reversal import states_with_checkpoints
from stepnet.engines.torch_engine.step_control import How
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.torch.callbacks import warn_of_adjoint_callbacks, watch_of
from stepnet.torch.methods import scheme_of, theirs_of
from stepnet.torch.options import checked_options, checked_times, even_grid, how_of, is_fixed, numbers_of
from stepnet.torch.states import Posed, explain, posed, require_finite
from stepnet.torch.until_event import between_steps, until_event, until_event_of_steps

BOUNDED = Checkpoints(slots=32)
EVEN = 1e-5  # relative difference of steps that float32 times still make
Solver = Callable[[Fixed, State, Sequence[int]], list[State]]


def odeint(func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None):
    """The solution of y' = func(t, y), y(t[0]) = y0 at the times t; gradients by plain autograd.

    Parameters
    ----------
    func : callable, or Partitioned, SecondOrder, Split
        `func(t, y)`, t a tensor without dimensions; gives a tensor like y, or a tuple of them.
    y0 : tensor or tuple of tensors
        The state at t[0]; any shape, floating-point or complex.
    t : tensor
        Times, increasing or decreasing.
    rtol, atol : float, tensor, or tuple with an entry for each tensor of y0
        Tolerances of adaptive steps.
    method : str or scheme, optional
        A name of torchdiffeq or of `stepnet.schemes` ("rk4" is torchdiffeq's, the 3/8 rule), or a scheme.  Pairs
        choose their steps unless a step size is given; other schemes step from time to time of t.
    options : dict, optional
        For given steps step_size, grid_constructor, interp ("linear", "cubic"), perturb; for adaptive ones first_step,
        min_step, max_step, max_num_steps, step_t, jump_t, norm, controller, safety, ifactor, dfactor.  field_dtype (as
        torch.bfloat16) is that in which func is evaluated; sums keep the precision of y0.
    event_fn : callable, optional
        `event_fn(t, y)`, a tensor: the solve ends where any entry changes its sign.  Then t has two entries, the
        second of which only shows the direction.

    Returns
    -------
    tensor (times, *shape), or a tuple of such tensors; with `event_fn` the time of the event before it
    """
    if (theirs := theirs_of(method)) is not None:
        return theirs.odeint(func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn)
    return _integrate(func, y0, t, rtol, atol, method, options, event_fn, states_at)


def odeint_adjoint(
    func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None, adjoint_rtol=None,
    adjoint_atol=None, adjoint_method=None, adjoint_options=None, adjoint_params=None, memory=BOUNDED,
):  # fmt: skip
    """As `odeint`, with exact gradients of the discrete solution in bounded memory.

    Steps are run again on the way back, in the order of `stepnet.checkpoints.binomial`.

    Parameters
    ----------
    adjoint_params : sequence of tensors, optional
        What to differentiate with respect to, besides y0; the parameters of func by default.
    adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options
        torchdiffeq's, which solves a second equation backward; here there is none, and they change nothing.
    memory : "all" or Checkpoints
        How much of the run is kept; "all" is plain autograd.
    """
    if (theirs := theirs_of(method)) is not None:
        return theirs.odeint_adjoint(
            func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn, adjoint_rtol=adjoint_rtol,
            adjoint_atol=adjoint_atol, adjoint_method=adjoint_method, adjoint_options=adjoint_options,
            adjoint_params=adjoint_params,
        )  # fmt: skip
    warn_of_adjoint_callbacks(func)
    if isinstance(memory, str) and memory == "all":
        return _integrate(func, y0, t, rtol, atol, method, options, event_fn, states_at)
    if not isinstance(memory, Checkpoints) or memory.disk is not None:
        raise TypeError(f'`memory` must be "all" or `Checkpoints` in memory, found {memory!r:.80}')
    parameters = _parameters(func, y0, adjoint_params)

    def solver(run: Fixed, state: State, steps: Sequence[int]) -> list[State]:
        size = len(run.motion.step.outputs) * sum(part.numel() * part.element_size() for part in state)
        return states_with_checkpoints(run, state, steps, parameters, memory.slots_for(max(size, 1)))

    return _integrate(func, y0, t, rtol, atol, method, options, event_fn, solver)


def _parameters(func, y0, given) -> tuple[Tensor, ...]:
    if given is not None:
        return tuple(p for p in given if p.requires_grad)
    modules = [func] if isinstance(func, torch.nn.Module) else [] if callable(func) else modules_of(func)
    if not modules:
        raise ValueError("`func` is no module whose parameters could be found; give `adjoint_params`, () for none")
    return tuple(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))


def _integrate(func, y0, t, rtol, atol, method, options, event_fn, solver: Solver):
    problem = posed(func, y0)
    try:
        return _integrated(func, problem, t, rtol, atol, method, options, event_fn, solver)
    except RuntimeError as error:
        explain(error, func, problem.state)
        raise


def _integrated(func, problem: Posed, t, rtol, atol, method, options, event_fn, solver: Solver):
    scheme, t = scheme_of(method), checked_times(t)
    options = checked_options(scheme, options)
    _require_match(problem, scheme)
    if t.device != problem.state[0].device:
        raise ValueError(f"`t` must be on {problem.state[0].device}, where `y0` is, found {t.device}")
    if len(t) == 1 and event_fn is None:
        return problem.trajectory([problem.state])
    are_given = is_fixed(scheme, options)
    watch = watch_of(func, problem, are_given)
    begun = replace(problem, state=_shifted(problem, problem.state, t[0], -1.0))
    if are_given:
        manner = Manner(options.get("field_dtype"), bool(options.get("perturb", False)), watch)
        if event_fn is not None:
            return until_event_of_steps(begun, scheme, t, event_fn, options, manner)
        return problem.trajectory(_fixed(problem, scheme, t, options, manner, solver))
    require_finite(problem.state)
    how = how_of(problem, scheme, rtol, atol, options)._replace(watch=watch)
    manner = Manner(options.get("field_dtype"), bool(how.jumps))
    if event_fn is not None:
        return until_event(begun, scheme, t, event_fn, how, manner)
    solve = _adaptive if solver is states_at else _adaptive_twice
    times = numbers_of(t)
    _, *later = solve(begun, scheme, times, how._replace(marks=tuple(times)), manner, solver)
    ends = [_shifted(problem, state, time, 1.0) for state, time in zip(later, t[1:], strict=True)]
    return problem.trajectory([problem.state, *ends])


def _shifted(problem: Posed, state: State, t: Tensor, sign: float) -> State:
    """The same state with the derivative of the solution in t, if t has a gradient: steps are chosen by numbers."""
    if not t.requires_grad:
        return state
    y = joined(problem.field, state)
    return parted(
        problem.field, y + sign * checked(problem.field.whole)(t.detach().to(y.real.dtype), y) * (t - t.detach())
    )


def odeint_event(func, y0, t0, *, event_fn, reverse_time=False, odeint_interface=odeint, **kwargs):
    """The first time after t0 (before it with `reverse_time`) at which event_fn(t, y) is zero, and [y0, y there].

    Both have gradients, by the implicit function theorem.
    """
    first = t0.reshape(-1)
    return odeint_interface(
        func, y0, torch.cat((first, first.detach() + (-1.0 if reverse_time else 1.0))), event_fn=event_fn, **kwargs
    )


def _require_match(problem: Posed, scheme) -> None:
    """Refuse a scheme that cannot run the problem, with the reason."""
    is_second = type(problem.field).__name__ == "SecondOrder"
    if isinstance(scheme, Splitting):
        if isinstance(problem.field, Single):
            raise TypeError(f"{scheme.name} moves parts in turn; use `Partitioned`, `SecondOrder` or `Split`")
        if not problem.field.is_separable:
            raise TypeError(f"{scheme.name} needs dq(t, p) and dp(t, q); a problem with separable=False has none")
        if scheme.nystrom and not is_second:
            raise TypeError(f"{scheme.name} keeps its order only for q'' = a(t, q); use `SecondOrder`")
    if isinstance(scheme, Multistep) and scheme.derivative == 2 and not is_second:
        raise TypeError(f"{scheme.name} integrates q'' = a(t, q); use `SecondOrder`")


def _is_readable(t: Tensor) -> bool:
    """Whether times may be read as numbers: they have values, and nobody differentiates or traces them."""
    return type(t) is Tensor and not (torch.compiler.is_compiling() or t.requires_grad or t.is_meta)


def _fixed(problem: Posed, scheme, t: Tensor, options: dict, manner: Manner, solver: Solver) -> list[State]:
    """States at the times t by given steps."""
    state = problem.state
    if "step_size" not in options and "grid_constructor" not in options:
        grid = grid_of_numbers(numbers_of(t)) if _is_readable(t) else grid_of_tensor(t.to(state[0].real.dtype))
        _require_even(scheme, grid)
        return _solved(problem, scheme, grid, range(len(t)), manner, solver)
    if t.requires_grad:
        raise ValueError("`t` that requires a gradient goes with steps from time to time; leave out `step_size`")
    times = numbers_of(t)
    nodes = _grid_times(problem, t, times, options)
    _require_even(scheme, grid_of_numbers(nodes))
    sign = 1.0 if nodes[-1] > nodes[0] else -1.0
    ends = [bisect_left([sign * node for node in nodes], sign * time) for time in times]
    wanted = sorted({*ends, *(i - 1 for i, time in zip(ends, times, strict=True) if nodes[i] != time)})
    states = _solved(problem, scheme, grid_of_numbers(nodes), wanted, manner, solver)
    found = dict(zip(wanted, states, strict=True))
    between = between_steps(options)
    return [
        found[i] if nodes[i] == time else between(problem, found[i - 1], found[i], (nodes[i - 1], nodes[i], time))
        for i, time in zip(ends, times, strict=True)
    ]


def _grid_times(problem: Posed, t: Tensor, times: list[float], options: dict) -> list[float]:
    if "step_size" in options:
        return even_grid(times, options["step_size"])
    nodes = numbers_of(options["grid_constructor"](problem.field.whole, joined(problem.field, problem.state), t))
    if nodes[0] != times[0] or nodes[-1] != times[-1]:
        raise ValueError(f"`grid_constructor` must give times from {times[0]} to {times[-1]}, found {nodes[:6]}")
    return nodes


def _require_even(scheme, grid: Grid) -> None:
    if isinstance(scheme, Multistep) and not isinstance(grid.h[0], Tensor):
        lengths = [abs(h) for h in grid.h]
        low, high = min(lengths), max(lengths)
        if high - low > EVEN * high:
            raise ValueError(f"{scheme.name} is a multistep scheme for equal steps, found steps from {low} to {high}")


def _solved(problem: Posed, scheme, grid: Grid, steps: Sequence[int], manner: Manner, solver: Solver) -> list[State]:
    """States after these steps; those inside the opening of a multistep scheme come from its starter."""
    if steps[0] == 0:
        return [problem.state, *_solved(problem, scheme, grid, steps[1:], manner, solver)]
    run = fixed_run(problem.field, scheme, grid, manner)
    starting, early, late = split_at_opening(run, scheme, steps)
    first = states_at(starting, problem.state, early) if early else []
    return [*first, *(solver(run, problem.state, late) if late else [])]


def _adaptive(problem: Posed, scheme, times: list[float], how: How, manner: Manner, solver: Solver) -> list[State]:
    """States at the times by adaptive steps."""
    fun, y = checked(problem.field.whole, manner.dtype), joined(problem.field, problem.state)
    found = [y]
    for step in accepted_steps(fun, scheme, y, times[0], times[-1], how):
        inside = _inside(step.t, step.h, times, len(found))
        found += map(interpolant(scheme, step), inside) if inside else []
        y = step.y_new
    return [parted(problem.field, y) for y in [*found, y]]


def _inside(t: float, h: float, times: list[float], first: int) -> list[float]:
    """The wanted times that the step from t of length h passes, but not the last one, at which steps end."""
    last = first
    while last < len(times) - 1 and (times[last] - t) / h <= 1.0:
        last += 1
    return times[first:last]


def _adaptive_twice(
    problem: Posed, scheme, times: list[float], how: How, manner: Manner, solver: Solver
) -> list[State]:
    """The same: the steps are found first, and then they are given ones."""
    fun, y = checked(problem.field.whole, manner.dtype), joined(problem.field, problem.state)
    with torch.no_grad():
        steps = [(s.t, s.h) for s in accepted_steps(fun, scheme, y.detach(), times[0], times[-1], how)]
    grid = Grid([*(t for t, _ in steps), times[-1]], [h for _, h in steps])
    plan = [(i, _inside(t, h, times, 1)) for i, (t, h) in enumerate(steps)]
    wanted, done = [], 0
    for i, passed in plan:
        if len(passed) > done:
            wanted.append((i, passed[done:]))
            done = len(passed)
    places = [*(i for i, _ in wanted), len(steps)]
    *starts, end = _solved(problem, scheme, grid, places, manner, solver)
    found = [problem.state]
    for (i, passed), state in zip(wanted, starts, strict=True):
        start = joined(problem.field, state)
        bounds = inside_of(grid.t[i], grid.t[i + 1], y) if how.jumps else (-inf, inf)
        slope = slope_at(fun, y, bounds)
        step = attempt(slope, scheme, *steps[i], start, slope(steps[i][0], start))
        found += [parted(problem.field, inside) for inside in map(interpolant(scheme, step), passed)]
    return [*found, end]
