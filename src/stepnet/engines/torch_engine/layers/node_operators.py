"""Linear K on tensors, with bias: a matrix, a stencil, operators on nodes; states are `(batch, channels * nodes)`.

Constants of an operator are stored in double precision and converted to the dtype and device of its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from stepnet.engines.torch_engine.layers.attention import AttentionAction, add_bias
from stepnet.engines.torch_engine.runs.rng_and_autocast import is_transformed
from stepnet.fields import Connectivity, Fixed, Mixing
from stepnet.fields.connectivity import Attention, Normalisation, Stencil

FULL = 0.125  # fraction of nonzero entries above which a dense matrix is faster than a sparse one
SMALL = 2**14  # entries up to which a dense matrix is always faster


def build_operator(K: Connectivity) -> Callable[..., Tensor]:
    """K as a function of (weights, bias, x, v, is_transposed), which returns K(x) v + b or K(x)' v + b."""
    if isinstance(K, Attention):
        return AttentionAction(K)
    if isinstance(K, Normalisation):
        return NormalisationAction(K)
    if isinstance(K, Fixed):
        return NodeOperator((K.operator,), K.channels, K.channels)
    if K.is_dense:
        return DenseOperator()
    if K.stencil is not None and K.stencil.fits:
        return Convolution(K, K.stencil)
    return NodeOperator(K.operators, K.channels_in, K.channels_out)


class DenseOperator:
    """A matrix of weights."""

    def __call__(self, W: Tensor, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        return F.linear(v, W.mT if is_transposed else W, b)


class Convolution:
    """A stencil on a line, a ring, a rectangle or a torus; its transpose is the mirrored stencil."""

    def __init__(self, K: Mixing, stencil: Stencil):
        self.shape, self.taps, self.is_periodic = stencil.shape, stencil.taps, stencil.is_periodic
        self.channels_in, self.channels_out = K.channels_in, K.channels_out
        self.margins = [n // 2 for n in stencil.taps]
        self.rims = [n // 2 for n in reversed(stencil.taps) for _ in range(2)]

    def __call__(self, W: Tensor, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        if is_transposed:
            W = W.flip(0).mT
        channels = self.channels_out if is_transposed else self.channels_in
        kernel, v = W.permute(1, 2, 0).unflatten(2, self.taps), v.reshape(v.shape[0], channels, *self.shape)
        convolve = F.conv1d if len(self.shape) == 1 else F.conv2d
        if self.is_periodic:
            return convolve(F.pad(v, self.rims, "circular"), kernel, b).flatten(1)
        return convolve(v, kernel, b, padding=self.margins).flatten(1)


class NodeOperator:
    """sum_k P_k (x) W_k for any operators P_k on nodes; without weights, one P for all channels."""

    def __init__(self, operators: tuple[sparse.csr_array, ...], channels_in: int, channels_out: int):
        self.taps, self.channels = len(operators), (channels_in, channels_out)
        self.forth, self.back = NodeTaps(operators), NodeTaps(tuple(P.T for P in operators))

    def __call__(self, W: Tensor | None, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        spread = self.back if is_transposed else self.forth
        u = spread(v.reshape(v.shape[0], self.channels[is_transposed], spread.n_in))
        if W is not None:
            matrices = (W.mT if is_transposed else W).permute(1, 2, 0).flatten(1)
            u = matrices @ u.reshape(v.shape[0], matrices.shape[1], spread.n_out // self.taps)
        return add_bias(u, b)


class NormalisationAction:
    """C v / sqrt(mean of (C x)^2 + eps) over the channels, its own transpose."""

    def __init__(self, K: Normalisation):
        self.channels, self.nodes, self.is_centred, self.eps = K.channels, K.nodes, K.is_centred, K.eps

    def __call__(self, W: Tensor | None, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        size = (self._centre(x).square().mean(1, keepdim=True) + self.eps).rsqrt()
        return add_bias(self._centre(v) * size, b)

    def _centre(self, v: Tensor) -> Tensor:
        v = v.reshape(v.shape[0], self.channels, self.nodes)
        return v - v.mean(1, keepdim=True) if self.is_centred else v


class NodeTaps:
    """P_k v for all k, from `(batch, channels, nodes)` to `(batch, channels, taps * nodes)`."""

    def __init__(self, operators: tuple[sparse.csr_array, ...]) -> None:
        stacked = sparse.vstack(operators).tocoo()
        self.n_out, self.n_in = stacked.shape
        self.is_full = prod(stacked.shape) <= SMALL or stacked.nnz >= FULL * prod(stacked.shape)
        if self.is_full:
            self.matrix = DeviceConstant(stacked.toarray())
            return
        self.rows, self.columns = (DeviceConstant(each.astype(np.int64)) for each in (stacked.row, stacked.col))
        self.values = DeviceConstant(stacked.data)

    def __call__(self, v: Tensor) -> Tensor:
        if self.is_full:
            return F.linear(v, self.matrix.like(v))
        weighed = v.index_select(2, self.columns.like(v)) * self.values.like(v)
        return v.new_zeros(*v.shape[:2], self.n_out).index_add(2, self.rows.like(v), weighed)


class DeviceConstant:
    """An array converted to a tensor on the device of another: numbers to its dtype, indices unchanged."""

    def __init__(self, array: np.ndarray):
        self.exact = torch.from_numpy(np.ascontiguousarray(array))
        self.made: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceConstant, (self.exact.numpy(),)

    def like(self, v: Tensor) -> Tensor:
        dtype = v.dtype if self.exact.is_floating_point() else self.exact.dtype
        if dtype == self.exact.dtype and v.device == self.exact.device:
            return self.exact
        if torch.compiler.is_compiling() or is_transformed():  # tensors created there must not be cached
            return self.exact.to(v.device, dtype)
        if (v.device, dtype) not in self.made:
            with torch.inference_mode(False), torch.no_grad():
                self.made[v.device, dtype] = self.exact.to(v.device, dtype)
        return self.made[v.device, dtype]
