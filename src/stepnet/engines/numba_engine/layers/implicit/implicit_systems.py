"""The linear systems of implicit layers, sample by sample: dense factors for small ones, GMRES for others.

Stages K = psi(K), psi_i(K) = f(t_i, y + h sum_j A_ij K_j), are arrays `(stages, groups, features, samples)`; with the
Jacobians J_i at the stages that were evaluated last, the matrix of a sample is I - h (A_ij J_i)_ij.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stepnet.engines.numba_engine.layers.implicit import system_kernels
from stepnet.engines.numba_engine.layers.implicit.chain_runs import ChainRun
from stepnet.engines.numba_engine.layers.implicit.krylov import Product, measure_samples, solve_by_gmres

MOST_DENSE = 96  # unknowns of a sample, up to which its matrix is stored and factorised
INEXACT = 1e-4  # relative residual of systems inside Newton's iteration
EPSILONS = 10.0  # relative residual of other systems, in units of rounding
POOR = {"d": 1e-6, "f": 1e-3}  # relative residuals above these, by precision, would be errors in derivatives


class StageEquations:
    """The equations of coupled stages of a step, with one run of a chain for each stage."""

    def __init__(self, runs: Sequence[ChainRun], A: tuple[tuple[float, ...], ...], h: float):
        self.runs, self.A, self.h, self.dtype = runs, A, h, runs[0].stage.dtype
        self.samples = runs[0].groups, runs[0].samples

    def evaluate(self, base: np.ndarray, K: np.ndarray, step: int) -> np.ndarray:
        """psi(K) in a step; derivatives are taken here from now on."""
        found = np.empty_like(K)
        for i, run in enumerate(self.runs):
            found[i] = run.evaluate(base + self.h * combine(self.A[i], K), step)
        return found

    def push(self, v: np.ndarray) -> np.ndarray:
        """(dpsi/dK) v."""
        return np.stack([run.push(self.h * combine(row, v)) for run, row in zip(self.runs, self.A, strict=True)])

    def pull(self, w: np.ndarray, theta_bar: np.ndarray) -> np.ndarray:
        """(dpsi_i/dy)' w_i for each stage; gradients of weights are added."""
        return np.stack([run.pull(each, theta_bar) for run, each in zip(self.runs, w, strict=True)])

    def mix_transposed(self, pulled: np.ndarray) -> np.ndarray:
        """h A' times the rows of `pull`: (dpsi/dK)' w."""
        columns = zip(*self.A, strict=True)
        return self.h * np.stack([combine(column, pulled) for column in columns])


def combine(weights: Sequence[float], rows: np.ndarray) -> np.ndarray:
    """sum_j weights_j rows_j."""
    total = np.zeros_like(rows[0])
    for weight, row in zip(weights, rows, strict=True):
        if weight:
            total += weight * row
    return total


def measure(change: np.ndarray) -> np.ndarray:
    """The largest entry of each sample, (groups, samples)."""
    return np.abs(change).max(axis=0).max(axis=1)


class StageSystem(Protocol):
    """Systems with the matrices of all samples."""

    def linearise(self, is_chosen: np.ndarray) -> None:
        """Take the Jacobians of the chosen samples at the stages that were evaluated last."""

    def solve(self, rhs: np.ndarray, is_exact: bool = True) -> np.ndarray:
        """M x = rhs."""

    def solve_transposed(self, rhs: np.ndarray) -> np.ndarray:
        """M' x = rhs."""

    def find_merit(self, residual: np.ndarray) -> np.ndarray:
        """What a shortened step of Newton's method must make smaller, for each sample."""


class DenseSystem:
    """Factors of the matrix of every sample, which remain those of the Jacobians that were taken last."""

    def __init__(self, equations: StageEquations):
        self.equations = equations
        n_stages, n = len(equations.A), equations.runs[0].chain.n_in
        self.shape = n_stages, n
        count, size = int(np.prod(equations.samples)), n_stages * n
        self.matrices = np.zeros((count, size, size), equations.dtype)
        self.pivots = np.zeros((count, size), np.int64)

    def linearise(self, is_chosen: np.ndarray) -> None:
        n_stages, n = self.shape
        A, h, is_chosen = self.equations.A, self.equations.h, is_chosen.reshape(-1)
        blocks = self.matrices.reshape(-1, n_stages, n, n_stages, n)
        for i, run in enumerate(self.equations.runs):
            J = run.jacobians()[is_chosen]
            for j in range(n_stages):
                block = (-h * A[i][j]) * J
                if i == j:
                    block[:, range(n), range(n)] += 1.0
                blocks[is_chosen, i, :, j] = block
        system_kernels.factorise_systems(self.matrices, self.pivots, is_chosen.copy())

    def solve(self, rhs: np.ndarray, is_exact: bool = True) -> np.ndarray:
        return self._solve(rhs, False)

    def solve_transposed(self, rhs: np.ndarray) -> np.ndarray:
        return self._solve(rhs, True)

    def find_merit(self, residual: np.ndarray) -> np.ndarray:
        return measure(self.solve(residual))

    def _solve(self, rhs: np.ndarray, is_transposed: bool) -> np.ndarray:
        n_stages, groups, n, samples = rhs.shape
        rows = np.ascontiguousarray(rhs.transpose(1, 3, 0, 2)).reshape(groups * samples, -1)
        system_kernels.solve_systems(self.matrices, self.pivots, rows, is_transposed)
        return np.ascontiguousarray(rows.reshape(groups, samples, n_stages, n).transpose(2, 0, 3, 1))


class KrylovSystem:
    """GMRES with products of the Jacobians at the stages that were evaluated last."""

    def __init__(self, equations: StageEquations):
        self.equations = equations
        self.unused = np.zeros_like(equations.runs[0].theta)  # gradients of weights, which products do not need

    def linearise(self, is_chosen: np.ndarray) -> None:
        """Products need no preparation."""

    def solve(self, rhs: np.ndarray, is_exact: bool = True) -> np.ndarray:
        return self._solve(lambda v: v - self.equations.push(v), rhs, is_exact)

    def solve_transposed(self, rhs: np.ndarray) -> np.ndarray:
        equations = self.equations
        return self._solve(lambda w: w - equations.mix_transposed(equations.pull(w, self.unused)), rhs, True)

    def find_merit(self, residual: np.ndarray) -> np.ndarray:
        """The residual itself, as the matrix changes with the stages."""
        return measure(residual)

    def _solve(self, multiply: Product, rhs: np.ndarray, is_exact: bool) -> np.ndarray:
        if not is_exact:
            return solve_by_gmres(multiply, rhs, INEXACT)
        x = solve_by_gmres(multiply, rhs, EPSILONS * float(np.finfo(rhs.dtype).eps))
        residual, size = measure_samples(multiply(x) - rhs), measure_samples(rhs)
        is_poor = ~(residual <= POOR[rhs.dtype.char] * size)
        if is_poor.any():
            stage = self.equations.runs[0].stage
            raise RuntimeError(
                f"GMRES did not solve the linear systems of {stage.name}: the relative residual of a sample stayed "
                f"at {(residual[is_poor] / size[is_poor]).max():.3g}; use more `steps`, a shorter `length` or smaller "
                "weights"
            )
        return x


def build_system(equations: StageEquations) -> StageSystem:
    """The systems of these stages, by their size."""
    size = len(equations.A) * equations.runs[0].chain.n_in
    return DenseSystem(equations) if size <= MOST_DENSE else KrylovSystem(equations)
