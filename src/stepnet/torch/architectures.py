"""Architectures of the literature as modules: fields by name, with the schemes that go with them."""

from __future__ import annotations

from stepnet import fields
from stepnet.fields import Connectivity
from stepnet.fields.connectivity import count
from stepnet.torch.blocks import LayerBlock


def ResidualBlock(K: Connectivity | int, activation="tanh", scheme="euler", **how) -> LayerBlock:
    """y' = s(K y + b); by Euler's scheme a ResNet.

    Parameters
    ----------
    K : connectivity of `stepnet.fields`, or int
        A number of features means a dense K; where the state has two halves, those of both.
    activation : str
    scheme : str or scheme
    how
        Steps, length, depth, memory and the other arguments of `LayerBlock`.
    """
    return LayerBlock(fields.residual(_square(K), activation), scheme, **how)


def AntisymmetricBlock(K: Connectivity | int, activation="tanh", scheme="rk4", damping=0.0, **how) -> LayerBlock:
    """y' = s((K - K' - damping I) y + b)."""
    return LayerBlock(fields.antisymmetric(_square(K), activation, damping), scheme, **how)


def ParabolicBlock(K: Connectivity | int, activation="tanh", scheme="euler", **how) -> LayerBlock:
    """y' = -K' s(K y + b)."""
    return LayerBlock(fields.parabolic(_square(K), activation), scheme, **how)


def HamiltonianBlock(K: Connectivity | int, activation="tanh", scheme="verlet", **how) -> LayerBlock:
    """q' = K' s(K p + b), p' = -K' s(K q + b) on states (q, p); Verlet's scheme can be undone."""
    return LayerBlock(fields.hamiltonian(_half(K), activation), scheme, **how)


def HyperbolicBlock(K: Connectivity | int, activation="tanh", scheme="verlet", **how) -> LayerBlock:
    """q'' = -K' s(K q + b) on states (q, v)."""
    return LayerBlock(fields.hyperbolic(_half(K), activation), scheme, **how)


def _square(K: Connectivity | int) -> Connectivity:
    return fields.dense(K) if isinstance(K, int) else K


def _half(K: Connectivity | int) -> Connectivity:
    """Of one of two halves."""
    if isinstance(K, int) and count("K", K) % 2:
        raise ValueError(f"`K` must be an even number of features for a state in two halves, found {K}; add a feature")
    return fields.dense(K // 2) if isinstance(K, int) else K
