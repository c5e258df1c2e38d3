"""Stability: reports and regions of schemes, mean-square regions, and whether the continuous adjoint is reliable."""

from stepnet.stability.mean_square import MeanSquareRegion, mean_square_region
from stepnet.stability.regions import Region, region
from stepnet.stability.safety import AdjointSafety, adjoint_safety
from stepnet.stability.scheme_report import SchemeReport, report

__all__ = [
    "AdjointSafety", "MeanSquareRegion", "Region", "SchemeReport", "adjoint_safety", "mean_square_region", "region",
    "report",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
