"""Linear parts of sums on tensors, and functions of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.problem import Linear, require_multiple
from stepnet.schemes.phi_functions import PhiTerms, sum_phi, sum_phi_of_matrix

IDENTITY: PhiTerms = ()
DIGITS = 13  # of the lengths of steps, which are equal up to rounding


class LinearPart:
    """A `Linear` as a right-hand side of tensors; its numbers are kept on each device for each step length."""

    def __init__(self, linear: Linear):
        self.linear = linear
        self._kept: dict[Any, Tensor] = {}

    def __call__(self, t: Any, y: Tensor) -> Tensor:
        """L y."""
        return self._multiply(y, IDENTITY, 1.0)

    def apply(self, terms: PhiTerms, h: float | Tensor, row: Tensor) -> Tensor:
        """sum w phi_k(c h L) row."""
        if isinstance(h, Tensor) and h.requires_grad:
            raise TypeError("exponential schemes on tensors have no derivatives with respect to times; detach `t`")
        return self._multiply(row, terms, float(f"{float(h):.{DIGITS}e}"))

    def _multiply(self, y: Tensor, terms: PhiTerms, h: float) -> Tensor:
        require_multiple(self.linear, y.numel())
        numbers = self._find_numbers(terms, h, y)
        if self.linear.symbol is None:
            return (y.reshape(-1, self.linear.n) @ numbers.T).reshape(y.shape)
        grid = self.linear.symbol.shape[1:]
        axes = tuple(range(-len(grid), 0))
        fields = y.reshape(-1, *self.linear.symbol.shape)
        return torch.fft.irfftn(numbers * torch.fft.rfftn(fields, dim=axes), s=grid, dim=axes).reshape(y.shape)

    def _find_numbers(self, terms: PhiTerms, h: float, y: Tensor) -> Tensor:
        key = terms, h, y.dtype, y.device
        if key not in self._kept:
            if self.linear.symbol is not None:
                z = h * self.linear.symbol[..., : self.linear.symbol.shape[-1] // 2 + 1]
                values, dtype = (sum_phi(z, terms) if terms else z), y.dtype.to_complex()
            else:
                L = self.linear.matrix
                z = h * np.asarray(L.toarray() if hasattr(L, "toarray") else L)
                values, dtype = (sum_phi_of_matrix(z, terms) if terms else z), y.dtype
            self._kept[key] = torch.as_tensor(values).to(y.device, dtype)
        return self._kept[key]
