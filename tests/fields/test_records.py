"""Layers, chains and fields refuse what kernels could not run."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import fields
from stepnet.fields import Chain, Field, Layer

K = fields.dense(3)
TWICE = fields.Activation("twice", 0, lambda u: 2 * u, lambda u: 2 + 0 * u, 2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layer(K, None), "`weights` must be a name, as dense has weights"),
        (lambda: Layer(fields.Attention(2, 2), None), "`weights` must be a name, as attention has weights"),
        (lambda: Layer(K, "K", "K"), "'K' cannot have both shapes"),
        (lambda: Layer(K, "K", "b", clock="K"), "'K' cannot have both shapes"),
        (lambda: Layer(K, 5), "`weights` must be the name of a parameter"),
        (lambda: Layer(K, "K", 0), "`bias` must be the name of a parameter"),
        (lambda: Layer(K, shift=np.nan), "`shift` must be a number"),
        (lambda: fields.residual("dense"), "`K` must be a connectivity such as"),
        (lambda: fields.residual(5), "`K` must be a connectivity such as"),
        (lambda: fields.affine(K, TWICE), "`activation` must be one of tanh, relu"),
        (lambda: fields.affine(K, ["tanh"]), "`activation` must be a name"),
        (lambda: fields.affine(K, None), "`activation` must be a name"),
        (lambda: fields.affine(K, sign=0.5), "`sign` must be 1 or -1, found 0.5"),
        (lambda: fields.symmetric(K, sign=0), "`sign` must be 1 or -1, found 0"),
        (lambda: fields.antisymmetric(K, damping=np.nan), "`damping` must be a number"),
        (lambda: fields.antisymmetric(K, damping="a"), "`damping` must be a number"),
        (lambda: Chain(Layer(K)), "`layers` must be a tuple of Layers, found one Layer"),
        (lambda: Chain(()), "`layers` must hold at least one layer"),
        (lambda: Chain((K,)), "`layers` must hold Layers only"),
        (lambda: Field("mine", fields.affine(K)), "`parts` must be a tuple of Chains, found one Chain"),
        (lambda: Field("mine", (Layer(K),)), "`parts` must hold Chains only"),
    ],
)
def test_wrong_records_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_name_may_stand_for_two_parameters_of_one_shape():
    assert Layer(K, "K", "b", clock="b").parameters == {"K": (3, 3), "b": (3,)}
