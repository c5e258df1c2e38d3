"""A run as a map that can be differentiated: its motion over steps, forward, back by its adjoint, and undone."""

from __future__ import annotations

from functools import partial

import numpy as np

from stepnet.engines.numba_engine.adjoint.step_sweeps import (
    NO_MARKS,
    GradientSums,
    LossReadSteps,
    ProgramRunner,
    StepClock,
)
from stepnet.engines.numba_engine.derivatives.pullbacks import build_parts
from stepnet.problem import Problem, SecondOrder, Split
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program import SchemeProgram, build_scheme_program


class DifferentiableRun:
    """The steps of a scheme on a problem, to be run forward and in reverse.

    States are arrays (rows, n): the problem's own rows, and what the scheme carries along.  Step numbers count from 0
    to `n_steps`; the run begins at step `begin`, after the opening of a multistep scheme.
    """

    def __init__(
        self, problem: Problem, scheme, n_steps: int, grid: np.ndarray | None, has_times: bool, differences: bool
    ):
        if isinstance(scheme, Multistep):
            starter = scheme.starter
            scheme = starter if n_steps < scheme.n_steps else scheme
            self._make_starting = partial(DifferentiableRun, problem, starter, n_steps, grid, has_times, differences)
        self.problem, self.scheme, self.n_steps = problem, scheme, n_steps
        is_split = isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2)
        self.parts = build_parts(problem, not is_split, differences)
        is_sum, is_second = isinstance(problem, Split), isinstance(problem, SecondOrder)
        self.motion: SchemeProgram = build_scheme_program(
            scheme, len(self.parts), is_sum and is_split, is_second and is_split
        )
        n_own = len(self.motion.state)
        is_first = self.motion.state == tuple(range(n_own))
        self._own_rows = slice(0, n_own) if is_first else list(self.motion.state)
        self.n = problem.initial.size // n_own
        t0, t1 = problem.t_span
        h = (t1 - t0) / n_steps if n_steps else 0.0
        clock = StepClock(t0, h, np.zeros(0) if grid is None else grid)
        runner = partial(ProgramRunner, self.parts, n=self.n, clock=clock, has_times=has_times)
        self._opening, self._step = runner(self.motion.opening), runner(self.motion.step)
        self._back = runner(self.motion.back, is_back=True) if self.motion.back is not None else None
        self.begin = self.motion.opening.steps

    @property
    def width(self) -> int:
        """Numbers in a state."""
        return self.motion.step.n_rows * self.n

    @property
    def is_reversible(self) -> bool:
        """Whether steps can be undone."""
        return self._back is not None

    @property
    def rung(self) -> str:
        """Where derivatives come from: the slowest of all parts."""
        names = ("user", "traced", "dual", "differences")
        return max((part.rung for part in self.parts if part.vjp), key=names.index, default="traced")

    @property
    def is_generated(self) -> bool:
        """Whether steps run in generated code."""
        return self._step.is_generated

    @property
    def has_parameters(self) -> bool:
        """Whether gradients with respect to the arguments are known."""
        return self.is_complete or self._p_size == 0

    @property
    def is_complete(self) -> bool:
        """Whether derivatives with respect to time and arguments are known."""
        return all(part.is_complete for part in self.parts)

    @property
    def _p_size(self) -> int:
        return self.parts[-1].field.p.size

    def new_sums(self) -> GradientSums:
        return GradientSums(np.zeros(self._p_size), np.zeros(2))

    def starting(self) -> DifferentiableRun:
        """The one-step scheme behind the opening of a multistep scheme, step by step."""
        return self._make_starting()

    def open(self, initial: np.ndarray) -> np.ndarray:
        """The state at step `begin`, from the flat initial state of the problem."""
        state = self.spread(initial)
        self._opening.forward(state, 0, 1)
        return state

    def close(self, initial: np.ndarray, bar: np.ndarray, sums: GradientSums) -> np.ndarray:
        """The gradient with respect to the flat initial state, from that with respect to the state at `begin`."""
        self._opening.backward(self.spread(initial).reshape(1, -1), 0, 1, bar, sums)
        return self.own(bar)

    def forward(self, state: np.ndarray, first: int, count: int, states: np.ndarray | None = None) -> None:
        """Move a state over steps; those before each of them go to the rows of `states`."""
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
        """Move a gradient back over steps, those of `marks` being added on the way."""
        self._step.backward(states, first, count, bar, sums, marks)

    no_marks = NO_MARKS

    def marks(self, at: np.ndarray, gradients: np.ndarray) -> LossReadSteps:
        """Gradients (at, entries) with respect to the flat states at some steps, ascending."""
        seeds = np.zeros((len(at), self.motion.step.n_rows, self.n))
        seeds[:, self._own_rows] = gradients.reshape(len(at), -1, self.n)
        return NO_MARKS._replace(at=at, seeds=seeds)

    def stretches(self, at: np.ndarray, seed: np.ndarray) -> LossReadSteps:
        """Marks at which a gradient `seed` (rows, n) begins anew, those of each stretch being told apart."""
        seeds = np.tile(seed, (len(at), 1, 1))
        return LossReadSteps(at, seeds, np.zeros_like(seeds), np.zeros((len(at), self._p_size)))

    def undo(self, state: np.ndarray, first: int, count: int, states: np.ndarray) -> None:
        """Move a state back to step `first` over `count` steps; those before each of them go to `states`."""
        self._back.forward(state, first, count, states)

    def spread(self, flat: np.ndarray) -> np.ndarray:
        """A flat state of the problem, or a gradient with respect to it, in its rows; zeros elsewhere."""
        rows = np.zeros((self.motion.step.n_rows, self.n))
        rows[self._own_rows] = flat.reshape(-1, self.n)
        return rows

    def own(self, state: np.ndarray) -> np.ndarray:
        """The flat state of the problem."""
        return state[self._own_rows].ravel()

    def unit_rows(self) -> np.ndarray:
        """One gradient (rows, n) for every number of a state."""
        return np.eye(self.width).reshape(self.width, self.motion.step.n_rows, self.n)

    def own_places(self) -> np.ndarray:
        """Where the flat state of the problem is among the numbers of a state."""
        return self.own(np.arange(self.width).reshape(self.motion.step.n_rows, self.n))

    def own_states(self, states: np.ndarray) -> np.ndarray:
        """The same of stored states (steps, width), one row each."""
        return states.reshape(len(states), -1, self.n)[:, self._own_rows].reshape(len(states), -1)
