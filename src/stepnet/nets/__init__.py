"""Networks as steps: a net has a field, a scheme, a depth, an opening layer and a readout."""

from stepnet.nets import losses, penalties
from stepnet.nets.derivatives import Linearised, NetGradient
from stepnet.nets.design import Block, Design
from stepnet.nets.mgrit import MGRIT, Convergence
from stepnet.nets.net import Net
from stepnet.nets.network_process import NetworkVelocity, network_pde, network_sde
from stepnet.nets.node_model import NodeModel
from stepnet.nets.parallel_depth import ParallelForward, ParallelGradient, mgrit_forward, mgrit_gradient
from stepnet.nets.presets import (
    PRESETS,
    antisymmetric,
    attention_net,
    compose_net,
    graph_ode,
    hamiltonian,
    hyperbolic,
    leapfrog_net,
    midpoint_net,
    mlp,
    neural_ode,
    node_net,
    parabolic,
    parabolic_cnn,
    resnet,
)
from stepnet.nets.sample_noise import SampleNoise

load = Net.load

__all__ = [
    "Block", "Convergence", "Design", "Linearised", "MGRIT", "Net", "NetGradient", "NetworkVelocity", "NodeModel",
    "PRESETS", "ParallelForward", "ParallelGradient", "SampleNoise", "antisymmetric", "attention_net", "compose_net",
    "graph_ode", "hamiltonian", "hyperbolic", "leapfrog_net", "load", "losses", "mgrit_forward", "mgrit_gradient",
    "midpoint_net", "mlp", "network_pde", "network_sde", "neural_ode", "node_net", "parabolic", "parabolic_cnn",
    "penalties", "resnet",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
