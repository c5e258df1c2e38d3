"""Reference implementation of fields in NumPy: K, chains, tangents and pullbacks on states `(features, batch)`.

Engines implement the same formulas efficiently; the problems of net blocks and the tests use these.  `weights` maps
parameter names to arrays of the shapes given by `parameters` of a chain or field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from stepnet.fields.connectivity import Attention, Connectivity, Fixed, Mixing, Normalisation
from stepnet.fields.formula import Chain, Layer


class FieldGradients(NamedTuple):
    """Gradients with respect to the input, and to the weights by name."""

    x: np.ndarray
    weights: dict[str, np.ndarray]


# ---- the actions of K -----------------------------------------------------------------------------------------------


def apply(K: Connectivity, W: Any, x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """K(x) v; a linear K does not depend on x."""
    if isinstance(K, Mixing):
        return np.sum([_mix(W_k, P, v) for W_k, P in _taps(K, W)], axis=0)
    if isinstance(K, Fixed):
        return _move(K.operator, v, K.channels).reshape(K.n_out, -1)
    if isinstance(K, Normalisation):
        return _flat(_centre(K, v) / _size(K, x))
    P, (_, _, W_v, W_o) = _attention(K, W, x).P, W
    return _flat(_channels(W_o, _weigh(K, P, _channels(W_v, _tokens(K, v)))))


def apply_transposed(K: Connectivity, W: Any, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """K(x)' z."""
    if isinstance(K, Mixing):
        return np.sum([_mix(W_k.T, P.T, z) for W_k, P in _taps(K, W)], axis=0)
    if isinstance(K, Fixed):
        return _move(K.operator.T, z, K.channels).reshape(K.n_in, -1)
    if isinstance(K, Normalisation):
        return apply(K, W, x, z)
    P, (_, _, W_v, W_o) = _attention(K, W, x).P, W
    return _flat(_channels(W_v.T, _weigh(K, np.swapaxes(P, -1, -2), _channels(W_o.T, _tokens(K, z)))))


def weight_gradient(K: Connectivity, W: Any, x: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray | None:
    """d <z, K(x) v> / dW."""
    if isinstance(K, (Fixed, Normalisation)):
        return None
    if isinstance(K, Mixing):
        z = z.reshape(K.channels_out, -1)
        found = [z @ _move(P, v, K.channels_in).reshape(K.channels_in, -1).T for P in K.operators]
        return np.stack(found).reshape(K.weight_shape)
    return _pull_back_attention(K, W, x, v, z)[1]


def state_gradient(K: Connectivity, W: Any, x: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray | float:
    """d <z, K(x) v> / dx with v held fixed: 0 for a linear K."""
    if isinstance(K, Normalisation):
        product = (z.reshape(K.channels, K.nodes, -1) * _centre(K, v)).mean(axis=0)
        return _flat(-product / _size(K, x) ** 3 * _centre(K, x))
    return _pull_back_attention(K, W, x, v, z)[0] if isinstance(K, Attention) else 0.0


def state_tangent(
    K: Connectivity, W: Any, x: np.ndarray, x_dot: np.ndarray, v: np.ndarray, is_transposed: bool
) -> np.ndarray | float:
    """d (K(x) v), or of K(x)' v, along x_dot with v held fixed: 0 for a linear K."""
    if isinstance(K, Normalisation):
        product = (_centre(K, x) * _centre(K, x_dot)).mean(axis=0)
        return _flat(-product / _size(K, x) ** 3 * _centre(K, v))
    return _push_forward_attention(K, W, x, x_dot, v, is_transposed) if isinstance(K, Attention) else 0.0


def _centre(K: Normalisation, v: np.ndarray) -> np.ndarray:
    """C v as (channels, nodes, batch)."""
    v = v.reshape(K.channels, K.nodes, -1)
    return v - v.mean(axis=0) if K.is_centred else v


def _size(K: Normalisation, x: np.ndarray) -> np.ndarray:
    return np.sqrt((_centre(K, x) ** 2).mean(axis=0) + K.eps)


def _taps(K: Mixing, W: Any) -> Iterable[tuple[np.ndarray, Any]]:
    return zip(np.reshape(W, (-1, K.channels_out, K.channels_in)), K.operators, strict=True)


def _move(P: Any, v: np.ndarray, channels: int) -> np.ndarray:
    """Apply P to the nodes of each channel."""
    nodes = v.reshape(channels, P.shape[1], -1)
    return np.stack([P @ each for each in nodes]).astype(v.dtype)


def _mix(W: np.ndarray, P: Any, v: np.ndarray) -> np.ndarray:
    moved = _move(P, v, W.shape[1])
    return (W @ moved.reshape(W.shape[1], -1)).reshape(W.shape[0] * P.shape[0], -1)


# ---- attention; arrays are (channels, tokens, batch), P is (batch, heads, tokens, tokens) ---------------------------


class _AttentionTerms(NamedTuple):
    Q: np.ndarray
    K: np.ndarray
    P: np.ndarray


def _tokens(K: Attention, v: np.ndarray) -> np.ndarray:
    return v.reshape(K.channels, K.tokens, -1)


def _flat(v: np.ndarray) -> np.ndarray:
    return v.reshape(-1, v.shape[-1])


def _channels(W: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.tensordot(W, v, axes=1)


def _heads(K: Attention, v: np.ndarray) -> np.ndarray:
    """(batch, heads, channels of a head, tokens)."""
    return np.moveaxis(v.reshape(K.heads, -1, K.tokens, v.shape[-1]), -1, 0)


def _join_heads(K: Attention, v: np.ndarray) -> np.ndarray:
    return np.moveaxis(v, 0, -1).reshape(K.channels, K.tokens, -1)


def _weigh(K: Attention, P: np.ndarray, v: np.ndarray) -> np.ndarray:
    """sum_j P_ij v_j."""
    return _join_heads(K, _heads(K, v) @ np.swapaxes(P, -1, -2))


def _attention(K: Attention, W: Any, x: np.ndarray) -> _AttentionTerms:
    tokens = _tokens(K, x)
    Q, Keys = _heads(K, _channels(W[0], tokens)), _heads(K, _channels(W[1], tokens))
    scores = np.swapaxes(Q, -1, -2) @ Keys * (K.channels // K.heads) ** -0.5
    if K.is_causal:
        scores = np.where(np.tri(K.tokens, dtype=bool), scores, -np.inf)
    P = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return _AttentionTerms(Q, Keys, P / P.sum(axis=-1, keepdims=True))


def _pull_back_attention(
    K: Attention, W: Any, x: np.ndarray, v: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """d <z, K(x) v> / dx and / dW."""
    Q, Keys, P = _attention(K, W, x)
    tokens, values, ends = _tokens(K, x), _tokens(K, v), _tokens(K, z)
    V = _channels(W[2], values)
    mean, mean_bar = _weigh(K, P, V), _channels(W[3].T, ends)
    V_bar = _weigh(K, np.swapaxes(P, -1, -2), mean_bar)
    P_bar = np.swapaxes(_heads(K, mean_bar), -1, -2) @ _heads(K, V)
    scores_bar = P * (P_bar - (P * P_bar).sum(axis=-1, keepdims=True)) * (K.channels // K.heads) ** -0.5
    Q_bar = _join_heads(K, Keys @ np.swapaxes(scores_bar, -1, -2))
    K_bar = _join_heads(K, Q @ scores_bar)
    W_bar = [np.tensordot(a, b, axes=((1, 2), (1, 2))) for a, b in
             ((Q_bar, tokens), (K_bar, tokens), (V_bar, values), (ends, mean))]  # fmt: skip
    return _flat(_channels(W[0].T, Q_bar) + _channels(W[1].T, K_bar)), np.stack(W_bar)


def _push_forward_attention(
    K: Attention, W: Any, x: np.ndarray, x_dot: np.ndarray, v: np.ndarray, is_transposed: bool
) -> np.ndarray:
    """The tangent of K(x) v, or K(x)' v, through P."""
    Q, Keys, P = _attention(K, W, x)
    Q_dot, K_dot = (_heads(K, _channels(W[i], _tokens(K, x_dot))) for i in (0, 1))
    scores_dot = np.swapaxes(Q_dot, -1, -2) @ Keys + np.swapaxes(Q, -1, -2) @ K_dot
    P_dot = P * (scores_dot - (P * scores_dot).sum(axis=-1, keepdims=True)) * (K.channels // K.heads) ** -0.5
    inner, outer = W[2], W[3]
    if is_transposed:
        P_dot, inner, outer = np.swapaxes(P_dot, -1, -2), W[3].T, W[2].T
    return _flat(_channels(outer, _weigh(K, P_dot, _channels(inner, _tokens(K, v)))))


# ---- layers and chains ----------------------------------------------------------------------------------------------


def effective(layer: Layer, W: Any) -> Any:
    """The weights of K, or of K - K': a map of weights that is its own transpose."""
    K = layer.connectivity
    if not layer.is_antisymmetric or not isinstance(K, Mixing) or K.mirror is None:
        return W
    taps = np.reshape(W, (-1, K.channels_out, K.channels_in))
    return (taps - np.swapaxes(taps[list(K.mirror)], 1, 2)).reshape(K.weight_shape)


def evaluate(chain: Chain, weights: Mapping[Any, Any], t: float, x: np.ndarray) -> np.ndarray:
    """The value of a chain."""
    return chain.sign * forward(chain, weights, t, x)[-1][2]


def forward(
    chain: Chain, weights: Mapping[Any, Any], t: float, x: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each layer its input v, u = K v + b and s(u)."""
    found, v = [], x
    for layer in chain.layers:
        W = effective(layer, weights.get(layer.weights))
        act = apply_transposed if layer.is_transposed else apply
        u = act(layer.connectivity, W, x if layer.is_transposed else v, v)
        if layer.shift:
            u = u + layer.shift * v
        for name, factor in ((layer.bias, 1.0), (layer.clock, t)):
            if name is not None:
                u = u + factor * np.repeat(weights[name], layer.bias_nodes)[:, None]
        found.append((v, u, layer.activation.value(u)))
        v = found[-1][2]
    return found


def tangent(chain: Chain, weights: Mapping[Any, Any], t: float, x: np.ndarray, x_dot: np.ndarray) -> np.ndarray:
    """The derivative of a chain along x_dot."""
    v_dot = x_dot
    for layer, (v, u, _) in zip(chain.layers, forward(chain, weights, t, x), strict=True):
        K, W = layer.connectivity, effective(layer, weights.get(layer.weights))
        act, at, at_dot = (apply_transposed, x, x_dot) if layer.is_transposed else (apply, v, v_dot)
        u_dot = act(K, W, at, v_dot) + state_tangent(K, W, at, at_dot, v, layer.is_transposed)
        if layer.shift:
            u_dot = u_dot + layer.shift * v_dot
        v_dot = layer.activation.derivative(u) * u_dot
    return chain.sign * v_dot


def pullback(chain: Chain, weights: Mapping[Any, Any], t: float, x: np.ndarray, out_bar: np.ndarray) -> FieldGradients:
    """Gradients of <out_bar, chain(x)>."""
    bars = {name: np.zeros(shape, x.dtype) for name, shape in chain.parameters.items()}
    bar, x_bar = chain.sign * out_bar, np.zeros_like(x)
    for layer, (v, u, _) in reversed(list(zip(chain.layers, forward(chain, weights, t, x), strict=True))):
        bar = bar * layer.activation.derivative(u)
        for name, factor in ((layer.bias, 1.0), (layer.clock, t)):
            if name is not None:
                bars[name] += factor * bar.sum(axis=1).reshape(-1, layer.bias_nodes).sum(axis=1)
        K, W = layer.connectivity, effective(layer, weights.get(layer.weights))
        if layer.is_transposed:  # <bar, K(x)' v> = <v, K(x) bar>
            W_bar, x_bar = weight_gradient(K, W, x, bar, v), x_bar + state_gradient(K, W, x, bar, v)
            v_bar = apply(K, W, x, bar)
        else:
            W_bar = weight_gradient(K, W, v, v, bar)
            v_bar = apply_transposed(K, W, v, bar) + state_gradient(K, W, v, v, bar)
        if W_bar is not None:
            bars[layer.weights] += effective(layer, W_bar)
        bar = v_bar + layer.shift * bar if layer.shift else v_bar
    return FieldGradients(bar + x_bar, bars)
