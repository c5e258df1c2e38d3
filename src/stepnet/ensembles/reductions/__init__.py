"""What to keep of the members of a sweep: a number for each, or something of all, without ever holding all of them."""

from stepnet.ensembles.reductions.lyapunov import Lyapunov
from stepnet.ensembles.reductions.moments import Mean, Moments
from stepnet.ensembles.reductions.per_member import Basins, Ends, EscapeTimes, Rows, States
from stepnet.ensembles.reductions.quantiles import Quantiles, QuantilesFound
from stepnet.ensembles.reductions.reduction import FATES, Chunk, Mergeable, PerMember, Reduction

__all__ = [
    "FATES", "Basins", "Chunk", "Ends", "EscapeTimes", "Lyapunov", "Mean", "Mergeable", "Moments", "PerMember",
    "Quantiles", "QuantilesFound", "Reduction", "Rows", "States",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
