"""Problems and schemes for ensembles."""

from __future__ import annotations

import numpy as np
from scheme_names import FIXED_STEPS

import stepnet as sn
from stepnet.schemes.conditions import is_pair
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.tableau import ExplicitRK, LowStorageRK

SCHEMES = [sn.schemes.get(name) for name in FIXED_STEPS]
PAIRS = [scheme for scheme in SCHEMES if isinstance(scheme, ExplicitRK) and is_pair(scheme)]
EVEN = [scheme for scheme in SCHEMES if isinstance(scheme, (ExplicitRK, LowStorageRK, Splitting, Multistep))]


def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


def duffing(t, q, stiffness):
    return -q - stiffness * q * q * q


LORENZ = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 2.0), args=(10.0, 28.0, 8 / 3))
DUFFING = sn.SecondOrder(duffing, [1.0, 0.5], [0.0, 0.2], (0.0, 5.0), args=(0.5,))


def lorenz_args(count: int) -> np.ndarray:
    return np.stack([np.full(count, 10.0), np.linspace(0.0, 28.0, count), np.full(count, 8 / 3)], axis=1)


def of_lorenz(args, **changes) -> sn.ODE:
    facts = {"y0": [1.0, 1.0, 1.0], "t_span": (0.0, 2.0), **changes}
    return sn.ODE(lorenz, facts["y0"], facts["t_span"], args=tuple(args))


def is_second_order(scheme) -> bool:
    return isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2)
