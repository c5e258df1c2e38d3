"""A run as a differentiable map: its step program run forward, transposed (adjoint), and inverted."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.contract import FixedSteps
from stepnet.engines.numba_engine.adjoint.axis_sweeps import AxisRunner
from stepnet.engines.numba_engine.adjoint.step_sweeps import (
    NO_MARKS,
    UNIT_MASS,
    GradientSums,
    LossReadSteps,
    ProgramRunner,
    StepClock,
)
from stepnet.engines.numba_engine.derivatives.augmented_problems import lift_parts
from stepnet.engines.numba_engine.derivatives.pullbacks import build_parts, build_stochastic_parts
from stepnet.engines.numba_engine.random.step_noise import PathNoise
from stepnet.engines.numba_engine.rhs.problem_parts import build_part_problem, find_consistent_problem
from stepnet.engines.numba_engine.rhs.stochastic_parts import build_stochastic_fields, find_stochastic_program
from stepnet.errors import NoDerivative
from stepnet.problem import ODE, Problem, ProblemForm, Split, StochasticProblem
from stepnet.schemes.capabilities import (
    has_history,
    moves_parts,
    needs_axes,
    needs_linear_part,
    needs_second_derivatives,
)
from stepnet.schemes.step_program import LinearSolve, SchemeProgram, Slope, StepProgram, Tamed, build_scheme_program


class Direction(NamedTuple):
    """A direction of the flat initial state and of the parameters."""

    y: np.ndarray
    p: np.ndarray


class DifferentiableRun:
    """The steps of a scheme on a problem, run forward and in reverse.

    States are arrays (rows, n): the rows of the problem's state, and what the scheme carries from step to step.  Steps
    are numbered from 0 to `n_steps`; a multistep run begins at step `begin`, after its starting procedure.
    """

    def __init__(
        self,
        problem: Problem,
        scheme,
        n_steps: int,
        grid: np.ndarray | None,
        has_times: bool,
        differences: bool,
        direction: Direction | None = None,
    ):
        if has_history(scheme):
            starter = scheme.starter
            scheme = starter if n_steps < scheme.n_steps else scheme
            self._make_starting = partial(DifferentiableRun, problem, starter, n_steps, grid, has_times, differences)
        problem = find_consistent_problem(problem)
        self.problem, self.scheme, self.n_steps, self.initial = problem, scheme, n_steps, problem.initial
        if problem.form.is_stochastic:
            self._prepare_stochastic(
                cast(StochasticProblem, problem), scheme, FixedSteps(n_steps, grid), differences, direction
            )
            return
        is_parted = moves_parts(scheme, problem.form)
        goes_along_axes = needs_axes(scheme, problem)
        may_loop = goes_along_axes or not needs_second_derivatives(scheme)
        linear = problem.parts[1] if isinstance(problem, Split) and needs_linear_part(scheme) else None
        if linear is not None:
            self.parts = build_parts(build_part_problem(problem, 0), True, differences, may_loop)  # type: ignore[arg-type]
        else:
            self.parts = build_parts(problem, not is_parted, differences, may_loop)
        is_sum, is_second = problem.form is ProblemForm.SUM, problem.form is ProblemForm.SECOND
        self.scheme_program: SchemeProgram = build_scheme_program(
            scheme, len(self.parts), is_sum and is_parted, is_second and is_parted
        )
        n_own = len(self.scheme_program.state)
        is_first = self.scheme_program.state == tuple(range(n_own))
        self._own_rows = slice(0, n_own) if is_first else list(self.scheme_program.state)
        self.n = problem.initial.size // n_own
        t0, t1 = problem.t_span
        h = (t1 - t0) / n_steps if n_steps else 0.0
        clock = StepClock(t0, h, np.zeros(0) if grid is None else grid)
        mass = _choose_mass(problem, scheme, self.scheme_program)
        given: dict[str, Any] = {"n": self.n, "clock": clock, "has_times": has_times, "linear": linear, "mass": mass}
        runner = partial(ProgramRunner, self.parts, **given)
        self._opening = runner(self.scheme_program.opening)
        self._step: ProgramRunner | AxisRunner = (
            AxisRunner(cast(ODE, problem), self.parts[0], scheme.gamma, clock, has_times)
            if goes_along_axes
            else runner(self.scheme_program.step)
        )
        self._back = runner(self.scheme_program.back, is_back=True) if self.scheme_program.back is not None else None
        self.begin = self.scheme_program.opening.steps

    def _prepare_stochastic(
        self, problem: StochasticProblem, scheme, stepping: FixedSteps, differences: bool, direction: Direction | None
    ) -> None:
        """Steps with noise, which is drawn again in each sweep; with a `direction` also their derivative along it."""
        self.scheme_program = find_stochastic_program(problem, scheme, stepping.n_steps)
        fields, n_own = build_stochastic_fields(problem, scheme), len(self.scheme_program.state)
        self.parts = build_stochastic_parts(problem, fields, differences, may_loop=direction is None)
        if direction is not None:
            _require_tangent(scheme, self.scheme_program.step)
            self.parts = lift_parts(self.parts, direction.p)
            halves = (each.reshape(n_own, -1) for each in (problem.initial, direction.y))
            self.initial = np.concatenate(tuple(halves), axis=1).ravel()
        self._own_rows, self.n, self.begin = slice(0, n_own), self.initial.size // n_own, 0
        (t0, t1), n_steps, grid = problem.t_span, *stepping
        clock = StepClock(t0, (t1 - t0) / n_steps, np.zeros(0) if grid is None else grid)
        noise = PathNoise(problem, stepping, self.scheme_program.step, problem.n_components)
        runner = partial(ProgramRunner, self.parts, n=self.n, clock=clock, has_times=False, noise=noise)
        self._opening, self._step = runner(self.scheme_program.opening), runner(self.scheme_program.step)
        self._back = runner(self.scheme_program.back, is_back=True) if self.scheme_program.back is not None else None

    @property
    def width(self) -> int:
        """The number of entries of a state."""
        return self.scheme_program.step.n_rows * self.n

    @property
    def is_reversible(self) -> bool:
        """Whether steps can be inverted."""
        return self._back is not None

    @property
    def rung(self) -> str:
        """The rung of the derivatives: the slowest of all parts."""
        names = ("user", "traced", "dual", "differences")
        return max((part.rung for part in self.parts if part.vjp), key=names.index, default="traced")

    @property
    def is_generated(self) -> bool:
        """Whether steps run in generated code."""
        return self._step.is_generated

    @property
    def has_parameters(self) -> bool:
        """Whether gradients with respect to the arguments are available."""
        return self.is_complete or self._p_size == 0

    @property
    def is_complete(self) -> bool:
        """Whether derivatives with respect to time and arguments are available."""
        return all(part.is_complete for part in self.parts)

    @property
    def _p_size(self) -> int:
        return self.parts[-1].field.p.size

    def new_sums(self) -> GradientSums:
        return GradientSums(np.zeros(self._p_size), np.zeros(2))

    def starting(self) -> DifferentiableRun:
        """The run of the one-step scheme that starts a multistep scheme."""
        return self._make_starting()

    def open(self, initial: np.ndarray) -> np.ndarray:
        """The state at step `begin`, from the flat initial state of the problem."""
        state = self.spread(initial)
        self._opening.forward(state, 0, 1)
        return state

    def close(self, initial: np.ndarray, bar: np.ndarray, sums: GradientSums) -> np.ndarray:
        """The gradient with respect to the flat initial state, from that with respect to the state at `begin`."""
        self._opening.backward(self.spread(initial).reshape(1, -1), 0, 1, bar, sums)
        return self.extract_state(bar)

    def forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None = None) -> None:
        """Advance a state over steps; the states before each of them go to the rows of `states`."""
        self._step.forward(state, first, count, states)

    def backward(
        self,
        states: np.ndarray,
        first: int,
        count: int,
        bar: np.ndarray,
        sums: GradientSums,
        marks: LossReadSteps = NO_MARKS,
    ) -> None:
        """Pull a gradient back over steps, adding the gradients of `marks` at their steps."""
        self._step.backward(states, first, count, bar, sums, marks)

    no_marks = NO_MARKS

    def marks(self, at: np.ndarray, gradients: np.ndarray) -> LossReadSteps:
        """Gradients (at, entries) with respect to the flat states at some steps, ascending."""
        seeds = np.zeros((len(at), self.scheme_program.step.n_rows, self.n))
        seeds[:, self._own_rows] = gradients.reshape(len(at), -1, self.n)
        return NO_MARKS._replace(at=at, seeds=seeds)

    def stretches(self, at: np.ndarray, seed: np.ndarray) -> LossReadSteps:
        """Marks at which the gradient is reset to `seed` (rows, n); each interval has its own gradients."""
        seeds = np.tile(seed, (len(at), 1, 1))
        return LossReadSteps(at, seeds, np.zeros_like(seeds), np.zeros((len(at), self._p_size)))

    def undo(self, state: np.ndarray, first: int, count: int, states: np.ndarray) -> None:
        """Move a state back to step `first` over `count` inverted steps; states before each of them go to `states`."""
        self._back.forward(state, first, count, states)

    def spread(self, flat: np.ndarray) -> np.ndarray:
        """A flat state of the problem, or a gradient with respect to it, placed in its rows; zeros elsewhere."""
        rows = np.zeros((self.scheme_program.step.n_rows, self.n))
        rows[self._own_rows] = flat.reshape(-1, self.n)
        return rows

    def extract_state(self, state: np.ndarray) -> np.ndarray:
        """The flat state of the problem, from a state of the run."""
        return state[self._own_rows].ravel()

    def unit_rows(self) -> np.ndarray:
        """One unit gradient (rows, n) for every entry of a state."""
        return np.eye(self.width).reshape(self.width, self.scheme_program.step.n_rows, self.n)

    def list_state_places(self) -> np.ndarray:
        """The indices of the problem's flat state among the entries of a state."""
        return self.extract_state(np.arange(self.width).reshape(self.scheme_program.step.n_rows, self.n))

    def extract_states(self, states: np.ndarray) -> np.ndarray:
        """As `extract_state`, for stored states (steps, width)."""
        return states.reshape(len(states), -1, self.n)[:, self._own_rows].reshape(len(states), -1)


def linearise(
    problem: Problem, scheme, plan: FixedSteps, has_times: bool = False, differences: bool = False
) -> DifferentiableRun:  # fmt: skip
    """Fixed steps as a differentiable map; with gradients with respect to their times if `has_times`."""
    return DifferentiableRun(problem, scheme, plan.n_steps, plan.grid, has_times, differences)


def linearise_tangent(
    problem: StochasticProblem, scheme, plan: FixedSteps, y: np.ndarray, p: np.ndarray
) -> DifferentiableRun:
    """Fixed steps of a stochastic equation with their derivative along (y, p): a map of the state and its tangent.

    Each row of the state is followed by that of its tangent.
    """
    return DifferentiableRun(problem, scheme, plan.n_steps, plan.grid, False, False, Direction(y, p))


def _choose_mass(problem: Problem, scheme, program: SchemeProgram) -> np.ndarray:
    """The mass matrix of the steps: only a singular one, because a nonsingular one is part of the right-hand side."""
    mass = getattr(problem, "mass_matrix", None)
    if mass is None or not mass.is_singular:
        return UNIT_MASS
    operations = (*program.opening.operations, *program.step.operations)
    if any(isinstance(each, (Slope, LinearSolve)) for each in operations):
        raise NoDerivative(
            f"derivatives with a singular `mass` need an implicit Runge-Kutta scheme without an explicit stage, such "
            f"as radau5, sdirk4 or lobatto_iiic4, found {scheme.name}"
        )
    return mass.sparse.toarray()


def _require_tangent(scheme, program: StepProgram) -> None:
    """Refuse steps that are not the same for a state and for a state with its tangent."""
    if any(isinstance(operation, Tamed) for operation in program.operations):
        raise NoDerivative(
            f"{scheme.name} divides the drift by its norm, so `tangent` and `hvp` do not support it; `gradient` does"
        )
