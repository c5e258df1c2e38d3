"""Problems built from the derivatives of others: the state with its tangent, or with the continuous adjoint.

A trace holds f, its pushforward and its pullback in one graph, so these are traces too: they run as generated code and
can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback, build_parts, take_trace
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, compile_traced, summarise, validate_code
from stepnet.engines.numba_engine.rhs.problem_parts import build_jacobian
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.joint_trace import copy_nodes, copy_trace
from stepnet.engines.numba_engine.tracing.trace import Trace, trace
from stepnet.errors import NoDerivative
from stepnet.problem import ODE, Linear, Partitioned, Problem, SecondOrder, Split

MOST = 4 * MOST_NODES_OF_DERIVATIVES
_kept: WeakKeyDictionary = WeakKeyDictionary()


def tangent_problem(
    problem: Problem, direction: np.ndarray, p_direction: np.ndarray, may_call: bool = False
) -> Problem:
    """(y, v)' = (f, (df/dy) v + (df/dp) p_direction): the state and its tangent, with v = `direction` initially.

    It can be differentiated again, unless it `may_call` the derivative of an `ODE` in Python.
    """
    is_coupled = isinstance(problem, Partitioned) and not problem.separable
    parts = build_parts(problem, is_coupled, may_loop=False)
    if may_call and isinstance(problem, ODE) and parts[0].trace is None:
        return called_tangent_problem(problem, parts[0], direction, p_direction)
    linear = (
        [isinstance(each, Linear) for each in problem.parts] if isinstance(problem, Split) else [False] * len(parts)
    )
    codes: list[Any] = (
        [_compile(parts[0], half) for half in (trace_tangent_of_q, trace_tangent_of_p)]
        if is_coupled
        else [
            problem.parts[i] if linear[i] else None if part.vjp == 0 else _compile(part, trace_tangent)
            for i, part in enumerate(parts)
        ]
    )
    p = next(part.field.p for part in parts if part.vjp != 0)
    args = (np.concatenate((p, p_direction)),) if p.size else ()
    if len(codes) == 1 or isinstance(problem, Split):
        y0 = np.concatenate((problem.initial, direction))
        if isinstance(problem, Split):
            return Split(tuple(codes), y0, problem.t_span, args)
        return ODE(codes[0], y0, problem.t_span, args, mass=_repeat_singular_mass(problem))
    q, p_dot = np.split(direction, 2)
    first, second = np.split(problem.initial, 2)
    halves = np.concatenate((first, q)), np.concatenate((second, p_dot))
    if isinstance(problem, SecondOrder):
        return SecondOrder(codes[1], *halves, problem.t_span, args)
    return Partitioned(codes[0], codes[1], *halves, problem.t_span, args, separable=not is_coupled)


def lift_parts(parts: tuple[PartPullback, ...], p_direction: np.ndarray) -> tuple[PartPullback, ...]:
    """Parts of a stochastic equation with their tangents, (f, (df/dy) v + (df/dp) p_direction), as parts of (y, v).

    A step of a scheme on them is the step on y, and its derivative.
    """
    lifted = []
    for part in parts:
        code = _compile(part, trace_tangent)
        p = np.concatenate((part.field.p, p_direction))
        lifted.append(take_trace(replace(part.field, address=code.address, p=p, keep_alive=code, comparison=None)))
    return tuple(lifted)


def called_tangent_problem(problem: ODE, part: PartPullback, direction: np.ndarray, p_direction: np.ndarray) -> ODE:
    """The same for a right-hand side without a trace: its derivative is called in Python."""
    n, jacobian = problem.initial.size, None if part.matrix is not None else build_jacobian(problem)
    if jacobian is not None and p_direction.any():
        raise NoDerivative(f"a direction of `args` needs df/dp, which is not known ({part.rung}); give `y0` alone")

    def slopes(t, z):
        y, v = z[:n], z[n:]
        if jacobian is not None:
            return np.concatenate((part.field(t, y), jacobian.jvp(t, y, v)))
        return np.concatenate((part.field(t, y), part.matrix(t, y)[:, 1:] @ np.concatenate((v, p_direction))))

    both, mass = np.concatenate((problem.initial, direction)), _repeat_singular_mass(problem)
    return ODE(slopes, both, problem.t_span, trace=False, mass=mass)


def _repeat_singular_mass(problem: Problem):
    """The mass matrix of the state with its tangent; None for a nonsingular one, which is part of the slopes."""
    from scipy.sparse import block_diag

    mass = getattr(problem, "mass_matrix", None)
    if mass is None or not mass.is_singular:
        return None
    return block_diag((mass.sparse, mass.sparse), format="csr")


def refuse_singular_mass(problem: Problem, what: str) -> None:
    """Refuse algebraic equations where derivatives are not known."""
    mass = getattr(problem, "mass_matrix", None)
    if mass is not None and mass.is_singular:
        raise NoDerivative(f"{what} needs a nonsingular `mass`, and this one is singular")


def adjoint_problem(problem: ODE, end: np.ndarray, end_gradient: np.ndarray) -> ODE:
    """(y, a, g)' = (f, -a df/dy, -a df/dp) from the end to the beginning: the continuous adjoint, solved backward."""
    refuse_singular_mass(problem, '`memory`="continuous"')
    (part,) = build_parts(problem, is_joined=True, may_loop=False)
    start = np.concatenate((end, end_gradient, np.zeros(part.field.p.size)))
    args = (part.field.p,) if part.field.p.size else ()
    return ODE(_compile(part, trace_adjoint), start, problem.t_span[::-1], args)


def _compile(part: PartPullback, make: Callable[[Trace], Trace]) -> Any:
    if part.trace is None:
        raise NoDerivative(f"this derivative needs a trace of the right-hand side, found {part.rung}")
    kept = _kept.setdefault(part.trace.graph, {})
    if make not in kept:
        kept[make] = compile_traced(make(part.trace))
    return kept[make]


def trace_tangent(trace: Trace) -> Trace:
    """(f(t, y, p), its pushforward along (v, q)) for the state (y, v) and the parameters (p, q)."""
    trace.graph.most = MOST
    outputs, graph = [*trace.outputs, *trace.tangent()], Graph(MOST)
    n, m = trace.n, trace.n_parameters
    exchange: dict[str, Callable] = {
        "y_dot": lambda i: graph.node("y", n + i),
        "p_dot": lambda j: graph.node("p", m + j),
        "t_dot": lambda: graph.constant(0.0),
    }
    return Trace(graph, copy_nodes(graph, trace.graph, outputs, exchange), 2 * n, 2 * m)


def trace_tangent_of_q(trace: Trace) -> Trace:
    """The first half of `trace_tangent`, of q and its tangent, for the state (q, q', p, p')."""
    return _trace_half_of_tangent(trace, 0)


def trace_tangent_of_p(trace: Trace) -> Trace:
    """The second half, of p and its tangent."""
    return _trace_half_of_tangent(trace, 1)


def _trace_half_of_tangent(trace: Trace, which: int) -> Trace:
    whole, n = trace_tangent(trace), trace.n
    half, graph = n // 2, Graph(MOST)

    def place(i: int) -> int:  # of entry i of (q, p, q', p')
        quarter, rest = divmod(i, half)
        return (0, 2, 1, 3)[quarter] * half + rest

    wanted = [output for i, output in enumerate(whole.outputs) if (i // half) % 2 == which]
    outputs = copy_nodes(graph, whole.graph, wanted, {"y": lambda i: graph.node("y", place(i))})
    return Trace(graph, outputs, 2 * n, whole.n_parameters)


def trace_adjoint(trace: Trace) -> Trace:
    """(f, -a df/dy, -a df/dp) for the state (y, a, g)."""
    trace.graph.most = MOST
    n, m = trace.n, trace.n_parameters
    gradient = trace.gradient()[1:]
    zero = trace.graph.constant(0.0)
    negative = [zero if node is None else trace.graph.apply("neg", node) for node in gradient]
    graph = Graph(MOST)
    exchange = {"w": lambda i: graph.node("y", n + i)}
    outputs = copy_nodes(graph, trace.graph, [*trace.outputs, *negative], exchange)
    return Trace(graph, outputs, 2 * n + m, m)


def running_problem(problem: ODE, running: Callable) -> ODE:
    """(y, c)' = (f, running(t, y, *args)): the running cost as an additional entry of the state."""
    refuse_singular_mass(problem, "`running`")
    (part,) = build_parts(problem, is_joined=True, may_loop=False)
    shape = problem.y0.shape
    form = find_call_form(running, problem.args, (shape,), (), problem.initial.dtype, "running")
    block, graph = pack(problem.args), Graph(MOST)
    try:
        cost = trace(form, block, MOST)
        validate_code(compile_traced(cost), form, block, problem.t_span, problem.initial)
    except Exception as exception:
        raise NoDerivative(f"`running` could not be traced: {summarise(exception)}") from None
    if part.trace is None:
        raise NoDerivative(f"a running cost needs a trace of the right-hand side, found {part.rung}")
    outputs = [*copy_trace(graph, part.trace, int), *copy_trace(graph, cost, int)]
    joined = Trace(graph, outputs, problem.initial.size + 1, part.trace.n_parameters)
    args = (block.values,) if block.values.size else ()
    code: Any = compile_traced(joined)
    return ODE(code, np.append(problem.initial, 0.0), problem.t_span, args)
