"""odeint, odeint_adjoint and odeint_event, with torchdiffeq's arguments and meaning."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from stepnet.checkpoints import Checkpoints
from stepnet.engines.torch_engine.blocks import Course
from stepnet.engines.torch_engine.events import combined, first_event, linked
from stepnet.engines.torch_engine.explicit_rk import Attempt, accepted_steps, attempt, interpolant, slope_at
from stepnet.engines.torch_engine.fields import Single, State, checked, joined, modules_of, parted
from stepnet.engines.torch_engine.fixed import (
    Fixed,
    Grid,
    Reading,
    choreography,
    fixed_run,
    grid_of_numbers,
    grid_of_tensor,
    itself,
    split_at_opening,
    states_at,
)
from stepnet.engines.torch_engine.gradients import exact, is_one_node
from stepnet.engines.torch_engine.step_control import How
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.torch.adjoint_equation import seminorm, solved_with_adjoint_equation
from stepnet.torch.memory import checked_memory
from stepnet.torch.methods import scheme_of
from stepnet.torch.options import checked_options, checked_times, even_grid, how_of, is_fixed, numbers_of
from stepnet.torch.states import Posed, posed

BOUNDED = Checkpoints(slots=32)
EVEN = 1e-5  # relative difference of steps that float32 times still make
Told = tuple[Any, Any, Any, Any]  # rtol, atol, method, options
Solver = Callable[[Fixed, State, Sequence[Reading]], list[State]]


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
        For given steps step_size, grid_constructor, interp ("linear", "cubic"); for adaptive ones first_step,
        max_step, max_num_steps, norm, controller, safety, ifactor, dfactor.  field_dtype (as torch.bfloat16) is that
        in which func is evaluated; sums keep the precision of y0.
    event_fn : callable, optional
        `event_fn(t, y)`, a tensor: the solve ends where any entry changes its sign.  Then t has two entries, the
        second of which only shows the direction.

    Returns
    -------
    tensor (times, *shape), or a tuple of such tensors; with `event_fn` the time of the event before it
    """
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
        What to differentiate with respect to, besides y0 and t; the parameters of func by default.
    adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options
        Of the second equation that memory="continuous" solves backward, those of the first by default; its errors may
        be measured by the norm "seminorm".  Exact gradients have no such equation, and nothing is changed.
    memory : str, int or Checkpoints, optional
        How much of the run is kept: `Checkpoints` of states or bytes, a number of bytes, "all" (plain autograd),
        "reversible" (steps are undone), "auto" (all if that is little, else one of the two before), or "continuous"
        (torchdiffeq's adjoint equation).
    """
    memory = checked_memory(memory)
    told = (rtol, atol, method, options)
    if memory == "all":
        return _integrate(func, y0, t, *told, event_fn, states_at)
    without_norm = {name: value for name, value in (options or {}).items() if name != "norm"}
    back = (
        rtol if adjoint_rtol is None else adjoint_rtol,
        atol if adjoint_atol is None else adjoint_atol,
        method if adjoint_method is None else adjoint_method,
        without_norm if adjoint_options is None else adjoint_options,
    )
    return _in_memory(func, y0, t, told, event_fn, back, _parameters(func, y0, adjoint_params), memory)


@torch.compiler.disable
def _in_memory(func, y0, t, told: Told, event_fn, back: Told, parameters: tuple[Tensor, ...], memory):
    """A solve that autograd does not write down in full, if there is a gradient to be found at all."""
    parts = y0 if isinstance(y0, tuple) else (y0,)
    if not is_one_node([x for x in (*parts, t, *parameters) if isinstance(x, Tensor)]):
        return _integrate(func, y0, t, *told, event_fn, states_at)
    if memory == "continuous":
        if event_fn is not None:
            raise ValueError('`memory`="continuous" goes without `event_fn`; take `Checkpoints`')
        forward = lambda func, y0, t: _integrate(func, y0, t, *told, None, states_at)
        return solved_with_adjoint_equation(func, y0, t, parameters, forward, _backward(*back))
    if memory == "reversible":
        _require_reversible(func, y0, told[2])

    def solver(run: Fixed, state: State, readings: Sequence[Reading]) -> list[State]:
        return exact(Course(run, tuple(readings), parameters), memory, state)

    return _integrate(func, y0, t, *told, event_fn, solver)


def _backward(rtol, atol, method, options):
    """How the adjoint equation is solved."""
    if options.get("norm") == "seminorm":
        options = options | {"norm": seminorm}
    return lambda func, y0, t: _integrate(func, y0, t, rtol, atol, method, options, None, states_at)


def _require_reversible(func, y0, method) -> None:
    scheme = scheme_of(method)
    if choreography(scheme, posed(func, y0).field).motion.back is None:
        raise ValueError(
            f'`memory`="reversible" asks for steps that can be undone, which those of {scheme.name} cannot; take '
            "`Checkpoints`, or a splitting scheme for `Partitioned` or `SecondOrder`"
        )


def _parameters(func, y0, given) -> tuple[Tensor, ...]:
    if given is not None:
        return tuple(p for p in given if p.requires_grad)
    modules = [func] if isinstance(func, torch.nn.Module) else [] if callable(func) else modules_of(func)
    if not modules:
        raise ValueError("`func` is no module whose parameters could be found; give `adjoint_params`, () for none")
    return tuple(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))


def _integrate(func, y0, t, rtol, atol, method, options, event_fn, solver: Solver):
    scheme, problem, t = scheme_of(method), posed(func, y0), checked_times(t)
    options = checked_options(scheme, options)
    _require_match(problem, scheme)
    if t.device != problem.state[0].device:
        raise ValueError(f"`t` must be on {problem.state[0].device}, where `y0` is, found {t.device}")
    if len(t) == 1 and event_fn is None:
        return problem.trajectory([problem.state])
    if is_fixed(scheme, options):
        if event_fn is not None:
            raise ValueError(f"`event_fn` goes with adaptive steps, and those of {scheme.name} are given; use a pair")
        return problem.trajectory(_fixed(problem, scheme, t, options, solver))
    how, dtype = how_of(problem, scheme, rtol, atol, options), options.get("field_dtype")
    begun = _shifted(problem, problem.state, t[0], -1.0)
    if event_fn is not None:
        return _until_event(replace(problem, state=begun), scheme, t, event_fn, how, dtype, solver)
    solve = _adaptive if solver is states_at else _adaptive_twice
    _, *later = solve(replace(problem, state=begun), scheme, numbers_of(t), how, dtype, solver)
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


def _until_event(problem: Posed, scheme, t: Tensor, event_fn, how: How, dtype, solver: Solver):
    """Time of the event, and the states at t[0] and there; t[1] says in which direction to look."""
    if len(t) != 2:
        raise ValueError(f"`t` must be the first time and one that shows the direction for an event, found {len(t)}")
    fun, y = checked(problem.field.whole, dtype), joined(problem.field, problem.state)
    span, event = numbers_of(t), problem.called(event_fn)
    if solver is states_at:
        time, end = first_event(fun, scheme, y, span, event, how)
    else:
        time, end = _first_event_twice(problem, scheme, span, event, how, dtype, solver)
    return time.to(t.dtype), problem.trajectory([problem.state, parted(problem.field, end)])


def _first_event_twice(problem: Posed, scheme, span: list[float], event: Callable, how: How, dtype, solver: Solver):
    """Its time and the steps up to it are found first; then they are given, and the state is read from the last one."""
    fun, y, steps = checked(problem.field.whole, dtype), joined(problem.field, problem.state), []
    with torch.no_grad():
        found = float(first_event(fun, scheme, y.detach(), span, event, how)[0])
    if found == span[0]:
        return first_event(fun, scheme, y, span, event, how)
    with torch.no_grad():
        for step in accepted_steps(fun, scheme, y.detach(), span[0], inf if span[1] > span[0] else -inf, how):
            steps.append((step.t, step.h))
            if (found - step.t) / step.h <= 1.0:
                break
    run = fixed_run(problem.field, scheme, Grid([t for t, _ in steps], [h for _, h in steps]), dtype)
    at_event = Reading(len(steps) - 1, _reader(problem, scheme, fun, steps[-1], [found]))
    solve = solver if len(steps) > 1 else states_at
    (end,) = solve(run, problem.state, [at_event])
    beginning = torch.full((), span[0], dtype=y.real.dtype, device=y.device)
    return linked(fun, combined(event, beginning, y), found, joined(problem.field, end))


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


def _fixed(problem: Posed, scheme, t: Tensor, options: dict, solver: Solver) -> list[State]:
    """States at the times t by given steps."""
    state, dtype = problem.state, options.get("field_dtype")
    if "step_size" not in options and "grid_constructor" not in options:
        grid = grid_of_numbers(numbers_of(t)) if _is_readable(t) else grid_of_tensor(t.to(state[0].real.dtype))
        _require_even(scheme, grid)
        return _solved(problem, scheme, grid, range(len(t)), dtype, solver)
    if t.requires_grad:
        raise ValueError("`t` that requires a gradient goes with steps from time to time; leave out `step_size`")
    times = numbers_of(t)
    nodes = _grid_times(problem, t, times, options)
    _require_even(scheme, grid_of_numbers(nodes))
    sign = 1.0 if nodes[-1] > nodes[0] else -1.0
    ends = [bisect_left([sign * node for node in nodes], sign * time) for time in times]
    wanted = sorted({*ends, *(i - 1 for i, time in zip(ends, times, strict=True) if nodes[i] != time)})
    states = _solved(problem, scheme, grid_of_numbers(nodes), wanted, dtype, solver)
    found = dict(zip(wanted, states, strict=True))
    between = _linear if options.get("interp", "linear") == "linear" else _cubic
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


def _solved(problem: Posed, scheme, grid: Grid, steps: Sequence[int], dtype, solver: Solver) -> list[State]:
    """States after these steps; those inside the opening of a multistep scheme come from its starter."""
    if steps[0] == 0:
        return [problem.state, *_solved(problem, scheme, grid, steps[1:], dtype, solver)]
    run = fixed_run(problem.field, scheme, grid, dtype)
    starting, early, late = split_at_opening(run, scheme, [Reading(step, itself) for step in steps])
    first = states_at(starting, problem.state, early) if early else []
    return [*first, *(solver(run, problem.state, late) if late else [])]


def _linear(problem: Posed, before: State, after: State, times: tuple[float, float, float]) -> State:
    start, end, t = times
    theta = (t - start) / (end - start)
    return tuple(torch.lerp(a, b, theta) for a, b in zip(before, after, strict=True))


def _cubic(problem: Posed, before: State, after: State, times: tuple[float, float, float]) -> State:
    """The Hermite polynomial through both ends and their slopes."""
    start, end, t = times
    h, x = end - start, (t - start) / (end - start)
    a, b = joined(problem.field, before), joined(problem.field, after)
    slope = slope_at(checked(problem.field.whole), a)
    k = h * (x * (1 - x) ** 2 * slope(start, a) - x**2 * (1 - x) * slope(end, b))
    return parted(problem.field, (1 - x) ** 2 * (1 + 2 * x) * a + x**2 * (3 - 2 * x) * b + k)


def _adaptive(problem: Posed, scheme, times: list[float], how: How, dtype, solver: Solver) -> list[State]:
    """States at the times by adaptive steps."""
    fun, y = checked(problem.field.whole, dtype), joined(problem.field, problem.state)
    found = [y]
    for step in accepted_steps(fun, scheme, y, times[0], times[-1], how):
        inside = _inside(step, times, len(found))
        found += map(interpolant(fun, scheme, step), inside) if inside else []
        y = step.y_new
    return [parted(problem.field, y) for y in [*found, y]]


def _inside(step: Attempt, times: list[float], first: int) -> list[float]:
    """The wanted times that the step passes, but not the last one, at which it ends."""
    last = first
    while last < len(times) - 1 and (times[last] - step.t) / step.h <= 1.0:
        last += 1
    return times[first:last]


def _adaptive_twice(problem: Posed, scheme, times: list[float], how: How, dtype, solver: Solver) -> list[State]:
    """The same: the steps are found first, and then they are given ones."""
    fun, y = checked(problem.field.whole, dtype), joined(problem.field, problem.state)
    with torch.no_grad():
        steps = [(s.t, s.h) for s in accepted_steps(fun, scheme, y.detach(), times[0], times[-1], how)]
    readings = [
        Reading(i, _reader(problem, scheme, fun, step, inside), len(inside))
        for i, (step, inside) in enumerate(_passed(steps, times, y))
        if inside
    ]
    run = fixed_run(problem.field, scheme, Grid([t for t, _ in steps], [h for _, h in steps]), dtype)
    return [problem.state, *solver(run, problem.state, [*readings, Reading(len(steps), itself)])]


def _passed(steps: list[tuple[float, float]], times: list[float], y: Tensor):
    """Every step with the wanted times inside it."""
    done = 1
    for t, h in steps:
        inside = _inside(Attempt(t, h, y, [], y, []), times, done)
        done += len(inside)
        yield (t, h), inside


def _reader(problem: Posed, scheme, fun: Callable, step: tuple[float, float], times: list[float]):
    """Reads the states at these times from the one at the beginning of the step."""

    def read(state: State) -> list[State]:
        start = joined(problem.field, state)
        slope = slope_at(fun, start)
        taken = attempt(slope, scheme, *step, start, slope(step[0], start))
        return [parted(problem.field, inside) for inside in map(interpolant(fun, scheme, taken), times)]

    return read
