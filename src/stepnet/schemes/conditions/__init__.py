"""Properties derived from the coefficients of a scheme: order, symplecticity, symmetry, stability, error constants.

Functions take any record of the catalogue, or a `Butcher` tableau (implicit ones too); where a property is not defined
for a family, they return False, 0 or NaN, as documented.
"""

from stepnet.schemes.conditions.families import tableau_of
from stepnet.schemes.conditions.orders import embedded_orders, error_constant, order, stage_order
from stepnet.schemes.conditions.stability import (
    amplification,
    imaginary_stability_limit,
    is_a_stable,
    is_l_stable,
    real_stability_limit,
    ssp_coefficient,
    stability_function,
)
from stepnet.schemes.conditions.structure import (
    is_explicit,
    is_fsal,
    is_pair,
    is_reversible,
    is_stiffly_accurate,
    is_symmetric,
    is_symplectic,
    symplecticity_defect,
)

__all__ = [
    "amplification",
    "embedded_orders",
    "error_constant",
    "imaginary_stability_limit",
    "is_a_stable",
    "is_explicit",
    "is_fsal",
    "is_l_stable",
    "is_pair",
    "is_reversible",
    "is_stiffly_accurate",
    "is_symmetric",
    "is_symplectic",
    "order",
    "real_stability_limit",
    "ssp_coefficient",
    "stability_function",
    "stage_order",
    "symplecticity_defect",
    "tableau_of",
]


def __dir__() -> list[str]:
    return __all__
