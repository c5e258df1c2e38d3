"""The engine of compiled kernels: one or two per family of schemes, generic in the numbers."""

from __future__ import annotations

from stepnet.engines.contract import Outcome, Plan
from stepnet.engines.numba_engine import explicit_rk, low_storage, multistep, splitting, stabilised
from stepnet.engines.numba_engine.driver import drive
from stepnet.engines.numba_engine.job import Job
from stepnet.engines.numba_engine.stepper import Stepper
from stepnet.problem import Problem
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK

PREPARE = {
    ExplicitRK: explicit_rk.prepare,
    LowStorageRK: low_storage.prepare,
    StabilisedRK: stabilised.prepare,
    Splitting: splitting.prepare,
    Multistep: multistep.prepare,
}


def prepare(problem: Problem, scheme, plan: Plan) -> Job:
    """A run about to begin."""
    return PREPARE[type(scheme)](problem, scheme, plan)


def run(problem: Problem, scheme, plan: Plan) -> Outcome:
    """Solve the problem with the scheme as planned."""
    try:
        job = prepare(problem, scheme, plan)
    except multistep.StartFailed as failed:
        return failed.wanted(plan)
    return drive(job, problem, plan, scheme)


def begin(problem: Problem, scheme, plan: Plan) -> Stepper:
    """A run to be stepped by hand."""
    return Stepper(prepare(problem, scheme, plan), plan)
