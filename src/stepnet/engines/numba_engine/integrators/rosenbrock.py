"""Rosenbrock schemes with fixed and adaptive steps, by the executor of implicit Runge-Kutta schemes."""

from __future__ import annotations

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.integrators.implicit_rk import prepare_with_tables
from stepnet.engines.numba_engine.integrators.linear_stages import build_linear_tables
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.tableau import butcher


def prepare(problem: Problem, scheme: Rosenbrock, plan: Plan) -> Job:
    """Prepare a run of any problem, with its right-hand sides combined into one."""
    table = butcher(scheme.arrays.alpha, scheme.arrays.b)
    return prepare_with_tables(problem, scheme, plan, build_linear_tables(scheme), table)
