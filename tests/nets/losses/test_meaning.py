"""What outputs predict: the link of the best constant outputs is the mean of the targets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from stepnet.errors import UnknownName
from stepnet.nets import losses
from stepnet.nets.losses import Meaning

N = 60
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.choice(3, N, p=[0.2, 0.3, 0.5])
ONE_HOT = np.eye(3)[LABELS]
REAL = RANDOM.normal(2.0, 1.5, (N, 3))
NEAR = 1e-5  # of a minimum that L-BFGS has found

MEANS = [
    (losses.mse(), REAL, REAL.mean(axis=0)),
    (losses.barron(2.0, 1.5), REAL, REAL.mean(axis=0)),
    (losses.gaussian_nll(), REAL, REAL.mean(axis=0)),
    (losses.poisson(), np.floor(np.abs(REAL)), np.floor(np.abs(REAL)).mean(axis=0)),
    (losses.cross_entropy(), LABELS, ONE_HOT.mean(axis=0)),
    (losses.cross_entropy(temperature=5.0), LABELS, ONE_HOT.mean(axis=0)),
    (losses.cross_entropy(temperature=0.2), ONE_HOT, ONE_HOT.mean(axis=0)),
    (losses.focal(focus=0.0), LABELS, ONE_HOT.mean(axis=0)),
    (losses.focal(focus=0.5), LABELS, ONE_HOT.mean(axis=0)),
    (losses.focal(focus=2.0), LABELS, ONE_HOT.mean(axis=0)),
    (losses.kl(), ONE_HOT, ONE_HOT.mean(axis=0)),
    (losses.binary_cross_entropy(), ONE_HOT, ONE_HOT.mean(axis=0)),
    (losses.binary_focal(focus=0.0), ONE_HOT, ONE_HOT.mean(axis=0)),
    (losses.binary_focal(focus=2.0), ONE_HOT, ONE_HOT.mean(axis=0)),
]


def best_constant(loss, targets) -> np.ndarray:
    """The outputs (1, outputs), the same for all samples, with the least loss."""
    outputs = loss.meaning.each * 3

    def pair(z):
        here = loss.at(np.tile(z, (len(targets), 1)), targets)
        return here.value, here.gradient.sum(axis=0)

    return minimize(pair, np.zeros(outputs), jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-9}).x[None]


@pytest.mark.parametrize(("loss", "targets", "mean"), MEANS, ids=lambda each: repr(each) if hasattr(each, "at") else "")
def test_the_link_of_the_best_outputs_is_the_mean(loss, targets, mean):
    np.testing.assert_allclose(loss.meaning.predict(best_constant(loss, targets))[0], mean, rtol=NEAR)


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_says_what_its_outputs_mean(name):
    meaning = losses.get(name).meaning
    z = np.random.default_rng(1).normal(size=(5, 6))
    found = meaning.predict(z)
    assert found.shape == (5, 6 // meaning.each)
    if meaning.has_probabilities:
        assert ((found > 0) & (found < 1)).all()
    if meaning.link == "softmax":
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
def test_far_logits_out_of_focus_are_limits(link):
    z = np.array([[800.0, 0.0, -800.0], [0.0, 1e-9, -1e-9]])
    found = Meaning("classes", link, focus=2.0).predict(z)
    wanted = {"softmax": [[1, 0, 0], [1 / 3] * 3], "sigmoid": [[1, 0.5, 0], [0.5] * 3]}[link]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_medians_are_their_own_link():
    assert losses.mae().meaning == losses.quantile(0.3).meaning == Meaning()


def test_meanings_refuse_what_they_do_not_know():
    with pytest.raises(UnknownName, match="did you mean 'softmax'"):
        Meaning("classes", "softmx")
    with pytest.raises(UnknownName, match="kind of targets 'words'"):
        Meaning("words")
    with pytest.raises(ValueError, match="`each` must be at least 1"):
        Meaning(each=0)
    with pytest.raises(ValueError, match="`temperature`"):
        Meaning(temperature=0)
