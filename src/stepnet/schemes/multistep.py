"""Explicit multistep schemes: the record, the Adams-Bashforth family and the two-step leapfrogs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.explicit import DOPRI5, HEUN2, KUTTA3, MIDPOINT, RK4
from stepnet.schemes.order import TOLERANCE, multistep_defect
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.symplectic import VERLET
from stepnet.schemes.tableau import AN_ORDER, ExplicitRK, floats, freeze, require_finite
from stepnet.validation import check, instance, text

HAIRER = "Hairer, Norsett & Wanner (1993), Solving Ordinary Differential Equations I, III.1"


@check(name=text, order=AN_ORDER, starter=instance(ExplicitRK, Splitting), derivative=AN_ORDER)
@dataclass(frozen=True)
class Multistep:
    """y_{n+1} = sum_j alpha_j y_{n-j} + h^d sum_j beta_j f_{n-j},  f = y^(d), j = 0, 1, ...

    d = `derivative` is 1 for y' = f(t, y) and 2 for q'' = a(t, q).  The first steps are taken by `starter`, a one-step
    scheme whose order is lower by at most one.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain.
    alpha : tuple of float
        Coefficients of the states, the latest first.
    beta : tuple of float
        Coefficients of the slopes, the latest first.
    starter : ExplicitRK or Splitting
        A one-step scheme for the first steps.
    reference : str
        The source of the coefficients.
    derivative : int, optional
        d, 1 or 2.

    Examples
    --------
    >>> import stepnet as sn
    >>> heun = sn.schemes.get("heun2")
    >>> sn.schemes.Multistep("adams2", 2, (1.0, 0.0), (1.5, -0.5), heun, "Bashforth (1883)").order
    2
    """

    name: str
    order: int
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    starter: ExplicitRK | Splitting
    reference: str
    derivative: int = 1

    def __post_init__(self) -> None:
        freeze(self, alpha=floats("alpha", self.alpha), beta=floats("beta", self.beta))
        if self.order < 1:
            raise SchemeError(f"{self.name}: `order` must be at least 1, found {self.order}")
        if self.derivative == 2 and self.order > 2:
            raise SchemeError(
                f"{self.name}: velocities are second order, so `order` can be at most 2, found {self.order}"
            )
        if self.derivative not in (1, 2):
            raise SchemeError(f"{self.name}: `derivative` must be 1 or 2, found {self.derivative}")
        require_finite(self.name, alpha=self.alpha, beta=self.beta)
        n_coefficients = len(self.alpha) + len(self.beta)
        if self.order > n_coefficients:
            raise SchemeError(
                f"{self.name}: `order` must be at most {n_coefficients}, the number of coefficients, found {self.order}"
            )
        defect = multistep_defect(np.array(self.alpha), np.array(self.beta), self.derivative, self.order)
        if not defect <= TOLERANCE:
            raise SchemeError(f"{self.name}: promises order {self.order}, but misses a condition by {defect:.1e}")
        if self.starter.order < self.order - 1:
            raise SchemeError(
                f"{self.name}: the `starter` must have order {self.order - 1} or more, "
                f"{self.starter.name} has {self.starter.order}"
            )
        if not is_zero_stable(self):
            raise SchemeError(f"{self.name}: not zero-stable, its characteristic polynomial breaks the root condition")

    @property
    def n_steps(self) -> int:
        """The number of earlier steps that a step depends on."""
        return max(len(self.alpha), len(self.beta))


def is_zero_stable(scheme: Multistep) -> bool:
    """The root condition: apart from `derivative` principal roots 1, roots lie in the unit disc, simple on its edge."""
    rho = np.polynomial.Polynomial(np.concatenate((-np.array(scheme.alpha[::-1]), [1.0])))
    for _ in range(scheme.derivative):
        rho = rho // np.polynomial.Polynomial([-1.0, 1.0])
    roots = rho.roots()
    edge = [1.0, *roots[np.abs(roots) > 1 - 1e-6]]
    is_simple = all(abs(x - y) > 1e-3 for i, x in enumerate(edge) for y in edge[:i])
    return bool(np.all(np.abs(roots) < 1 + 1e-6)) and is_simple


def adams_bashforth(steps: int, starter: ExplicitRK) -> Multistep:
    """beta_j = int_0^1 prod_{i != j} (s + i) / (i - j) ds: integrate the polynomial through the last slopes."""
    beta = []
    for j in range(steps):
        numerator, denominator = [Fraction(1)], Fraction(1)
        for i in range(steps):
            if i != j:
                numerator = [
                    x + i * y for x, y in zip([Fraction(0), *numerator], [*numerator, Fraction(0)], strict=True)
                ]
                denominator *= i - j
        beta.append(float(sum(x / (k + 1) for k, x in enumerate(numerator)) / denominator))
    return Multistep(f"ab{steps}", steps, (1.0,), tuple(beta), starter, HAIRER)


AB2 = adams_bashforth(2, HEUN2)
AB3 = adams_bashforth(3, KUTTA3)
AB4 = adams_bashforth(4, RK4)
AB5 = adams_bashforth(5, DOPRI5)

MIDPOINT_TWO_STEP = Multistep("midpoint_two_step", 2, (0.0, 1.0), (2.0,), MIDPOINT, HAIRER)

LEAPFROG_TWO_STEP = Multistep(
    "leapfrog_two_step", 2, (2.0, -1.0), (1.0,), VERLET,
    "Stormer (1907), Arch. Sci. Phys. Nat. 24:5; Verlet (1967), Phys. Rev. 159:98", derivative=2,
)  # fmt: skip
