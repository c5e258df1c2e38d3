"""The engine of compiled kernels: one or two per family of schemes, generic in the numbers.

Families, ensembles and losses are loaded when they are first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

import numpy as np

from stepnet.engines.contract import Outcome, Plan
from stepnet.engines.numba_engine.codegen import fork_safety  # noqa: F401  locks are registered when it is loaded
from stepnet.engines.numba_engine.integrators import hermite_output
from stepnet.engines.numba_engine.rhs.arguments import flat_gradients, pack
from stepnet.engines.numba_engine.runs.driver import StartFailed, drive
from stepnet.engines.numba_engine.runs.identity import identity
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.engines.numba_engine.runs.recompilation import Recompilation
from stepnet.engines.numba_engine.runs.stepper import Stepper
from stepnet.errors import NoIdentity
from stepnet.problem import Problem
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.solution import Status

FAMILIES = {
    ExplicitRK: "integrators.explicit_rk",
    LowStorageRK: "integrators.low_storage",
    StabilisedRK: "integrators.stabilised",
    Splitting: "integrators.splitting",
    Multistep: "integrators.multistep",
}
LATER = {
    "member_problem": "ensembles.ensemble_runs",
    "pull_back_members": "ensembles.ensemble_runs",
    "run_ensemble": "ensembles.ensemble_runs",
    "scalar_of": "derivatives.scalar_loss",
    "with_reals": "rhs.integer_arguments",
}

__all__ = ["begin", "flat_gradients", "is_plain", "numbers_of", "prepare", "run", *LATER]


def __getattr__(name: str):
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)


def prepare(problem: Problem, scheme, plan: Plan) -> Job:
    """A run about to begin; Runge-Kutta kernels look into their own steps, others have it done."""
    family = _family(type(scheme))
    if is_plain(plan) or isinstance(scheme, ExplicitRK):
        return family(problem, scheme, plan)
    return hermite_output.prepare(problem, scheme, plan, family)


@cache
def _family(kind: type):
    """The function that prepares runs of a family of schemes."""
    return import_module(f"{__name__}.{FAMILIES[kind]}").prepare


def run(problem: Problem, scheme, plan: Plan) -> Outcome:
    """Solve the problem with the scheme as planned."""
    try:
        job = prepare(problem, scheme, plan)
    except StartFailed as failed:
        nothing = (np.zeros(0),) * len(plan.events), (failed.outcome.y[:0],) * len(plan.events)
        return failed.wanted(plan)._replace(t_events=nothing[0], y_events=nothing[1])
    outcome = drive(job, problem, plan, scheme, prepare)
    is_interrupted = outcome.status is Status.INTERRUPTED
    if job.inner is None or plan.saving.at is None or hermite_output.is_moving(plan) or is_interrupted:
        return outcome
    return hermite_output.insert_wanted_times(outcome, run(problem, scheme, Plan(plan.stepping, plan.saving)), problem)


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
    except StartFailed as failed:
        failure = failed.outcome.failure
        cause = None if failure is None else failure.exception
        raise RuntimeError(f"{failed} at t = {failed.outcome.t_end:g}, in the first steps of {scheme.name}") from cause
    try:
        known: str | NoIdentity = identity(problem, scheme, plan)
    except NoIdentity as reason:  # which matters only if the run is stored
        known = reason
    return Stepper(job, Recompilation(problem, scheme, plan, prepare), plan, known)
