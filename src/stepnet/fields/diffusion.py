"""Diffusion of networks: g in dy = F dt + g dW, with an independent component of W for each feature.

g is a number, or a number times a chain of the state.  First-order equations have noise in y.  Partitioned and
second-order equations have it in p or v, where g depends on q: (q, p) -> (q, p + g(q) dW) has an exact inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Any

from scipy import sparse

from stepnet.fields.activations import activation
from stepnet.fields.connectivity import Connectivity, Fixed
from stepnet.fields.formula import Chain, Layer
from stepnet.records import validate_number
from stepnet.validation import check, instance, optional, sequence, whole

__all__ = ["constant", "multiplicative", "per_channel", "state_dependent"]

AT_ZERO = log(2.0)  # softplus(0), by which learned diffusions are divided


@check(chain=optional(instance(Chain)))
@dataclass(frozen=True, eq=False)
class Diffusion:
    """g = scale, or g(t, y) = scale times a chain.

    Parameters
    ----------
    name : str
        For display.
    scale : float
        A positive number, or 0 for no noise.
    chain : Chain, optional
        From features to as many features.

    Examples
    --------
    >>> from stepnet.fields.diffusion import constant
    >>> constant(0.2)
    Diffusion(name='constant', scale=0.2, chain=None)
    """

    name: str
    scale: float
    chain: Chain | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", validate_number("scale", self.scale, "[0, inf)"))
        if self.chain is not None and self.chain.n_in != self.chain.n_out:
            raise ValueError(
                f"`chain` must give as many features as it takes, found {self.chain.n_in} -> {self.chain.n_out}"
            )


def constant(sigma: float) -> Diffusion:
    """g = sigma.

    Parameters
    ----------
    sigma : float
        The standard deviation of the noise after unit time.

    Returns
    -------
    Diffusion

    Examples
    --------
    >>> from stepnet.fields.diffusion import constant
    >>> constant(0.2).scale
    0.2
    """
    return Diffusion("constant", validate_number("sigma", sigma, "[0, inf)"))


def per_channel(axes: Sequence[int], sigma: float) -> Diffusion:
    """g_c = sigma softplus(g_c) / log 2, one learned number for each channel; it is sigma where the number is 0.

    Parameters
    ----------
    axes : sequence of int
        The shape of a state, channels first, such as `field.axes`; half as many channels for a partitioned state.
    sigma : float
        The standard deviation of the noise after unit time, before training.

    Returns
    -------
    Diffusion

    Examples
    --------
    >>> from stepnet.fields.diffusion import per_channel
    >>> per_channel((3, 8, 8), 0.2).chain.parameters
    {'g': (3,)}
    """
    channels, *space = sequence(whole(1), least=1)("axes", axes)
    nothing = _build_fixed("nothing", channels, space, sparse.csr_array((prod(space), prod(space))))
    chain = Chain((Layer(nothing, None, "g", activation("softplus")),))
    return Diffusion("per channel", validate_number("sigma", sigma, "[0, inf)") / AT_ZERO, chain)


def multiplicative(axes: Sequence[int], sigma: float) -> Diffusion:
    """g(y) = sigma y, as in geometric Brownian motion.

    Parameters
    ----------
    axes : sequence of int
        The shape of a state, channels first.
    sigma : float
        The noise relative to the state, after unit time.

    Returns
    -------
    Diffusion

    Examples
    --------
    >>> from stepnet.fields.diffusion import multiplicative
    >>> multiplicative((16,), 0.2).chain.n_in
    16
    """
    channels, *space = sequence(whole(1), least=1)("axes", axes)
    identity = _build_fixed("identity", channels, space, sparse.eye_array(prod(space), format="csr"))
    return Diffusion(
        "multiplicative", validate_number("sigma", sigma, "[0, inf)"), Chain((Layer(identity, None, None),))
    )


def state_dependent(K: Connectivity, sigma: float) -> Diffusion:
    """g(y) = sigma softplus(K y + b) / log 2: a positive network of the state with its own weights `G` and `g`.

    Parameters
    ----------
    K : connectivity
        From the features of a state to as many features, such as `dense(16)`.
    sigma : float
        The standard deviation of the noise after unit time where K y + b = 0.

    Returns
    -------
    Diffusion

    Examples
    --------
    >>> from stepnet.fields.diffusion import state_dependent
    >>> from stepnet.fields import dense
    >>> state_dependent(dense(4), 0.2).chain.parameters
    {'G': (4, 4), 'g': (4,)}
    """
    chain = Chain((Layer(K, "G", "g", activation("softplus")),))
    return Diffusion("state-dependent", validate_number("sigma", sigma, "[0, inf)") / AT_ZERO, chain)


def _build_fixed(name: str, channels: int, space: list[int], operator: Any) -> Fixed:
    axes = (channels, *space)
    return Fixed(name, channels, operator, axes, axes)


def __dir__() -> list[str]:
    return __all__
