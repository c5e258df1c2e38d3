"""Expectations of stochastic equations with confidence intervals: Feynman-Kac, quasi and multilevel Monte Carlo."""

from stepnet.montecarlo.estimate import Estimate
from stepnet.montecarlo.expectations import feynman_kac
from stepnet.montecarlo.level_choice import multilevel
from stepnet.montecarlo.multilevel_estimate import Level, MultilevelEstimate

__all__ = ["Estimate", "Level", "MultilevelEstimate", "feynman_kac", "multilevel"]


def __dir__() -> list[str]:
    return __all__
