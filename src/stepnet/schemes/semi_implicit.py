"""Semi-implicit BDF schemes (SBDF): backward differences, one part of the sum implicit, the other extrapolated."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from stepnet.errors import SchemeError
from stepnet.schemes.backward_differences import expand_differences, find_implicit_defect
from stepnet.schemes.imex import ARS222, ARS343, KENCARP4, AdditiveRK
from stepnet.schemes.multistep import is_zero_stable
from stepnet.schemes.order import TOLERANCE, multistep_defect
from stepnet.schemes.tableau import AN_ORDER, floats, freeze, require_finite
from stepnet.validation import check, instance, real, text

ASCHER_WETTON = "Ascher, Ruuth & Wetton (1995), SIAM J. Numer. Anal. 32:797"


@check(name=text, order=AN_ORDER, gamma=real("(0, inf)"), starter=instance(AdditiveRK))
@dataclass(frozen=True)
class SemiImplicitBDF:
    """y_{n+1} = sum_j alpha_j y_{n-j} + h sum_j beta_j f1_{n-j} + h gamma f2(t_{n+1}, y_{n+1}),  j = 0, 1, ...

    for y' = f1 + f2.  The first steps are taken by `starter`, whose order is lower by at most one.

    Parameters
    ----------
    name : str
        The name.
    order : int
        The order, which the coefficients must attain for both parts.
    alpha : tuple of float
        Coefficients of the states, the latest first.
    beta : tuple of float
        Coefficients of the slopes of the explicit part, the latest first; as many as there are states.
    gamma : float
        Coefficient of the slope of the implicit part.
    starter : AdditiveRK
        A one-step scheme for the first steps.
    reference : str
        The source of the coefficients.

    Examples
    --------
    >>> import stepnet as sn
    >>> euler = sn.schemes.get("imex_euler")
    >>> sn.schemes.SemiImplicitBDF("sbdf1", 1, (1.0,), (1.0,), 1.0, euler, "Ascher, Ruuth & Wetton (1995)").order
    1
    """

    name: str
    order: int
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    gamma: float
    starter: AdditiveRK
    reference: str

    derivative = 1

    def __post_init__(self) -> None:
        freeze(self, alpha=floats("alpha", self.alpha), beta=floats("beta", self.beta), gamma=float(self.gamma))
        require_finite(self.name, alpha=self.alpha, beta=self.beta)
        if not self.alpha or len(self.alpha) != len(self.beta):
            raise SchemeError(
                f"{self.name}: `alpha` and `beta` must have equally many entries, at least one, found "
                f"{len(self.alpha)} and {len(self.beta)}"
            )
        if not 1 <= self.order <= len(self.alpha):
            raise SchemeError(
                f"{self.name}: `order` must be between 1 and {len(self.alpha)}, the number of steps, found {self.order}"
            )
        for label, defect in (("beta", find_explicit_defect), ("gamma", find_implicit_defect)):
            if not defect(self, self.order) <= TOLERANCE:
                raise SchemeError(
                    f"{self.name}: `alpha` and `{label}` promise order {self.order}, but miss a condition by "
                    f"{defect(self, self.order):.1e}"
                )
        if not is_zero_stable(self):  # type: ignore[arg-type]
            raise SchemeError(f"{self.name}: not zero-stable, its characteristic polynomial breaks the root condition")
        if self.starter.order < self.order - 1:
            raise SchemeError(
                f"{self.name}: the `starter` must have order {self.order - 1} or more, "
                f"{self.starter.name} has {self.starter.order}"
            )

    @property
    def n_steps(self) -> int:
        """The number of earlier states that a step depends on."""
        return len(self.alpha)


def find_explicit_defect(scheme: SemiImplicitBDF, order: int) -> float:
    """The largest defect of an order condition of the explicit part."""
    return multistep_defect(np.array(scheme.alpha), np.array(scheme.beta), 1, order)


def sbdf(steps: int, starter: AdditiveRK) -> SemiImplicitBDF:
    """sum_{k=1..steps} (nabla^k y_{n+1}) / k = h f: BDF, with f1 extrapolated from its last values by a polynomial.

    Parameters
    ----------
    steps : int
        The number of steps, from 1 to 6, which is the order.
    starter : AdditiveRK
        A one-step scheme for the first steps.

    Returns
    -------
    SemiImplicitBDF

    Examples
    --------
    >>> from stepnet import schemes
    >>> schemes.semi_implicit.sbdf(2, schemes.get("ars222")).gamma
    0.6666666666666666
    """
    alpha, gamma = expand_differences(steps)
    beta = tuple(float((-1) ** j * comb(steps, j + 1) * gamma) for j in range(steps))
    return SemiImplicitBDF(f"sbdf{steps}", steps, alpha, beta, float(gamma), starter, ASCHER_WETTON)


SBDF2 = sbdf(2, ARS222)
SBDF3 = sbdf(3, ARS343)
SBDF4 = sbdf(4, KENCARP4)
