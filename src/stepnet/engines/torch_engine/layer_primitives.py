"""Linear K on tensors, with its bias: a matrix, a stencil, operators on nodes; states are `(batch, channels * nodes)`.

Each is a module for the sake of its constant tensors, which move with it to another device or dtype.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from stepnet.engines.torch_engine.layer_attention import Attended, with_bias
from stepnet.fields import Connectivity, Fixed, Mixing
from stepnet.fields.connectivity import Attention, Normalisation, Stencil

FULL = 0.125  # share of entries from which on a matrix with its zeros is faster than a list of entries
SMALL = 2**14  # entries up to which it is faster in any case


def connection(K: Connectivity) -> torch.nn.Module:
    """K as a module called with (weights, bias, x, v, is_transposed), which gives K(x) v + b or K(x)' v + b."""
    if isinstance(K, Attention):
        return Attended(K)
    if isinstance(K, Normalisation):
        return Normalised(K)
    if isinstance(K, Fixed):
        return Operated((K.operator,), K.channels, K.channels)
    if K.is_dense:
        return Multiplied()
    if K.stencil is not None and K.stencil.fits:
        return Convolved(K, K.stencil)
    return Operated(K.operators, K.channels_in, K.channels_out)


class Multiplied(torch.nn.Module):
    """A matrix of weights."""

    def forward(self, W: Tensor, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        return F.linear(v, W.mT if is_transposed else W, b)


class Convolved(torch.nn.Module):
    """A stencil on a line, a ring, a rectangle or a torus; its transpose is the mirrored stencil."""

    def __init__(self, K: Mixing, stencil: Stencil):
        super().__init__()
        self.shape, self.taps, self.is_periodic = stencil.shape, stencil.taps, stencil.is_periodic
        self.channels_in, self.channels_out = K.channels_in, K.channels_out
        self.margins = [n // 2 for n in stencil.taps]
        self.rims = [n // 2 for n in reversed(stencil.taps) for _ in range(2)]

    def forward(self, W: Tensor, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        if is_transposed:
            W = W.flip(0).mT
        channels = self.channels_out if is_transposed else self.channels_in
        kernel, v = W.permute(1, 2, 0).unflatten(2, self.taps), v.reshape(v.shape[0], channels, *self.shape)
        convolve = F.conv1d if len(self.shape) == 1 else F.conv2d
        if self.is_periodic:
            return convolve(F.pad(v, self.rims, "circular"), kernel, b).flatten(1)
        return convolve(v, kernel, b, padding=self.margins).flatten(1)


class Operated(torch.nn.Module):
    """sum_k P_k (x) W_k for any operators P_k on nodes; without weights, one P for every channel."""

    def __init__(self, operators: tuple, channels_in: int, channels_out: int):
        super().__init__()
        self.taps, self.channels = len(operators), (channels_in, channels_out)
        self.forth, self.back = Spread(operators), Spread(tuple(P.T for P in operators))

    def forward(self, W: Tensor | None, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        spread = self.back if is_transposed else self.forth
        u = spread(v.reshape(v.shape[0], self.channels[is_transposed], -1))
        if W is not None:
            matrices = (W.mT if is_transposed else W).permute(1, 2, 0).flatten(1)
            u = matrices @ u.reshape(v.shape[0], matrices.shape[1], -1)
        return with_bias(u, b)


class Normalised(torch.nn.Module):
    """C v / sqrt(mean of (C x)^2 + eps) over the channels, its own transpose."""

    def __init__(self, K: Normalisation):
        super().__init__()
        self.channels, self.is_centred, self.eps = K.channels, K.is_centred, K.eps

    def forward(self, W: Tensor | None, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        size = (self._centred(x).square().mean(1, keepdim=True) + self.eps).rsqrt()
        return with_bias(self._centred(v) * size, b)

    def _centred(self, v: Tensor) -> Tensor:
        v = v.reshape(v.shape[0], self.channels, -1)
        return v - v.mean(1, keepdim=True) if self.is_centred else v


class Spread(torch.nn.Module):
    """P_k v for all k, from `(batch, channels, nodes)` to `(batch, channels, taps * nodes)`."""

    matrix: Tensor
    rows: Tensor
    columns: Tensor
    values: Tensor

    def __init__(self, operators: tuple):
        super().__init__()
        stacked = sparse.vstack(operators).tocoo()
        self.nodes, entries = stacked.shape[0], prod(stacked.shape)
        self.is_full = entries <= SMALL or stacked.nnz >= FULL * entries
        constants = (
            {"matrix": stacked.toarray()}
            if self.is_full
            else {"rows": stacked.row.astype(np.int64), "columns": stacked.col.astype(np.int64), "values": stacked.data}
        )
        for name, array in constants.items():
            self.register_buffer(name, torch.as_tensor(array), persistent=False)

    def forward(self, v: Tensor) -> Tensor:
        if self.is_full:
            return F.linear(v, self.matrix)
        weighed = v.index_select(2, self.columns) * self.values
        return v.new_zeros(*v.shape[:2], self.nodes).index_add(2, self.rows, weighed)
