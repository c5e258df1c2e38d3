"""Attention on tiles: every sample has its own P, so products of states are computed sample by sample, in columns."""

from __future__ import annotations

from stepnet.engines.numba_engine.codegen.intrinsics.activations import exponential
from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined
from stepnet.engines.numba_engine.layers.matrix_products import TILE, add_outer, mix

QUERY, KEY, VALUE, OUTPUT = range(4)


@inlined
def _product(memory, a0, b0, o0, n, stride):
    """o = sum_{e < n} a_e b_e, entry by entry; a_e and b_e lie `stride` apart."""
    out = memory[o0 : o0 + TILE]
    for m in range(TILE):
        out[m] = 0.0
    _add_product(memory, a0, b0, o0, n, stride)


@inlined
def _add_product(memory, a0, b0, o0, n, stride):
    out = memory[o0 : o0 + TILE]
    for e in range(n):
        a, b = memory[a0 + e * stride : a0 + e * stride + TILE], memory[b0 + e * stride : b0 + e * stride + TILE]
        for m in range(TILE):
            out[m] += a[m] * b[m]


@inlined
def _first_and_last(i, tokens, is_causal, is_transposed):
    """The range of tokens j for which the mask allows P_ij, or P_ji if transposed."""
    if not is_causal:
        return 0, tokens
    return (i, tokens) if is_transposed else (0, i + 1)


@compiled
def weigh(memory, p0, v0, o0, tokens, channels, heads, is_causal, is_transposed, is_added):
    """out[c, i] (+)= sum_j P[h, i, j] v[c, j], or with P[h, j, i], for the channels c of every head h."""
    size = channels // heads
    for c in range(channels):
        head = p0 + (c // size) * tokens * tokens * TILE
        for i in range(tokens):
            out = memory[o0 + (c * tokens + i) * TILE : o0 + (c * tokens + i + 1) * TILE]
            if not is_added:
                for m in range(TILE):
                    out[m] = 0.0
            first, last = _first_and_last(i, tokens, is_causal, is_transposed)
            for j in range(first, last):
                place = head + ((j * tokens + i) if is_transposed else (i * tokens + j)) * TILE
                P, v = (
                    memory[place : place + TILE],
                    memory[v0 + (c * tokens + j) * TILE : v0 + (c * tokens + j + 1) * TILE],
                )
                for m in range(TILE):
                    out[m] += P[m] * v[m]


@compiled
def correlate(memory, a0, b0, p0, tokens, channels, heads, is_causal, is_added):
    """P[h, i, j] (+)= sum_{c in h} a[c, i] b[c, j] where the mask allows it."""
    size, row = channels // heads, tokens * TILE
    for h in range(heads):
        for i in range(tokens):
            _, last = _first_and_last(i, tokens, is_causal, False)
            for j in range(last):
                a, b = a0 + h * size * row + i * TILE, b0 + h * size * row + j * TILE
                place = p0 + ((h * tokens + i) * tokens + j) * TILE
                if is_added:
                    _add_product(memory, a, b, place, size, row)
                else:
                    _product(memory, a, b, place, size, row)


@compiled
def soften(memory, p0, scale, tokens, heads, is_causal):
    """P = softmax over j of scale P, sample by sample."""
    for h in range(heads):
        for i in range(tokens):
            _, last = _first_and_last(i, tokens, is_causal, False)
            start = p0 + (h * tokens + i) * tokens * TILE
            for m in range(TILE):
                largest = memory[start + m]
                for j in range(1, last):
                    largest = max(largest, memory[start + j * TILE + m])
                total = 0.0
                for j in range(last):
                    e = exponential(scale * (memory[start + j * TILE + m] - largest))
                    memory[start + j * TILE + m] = e
                    total += e
                for j in range(last):
                    memory[start + j * TILE + m] /= total


@compiled
def differentiate_softmax(memory, p0, d0, scale, tokens, heads, is_causal):
    """d = scale P (d - sum_j P d): tangent and pullback of the softmax are the same symmetric map."""
    for h in range(heads):
        for i in range(tokens):
            _, last = _first_and_last(i, tokens, is_causal, False)
            start = (h * tokens + i) * tokens * TILE
            for m in range(TILE):
                total = 0.0
                for j in range(last):
                    total += memory[p0 + start + j * TILE + m] * memory[d0 + start + j * TILE + m]
                for j in range(last):
                    place = start + j * TILE + m
                    memory[d0 + place] = scale * memory[p0 + place] * (memory[d0 + place] - total)


@compiled
def compute_probabilities(machine, W, w0, memory, x0, q0, tokens, channels, heads, is_causal):
    """Compute queries, keys and P, stored consecutively from q0."""
    size, columns = channels * tokens * TILE, tokens * TILE
    for number in range(2):
        place = w0 + number * channels * channels
        out = q0 + number * size
        mix(machine, W, place, channels, False, memory, x0, channels, memory, out, channels, columns, False)
    p0 = q0 + 2 * size
    correlate(memory, q0, q0 + size, p0, tokens, channels, heads, is_causal, False)
    soften(memory, p0, (channels // heads) ** -0.5, tokens, heads, is_causal)
    return p0


@compiled
def attend(machine, W, w0, memory, x0, v0, o0, s0, is_transposed, is_added, tokens, channels, heads, is_causal):
    """out (+)= K(x) v, or K(x)' v."""
    size, columns, square = channels * tokens * TILE, tokens * TILE, channels * channels
    p0 = compute_probabilities(machine, W, w0, memory, x0, s0, tokens, channels, heads, is_causal)
    inner, outer = (OUTPUT, VALUE) if is_transposed else (VALUE, OUTPUT)
    t = is_transposed
    # The queries are no longer needed, so their memory holds the input and output of the weighted sum.
    mix(machine, W, w0 + inner * square, channels, t, memory, v0, channels, memory, s0, channels, columns, False)
    weigh(memory, p0, s0, s0 + size, tokens, channels, heads, is_causal, t, False)
    k0 = s0 + size
    mix(machine, W, w0 + outer * square, channels, t, memory, k0, channels, memory, o0, channels, columns, is_added)


@compiled
def pull_attention(machine, W, w0, W_bar, wb0, memory, x0, v0, z0, xb0, s0, tokens, channels, heads, is_causal):
    """Gradients of <z, K(x) v>: x_bar += d/dx with v held fixed, W_bar += d/dW."""
    size, columns, square = channels * tokens * TILE, tokens * TILE, channels * channels
    p0 = compute_probabilities(machine, W, w0, memory, x0, s0, tokens, channels, heads, is_causal)
    q0, k0, d0 = s0, s0 + size, p0 + heads * tokens * tokens * TILE
    a0 = d0 + heads * tokens * tokens * TILE
    b0, c0 = a0 + size, a0 + 2 * size
    mix(machine, W, w0 + VALUE * square, channels, False, memory, v0, channels, memory, a0, channels, columns, False)
    weigh(memory, p0, a0, b0, tokens, channels, heads, is_causal, False, False)
    add_outer(machine, memory, z0, channels, memory, b0, channels, columns, W_bar, wb0 + OUTPUT * square)
    mix(machine, W, w0 + OUTPUT * square, channels, True, memory, z0, channels, memory, b0, channels, columns, False)
    weigh(memory, p0, b0, c0, tokens, channels, heads, is_causal, True, False)
    add_outer(machine, memory, c0, channels, memory, v0, channels, columns, W_bar, wb0 + VALUE * square)
    correlate(memory, b0, a0, d0, tokens, channels, heads, is_causal, False)
    differentiate_softmax(memory, p0, d0, (channels // heads) ** -0.5, tokens, heads, is_causal)
    for number in range(2):
        weigh(memory, d0, k0 if number == QUERY else q0, c0, tokens, channels, heads, is_causal, number == KEY, False)
        add_outer(machine, memory, c0, channels, memory, x0, channels, columns, W_bar, wb0 + number * square)
        place = w0 + number * square
        mix(machine, W, place, channels, True, memory, c0, channels, memory, xb0, channels, columns, True)


@compiled
def attend_tangent(
    machine, W, w0, W_dot, wd0, memory, x0, xd0, v0, vd0, o0, s0, is_transposed, tokens, channels, heads, is_causal
):
    """out = d(K(x) v), or d(K(x)' v), along the tangents of W, x and v."""
    size, columns, square = channels * tokens * TILE, tokens * TILE, channels * channels
    p0 = compute_probabilities(machine, W, w0, memory, x0, s0, tokens, channels, heads, is_causal)
    d0 = p0 + heads * tokens * tokens * TILE
    a0 = d0 + heads * tokens * tokens * TILE
    b0, c0 = a0 + size, a0 + 2 * size
    for number in range(2):
        place = number * square
        mix(machine, W, w0 + place, channels, False, memory, xd0, channels, memory, a0, channels, columns, False)
        mix(machine, W_dot, wd0 + place, channels, False, memory, x0, channels, memory, a0, channels, columns, True)
        one, other = (a0, s0 + size) if number == QUERY else (s0, a0)
        correlate(memory, one, other, d0, tokens, channels, heads, is_causal, number == KEY)
    differentiate_softmax(memory, p0, d0, (channels // heads) ** -0.5, tokens, heads, is_causal)
    inner, outer = (OUTPUT, VALUE) if is_transposed else (VALUE, OUTPUT)
    t = is_transposed
    mix(machine, W, w0 + inner * square, channels, t, memory, v0, channels, memory, a0, channels, columns, False)
    weigh(memory, p0, a0, b0, tokens, channels, heads, is_causal, t, False)
    mix(machine, W_dot, wd0 + outer * square, channels, t, memory, b0, channels, memory, o0, channels, columns, False)
    weigh(memory, d0, a0, c0, tokens, channels, heads, is_causal, t, False)
    mix(machine, W, w0 + inner * square, channels, t, memory, vd0, channels, memory, a0, channels, columns, False)
    mix(machine, W_dot, wd0 + inner * square, channels, t, memory, v0, channels, memory, a0, channels, columns, True)
    weigh(memory, p0, a0, c0, tokens, channels, heads, is_causal, t, True)
    mix(machine, W, w0 + outer * square, channels, t, memory, c0, channels, memory, o0, channels, columns, True)
