"""Penalties on weights: l1 |w|_1 + l2 / 2 |w|_2^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets.losses.loss import Expansion
from stepnet.records import find_by_name, keep_numbers, validate_number
from stepnet.validation import array, check, real

__all__ = ["PENALTIES", "Penalty", "elastic_net", "get", "l1", "l2", "names", "none"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Penalty:
    """l1 sum_i |w_i| + l2 / 2 sum_i w_i^2; the derivative of |w| at zero is taken as zero.

    Parameters
    ----------
    l1, l2 : float, optional
        The two factors.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.nets import penalties
    >>> penalties.Penalty(l1=1.0).at(np.array([1.0, -2.0])).value
    3.0
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        keep_numbers(self, l1="[0, inf)", l2="[0, inf)")

    @check(weights=array())
    def at(self, weights: np.ndarray) -> Expansion:
        """Value, gradient and Hessian product."""
        w = np.asarray(weights)
        value = float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * inner(w, w))
        return Expansion(value, lambda: self.l1 * np.sign(w) + self.l2 * w, lambda v: self.l2 * v)

    @check(weights=array(), step=real("[0, inf)"))
    def proximal(self, weights: np.ndarray, step: float) -> np.ndarray:
        """argmin_u |u - w|^2 / 2 + step penalty(u): soft thresholding, then shrinkage."""
        w = np.asarray(weights)
        return np.sign(w) * np.maximum(np.abs(w) - step * self.l1, 0) / (1 + step * self.l2)


def none() -> Penalty:
    """No penalty.

    Returns
    -------
    Penalty

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> penalties.none().l2
    0.0
    """
    return Penalty()


def l1(strength: float = 1e-4) -> Penalty:
    """strength |w|_1, which favours weights that are zero.

    Parameters
    ----------
    strength : float, optional
        The factor.

    Returns
    -------
    Penalty

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> penalties.l1(1e-3).l1
    0.001
    """
    return Penalty(l1=validate_number("strength", strength, "[0, inf)"))


def l2(strength: float = 1e-4) -> Penalty:
    """strength / 2 |w|_2^2, which shrinks weights.

    Parameters
    ----------
    strength : float, optional
        The factor.

    Returns
    -------
    Penalty

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> penalties.l2(1e-3).l2
    0.001
    """
    return Penalty(l2=validate_number("strength", strength, "[0, inf)"))


def elastic_net(strength: float = 1e-4, share: float = 0.5) -> Penalty:
    """strength (share |w|_1 + (1 - share) / 2 |w|_2^2).  Zou & Hastie (2005), J. R. Statist. Soc. B 67:301.

    Parameters
    ----------
    strength : float, optional
        The factor of both terms.
    share : float, optional
        The part of the first term, from 0 to 1.

    Returns
    -------
    Penalty

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> penalties.elastic_net(0.1, share=0.5)
    Penalty(l1=0.05, l2=0.05)
    """
    total, part = validate_number("strength", strength, "[0, inf)"), validate_number("share", share, "[0, 1]")
    return Penalty(total * part, total * (1 - part))


PENALTIES = {family.__name__: family for family in (none, l1, l2, elastic_net)}


def get(name: str | Penalty, **numbers: Any) -> Penalty:
    """The penalty of this name with these numbers, as in `get("l2", strength=1e-3)`, or a penalty unchanged.

    Parameters
    ----------
    name : str or Penalty
        A name, or a penalty.
    **numbers
        Arguments of the function of this name.

    Returns
    -------
    Penalty

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> penalties.get("l2", strength=1e-3).l2
    0.001
    """
    found = find_by_name("penalty", PENALTIES, name, numbers)
    if not isinstance(found, Penalty):
        raise TypeError(f"`penalty` must be a name or a Penalty, found {found!r:.80} ({type(found).__name__})")
    return found


def names() -> list[str]:
    """The names that `get` knows, sorted.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from stepnet.nets import penalties
    >>> "l2" in penalties.names()
    True
    """
    return sorted(PENALTIES)
