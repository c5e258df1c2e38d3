"""Convolutions and pooling on grids of nodes: a shift for each tap of a stencil."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from stepnet.errors import UnknownName
from stepnet.fields.connectivity import Fixed, Mixing, Stencil, count
from stepnet.validation import sequence


def conv1d(
    length: int, channels_in: int, channels_out: int | None = None, taps: int = 3, padding: str = "zero"
) -> Mixing:
    """Convolution on a line (zero padding) or a ring (periodic padding).

    Parameters
    ----------
    length : int
        Nodes of the line or ring.
    channels_in, channels_out : int
        Channels before and after; by default as many after as before.
    taps : int, optional
        Odd number of taps.
    padding : str, optional
        "zero" or "periodic".

    Returns
    -------
    Mixing

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.conv1d(10, 2, taps=5, padding="periodic").stencil.taps
    (5,)
    """
    return _convolution(
        "conv1d", (count("length", length),), channels_in, channels_out, (count("taps", taps),), padding
    )  # fmt: skip


def conv2d(
    shape: tuple[int, int],
    channels_in: int,
    channels_out: int | None = None,
    taps: int | tuple[int, int] = (3, 3),
    padding: str = "zero",
) -> Mixing:
    """Convolution on a rectangle (zero padding) or a torus (periodic padding) of shape (height, width).

    Parameters
    ----------
    shape : tuple
        (height, width).
    channels_in, channels_out : int
        Channels before and after; by default as many after as before.
    taps : int or tuple, optional
        Odd number of taps, or one for each direction.
    padding : str, optional
        "zero" or "periodic".

    Returns
    -------
    Mixing

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.conv2d((8, 8), 1, 4).stencil.taps
    (3, 3)
    """
    return _convolution(
        "conv2d", validate_pair("shape", shape), channels_in, channels_out, validate_pair("taps", taps), padding
    )


def pooling(shape: tuple[int, ...], channels: int, size: int = 2) -> Fixed:
    """Means over blocks of `size` nodes in each direction; `shape` is (length,) or (height, width).

    Parameters
    ----------
    shape : tuple of int
        (length,) or (height, width).
    channels : int
        Number of channels.
    size : int, optional
        Nodes of a block in each direction, a divisor of the shape.

    Returns
    -------
    Fixed

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.pooling((8, 8), channels=3).axes_out
    (3, 4, 4)
    """
    shape = sequence(count)("shape", (shape,) if isinstance(shape, (int, np.integer)) else shape)
    count("shape", prod(shape))
    size = count("size", size)
    if any(n % size for n in shape):
        raise ValueError(f"`size` must divide the nodes {shape} in every direction, found {size}")
    operator = sparse.csr_array(np.ones((1, 1)))
    for n in shape:
        operator = sparse.kron(operator, sparse.kron(sparse.eye_array(n // size), np.full((1, size), 1 / size)))
    if len(shape) == 1:
        return Fixed("pooling", channels, operator)
    return Fixed("pooling", channels, operator, (channels, *shape), (channels, *(n // size for n in shape)))


def _convolution(
    name: str, shape: tuple[int, ...], channels_in: int, channels_out: int | None, taps: tuple[int, ...], padding: str
) -> Mixing:
    if not isinstance(padding, str) or padding not in ("zero", "periodic"):
        raise UnknownName("padding", padding, ("zero", "periodic"))
    if any(each % 2 == 0 for each in taps):
        raise ValueError(f"`taps` must be odd, so that a stencil has a centre; found {taps}")
    stencil = Stencil(shape, taps, padding == "periodic")
    channels_out = channels_in if channels_out is None else channels_out
    return Mixing(name, channels_in, channels_out, build_shifts(stencil), stencil)


def build_shifts(stencil: Stencil) -> tuple[sparse.csr_array, ...]:
    """The operators of a convolution: one shift for each tap."""
    shape, taps = stencil.shape, stencil.taps
    nodes, coordinates = np.arange(prod(shape)).reshape(shape), np.indices(shape)
    operators = []
    for tap in np.ndindex(*taps):
        places = [x + a - n // 2 for x, a, n in zip(coordinates, tap, taps, strict=True)]
        inside = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(places, shape, strict=True)])
        if stencil.is_periodic:
            inside[...] = True
        sources = nodes[tuple(p % n for p, n in zip(places, shape, strict=True))]
        entries = (np.ones(inside.sum()), (nodes[inside], sources[inside]))
        operators.append(sparse.csr_array(entries, shape=(nodes.size, nodes.size)))
    return tuple(operators)


def validate_pair(name: str, value: Any) -> tuple[int, int]:
    """Return two positive integers."""
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be two whole numbers, found {value!r:.60}") from None
    return count(name, first), count(name, second)
