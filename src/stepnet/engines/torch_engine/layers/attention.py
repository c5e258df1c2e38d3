"""Attention on tensors: W_o P(x) W_v v + b, and the transpose, on states `(batch, channels * tokens)`."""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.fields import Attention

QUERY, KEY, VALUE, OUTPUT = range(4)


def add_bias(u: Tensor, b: Tensor | None) -> Tensor:
    """`(batch, channels, nodes)` flattened to features, with a bias per channel added."""
    return (u if b is None else u + b[:, None]).flatten(1)


class AttentionAction:
    """The forward and transposed action of an attention."""

    def __init__(self, K: Attention):
        self.tokens, self.channels, self.heads, self.is_causal = K.tokens, K.channels, K.heads, K.is_causal

    def __call__(self, W: Tensor, b: Tensor | None, x: Tensor, v: Tensor, is_transposed: bool) -> Tensor:
        """K(x) v + b, or K(x)' v + b."""
        P = self.probabilities(W, self._tokens(x))
        inner, outer = (W[OUTPUT].mT, W[VALUE].mT) if is_transposed else (W[VALUE], W[OUTPUT])
        weighed = self._heads(inner @ self._tokens(v)) @ (P if is_transposed else P.mT)
        return add_bias(outer @ self._tokens(weighed), b)

    def probabilities(self, W: Tensor, tokens: Tensor) -> Tensor:
        """P `(batch, heads, tokens, tokens)`, rows of which sum to one."""
        queries, keys = self._heads(W[QUERY] @ tokens), self._heads(W[KEY] @ tokens)
        scores = (queries.mT @ keys) * (self.channels // self.heads) ** -0.5
        if self.is_causal:
            later = torch.ones(self.tokens, self.tokens, dtype=torch.bool, device=tokens.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return scores.softmax(-1)

    def _tokens(self, v: Tensor) -> Tensor:
        return v.reshape(v.shape[0], self.channels, self.tokens)

    def _heads(self, v: Tensor) -> Tensor:
        return v.reshape(v.shape[0], self.heads, self.channels // self.heads, self.tokens)
