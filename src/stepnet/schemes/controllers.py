"""Step-size controllers as records."""

from __future__ import annotations

from dataclasses import dataclass

from stepnet.errors import SchemeError, UnknownName
from stepnet.records import keep_numbers


@dataclass(frozen=True)
class Controller:
    """h_{n+1} = h_n * (s/err_n)^(beta1/k) * (s/err_{n-1})^(beta2/k) * (s/err_{n-2})^(beta3/k), s = safety^k.

    All controllers thus have the same error at equilibrium.  The factor is clipped to [shrink, grow].  k is the order
    of the error estimate plus one, err the norm of the error divided by the tolerance.

    Parameters
    ----------
    name : str
        The name.
    beta1, beta2, beta3 : float
        Exponents of the last error and of the two before.
    reference : str
        The source.
    safety : float, optional
        The factor s^(1/k).
    shrink, grow : float, optional
        Bounds of the ratio of consecutive step sizes.

    Examples
    --------
    >>> import stepnet as sn
    >>> controller = sn.schemes.Controller("H211", 0.25, 0.25, 0.0, "Soderlind (2003), ACM TOMS 29:1")
    >>> sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5", controller=controller).status.name
    'COMPLETED'
    """

    name: str
    beta1: float
    beta2: float
    beta3: float
    reference: str
    safety: float = 0.9
    shrink: float = 0.2
    grow: float = 10.0

    def __hash__(self) -> int:
        return hash((self.name, self.beta1, self.grow))  # a subset of the fields, for speed

    def __post_init__(self) -> None:
        anything = "(-inf, inf)"
        keep_numbers(self, **dict.fromkeys(("beta1", "beta2", "beta3", "safety", "shrink", "grow"), anything))
        if not 0 < self.safety <= 1:
            raise SchemeError(f"{self.name}: `safety` must be in (0, 1], found {self.safety}")
        if not 0 < self.shrink < 1 < self.grow:
            raise SchemeError(f"{self.name}: `shrink` < 1 < `grow` is needed, found {self.shrink} and {self.grow}")
        if not self.beta1 > 0:
            raise SchemeError(f"{self.name}: `beta1` must be positive, found {self.beta1}")


I = Controller("I", 1.0, 0.0, 0.0, "Hairer, Norsett & Wanner (1993), Solving Ordinary Differential Equations I, II.4")  # noqa: E741
PI = Controller("PI", 0.7, -0.4, 0.0, "Gustafsson (1991), ACM Trans. Math. Softw. 17:533")
PID = Controller("PID", 0.49, -0.34, 0.10, "Kennedy, Carpenter & Lewis (2000), Appl. Numer. Math. 35:177")

CONTROLLERS = {"I": I, "PI": PI, "PID": PID}


def controller(choice: Controller | str) -> Controller:
    """Return a controller, given as record or name."""
    if isinstance(choice, Controller):
        return choice
    if not isinstance(choice, str) or choice not in CONTROLLERS:
        raise UnknownName("controller", choice, CONTROLLERS)
    return CONTROLLERS[choice]
