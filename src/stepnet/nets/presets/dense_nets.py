"""Nets with dense connectivity: the residual and its stable forms, multistep nets, neural ODEs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepnet import fields
from stepnet.errors import UnknownName
from stepnet.fields import (
    dense,
)
from stepnet.fields.connectivity import count
from stepnet.nets.net import Net
from stepnet.schemes.multistep import LEAPFROG_TWO_STEP
from stepnet.schemes.symplectic import SYMPLECTIC_EULER_KICK
from stepnet.validation import whole

if TYPE_CHECKING:
    from stepnet.fields import Activation
from stepnet.nets.presets.composition import HALVED, compose_net, halve
from stepnet.nets.presets.structured_nets import _count_channels

LEAPFROG_FROM_REST = replace(
    LEAPFROG_TWO_STEP, name="leapfrog_two_step_from_rest", order=1, starter=SYMPLECTIC_EULER_KICK,
    reference="Ruthotto & Haber (2020), J. Math. Imaging Vision 62:352",
)  # fmt: skip
"""y_{-1} = y_0 where the velocity is 0, in place of Taylor's y_{-1} = y_0 - h v_0 + h^2 a_0 / 2: of first order."""
STARTS = {"taylor": LEAPFROG_TWO_STEP, "equal": LEAPFROG_FROM_REST}


def resnet(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = "euler", **options: Any,
) -> Net:  # fmt: skip
    """y' = s(K y + b); He, Zhang, Ren & Sun (2016), E (2017).

    Parameters
    ----------
    inputs, outputs, steps, scheme, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.resnet(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(fields.residual(dense(width), activation, norm), scheme, steps, inputs, outputs, **options)


def antisymmetric(
    inputs: int | None, outputs: int | None, width: int, steps: int, *, damping: float = 0.0,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = "euler", **options: Any,
) -> Net:  # fmt: skip
    """y' = s((K - K' - damping I) y + b); Haber & Ruthotto (2017).

    y_(j+1) = y_j + h s((K_j - K_j' - damping I) y_j + b_j) by Euler's scheme.

    Parameters
    ----------
    inputs, outputs, steps, scheme, **options
        As in `compose_net`.
    width : int
        Features of the state.
    damping : float, optional
        The multiple of the identity that is subtracted.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.antisymmetric(2, 3, width=4, steps=5, damping=0.1)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(
        fields.antisymmetric(dense(width), activation, damping, norm), scheme, steps, inputs, outputs, **options
    )


def parabolic(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = "euler", **options: Any,
) -> Net:  # fmt: skip
    """y' = -K' s(K y + b); Ruthotto & Haber (2020).

    y_(j+1) = y_j - h K_j' s(K_j y_j + b_j) by Euler's scheme.

    Parameters
    ----------
    inputs, outputs, steps, scheme, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.parabolic(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(fields.parabolic(dense(width), activation, norm), scheme, steps, inputs, outputs, **options)


def hamiltonian(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = HALVED["hamiltonian"], **options: Any,
) -> Net:  # fmt: skip
    """q' = K' s(K p + b), p' = -K' s(K q + b), reversible; Chang et al. (2018).

    q_(j+1) = q_j + h K_j' s(K_j p_j + b_j), p_(j+1) = p_j - h K_j' s(K_j q_(j+1) + b_j) by the default scheme, with one
    K for both updates of a layer.

    Parameters
    ----------
    inputs, outputs, steps, scheme, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.hamiltonian(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(
        fields.hamiltonian(dense(halve(width)), activation, norm), scheme, steps, inputs, outputs, **options
    )


def hyperbolic(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = HALVED["hyperbolic"], **options: Any,
) -> Net:  # fmt: skip
    """y'' = -K' s(K y + b) with y'(0) = 0 and a readout of y; Ruthotto & Haber (2020).

    y_(j+1) = 2 y_j - y_(j-1) - h^2 K_j' s(K_j y_j + b_j) with y_(-1) = y_0 by the default scheme, which keeps
    v_j = (y_j - y_(j-1)) / h in place of y_(j-1).

    Parameters
    ----------
    inputs, outputs, steps, scheme, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.hyperbolic(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(
        fields.hyperbolic(dense(width), activation, norm), scheme, steps, inputs, outputs, opening_width=width,
        read=width, **options,
    )  # fmt: skip


def midpoint_net(
    inputs: int | None, outputs: int | None, width: int, steps: int, *, damping: float = 0.0,
    activation: str | Activation = "tanh", **options: Any,
) -> Net:  # fmt: skip
    """y_(k+1) = y_(k-1) + 2 h s((K - K') y_k + b), reversible; Chang et al. (2018).

    Parameters
    ----------
    inputs, outputs, steps, **options
        As in `compose_net`.
    width : int
        Features of the state.
    damping : float, optional
        The multiple of the identity that is subtracted from K - K'.
    activation : str or Activation, optional
        The activation or its name.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.midpoint_net(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return antisymmetric(
        inputs, outputs, width, steps, damping=damping, activation=activation, scheme="midpoint_two_step", **options
    )


def leapfrog_net(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", start: str = "taylor", **options: Any,
) -> Net:  # fmt: skip
    """y_(k+1) = 2 y_k - y_(k-1) - h^2 K' s(K y_k + b), reversible; Chang et al. (2018).

    `start` is "taylor" for y_1 = y_0 - h^2 / 2 K' s(K y_0 + b), which is of second order, or "equal" for y_(-1) = y_0,
    that is y_1 = y_0 - h^2 K' s(K y_0 + b), as in Ruthotto & Haber (2020).

    Parameters
    ----------
    inputs, outputs, steps, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    start : str, optional
        "taylor" or "equal".

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.leapfrog_net(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    if not isinstance(start, str) or start not in STARTS:
        raise UnknownName("start", start, STARTS)
    return hyperbolic(inputs, outputs, width, steps, activation=activation, scheme=STARTS[start], **options)


def mlp(
    inputs: int | None, outputs: int | None, width: int, steps: int, *,
    activation: str | Activation = "tanh", norm: str | None = None, **options: Any,
) -> Net:  # fmt: skip
    """y_(k+1) = s(K y_k + b): plain layers without a skip connection, for comparison.

    Parameters
    ----------
    inputs, outputs, steps, **options
        As in `compose_net`.
    width : int
        Features of the state.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.mlp(2, 3, width=4, steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    return compose_net(fields.residual(dense(width), activation, norm), None, steps, inputs, outputs, **options)


def neural_ode(
    inputs: int | None, outputs: int | None, hidden: Sequence[int], steps: int, *, width: int | None = None,
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = "rk4", has_time: bool = False,
    opening: str = "augment", degree: int | None = 0, controls: int | None = None, **options: Any,
) -> Net:  # fmt: skip
    """y' = MLP(y), or MLP(t, y), with weights that do not depend on depth; Chen et al. (2018).

    Parameters
    ----------
    inputs, outputs, steps, scheme, degree, controls, opening, **options
        As in `compose_net`.
    hidden : sequence of int
        Widths of the hidden layers of the MLP.
    width : int, optional
        Features of the state; by default those of the inputs.
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.
    has_time : bool, optional
        Whether t is an input of the MLP.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import nets
    >>> nets.neural_ode(2, 3, hidden=[16], steps=5)([[1.0, 2.0]]).shape
    (1, 3)
    """
    width = inputs if width is None else width
    if width is None:
        raise ValueError("`width` must be given where `inputs` is None")
    width, degree = count("width", width), degree if degree is None else whole(0, 3)("degree", degree)
    inputs = inputs if inputs is None else count("inputs", inputs)
    chain = fields.mlp((width, *_count_channels("hidden", hidden), width), activation, has_time, norm)
    is_bare = inputs == width and isinstance(opening, str) and opening == "augment"
    return compose_net(
        fields.chained(chain), scheme, steps, None if is_bare else inputs, outputs, opening=opening, degree=degree,
        controls=1 if controls is None and degree == 0 else controls, **options,
    )  # fmt: skip
