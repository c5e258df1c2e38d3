"""The test equations of `tests/stochastic/problems.py` as modules on tensors."""

from __future__ import annotations

import torch
from stochastic import problems
from torch import Tensor

COMPONENTS = {"scalar": 1, "diagonal": 2, "additive": 2, "commutative": 2, "general": 2}


class TensorSDE(torch.nn.Module):
    """dy = f dt + g dW with a parameter in both functions."""

    def __init__(self, noise: str, calculus: str = "ito", a: float = 0.9, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.noise_type, self.sde_type = noise, calculus
        self.a = torch.nn.Parameter(torch.tensor(a, dtype=dtype))

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        p, q = y.unbind(1)
        first = -self.a * p + torch.sin(q) + 0.3 * t
        return torch.stack((first, torch.cos(p) - self.a * torch.tanh(2 * q)), 1)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        a, (p, q) = self.a, y.unbind(1)
        one = torch.ones_like(p)
        rows = {
            "scalar": ([0.9 * torch.sin(p) + 0.6 * q], [0.8 * torch.cos(q) + 0.1 * t]),
            "diagonal": ([0.9 * torch.sin(p) + 0.2 * a], [0.8 * torch.cos(q) + 0.2 * t]),
            "additive": ([1.2 * a * one, 0.5 * t * one], [(0.3 + 0.9 * torch.sin(t)) * one, 1.5 * one]),
            "commutative": ([0.3 * p - 0.2 * q, 0.1 * p - 0.4 * q], [0.2 * p + 0.3 * q, 0.4 * p + 0.1 * q]),
            "general": ([1.2 * torch.cos(q), 0.8 * a * one], [1.5 * torch.sin(p), 0.9 * torch.sin(q)]),
        }[self.noise_type]
        g = torch.stack([torch.stack(row, 1) for row in rows], 1)
        return g.squeeze(-1) if self.noise_type == "diagonal" else g


def start(batch: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    """The initial state of every sample."""
    return torch.tensor([problems.START] * batch, dtype=dtype)
