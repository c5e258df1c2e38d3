"""The states of any problem: their shapes, and the same problem from another state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepnet.problem.ode import ODE, Partitioned, SecondOrder
from stepnet.problem.split import Split
from stepnet.problem.stochastic import SDE, Langevin

StochasticProblem = SDE | Langevin
Problem = ODE | Partitioned | SecondOrder | Split | SDE | Langevin


def state_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of a state in the public interface: flat for partitioned and second-order problems."""
    return problem.y0.shape if isinstance(problem, (ODE, Split, SDE)) else problem.initial.shape


def list_part_shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The shapes of the parts of a state that functions of events take: of y, or of positions and of momenta."""
    return (state_shape(problem),) if isinstance(problem, (ODE, Split, SDE)) else (problem.q0.shape,) * 2


def restart(problem: Problem, y: np.ndarray, t_span: tuple[float, float]) -> Problem:
    """The same problem with another initial state (in the shape `state_shape`) and time span."""
    if isinstance(problem, (ODE, Split, SDE)):
        return replace(problem, y0=y, t_span=t_span)
    q, p = (half.reshape(problem.q0.shape) for half in np.split(np.ravel(y), 2))
    if isinstance(problem, (SecondOrder, Langevin)):
        return replace(problem, q0=q, v0=p, t_span=t_span)
    return replace(problem, q0=q, p0=p, t_span=t_span)
