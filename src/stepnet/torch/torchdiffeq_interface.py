"""odeint, odeint_adjoint and odeint_event, with torchdiffeq's arguments and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepnet import validation as checks
from stepnet.checkpoints import Checkpoints
from stepnet.engines.torch_engine.adjoint.autograd_node import is_one_node
from stepnet.engines.torch_engine.codegen.compilation import break_graph
from stepnet.engines.torch_engine.integrators.fixed_steps import EvaluationOptions, find_compiled_scheme, read_states_at
from stepnet.engines.torch_engine.rhs.tensor_fields import SingleField, State, join, part, validate_function
from stepnet.engines.torch_engine.runs.rng_and_autocast import disable_autocast_cache
from stepnet.records import validate_number
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.torch.adaptive_steps import AdaptiveSolve, solve_adaptive_steps
from stepnet.torch.adjoint_equation import GradientRequest, seminorm, solve_with_adjoint_equation
from stepnet.torch.callbacks import find_callbacks, report_adjoint_steps, warn_of_adjoint_callbacks
from stepnet.torch.fixed_steps import CheckpointedSolver, Solver, is_readable, solve_fixed_steps
from stepnet.torch.function_modules import find_modules
from stepnet.torch.memory import validate_memory
from stepnet.torch.methods import find_scheme, find_torchdiffeq
from stepnet.torch.options import (
    EVENT,
    build_control_settings,
    checked_dict,
    is_fixed,
    move_times,
    read_numbers,
    validate_options,
    validate_times,
)
from stepnet.torch.perceptrons import find_perceptron, solve_perceptron
from stepnet.torch.states import TensorProblem, explain, pose_problem, require_finite
from stepnet.torch.terminal_event import solve_steps_until_event, solve_until_event

BOUNDED = Checkpoints(slots=32)
Told = tuple[Any, Any, Any, Any]  # rtol, atol, method, options


def odeint(func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None):
    """The solution of y' = func(t, y), y(t[0]) = y0 at the times t; gradients by plain autograd.

    Given steps of a perceptron have a derivative written by hand, see `recognised`.

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
    if (theirs := find_torchdiffeq(method)) is not None:
        return theirs.odeint(func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn)
    return _integrate(func, y0, t, rtol, atol, method, options, event_fn, read_states_at)


def odeint_adjoint(
    func, y0, t, *, rtol=1e-7, atol=1e-9, method=None, options=None, event_fn=None, adjoint_rtol=None,
    adjoint_atol=None, adjoint_method=None, adjoint_options=None, adjoint_params=None, memory=BOUNDED,
):  # fmt: skip
    """As `odeint`, with exact gradients of the discrete solution in bounded memory.

    Steps are run again on the way back, in the order of `stepnet.checkpoints.binomial`.

    Parameters
    ----------
    adjoint_params : sequence of tensors, optional
        What to differentiate with respect to, besides y0 and t, and nothing else.  By default the parameters of func
        and all other tensors that its first step depends on: those that a closure, an attribute or a list holds,
        results of other networks, parameters that are not registered.
    adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options
        Of the second equation that memory="continuous" solves backward, those of the first by default; its errors may
        be measured by the norm "seminorm".  Exact gradients have no such equation, and nothing is changed.
    memory : str, int or Checkpoints, optional
        How much of the run is kept: `Checkpoints` of states or bytes, a number of bytes, "all" (plain autograd),
        "reversible" (steps are undone), "auto" (all if that is little, else one of the two before), or "continuous"
        (torchdiffeq's adjoint equation).
    """
    if (theirs := find_torchdiffeq(method)) is not None:
        return theirs.odeint_adjoint(
            func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn, adjoint_rtol=adjoint_rtol,
            adjoint_atol=adjoint_atol, adjoint_method=adjoint_method, adjoint_options=adjoint_options,
            adjoint_params=adjoint_params,
        )  # fmt: skip
    memory = validate_memory(memory)
    if memory != "continuous":
        warn_of_adjoint_callbacks(func)
    told = (rtol, atol, method, options)
    if memory == "all":
        return _integrate(func, y0, t, *told, event_fn, read_states_at)
    without_norm = {name: value for name, value in checked_dict("options", options).items() if name != "norm"}
    back = (
        rtol if adjoint_rtol is None else adjoint_rtol,
        atol if adjoint_atol is None else adjoint_atol,
        method if adjoint_method is None else adjoint_method,
        without_norm if adjoint_options is None else adjoint_options,
    )
    if adjoint_params is not None:
        adjoint_params = checks.sequence(checks.instance(Tensor))("adjoint_params", adjoint_params)
    checked_dict("adjoint_options", adjoint_options)
    parameters = None if adjoint_params is None else tuple(p for p in adjoint_params if p.requires_grad)
    return _solve_in_memory(func, y0, t, told, event_fn, back, parameters, memory)


@break_graph
def _solve_in_memory(func, y0, t, told: Told, event_fn, back: Told, given: tuple[Tensor, ...] | None, memory):
    """A solve that autograd does not write down in full, if there is a gradient to be found at all."""
    parts = y0 if isinstance(y0, tuple) else (y0,)
    modules = find_modules(func)
    parameters = _list_parameters(modules) if given is None else given
    is_known = given is not None or isinstance(func, torch.nn.Module)
    if is_known and not is_one_node([x for x in (*parts, t, *parameters) if isinstance(x, Tensor)]):
        return _integrate(func, y0, t, *told, event_fn, read_states_at)
    if memory == "continuous":
        if event_fn is not None:
            raise ValueError('`memory`="continuous" goes without `event_fn`; take `Checkpoints`')
        forward = lambda func, y0, t: _integrate(func, y0, t, *told, None, read_states_at)
        asked = GradientRequest(parameters, modules, given is not None)
        with disable_autocast_cache(parts[0].device.type):
            return solve_with_adjoint_equation(func, y0, t, asked, forward, _choose_backward(func, *back))
    if memory == "reversible":
        _require_reversible(func, y0, told[2])
    solver = CheckpointedSolver(parameters, memory, modules, given is not None)
    with disable_autocast_cache(parts[0].device.type):
        return _integrate(func, y0, t, *told, event_fn, solver)


def _choose_backward(func, rtol, atol, method, options):
    """How the adjoint equation is solved."""
    if options.get("norm") == "seminorm":
        options = options | {"norm": seminorm}
    told = (rtol, atol, method, options)
    return lambda slopes, y0, t: _integrate(report_adjoint_steps(slopes, func), y0, t, *told, None, read_states_at)


def _require_reversible(func, y0, method) -> None:
    scheme = find_scheme(method)
    if find_compiled_scheme(scheme, pose_problem(func, y0).field).motion.back is None:
        raise ValueError(
            f'`memory`="reversible" asks for steps that can be undone, which those of {scheme.name} cannot; take '
            "`Checkpoints`, or a splitting scheme for `Partitioned` or `SecondOrder`"
        )


def _list_parameters(modules: Sequence[torch.nn.Module]) -> tuple[Tensor, ...]:
    """All parameters that require a gradient, each once."""
    return tuple(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))


def _integrate(func, y0, t, rtol, atol, method, options, event_fn, solver: Solver):
    """By compilers only what reads no numbers: fixed steps without an event."""
    told = checked_dict("options", options)
    if torch.compiler.is_compiling() and (event_fn is not None or not is_fixed(find_scheme(method), told)):
        return _integrate_eagerly(func, y0, t, rtol, atol, method, options, event_fn, solver)
    return _integrate_here(func, y0, t, rtol, atol, method, options, event_fn, solver)


def _integrate_here(func, y0, t, rtol, atol, method, options, event_fn, solver: Solver):
    if event_fn is not None and not callable(event_fn):
        raise TypeError(f"`event_fn` must be a function (t, y), found {type(event_fn).__name__}")
    problem = pose_problem(func, y0)
    try:
        return _integrate_differentiably(func, problem, t, rtol, atol, method, options, event_fn, solver)
    except RuntimeError as error:
        explain(error, func, problem.state)
        raise


_integrate_eagerly = break_graph(_integrate_here)


def _integrate_differentiably(func, problem: TensorProblem, t, rtol, atol, method, options, event_fn, solver: Solver):
    scheme, t = find_scheme(method), validate_times(t)
    options = validate_options(scheme, options, *(() if event_fn is None else EVENT))
    _require_match(problem, scheme)
    if not is_readable(t):
        t = move_times(t, problem.state[0].device)
    if len(t) == 1 and event_fn is None:
        return problem.trajectory([problem.state])
    are_given = is_fixed(scheme, options)
    watch = find_callbacks(func, problem, are_given)
    begun = replace(problem, state=_shift(problem, problem.state, t[0], -1.0))
    if are_given:
        manner = EvaluationOptions(options.get("field_dtype"), bool(options.get("perturb", False)), watch)
        if event_fn is not None:
            return solve_steps_until_event(begun, scheme, t, event_fn, options, manner, solver)
        field = find_perceptron(func, problem, scheme, t, options, manner, solver)
        if field is not None:
            return solve_perceptron(field, problem.state[0], scheme, t, options, solver)
        return problem.trajectory(solve_fixed_steps(problem, scheme, t, options, manner, solver))
    require_finite(problem.state)
    how = build_control_settings(problem, scheme, rtol, atol, options)._replace(watch=watch)
    task = AdaptiveSolve(begun, scheme, how, EvaluationOptions(options.get("field_dtype"), bool(how.jumps)))
    if event_fn is not None:
        return solve_until_event(task, t, event_fn, options, solver)
    times = read_numbers(t)
    _, *later = solve_adaptive_steps(task._replace(how=how._replace(marks=tuple(times))), times, solver)
    ends = [_shift(problem, state, time, 1.0) for state, time in zip(later, t[1:], strict=True)]
    return problem.trajectory([problem.state, *ends])


def _shift(problem: TensorProblem, state: State, t: Tensor, sign: float) -> State:
    """The same state with the derivative of the solution in t, if t has a gradient: steps are chosen by numbers."""
    if not t.requires_grad:
        return state
    y = join(problem.field, state)
    return part(
        problem.field,
        y + sign * validate_function(problem.field.whole)(t.detach().to(y.real.dtype), y) * (t - t.detach()),
    )


def odeint_event(func, y0, t0, *, event_fn, reverse_time=False, odeint_interface=odeint, t_max=None, **kwargs):
    """The first time after t0 (before it with `reverse_time`) at which event_fn(t, y) is zero, and [y0, y there].

    Both have gradients, by the implicit function theorem.  The search ends with an error at `t_max`, if it is given,
    or after `options["max_num_steps"]` steps (100 000).
    """
    if not isinstance(t0, Tensor) or t0.numel() != 1 or not t0.is_floating_point():
        raise TypeError(f"`t0` must be a floating-point tensor with one time, found {type(t0).__name__}")
    first, reverse_time = t0.reshape(-1), checks.flag("reverse_time", reverse_time)
    checks.function("odeint_interface", odeint_interface)
    if t_max is not None:
        t_max = validate_number("t_max", t_max.item() if isinstance(t_max, Tensor) and t_max.numel() == 1 else t_max)
        kwargs["options"] = {**(checked_dict("options", kwargs.get("options"))), "t_max": t_max}
    return odeint_interface(
        func, y0, torch.cat((first, first.detach() + (-1.0 if reverse_time else 1.0))), event_fn=event_fn, **kwargs
    )


def _require_match(problem: TensorProblem, scheme) -> None:
    """Refuse a scheme that cannot run the problem, with the reason."""
    is_second = type(problem.field).__name__ == "SecondOrder"
    if isinstance(scheme, Splitting):
        if isinstance(problem.field, SingleField):
            raise TypeError(f"{scheme.name} moves parts in turn; use `Partitioned`, `SecondOrder` or `Split`")
        if not problem.field.is_separable:
            raise TypeError(f"{scheme.name} needs dq(t, p) and dp(t, q); a problem with separable=False has none")
        if scheme.nystrom and not is_second:
            raise TypeError(f"{scheme.name} keeps its order only for q'' = a(t, q); use `SecondOrder`")
    if isinstance(scheme, Multistep) and scheme.derivative == 2 and not is_second:
        raise TypeError(f"{scheme.name} integrates q'' = a(t, q); use `SecondOrder`")
