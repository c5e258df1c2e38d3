"""stepnet on tensors: `import stepnet.torch as snt`; `odeint` and `odeint_adjoint` take torchdiffeq's arguments."""

from stepnet.checkpoints import Checkpoints
from stepnet.engines.torch_engine import (
    Partitioned,
    SecondOrder,
    Split,
    recognised,
)
from stepnet.torch import nets
from stepnet.torch.batch_solve import BatchSolution, solve
from stepnet.torch.block_modules import (
    AntisymmetricBlock,
    HamiltonianBlock,
    HyperbolicBlock,
    ODEBlock,
    ParabolicBlock,
    ResidualBlock,
    SolveBlock,
)
from stepnet.torch.dense_output import odeint_dense
from stepnet.torch.distributed import over_ranks
from stepnet.torch.layer_modules import FieldFunction, LayerBlock, LayerChain
from stepnet.torch.methods import method_names
from stepnet.torch.net_module import NetModule, from_net
from stepnet.torch.operators import tensor_operator
from stepnet.torch.torchdiffeq_interface import odeint, odeint_adjoint, odeint_event

__all__ = [
    "AntisymmetricBlock", "BatchSolution", "Checkpoints", "FieldFunction", "HamiltonianBlock", "HyperbolicBlock",
    "LayerBlock", "LayerChain", "NetModule", "ODEBlock", "ParabolicBlock", "Partitioned", "ResidualBlock",
    "SecondOrder", "SolveBlock", "Split", "from_net", "method_names", "nets", "odeint", "odeint_adjoint",
    "odeint_dense", "odeint_event", "over_ranks", "recognised", "solve", "tensor_operator",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
