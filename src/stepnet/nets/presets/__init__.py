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

from stepnet.nets.presets.composition import HALVED, build_diffusion, compose_net
from stepnet.nets.presets.dense_nets import (
    antisymmetric,
    hamiltonian,
    hyperbolic,
    leapfrog_net,
    midpoint_net,
    mlp,
    neural_ode,
    parabolic,
    resnet,
)
from stepnet.nets.presets.structured_nets import attention_net, graph_ode, node_net, parabolic_cnn

__all__ = [
    "HALVED", "PRESETS", "antisymmetric", "attention_net", "build_diffusion", "compose_net", "graph_ode", "hamiltonian",
    "hyperbolic", "leapfrog_net", "midpoint_net", "mlp", "neural_ode", "node_net", "parabolic", "parabolic_cnn",
    "resnet",
]  # fmt: skip

PRESETS = {
    each.__name__: each
    for each in (resnet, antisymmetric, parabolic, hamiltonian, hyperbolic, midpoint_net, leapfrog_net, mlp, neural_ode,
                 graph_ode, node_net, attention_net, parabolic_cnn)
}  # fmt: skip
