"""Wrong numbers, shapes, labels and names are refused with the argument, what was found and what is required."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepnet as sn
from stepnet.nets import losses, penalties

Z = np.zeros((3, 2))


@pytest.mark.parametrize(("call", "message"), [
    (lambda: losses.huber(0), r"`delta` must be a number in \(0, inf\), found 0"),
    (lambda: losses.huber("1"), "`delta` must be a number, found '1'"),
    (lambda: losses.quantile(1.0), r"`tau` must be a number in \(0, 1\), found 1"),
    (lambda: losses.cross_entropy(smoothing=1.5), "`smoothing`"),
    (lambda: losses.cross_entropy(temperature=0), "`temperature`"),
    (lambda: losses.focal(-1), "`focus`"),
    (lambda: losses.barron(np.nan), "`alpha`"),
    (lambda: losses.get("mse", reduction="none"), "`reduction` must be 'mean' or 'sum', found 'none'"),
    (lambda: losses.get("mse", delta=1), "the loss 'mse' takes no `delta`; it takes no numbers"),
    (lambda: losses.get(losses.mse(), delta=1), "`delta` can only go with the name of a loss"),
    (lambda: losses.get(3), "`loss` must be a name or a Loss, found 3"),
    (lambda: losses.get("cross_entropy", class_weights=[1.0, -1.0]), "`class_weights` must be one number"),
    (lambda: losses.mse().at(np.zeros(3), np.zeros(3)), r"`outputs` must be an array \(batch, outputs\)"),
    (lambda: losses.mse().at(np.zeros((0, 2)), np.zeros((0, 2))), r"`outputs` .* found shape \(0, 2\)"),
    (lambda: losses.mse().at(Z.astype(complex), Z), "`outputs` must be real numbers, found complex128"),
    (lambda: losses.mse().at(Z, np.zeros(3)), r"`targets` must have the shape .* \(3, 2\), found \(3,\)"),
    (lambda: losses.mse().at(Z, np.full((3, 2), "a")), "`targets` must be real numbers"),
    (lambda: losses.mse().at(Z, Z, np.ones(2)), "`weights` must be one number for each of 3 samples"),
    (lambda: losses.mse().at(Z, Z, -np.ones(3)), "`weights` must be finite and not negative"),
    (lambda: losses.get("mse", class_weights=[1, 2]).at(Z, Z), "`class_weights` are for losses of classification"),
    (lambda: losses.get("kl", class_weights=[1, 2]).at(Z, Z), "`class_weights` are not available for this loss"),
    (lambda: losses.poisson().at(Z, Z - 1), "counts, not negative; found -1"),
    (lambda: losses.gaussian_nll().at(np.zeros((3, 3)), Z), "pairs of outputs .* found 3 outputs"),
    (lambda: losses.cross_entropy().at(Z, [0, 1, 2]), "classes from 0 to 1, one for each output, found 2"),
    (lambda: losses.cross_entropy().at(Z, [0, -1, 1]), "found -1"),
    (lambda: losses.cross_entropy().at(Z, [0.0, 0.5, 1.0]), r"shape \(batch,\) must be integers"),
    (lambda: losses.cross_entropy().at(Z, [0.0, np.nan, 1.0]), "must be integers"),
    (lambda: losses.cross_entropy().at(Z, ["a", "b", "a"]), "must be integers, found <U1"),
    (lambda: losses.cross_entropy().at(Z, [0, 1]), r"one class for each of 3 samples, found shape \(2,\)"),
    (lambda: losses.cross_entropy().at(Z, np.zeros((3, 4))), r"probabilities \(3, 2\), found shape \(3, 4\)"),
    (lambda: losses.cross_entropy().at(Z, np.ones((3, 2))), "each row must sum to one"),
    (lambda: losses.get("cross_entropy", class_weights=[1, 1, 1]).at(Z, [0, 1, 1]), "must be 2 numbers"),
    (lambda: losses.binary_cross_entropy().at(Z, [0, 1, 1]), r"shape of the outputs, \(3, 2\), found \(3,\)"),
    (lambda: losses.binary_cross_entropy().at(Z, Z + 2), "must be 0, 1 or numbers between"),
    (lambda: losses.get("binary_focal", class_weights=[1, 1, 1]).at(Z, Z), r"2 numbers \(no, yes\), found 3"),
    (lambda: losses.distillation().at(Z, np.zeros((3, 3))), r"teacher's logits: \(3, 2\), found \(3, 3\)"),
    (lambda: losses.distillation(hard=0.5).at(Z, Z), r"one more column: \(3, 3\), found \(3, 2\)"),
    (lambda: penalties.l2(-1), "`strength`"),
    (lambda: penalties.elastic_net(1.0, 2.0), "`share`"),
    (lambda: penalties.get(2.0), "`penalty` must be a name or a Penalty"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(("call", "near"), [
    (lambda: losses.get("cross_entorpy"), "cross_entropy"), (lambda: losses.get("hubber"), "huber"),
    (lambda: penalties.get("elastic"), "elastic_net"),
])  # fmt: skip
def test_unknown_names_are_answered_with_the_nearest(call, near):
    with pytest.raises(sn.UnknownName, match=f"did you mean .*'{near}'"):
        call()


def test_the_page_of_training_has_every_loss_and_penalty():
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    assert [name for name in losses.names() if f"`{name}" not in page] == []
    assert [name for name in penalties.names() if name not in page and name != "none"] == []


def test_names_are_sorted_and_found_in_any_case():
    assert losses.names() == sorted(losses.names())
    assert penalties.names() == sorted(penalties.names())
    for name in losses.names():
        assert losses.get(name.upper()).name == name
    loss = losses.huber(2.0)
    assert losses.get(loss) is loss
