"""Writes docs/schemes.md from the catalogue: `python docs/generate.py`."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from stepnet import schemes
from stepnet.schemes import conditions

TARGET = Path(__file__).parent / "schemes.md"
FAMILIES = {
    "ExplicitRK": "Explicit Runge-Kutta",
    "LowStorageRK": "Low-storage Runge-Kutta (2N)",
    "StabilisedRK": "Stabilised Runge-Kutta (families; here with 10 stages)",
    "Splitting": "Splitting and symplectic",
    "Multistep": "Multistep",
}
INTRODUCTION = """# Schemes

Written by `docs/generate.py` from the catalogue; every property is computed from the coefficients. *Real* and
*imaginary* are the stability limits on the negative real axis and on the imaginary axis (for splittings: the largest
h omega on an oscillator), *SSP* the strong-stability coefficient.
"""


def page() -> str:
    """The whole page."""
    chosen = [schemes.get(name) for name in schemes.names()]
    parts = [INTRODUCTION]
    for family, title in FAMILIES.items():
        members = sorted((s for s in chosen if type(s).__name__ == family), key=lambda s: (s.order, s.name))
        parts.append(f"## {title}\n\n{_table(members)}")
    return "\n".join(parts)


def _table(members) -> str:
    rows = ["| name | order | real | imaginary | SSP | properties | reference |", "|---|---|---|---|---|---|---|"]
    for scheme in members:
        hats = ", ".join(str(hat.order) for hat in getattr(scheme, "embedded", ()))
        order = f"{scheme.order}({hats})" if hats else str(scheme.order)
        numbers = (
            conditions.real_stability_limit(scheme),
            conditions.imaginary_stability_limit(scheme),
            conditions.ssp_coefficient(scheme),
        )
        cells = [f"{x:.4g}" if isfinite(x) else "-" for x in numbers]
        rows.append(f"| {_name(scheme)} | {order} | {' | '.join(cells)} | {_properties(scheme)} | {scheme.reference} |")
    return "\n".join(rows) + "\n"


def _name(scheme) -> str:
    return f"`{scheme.name}`"


def _properties(scheme) -> str:
    found = {
        "FSAL": conditions.is_fsal(scheme),
        "symplectic": conditions.is_symplectic(scheme),
        "symmetric": conditions.is_symmetric(scheme),
        "Nystrom": getattr(scheme, "nystrom", False),
    }
    return ", ".join(name for name, holds in found.items() if holds)


if __name__ == "__main__":
    TARGET.write_text(page())
