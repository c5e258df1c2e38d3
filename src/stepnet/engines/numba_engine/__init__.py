"""The engine of compiled kernels: one or two per family of schemes, with the coefficients as arguments.

This is its facade: code outside the engine imports these names and nothing below.  Families, ensembles, derivatives and
layers are loaded at first use, according to the table `LATER`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, Outcome, Plan
from stepnet.engines.numba_engine.codegen import fork_safety  # noqa: F401  registers the locks when it is loaded
from stepnet.engines.numba_engine.integrators import hermite_output
from stepnet.engines.numba_engine.integrators.families import find_executor
from stepnet.engines.numba_engine.rhs.arguments import as_argument_rows, as_arguments, as_block, flat_gradients, pack
from stepnet.engines.numba_engine.rhs.mass_slopes import InconsistentStart
from stepnet.engines.numba_engine.rhs.problem_parts import find_consistent_problem
from stepnet.engines.numba_engine.runs.driver import StartFailed, drive, refuse_start
from stepnet.engines.numba_engine.runs.identity import function_key, identity, problem_identity, value_identity
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.engines.numba_engine.runs.recompilation import Recompilation
from stepnet.engines.numba_engine.runs.stepper import Stepper
from stepnet.errors import NoIdentity
from stepnet.problem import Problem
from stepnet.schemes.capabilities import has_continuous_extension
from stepnet.solution import Status

if TYPE_CHECKING:  # the names that `LATER` loads, for type checkers
    from stepnet.engines.numba_engine.adjoint.differentiable_run import linearise, linearise_tangent
    from stepnet.engines.numba_engine.adjoint.event_function import EventFunction
    from stepnet.engines.numba_engine.adjoint.interpolated_adjoint import interpolated_problem
    from stepnet.engines.numba_engine.adjoint.step_sweeps import SweepFailed
    from stepnet.engines.numba_engine.codegen.blas import SINGLE_THREAD
    from stepnet.engines.numba_engine.derivatives.augmented_problems import (
        adjoint_problem,
        running_problem,
        tangent_problem,
    )
    from stepnet.engines.numba_engine.derivatives.row_functions import RowFunction
    from stepnet.engines.numba_engine.derivatives.scalar_loss import trace_loss, trace_loss_at
    from stepnet.engines.numba_engine.derivatives.tangent_blocks import build_tangent_block
    from stepnet.engines.numba_engine.ensembles.ensemble_runs import (
        NoLanes,
        member_problem,
        pull_back_members,
        run_ensemble,
    )
    from stepnet.engines.numba_engine.ensembles.likelihood_weights import run_weighted_paths
    from stepnet.engines.numba_engine.ensembles.path_gradients import differentiate_paths
    from stepnet.engines.numba_engine.layers.matrix_products import TILE
    from stepnet.engines.numba_engine.layers.parameter_updates import adam
    from stepnet.engines.numba_engine.layers.softmax import class_entropies, entropies, one_hot
    from stepnet.engines.numba_engine.layers.stage_runs import NOTHING, NetStage, build_stage
    from stepnet.engines.numba_engine.layers.stage_sweeps import (
        count_least_bytes,
        count_repeated_steps,
        is_kept,
        sweep,
        sweep_and_turn,
    )
    from stepnet.engines.numba_engine.layers.tapes import NetTape
    from stepnet.engines.numba_engine.layers.tile_noise import TileNoise, fill_paths
    from stepnet.engines.numba_engine.rhs.integer_arguments import convert_to_floats, find_unconverted
    from stepnet.engines.numba_engine.rhs.problem_parts import build_jacobian, list_argument_names
    from stepnet.engines.numba_engine.runs.machine_report import report
    from stepnet.engines.numba_engine.stencils.diffusion_kernels import build_diffusion_kernel
    from stepnet.engines.numba_engine.stencils.operator_kernels import build_operator_kernel

LATER = {
    # ensembles
    "NoLanes": "ensembles.ensemble_runs",
    "differentiate_paths": "ensembles.path_gradients",
    "member_problem": "ensembles.ensemble_runs",
    "pull_back_members": "ensembles.ensemble_runs",
    "run_ensemble": "ensembles.ensemble_runs",
    "run_weighted_paths": "ensembles.likelihood_weights",
    # runs as differentiable maps, and the problems derived from derivatives
    "linearise": "adjoint.differentiable_run",
    "linearise_tangent": "adjoint.differentiable_run",
    "SweepFailed": "adjoint.step_sweeps",
    "EventFunction": "adjoint.event_function",
    "interpolated_problem": "adjoint.interpolated_adjoint",
    "adjoint_problem": "derivatives.augmented_problems",
    "running_problem": "derivatives.augmented_problems",
    "tangent_problem": "derivatives.augmented_problems",
    "build_tangent_block": "derivatives.tangent_blocks",
    "RowFunction": "derivatives.row_functions",
    "trace_loss": "derivatives.scalar_loss",
    "trace_loss_at": "derivatives.scalar_loss",
    # right-hand sides and their arguments
    "build_jacobian": "rhs.problem_parts",
    "list_argument_names": "rhs.problem_parts",
    "convert_to_floats": "rhs.integer_arguments",
    "find_unconverted": "rhs.integer_arguments",
    # layers: net stages, sweeps over them, classification losses and parameter updates
    "NOTHING": "layers.stage_runs",
    "NetStage": "layers.stage_runs",
    "build_stage": "layers.stage_runs",
    "count_least_bytes": "layers.stage_sweeps",
    "count_repeated_steps": "layers.stage_sweeps",
    "is_kept": "layers.stage_sweeps",
    "sweep": "layers.stage_sweeps",
    "sweep_and_turn": "layers.stage_sweeps",
    "NetTape": "layers.tapes",
    "TileNoise": "layers.tile_noise",
    "fill_paths": "layers.tile_noise",
    "TILE": "layers.matrix_products",
    "SINGLE_THREAD": "codegen.blas",
    "class_entropies": "layers.softmax",
    "entropies": "layers.softmax",
    "one_hot": "layers.softmax",
    "adam": "layers.parameter_updates",
    # operators on grids
    "build_diffusion_kernel": "stencils.diffusion_kernels",
    "build_operator_kernel": "stencils.operator_kernels",
    # the machine
    "report": "runs.machine_report",
}

__all__ = [
    # the contract
    "begin", "build_stage", "identity", "linearise", "problem_identity", "report", "run", "run_ensemble",
    "value_identity",
    # runs, and the arguments of right-hand sides
    "as_argument_rows", "as_arguments", "as_block", "build_jacobian", "collect_numbers", "convert_to_floats",
    "find_unconverted", "flat_gradients", "function_key", "is_plain", "list_argument_names", "prepare",
    # derivatives and ensembles
    "EventFunction", "NoLanes", "RowFunction", "SweepFailed", "adjoint_problem", "differentiate_paths",
    "interpolated_problem", "linearise_tangent", "member_problem", "pull_back_members", "run_weighted_paths",
    "build_tangent_block", "running_problem", "tangent_problem", "trace_loss", "trace_loss_at",
    # operators on grids
    "build_diffusion_kernel", "build_operator_kernel",
    # layers
    "NOTHING", "SINGLE_THREAD", "TILE", "NetStage", "NetTape", "TileNoise", "adam", "class_entropies", "fill_paths",
    "count_least_bytes", "count_repeated_steps", "entropies", "is_kept", "one_hot", "sweep", "sweep_and_turn",
]  # fmt: skip


def __getattr__(name: str):
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)


def prepare(problem: Problem, scheme, plan: Plan) -> Job:
    """Prepare a run; schemes without a continuous extension get their step output by Hermite interpolation."""
    executor = find_executor(scheme)
    try:
        problem = find_consistent_problem(problem)
    except InconsistentStart as reason:
        raise StartFailed(refuse_start(problem, str(reason))) from None
    if is_plain(plan) or has_continuous_extension(scheme) or isinstance(plan.stepping, AdaptiveSteps):
        return executor(problem, scheme, plan)
    return hermite_output.prepare(problem, scheme, plan, executor)


def run(problem: Problem, scheme, plan: Plan) -> Outcome:
    """Solve the problem with the scheme according to the plan."""
    if problem.form.is_stochastic:
        return _run_stochastic(problem, scheme, plan)
    try:
        job = prepare(problem, scheme, plan)
    except StartFailed as failed:
        nothing = (np.zeros(0),) * len(plan.events), (failed.outcome.y[:0],) * len(plan.events)
        return failed.wanted(plan)._replace(t_events=nothing[0], y_events=nothing[1])
    outcome = drive(job, problem, plan, scheme, prepare)
    is_interrupted = outcome.status is Status.INTERRUPTED
    if job.inner is None or plan.saving.at is None or hermite_output.is_moving(plan) or is_interrupted:
        return outcome
    return hermite_output.insert_save_times(outcome, run(problem, scheme, Plan(plan.stepping, plan.saving)), problem)


def _run_stochastic(problem: Any, scheme: Any, plan: Plan) -> Outcome:
    """Solve for one path; the imports load the generators."""
    if isinstance(plan.stepping, AdaptiveSteps):
        from stepnet.engines.numba_engine.ensembles.adaptive_path_runs import run_adaptive

        return run_adaptive(problem, scheme, plan)
    from stepnet.engines.numba_engine.ensembles.path_runs import run_path

    return run_path(problem, scheme, plan)


def collect_numbers(args: tuple) -> np.ndarray:
    """The numbers among the arguments of a right-hand side, in order."""
    return pack(args).values


def is_plain(plan: Plan) -> bool:
    """Whether the plan needs no output from inside the steps."""
    return not (plan.events or plan.dense or plan.project)


def begin(problem: Problem, scheme, plan: Plan) -> Stepper:
    """Begin a run that the caller advances step by step."""
    try:
        job = prepare(problem, scheme, plan)
    except StartFailed as failed:
        failure = failed.outcome.failure
        cause = None if failure is None else failure.exception
        reason = f": {failure.advice}" if failure is not None and failed.outcome.t.size == 0 else ""
        message = f"{failed} at t = {failed.outcome.t_end:g}, in the first steps of {scheme.name}{reason}"
        raise RuntimeError(message) from cause
    try:
        known: str | NoIdentity = identity(problem, scheme, plan)
    except NoIdentity as reason:  # matters only if the run is stored
        known = reason
    return Stepper(job, Recompilation(problem, scheme, plan, prepare), plan, known)
