"""Reductions: per-member values or statistics of a sweep, computed chunk by chunk."""

from stepnet.ensembles.reductions.lyapunov import Lyapunov
from stepnet.ensembles.reductions.moments import Mean, Moments
from stepnet.ensembles.reductions.per_member import Basins, Ends, EscapeTimes, Rows, States
from stepnet.ensembles.reductions.quantiles import Quantiles, QuantilesFound
from stepnet.ensembles.reductions.reduction import STATUSES, Chunk, Mergeable, PerMember, Reduction

__all__ = [
    "STATUSES", "Basins", "Chunk", "Ends", "EscapeTimes", "Lyapunov", "Mean", "Mergeable", "Moments", "PerMember",
    "Quantiles", "QuantilesFound", "Reduction", "Rows", "States",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
