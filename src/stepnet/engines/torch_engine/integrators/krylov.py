"""GMRES on tensors of any shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

RESTART, MOST_RESTARTS = 40, 25
EPSILONS = 50.0  # the residual, in units of rounding of the right-hand side, at which the iteration ends

Product = Callable[[Tensor], Tensor]


def solve_by_gmres(
    multiply: Product, rhs: Tensor, precondition: Product = lambda r: r, guess: Tensor | None = None
) -> Tensor:
    """Solve A x = rhs to rounding from products with A; preconditioned from the right, restarted.

    Saad & Schultz (1986), SIAM J. Sci. Stat. Comput. 7:856.  The best x found is returned, also without convergence.
    """
    x = torch.zeros_like(rhs) if guess is None else guess
    goal = EPSILONS * torch.finfo(rhs.dtype).eps * float(torch.linalg.vector_norm(rhs))
    best = float("inf")
    for _ in range(MOST_RESTARTS):
        residual = rhs - multiply(x)
        size = float(torch.linalg.vector_norm(residual))
        if not (goal < size < 0.9 * best):  # done, not finite, or without progress
            break
        best, x = size, x + precondition(_improve(lambda v: multiply(precondition(v)), residual, size, goal))
    return x


def _improve(multiply: Product, residual: Tensor, size: float, goal: float) -> Tensor:
    """One cycle: the correction that makes the residual smallest in the Krylov space."""
    basis = [residual / size]
    H = torch.zeros(RESTART + 1, RESTART, dtype=torch.float64)
    k = 0
    for k in range(1, RESTART + 1):
        w = multiply(basis[-1])
        for _ in range(2):  # Gram-Schmidt twice keeps the basis orthogonal
            for i, v in enumerate(basis):
                part = float((v * w).sum())
                H[i, k - 1] += part
                w = w - part * v
        H[k, k - 1] = float(torch.linalg.vector_norm(w))
        weights, left = _minimise(H[: k + 1, :k], size)
        if left <= goal or not H[k, k - 1] > 1e-14 * H[:k, k - 1].abs().max():
            break
        basis.append(w / float(H[k, k - 1]))
    return sum((float(c) * v for c, v in zip(weights, basis, strict=False)), torch.zeros_like(residual))


def _minimise(H: Tensor, size: float) -> tuple[Tensor, float]:
    rhs = torch.zeros(len(H), dtype=torch.float64)
    rhs[0] = size
    weights = torch.linalg.lstsq(H, rhs[:, None], driver="gelsd").solution[:, 0]
    return weights, float(torch.linalg.vector_norm(rhs - H @ weights))
