"""Weights of the likelihood-ratio method: derivatives of the logarithm of the density of a path with respect to `args`.

A step of Euler-Maruyama with y_i' = y_i + f_i h + g_i dW_i has a normal distribution, whose density p has

    d log p / d theta = sum_i (df_i / g_i) dW_i + (dg_i / g_i) (dW_i^2 - h) / h.

The sums over the steps, one for each entry of the state and each argument, are appended to the state.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepnet.engines.contract import EnsembleOutcome, FixedSteps, Members
from stepnet.engines.numba_engine.derivatives.graph_derivatives import pushforward
from stepnet.engines.numba_engine.ensembles.ensemble_runs import NoLanes
from stepnet.engines.numba_engine.ensembles.path_runs import StochasticRun, run_members
from stepnet.engines.numba_engine.rhs.ladder import MOST_NODES_OF_DERIVATIVES, CompiledRHS, compile_traced
from stepnet.engines.numba_engine.rhs.problem_parts import build_part_fields
from stepnet.engines.numba_engine.tracing.graph import Graph
from stepnet.engines.numba_engine.tracing.joint_trace import copy_nodes
from stepnet.engines.numba_engine.tracing.trace import Trace
from stepnet.errors import NoDerivative
from stepnet.problem import SDE
from stepnet.schemes.step_program import ELEMENTWISE, Noise, Product, SchemeProgram, Slope, StepProgram, Sum, Term

DRIFT, DIFFUSION, SQUARES = range(3)


def build_weighted_program() -> SchemeProgram:
    """y + a h + b dW + c (dW^2 - h) / h, in rows that hold the state and the weights."""
    operations = (
        Slope(DRIFT, 0, 0.0),
        Slope(DIFFUSION, 0, 0.0),
        Noise("W"),
        Product(2, 3, ELEMENTWISE),
        Slope(SQUARES, 0, 0.0),
        Noise("I11"),
        Product(5, 6, ELEMENTWISE),
        Sum((Term(0, 1.0, 0), Term(4, 1.0, 0), Term(1, 1.0, 1), Term(7, 2.0, -1))),
    )
    return SchemeProgram(StepProgram(1, (), (0,), 0), StepProgram(1, operations, (8,), 1), (0,))


PROGRAM = build_weighted_program()


def run_weighted_paths(problem: SDE, stepping: FixedSteps, members: Members, workers: int) -> EnsembleOutcome:
    """The end states of all members with the weights (arguments, entries) appended."""
    fields = build_part_fields(problem)
    traces = [getattr(field.keep_alive, "trace", None) for field in fields]
    if None in traces:
        reasons = "; ".join(field.reason for field in fields if field.reason)
        raise NoDerivative(f"the likelihood ratio needs traces of `drift` and `diffusion` ({reasons})")
    n, n_parameters = problem.initial.size, members.args.shape[1]
    lifted = replace(problem, y0=np.zeros(n * (1 + n_parameters)))
    own = StochasticRun(lifted, _build_fields(fields, *traces), PROGRAM, stepping, n)
    y0 = np.zeros((len(members.y0), lifted.initial.size))
    y0[:, :n] = members.y0
    try:
        return run_members(own, None, members._replace(y0=y0), {}, workers, must_have_lanes=True)
    except NoLanes as why:
        raise ValueError(f"the likelihood ratio runs in SIMD lanes only, and {why}") from None


def _build_fields(fields: tuple[CompiledRHS, ...], f: Trace, g: Trace) -> tuple[CompiledRHS, ...]:
    """Drift, diffusion and the factors of dW^2 - h, for the state with its weights."""
    n, found = f.n, []
    for part in (DRIFT, DIFFUSION, SQUARES):
        graph = Graph(4 * MOST_NODES_OF_DERIVATIVES)
        drift, diffusion = (copy_nodes(graph, each.graph, each.outputs, {}) for each in (f, g))
        zeros = [graph.constant(0.0)] * n
        outputs = [drift, diffusion, zeros][part].copy()
        for j in range(f.n_parameters):
            if part == DRIFT:
                outputs += zeros
            else:
                along = {graph.node("p", j): graph.constant(1.0)}
                changes = pushforward(graph, drift if part == DIFFUSION else diffusion, along)
                outputs += [graph.apply("div", dx, x) for dx, x in zip(changes, diffusion, strict=True)]
        code = compile_traced(Trace(graph, outputs, len(outputs), f.n_parameters))
        found.append(replace(fields[0], address=code.address, keep_alive=code, comparison=None, replay=None))
    return tuple(found)
