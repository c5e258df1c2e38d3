"""Chains of layers on tiles: value, tangent and pullback, for every connectivity.

All numbers are in one flat array `memory`, and x0, o0, ... are offsets into it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.codegen.intrinsics.activations import IDENTITY, activate, steepen
from stepnet.engines.numba_engine.codegen.kernels import inlined
from stepnet.engines.numba_engine.layers.attention import attend, attend_tangent, pull_attention
from stepnet.engines.numba_engine.layers.matrix_products import TILE, add_outer, is_small, mix, multiply
from stepnet.engines.numba_engine.layers.node_operators import add_scaled, set_scaled, set_sum, set_zero, spread_nodes
from stepnet.engines.numba_engine.layers.normalisation import add_size_change, normalise

MIXING, FIXED, ATTENTION, NORMALISATION = range(4)
(KIND, C_IN, C_OUT, NODES_IN, NODES_OUT, TAPS, TAP0, WEIGHTS, BIAS, CLOCK, ACTIVATION, IS_TRANSPOSED, N_IN, N_OUT,
 BIAS_NODES, TAPE, SLOPES, HEADS, IS_CAUSAL, IS_CENTRED, N_COLUMNS) = range(21)  # fmt: skip
OFFSET, SIZE, CHANNELS, N_MIRRORED, MIRROR0 = range(5)
"""Columns of a slot: offset and size of its parameter; for K - K' also channels, taps and their mirror images."""


class Chains(NamedTuple):
    """The layers of all parts as rows of integers; operators on nodes, each with its transpose, as sparse rows.

    `slots` are the weights as layers read them: a K used both as K and as K - K' has a slot for each.
    """

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


# ---- one layer ------------------------------------------------------------------------------------------------------


@inlined
def locate_operator(chains, tap, is_transposed):
    """Offsets of the rows and the entries of an operator, or of its transpose."""
    if is_transposed:
        return chains.taps[tap, 3], chains.taps[tap, 4]
    return chains.taps[tap, 1], chains.taps[tap, 2]


@inlined
def apply(machine, chains, layer, is_transposed, W, w0, memory, x0, v0, o0, is_added, s0):
    """out (+)= K(x) v, or K(x)' v."""
    k = chains.layers[layer]
    if k[KIND] == ATTENTION:
        attend(
            machine, W, w0, memory, x0, v0, o0, s0, is_transposed, is_added, k[NODES_IN], k[C_IN], k[HEADS],
            k[IS_CAUSAL] != 0,
        )  # fmt: skip
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
        p0, e0 = locate_operator(chains, tap, is_transposed)
        adds, w = is_added or number > 0, w0 + number * k[C_IN] * k[C_OUT]
        if k[KIND] == FIXED:
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_in, memory, v0, memory, o0, adds
            )
        elif chains.taps[tap, 0]:
            mix(machine, W, w, k[C_IN], is_transposed, memory, v0, n_in, memory, o0, n_out, nodes_out * TILE, adds)
        elif is_transposed:
            mix(machine, W, w, k[C_IN], True, memory, v0, n_in, memory, s0, n_out, nodes_in * TILE, False)
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_out, memory, s0, memory, o0, adds
            )
        else:
            spread_nodes(
                chains.ptr, chains.ind, chains.val, p0, e0, nodes_out, nodes_in, n_in, memory, v0, memory, s0, False
            )
            mix(machine, W, w, k[C_IN], False, memory, s0, n_in, memory, o0, n_out, nodes_out * TILE, adds)


@inlined
def add_weight_gradient(machine, chains, layer, memory, v0, z0, W_bar, w0, s0):
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
        add_outer(machine, memory, z0, k[C_OUT], memory, source, k[C_IN], k[NODES_OUT] * TILE, W_bar, w)


# ---- chains ---------------------------------------------------------------------------------------------------------


@inlined
def locate_weights(k, base, i):
    return base[i, k[WEIGHTS]] if k[WEIGHTS] >= 0 else 0


@inlined
def evaluate_bias(k, W, base, i, t, c):
    """b + t c of a channel."""
    bias = 0.0
    if k[BIAS] >= 0:
        bias += W[base[i, k[BIAS]] + c]
    if k[CLOCK] >= 0:
        bias += t * W[base[i, k[CLOCK]] + c]
    return bias


@inlined
def is_bent(k, sign):
    """Whether a layer has more than its connectivity (bias, activation or sign)."""
    return k[ACTIVATION] != IDENTITY or k[BIAS] >= 0 or k[CLOCK] >= 0 or sign != 1.0


@inlined
def run_chain(machine, chains, part, W, base, i, t, memory, x0, o0, tape, s0, size, b0, sum0, v, w):
    """Compute the value of a chain at o0; the values of inner layers are stored at `tape`.

    If sum0 >= 0, v b + w value is stored there.  Scratch: the input of an activation, then the scratch of a layer.
    """
    first, last = chains.first[part], chains.first[part + 1]
    one = chains.sign.dtype.type(1.0)
    v0 = x0
    for layer in range(first, last):
        k, is_last = chains.layers[layer], layer == last - 1
        z0, sign = (o0, chains.sign[part]) if is_last else (tape + k[TAPE], one)
        is_transposed, has_more = k[IS_TRANSPOSED] != 0, is_bent(k, sign)
        u0 = s0 if has_more else z0
        a0, w0 = x0 if is_transposed else v0, locate_weights(k, base, i)
        apply(machine, chains, layer, is_transposed, W, w0, memory, a0, v0, u0, False, s0 + size)
        if chains.shift[layer] != 0.0:
            add_scaled(memory, u0, v0, k[N_OUT] * TILE, chains.shift[layer])
        if has_more:
            columns, slopes = k[BIAS_NODES] * TILE, tape + k[SLOPES] if k[SLOPES] >= 0 else z0
            for c in range(k[N_OUT] // k[BIAS_NODES]):
                place = c * columns
                machine.ahead[0] = activate(
                    k[ACTIVATION], memory, u0 + place, z0 + place, slopes + place, columns,
                    evaluate_bias(k, W, base, i, t, c), sign, b0 + place,
                    sum0 + place if is_last and sum0 >= 0 else -1, v, w,
                    machine.ahead[0], machine.ahead[1],
                )  # fmt: skip
        elif is_last and sum0 >= 0:
            set_sum(memory, sum0, b0, z0, k[N_OUT] * TILE, v, w)
        v0 = z0


@inlined
def locate_known(chains, layer, last, part, o0, tape):
    """Offsets of a layer's value and of its derivative (if not a function of the value), and the sign of the value."""
    k = chains.layers[layer]
    z0, sign = (o0, chains.sign[part]) if layer == last - 1 else (tape + k[TAPE], chains.sign.dtype.type(1.0))
    return z0, tape + k[SLOPES] if k[SLOPES] >= 0 else z0, sign


@inlined
def pull_linear(machine, chains, layer, W, w0, memory, x0, g0, out, b0, s):
    """out = b + K(x)' g, or K(x) g; b = 0 if b0 < 0."""
    k = chains.layers[layer]
    is_transposed = k[IS_TRANSPOSED] == 0
    is_plain, columns = k[KIND] == MIXING and k[TAPS] == 1 and chains.taps[k[TAP0], 0] != 0, k[NODES_OUT] * TILE
    if is_plain and is_small(k[C_IN], k[C_OUT], columns):
        n_in, n_out, row, column = k[C_IN], k[C_OUT], k[C_IN], 1
        if is_transposed:
            n_in, n_out, row, column = k[C_OUT], k[C_IN], 1, k[C_IN]
        multiply(machine.ahead, W, w0, row, column, memory, g0, n_in, memory, out, n_out, columns, b0)
    else:
        if b0 >= 0 and b0 != out:
            set_scaled(memory, out, b0, k[N_IN] * TILE, chains.sign.dtype.type(1.0))
        apply(machine, chains, layer, is_transposed, W, w0, memory, x0, g0, out, b0 >= 0, s)
    if chains.shift[layer] != 0.0:
        add_scaled(memory, out, g0, k[N_OUT] * TILE, chains.shift[layer])


@inlined
def pull_chain(
    machine, chains, part, W, base, i, t, memory, x0, o0, tape, f0, weight, g0, b0, xb0, W_bar, s0, size, is_x_wanted
):
    """x_bar = b + gradient and W_bar += gradient of <weight f, chain(x)>; b = 0 if b0 < 0; g is scratch and may be f.

    Scratch of `size` each: two inner gradients, the gradient through a state-dependent K', then the scratch of a layer.
    """
    first, last = chains.first[part], chains.first[part + 1]
    anchor, has_anchor = s0 + 2 * size, False
    s, one = s0 + 3 * size, chains.sign.dtype.type(1.0)
    for layer in range(last - 1, first - 1, -1):
        k = chains.layers[layer]
        z0, slopes, sign = locate_known(chains, layer, last, part, o0, tape)
        columns = k[BIAS_NODES] * TILE
        for c in range(k[N_OUT] // k[BIAS_NODES] if is_bent(k, sign) or f0 != g0 or weight != 1.0 else 0):
            place = c * columns
            total = steepen(
                k[ACTIVATION], memory, z0 + place, slopes + place, f0 + place, g0 + place, columns, 0.0, sign, weight
            )
            if k[BIAS] >= 0:
                W_bar[base[i, k[BIAS]] + c] += total
            if k[CLOCK] >= 0:
                W_bar[base[i, k[CLOCK]] + c] += t * total
        v0 = x0 if layer == first else tape + chains.layers[layer - 1, TAPE]
        out, b = (xb0, b0) if layer == first else (s0 + (layer % 2) * size, -1)
        w0, is_transposed = locate_weights(k, base, i), k[IS_TRANSPOSED] != 0
        if layer > first or is_x_wanted or k[KIND] > FIXED:
            pull_linear(machine, chains, layer, W, w0, memory, x0 if is_transposed else v0, g0, out, b, s)
        if k[KIND] == ATTENTION:
            n = k[N_IN] * TILE
            if is_transposed:
                if not has_anchor:
                    set_zero(memory, anchor, n)
                has_anchor = True
                pull_attention(
                    machine, W, w0, W_bar, w0, memory, x0, g0, v0, anchor, s, k[NODES_IN], k[C_IN], k[HEADS],
                    k[IS_CAUSAL] != 0,
                )  # fmt: skip
            else:
                pull_attention(
                    machine, W, w0, W_bar, w0, memory, v0, v0, g0, out, s, k[NODES_IN], k[C_IN], k[HEADS],
                    k[IS_CAUSAL] != 0,
                )  # fmt: skip
        elif k[KIND] == NORMALISATION:
            add_size_change(
                memory, v0, v0, g0, v0, out, s, k[C_IN], k[NODES_IN] * TILE, k[IS_CENTRED] != 0, chains.eps[layer],
            )  # fmt: skip
        elif is_transposed:
            add_weight_gradient(machine, chains, layer, memory, g0, v0, W_bar, w0, s)
        else:
            add_weight_gradient(machine, chains, layer, memory, v0, g0, W_bar, w0, s)
        f0, g0, weight = out, out, one
    if has_anchor:
        add_scaled(memory, xb0, anchor, chains.layers[first, N_IN] * TILE, one)


@inlined
def push_chain(machine, chains, part, W, W_dot, base, i, t, memory, x0, xd0, o0, od0, tape, s0, size):
    """Compute the tangent of a chain at od0, after its value at o0."""
    first, last = chains.first[part], chains.first[part + 1]
    s, one = s0 + 3 * size, chains.sign.dtype.type(1.0)
    v0, vd0 = x0, xd0
    for layer in range(first, last):
        k = chains.layers[layer]
        out = od0 if layer == last - 1 else s0 + (layer % 2) * size
        w0, is_transposed = locate_weights(k, base, i), k[IS_TRANSPOSED] != 0
        if k[KIND] == ATTENTION:
            a0, ad0 = (x0, xd0) if is_transposed else (v0, vd0)
            attend_tangent(
                machine, W, w0, W_dot, w0, memory, a0, ad0, v0, vd0, out, s, is_transposed, k[NODES_IN], k[C_IN],
                k[HEADS], k[IS_CAUSAL] != 0,
            )  # fmt: skip
        elif k[KIND] == NORMALISATION:
            columns, is_centred = k[NODES_IN] * TILE, k[IS_CENTRED] != 0
            normalise(memory, v0, vd0, out, s, False, k[C_IN], columns, is_centred, chains.eps[layer])
            add_size_change(memory, v0, v0, vd0, v0, out, s, k[C_IN], columns, is_centred, chains.eps[layer])
        else:
            apply(machine, chains, layer, is_transposed, W, w0, memory, x0, vd0, out, False, s)
            if k[KIND] == MIXING:
                apply(machine, chains, layer, is_transposed, W_dot, w0, memory, x0, v0, out, True, s)
        if chains.shift[layer] != 0.0:
            add_scaled(memory, out, vd0, k[N_OUT] * TILE, chains.shift[layer])
        columns = k[BIAS_NODES] * TILE
        z0, slopes, sign = locate_known(chains, layer, last, part, o0, tape)
        for c in range(k[N_OUT] // k[BIAS_NODES] if is_bent(k, sign) else 0):
            place, bias = c * columns, evaluate_bias(k, W_dot, base, i, t, c)
            steepen(
                k[ACTIVATION], memory, z0 + place, slopes + place, out + place, out + place, columns, bias, sign, one
            )
        v0, vd0 = tape + k[TAPE], out
