"""The engine for tensors: it executes the same scheme records on any device, eagerly or compiled, differentiably.

This is its facade: code outside the engine imports only these names.
"""

from stepnet.engines.torch_engine.adjoint.adjoint_equation import (
    GradientRequest,
    seminorm,
    solve_with_adjoint_equation,
)
from stepnet.engines.torch_engine.adjoint.autograd_node import Differentiable, is_one_node, solve_differentiably
from stepnet.engines.torch_engine.codegen.compilation import break_graph
from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.integrators.batch_output import as_column
from stepnet.engines.torch_engine.integrators.explicit_rk import error_power
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    EvaluationOptions,
    find_compiled_scheme,
    read_numbers,
    read_states_at,
)
from stepnet.engines.torch_engine.integrators.per_sample_steps import EVENT, STATUSES
from stepnet.engines.torch_engine.integrators.step_control import MAX_STEPS, ControlSettings, Watch, watch_nothing
from stepnet.engines.torch_engine.integrators.stochastic_steps import (
    LOG_ODE,
    StepNeeds,
    find_step_needs,
)
from stepnet.engines.torch_engine.layers.chains import StageInput, TensorChain, TensorField
from stepnet.engines.torch_engine.layers.stage_runs import SampleDraws, build_stage
from stepnet.engines.torch_engine.layers.tables import evaluate_basis
from stepnet.engines.torch_engine.random.increments import quantise
from stepnet.engines.torch_engine.random.levy_areas import approximate_levy_area
from stepnet.engines.torch_engine.random.paths import TensorNoise, evaluate_between, locate
from stepnet.engines.torch_engine.random.step_noise import CalledNoise, NoiseSource, PathNoise
from stepnet.engines.torch_engine.rhs.perceptron_recognition import recognised
from stepnet.engines.torch_engine.rhs.stochastic_fields import StochasticField
from stepnet.engines.torch_engine.rhs.tensor_fields import (
    Partitioned,
    SecondOrder,
    SingleField,
    Split,
    validate_function,
)
from stepnet.engines.torch_engine.rhs.tensor_problems import (
    TensorProblem,
    build_tensor_batch,
    build_tensor_problem,
    explain,
    require_finite,
    split_parts,
)
from stepnet.engines.torch_engine.runs.adaptive_runs import AdaptiveSolve, solve_densely
from stepnet.engines.torch_engine.runs.batch_runs import BatchMembers, BatchOutcome, BatchPlan, run_ensemble
from stepnet.engines.torch_engine.runs.fixed_runs import CheckpointedSolver, Solver, is_readable
from stepnet.engines.torch_engine.runs.rng_and_autocast import (
    disable_autocast_cache,
    is_autocast,
    is_transformed,
    is_written_down,
)
from stepnet.engines.torch_engine.runs.stochastic_runs import StepDoubling, StochasticPlan, solve_stochastic
from stepnet.engines.torch_engine.runs.tensor_runs import TensorPlan, linearise, run
from stepnet.engines.torch_engine.stencils.tensor_functions import TENSOR_FUNCTIONS

__all__ = [
    # the contract
    "build_stage", "linearise", "run", "run_ensemble",
    # problems: fields and states, and the forms in which users pass them
    "Partitioned", "SecondOrder", "SingleField", "Split", "TensorProblem", "build_tensor_batch",
    "build_tensor_problem", "explain", "recognised", "require_finite", "split_parts", "validate_function",
    # plans of one run: save times, step control, evaluation options, differentiation
    "MAX_STEPS", "AdaptiveSolve", "CheckpointedSolver", "ControlSettings", "EvaluationOptions", "Solver", "TensorPlan",
    "Watch", "error_power", "find_compiled_scheme", "is_readable", "read_numbers", "read_states_at", "solve_densely",
    "watch_nothing",
    # stochastic equations: fields, noise, plans
    "LOG_ODE", "CalledNoise", "NoiseSource", "PathNoise", "StepDoubling", "StochasticField", "StochasticPlan",
    "StepNeeds", "TensorNoise", "approximate_levy_area", "evaluate_between", "find_step_needs", "locate", "quantise",
    "solve_stochastic",
    # plans of batches
    "EVENT", "STATUSES", "BatchMembers", "BatchOutcome", "BatchPlan", "as_column",
    # derivatives
    "Differentiable", "GradientRequest", "is_one_node", "seminorm", "solve_differentiably",
    "solve_with_adjoint_equation",
    # layers
    "SampleDraws", "StageInput", "TensorChain", "TensorField", "evaluate_basis",
    # operators of PDEs
    "TENSOR_FUNCTIONS",
    # compilers, transformations and autocast
    "break_graph", "build_from_constants", "disable_autocast_cache", "is_autocast", "is_transformed", "is_written_down",
]  # fmt: skip
