"""The engine of compiled kernels: one per family of schemes, generic in the numbers."""

from __future__ import annotations

from stepnet.engines.contract import Outcome, Plan
from stepnet.engines.numba_engine import explicit_rk, low_storage, multistep, splitting, stabilised
from stepnet.engines.numba_engine.driver import drive
from stepnet.problem import Problem
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK, StabilisedRK

PREPARE = {
    ExplicitRK: explicit_rk.prepare,
    LowStorageRK: low_storage.prepare,
    StabilisedRK: stabilised.prepare,
    Splitting: splitting.prepare,
}


def run(problem: Problem, scheme, plan: Plan) -> Outcome:
    """Solve the problem with the scheme as planned."""
    if isinstance(scheme, Multistep):
        return multistep.run(problem, scheme, plan, run)
    return drive(PREPARE[type(scheme)](problem, scheme, plan), problem, plan, scheme)
