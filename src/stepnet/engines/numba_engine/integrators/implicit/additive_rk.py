"""Additive (IMEX) Runge-Kutta schemes, by the executor of implicit ones."""

from __future__ import annotations

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.integrators.implicit import implicit_rk
from stepnet.engines.numba_engine.integrators.implicit.additive_stages import build_additive_tables
from stepnet.engines.numba_engine.rhs.problem_parts import build_part_fields
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.problem import Problem, ProblemForm
from stepnet.schemes.imex import AdditiveRK


def prepare(problem: Problem, scheme: AdditiveRK, plan: Plan) -> Job:
    """Prepare a run of a sum of two parts, or of an equation without parts, which is implicit as a whole."""
    if problem.form is not ProblemForm.SUM:
        return implicit_rk.prepare(problem, scheme.implicit_scheme, plan)
    tables, parts = build_additive_tables(scheme), build_part_fields(problem)
    return implicit_rk.prepare_with_tables(problem, scheme, plan, tables, scheme.implicit_table, parts)
