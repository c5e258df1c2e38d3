"""stepnet on tensors: `import stepnet.torch as snt`.

`odeint` and `odeint_adjoint` take torchdiffeq's arguments, `sdeint` and `sdeint_adjoint` torchsde's.
"""

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
from stepnet.torch.brownian_motion import BrownianInterval, BrownianPath, BrownianTree, brownian_interval_like
from stepnet.torch.certificates import certificate
from stepnet.torch.dense_output import odeint_dense
from stepnet.torch.distributed import over_ranks
from stepnet.torch.layer_modules import FieldFunction, LayerBlock, LayerChain
from stepnet.torch.methods import method_names
from stepnet.torch.net_module import NetModule, from_net
from stepnet.torch.operators import tensor_operator
from stepnet.torch.path_losses import moment_matching, negative_elbo
from stepnet.torch.sde_functions import BaseSDE, SDEIto, SDEStratonovich
from stepnet.torch.sde_methods import sde_method_names
from stepnet.torch.stochastic_blocks import SDEBlock, SDESolveBlock
from stepnet.torch.torchdiffeq_interface import odeint, odeint_adjoint, odeint_event
from stepnet.torch.torchsde_interface import sdeint, sdeint_adjoint

__all__ = [
    "AntisymmetricBlock", "BaseSDE", "BatchSolution", "BrownianInterval", "BrownianPath", "BrownianTree",
    "Checkpoints", "FieldFunction", "HamiltonianBlock", "HyperbolicBlock", "LayerBlock", "LayerChain", "NetModule",
    "ODEBlock", "ParabolicBlock", "Partitioned", "ResidualBlock", "SDEBlock", "SDEIto", "SDESolveBlock",
    "SDEStratonovich", "SecondOrder", "SolveBlock", "Split", "brownian_interval_like", "certificate", "from_net",
    "method_names", "moment_matching", "negative_elbo", "nets", "odeint", "odeint_adjoint", "odeint_dense",
    "odeint_event", "over_ranks", "recognised", "sde_method_names", "sdeint", "sdeint_adjoint", "solve",
    "tensor_operator",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
