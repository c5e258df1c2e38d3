"""Nets with names from the literature, each a combination of connectivity, dynamics and scheme.

All take inputs and outputs (None omits the opening layer or the readout), the width of the state and the number of
steps; `graph_ode` and `attention_net` take states directly and have no opening layer.  By keyword:

length : float
    The time interval covered by all steps.
activation, scheme, norm : str
    By name; `norm` ("layer" or "rms") normalises K y + b across the channels before the activation.  The scheme of
    `mlp`, `midpoint_net` and `leapfrog_net` is implied by their name.  By default steps are the layers of the
    literature: Euler's, and for a partitioned state symplectic Euler's, drift first (hamiltonian) or kick first
    (hyperbolic, staggered).
degree, controls : int, optional
    How weights depend on depth.  With `degree=None`, the default, they are held over each step: one set per step, used
    by all of its stages, as in the literature.  A degree makes them splines in depth (0 piecewise constant, 1 linear, 3
    cubic), evaluated at the time of each stage.  `controls` is the number of control values, by default one per step
    (None, 0), or one at each step's beginning and end (1 and more); `neural_ode` has the same weights at all depths.
diffusion : float or fields.Diffusion, optional
    Noise after each step: its standard deviation over unit time, or a record of `fields.diffusion`.
opening : "dense" or "augment"
    A layer (shared by all nodes on graphs, a convolution for images), or zero features appended to the inputs.
seed : int or None
    Seed of the random weights, 0 by default: two nets with the same arguments are equal.  Use different integers, or
    None, for the members of an ensemble.
initialisation, dtype, workers, memory, layout
    As in `Net`; `layout` gives the channel axis of images, tokens and nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from stepnet import fields
from stepnet.errors import UnknownName
from stepnet.fields import (
    Chain,
    Connectivity,
    Depth,
    Diffusion,
    Field,
    HeldWeights,
    Layer,
    Mixing,
    dense,
    nodewise,
    resized,
)
from stepnet.fields.connectivity import count
from stepnet.fields.convolutions import validate_pair
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net
from stepnet.records import explain_arguments, validate_number
from stepnet.schemes.multistep import LEAPFROG_TWO_STEP
from stepnet.schemes.symplectic import SYMPLECTIC_EULER_KICK
from stepnet.validation import whole

if TYPE_CHECKING:
    from stepnet.fields import Activation

HALVED = {
    "hamiltonian": "symplectic_euler_drift",
    "staggered": "symplectic_euler_kick",
    "hyperbolic": "symplectic_euler_kick",
}
"""Dynamics with a partitioned state, and the schemes whose steps are the layers of the original papers."""

LEAPFROG_FROM_REST = replace(
    LEAPFROG_TWO_STEP, name="leapfrog_two_step_from_rest", order=1, starter=SYMPLECTIC_EULER_KICK,
    reference="Ruthotto & Haber (2020), J. Math. Imaging Vision 62:352",
)  # fmt: skip
"""y_{-1} = y_0 where the velocity is 0, in place of Taylor's y_{-1} = y_0 - h v_0 + h^2 a_0 / 2: of first order."""

STARTS = {"taylor": LEAPFROG_TWO_STEP, "equal": LEAPFROG_FROM_REST}


@explain_arguments(also=signature(Net).parameters)
def compose_net(
    field: Field, scheme: Any, steps: int, inputs: int | None = None, outputs: int | None = None, *,
    length: float = 1.0, degree: int | None = None, controls: int | None = None, opening: str = "dense",
    opening_width: int | None = None, read: int | None = None, diffusion: Diffusion | float | None = None,
    **options: Any,
) -> Net:  # fmt: skip
    """Build a net of one block.

    The opening layer maps to `opening_width` features, padded with zeros; the readout uses the first `read` features.

    Parameters
    ----------
    field : Field
        The field of the block.
    scheme
        The scheme or its name; None gives plain layers without a skip connection.
    steps : int
        Number of steps, which are the layers.
    inputs : int, optional
        Features of a sample; None for no opening layer, so that inputs are states.
    outputs : int, optional
        Number of outputs; None for no readout.
    length : float, optional
        The time interval covered by all steps.
    degree, controls : int, optional
        `Depth(controls, degree)` gives the weights as functions of depth; by default they are held over each step.
    opening : str, optional
        "dense" for a layer from the inputs to the state, "augment" to append zeros to the inputs.
    opening_width : int, optional
        Number of features after the opening layer; by default the width of the state.
    read : int, optional
        How many features of the state the readout uses; by default all.
    diffusion : float or Diffusion, optional
        Noise after each step: its standard deviation over unit time, or a record of `fields.diffusion`.
    **options
        Arguments of `Net`.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import fields, nets
    >>> nets.compose_net(fields.residual(fields.dense(4)), "rk4", 5, inputs=2, outputs=1)([[1.0, 2.0]]).shape
    (1, 1)
    """
    field = field if diffusion is None else field.with_diffusion(build_diffusion(diffusion))
    block = Block(field, scheme, steps, length, _build_depth(steps, degree, controls))
    width = field.width if opening_width is None else opening_width
    design = Design(
        (block,), _build_opening(inputs, width, field.width, opening, field.parts[0].activation),
        _build_readout(field.width, field.width if read is None else count("read", read), outputs),
    )  # fmt: skip
    return Net(design, **options)


def build_diffusion(diffusion: Diffusion | float) -> Diffusion:
    """The record of a diffusion; a number is its constant standard deviation over unit time."""
    if isinstance(diffusion, Diffusion):
        return diffusion
    return fields.diffusion.constant(validate_number("diffusion", diffusion, "[0, inf)"))


def _build_depth(steps: int, degree: int | None, controls: int | None) -> Depth | HeldWeights:
    """Weights with this number of controls, or the default for the steps."""
    if degree is None:
        return HeldWeights(count("steps", steps) if controls is None else controls)
    if controls is None:
        controls = count("steps", steps) + Depth(4, degree).degree
    return Depth(controls, degree)


def _build_opening(inputs: int | None, width: int, state: int, kind: str, activation: str | Activation) -> Chain | None:
    if inputs is None:
        return None if width == state else Chain((Layer(resized(width, state), None, None),))
    first = _build_first(dense(count("inputs", inputs), width), kind, activation, state)
    if width == state or kind == "augment":
        return first
    return Chain((*first.layers, Layer(resized(width, state), None, None)))


def _build_first(K: Mixing, kind: str, activation: Any, state: int, name: str = "width") -> Chain:
    """A layer from the inputs to the state, or zero channels appended to the inputs."""
    if not isinstance(kind, str) or kind not in ("dense", "augment"):
        raise UnknownName("opening", kind, ("dense", "augment"))
    if kind == "dense":
        return Chain((Layer(K, activation=activation),))
    if K.n_in > state:
        n_in, n_out = K.channels_in, K.channels_out
        raise ValueError(f"`{name}` must be at least the {n_in} inputs to add zeros to them, found {n_out}")
    return Chain((Layer(resized(K.n_in, state, K.axes_in), None, None),))


def _build_readout(state: int, read: int, outputs: int | None) -> Chain | None:
    layers = [] if read == state else [Layer(resized(state, read), None, None)]
    if outputs is not None:
        layers.append(Layer(dense(read, count("outputs", outputs)), "W", "b"))
    return Chain(tuple(layers)) if layers else None


def _half(width: int, name: str = "width") -> int:
    if count(name, width) % 2:
        raise ValueError(f"`{name}` must be even, as the state is partitioned (q, p); found {width}")
    return width // 2


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
        fields.hamiltonian(dense(_half(width)), activation, norm), scheme, steps, inputs, outputs, **options
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
        _build_field(dynamics, K, activation, norm), _find_scheme(scheme, dynamics), steps, None, outputs, **options
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
    half = _half(channels, "channels") if _is_halved(dynamics) else channels
    K = fields.graph(adjacency, half, filter=filter, degree=polynomial)
    field, n = _build_field(dynamics, K, activation, norm), K.nodes_in
    block = Block(field, _find_scheme(scheme, dynamics), steps, length, _build_depth(steps, degree, controls))
    first = readout = None
    if inputs is not None:
        first = _build_first(
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
        _build_field(dynamics, K, activation, norm), _find_scheme(scheme, dynamics), steps, None, outputs, **options
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
        first = _build_first(K, opening, activation, K.n_out, "channels")
    for number, width in enumerate(channels):
        K = fields.conv2d(shape, _half(width, "channels") if _is_halved(dynamics) else width, padding=padding)
        blocks.append(
            Block(_build_field(dynamics, K, activation, norm), _find_scheme(scheme, dynamics), steps, length, depth)
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


def _is_halved(dynamics: object) -> bool:
    return isinstance(dynamics, str) and dynamics in HALVED


def _count_channels(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(count(name, each) for each in value)
    except TypeError:
        raise ValueError(f"`{name}` must be whole numbers, as in (8, 8), found {value!r:.60}") from None


def _find_scheme(scheme: Any, dynamics: str) -> Any:
    """The given scheme, or by default that of the layer in the literature."""
    if scheme is None:
        return HALVED.get(dynamics, "euler") if isinstance(dynamics, str) else "euler"
    return scheme


def _build_field(dynamics: str, K: Connectivity, activation: str | Activation, norm: str | None) -> Field:
    if not isinstance(dynamics, str) or dynamics not in fields.DYNAMICS:
        raise UnknownName("dynamics", dynamics, fields.DYNAMICS)
    return fields.DYNAMICS[dynamics](K, activation, norm=norm)


PRESETS = {
    each.__name__: each
    for each in (resnet, antisymmetric, parabolic, hamiltonian, hyperbolic, midpoint_net, leapfrog_net, mlp, neural_ode,
                 graph_ode, node_net, attention_net, parabolic_cnn)
}  # fmt: skip
