"""Dynamics: which equation the formulas make, and what its state is.

With `norm`, K y + b is normalised before s sees it: "layer" or "rms" across the channels.

A state of first order is y.  The others have two halves, (q, p) or (q, v), one behind the other: `(2 m, batch)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepnet.fields.connectivity import Connectivity, require_all
from stepnet.fields.formula import Chain, affine, join_parameters, symmetric
from stepnet.records import validate_number
from stepnet.validation import check, whole

KINDS = ("first", "partitioned", "second")


@dataclass(frozen=True, eq=False)
class Field:
    """y' = f(t, y), or q' = f(t, p), p' = g(t, q), or q'' = a(t, q).

    Parameters
    ----------
    name : str
        For people.
    parts : tuple of Chain
        (f,), (f, g) or (a,).
    kind : "first", "partitioned" or "second"
    """

    name: str
    parts: tuple[Chain, ...]
    kind: str = "first"

    def __post_init__(self):
        object.__setattr__(self, "parts", require_all("parts", self.parts, Chain))
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ValueError(f"`kind` must be one of {KINDS}, found {self.kind!r}")
        wanted = 2 if self.kind == "partitioned" else 1
        if len(self.parts) != wanted:
            raise ValueError(f"`parts` must hold {wanted} of them for the kind {self.kind!r}, found {len(self.parts)}")
        sizes = {size for part in self.parts for size in (part.n_in, part.n_out)}
        if len(sizes) != 1:
            raise ValueError(f"a field gives as many features as it takes, found {sorted(sizes)}")
        _ = self.parameters

    @property
    def row_size(self) -> int:
        """Features of y, or of each half."""
        return self.parts[0].n_in

    @property
    def width(self) -> int:
        """Features of the whole state."""
        return self.row_size * (1 if self.kind == "first" else 2)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of a state, channels first; two halves have twice the channels."""
        channels, *space = self.parts[0].axes_in
        return channels * (1 if self.kind == "first" else 2), *space

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes at one time."""
        return join_parameters(part.parameters for part in self.parts)

    @check(part=whole())
    def chain(self, part: int) -> Chain:
        """The chain of a part of a step's program: 0 is f, 1 is g or a."""
        return self.parts[min(part, len(self.parts) - 1)]


def residual(K: Connectivity, activation="tanh", norm: str | None = None) -> Field:
    """y' = s(K y + b)."""
    return Field("residual", (affine(K, activation, norm=norm),))


def antisymmetric(K: Connectivity, activation="tanh", damping: float = 0.0, norm: str | None = None) -> Field:
    """y' = s((K - K' - damping I) y + b); Haber & Ruthotto (2017), Inverse Problems 34:014004."""
    return Field(
        "antisymmetric",
        (affine(K, activation, norm=norm, is_antisymmetric=True, shift=-validate_number("damping", damping)),),
    )


def parabolic(K: Connectivity, activation="tanh", norm: str | None = None) -> Field:
    """y' = -K' s(K y + b); Ruthotto & Haber (2020), J. Math. Imaging Vision 62:352."""
    return Field("parabolic", (symmetric(K, activation, norm=norm),))


def hamiltonian(K: Connectivity, activation="tanh", norm: str | None = None) -> Field:
    """q' = K' s(K p + b), p' = -K' s(K q + b); Chang et al. (2018), Reversible architectures, AAAI."""
    return Field(
        "hamiltonian", (symmetric(K, activation, 1.0, norm), symmetric(K, activation, norm=norm)), "partitioned"
    )


def hyperbolic(K: Connectivity, activation="tanh", norm: str | None = None) -> Field:
    """q'' = -K' s(K q + b); Ruthotto & Haber (2020)."""
    return Field("hyperbolic", (symmetric(K, activation, norm=norm),), "second")


def staggered(K: Connectivity, activation="tanh", norm: str | None = None) -> Field:
    """q' = s(K p + b), p' = -s(K' q + b): the first Verlet nets, which keep volume but are not symplectic.

    Haber & Ruthotto (2017), Inverse Problems 34:014004.
    """
    return Field(
        "staggered",
        (affine(K, activation, norm=norm), affine(K, activation, -1.0, norm, is_transposed=True)),
        "partitioned",
    )


def chained(chain: Chain) -> Field:
    """y' = any chain, such as the MLP of a neural ODE."""
    return Field("chain", (chain,))


DYNAMICS = {
    each.__name__: each for each in (residual, antisymmetric, parabolic, hamiltonian, hyperbolic, staggered)
}  # fmt: skip
