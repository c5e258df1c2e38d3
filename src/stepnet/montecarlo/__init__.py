"""Expectations of stochastic equations with confidence intervals: Feynman-Kac, quasi and multilevel Monte Carlo."""

from stepnet.montecarlo.estimate import Estimate
from stepnet.montecarlo.expectations import feynman_kac
from stepnet.montecarlo.gradient_estimate import GradientEstimate, feynman_kac_gradient
from stepnet.montecarlo.level_choice import multilevel
from stepnet.montecarlo.multilevel_estimate import Level, MultilevelEstimate
from stepnet.montecarlo.random_start import RandomStart
from stepnet.montecarlo.randomised_levels import randomised_multilevel

__all__ = [
    "Estimate", "GradientEstimate", "Level", "MultilevelEstimate", "RandomStart", "feynman_kac", "feynman_kac_gradient",
    "multilevel", "randomised_multilevel",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
