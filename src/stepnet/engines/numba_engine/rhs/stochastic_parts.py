"""Drift and diffusion of a stochastic problem, and what their traces give: derivatives of the diffusion, corrections.

For columns g_j of the diffusion the derivatives are (dg_j/dy) g_k.  Diagonal noise has g_j = g_j(y_j) e_j.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.derivatives.graph_derivatives import pushforward
from stepnet.engines.numba_engine.rhs.callback import SIGNATURE
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, CompiledRHS, compile_traced
from stepnet.engines.numba_engine.rhs.problem_parts import build_part_fields
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.joint_trace import copy_nodes, remember
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.errors import NoDerivative
from stepnet.problem import SDE, Langevin, StochasticProblem
from stepnet.schemes.capabilities import needs_commuting_columns, needs_diffusion_derivative, needs_own_entries
from stepnet.schemes.langevin_program import build_langevin_program
from stepnet.schemes.step_program import ELEMENTWISE, MATRIX, SCALAR, SchemeProgram, build_stochastic_program

_kept: WeakKeyDictionary = WeakKeyDictionary()
COMMUTING = 1e-6  # relative; larger differences of derivatives along columns are more than rounding


def find_stochastic_program(problem: StochasticProblem, scheme, n_steps: int) -> SchemeProgram:
    """The step programs of a scheme for this problem; those of Langevin dynamics are for one step size."""
    if isinstance(problem, Langevin):
        return build_langevin_program(scheme, problem.friction, (problem.t_span[1] - problem.t_span[0]) / n_steps)
    return build_stochastic_program(scheme, find_product_kind(problem), problem.n_components)


def find_product_kind(problem: SDE) -> str:
    """How the diffusion is multiplied by the components of W."""
    if problem.noise == "scalar":
        return SCALAR
    return ELEMENTWISE if problem.diffusion_shape == problem.y0.shape else MATRIX


def build_stochastic_fields(problem: StochasticProblem, scheme) -> tuple[CompiledRHS, ...]:
    """Drift and diffusion, and the derivative of the diffusion if the scheme needs it."""
    drift, diffusion = build_part_fields(problem)
    if isinstance(problem, Langevin):
        return drift, diffusion
    _require_noise_type(problem, scheme, diffusion)
    if problem.correction != 0.0:
        drift = _correct_drift(problem, drift, diffusion)
    if not needs_diffusion_derivative(scheme):
        return drift, diffusion
    trace = _require_trace(diffusion, f"{scheme.name} needs the derivative of `diffusion`")
    code = _derive(diffusion, (find_product_kind(problem),), lambda: _differentiate(trace, find_product_kind(problem)))
    return drift, diffusion, replace(diffusion, address=code.address, keep_alive=code)


def _find_trace(field: CompiledRHS) -> Trace | None:
    return getattr(field.keep_alive, "trace", None)


def _require_trace(field: CompiledRHS, purpose: str) -> Trace:
    trace = _find_trace(field)
    if trace is None:
        reason = f" ({field.reason})" if field.reason else ""
        raise NoDerivative(f"{purpose}, which is not traced{reason}; use a scheme without it, such as euler_maruyama")
    return trace


def _require_noise_type(problem: SDE, scheme, diffusion: CompiledRHS) -> None:
    """Refuse a diffusion that depends on more than its type of noise allows, as far as its trace shows it."""
    trace = _find_trace(diffusion)
    if trace is None:
        return
    if problem.noise == "additive":
        used = _find_entries(trace, trace.outputs)
        if used:
            raise ValueError(
                f"`diffusion` of additive noise must depend on t only, but depends on entry {min(used)} of the state; "
                f"use noise='diagonal' or noise='general'"
            )
    if needs_commuting_columns(scheme, problem.noise):
        _require_commuting_columns(problem, scheme, diffusion, trace)
    if needs_own_entries(scheme, problem.noise):
        for i, output in enumerate(trace.outputs):
            others = _find_entries(trace, [output]) - {i}
            if others:
                raise ValueError(
                    f"entry {i} of `diffusion` depends on entry {min(others)} of the state, and {scheme.name} has "
                    f"its order only where entry i depends on y[i]; use euler_maruyama, or noise='general' "
                    f"with a matrix"
                )


def _require_commuting_columns(problem: SDE, scheme, diffusion: CompiledRHS, trace: Trace) -> None:
    """Refuse columns of a diffusion that do not commute at the beginning."""
    y, m, t = problem.initial, problem.n_components, problem.t_span[0]
    code = _derive(diffusion, (MATRIX,), lambda: _differentiate(trace, MATRIX))
    found = np.zeros((y.size, m, m))  # (dg_j/dy) g_k at [:, k, j]
    SIGNATURE(code.address)(t, y.ctypes.data, found.ctypes.data, diffusion.p.ctypes.data, y.size)
    difference = np.abs(found - found.swapaxes(1, 2)).max(axis=0)
    if difference.max() > COMMUTING * np.abs(found).max():
        j, k = np.unravel_index(np.argmax(difference), difference.shape)
        raise ValueError(
            f"`diffusion` of commutative noise must have (dg_j/dy) g_k = (dg_k/dy) g_j for all columns, and those of "
            f"its columns {j} and {k} differ by {difference[j, k]:.1g} at t = {t:g}; use noise='general' and "
            f"a scheme that admits it"
        )


def _find_entries(trace: Trace, outputs: list[int]) -> set[int]:
    """The entries of the state that some outputs depend on."""
    nodes = (trace.graph.nodes[number] for number in trace.graph.live(outputs))
    return {node[1] for node in nodes if node[0] == "y"}


def _derive(field: CompiledRHS, key: tuple, build) -> MachineCode:
    """Machine code of a trace derived from that of a field, kept with it."""
    kept = _kept.setdefault(field.keep_alive, {})
    found = kept.get(key)
    if found is None:
        found = compile_traced(build())
        found.is_derived = True
        remember(kept, key, found)
    return found


def _copy_into(graph: Graph, trace: Trace) -> list[int]:
    return copy_nodes(graph, trace.graph, trace.outputs, {})


def _differentiate(trace: Trace, kind: str) -> Trace:
    """(dg_j/dy) g_j for vectors; for matrices (dg_j/dy) g_k in the column k m + j."""
    graph, n = Graph(4 * MOST_NODES_OF_DERIVATIVES), trace.n
    g = _copy_into(graph, trace)
    y = [graph.node("y", i) for i in range(n)]
    if kind == ELEMENTWISE:
        outputs = [pushforward(graph, [g[i]], {y[i]: g[i]})[0] for i in range(n)]
    elif kind == SCALAR:
        outputs = pushforward(graph, g, dict(zip(y, g, strict=True)))
    else:
        m = len(g) // n
        found = [pushforward(graph, g, dict(zip(y, g[k::m], strict=True))) for k in range(m)]
        outputs = [found[k][i * m + j] for i in range(n) for k in range(m) for j in range(m)]
    return Trace(graph, outputs, n, trace.n_parameters)


def _correct_drift(problem: SDE, drift: CompiledRHS, diffusion: CompiledRHS) -> CompiledRHS:
    """f + c sum_j (dg_j/dy) g_j."""
    purpose = "converting the calculus needs the derivative of `diffusion` and the trace of `drift`"
    f, g = _require_trace(drift, purpose), _require_trace(diffusion, purpose)
    kind = find_product_kind(problem)

    def build() -> Trace:
        derivative = _differentiate(g, kind)
        graph, n = derivative.graph, f.n
        m = problem.n_components if kind == MATRIX else 1
        slopes = _copy_into(graph, f)
        factor = graph.constant(problem.correction)
        for i in range(n):
            for j in range(m):
                term = graph.apply("mul", factor, derivative.outputs[i * m * m + j * (m + 1)])
                slopes[i] = graph.apply("add", slopes[i], term)
        return Trace(graph, slopes, n, f.n_parameters)

    code = _derive(diffusion, ("drift", id(drift.keep_alive), problem.correction, kind), build)
    code.keep_alive = drift.keep_alive  # its id is in the key
    return replace(drift, address=code.address, keep_alive=code, comparison=None, replay=None)


def build_exit_fields(
    problem: SDE, diffusion: CompiledRHS, events: tuple[CompiledRHS, ...]
) -> tuple[CompiledRHS, CompiledRHS] | None:
    """Functions for the exits of paths, None if one is not traced.

    For each event d(t, y) in turn: d and v = sum_j (grad d . g_j)^2; and the same with sum_j (grad d . g_j) g_j.
    """
    traces = [_find_trace(field) for field in (diffusion, *events)]
    if None in traces:
        return None
    kind, ids = find_product_kind(problem), [id(event.keep_alive) for event in events]
    found = []
    for is_long in (False, True):
        code = _derive(diffusion, ("exits", is_long, kind, *ids), partial(_trace_exits, kind, is_long, *traces))
        code.keep_alive = events  # their ids are in the key
        found.append(replace(diffusion, address=code.address, keep_alive=code))
    return found[0], found[1]


def _trace_exits(kind: str, has_direction: bool, spread: Trace, *functions: Trace) -> Trace:
    graph, n = Graph(4 * MOST_NODES_OF_DERIVATIVES), spread.n
    g, y = _copy_into(graph, spread), [graph.node("y", i) for i in range(n)]
    m = len(g) // n
    columns = [{i: g[i]} for i in range(n)] if kind == ELEMENTWISE else [
        {i: g[i * m + j] for i in range(n)} for j in range(m)
    ]  # fmt: skip
    outputs = []
    for function in functions:
        (d,) = _copy_into(graph, function)
        v, direction = graph.constant(0.0), [graph.constant(0.0)] * n
        for column in columns:
            (speed,) = pushforward(graph, [d], {y[i]: node for i, node in column.items()})
            v = graph.apply("add", v, graph.apply("mul", speed, speed))
            for i, node in column.items():
                direction[i] = graph.apply("add", direction[i], graph.apply("mul", speed, node))
        outputs += [d, v, *(direction if has_direction else ())]
    return Trace(graph, outputs, n, spread.n_parameters)
