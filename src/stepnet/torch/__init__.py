"""stepnet on tensors: `import stepnet.torch as snt`; `odeint` and `odeint_adjoint` take torchdiffeq's arguments."""

from stepnet.checkpoints import Checkpoints
from stepnet.engines.torch_engine.fields import Partitioned, SecondOrder, Split
from stepnet.torch.batches import BatchSolution, solve
from stepnet.torch.dense import odeint_dense
from stepnet.torch.methods import method_names
from stepnet.torch.ways_in import odeint, odeint_adjoint, odeint_event

__all__ = [
    "BatchSolution", "Checkpoints", "Partitioned", "SecondOrder", "Split", "method_names", "odeint", "odeint_adjoint",
    "odeint_dense", "odeint_event", "solve",
]  # fmt: skip
