"""Values, gradients and Hessian products are those of PyTorch's own losses, or of its automatic derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets.losses.cases import CASES, generator, outputs

from stepnet.nets import losses

AGREE = 1e-12
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)


def _theirs(loss):
    """What PyTorch calls this loss: a function of (outputs, targets)."""
    n = loss.numbers
    weights = None if loss.class_weights is None else torch.tensor(loss.class_weights)
    return {
        "mse": F.mse_loss,
        "mae": F.l1_loss,
        "huber": lambda z, y: F.huber_loss(z, y, delta=n["delta"]),
        "poisson": lambda z, y: F.poisson_nll_loss(z, y, log_input=True, full=False),
        "gaussian_nll": lambda z, y: F.gaussian_nll_loss(z[:, :2], y, z[:, 2:].exp()),
        "kl": lambda z, y: F.kl_div(F.log_softmax(z, 1), y, reduction="batchmean"),
        "cross_entropy": lambda z, y: F.cross_entropy(
            z / n["temperature"], y, weight=weights, label_smoothing=n["smoothing"]
        ),
        "binary_cross_entropy": lambda z, y: F.binary_cross_entropy_with_logits(z, y.double()),
        "distillation": lambda z, t: 9.0 * (
            F.kl_div(F.log_softmax(z / 3, 1), F.softmax(t / 3, 1), reduction="batchmean")
            - (F.softmax(t / 3, 1) * F.log_softmax(t / 3, 1)).sum(1).mean()
        ),
        "quantile": lambda z, y: torch.maximum(n["tau"] * (y - z), (n["tau"] - 1) * (y - z)).mean(),
        "tukey": lambda z, y: (
            n["c"] ** 2 / 6 * (1 - (1 - ((z - y).abs() / n["c"]).clamp(max=1) ** 2) ** 3)
        ).mean(),
    }.get(loss.name)  # fmt: skip


def _is_theirs(case) -> bool:
    is_plain = case.loss.class_weights is None
    hard = case.loss.numbers.get("hard", 0.0)
    smooth_answers = case.loss.name == "binary_cross_entropy" and case.loss.numbers["smoothing"]
    return bool(_theirs(case.loss)) and not hard and not smooth_answers and (is_plain or case.targets.ndim == 1)


@pytest.mark.parametrize("case", [case for case in CASES if _is_theirs(case)], ids=str)
def test_values_gradients_and_products_agree(case):
    z = torch.tensor(outputs(), requires_grad=True)
    y, v = torch.tensor(case.targets), torch.tensor(generator().normal(size=z.shape))
    value = _theirs(case.loss)(z, y)
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    product = torch.autograd.grad((gradient * v).sum() + 0 * (z * z).sum(), z)[0]
    here = case.loss.at(z.detach().numpy(), case.targets)
    assert here.value == pytest.approx(value.item(), rel=AGREE)
    np.testing.assert_allclose(here.gradient, gradient.detach(), atol=AGREE)
    np.testing.assert_allclose(here.product(v.numpy()), product, atol=AGREE)


def test_weighted_probabilities_agree_in_the_sum():
    """In the mean they are divided by the sum of weights here, by the number of samples there."""
    z, q = torch.tensor(outputs()), torch.tensor(generator().dirichlet(np.ones(4), 7))
    ours = losses.get("cross_entropy", class_weights=WEIGHTS.numpy(), reduction="sum")
    assert ours.at(z.numpy(), q.numpy()).value == pytest.approx(
        F.cross_entropy(z, q, weight=WEIGHTS, reduction="sum").item(), rel=AGREE
    )


def test_the_weight_of_yes_agrees_in_the_sum():
    z, y = torch.tensor(outputs()), torch.tensor(generator().integers(0, 2, (7, 4))).double()
    ours = losses.get("binary_cross_entropy", class_weights=[1.0, 3.0], reduction="sum")
    theirs = F.binary_cross_entropy_with_logits(z, y, pos_weight=torch.tensor(3.0), reduction="sum")
    assert ours.at(z.numpy(), y.numpy()).value == pytest.approx(theirs.item(), rel=AGREE)


@pytest.mark.parametrize("focus", [0.5, 1.0, 2.0])
def test_focal_losses_agree_with_derivatives_of_their_formula(focus):
    z = torch.tensor(outputs(), requires_grad=True)
    labels, v = torch.tensor([0, 1, 2, 3, 1, 2, 0]), torch.tensor(generator().normal(size=z.shape))
    p = F.softmax(z, 1)[torch.arange(7), labels]
    value = (-((1 - p) ** focus) * p.log()).mean()
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    (product,) = torch.autograd.grad((gradient * v).sum(), z)
    here = losses.focal(focus).at(z.detach().numpy(), labels.numpy())
    assert here.value == pytest.approx(value.item(), rel=AGREE)
    np.testing.assert_allclose(here.gradient, gradient.detach(), atol=AGREE)
    np.testing.assert_allclose(here.product(v.numpy()), product, atol=AGREE)
