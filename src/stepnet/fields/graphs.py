"""Message passing on graphs and sets: operators between nodes, from an adjacency matrix or the mean of all nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from stepnet.errors import UnknownName
from stepnet.fields.connectivity import Mixing, count


def graph(
    adjacency: Any, channels_in: int, channels_out: int | None = None, filter: str = "adjacency", degree: int = 2
) -> Mixing:
    """Message passing along the edges of an undirected graph.

    Parameters
    ----------
    adjacency : sparse matrix or array
        Symmetric and nonnegative; each node has an edge.
    filter : "adjacency", "laplacian" or "chebyshev"
        D^(-1/2) (A + I) D^(-1/2) of Kipf & Welling (2017); I - D^(-1/2) A D^(-1/2); or the Chebyshev polynomials of
        the Laplacian minus I up to `degree`, Defferrard, Bresson & Vandergheynst (2016).
    channels_in, channels_out : int
        Channels before and after; by default as many after as before.
    degree : int, optional
        Degree of the Chebyshev polynomials.

    Returns
    -------
    Mixing

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import fields
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> len(fields.graph(ring, 3, filter="chebyshev", degree=2).operators)
    3
    """
    if not isinstance(filter, str):
        raise UnknownName("graph filter", filter, ("adjacency", "laplacian", "chebyshev"))
    A = _validate_adjacency(adjacency)
    identity = sparse.eye_array(A.shape[0], format="csr")
    if filter == "adjacency":
        operators = [_normalise(A + identity)]
    elif filter == "laplacian":
        operators = [identity - _normalise(A)]
    elif filter == "chebyshev":
        L = -_normalise(A)
        operators = [identity, L]
        for _ in range(count("degree", degree) - 1):
            operators.append(2 * (L @ operators[-1]) - operators[-2])
    else:
        raise UnknownName("graph filter", filter, ("adjacency", "laplacian", "chebyshev"))
    return Mixing(
        f"graph {filter}", channels_in, channels_in if channels_out is None else channels_out, tuple(operators)
    )


def nodewise(nodes: int, channels_in: int, channels_out: int | None = None) -> Mixing:
    """The same matrix at each node, without coupling between nodes.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    channels_in, channels_out : int
        Channels before and after; by default as many after as before.

    Returns
    -------
    Mixing

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.nodewise(5, 2, 3).operators)
    1
    """
    operators = (sparse.eye_array(count("nodes", nodes), format="csr"),)
    return Mixing("nodewise", channels_in, channels_in if channels_out is None else channels_out, operators)


def equivariant(nodes: int, channels_in: int, channels_out: int | None = None) -> Mixing:
    """A permutation-equivariant layer: each node and the mean of all; Zaheer et al. (2017), Deep Sets.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    channels_in, channels_out : int
        Channels before and after; by default as many after as before.

    Returns
    -------
    Mixing

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.equivariant(5, 2).operators)
    2
    """
    n = count("nodes", nodes)
    operators = (sparse.eye_array(n, format="csr"), np.full((n, n), 1 / n))
    return Mixing("set", channels_in, channels_in if channels_out is None else channels_out, operators)


def _validate_adjacency(value: Any) -> sparse.csr_array:
    try:
        A = sparse.csr_array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise TypeError(f"`adjacency` must be a matrix of numbers, found {value!r:.60}") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ValueError(f"`adjacency` must be square with a row for every node, found the shape {A.shape}")
    if (A.data < 0).any() or not np.isfinite(A.data).all() or abs(A - A.T).max() > 0:
        raise ValueError("`adjacency` must be symmetric, finite and not negative: weights of undirected edges")
    alone = np.flatnonzero(A.sum(axis=1) == 0)
    if alone.size:
        raise ValueError(
            f"`adjacency` has isolated nodes ({alone[:5].tolist()}...); leave them out or give them an edge, "
            f"which may be one to themselves"
        )
    return A


def _normalise(A: Any) -> sparse.csr_array:
    scale = sparse.diags_array(1 / np.sqrt(A.sum(axis=1)))
    return sparse.csr_array(scale @ A @ scale)
