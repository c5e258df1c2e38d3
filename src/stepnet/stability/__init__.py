"""Stability: schemes, problems and nets; regions, spectra, exponents, branches, certificates, depth and robustness."""

from stepnet.stability.branches import Branch, SpecialPoint, continuation
from stepnet.stability.certificates import BlockCertificate, Certificate, certificate
from stepnet.stability.convergence import (
    ConvergenceRow,
    ConvergenceStudy,
    WorkPrecision,
    WorkPrecisionRow,
    convergence_study,
    work_precision,
)
from stepnet.stability.equilibria import Equilibrium, equilibrium
from stepnet.stability.floquet_multipliers import FloquetMultipliers, floquet
from stepnet.stability.jacobian_spectra import JacobianSpectra, spectra
from stepnet.stability.long_time import InvariantDrift, drift, reversibility_error, symplecticity_error
from stepnet.stability.lyapunov_fields import LyapunovField, lyapunov_field
from stepnet.stability.lyapunov_spectrum import LyapunovSpectrum, lyapunov
from stepnet.stability.mean_square import MeanSquareRegion, mean_square_region
from stepnet.stability.regions import Region, region
from stepnet.stability.safety import AdjointSafety, adjoint_safety
from stepnet.stability.scheme_report import SchemeReport, report
from stepnet.stability.sections import PoincareSection, poincare_section

__all__ = [
    "AdjointSafety", "BlockCertificate", "Branch", "Certificate", "ConvergenceRow", "ConvergenceStudy", "Equilibrium",
    "FloquetMultipliers", "InvariantDrift", "JacobianSpectra", "LyapunovField", "LyapunovSpectrum", "MeanSquareRegion",
    "PoincareSection", "Region", "SchemeReport", "SpecialPoint", "WorkPrecision", "WorkPrecisionRow", "adjoint_safety",
    "certificate", "continuation", "convergence_study", "drift", "equilibrium", "floquet", "lyapunov", "lyapunov_field",
    "mean_square_region", "poincare_section", "region", "report", "reversibility_error", "spectra",
    "symplecticity_error", "work_precision",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
