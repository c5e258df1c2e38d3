"""Losses by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepnet.nets.losses import elementwise, entropy
from stepnet.nets.losses.loss import Loss
from stepnet.records import find_by_name

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LOSSES = {
    family.__name__: family
    for family in (
        elementwise.mse, elementwise.mae, elementwise.huber, elementwise.tukey, elementwise.quantile,
        elementwise.barron, elementwise.poisson, elementwise.gaussian_nll, entropy.cross_entropy, entropy.focal,
        entropy.kl, entropy.distillation, entropy.binary_cross_entropy, entropy.binary_focal,
    )
}  # fmt: skip


def get(
    name: str | Loss, *, reduction: str | None = None, class_weights: ArrayLike | None = None, **numbers: Any
) -> Loss:
    """The loss of this name with these numbers, as in `get("huber", delta=0.5, reduction="sum")`.

    A loss is returned unchanged, except that `reduction` and `class_weights` replace its own if given.

    Parameters
    ----------
    name : str or Loss
        A name, or a loss.
    reduction : str, optional
        "mean" or "sum".
    class_weights : array_like, optional
        A factor for each class.
    **numbers
        Arguments of the function of this name.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.get("huber", delta=0.5, reduction="sum").reduction
    'sum'
    """
    loss = find_by_name("loss", LOSSES, name, numbers)
    if not isinstance(loss, Loss):
        raise TypeError(f"`loss` must be a name or a Loss, found {loss!r:.80} ({type(loss).__name__})")
    changes: dict[str, Any] = {"reduction": reduction, "class_weights": class_weights}
    given = {key: value for key, value in changes.items() if value is not None}
    return replace(loss, **given) if given else loss


def names() -> list[str]:
    """The names that `get` knows, sorted.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> "huber" in losses.names()
    True
    """
    return sorted(LOSSES)
