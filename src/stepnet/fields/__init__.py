"""Right-hand sides of networks as data: connectivity x activation x formula x dynamics, with weights along depth."""

from stepnet.fields import diffusion
from stepnet.fields.activations import ACTIVATIONS, Activation, activation
from stepnet.fields.connectivity import (
    Attention,
    Connectivity,
    Fixed,
    Mixing,
    Normalisation,
    Stencil,
    dense,
    resized,
)
from stepnet.fields.convolutions import conv1d, conv2d, pooling
from stepnet.fields.depth import Depth, HeldWeights
from stepnet.fields.diffusion import Diffusion
from stepnet.fields.dynamics import (
    DYNAMICS,
    Field,
    antisymmetric,
    chained,
    hamiltonian,
    hyperbolic,
    parabolic,
    residual,
    staggered,
)
from stepnet.fields.formula import Chain, Layer, affine, mlp, symmetric, two_layer
from stepnet.fields.graphs import equivariant, graph, nodewise
from stepnet.fields.kernel_derivatives import build_kernel, find_kernel_derivatives

__all__ = [
    "ACTIVATIONS", "Activation", "Attention", "Chain", "Connectivity", "DYNAMICS", "Depth", "Diffusion", "Field",
    "Fixed", "HeldWeights", "Layer", "Mixing", "Normalisation", "Stencil", "activation", "affine", "antisymmetric",
    "build_kernel", "chained", "conv1d", "conv2d", "dense", "diffusion", "equivariant", "find_kernel_derivatives",
    "graph", "hamiltonian", "hyperbolic", "mlp", "nodewise", "parabolic", "pooling", "residual", "resized", "staggered",
    "symmetric", "two_layer",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
