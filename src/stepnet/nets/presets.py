"""Nets by the names the literature gives them: each is one point of connectivity x dynamics x scheme.

All take inputs and outputs (None leaves out the opening or the read-out), the width of the state, the number of steps,
and by keyword:

length : float
    The time that all steps take together.
activation, scheme, norm : str
    By name; `norm` ("layer" or "rms") normalises K y + b across the channels before the activation.
degree, controls : int
    Weights as splines in depth: 0 piecewise constant, 1 linear, 3 cubic, with so many control values.  By default every
    step has its own (degree 0), or every step's beginning and end (degree 1 and more).
opening : "dense" or "augment"
    A layer of its own, or zero features added to the inputs.
seed, initialisation, dtype, workers, memory
    As in `Net`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepnet import fields
from stepnet.errors import UnknownName
from stepnet.fields import Chain, Connectivity, Depth, Field, Layer, dense, nodewise, resized
from stepnet.fields.connectivity import count
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net

HALVED = ("hamiltonian", "staggered", "hyperbolic")  # dynamics whose state has two halves


def composed(
    field: Field, scheme, steps: int, inputs: int | None = None, outputs: int | None = None, *, length: float = 1.0,
    degree: int = 0, controls: int | None = None, opening: str = "dense", opening_width: int | None = None,
    read: int | None = None, **options,
) -> Net:  # fmt: skip
    """A net of one block.

    `opening_width` features come out of the opening and zeros fill the state; the read-out reads the first `read`.
    """
    if controls is None:
        controls = count("steps", steps) + degree
    block = Block(field, scheme, steps, length, Depth(controls, degree))
    width = field.width if opening_width is None else opening_width
    design = Design(
        (block,), _opening(inputs, width, field.width, opening, field.parts[0].activation),
        _readout(field.width, field.width if read is None else read, outputs),
    )  # fmt: skip
    return Net(design, **options)


def _opening(inputs, width: int, state: int, kind: str, activation) -> Chain | None:
    if kind not in ("dense", "augment"):
        raise UnknownName("opening", kind, ("dense", "augment"))
    if inputs is None:
        return None if width == state else Chain((Layer(resized(width, state), None, None),))
    inputs, layers = count("inputs", inputs), []
    if kind == "augment":
        if inputs > state:
            raise ValueError(f"`width` must be at least the {inputs} inputs to add zeros to them, found {width}")
        return Chain((Layer(resized(inputs, state), None, None),))
    layers.append(Layer(dense(inputs, width), activation=activation))
    if width != state:
        layers.append(Layer(resized(width, state), None, None))
    return Chain(tuple(layers))


def _readout(state: int, read: int, outputs) -> Chain | None:
    layers = [] if read == state else [Layer(resized(state, read), None, None)]
    if outputs is not None:
        layers.append(Layer(dense(read, count("outputs", outputs)), "W", "b"))
    return Chain(tuple(layers)) if layers else None


def _half(width: int, name: str = "width") -> int:
    if count(name, width) % 2:
        raise ValueError(f"`{name}` must be even, as the state has two halves (q, p); found {width}")
    return width // 2


def resnet(inputs, outputs, width, steps, *, activation="tanh", norm=None, scheme="euler", **options) -> Net:
    """y' = s(K y + b); He, Zhang, Ren & Sun (2016), E (2017)."""
    return composed(fields.residual(dense(width), activation, norm), scheme, steps, inputs, outputs, **options)


def antisymmetric(
    inputs, outputs, width, steps, *, damping=0.0, activation="tanh", norm=None, scheme="euler", **options
) -> Net:
    """y' = s((K - K' - damping I) y + b); Haber & Ruthotto (2017)."""
    return composed(
        fields.antisymmetric(dense(width), activation, damping, norm), scheme, steps, inputs, outputs, **options
    )


def parabolic(inputs, outputs, width, steps, *, activation="tanh", norm=None, scheme="euler", **options) -> Net:
    """y' = -K' s(K y + b); Ruthotto & Haber (2020)."""
    return composed(fields.parabolic(dense(width), activation, norm), scheme, steps, inputs, outputs, **options)


def hamiltonian(inputs, outputs, width, steps, *, activation="tanh", norm=None, scheme="verlet", **options) -> Net:
    """q' = K' s(K p + b), p' = -K' s(K q + b), reversible; Chang et al. (2018)."""
    return composed(
        fields.hamiltonian(dense(_half(width)), activation, norm), scheme, steps, inputs, outputs, **options
    )


def hyperbolic(inputs, outputs, width, steps, *, activation="tanh", norm=None, scheme="verlet", **options) -> Net:
    """y'' = -K' s(K y + b) from rest, read out at y; Ruthotto & Haber (2020)."""
    return composed(
        fields.hyperbolic(dense(width), activation, norm), scheme, steps, inputs, outputs, opening_width=width,
        read=width, **options,
    )  # fmt: skip


def midpoint_net(inputs, outputs, width, steps, *, damping=0.0, activation="tanh", **options) -> Net:
    """y_(k+1) = y_(k-1) + 2 h s((K - K') y_k + b), reversible; Chang et al. (2018)."""
    return antisymmetric(
        inputs, outputs, width, steps, damping=damping, activation=activation, scheme="midpoint_two_step", **options
    )


def leapfrog_net(inputs, outputs, width, steps, *, activation="tanh", **options) -> Net:
    """y_(k+1) = 2 y_k - y_(k-1) - h^2 K' s(K y_k + b), reversible; Chang et al. (2018)."""
    return hyperbolic(inputs, outputs, width, steps, activation=activation, scheme="leapfrog_two_step", **options)


def mlp(inputs, outputs, width, steps, *, activation="tanh", norm=None, **options) -> Net:
    """y_(k+1) = s(K y_k + b): plain layers without a skip, the contrast."""
    return composed(fields.residual(dense(width), activation, norm), None, steps, inputs, outputs, **options)


def neural_ode(inputs, outputs, hidden: Sequence[int], steps, *, width=None, activation="tanh", scheme="rk4",
               has_time=False, opening="augment", **options) -> Net:  # fmt: skip
    """y' = MLP(y), or MLP(t, y), with weights that do not depend on depth; Chen et al. (2018)."""
    width = inputs if width is None else width
    chain = fields.mlp((width, *hidden, width), activation, has_time)
    return composed(
        fields.chained(chain), scheme, steps, None if inputs == width else inputs, outputs, controls=1, opening=opening,
        **options,
    )  # fmt: skip


def graph_ode(adjacency, channels, steps, *, outputs=None, filter="adjacency", polynomial=2, dynamics="residual",
              activation="tanh", norm=None, scheme="euler", **options) -> Net:  # fmt: skip
    """Message passing on a graph in any dynamics; Poli et al. (2019), Chamberlain et al. (2021)."""
    K = fields.graph(adjacency, channels, filter=filter, degree=polynomial)
    return composed(_field(dynamics, K, activation, norm), scheme, steps, None, outputs, **options)


def node_net(adjacency, inputs, outputs, channels, steps, *, filter="adjacency", polynomial=2, dynamics="residual",
             activation="tanh", norm=None, scheme=None, length=1.0, degree=0, **options) -> Net:  # fmt: skip
    """Outputs at every node of a graph: message passing between an opening and a read-out that all nodes share.

    Features are ordered channel by channel; `NodeModel` makes samples of the nodes.  Kipf & Welling (2017), in any
    dynamics.
    """
    half = _half(channels, "channels") if dynamics in HALVED else channels
    K = fields.graph(adjacency, half, filter=filter, degree=polynomial)
    scheme = scheme or ("verlet" if dynamics in HALVED else "euler")
    depth = Depth(count("steps", steps) + degree, degree)
    block = Block(_field(dynamics, K, activation, norm), scheme, steps, length, depth)
    opening = Chain((Layer(nodewise(K.nodes_in, inputs, channels), activation=activation),))
    readout = Chain((Layer(nodewise(K.nodes_in, channels, count("outputs", outputs)), "W", "b"),))
    return Net(Design((block,), opening, readout), **options)


def attention_net(tokens, channels, steps, *, heads=1, is_causal=False, outputs=None, dynamics="residual",
                  activation="identity", norm=None, scheme="euler", **options) -> Net:  # fmt: skip
    """An attention block as a step; Vaswani et al. (2017), Lu et al. (2019)."""
    K = fields.Attention(tokens, channels, heads, is_causal)
    return composed(_field(dynamics, K, activation, norm), scheme, steps, None, outputs, **options)


def parabolic_cnn(shape, channels: Sequence[int], steps, *, inputs=1, outputs=None, dynamics="parabolic",
                  activation="relu", norm=None, scheme=None, length=1.0, padding="zero", degree=0,
                  **options) -> Net:  # fmt: skip
    """Blocks of convolutions, joined by pooling and a change of channels; Ruthotto & Haber (2020).

    `shape` is (height, width) of the images, `inputs` their channels, `channels` those of the blocks.  `dynamics` may
    be any other: a Hamiltonian one takes half of the channels for q and half for p.
    """
    is_halved = dynamics in HALVED
    scheme = scheme or ("verlet" if is_halved else "euler")
    blocks, joins = [], []
    for number, width in enumerate(channels):
        K = fields.conv2d(shape, _half(width, "channels") if is_halved else width, padding=padding)
        blocks.append(
            Block(_field(dynamics, K, activation, norm), scheme, steps, length, Depth(steps + degree, degree))
        )
        if number < len(channels) - 1:
            pool = fields.pooling(shape, width)
            shape = tuple(n // 2 for n in shape)
            change = fields.conv2d(shape, width, channels[number + 1], taps=(1, 1))
            joins.append(Chain((Layer(pool, None, None), Layer(change, activation=activation))))
    first = tuple(n * 2 ** len(joins) for n in shape)
    opening = Chain((Layer(fields.conv2d(first, inputs, channels[0], padding=padding), activation=activation),))
    readout = None
    if outputs is not None:
        mean = Layer(fields.pooling((shape[0] * shape[1],), channels[-1], shape[0] * shape[1]), None, None)
        readout = Chain((mean, Layer(dense(channels[-1], count("outputs", outputs)), "W", "b")))
    return Net(Design(tuple(blocks), opening, readout, tuple(joins)), **options)


def _field(dynamics: str, K: Connectivity, activation, norm) -> Field:
    if dynamics not in fields.DYNAMICS:
        raise UnknownName("dynamics", dynamics, fields.DYNAMICS)
    return fields.DYNAMICS[dynamics](K, activation, norm=norm)


PRESETS = {
    each.__name__: each
    for each in (resnet, antisymmetric, parabolic, hamiltonian, hyperbolic, midpoint_net, leapfrog_net, mlp, neural_ode,
                 graph_ode, node_net, attention_net, parabolic_cnn)
}  # fmt: skip
