"""Schemes for Langevin dynamics dq = v dt, dv = a(t, q) dt - c v dt + s dW: the records and their members.

A splitting advances three parts in turn, each exactly: A moves positions, B changes velocities by the acceleration, and
O is the Ornstein-Uhlenbeck process of the velocities,

    v -> exp(-c h) v + sqrt((1 - exp(-2 c h)) / (2 c h)) s dW.

B. Leimkuhler, C. Matthews (2013), Appl. Math. Res. Express 2013:34.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepnet.errors import SchemeError
from stepnet.schemes.stochastic import Orders
from stepnet.validation import check, text

LEIMKUHLER = "Leimkuhler & Matthews (2013), Appl. Math. Res. Express 2013:34"


@check(name=text, sequence=text, reference=text)
@dataclass(frozen=True)
class LangevinSplitting:
    """A splitting by the order of its parts, as in "BAOAB".

    A part that occurs k times advances by the fraction 1 / k of a step each time.
    """

    name: str
    sequence: str
    orders: tuple[Orders, ...]
    reference: str

    calculus = "ito"
    variables = ("W",)

    def __post_init__(self) -> None:
        if set(self.sequence) != set("ABO") or self.sequence.count("O") != 1:
            raise SchemeError(f"{self.name}: `sequence` must consist of A, B and one O, found {self.sequence!r}")


@check(name=text, reference=text)
@dataclass(frozen=True)
class StochasticVerlet:
    """Verlet's scheme with friction and noise: with b = 1 / (1 + c h / 2) and a = (1 - c h / 2) b,

    q_new = q + b h v + b h^2 / 2 a(t, q) + b h / 2 s dW,
    v_new = a v + h / 2 (a a(t, q) + a(t + h, q_new)) + b s dW.
    """

    name: str
    orders: tuple[Orders, ...]
    reference: str

    calculus = "ito"
    variables = ("W",)


_ORDERS = (Orders("additive", 1, 2),)

BAOAB = LangevinSplitting("baoab", "BAOAB", _ORDERS, LEIMKUHLER)

ABOBA = LangevinSplitting("aboba", "ABOBA", _ORDERS, LEIMKUHLER)

STOCHASTIC_VERLET = StochasticVerlet(
    "stochastic_verlet", _ORDERS, "Gronbech-Jensen & Farago (2013), Mol. Phys. 111:983"
)
