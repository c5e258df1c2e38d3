"""Nets of nodes, tokens and images: graphs, attention, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepnet import fields
from stepnet.fields import (
    Chain,
    Layer,
    dense,
    nodewise,
)
from stepnet.fields.connectivity import count
from stepnet.fields.convolutions import validate_pair
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net

if TYPE_CHECKING:
    from stepnet.fields import Activation
from stepnet.nets.presets.composition import (
    _build_depth,
    build_field,
    build_first,
    compose_net,
    find_scheme,
    halve,
    is_halved,
)


def graph_ode(
    adjacency: Any, channels: int, steps: int, *, outputs: int | None = None, filter: str = "adjacency",
    polynomial: int = 2, dynamics: str = "residual", activation: str | Activation = "tanh",
    norm: str | None = None, scheme: Any = None, **options: Any,
) -> Net:  # fmt: skip
    """Message passing on a graph with any dynamics; Poli et al. (2019), Chamberlain et al. (2021).

    With a partitioned state, q and p each have this number of channels.

    Parameters
    ----------
    adjacency
        Symmetric and nonnegative; each node has an edge.
    channels : int
        Channels of each node.
    steps, scheme, **options
        As in `compose_net`.
    outputs : int, optional
        Number of outputs; None for no readout.
    filter, polynomial : str, optional
        `filter` and `degree` of `fields.graph`.
    dynamics : str, optional
        "residual", "antisymmetric", "parabolic", "hamiltonian", "staggered" or "hyperbolic".
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> nets.graph_ode(ring, channels=2, steps=3)(np.ones((1, 2, 5))).shape
    (1, 10)
    """
    K = fields.graph(adjacency, channels, filter=filter, degree=polynomial)
    return compose_net(
        build_field(dynamics, K, activation, norm), find_scheme(scheme, dynamics), steps, None, outputs, **options
    )  # fmt: skip


def node_net(
    adjacency: Any, inputs: int | None, outputs: int | None, channels: int, steps: int, *,
    filter: str = "adjacency", polynomial: int = 2, dynamics: str = "residual",
    activation: str | Activation = "tanh", norm: str | None = None, scheme: Any = None, length: float = 1.0,
    degree: int | None = None, controls: int | None = None, opening: str = "dense", **options: Any,
) -> Net:  # fmt: skip
    """Outputs at each node of a graph: message passing between an opening layer and a readout shared by all nodes.

    Features are ordered channel by channel; `NodeModel` treats the nodes as samples.  With a partitioned state, q and p
    each have half of the channels.  Kipf & Welling (2017), with any dynamics.

    Parameters
    ----------
    adjacency
        Symmetric and nonnegative; each node has an edge.
    inputs : int, optional
        Features of each node; None for no opening layer.
    outputs : int, optional
        Outputs of each node; None for no readout.
    channels : int
        Channels of each node in the block.
    steps, scheme, length, degree, controls, opening, **options
        As in `compose_net`.
    filter, polynomial : str, optional
        `filter` and `degree` of `fields.graph`.
    dynamics : str, optional
        "residual", "antisymmetric", "parabolic", "hamiltonian", "staggered" or "hyperbolic".
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets
    >>> ring = np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    >>> nets.node_net(ring, 2, 3, channels=4, steps=3)(np.ones((1, 2, 5))).shape
    (1, 15)
    """
    half = halve(channels, "channels") if is_halved(dynamics) else channels
    K = fields.graph(adjacency, half, filter=filter, degree=polynomial)
    field, n = build_field(dynamics, K, activation, norm), K.nodes_in
    block = Block(field, find_scheme(scheme, dynamics), steps, length, _build_depth(steps, degree, controls))
    first = readout = None
    if inputs is not None:
        first = build_first(
            nodewise(n, count("inputs", inputs), channels), opening, activation, field.width, "channels"
        )
    if outputs is not None:
        readout = Chain((Layer(nodewise(n, channels, count("outputs", outputs)), "W", "b"),))
    return Net(Design((block,), first, readout), **options)


def attention_net(
    tokens: int, channels: int, steps: int, *, heads: int = 1, is_causal: bool = False, outputs: int | None = None,
    dynamics: str = "residual", activation: str | Activation = "identity", norm: str | None = None, scheme: Any = None,
    **options: Any,
) -> Net:  # fmt: skip
    """An attention block as a step; Vaswani et al. (2017), Lu et al. (2019).

    With a partitioned state, q and p each have this number of channels.

    Parameters
    ----------
    tokens : int
        Number of tokens.
    channels : int
        Channels of each token.
    steps, scheme, **options
        As in `compose_net`.
    heads : int, optional
        Number of heads.
    is_causal : bool, optional
        Whether a token attends only to itself and those before it.
    outputs : int, optional
        Number of outputs; None for no readout.
    dynamics : str, optional
        "residual", "antisymmetric", "parabolic", "hamiltonian", "staggered" or "hyperbolic".
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Net

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets
    >>> nets.attention_net(5, 4, steps=2, heads=2)(np.ones((1, 4, 5))).shape
    (1, 20)
    """
    K = fields.Attention(tokens, channels, heads, is_causal)
    return compose_net(
        build_field(dynamics, K, activation, norm), find_scheme(scheme, dynamics), steps, None, outputs, **options
    )  # fmt: skip


def parabolic_cnn(
    shape: tuple[int, int], channels: Sequence[int], steps: int, *, inputs: int | None = 1,
    outputs: int | None = None, dynamics: str = "parabolic", activation: str | Activation = "relu",
    norm: str | None = None, scheme: Any = None, length: float = 1.0, padding: str = "zero",
    degree: int | None = None, controls: int | None = None, opening: str = "dense", **options: Any,
) -> Net:  # fmt: skip
    """Blocks of convolutions, joined by pooling and a change of channels; Ruthotto & Haber (2020).

    `shape` is (height, width) of the images, `inputs` their channels, `channels` those of the blocks.  `dynamics` may
    be any; Hamiltonian dynamics use half of the channels for q and half for p.

    Parameters
    ----------
    shape : tuple
        (height, width) of the images.
    channels : sequence of int
        Channels of each block.
    steps : int
        Steps of each block.
    inputs : int, optional
        Channels of the images; None for no opening layer.
    outputs, scheme, length, degree, controls, opening, **options
        As in `compose_net`.
    dynamics : str, optional
        "residual", "antisymmetric", "parabolic", "hamiltonian", "staggered" or "hyperbolic".
    activation : str or Activation, optional
        The activation or its name.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.
    padding : str, optional
        "zero" or "periodic".

    Returns
    -------
    Net

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets
    >>> nets.parabolic_cnn((8, 8), [4, 8], steps=2, outputs=3)(np.ones((1, 1, 8, 8))).shape
    (1, 3)
    """
    channels, shape, depth = (
        _count_channels("channels", channels),
        validate_pair("shape", shape),
        _build_depth(steps, degree, controls),
    )
    if not channels:
        raise ValueError("`channels` must hold a number for at least one block")
    first, blocks, joins = None, [], []
    if inputs is not None:
        K = fields.conv2d(shape, count("inputs", inputs), channels[0], padding=padding)
        first = build_first(K, opening, activation, K.n_out, "channels")
    for number, width in enumerate(channels):
        K = fields.conv2d(shape, halve(width, "channels") if is_halved(dynamics) else width, padding=padding)
        blocks.append(
            Block(build_field(dynamics, K, activation, norm), find_scheme(scheme, dynamics), steps, length, depth)
        )
        if number < len(channels) - 1:
            pool = fields.pooling(shape, width)
            shape = shape[0] // 2, shape[1] // 2
            change = fields.conv2d(shape, width, channels[number + 1], taps=(1, 1))
            joins.append(Chain((Layer(pool, None, None), Layer(change, activation=activation))))  # type: ignore[arg-type]
    readout = None
    if outputs is not None:
        mean = Layer(fields.pooling((shape[0] * shape[1],), channels[-1], shape[0] * shape[1]), None, None)
        readout = Chain((mean, Layer(dense(channels[-1], count("outputs", outputs)), "W", "b")))
    return Net(Design(tuple(blocks), first, readout, tuple(joins)), **options)


def _count_channels(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(count(name, each) for each in value)
    except TypeError:
        raise ValueError(f"`{name}` must be whole numbers, as in (8, 8), found {value!r:.60}") from None
