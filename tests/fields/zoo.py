"""One of every connectivity, small."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from stepnet import fields

RING = sparse.csr_array(np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1))

SQUARE = {
    "dense": fields.dense(5),
    "conv1d": fields.conv1d(6, 2),
    "conv1d periodic": fields.conv1d(6, 2, padding="periodic"),
    "conv2d": fields.conv2d((3, 4), 2),
    "conv2d periodic": fields.conv2d((3, 4), 2, padding="periodic"),
    "graph": fields.graph(RING, 3),
    "laplacian": fields.graph(RING, 2, filter="laplacian"),
    "chebyshev": fields.graph(RING, 2, filter="chebyshev", degree=3),
    "nodewise": fields.nodewise(4, 2),
    "set": fields.equivariant(4, 3),
    "attention": fields.Attention(4, 4, heads=2),
    "causal": fields.Attention(5, 2, is_causal=True),
}
NORMALISED = {
    "dense layer": ("dense", "layer"),
    "conv2d rms": ("conv2d", "rms"),
    "attention layer": ("attention", "layer"),
}
"""With a normalisation before the activation."""

LINEAR = [name for name, K in SQUARE.items() if isinstance(K, fields.Mixing)]


def weights_of(chain, rng, scale=0.5, dtype=float):
    """Random numbers for every parameter."""
    return {name: (scale * rng.normal(size=shape)).astype(dtype) for name, shape in chain.parameters.items()}


def field_of(connectivity, dynamics, activation="tanh", **options):
    """The field of a connectivity in SQUARE or NORMALISED."""
    name, norm = NORMALISED.get(connectivity, (connectivity, None))
    return fields.DYNAMICS[dynamics](SQUARE[name], activation, norm=norm, **options)


def combinations():
    """(connectivity, dynamics) that go together."""
    names = (*SQUARE, *NORMALISED)
    return [
        (K, name)
        for name in fields.DYNAMICS
        for K in names
        if name != "antisymmetric" or NORMALISED.get(K, (K,))[0] in LINEAR
    ]
