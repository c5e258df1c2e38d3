"""Normalisation across channels on tiles: C v / sqrt(mean of (C x)^2 + eps), column by column.

Rows are channels, `columns` entries long; scratch is three such rows.
"""

from __future__ import annotations

from math import sqrt

from stepnet.engines.numba_engine.codegen.kernels import compiled, inlined


@inlined
def _mean(memory, x0, channels, columns, is_centred, m0):
    """The mean over the channels, or zero."""
    mean = memory[m0 : m0 + columns]
    for m in range(columns):
        mean[m] = 0.0
    if is_centred:
        for c in range(channels):
            x = memory[x0 + c * columns : x0 + (c + 1) * columns]
            for m in range(columns):
                mean[m] += x[m]
        for m in range(columns):
            mean[m] /= channels


@inlined
def _size(memory, x0, channels, columns, is_centred, eps, m0, r0):
    """1 / sqrt(mean of (C x)^2 + eps); leaves the mean of x at m0."""
    _mean(memory, x0, channels, columns, is_centred, m0)
    mean, size = memory[m0 : m0 + columns], memory[r0 : r0 + columns]
    for m in range(columns):
        size[m] = 0.0
    for c in range(channels):
        x = memory[x0 + c * columns : x0 + (c + 1) * columns]
        for m in range(columns):
            size[m] += (x[m] - mean[m]) ** 2
    for m in range(columns):
        size[m] = 1 / sqrt(size[m] / channels + eps)


@compiled
def normalise(memory, x0, v0, o0, s0, is_added, channels, columns, is_centred, eps):
    """out (+)= N(x) v, which is also N(x)' v."""
    m0, r0 = s0, s0 + columns
    _size(memory, x0, channels, columns, is_centred, eps, m0, r0)
    _mean(memory, v0, channels, columns, is_centred, m0)
    mean, size = memory[m0 : m0 + columns], memory[r0 : r0 + columns]
    for c in range(channels):
        v, out = memory[v0 + c * columns : v0 + (c + 1) * columns], memory[o0 + c * columns : o0 + (c + 1) * columns]
        for m in range(columns):
            value = (v[m] - mean[m]) * size[m]
            out[m] = out[m] + value if is_added else value


@compiled
def add_size_change(memory, x0, v0, z0, a0, o0, s0, channels, columns, is_centred, eps):
    """out -= <z, C v> C a / (channels r^3), the derivative of N(x) v through r.

    With a = x it pulls z back to x; with z = x_dot, v = x and a = v it gives the tangent for x_dot.
    """
    m0, r0, d0 = s0, s0 + columns, s0 + 2 * columns
    _size(memory, x0, channels, columns, is_centred, eps, m0, r0)
    _mean(memory, v0, channels, columns, is_centred, m0)
    mean, size, product = memory[m0 : m0 + columns], memory[r0 : r0 + columns], memory[d0 : d0 + columns]
    for m in range(columns):
        product[m] = 0.0
    for c in range(channels):
        v, z = memory[v0 + c * columns : v0 + (c + 1) * columns], memory[z0 + c * columns : z0 + (c + 1) * columns]
        for m in range(columns):
            product[m] += z[m] * (v[m] - mean[m])
    for m in range(columns):
        product[m] *= size[m] * size[m] * size[m] / channels
    _mean(memory, a0, channels, columns, is_centred, m0)
    for c in range(channels):
        a, out = memory[a0 + c * columns : a0 + (c + 1) * columns], memory[o0 + c * columns : o0 + (c + 1) * columns]
        for m in range(columns):
            out[m] -= product[m] * (a[m] - mean[m])
