"""sdeint and sdeint_adjoint, with torchsde's arguments and semantics."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from stepnet import validation as checks
from stepnet.checkpoints.budget import require_undoable, validate_memory
from stepnet.engines.torch_engine import (
    CheckpointedSolver,
    Solver,
    StepDoubling,
    StochasticField,
    StochasticPlan,
    break_graph,
    disable_autocast_cache,
    find_step_needs,
    is_one_node,
    read_states_at,
    solve_stochastic,
)
from stepnet.schemes.capabilities import find_noise_refusal, is_stochastic
from stepnet.torch.brownian_motion import BrownianInterval
from stepnet.torch.function_modules import find_modules, list_parameters
from stepnet.torch.sde_arguments import (
    build_nodes,
    build_source,
    count_components,
    find_kind,
    read_save_times,
    validate_positive,
    validate_sde_options,
    validate_state,
)
from stepnet.torch.sde_functions import SDEFunctions, add_log_ratio, build_field, find_functions
from stepnet.torch.sde_methods import (
    ADJOINT_OF_REVERSIBLE_HEUN,
    find_stochastic_scheme,
    reads_data,
)
from stepnet.torch.torchdiffeq_interface import BOUNDED

if TYPE_CHECKING:
    from stepnet.checkpoints.budget import Memory

MEMORIES = ("auto", "all", "reversible")
REVERSIBLE = "reversible_heun"
DISCRETE = ("V", "V2")  # variables of weak schemes, which depend on the number of the step


def sdeint(
    sde: Any, y0: Tensor, ts: Tensor | Sequence[float], bm: Any = None, method: Any = None, dt: float = 1e-3,
    adaptive: bool = False, rtol: float = 1e-5, atol: float = 1e-4, dt_min: float = 1e-5,
    options: dict[str, Any] | None = None, names: dict[str, str] | None = None, logqp: bool = False,
    extra: bool = False, extra_solver_state: Sequence[Tensor] | None = None,
) -> Any:  # fmt: skip
    """Solve dy = f dt + g dW, y(ts[0]) = y0 at the times ts; gradients by plain autograd.

    Parameters
    ----------
    sde : object
        With methods `f(t, y)` and `g(t, y)`, or `f_and_g`, `g_prod`, `f_and_g_prod` as in torchsde, and attributes
        `sde_type` ("ito", "stratonovich") and `noise_type`.  f is (batch, n).  g is (batch, n) for "diagonal" noise,
        (batch, n, 1) for "scalar", (batch, n, m) for "additive", "commutative" and "general" noise.
    y0 : tensor
        The state at ts[0], (batch, n).
    ts : tensor or sequence of float
        Increasing times.  Numbers in a list are not read from a device.
    bm : Brownian motion, optional
        A `BrownianInterval`, or any object with `bm(ta, tb)` and `shape` = (batch, m), such as torchsde's.  By default
        sample i has the path number i of a seed drawn from torch's generator.
    method : str or scheme, optional
        A name of torchsde ("srk" is SRA1 for additive noise and SRID2 otherwise) or of `stepnet.schemes`, or a
        stochastic scheme.  By default torchsde's choice.
    dt : float
        The step size; the first one with `adaptive`.  States between steps are interpolated linearly.
    adaptive : bool
        Choose steps by comparing a step with two of half its length, and keep the two.
    rtol, atol, dt_min : float
        Tolerances and the smallest step of `adaptive`.
    options : dict, optional
        grad_free=True: Milstein without the derivative of g.
    names : dict, optional
        Other names of methods: "drift", "diffusion", "prior_drift", "diffusion_prod", "drift_and_diffusion",
        "drift_and_diffusion_prod".
    logqp : bool
        Return also the log-ratio of the equation and the one with the prior drift `h`, between the times: (times - 1,
        batch).  Diagonal noise has a further component then.
    extra : bool
        Return also what a scheme passes from step to step besides y: (f, g, z) of "reversible_heun", else ().
    extra_solver_state : sequence of tensors, optional
        Its initial value.

    Returns
    -------
    tensor (times, batch, n), or a tuple of it, the log-ratio if `logqp`, and the state of the scheme if `extra`

    Raises
    ------
    UnknownName
        For a method, type of noise or calculus that does not exist.
    ValueError, TypeError
        For shapes that do not fit, times that do not increase, and a scheme that does not admit the noise.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import sdeint
    >>> class GBM:
    ...     sde_type, noise_type = "ito", "diagonal"
    ...     def f(self, t, y):
    ...         return 0.05 * y
    ...     def g(self, t, y):
    ...         return 0.2 * y
    >>> ys = sdeint(GBM(), torch.ones(8, 1), [0.0, 0.5, 1.0], dt=0.1)
    >>> ys.shape
    torch.Size([3, 8, 1])
    """
    steps = (dt, adaptive, rtol, atol, dt_min)
    asked = SDEArguments(sde, y0, ts, bm, method, steps, options, names, logqp, extra, extra_solver_state)
    return _integrate(asked, read_states_at)


def sdeint_adjoint(
    sde: Any, y0: Tensor, ts: Tensor | Sequence[float], bm: Any = None, method: Any = None, adjoint_method: Any = None,
    dt: float = 1e-3, adaptive: bool = False, adjoint_adaptive: bool = False, rtol: float = 1e-5,
    adjoint_rtol: float = 1e-5, atol: float = 1e-4, adjoint_atol: float = 1e-4, dt_min: float = 1e-5,
    options: dict[str, Any] | None = None, adjoint_options: dict[str, Any] | None = None,
    adjoint_params: Sequence[Tensor] | None = None, names: dict[str, str] | None = None, logqp: bool = False,
    extra: bool = False, extra_solver_state: Sequence[Tensor] | None = None, *, memory: Memory | int | None = None,
) -> Any:  # fmt: skip
    """As `sdeint`, with exact gradients of the discrete solution in bounded memory.

    Steps are run again in the reverse sweep with the same noise, which is drawn again.  torchsde solves an adjoint
    equation instead, whose gradients have an error of the order of the steps.

    Parameters
    ----------
    sde, y0, ts, bm, method, dt, adaptive, rtol, atol, dt_min, options, names, logqp, extra, extra_solver_state
        As in `sdeint`.
    adjoint_method : str, optional
        "adjoint_reversible_heun", with "reversible_heun" as `method`, inverts steps; other names have no effect.
    adjoint_adaptive, adjoint_rtol, adjoint_atol, adjoint_options
        Accepted as in torchsde, without effect on exact gradients.
    adjoint_params : sequence of tensors, optional
        The tensors to differentiate with respect to, besides y0.  By default the parameters of sde and all other
        tensors that its first step depends on.
    memory : str, int or Checkpoints, optional
        The memory policy: `Checkpoints` of states or bytes, a number of bytes, "all" (plain autograd), "reversible"
        (steps are inverted) or "auto".  By default "reversible" for "reversible_heun" and 32 states otherwise.

    Returns
    -------
    As `sdeint`

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import sdeint_adjoint
    >>> class OU(torch.nn.Module):
    ...     sde_type, noise_type = "ito", "diagonal"
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rate = torch.nn.Parameter(torch.tensor(1.0))
    ...     def f(self, t, y):
    ...         return -self.rate * y
    ...     def g(self, t, y):
    ...         return torch.ones_like(y)
    >>> ou = OU()
    >>> sdeint_adjoint(ou, torch.ones(8, 1), [0.0, 1.0], dt=0.1)[-1].mean().backward()
    >>> ou.rate.grad.shape
    torch.Size([])
    """
    _validate_adjoint_arguments(adjoint_adaptive, adjoint_rtol, adjoint_atol, adjoint_options)
    memory = _choose_memory(memory, method, adjoint_method)
    steps = (dt, adaptive, rtol, atol, dt_min)
    asked = SDEArguments(sde, y0, ts, bm, method, steps, options, names, logqp, extra, extra_solver_state)
    if adjoint_params is not None:
        adjoint_params = checks.sequence(checks.instance(Tensor))("adjoint_params", adjoint_params)
    if memory == "all":
        return _integrate(asked, read_states_at)
    given = None if adjoint_params is None else tuple(p for p in adjoint_params if p.requires_grad)
    return _integrate_in_memory(asked, given, memory)


class SDEArguments(NamedTuple):
    """The arguments of `sdeint`; `steps` are dt, adaptive, rtol, atol and dt_min."""

    sde: Any
    y0: Any
    ts: Any
    bm: Any
    method: Any
    steps: tuple[Any, ...]
    options: Any
    names: Any
    logqp: Any
    extra: Any
    extra_solver_state: Any


def _validate_adjoint_arguments(adaptive: Any, rtol: Any, atol: Any, options: Any) -> None:
    checks.validate_flag("adjoint_adaptive", adaptive)
    validate_positive("adjoint_rtol", rtol), validate_positive("adjoint_atol", atol)
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"`adjoint_options` must be a dictionary, found {type(options).__name__}")


def _choose_memory(memory: Any, method: Any, adjoint_method: Any) -> Memory:
    """The memory policy, in which torchsde's name for inverted steps has a part."""
    name = method if isinstance(method, str) else method.name if is_stochastic(method) else None
    is_reversible, is_inverted = name == REVERSIBLE, adjoint_method is None
    if isinstance(adjoint_method, str) and adjoint_method == ADJOINT_OF_REVERSIBLE_HEUN:
        is_inverted = True
        if not is_reversible:
            raise ValueError(f"`adjoint_method` {adjoint_method!r} needs `method`={REVERSIBLE!r}, found {method!r}")
    elif not is_inverted:
        find_stochastic_scheme(adjoint_method, "diagonal", "ito")
    if memory is None:
        return "reversible" if is_reversible and is_inverted else BOUNDED
    return validate_memory(memory, MEMORIES)


@break_graph
def _integrate_in_memory(asked: SDEArguments, given: tuple[Tensor, ...] | None, memory: Memory) -> Any:
    """Solve without a full autograd graph, if any gradient is required."""
    y0 = validate_state(asked.y0)
    modules = find_modules(asked.sde)
    parameters = list_parameters(modules) if given is None else given
    is_known = given is not None or isinstance(asked.sde, torch.nn.Module)
    if is_known and not is_one_node((y0, *parameters)):
        return _integrate_here(asked, read_states_at)
    solver = CheckpointedSolver(parameters, memory, modules, given is not None)
    with disable_autocast_cache(y0.device.type):
        return _integrate_here(asked, solver)


def _integrate(asked: SDEArguments, solver: Solver) -> Any:
    """Integrate; only fixed explicit steps between times that are numbers can be compiled."""
    is_read = isinstance(asked.ts, Tensor) or asked.steps[1]
    if torch.compiler.is_compiling() and (is_read or reads_data(asked.method)):
        return _integrate_eagerly(asked, solver)
    return _integrate_here(asked, solver)


def _integrate_here(asked: SDEArguments, solver: Solver) -> Any:
    y0, logqp, extra = validate_state(asked.y0), *_validate_flags(asked)
    sde = find_functions(asked.sde, asked.names)
    if logqp:
        sde, y0 = add_log_ratio(sde), torch.cat((y0, y0.new_zeros(len(y0), 1)), dim=1)
    scheme = find_stochastic_scheme(asked.method, sde.noise, sde.calculus, validate_sde_options(asked.options))
    _require_admitted(scheme, sde, solver)
    times, eps = read_save_times(asked.ts)
    m = count_components(sde, y0, times[0], asked.bm)
    kind = find_kind(sde.noise)
    field = build_field(sde, find_step_needs(scheme, kind), kind, m, scheme.name)
    state = _find_initial_state(y0, scheme, asked)
    plan = _build_plan(asked, times, eps, y0, m, solver, scheme)
    states = solve_stochastic(field if len(state) == 1 else _extend(field), scheme, state, plan)
    return _gather_results(states, plan.times[-1], field, logqp, extra)


_integrate_eagerly = break_graph(_integrate_here)


def _validate_flags(asked: SDEArguments) -> tuple[bool, bool]:
    return checks.validate_flag("logqp", asked.logqp), checks.validate_flag("extra", asked.extra)


def _require_admitted(scheme: Any, sde: SDEFunctions, solver: Solver) -> None:
    """Refuse a scheme that cannot run the equation, with the reason."""
    refusal = find_noise_refusal(scheme, sde.noise, sde.calculus)
    if refusal is not None:
        remedy = "use another `method` or `sde_type`"
        raise ValueError(f"`method` {refusal.partition(';')[0]}; {remedy}")
    if isinstance(solver, CheckpointedSolver) and solver.memory == "reversible":
        require_undoable(find_step_needs(scheme, find_kind(sde.noise)).has_inverse, scheme.name)


def _build_plan(
    asked: SDEArguments, times: list[float], eps: float, y0: Tensor, n_components: int, solver: Solver, scheme: Any
) -> StochasticPlan:
    dt, control = _validate_steps(*asked.steps)
    nodes, times, end = build_nodes(times, dt, eps)
    if any(name in DISCRETE for name in scheme.variables):
        _require_own_fixed_noise(scheme, control, asked.bm)
    if control is not None and scheme.name == "euler_maruyama" and asked.sde.noise_type != "additive":
        message = "adaptive steps of Euler-Maruyama may converge to a wrong solution unless noise is additive"
        warnings.warn(message, stacklevel=4)
    is_adaptive = control is not None
    source = build_source(asked.bm, nodes, times[-1] if is_adaptive else end, y0, n_components, is_adaptive)
    return StochasticPlan(times, nodes, source, solver, control)


def _validate_steps(dt: Any, adaptive: Any, rtol: Any, atol: Any, dt_min: Any) -> tuple[float, StepDoubling | None]:
    """The step size, and the control of adaptive steps."""
    given = {"dt": dt, "rtol": rtol, "atol": atol, "dt_min": dt_min}
    numbers = [validate_positive(name, value) for name, value in given.items()]
    return numbers[0], StepDoubling(*numbers) if checks.validate_flag("adaptive", adaptive) else None


def _require_own_fixed_noise(scheme: Any, control: StepDoubling | None, bm: Any) -> None:
    """Refuse adaptive steps, and noise without discrete variables, for weak schemes."""
    if control is not None:
        raise ValueError(f"`adaptive` steps need a strong scheme; {scheme.name} converges in law only")
    if bm is not None and not isinstance(bm, BrownianInterval):
        raise ValueError(f"`bm` must be a `BrownianInterval` of stepnet for the discrete variables of {scheme.name}")


# ---- reversible Heun's second row -----------------------------------------------------------------------------------


def _find_initial_state(y0: Tensor, scheme: Any, asked: SDEArguments) -> tuple[Tensor, ...]:
    """The state, with the second row of a reversible scheme if it is given or requested."""
    given = asked.extra_solver_state
    if given is not None:
        given = checks.sequence(checks.instance(Tensor))("extra_solver_state", given)
    if scheme.name != REVERSIBLE or (given is None and not asked.extra):
        if given:
            raise ValueError(f"`extra_solver_state` is for {REVERSIBLE!r}: {scheme.name} has no further state")
        return (y0,)
    if given is None:
        return y0, y0
    if len(given) != 3 or given[2].shape != y0.shape:
        raise ValueError(
            f"`extra_solver_state` must be (f, g, z) with z of the shape {tuple(y0.shape)}, "
            f"found {[tuple(x.shape) for x in given]}"
        )
    return y0, given[2]


def _extend(field: StochasticField) -> StochasticField:
    """The field of a run whose state has the second row too."""
    return StochasticField(field.drift, field.diffusion, field.kind, field.n_components, 2)


def _gather_results(states: list[Any], t: float, field: StochasticField, logqp: bool, extra: bool) -> Any:
    ys = torch.stack([state[0] for state in states])
    found: list[Any] = [ys]
    if logqp:
        ys, ratio = ys[..., :-1], ys[..., -1]
        found = [ys, ratio[1:] - ratio[:-1]]
    if extra:
        found.append(_evaluate_extra(field, t, *states[-1][1:]))
    return found[0] if len(found) == 1 else tuple(found)


def _evaluate_extra(field: StochasticField, t: float, *z: Tensor) -> tuple[Any, ...]:
    if not z:
        return ()
    time = torch.full((), t, dtype=z[0].dtype, device=z[0].device)
    return field.drift(time, z[0]), field.diffusion(time, z[0]), z[0]
