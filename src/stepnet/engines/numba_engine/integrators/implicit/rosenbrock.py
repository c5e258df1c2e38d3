"""Rosenbrock schemes with fixed and adaptive steps, by the executor of implicit Runge-Kutta schemes."""

from __future__ import annotations

from functools import lru_cache

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.integrators.implicit import axis_rosenbrock
from stepnet.engines.numba_engine.integrators.implicit.implicit_rk import prepare_with_tables
from stepnet.engines.numba_engine.integrators.implicit.linear_stages import build_linear_tables
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.tableau import Butcher, butcher


def prepare(problem: Problem, scheme: Rosenbrock, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    systems = axis_rosenbrock.find_systems(problem, scheme)
    if systems is not None:
        return axis_rosenbrock.prepare(problem, scheme, plan, systems)
    return prepare_with_tables(problem, scheme, plan, build_linear_tables(scheme), _build_explicit(scheme))


@lru_cache(maxsize=64)
def _build_explicit(scheme: Rosenbrock) -> Butcher:
    """The arguments of the right-hand side as stages of an explicit scheme."""
    return butcher(scheme.arrays.alpha, scheme.arrays.b)
