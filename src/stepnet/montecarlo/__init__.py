"""Expectations of stochastic equations with confidence intervals: Feynman-Kac, quasi and multilevel Monte Carlo."""

from stepnet.montecarlo.estimate import Estimate
from stepnet.montecarlo.feynman_kac import feynman_kac

__all__ = ["Estimate", "feynman_kac"]


def __dir__() -> list[str]:
    return __all__
