"""Time-stepping schemes as frozen records that validate their coefficients, and the properties derived from them."""

from stepnet.schemes import conditions
from stepnet.schemes.catalogue import find, get, names
from stepnet.schemes.controllers import PI, PID, Controller, I
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.stabilised import rkc1, rkc2, rkl1, rkl2
from stepnet.schemes.tableau import Butcher, Embedded, ExplicitRK, LowStorageRK, StabilisedRK

__all__ = [
    "PI", "PID", "Butcher", "Controller", "Embedded", "ExplicitRK", "I", "LowStorageRK", "Multistep", "Splitting",
    "StabilisedRK", "conditions", "find", "get", "names", "rkc1", "rkc2", "rkl1", "rkl2",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
