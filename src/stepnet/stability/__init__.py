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
from stepnet.stability.gradient_growth import GradientNorms, gradient_norms
from stepnet.stability.jacobian_spectra import JacobianSpectra, spectra
from stepnet.stability.long_time import InvariantDrift, drift, reversibility_error, symplecticity_error
from stepnet.stability.lyapunov_fields import LyapunovField, lyapunov_field
from stepnet.stability.lyapunov_spectrum import LyapunovSpectrum, lyapunov
from stepnet.stability.mean_square import MeanSquareRegion, mean_square_region
from stepnet.stability.refinement import DepthRefinement, depth_refinement
from stepnet.stability.regions import Region, region
from stepnet.stability.robustness_curves import RobustnessCurves, robustness
from stepnet.stability.safety import AdjointSafety, adjoint_safety
from stepnet.stability.scheme_report import SchemeReport, report
from stepnet.stability.sections import PoincareSection, poincare_section

__all__ = [
    "AdjointSafety", "BlockCertificate", "Branch", "Certificate", "ConvergenceRow", "ConvergenceStudy",
    "DepthRefinement", "Equilibrium", "FloquetMultipliers", "GradientNorms", "InvariantDrift", "JacobianSpectra",
    "LyapunovField", "LyapunovSpectrum", "MeanSquareRegion", "PoincareSection", "Region", "RobustnessCurves",
    "SchemeReport", "SpecialPoint", "WorkPrecision", "WorkPrecisionRow", "adjoint_safety", "certificate",
    "continuation", "convergence_study", "depth_refinement", "drift", "equilibrium", "floquet", "gradient_norms",
    "lyapunov", "lyapunov_field", "mean_square_region", "poincare_section", "region", "report", "reversibility_error",
    "robustness", "spectra", "symplecticity_error", "work_precision",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
