"""Chains of layers on tiles: value, tangent and pullback, for every connectivity.

All numbers are in one flat array `memory`, and x0, o0, ... are offsets into it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.compile.cache import inlined
from stepnet.engines.numba_engine.layer_attention import attend, attend_tangent, pull_attention
from stepnet.engines.numba_engine.layer_math import IDENTITY, activate, steepen
from stepnet.engines.numba_engine.layer_norms import add_size_change, normalise
from stepnet.engines.numba_engine.layer_primitives import TILE, add_outer, mix, spread_nodes, sum_of_row

MIXING, FIXED, ATTENTION, NORMALISATION = range(4)
(KIND, C_IN, C_OUT, NODES_IN, NODES_OUT, TAPS, TAP0, WEIGHTS, BIAS, CLOCK, ACTIVATION, IS_TRANSPOSED, IS_ANTI, N_IN,
 N_OUT, BIAS_NODES, TAPE, SLOPES, HEADS, IS_CAUSAL, IS_CENTRED, N_COLUMNS) = range(22)  # fmt: skip


class Chains(NamedTuple):
    """The layers of all parts as rows of numbers; operators on nodes, each with its transpose, as sparse rows."""

    first: np.ndarray
    sign: np.ndarray
    layers: np.ndarray
    shift: np.ndarray
    eps: np.ndarray
    taps: np.ndarray
    mirror: np.ndarray
    ptr: np.ndarray
    ind: np.ndarray
    val: np.ndarray
    slots: np.ndarray


@inlined
def add_scaled(memory, out, row, n, weight):
    a, b = memory[out : out + n], memory[row : row + n]
    for m in range(n):
        a[m] += weight * b[m]


@inlined
def set_scaled(memory, out, row, n, weight):
    a, b = memory[out : out + n], memory[row : row + n]
    for m in range(n):
        a[m] = weight * b[m]


@inlined
def set_sum(memory, out, one, other, n, v, w):
    a, b, c = memory[out : out + n], memory[one : one + n], memory[other : other + n]
    for m in range(n):
        a[m] = v * b[m] + w * c[m]


@inlined
def set_zero(memory, out, n):
    a = memory[out : out + n]
    for m in range(n):
        a[m] = 0.0


# ---- one layer ------------------------------------------------------------------------------------------------------


@inlined
def operator(chains, tap, is_transposed):
    """Where the rows and the entries of an operator, or of its transpose, begin."""
    if is_transposed:
        return chains.taps[tap, 3], chains.taps[tap, 4]
    return chains.taps[tap, 1], chains.taps[tap, 2]


@inlined
def apply(blas, chains, layer, is_transposed, W, w0, memory, x0, v0, o0, is_added, s0):
    """out (+)= K(x) v, or K(x)' v."""
    k = chains.layers[layer]
    if k[KIND] == ATTENTION:
        attend(
            blas,
            W,
            w0,
            memory,
            x0,
            v0,
            o0,
            s0,
            is_transposed,
            is_added,
            k[NODES_IN],
            k[C_IN],
            k[HEADS],
            k[IS_CAUSAL] != 0,
        )
        return
    if k[KIND] == NORMALISATION:
        columns = k[NODES_IN] * TILE
        normalise(
            memory, x0, v0, o0, s0, is_added, k[C_IN], columns, k[IS_CENTRED] != 0, chains.eps[layer],
        )  # fmt: skip
        return
    if is_transposed:
        n_in, n_out, nodes_in, nodes_out = k[C_OUT], k[C_IN], k[NODES_OUT], k[NODES_IN]
    else:
        n_in, n_out, nodes_in, nodes_out = k[C_IN], k[C_OUT], k[NODES_IN], k[NODES_OUT]
    for number in range(k[TAPS]):
        tap = k[TAP0] + number
        p0, e0 = operator(chains, tap, is_transposed)
        adds, w = is_added or number > 0, w0 + number * k[C_IN] * k[C_OUT]
        if k[KIND] == FIXED:
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_in, memory, v0, memory, o0, adds
            )
        elif chains.taps[tap, 0]:
            mix(blas, W, w, k[C_IN], is_transposed, memory, v0, n_in, memory, o0, n_out, nodes_out * TILE, adds)
        elif is_transposed:
            mix(blas, W, w, k[C_IN], True, memory, v0, n_in, memory, s0, n_out, nodes_in * TILE, False)
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_out, memory, s0, memory, o0, adds
            )
        else:
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_in, memory, v0, memory, s0, False
            )
            mix(blas, W, w, k[C_IN], False, memory, s0, n_in, memory, o0, n_out, nodes_out * TILE, adds)


@inlined
def add_weight_gradient(blas, chains, layer, memory, v0, z0, W_bar, w0, s0):
    """W_bar += d <z, K v> / dW for a K that is linear in the state."""
    k = chains.layers[layer]
    if k[KIND] != MIXING:
        return
    for number in range(k[TAPS]):
        tap, source = k[TAP0] + number, v0
        if not chains.taps[tap, 0]:
            source = s0
            spread_nodes(
                chains.ptr, chains.ind, chains.val, chains.taps[tap, 1], chains.taps[tap, 2], k[NODES_OUT], k[NODES_IN],
                k[C_IN], memory, v0, memory, s0, False,
            )  # fmt: skip
        w = w0 + number * k[C_IN] * k[C_OUT]
        add_outer(blas, memory, z0, k[C_OUT], memory, source, k[C_IN], k[NODES_OUT] * TILE, W_bar, w)


# ---- chains ---------------------------------------------------------------------------------------------------------


@inlined
def weight_place(k, base, i):
    return base[i, k[WEIGHTS]] if k[WEIGHTS] >= 0 else 0


@inlined
def bias_of(k, W, base, i, t, c):
    """b + t c of a channel."""
    bias = 0.0
    if k[BIAS] >= 0:
        bias += W[base[i, k[BIAS]] + c]
    if k[CLOCK] >= 0:
        bias += t * W[base[i, k[CLOCK]] + c]
    return bias


@inlined
def run_chain(blas, chains, part, W, base, i, t, memory, x0, o0, tape, s0):
    """The value of a chain at o0; the inner layers leave theirs at `tape`."""
    first, last = chains.first[part], chains.first[part + 1]
    v0 = x0
    for layer in range(first, last):
        k = chains.layers[layer]
        z0 = o0 if layer == last - 1 else tape + k[TAPE]
        is_transposed = k[IS_TRANSPOSED] != 0
        a0, w0 = x0 if is_transposed else v0, weight_place(k, base, i)
        apply(blas, chains, layer, is_transposed, W, w0, memory, a0, v0, z0, False, s0)
        n = k[N_OUT] * TILE
        if chains.shift[layer] != 0.0:
            add_scaled(memory, z0, v0, n, chains.shift[layer])
        columns = k[BIAS_NODES] * TILE
        for c in range(k[N_OUT] // k[BIAS_NODES]):
            bias, place = bias_of(k, W, base, i, t, c), z0 + c * columns
            slopes = tape + k[SLOPES] + c * columns if k[SLOPES] >= 0 else place
            activate(k[ACTIVATION], memory[place : place + columns], bias, memory[slopes : slopes + columns])
        v0 = z0
    if chains.sign[part] != 1.0:
        n = chains.layers[last - 1, N_OUT] * TILE
        set_scaled(memory, o0, o0, n, chains.sign[part])


@inlined
def differentiate(chains, layer, last, part, memory, o0, tape, g0):
    """g *= s'(u), and the sign of the chain for its last layer."""
    k = chains.layers[layer]
    n, sign = k[N_OUT] * TILE, chains.sign[part]
    z0 = o0
    if layer < last - 1:
        z0, sign = tape + k[TAPE], chains.sign.dtype.type(1.0)
    slopes = tape + k[SLOPES] if k[SLOPES] >= 0 else z0
    steepen(k[ACTIVATION], memory[z0 : z0 + n], memory[slopes : slopes + n], sign, memory[g0 : g0 + n])


@inlined
def pull_chain(blas, chains, part, W, base, i, t, memory, x0, o0, tape, g0, xb0, is_added, W_bar, s0, size):
    """x_bar (+)= and W_bar += gradients of <g, chain(x)>; g is overwritten.

    Scratch of `size` each: two inner gradients, the gradient by way of a state-dependent K', then that of a layer.
    """
    first, last = chains.first[part], chains.first[part + 1]
    anchor, has_anchor = s0 + 2 * size, False
    s = s0 + 3 * size
    for layer in range(last - 1, first - 1, -1):
        k = chains.layers[layer]
        differentiate(chains, layer, last, part, memory, o0, tape, g0)
        columns = k[BIAS_NODES] * TILE
        if k[BIAS] >= 0 or k[CLOCK] >= 0:
            for c in range(k[N_OUT] // k[BIAS_NODES]):
                total = sum_of_row(memory, g0 + c * columns, columns)
                if k[BIAS] >= 0:
                    W_bar[base[i, k[BIAS]] + c] += total
                if k[CLOCK] >= 0:
                    W_bar[base[i, k[CLOCK]] + c] += t * total
        v0 = x0 if layer == first else tape + chains.layers[layer - 1, TAPE]
        out = xb0 if layer == first else s0 + (layer % 2) * size
        adds = is_added and layer == first
        w0, is_transposed = weight_place(k, base, i), k[IS_TRANSPOSED] != 0
        apply(
            blas, chains, layer, not is_transposed, W, w0, memory, x0 if is_transposed else v0, g0, out, adds, s,
        )  # fmt: skip
        if chains.shift[layer] != 0.0:
            add_scaled(memory, out, g0, k[N_OUT] * TILE, chains.shift[layer])
        if k[KIND] == ATTENTION:
            n = k[N_IN] * TILE
            if is_transposed:
                if not has_anchor:
                    set_zero(memory, anchor, n)
                has_anchor = True
                pull_attention(
                    blas, W, w0, W_bar, w0, memory, x0, g0, v0, anchor, s, k[NODES_IN], k[C_IN], k[HEADS],
                    k[IS_CAUSAL] != 0,
                )  # fmt: skip
            else:
                pull_attention(
                    blas, W, w0, W_bar, w0, memory, v0, v0, g0, out, s, k[NODES_IN], k[C_IN], k[HEADS],
                    k[IS_CAUSAL] != 0,
                )  # fmt: skip
        elif k[KIND] == NORMALISATION:
            add_size_change(
                memory, v0, v0, g0, v0, out, s, k[C_IN], k[NODES_IN] * TILE, k[IS_CENTRED] != 0, chains.eps[layer],
            )  # fmt: skip
        elif is_transposed:
            add_weight_gradient(blas, chains, layer, memory, g0, v0, W_bar, w0, s)
        else:
            add_weight_gradient(blas, chains, layer, memory, v0, g0, W_bar, w0, s)
        g0 = out
    if has_anchor:
        add_scaled(memory, xb0, anchor, chains.layers[first, N_IN] * TILE, chains.sign.dtype.type(1.0))


@inlined
def push_chain(blas, chains, part, W, W_dot, base, i, t, memory, x0, xd0, o0, od0, tape, s0, size):
    """The tangent of a chain at od0, after its value at o0."""
    first, last = chains.first[part], chains.first[part + 1]
    s = s0 + 3 * size
    v0, vd0 = x0, xd0
    for layer in range(first, last):
        k = chains.layers[layer]
        out = od0 if layer == last - 1 else s0 + (layer % 2) * size
        w0, is_transposed = weight_place(k, base, i), k[IS_TRANSPOSED] != 0
        if k[KIND] == ATTENTION:
            a0, ad0 = (x0, xd0) if is_transposed else (v0, vd0)
            attend_tangent(
                blas, W, w0, W_dot, w0, memory, a0, ad0, v0, vd0, out, s, is_transposed, k[NODES_IN], k[C_IN], k[HEADS],
                k[IS_CAUSAL] != 0,
            )  # fmt: skip
        elif k[KIND] == NORMALISATION:
            columns, is_centred = k[NODES_IN] * TILE, k[IS_CENTRED] != 0
            normalise(memory, v0, vd0, out, s, False, k[C_IN], columns, is_centred, chains.eps[layer])
            add_size_change(memory, v0, v0, vd0, v0, out, s, k[C_IN], columns, is_centred, chains.eps[layer])
        else:
            apply(blas, chains, layer, is_transposed, W, w0, memory, x0, vd0, out, False, s)
            if k[KIND] == MIXING:
                apply(blas, chains, layer, is_transposed, W_dot, w0, memory, x0, v0, out, True, s)
        if chains.shift[layer] != 0.0:
            add_scaled(memory, out, vd0, k[N_OUT] * TILE, chains.shift[layer])
        columns = k[BIAS_NODES] * TILE
        for c in range(k[N_OUT] // k[BIAS_NODES]):
            bias, place = bias_of(k, W_dot, base, i, t, c), out + c * columns
            activate(IDENTITY, memory[place : place + columns], bias, memory[place : place + columns])
        differentiate(chains, layer, last, part, memory, o0, tape, out)
        v0, vd0 = tape + k[TAPE], out
