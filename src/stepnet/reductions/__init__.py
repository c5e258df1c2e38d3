"""What to keep of the members of a sweep: a number for each, or something of all, without ever holding all of them."""

from stepnet.reductions.chunk import FATES, Chunk, Mergeable, PerMember, Reduction
from stepnet.reductions.lyapunov import Lyapunov
from stepnet.reductions.members import Basins, Ends, EscapeTimes, Rows, States
from stepnet.reductions.moments import Mean, Moments
from stepnet.reductions.quantiles import Quantiles, QuantilesFound

__all__ = [
    "FATES", "Basins", "Chunk", "Ends", "EscapeTimes", "Lyapunov", "Mean", "Mergeable", "Moments", "PerMember",
    "Quantiles", "QuantilesFound", "Reduction", "Rows", "States",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
