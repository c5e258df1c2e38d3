"""The functions of arrays that operators need besides arithmetic and slices, for tensors of any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepnet.operators.array_functions import ArrayFunctions


def _convert(*values: Any) -> tuple[torch.Tensor, ...]:
    """Numbers among tensors as tensors of the same type and device."""
    like = next((value for value in values if isinstance(value, torch.Tensor)), torch.zeros(()))
    return tuple(torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in values)


def _maximum(a: Any, b: Any) -> torch.Tensor:
    return torch.maximum(*_convert(a, b))


def _minimum(a: Any, b: Any) -> torch.Tensor:
    return torch.minimum(*_convert(a, b))


def _multiply_waves(u: torch.Tensor, symbol: np.ndarray, axes: tuple[int, ...]) -> torch.Tensor:
    factors = torch.tensor(symbol, device=u.device)
    if u.dtype in (torch.float32, torch.complex64):
        factors = factors.to(torch.complex64)
    result = torch.fft.ifftn(factors * torch.fft.fftn(u, dim=axes), dim=axes)
    return result if u.is_complex() else result.real


TENSOR_FUNCTIONS = ArrayFunctions(torch.cat, torch.stack, _maximum, _minimum, torch.where, _multiply_waves)
