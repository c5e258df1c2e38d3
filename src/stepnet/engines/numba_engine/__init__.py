"""The engine of compiled kernels: one or two per family of schemes, generic in the numbers."""

from __future__ import annotations

import numpy as np

from stepnet.engines.contract import EnsembleOutcome, Members, Outcome, Plan
from stepnet.engines.numba_engine import explicit_rk, low_storage, multistep, observed, splitting, stabilised
from stepnet.engines.numba_engine.compile.arguments import flat_gradients, pack
from stepnet.engines.numba_engine.compile.scalar import scalar_of
from stepnet.engines.numba_engine.driver import drive
from stepnet.engines.numba_engine.ensembles import member_problem, pull_back_members, run_members
from stepnet.engines.numba_engine.identity import identity
from stepnet.engines.numba_engine.job import Job
from stepnet.engines.numba_engine.stepper import Stepper
from stepnet.problem import Problem
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.solution import Status

__all__ = [
    "begin", "flat_gradients", "is_plain", "member_problem", "numbers_of", "prepare", "pull_back_members", "run",
    "run_ensemble", "scalar_of",
]  # fmt: skip

PREPARE = {
    ExplicitRK: explicit_rk.prepare,
    LowStorageRK: low_storage.prepare,
    StabilisedRK: stabilised.prepare,
    Splitting: splitting.prepare,
    Multistep: multistep.prepare,
}


def prepare(problem: Problem, scheme, plan: Plan) -> Job:
    """A run about to begin; Runge-Kutta kernels look into their own steps, others have it done."""
    family = PREPARE[type(scheme)]
    if is_plain(plan) or isinstance(scheme, ExplicitRK):
        return family(problem, scheme, plan)
    return observed.prepare(problem, scheme, plan, family)


def run(problem: Problem, scheme, plan: Plan) -> Outcome:
    """Solve the problem with the scheme as planned."""
    try:
        job = prepare(problem, scheme, plan)
    except multistep.StartFailed as failed:
        nothing = (np.zeros(0),) * len(plan.events), (failed.outcome.y[:0],) * len(plan.events)
        return failed.wanted(plan)._replace(t_events=nothing[0], y_events=nothing[1])
    outcome = drive(job, problem, plan, scheme)
    is_interrupted = outcome.status is Status.INTERRUPTED
    if job.inner is None or plan.saving.at is None or observed.is_moving(plan) or is_interrupted:
        return outcome
    return observed.with_wanted_times(outcome, run(problem, scheme, Plan(plan.stepping, plan.saving)), problem)


def run_ensemble(problem: Problem, scheme, plan: Plan, members: Members, workers: int, show) -> EnsembleOutcome:
    """Solve the problem for many members; `show(n)` is told when n more are done."""
    return run_members(run, problem, scheme, plan, members, workers, show)


def numbers_of(args: tuple) -> np.ndarray:
    """The numbers among the arguments of a right-hand side, in their order."""
    return pack(args).values


def is_plain(plan: Plan) -> bool:
    """Whether nothing is wanted of the inside of the steps."""
    return not (plan.events or plan.dense or plan.project)


def begin(problem: Problem, scheme, plan: Plan) -> Stepper:
    """A run to be stepped by hand."""
    try:
        job = prepare(problem, scheme, plan)
    except multistep.StartFailed as failed:
        failure = failed.outcome.failure
        cause = None if failure is None else failure.exception
        raise RuntimeError(f"{failed} at t = {failed.outcome.t_end:g}, in the first steps of {scheme.name}") from cause
    return Stepper(job, plan, identity(problem, scheme, plan))
