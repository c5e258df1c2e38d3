"""Time-stepping schemes as frozen records that validate their coefficients, and the properties derived from them."""

from stepnet.schemes import conditions
from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.catalogue import find, get, names
from stepnet.schemes.controllers import PI, PID, Controller, I
from stepnet.schemes.exponential import ExponentialRK, PhiTerm
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK, gauss, lobatto_iiia, lobatto_iiib, lobatto_iiic, radau_iia
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.partitioned_rk import PartitionedRK, lobatto_iiia_iiib
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.stabilised import rkc1, rkc2, rkl1, rkl2
from stepnet.schemes.stochastic import theta_maruyama, theta_milstein
from stepnet.schemes.tableau import Butcher, Embedded, ExplicitRK, LowStorageRK, StabilisedRK
from stepnet.schemes.variable_order import Switching, VariableAdams, VariableBDF

__all__ = [
    "PI", "PID", "AdditiveRK", "Butcher", "Controller", "Embedded", "ExplicitRK", "ExponentialRK", "FixedBDF", "I",
    "ImplicitRK", "LowStorageRK", "Multistep", "PartitionedRK", "PhiTerm", "Rosenbrock", "SemiImplicitBDF", "Splitting",
    "StabilisedRK", "Switching", "VariableAdams", "VariableBDF", "conditions", "find", "gauss", "get", "lobatto_iiia",
    "lobatto_iiia_iiib", "lobatto_iiib", "lobatto_iiic", "names", "radau_iia", "rkc1", "rkc2", "rkl1", "rkl2",
    "theta_maruyama", "theta_milstein",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
