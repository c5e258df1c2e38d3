"""Problems: frozen records of what to solve, validated when they are built."""

from stepnet.problem.checks import is_finite, validate_args, validate_initial_state, validate_span, validate_state
from stepnet.problem.forms import ProblemForm
from stepnet.problem.linear_solvers import Gmres
from stepnet.problem.ode import ODE, Partitioned, SecondOrder
from stepnet.problem.split import Flow, Linear, Split, require_multiple
from stepnet.problem.states import Problem, StochasticProblem, list_part_shapes, restart, state_shape
from stepnet.problem.stochastic import CALCULI, MOST_CELLS, MOST_PATH, MOST_SEED, NOISE_TYPES, SDE, Langevin

__all__ = [
    "CALCULI",
    "MOST_CELLS",
    "MOST_PATH",
    "MOST_SEED",
    "NOISE_TYPES",
    "ODE",
    "SDE",
    "Flow",
    "Gmres",
    "Langevin",
    "Linear",
    "Partitioned",
    "Problem",
    "ProblemForm",
    "SecondOrder",
    "Split",
    "StochasticProblem",
    "is_finite",
    "list_part_shapes",
    "require_multiple",
    "restart",
    "state_shape",
    "validate_args",
    "validate_initial_state",
    "validate_span",
    "validate_state",
]
