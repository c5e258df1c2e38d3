"""Optimise, then discretise: the adjoint equation a' = -a df/dy, solved back in time.

With the state solved back beside it, it needs no memory, but that is only right where the flow can be reversed stably;
along the kept solution it is right up to the error of the solver.  Either way it is not the gradient of the steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.integrate import solve
from stepnet.problem import ODE

UNSAFE = 1e-3  # relative error of the state solved back, beyond which its gradient is not to be trusted


class SolvedBack(NamedTuple):
    """Gradients with respect to the flat initial state and the parameters, and by how much the state was missed."""

    y0: np.ndarray
    p: np.ndarray
    return_error: float
    n_numbers: int
    words: str


def solved_back(engine, problem: ODE, scheme, memory: str, how: dict, reader, differences: bool) -> SolvedBack:
    """Solve forward, read the loss, and solve the adjoint equation back by the same scheme."""
    is_kept = memory == "interpolated"
    solution = solve(problem, scheme, **how, save_every=0, dense=is_kept)
    end = solution.y[-1].ravel()
    end_gradient = reader.at_end(end)
    steps = how.get("steps")
    back = how | ({"steps": steps[::-1]} if isinstance(steps, np.ndarray) else {})
    n = problem.initial.size
    if is_kept:
        adjoint = engine.interpolated_problem(problem, solution, end_gradient, differences)
        found = solve(adjoint, scheme, **back, save_every=0).y[-1]
        return SolvedBack(found[:n], found[n:], 0.0, found.size, "adjoint equation along the kept solution")
    everything = solve(engine.adjoint_problem(problem, end, end_gradient), scheme, **back, save_every=0).y[-1]
    y, found = everything[:n], everything[n:]
    size = max(float(np.linalg.norm(problem.initial)), np.finfo(float).tiny)
    missed = float(np.linalg.norm(y - problem.initial) / size)
    return SolvedBack(found[:n], found[n:], missed, everything.size, "adjoint equation solved back with the state")
