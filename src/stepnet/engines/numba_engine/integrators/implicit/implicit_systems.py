"""The equations of implicit steps: right-hand side, slopes, df/dy, mass matrix, and the solver of linear systems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.contract import FixedSteps, Plan
from stepnet.engines.numba_engine.derivatives.jacobian_fields import (
    JacobianField,
    build_jacobian_field,
    build_point_field,
    compare_with_differences,
    describe_size,
)
from stepnet.engines.numba_engine.integrators.implicit.implicit_stages import (
    NO_PARTS,
    OUTSIDE,
    UNIT_MASS,
    MassEntries,
    NewtonArrays,
    Storage,
    allocate_newton,
    find_storage,
)
from stepnet.engines.numba_engine.integrators.implicit.linear_systems import DENSE
from stepnet.engines.numba_engine.integrators.implicit.outer_systems import (
    LinearisationPoint,
    MatrixEntries,
    MatrixFreeSystems,
    OuterSystems,
    SparseMatrices,
    factorise_dense,
)
from stepnet.engines.numba_engine.integrators.stepping import (
    FIELD_RAISED,
    NOT_FINITE,
    NOT_SOLVED,
    PAUSED,
    STEP_TOO_SMALL,
)
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.mass_slopes import drop_mass
from stepnet.engines.numba_engine.rhs.problem_parts import (
    build_fields,
    build_full_field,
    build_part_problem,
    build_products,
)
from stepnet.engines.numba_engine.runs.job import allocate_work, create_run_state
from stepnet.problem import ODE, Gmres, Problem, Split

LAPACK_FROM = 128  # unknowns of a dense system above which LAPACK, called outside the kernel, is faster
SPARSE_FROM, FULL_ROWS = 2e7, 40  # operations of banded or dense factors worth the overhead; entries in a row at most
LAPACK_SPEED = 8.0  # operations of LAPACK in the time of one in the kernel


class Shifts(NamedTuple):
    """The numbers lambda of the matrices M - h lambda df/dy of a step, the first `n_real` of them real.

    Steps that are linear systems (`is_linear`) need df/dt, and the exact df/dy.  If the stages cannot be decoupled,
    one matrix of `n_together` times the size of the state is factorised instead.
    """

    values: np.ndarray
    n_real: int
    is_linear: bool
    n_together: int = 0


class ImplicitSystem(NamedTuple):
    """What a run of an implicit scheme solves, with its workspace.

    The kernel takes `slopes`, which give y', or f of M y' = f where y' is not needed; `first_slopes` choose the first
    step.  `own` is f, with the callbacks of all that the run calls; `others` are events and the projection.
    """

    initial: np.ndarray
    own: CompiledRHS
    slopes: CompiledRHS
    first_slopes: CompiledRHS
    others: tuple[tuple[CompiledRHS, ...], tuple[CompiledRHS, ...]]
    newton: NewtonArrays
    solver: str
    outer: OuterSystems | None
    work: np.ndarray
    run: np.ndarray

    def check_outside(self, code: int) -> int:
        """FIELD_RAISED if a run ended because a function that solves linear systems raised, or was stopped."""
        has_raised = self.outer is not None and (self.outer.exception is not None or self.outer.has_stopped)
        return FIELD_RAISED if has_raised and code in (NOT_SOLVED, NOT_FINITE, STEP_TOO_SMALL, PAUSED) else code


def build_system(
    problem: Problem, plan: Plan, shifts: Shifts, first_row: int, parts: tuple[CompiledRHS, ...] = ()
) -> ImplicitSystem:
    """The equations of a problem for the matrices of a scheme; df/dy is stored from row `first_row` of the workspace.

    `parts` are the explicit and the implicit part of a sum that are treated as such: df/dy is that of the second one.
    """
    plain, mass = drop_mass(problem), _list_mass_entries(problem)  # type: ignore[arg-type]
    field, watched, moved = build_fields(plain, plan)
    n, is_linear = problem.initial.size, shifts.is_linear
    equation, own_field = (build_part_problem(cast(Split, problem), 1), parts[1]) if parts else (plain, field)
    wanted = None if isinstance(equation, Split) else getattr(equation, "linear_solver", None)
    is_free = isinstance(wanted, Gmres)
    point = LinearisationPoint() if is_free else None
    if point is not None:
        jacobian = build_point_field(equation, own_field, point, is_linear)
    else:
        jacobian = build_jacobian_field(equation, own_field, needs_time=is_linear)
    if shifts.n_together:
        name, storage, is_outside = "dense", Storage(DENSE, DENSE, n), False
    else:
        name, storage, is_outside = _choose_solver(wanted, jacobian, mass, n)
    addresses = (np.array([part.address for part in parts]), parts[1].p) if parts else NO_PARTS
    n_checks = compare_with_differences(jacobian, field, plain) if is_linear and not is_free else 0
    newton = allocate_newton(jacobian, n, len(shifts.values), shifts.n_real, storage, first_row, addresses, field, mass)
    if shifts.n_together:
        newton = _join_stages(newton, n * shifts.n_together)
    try:
        work, run = allocate_work(problem.initial, 1, first_row + storage.rows + 1), create_run_state(problem, plan)
    except (MemoryError, ValueError):
        raise MemoryError(describe_size(n, storage.rows, 1)) from None
    run["evaluations"] += n_checks
    outer = None
    if is_outside:
        vectors = newton.vector, newton.complex_vector
        given = equation if parts else problem
        outer = OuterSystems(_build_factoriser(name, given, newton, mass, point), shifts.values, vectors)
        newton = newton._replace(outer=outer.address)
    slopes = first = field
    if mass is not UNIT_MASS:
        first = build_full_field(problem)
        if not (is_linear and _needs_no_slopes(plan)):
            slopes, newton = first, newton._replace(is_slope=0)
    called = [callback for part in parts for callback in part.callbacks]
    callbacks = [*called, *field.callbacks, *jacobian.callbacks, *(first.callbacks if first is not field else ())]
    n_calls = 1 if parts else field.n_calls  # parts are counted one by one
    own = replace(field, callbacks=(*callbacks, *((outer,) if outer is not None else ())), n_calls=n_calls)
    return ImplicitSystem(
        problem.initial, own, slopes, first, (watched, moved), newton, name, outer, work, run
    )  # fmt: skip


def _join_stages(newton: NewtonArrays, size: int) -> NewtonArrays:
    """With one dense matrix of the size of all stages."""
    try:
        factors = np.zeros((1, size, size))
    except (MemoryError, ValueError):
        raise MemoryError(describe_size(size, size, 1)) from None
    return newton._replace(factors=factors, pivots=np.zeros((1, size), np.int64), vector=np.zeros(size))


def _list_mass_entries(problem: Problem) -> MassEntries:
    mass = getattr(problem, "mass_matrix", None)
    return UNIT_MASS if mass is None else MassEntries(*mass.entries)


def _needs_no_slopes(plan: Plan) -> bool:
    """Whether no polynomial inside the steps is needed."""
    saves_inside = plan.saving.at is not None and not isinstance(plan.stepping, FixedSteps)
    return not (plan.events or plan.dense or plan.project or saves_inside)


def _choose_solver(wanted: Any, jacobian: JacobianField, mass: MassEntries, n: int) -> tuple[str, Storage, bool]:
    """The name of the linear solver, the storage in the kernel, and whether the systems leave the kernel."""
    if isinstance(wanted, Gmres):
        return "gmres", OUTSIDE, True
    lower, upper = jacobian.bandwidth
    lower = max(lower, int(np.max(mass.rows - mass.columns, initial=0)))
    upper = max(upper, int(np.max(mass.columns - mass.rows, initial=0)))
    storage = find_storage((lower, upper), n)
    if wanted is None:
        is_banded = storage.lower >= 0
        work = 2.0 * n * lower * (lower + upper) if is_banded else 2.0 / 3.0 * n**3 / LAPACK_SPEED
        is_sparse = work > SPARSE_FROM and len(jacobian.rows) + len(mass.rows) <= FULL_ROWS * n
        wanted = "sparse" if is_sparse else "banded" if is_banded else "dense"
    if wanted == "banded":
        return wanted, Storage(lower, upper, lower + upper + 1), False
    if wanted == "dense" and n < LAPACK_FROM:
        return wanted, find_storage((n, n), n), False
    return wanted, OUTSIDE, True


def _build_factoriser(name: str, problem: Problem, newton: NewtonArrays, mass: MassEntries, point):
    n = problem.initial.size
    if point is not None:
        ode = cast(ODE, problem)
        columns, shape = build_products(drop_mass(ode)).columns, ode.y0.shape
        matrix = None if mass is UNIT_MASS else ode.mass_matrix.sparse
        return MatrixFreeSystems(cast(Gmres, ode.linear_solver), columns, ode.args, matrix, shape, point).factorise
    entries = MatrixEntries(n, newton.rows, newton.columns, newton.values, *mass)
    return SparseMatrices(entries).factorise if name == "sparse" else partial(factorise_dense, entries)
