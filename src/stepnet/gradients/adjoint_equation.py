"""Optimise, then discretise: the adjoint equation a' = -a df/dy, solved backward in time.

If the state is solved backward together with it, no memory is needed, but this is accurate only where the flow can be
reversed stably; along the stored dense output it is accurate up to the error of the scheme.  Neither gives the exact
gradient of the steps.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from stepnet.errors import SolveFailed
from stepnet.gradients.loss_readout import LossReadout
from stepnet.problem import ODE
from stepnet.solution import Pieces
from stepnet.solving.integrate import solve

UNSAFE = 1e-3  # relative error of the state solved backward beyond which the gradient is unreliable


class AdjointSolution(NamedTuple):
    """Gradients with respect to the flat initial state and the parameters, the error of the state, and the cost."""

    y0: np.ndarray
    p: np.ndarray
    return_error: float
    n_steps: int
    n_states: int
    n_numbers: int
    words: str
    rung: str = "traced"
    has_parameters: bool = True


def solve_adjoint_equation(
    engine: ModuleType, problem: ODE, scheme: Any, memory: str, how: dict[str, Any], readout: LossReadout,
    differences: bool,
) -> AdjointSolution:  # fmt: skip
    """Solve forward, evaluate the loss, and solve the adjoint equation backward by the same scheme."""
    is_kept = memory == "interpolated"
    solution = solve(problem, scheme, **how, save_every=0, dense=is_kept)
    end, n_steps = solution.y[-1].ravel(), solution.statistics.accepted
    end_gradient = readout.differentiate_end(end)
    steps = how.get("steps")
    back = how | ({} if steps is None or np.ndim(steps) == 0 else {"steps": steps[::-1]})
    n = problem.initial.size
    if is_kept:
        pieces: Pieces = solution.pieces  # type: ignore[assignment]
        adjoint, part = engine.interpolated_problem(problem, pieces, end_gradient, differences)
        try:
            found = solve(adjoint, scheme, **back, save_every=0).y[-1]
        except SolveFailed:
            if part.exception is not None:
                raise part.exception from None
            raise
        words, is_known = "adjoint equation along the kept solution", part.is_complete or found.size == n
        n_numbers = pieces.data.size + found.size
        return AdjointSolution(found[:n], found[n:], 0.0, n_steps, n_steps, n_numbers, words, part.rung, is_known)
    everything = solve(engine.adjoint_problem(problem, end, end_gradient), scheme, **back, save_every=0).y[-1]
    y, found = everything[:n], everything[n:]
    size = max(float(np.linalg.norm(problem.initial)), np.finfo(float).tiny)
    missed = float(np.linalg.norm(y - problem.initial) / size)
    words = "adjoint equation solved back with the state"
    return AdjointSolution(found[:n], found[n:], missed, n_steps, 1, everything.size, words)
