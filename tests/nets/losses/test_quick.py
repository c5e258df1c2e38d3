"""Cross-entropy in a single pass, against its formula; which of the two is used."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from stepnet.nets import losses

QUICK = losses.cross_entropy()
SLOW = replace(QUICK, quick=None)
ROWS = np.array([
    [1.0, 2.0, -3.0], [0.0, 0.0, 0.0], [800.0, -800.0, 3.0], [inf, 1.0, 2.0], [-inf, 1.0, 1.0], [1.0, inf, inf],
    [1.0, nan, 2.0], [-inf, -inf, -inf],
])  # fmt: skip


def forbidden(*_):
    raise AssertionError("the other way")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_one_pass_gives_what_the_formula_gives(dtype, reduction):
    for z in (*(row[None] for row in ROWS), ROWS[:6], np.random.default_rng(0).normal(size=(1000, 7))):
        z = z.astype(dtype)
        for shift in range(z.shape[1]):
            y = (np.arange(len(z)) + shift) % z.shape[1]
            one, other = (replace(loss, reduction=reduction).at(z, y) for loss in (QUICK, SLOW))
            assert one.value == pytest.approx(other.value, rel=20 * float(np.finfo(dtype).eps), nan_ok=True)
            assert one.gradient.dtype == dtype
            np.testing.assert_allclose(one.gradient, other.gradient, rtol=0, atol=4 * np.finfo(dtype).eps * len(z))
            v = np.ones_like(z)
            np.testing.assert_array_equal(one.product(v), other.product(v))


def test_classes_take_one_pass():
    loss = replace(QUICK, formula=forbidden)
    assert loss.at(np.zeros((4, 2)), np.array([0, 1, 0, 1])).value == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("loss", "targets", "weights"),
    [
        (QUICK, np.eye(2), None),
        (QUICK, np.array([0, 1]), np.ones(2)),
        (QUICK, np.array([0, 1], np.int8), None),
        (QUICK, [0.0, 1.0], None),
        (losses.get("cross_entropy", class_weights=[1, 2]), np.array([0, 1]), None),
        (losses.cross_entropy(smoothing=0.1), np.array([0, 1]), None),
        (losses.cross_entropy(temperature=2.0), np.array([0, 1]), None),
    ],
)
def test_all_else_takes_the_formula(loss, targets, weights):
    with pytest.raises(AssertionError, match="the other way"):
        replace(loss, formula=forbidden).at(np.zeros((2, 2)), targets, weights)


@pytest.mark.parametrize("y", [[0, 2], [-1, 0], [0], [0, 1, 0]])
def test_wrong_classes_are_refused(y):
    messages = []
    for loss in (QUICK, SLOW):
        with pytest.raises(ValueError, match="`targets`") as caught:
            loss.at(np.zeros((2, 2)), np.array(y))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
