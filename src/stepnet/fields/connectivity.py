"""Connectivity: the operator K of a layer as data.

A feature is a channel at a node: a state is `(channels * nodes, batch)` with the nodes of a channel next to each other.
Every linear K here is a sum of fixed operators on the nodes, each with a matrix of weights on the channels,

    (K x)[o, i] = sum_k sum_c W[k, o, c] sum_j P_k[i, j] x[c, j],

so a dense layer has one node, a convolution a shift for each tap of its stencil, a graph its adjacency matrix or the
polynomials of its Laplacian, a set the identity and the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from stepnet.records import validate_count, validate_flag
from stepnet.validation import sequence, whole

MOST_FEATURES = 2**30  # also of nodes, taps and layers, which are lengths of arrays
SAME = 1e-14  # relative difference of operators that are equal up to rounding


@dataclass(frozen=True)
class Stencil:
    """The grid of a convolution, its number of taps in each direction, and its padding.

    Parameters
    ----------
    shape : tuple of int
        Points of the grid in each direction.
    taps : tuple of int
        Number of taps in each direction.
    is_periodic : bool
        Whether the grid is a ring or a torus; otherwise it is padded with zeros.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.conv1d(10, 2).stencil
    Stencil(shape=(10,), taps=(3,), is_periodic=False)
    """

    shape: tuple[int, ...]
    taps: tuple[int, ...]
    is_periodic: bool

    @property
    def fits(self) -> bool:
        """Whether no tap wraps around a periodic grid more than once."""
        return not self.is_periodic or all(a // 2 <= n for a, n in zip(self.taps, self.shape, strict=True))


@dataclass(frozen=True, eq=False)
class Mixing:
    """K = sum_k P_k (x) W_k with weights `(taps, channels_out, channels_in)`; a dense K has weights `(out, in)`.

    Parameters
    ----------
    name : str
        For display.
    channels_in, channels_out : int
    operators : tuple of sparse matrices
        P_k of shape `(nodes_out, nodes_in)`.
    stencil : Stencil, optional
        For a convolution, whose operators are its shifts.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.conv1d(10, channels_in=2, channels_out=4).channels_out
    4
    """

    name: str
    channels_in: int
    channels_out: int
    operators: tuple[Any, ...]
    stencil: Stencil | None = None

    def __post_init__(self) -> None:
        for each in ("channels_in", "channels_out"):
            object.__setattr__(self, each, count(each, getattr(self, each)))
        operators = sequence(lambda _, each: _validate_operator(each))("operators", self.operators)
        if not operators or len({each.shape for each in operators}) != 1:
            raise ValueError(f"`operators` must be matrices of one shape, found {[each.shape for each in operators]}")
        object.__setattr__(self, "operators", operators)
        if self.stencil is not None:
            self._check_stencil()

    def _check_stencil(self) -> None:
        """Engines use the stencil instead of the operators, so their sizes must match."""
        stencil, found = self.stencil, [*self.operators[0].shape, len(self.operators)]
        if not isinstance(stencil, Stencil) or len(stencil.shape) != len(stencil.taps):
            raise TypeError(f"`stencil` must be a Stencil with as many taps as directions, found {stencil!r:.60}")
        nodes, taps = (prod(count("stencil", n) for n in each) for each in (stencil.shape, stencil.taps))
        if found != [nodes, nodes, taps]:
            raise ValueError(
                f"`stencil` of {taps} taps on {nodes} nodes must go with as many operators of this shape, found "
                f"{found[2]} of the shape {tuple(found[:2])}"
            )

    @property
    def nodes_in(self) -> int:
        return self.operators[0].shape[1]

    @property
    def nodes_out(self) -> int:
        return self.operators[0].shape[0]

    @property
    def n_in(self) -> int:
        return self.channels_in * self.nodes_in

    @property
    def n_out(self) -> int:
        return self.channels_out * self.nodes_out

    @property
    def axes_in(self) -> tuple[int, ...]:
        """The shape of a sample, channels first: (features,), (channels, nodes) or (channels, height, width)."""
        return _list_axes(self.channels_in, self.nodes_in, self.stencil)

    @property
    def axes_out(self) -> tuple[int, ...]:
        """The shape of an output, channels first."""
        return _list_axes(self.channels_out, self.nodes_out, self.stencil)

    @cached_property
    def is_dense(self) -> bool:
        return self.nodes_in == self.nodes_out == len(self.operators) == 1 and self.operators[0][0, 0] == 1

    @property
    def weight_shape(self) -> tuple[int, ...]:
        matrix = (self.channels_out, self.channels_in)
        return matrix if self.is_dense else (len(self.operators), *matrix)

    @property
    def fan(self) -> tuple[float, float]:
        """Fan-in and fan-out, by which initialisations are scaled."""
        entries = sum(each.nnz for each in self.operators)
        return self.channels_in * entries / self.nodes_out, self.channels_out * entries / self.nodes_in

    @property
    def bias_nodes(self) -> int:
        """Entries of a bias: one per channel, the same at all nodes."""
        return self.nodes_out

    @cached_property
    def mirror(self) -> tuple[int, ...] | None:
        """For each tap the one with the transposed operator; None if a tap has no such partner."""
        found: dict[int, int] = {}
        for k, operator in enumerate(self.operators):
            if k not in found:
                free = (j for j in range(k, len(self.operators)) if j not in found)
                partner = next((j for j in free if _is_same(self.operators[j], operator.T)), None)
                if partner is None:
                    return None
                found |= {k: partner, partner: k}
        return tuple(found[k] for k in range(len(self.operators)))


@dataclass(frozen=True, eq=False)
class Fixed:
    """(K x)[c, i] = sum_j P[i, j] x[c, j]: no weights; pooling, padding with zero channels, selection of features.

    `axes_in` and `axes_out` are the shapes of samples, channels first, where they are more than (channels, nodes).

    Parameters
    ----------
    name : str
        For display.
    channels : int
        Number of channels, which are not mixed.
    operator
        P, a sparse matrix (nodes_out, nodes_in).
    axes_in, axes_out : tuple of int, optional
        Shapes of samples before and after, channels first.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.pooling((4, 4), channels=3).operator.shape
    (4, 16)
    """

    name: str
    channels: int
    operator: Any
    axes_in: tuple[int, ...] = ()
    axes_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", count("channels", self.channels))
        object.__setattr__(self, "operator", _validate_operator(self.operator))
        for name, nodes in zip(("axes_out", "axes_in"), self.operator.shape, strict=True):
            flat = (nodes,) if self.channels == 1 else _list_axes(self.channels, nodes)
            axes = sequence(whole(1))(name, getattr(self, name)) or flat
            if prod(axes) != self.channels * nodes:
                raise ValueError(f"`{name}` must hold {self.channels * nodes} features, found {axes}")
            object.__setattr__(self, name, axes)

    weight_shape = None

    @property
    def n_in(self) -> int:
        return self.channels * self.operator.shape[1]

    @property
    def n_out(self) -> int:
        return self.channels * self.operator.shape[0]

    @property
    def bias_nodes(self) -> int:
        return self.operator.shape[0]


@dataclass(frozen=True)
class Attention:
    """K(x) v = W_o P(x) W_v v,  P = softmax over j of (W_q x)_i . (W_k x)_j / sqrt(channels / heads), head by head.

    Nodes are tokens; with `is_causal`, token i attends to the tokens j <= i.  Weights `(4, channels, channels)` hold
    W_q, W_k, W_v, W_o.  K depends on the state, so it has a pullback through P besides that of a linear K.  Vaswani et
    al. (2017), Attention is all you need.

    Parameters
    ----------
    tokens : int
        Number of tokens.
    channels : int
        Channels of each token, a multiple of `heads`.
    heads : int, optional
        Number of heads.
    is_causal : bool, optional
        Whether a token attends only to itself and those before it.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.Attention(tokens=8, channels=4, heads=2).n_in
    32
    """

    tokens: int
    channels: int
    heads: int = 1
    is_causal: bool = False

    def __post_init__(self) -> None:
        for each in ("tokens", "channels", "heads"):
            object.__setattr__(self, each, count(each, getattr(self, each)))
        object.__setattr__(self, "is_causal", validate_flag("is_causal", self.is_causal))
        if self.channels % self.heads:
            raise ValueError(f"`heads` must divide the {self.channels} channels, found {self.heads}")

    name = "attention"

    @property
    def n_in(self) -> int:
        return self.tokens * self.channels

    n_out = n_in

    @property
    def axes_in(self) -> tuple[int, ...]:
        return _list_axes(self.channels, self.tokens)

    axes_out = axes_in

    @property
    def bias_nodes(self) -> int:
        return self.tokens

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return 4, self.channels, self.channels

    @property
    def fan(self) -> tuple[float, float]:
        return self.channels, self.channels


@dataclass(frozen=True)
class Normalisation:
    """K(x) v = C v / sqrt(mean of (C x)^2 over the channels + eps), node by node: no weights, and K' = K.

    C subtracts the mean over the channels if `is_centred` (Ba, Kiros & Hinton 2016, Layer normalization), otherwise it
    is the identity (Ruthotto & Haber 2020, with the sum in place of the mean; Zhang & Sennrich 2019).  `eps` bounds the
    slope: N is 1/sqrt(eps) times the identity near zero.

    Parameters
    ----------
    channels : int
        Channels of each node, over which the mean is taken.
    nodes : int, optional
        Number of nodes.
    is_centred : bool, optional
        Whether the mean is subtracted.
    eps : float, optional
        Added to the mean square.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.Normalisation(channels=4).is_centred
    True
    """

    channels: int
    nodes: int = 1
    is_centred: bool = True
    eps: float = 1e-3

    def __post_init__(self) -> None:
        for each in ("channels", "nodes"):
            object.__setattr__(self, each, count(each, getattr(self, each)))
        is_number = isinstance(self.eps, (int, float, np.integer, np.floating)) and not isinstance(self.eps, bool)
        if not (is_number and 0 < self.eps < np.inf):
            raise ValueError(f"`eps` must be positive, found {self.eps!r:.60}")

    name = "normalisation"
    weight_shape = None

    @property
    def n_in(self) -> int:
        return self.channels * self.nodes

    n_out = n_in

    @property
    def axes_in(self) -> tuple[int, ...]:
        return _list_axes(self.channels, self.nodes)

    axes_out = axes_in

    @property
    def bias_nodes(self) -> int:
        return self.nodes


Connectivity = Mixing | Fixed | Attention | Normalisation


def dense(n_in: int, n_out: int | None = None) -> Mixing:
    """A full matrix.

    Parameters
    ----------
    n_in, n_out : int
        Features before and after; by default as many after as before.

    Returns
    -------
    Mixing

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.dense(3, 2).channels_out
    2
    """
    return Mixing("dense", n_in, n_in if n_out is None else n_out, (np.ones((1, 1)),))


def resized(n_in: int, n_out: int, axes_in: tuple[int, ...] = ()) -> Fixed:
    """Append zero features, or remove features at the end, of samples of a shape, flat by default.

    Parameters
    ----------
    n_in, n_out : int
        Features before and after.
    axes_in : tuple of int, optional
        Shape of samples before.

    Returns
    -------
    Fixed

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.resized(2, 5).operator.shape
    (5, 2)
    """
    return Fixed("resized", 1, sparse.eye_array(count("n_out", n_out), count("n_in", n_in)), axes_in)


def _list_axes(channels: int, nodes: int, stencil: Stencil | None = None) -> tuple[int, ...]:
    """The shape of a sample, channels first; flat if there is one node."""
    if stencil is not None and prod(stencil.shape) == nodes:
        return channels, *stencil.shape
    return (channels,) if nodes == 1 else (channels, nodes)


def count(name: str, value: Any) -> int:
    """Return a positive integer."""
    return validate_count(name, value, 1, MOST_FEATURES, "no memory holds as many")


def require_all(name: str, values: Any, kind: type) -> tuple[Any, ...]:
    """Return a tuple of one or more records of a type."""
    try:
        found = tuple(values)
    except TypeError:
        raise TypeError(f"`{name}` must be a tuple of {kind.__name__}s, found one {type(values).__name__}") from None
    if not found:
        raise ValueError(f"`{name}` must hold at least one {kind.__name__.lower()}")
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"`{name}` must hold {kind.__name__}s only, found {each!r:.60} ({type(each).__name__})")
    return found


def _validate_operator(matrix: Any) -> sparse.csr_array:
    try:
        operator = sparse.csr_array(matrix, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise TypeError(f"`operators` must be matrices of numbers, found {type(matrix).__name__}") from None
    if operator.ndim != 2:
        raise ValueError(f"`operators` must be matrices, found the shape {operator.shape}")
    operator.sum_duplicates()
    if not np.isfinite(operator.data).all():
        raise ValueError("`operators` must be finite")
    return operator


def _is_same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and abs(one - other).max() <= SAME * abs(other).max()
