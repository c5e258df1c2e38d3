"""Implicit stages of layers: Newton's method on groups of tiles, and derivatives by the implicit function theorem.

Every sample iterates by itself: when it is solved, when its Jacobian is renewed and how far it moves depend on its own
numbers alone, so that its bits are the same in any batch.  Where full Newton steps fail they are shortened until the
next one, with the same matrix, would be smaller: natural monotonicity (Deuflhard 2011, Newton Methods for Nonlinear
Problems).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepnet.engines.numba_engine.layers.implicit.chain_runs import ChainRun
from stepnet.engines.numba_engine.layers.implicit.implicit_systems import StageEquations, build_system, combine, measure
from stepnet.schemes.step_program import Solve

MOST_ITERATIONS = 25
MOST_DAMPED, HALVINGS = 100, 12  # iterations with shortened changes, and how often one is halved
EPSILONS = 10.0  # a change of the state by so many units of rounding ends the iteration
FAST = 0.01  # a slower rate of convergence renews the Jacobian of a sample: iterations cost more than factors
STAGNANT = 1e-6  # a relative change below this that no longer decreases is rounding


class NewtonError(RuntimeError):
    """Implicit stages of a layer that could not be solved."""


class NewtonProgress:
    """The convergence of Newton's iteration, sample by sample."""

    def __init__(self, base: np.ndarray, is_active: np.ndarray):
        self.reach = np.maximum(np.abs(base).max(axis=1), np.finfo(base.dtype).tiny)
        self.size, self.is_active = np.full_like(self.reach, np.inf), is_active.copy()
        self.is_solved = np.zeros_like(is_active)
        self.small = EPSILONS * float(np.finfo(base.dtype).eps)

    def note(self, moved: np.ndarray) -> np.ndarray:
        """Measure a change of the stages; which samples converge slowly."""
        moved = measure(moved)
        self.reach = self.reach + moved  # no less than the largest entry of the stages
        size = moved / self.reach
        rate = size / self.size
        is_solved = (size <= self.small) | ((size <= STAGNANT) & (rate > 0.5)) | (size == 0)
        self.is_solved |= self.is_active & is_solved
        self.size = np.where(self.is_active, size, self.size)
        self.is_active &= ~is_solved & np.isfinite(size)
        return self.is_active & (rate > FAST)


def spread(values: np.ndarray) -> np.ndarray:
    """One value per sample, for all entries of the stages."""
    return values[None, :, None, :]


class StageSolver:
    """The stages of one operation of a step: solved, pushed forward and pulled back."""

    def __init__(self, operation: Solve, runs: Sequence[ChainRun], h: float):
        self.operation, self.h, self.runs = operation, h, runs
        self.equations = StageEquations(runs, operation.A, h)
        self.system = build_system(self.equations)

    # ---- Newton's iteration -----------------------------------------------------------------------------------------

    def solve(self, base: np.ndarray, step: int) -> np.ndarray:
        """K = psi(K) with simplified Newton steps; samples that do not converge begin again with shortened ones."""
        K = np.zeros((len(self.runs), *base.shape), base.dtype)
        is_slow = np.ones(self.equations.samples, bool)
        progress = NewtonProgress(base, is_slow)
        with np.errstate(all="ignore"):
            for _ in range(MOST_ITERATIONS):
                residual = self.equations.evaluate(base, K, step) - K
                if is_slow.any():
                    self.system.linearise(is_slow)
                change = self._find_change(residual, progress.is_active)
                K += change
                is_slow = progress.note(self.h * change)
                if not progress.is_active.any():
                    break
            is_left = ~progress.is_solved
            if is_left.any():
                K = self._solve_damped(base, np.where(spread(is_left), 0, K), is_left, step)
        return K

    def _find_change(self, residual: np.ndarray, is_active: np.ndarray) -> np.ndarray:
        """The change of the active samples, 0 for others."""
        mask = spread(is_active)
        return np.where(mask, self.system.solve(np.where(mask, residual, 0), is_exact=False), 0)

    def _solve_damped(self, base: np.ndarray, K: np.ndarray, is_left: np.ndarray, step: int) -> np.ndarray:
        """Newton's method with new Jacobians and shortened changes, for the samples that are left."""
        progress, share = NewtonProgress(base, is_left), np.ones(is_left.shape, base.dtype)
        for _ in range(MOST_DAMPED):
            residual = self.equations.evaluate(base, K, step) - K
            self.system.linearise(progress.is_active)
            change = self._find_change(residual, progress.is_active)
            merit = self.system.find_merit(residual)
            for _ in range(HALVINGS):
                trial = K + spread(share) * change
                left = self.system.find_merit(self.equations.evaluate(base, trial, step) - trial)
                is_shorter = (left <= (1 - 0.25 * share) * merit) | ~progress.is_active | (merit == 0)
                if is_shorter.all():
                    break
                share = np.where(is_shorter, share, 0.5 * share)
            K = trial
            progress.note(self.h * change)
            if not progress.is_active.any():
                break
            share = np.minimum(2 * share, 1)
        is_lost = is_left & ~progress.is_solved
        if is_lost.any():
            self._refuse(base, K, is_lost, step)
        return K

    def _refuse(self, base: np.ndarray, K: np.ndarray, is_lost: np.ndarray, step: int) -> None:
        """An error that names the layer and the largest residual."""
        residual = measure(self.h * (self.equations.evaluate(base, K, step) - K))
        size = np.maximum(np.abs(base).max(axis=1), np.finfo(base.dtype).tiny)
        raise NewtonError(
            f"the implicit stages of step {step} of {self.runs[0].stage.name} were not solved for every sample: "
            f"Newton's iteration stopped at a residual of {(residual / size)[is_lost].max():.3g} of the state; use "
            "more `steps`, a shorter `length` or smaller weights"
        )

    # ---- derivatives at solved stages -------------------------------------------------------------------------------

    def place(self, base: np.ndarray, K: np.ndarray, step: int) -> None:
        """Take derivatives at solved stages from now on."""
        self.equations.evaluate(base, K, step)
        self.system.linearise(np.ones(self.equations.samples, bool))

    def combine(self, K: np.ndarray) -> np.ndarray:
        """sum_i b_i K_i."""
        return combine(self.operation.b, K)

    def push(self, base_dot: np.ndarray, theta_dot: np.ndarray) -> np.ndarray:
        """The tangent of `combine`."""
        rhs = np.stack([run.push(base_dot, theta_dot) for run in self.runs])
        return self.combine(self.system.solve(rhs))

    def pull(self, bar: np.ndarray, theta_bar: np.ndarray) -> np.ndarray:
        """The gradient with respect to the row from that of `combine`; gradients of weights are added."""
        u = self.system.solve_transposed(np.stack([weight * bar for weight in self.operation.b]))
        return self.equations.pull(u, theta_bar).sum(axis=0)
