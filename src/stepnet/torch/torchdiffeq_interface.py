"""odeint, odeint_adjoint and odeint_event, with torchdiffeq's arguments and semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepnet import validation as checks
from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import require_undoable, validate_memory
from stepnet.engines.torch_engine import (
    CheckpointedSolver,
    EvaluationOptions,
    GradientRequest,
    Solver,
    TensorPlan,
    TensorProblem,
    break_graph,
    build_tensor_problem,
    disable_autocast_cache,
    explain,
    is_one_node,
    is_readable,
    read_states_at,
    require_finite,
    run,
    seminorm,
    solve_with_adjoint_equation,
)
from stepnet.problem import ProblemForm
from stepnet.records import explain_passed_arguments, validate_number
from stepnet.schemes.capabilities import find_parts_refusal, find_refusal, has_inverse, is_implicit
from stepnet.torch.callbacks import find_callbacks, report_adjoint_steps, warn_of_adjoint_callbacks
from stepnet.torch.function_modules import find_modules, list_parameters
from stepnet.torch.methods import find_scheme, find_torchdiffeq
from stepnet.torch.options import (
    EVENT,
    Tolerance,
    build_control_settings,
    is_fixed,
    move_times,
    validate_dict,
    validate_options,
    validate_times,
)

if TYPE_CHECKING:
    from stepnet.checkpoints.budget import Memory
    from stepnet.engines.torch_engine import Partitioned, SecondOrder, Split

    Func = Callable[..., Any] | Partitioned | SecondOrder | Split

BOUNDED = Checkpoints(slots=32)
MEMORIES = ("auto", "all", "reversible", "continuous")
SolverArguments = tuple[Any, Any, Any, Any]  # rtol, atol, method, options


def odeint(
    func: Func, y0: Tensor | tuple[Tensor, ...], t: Tensor, *, rtol: Tolerance = 1e-7, atol: Tolerance = 1e-9,
    method: Any = None, options: dict[str, Any] | None = None, event_fn: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Solve y' = func(t, y), y(t[0]) = y0 at the times t; gradients by plain autograd.

    Fixed steps of a perceptron have a hand-written derivative, see `recognised`.

    Parameters
    ----------
    func : callable, or Partitioned, SecondOrder, Split
        `func(t, y)` with a zero-dimensional tensor t, returning a tensor like y or a tuple of tensors.
    y0 : tensor or tuple of tensors
        The state at t[0]; any shape, floating-point or complex.
    t : tensor
        Times, increasing or decreasing.
    rtol, atol : float, tensor, or tuple with an entry for each tensor of y0
        Tolerances of adaptive steps.
    method : str or scheme, optional
        A name of torchdiffeq or of `stepnet.schemes` ("rk4" is torchdiffeq's, the 3/8 rule), or a scheme.  Pairs take
        adaptive steps unless a step size is given; other schemes take one step between consecutive times of t.
    options : dict, optional
        For fixed steps step_size, grid_constructor, interp ("linear", "cubic"), perturb; for adaptive ones first_step,
        min_step, max_step, max_num_steps, step_t, jump_t, norm, controller, safety, ifactor, dfactor.  field_dtype
        (such as torch.bfloat16) is the dtype in which func is evaluated; sums keep the precision of y0.
    event_fn : callable, optional
        `event_fn(t, y)`, a tensor: the solve ends where any entry changes sign.  Then t has two entries, the second of
        which only gives the direction.

    Returns
    -------
    tensor (times, *shape), or a tuple of such tensors; with `event_fn` preceded by the time of the event

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> snt.odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))[-1]
    tensor([0.3679])
    """
    if (theirs := find_torchdiffeq(method)) is not None:
        return theirs.odeint(func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn)
    return _integrate(func, y0, t, rtol, atol, method, options, event_fn, read_states_at)


def odeint_adjoint(
    func: Func, y0: Tensor | tuple[Tensor, ...], t: Tensor, *, rtol: Tolerance = 1e-7, atol: Tolerance = 1e-9,
    method: Any = None, options: dict[str, Any] | None = None, event_fn: Callable[..., Any] | None = None,
    adjoint_rtol: Tolerance | None = None, adjoint_atol: Tolerance | None = None, adjoint_method: Any = None,
    adjoint_options: dict[str, Any] | None = None, adjoint_params: Sequence[Tensor] | None = None,
    memory: Memory | int = BOUNDED,
) -> Any:  # fmt: skip
    """As `odeint`, with exact gradients of the discrete solution in bounded memory.

    Steps are run again in the reverse sweep, in the order of `stepnet.checkpoints.binomial`.

    Parameters
    ----------
    adjoint_params : sequence of tensors, optional
        The tensors to differentiate with respect to, besides y0 and t.  By default the parameters of func and all other
        tensors that its first step depends on: those in a closure, an attribute or a list, outputs of other networks,
        unregistered parameters.
    adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options
        For the adjoint equation that memory="continuous" solves backward, by default those of the forward solve; the
        norm of its errors may be "seminorm".  They have no effect on exact gradients.
    memory : str, int or Checkpoints, optional
        The memory policy: `Checkpoints` of states or bytes, a number of bytes, "all" (plain autograd), "reversible"
        (steps are inverted), "auto" (all if they are small, otherwise reversible or checkpoints), or "continuous"
        (torchdiffeq's adjoint equation).
    func, y0, t, rtol, atol, method, options, event_fn
        As in `odeint`.

    Returns
    -------
    Tensor or tuple of Tensor
        As in `odeint`.

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> k = torch.tensor(2.0, requires_grad=True)
    >>> end = snt.odeint_adjoint(lambda t, y: -k * y, torch.ones(1), torch.tensor([0.0, 1.0]), adjoint_params=[k])[-1]
    >>> torch.autograd.grad(end.sum(), k)[0]
    tensor(-0.1353)
    """
    if (theirs := find_torchdiffeq(method)) is not None:
        return theirs.odeint_adjoint(
            func, y0, t, rtol=rtol, atol=atol, options=options, event_fn=event_fn, adjoint_rtol=adjoint_rtol,
            adjoint_atol=adjoint_atol, adjoint_method=adjoint_method, adjoint_options=adjoint_options,
            adjoint_params=adjoint_params,
        )  # fmt: skip
    memory = validate_memory(memory, MEMORIES)
    if memory != "continuous":
        warn_of_adjoint_callbacks(func)
    arguments = (rtol, atol, method, options)
    if memory == "all":
        return _integrate(func, y0, t, *arguments, event_fn, read_states_at)
    without_norm = {name: value for name, value in validate_dict("options", options).items() if name != "norm"}
    back = (
        rtol if adjoint_rtol is None else adjoint_rtol,
        atol if adjoint_atol is None else adjoint_atol,
        method if adjoint_method is None else adjoint_method,
        without_norm if adjoint_options is None else adjoint_options,
    )
    if adjoint_params is not None:
        adjoint_params = checks.sequence(checks.instance(Tensor))("adjoint_params", adjoint_params)
    validate_dict("adjoint_options", adjoint_options)
    parameters = None if adjoint_params is None else tuple(p for p in adjoint_params if p.requires_grad)
    return _solve_in_memory(func, y0, t, arguments, event_fn, back, parameters, memory)


@break_graph
def _solve_in_memory(
    func: Func, y0: Tensor | tuple[Tensor, ...], t: Tensor, arguments: SolverArguments,
    event_fn: Callable[..., Any] | None, back: SolverArguments, given: tuple[Tensor, ...] | None, memory: Memory,
) -> Any:  # fmt: skip
    """Solve without a full autograd graph, if any gradient is required."""
    parts = y0 if isinstance(y0, tuple) else (y0,)
    modules = find_modules(func)
    parameters = list_parameters(modules) if given is None else given
    is_known = given is not None or isinstance(func, torch.nn.Module)
    if is_known and not is_one_node([x for x in (*parts, t, *parameters) if isinstance(x, Tensor)]):
        return _integrate(func, y0, t, *arguments, event_fn, read_states_at)
    if memory == "continuous":
        if event_fn is not None:
            raise ValueError('`memory`="continuous" cannot be combined with `event_fn`; use `Checkpoints`')
        forward = lambda func, y0, t: _integrate(func, y0, t, *arguments, None, read_states_at)
        asked = GradientRequest(parameters, modules, given is not None)
        with disable_autocast_cache(parts[0].device.type):
            return solve_with_adjoint_equation(func, y0, t, asked, forward, _choose_backward(func, *back))
    if memory == "reversible":
        scheme, problem = find_scheme(arguments[2]), build_tensor_problem(func, y0)
        _require_match(problem, scheme)
        require_undoable(has_inverse(scheme, problem.field.form), scheme.name)
    solver = CheckpointedSolver(parameters, memory, modules, given is not None)
    with disable_autocast_cache(parts[0].device.type):
        return _integrate(func, y0, t, *arguments, event_fn, solver)


def _choose_backward(
    func: Func, rtol: Tolerance, atol: Tolerance, method: Any, options: dict[str, Any]
) -> Callable[..., Any]:
    """The settings of the adjoint equation."""
    if options.get("norm") == "seminorm":
        options = options | {"norm": seminorm}
    arguments = (rtol, atol, method, options)
    return lambda slopes, y0, t: _integrate(report_adjoint_steps(slopes, func), y0, t, *arguments, None, read_states_at)


def _integrate(
    func: Func, y0: Tensor | tuple[Tensor, ...], t: Tensor, rtol: Tolerance, atol: Tolerance, method: Any,
    options: dict[str, Any] | None, event_fn: Callable[..., Any] | None, solver: Solver,
) -> Any:  # fmt: skip
    """Integrate; only fixed explicit steps without an event, which read no data, can be compiled."""
    validated = validate_dict("options", options)
    if torch.compiler.is_compiling() and (event_fn is not None or _reads_data(find_scheme(method), validated)):
        return _integrate_eagerly(func, y0, t, rtol, atol, method, options, event_fn, solver)
    return _integrate_here(func, y0, t, rtol, atol, method, options, event_fn, solver)


def _reads_data(scheme: Any, options: dict[str, Any]) -> bool:
    """Whether steps depend on numbers that are read: error estimates, or the convergence of implicit stages."""
    return not is_fixed(scheme, options) or is_implicit(scheme)


def _integrate_here(
    func: Func, y0: Tensor | tuple[Tensor, ...], t: Tensor, rtol: Tolerance, atol: Tolerance, method: Any,
    options: dict[str, Any] | None, event_fn: Callable[..., Any] | None, solver: Solver,
) -> Any:  # fmt: skip
    if event_fn is not None and not callable(event_fn):
        raise TypeError(f"`event_fn` must be a function (t, y), found {type(event_fn).__name__}")
    problem = build_tensor_problem(func, y0)
    try:
        return _integrate_differentiably(func, problem, t, rtol, atol, method, options, event_fn, solver)
    except RuntimeError as error:
        explain(error, func, problem.state)
        raise


_integrate_eagerly = break_graph(_integrate_here)


def _integrate_differentiably(
    func: Func, problem: TensorProblem, t: Tensor, rtol: Tolerance, atol: Tolerance, method: Any,
    options: dict[str, Any] | None, event_fn: Callable[..., Any] | None, solver: Solver,
) -> Any:  # fmt: skip
    scheme, t = find_scheme(method), validate_times(t)
    options = validate_options(scheme, options, *(() if event_fn is None else EVENT))
    _require_match(problem, scheme)
    if not is_readable(t):
        t = move_times(t, problem.state[0].device)
    if len(t) == 1 and event_fn is None:
        return problem.trajectory([problem.state])
    are_given = is_fixed(scheme, options)
    watch = find_callbacks(func, problem, are_given)
    field_dtype = options.get("field_dtype")
    if are_given:
        evaluation = EvaluationOptions(field_dtype, bool(options.get("perturb", False)), watch)
        return run(problem, scheme, TensorPlan(t, None, evaluation, options, event_fn, solver))
    require_finite(problem.state)
    how = build_control_settings(problem, scheme, rtol, atol, options)._replace(watch=watch)
    evaluation = EvaluationOptions(field_dtype, bool(how.jumps))
    return run(problem, scheme, TensorPlan(t, how, evaluation, options, event_fn, solver))


@explain_passed_arguments
def odeint_event(
    func: Func, y0: Tensor | tuple[Tensor, ...], t0: Tensor, *, event_fn: Callable[..., Any],
    reverse_time: bool = False, odeint_interface: Callable[..., Any] = odeint, t_max: float | Tensor | None = None,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """The first time after t0 (before it with `reverse_time`) where event_fn(t, y) is zero, and [y0, y at that time].

    Both have gradients, by the implicit function theorem.  The search fails at `t_max`, if given,
    or after `options["max_num_steps"]` steps (100 000).

    Parameters
    ----------
    func, y0, event_fn
        As in `odeint`.
    t0 : Tensor
        Initial time.
    reverse_time : bool, optional
        Whether to search backward in time.
    odeint_interface : callable, optional
        `odeint` or `odeint_adjoint`.
    t_max : float or Tensor, optional
        Where the search ends.
    **kwargs
        Further arguments of `odeint_interface`.

    Returns
    -------
    tuple of Tensor
        The time, and the states (2, *shape).

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> t, y = snt.odeint_event(lambda t, y: -y, torch.ones(1), torch.tensor(0.0), event_fn=lambda t, y: y - 0.5)
    >>> t
    tensor(0.6931)
    """
    if not isinstance(t0, Tensor) or t0.numel() != 1 or not t0.is_floating_point():
        raise TypeError(f"`t0` must be a floating-point tensor with one time, found {type(t0).__name__}")
    first, reverse_time = t0.reshape(-1), checks.validate_flag("reverse_time", reverse_time)
    checks.function("odeint_interface", odeint_interface)
    if t_max is not None:
        t_max = validate_number("t_max", t_max.item() if isinstance(t_max, Tensor) and t_max.numel() == 1 else t_max)
        kwargs["options"] = {**(validate_dict("options", kwargs.get("options"))), "t_max": t_max}
    return odeint_interface(
        func, y0, torch.cat((first, first.detach() + (-1.0 if reverse_time else 1.0))), event_fn=event_fn, **kwargs
    )


def _require_match(problem: TensorProblem, scheme: Any) -> None:
    """Refuse a scheme that cannot run the problem, with the reason."""
    refusal = find_refusal(scheme, problem.field.form, "a single function")
    if refusal is None and problem.field.form is ProblemForm.SUM:
        refusal = find_parts_refusal(scheme, problem.field.parts)  # type: ignore[union-attr]
    if refusal is not None:
        raise TypeError(refusal)
