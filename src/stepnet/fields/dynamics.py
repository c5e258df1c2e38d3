"""Dynamics: the form of the equation of a field, and its state.

With `norm`, "layer" or "rms", K y + b is normalised across the channels before s is applied.

First-order equations have the state y, the others a partitioned state (q, p) or (q, v), concatenated: `(2 m, batch)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stepnet.fields.connectivity import Connectivity, require_all
from stepnet.fields.diffusion import Diffusion
from stepnet.fields.formula import Chain, affine, join_parameters, symmetric
from stepnet.records import validate_number
from stepnet.validation import check, whole

KINDS = ("first", "partitioned", "second")
DIFFUSION_PART = 2  # the part of a step program that is the diffusion


@dataclass(frozen=True, eq=False)
class Field:
    """y' = f(t, y), or q' = f(t, p), p' = g(t, q), or q'' = a(t, q); with noise if it has a diffusion.

    Parameters
    ----------
    name : str
        For display.
    parts : tuple of Chain
        (f,), (f, g) or (a,).
    kind : "first", "partitioned" or "second"
    diffusion : Diffusion, optional
        Noise in y, in p or in q'.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.hamiltonian(fields.dense(4)).kind
    'partitioned'
    """

    name: str
    parts: tuple[Chain, ...]
    kind: str = "first"
    diffusion: Diffusion | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", require_all("parts", self.parts, Chain))
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ValueError(f"`kind` must be one of {KINDS}, found {self.kind!r}")
        wanted = 2 if self.kind == "partitioned" else 1
        if len(self.parts) != wanted:
            raise ValueError(f"`parts` must hold {wanted} of them for the kind {self.kind!r}, found {len(self.parts)}")
        sizes = {size for part in self.parts for size in (part.n_in, part.n_out)}
        if len(sizes) != 1:
            raise ValueError(f"a field gives as many features as it takes, found {sorted(sizes)}")
        if self.diffusion is not None:
            self._check_diffusion()
        _ = self.parameters

    def _check_diffusion(self) -> None:
        if not isinstance(self.diffusion, Diffusion):
            wanted = "a Diffusion such as `fields.diffusion.constant(0.1)`"
            raise TypeError(f"`diffusion` must be {wanted}, found {self.diffusion!r:.60}")
        chain = self.diffusion.chain
        if chain is not None and chain.n_in != self.row_size:
            raise ValueError(f"`diffusion` must take {self.row_size} features as the field does, found {chain.n_in}")

    @property
    def row_size(self) -> int:
        """The number of features of y, or of each of q and p."""
        return self.parts[0].n_in

    @property
    def width(self) -> int:
        """The number of features of the state."""
        return self.row_size * (1 if self.kind == "first" else 2)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of a state, channels first; a partitioned state has twice the channels."""
        channels, *space = self.parts[0].axes_in
        return channels * (1 if self.kind == "first" else 2), *space

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters at one time."""
        return join_parameters(chain.parameters for chain in self.chains)

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The parts, and the chain of the diffusion if it has one."""
        chain = None if self.diffusion is None else self.diffusion.chain
        return self.parts if chain is None else (*self.parts, chain)

    @check(part=whole())
    def find_chain(self, part: int) -> int:
        """The index in `chains` of a part of a step program: 0 is f, 1 is g or a, 2 the diffusion."""
        return len(self.parts) if part == DIFFUSION_PART else min(part, len(self.parts) - 1)

    @check(part=whole())
    def chain(self, part: int) -> Chain:
        """The chain of a part of a step program."""
        return self.chains[self.find_chain(part)]

    def with_diffusion(self, diffusion: Diffusion | None) -> Field:
        """The same equation with this noise, or without.

        Parameters
        ----------
        diffusion : Diffusion or None
            A record of `fields.diffusion`.

        Returns
        -------
        Field
        """
        return replace(self, diffusion=diffusion)


def residual(K: Connectivity, activation: Any = "tanh", norm: str | None = None) -> Field:
    """y' = s(K y + b).

    Parameters
    ----------
    K : Connectivity
        The connectivity, which must be square.
    activation
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.residual(fields.dense(3), "relu").kind
    'first'
    """
    return Field("residual", (affine(K, activation, norm=norm),))


def antisymmetric(K: Connectivity, activation: Any = "tanh", damping: float = 0.0, norm: str | None = None) -> Field:
    """y' = s((K - K' - damping I) y + b); Haber & Ruthotto (2017), Inverse Problems 34:014004.

    Parameters
    ----------
    K : Connectivity
        The connectivity, which must be square.
    activation
        The activation or its name.
    damping : float, optional
        The multiple of the identity that is subtracted.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.antisymmetric(fields.dense(3), damping=0.1).kind
    'first'
    """
    return Field(
        "antisymmetric",
        (affine(K, activation, norm=norm, is_antisymmetric=True, shift=-validate_number("damping", damping)),),
    )


def parabolic(K: Connectivity, activation: Any = "tanh", norm: str | None = None) -> Field:
    """y' = -K' s(K y + b); Ruthotto & Haber (2020), J. Math. Imaging Vision 62:352.

    Parameters
    ----------
    K : Connectivity
        The connectivity.
    activation
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.parabolic(fields.dense(3, 5)).kind
    'first'
    """
    return Field("parabolic", (symmetric(K, activation, norm=norm),))


def hamiltonian(K: Connectivity, activation: Any = "tanh", norm: str | None = None) -> Field:
    """q' = K' s(K p + b), p' = -K' s(K q + b); Chang et al. (2018), Reversible architectures, AAAI.

    Parameters
    ----------
    K : Connectivity
        The connectivity.
    activation
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.hamiltonian(fields.dense(3)).parts)
    2
    """
    return Field(
        "hamiltonian", (symmetric(K, activation, 1.0, norm), symmetric(K, activation, norm=norm)), "partitioned"
    )


def hyperbolic(K: Connectivity, activation: Any = "tanh", norm: str | None = None) -> Field:
    """q'' = -K' s(K q + b); Ruthotto & Haber (2020).

    Parameters
    ----------
    K : Connectivity
        The connectivity.
    activation
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.hyperbolic(fields.dense(3)).kind
    'second'
    """
    return Field("hyperbolic", (symmetric(K, activation, norm=norm),), "second")


def staggered(K: Connectivity, activation: Any = "tanh", norm: str | None = None) -> Field:
    """q' = s(K p + b), p' = -s(K' q + b): the first Verlet nets, which preserve volume but are not symplectic.

    Haber & Ruthotto (2017), Inverse Problems 34:014004.

    Parameters
    ----------
    K : Connectivity
        The connectivity, which must be square.
    activation
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.staggered(fields.dense(3)).kind
    'partitioned'
    """
    return Field(
        "staggered",
        (affine(K, activation, norm=norm), affine(K, activation, -1.0, norm, is_transposed=True)),
        "partitioned",
    )


def chained(chain: Chain) -> Field:
    """y' = chain(y), such as the MLP of a neural ODE.

    Parameters
    ----------
    chain : Chain
        Its result has the size of its input.

    Returns
    -------
    Field

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.chained(fields.mlp([2, 16, 2])).kind
    'first'
    """
    return Field("chain", (chain,))


DYNAMICS = {
    each.__name__: each for each in (residual, antisymmetric, parabolic, hamiltonian, hyperbolic, staggered)
}  # fmt: skip
