"""Slopes of activations in kernels are accurate to rounding, for large arguments too."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import fields
from stepnet.nets import Block, Design, Net

UNITS = 4  # in the last place of one


def exact_silu(u):
    u = u.astype(np.longdouble)
    return (1 + u / (1 + np.exp(u))) / (1 + np.exp(-u))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_slope_of_silu_has_all_its_digits(dtype):
    layer = fields.Layer(fields.resized(1, 1), None, None, "silu")
    net = Net(Design((Block(fields.chained(fields.Chain((layer,))), None, 1),)), dtype=dtype)
    u = np.concatenate((np.linspace(-80, 80, 4001), np.random.default_rng(0).normal(size=400))).astype(dtype)
    found = net.gradient(u[:, None], end_gradient=np.ones((u.size, 1))).x.ravel()
    assert np.abs(found - exact_silu(u)).max() < UNITS * np.finfo(dtype).eps
