"""Stability: reports and regions of schemes, Lyapunov exponents, certificates of nets, adjoint safety."""

from stepnet.stability.certificates import BlockCertificate, Certificate, certificate
from stepnet.stability.lyapunov_spectrum import LyapunovSpectrum, lyapunov
from stepnet.stability.mean_square import MeanSquareRegion, mean_square_region
from stepnet.stability.regions import Region, region
from stepnet.stability.safety import AdjointSafety, adjoint_safety
from stepnet.stability.scheme_report import SchemeReport, report

__all__ = [
    "AdjointSafety", "BlockCertificate", "Certificate", "LyapunovSpectrum", "MeanSquareRegion", "Region",
    "SchemeReport", "adjoint_safety", "certificate", "lyapunov", "mean_square_region", "region", "report",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
